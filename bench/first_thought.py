"""From the command to the first request to the model, and to a proven change, next to mini-swe-agent.

- cold: a new process `cloister run` with a warm template, until it asks the model for the first time;
- server: from the HTTP request to a running server until the model is asked;
- mini-swe-agent: a new process on this machine until it asks its model, and in a container of docker where one works.
  It makes no copy of the repository, runs no checks and keeps no log;
- proven: a scripted fix of a planted bug, from the command to its end, divided by one run of the suite.

Modules are compiled, as after the first command. Each is measured with a suite of 1 s and one of 20 s: the first thought must not depend on it. The tests of the suites
sleep, so that they take as long on a busy machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loop import WARM, mini_python

from cloister.testing.samples import SampleRepo

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SUITES = tuple(float(one) for one in os.environ.get("SUITES", "1,20").split(","))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
FIX = """
[[reply]]
say = "Look."
calls = [{ tool = "read", path = "calc.py" }]
[[reply]]
say = "Fix."
calls = [{ tool = "edit", path = "calc.py", old = "a - b", new = "a + b" }]
[[reply]]
say = "Done."
calls = [{ tool = "finish", summary = "Fix add." }]
"""
LOOK = '[[reply]]\nname = "on"\nsay = "Look."\ncalls = [{ tool = "read", path = "calc.py" }]\ngoto = "on"\n'
MINI = """
import os, sys, time
os.environ["MSWEA_SILENT_STARTUP"] = "1"
from minisweagent.agents.default import DefaultAgent
from minisweagent.models.test_models import DeterministicModel, make_output

class Model(DeterministicModel):
    def query(self, messages, **kwargs):
        print(time.time(), flush=True)
        os._exit(0)

where, image = sys.argv[1:]
if image:
    from minisweagent.environments.docker import DockerEnvironment
    environment = DockerEnvironment(image=image, cwd="/")
else:
    from minisweagent.environments.local import LocalEnvironment
    environment = LocalEnvironment(cwd=where)
DefaultAgent(
    Model(outputs=[make_output("Done.", [], cost=0.0)], cost_per_call=0.0), environment,
    system_template="You are a helpful assistant.", instance_template="{{task}}", cost_limit=0,
).run("bench")
"""


def repository(at: Path, seconds: float) -> SampleRepo:
    """A bug, the test that shows it, and a suite of tests that sleep for `seconds` in all."""
    repo = SampleRepo(at)
    repo.write("calc.py", "def add(a, b):\n    return a - b\n")
    repo.write("conftest.py")
    repo.write("tests/test_add.py", "from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    for number in range(10):
        body = f"import time\n\ndef test_slow_{number}():\n    time.sleep({seconds / 10})\n"
        repo.write(f"tests/test_slow_{number}.py", body)
    repo.commit("base")
    return repo


def first_request(events: Sequence[dict[str, Any]]) -> float:
    """The time of the first request."""
    reply = next(event for event in events if event["body"]["type"] == "ModelReplied")
    return reply["at"] - reply["body"]["seconds"]


def run(directory: Path, repo: SampleRepo, script: Path, *more: str) -> tuple[float, float]:
    """A run in a process of its own: seconds to the first request, and to the end."""
    argv = [sys.executable, "-m", "cloister", "--data-dir", str(directory), "run", "Fix add.", "--json"]
    started = time.time()
    argv += ["--repo", str(repo.path), "--model", f"script:{script}", *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    took = time.time() - started
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ended = events[-1]["body"]
    assert more or ended["outcome"] == "proven", (ended, done.stderr)
    return first_request(events) - started, took


def through_server(directory: Path, repo: SampleRepo, script: Path) -> float:
    """Seconds from the HTTP request to the first request to the model."""
    server = json.loads((directory / "server.json").read_text())
    token = (directory / "token").read_text().strip()

    def call(method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(server["url"] + path, data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    wish = {"prompt": "Fix add.", "repo": str(repo.path), "model": f"script:{script}", "budget": {"steps": 2}}
    started = time.time()
    name = call("POST", "/v1/runs", wish)["id"]
    while call("GET", f"/v1/runs/{name}")["state"] != "finished":
        time.sleep(0.2)
    argv = [sys.executable, "-m", "cloister", "--data-dir", str(directory), "log", name, "--json"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return first_request([json.loads(line) for line in listed.splitlines()]) - started


def mini(python: Path, repo: SampleRepo, image: str = "") -> float | None:
    started = time.time()
    argv = [str(python), "-c", MINI, str(repo.path), image]
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "MSWEA_GLOBAL_CONFIG_DIR": scratch}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120, check=False)
    return float(done.stdout.split()[-1]) - started if done.returncode == 0 else None


def suite_alone(repo: SampleRepo) -> float:
    """One run of the suite on this machine."""
    started = time.time()
    subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=repo.path, capture_output=True, check=False)
    return time.time() - started


def line(name: str, found: Sequence[float], goal: float | None = None) -> float:
    middle = statistics.median(found)
    told = "" if goal is None else f"   goal {goal:g} s, ratio {middle / goal:.2f}"
    print(f"  {name:34s} p50 {middle:6.2f} s   best {min(found):6.2f} s{told}")
    return middle


def measure(directory: Path, seconds: float, python: Path | None, scripts: tuple[Path, Path]) -> None:
    repo = repository(directory / f"repo-{seconds:g}", seconds)
    look, fix = scripts
    run(directory, repo, look, "--steps", "1")  # builds the template where it is missing
    load = os.getloadavg()[0]
    print(f"suite of {seconds:g} s: seconds to the first request to the model (load {load:.1f})")
    ours = line("cold process", [run(directory, repo, look, "--steps", "1")[0] for _ in range(ROUNDS)], 1.0)
    serve = [sys.executable, "-m", "cloister", "--data-dir", str(directory), "serve"]
    subprocess.run([*serve, "--background"], check=True, capture_output=True)
    try:
        line("through a server", [through_server(directory, repo, look) for _ in range(ROUNDS)], 0.25)
    finally:
        subprocess.run([*serve, "--stop"], check=False, capture_output=True)
    if python is not None:
        peer = [took for _ in range(ROUNDS) if (took := mini(python, repo)) is not None]
        if peer:
            print(f"    ours ÷ mini-swe-agent {ours / line('mini-swe-agent on this machine', peer):.2f}")
        image = os.environ.get("MINI_IMAGE", "debian:12")
        inside = [took for _ in range(2) if (took := mini(python, repo, image)) is not None]
        if inside:
            print(f"    ours ÷ mini-swe-agent {ours / line('mini-swe-agent in a container', inside):.2f}")
        else:
            print("  mini-swe-agent in a container: not measured, no container of docker can be started here")
    once = min(suite_alone(repo) for _ in range(2))
    proven = [run(directory, repo, fix)[1] for _ in range(3)]
    line("to a proven change", proven, 1.3 * once)


def main() -> None:
    python = mini_python()
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        directory = Path(name)
        for part in ("templates", "programs"):
            (WARM / part).mkdir(parents=True, exist_ok=True)
            (directory / part).symlink_to(WARM / part)
        (directory / "config.toml").write_text("port = 0\n")
        scripts = (directory / "look.script.toml", directory / "fix.script.toml")
        scripts[0].write_text(LOOK)
        scripts[1].write_text(FIX)
        for seconds in SUITES:
            measure(directory, seconds, python, scripts)


if __name__ == "__main__":
    main()
