"""The time to the first command through the published clients of other services, beside our own Python client.

And what the harness seam adds to each tool call of a program, beside the same program with a client that does nothing but
allow. Both are on pipes and ask before each call. Ours is in a sandbox, each call is decided by the policy, and its decision,
call and result are on disk (`synchronous = FULL`) before the program reads the answer. The program calls no model.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio

from cloister.app.settings import read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.app.wiring import open_app
from cloister.core.events import Event, ModelReplied
from cloister.core.requests import Budget, NewRun
from cloister.testing.samples import SampleRepo
from parts.place import WARM, Bench
from parts.starts import served
from parts.table import Goal, Line, ms

AT_ONCE = 50
PACKAGES = {
    "ours": (),
    "e2b": ("e2b==2.63.0", "e2b-code-interpreter==2.11.5"),
    "pandastack": ("pandastack==0.10.0",),
}
FIRST = {
    "ours": "from cloister import Client\nclient = Client()\ndef first():\n    s = client.create(ttl_seconds=600)\n"
    "    assert s.exec('echo here').stdout == 'here\\n'\n    return s.close",
    "e2b": "from e2b import Sandbox\ndef first():\n    s = Sandbox.create(timeout=600)\n"
    "    assert s.commands.run('echo here').stdout == 'here\\n'\n    return s.kill",
    "pandastack": "from pandastack import Sandbox\ndef first():\n    s = Sandbox.create(ttl_seconds=600)\n"
    "    assert s.exec('echo here').stdout == 'here\\n'\n    return s.kill",
}
LOOP = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
def timed(_=None):
    began = time.perf_counter()
    end = first()
    return time.perf_counter() - began, end
with ThreadPoolExecutor(64) as pool:
    for line in sys.stdin:
        taken = list(pool.map(timed, range(int(line)))) if int(line) > 1 else [timed()]
        list(pool.map(lambda one: one[1](), taken))
        print(max(seconds for seconds, _ in taken), flush=True)
"""


IMPORT = "import time\nt = time.process_time()\nfrom cloister import Client, AsyncClient, Sandbox\nprint(time.process_time() - t)"


def through_clients(bench: Bench) -> None:
    """Import; create → first command, each client in turn; then many sandboxes at once through e2b's."""
    spent = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(bench.rounds)]
    bench.table.add(Line("import of our own client, processor time", _ms(spent), goal=Goal(100.0)))
    with served(bench) as (port, token), ExitStack() as stack:
        url = f"http://127.0.0.1:{port}"
        ask = {name: stack.enter_context(_client(name, url, token)) for name in PACKAGES}
        for each in ask.values():
            each(1)  # the template is built, the modules are imported
        taken: dict[str, list[float]] = {name: [] for name in ask}
        for _ in range(bench.rounds):
            for name, each in ask.items():
                taken[name].append(each(1))
        for name in ("e2b", "pandastack"):
            line = Line(
                f"{name}'s client: create → first command",
                _ms(taken[name]),
                goal=Goal(1.3, "ratio"),
                beside="our own client",
                theirs=_ms(taken["ours"]),
            )
            bench.table.add(line)
        slowest = [ask["e2b"](AT_ONCE) for _ in range(3)]
        what = f"e2b's client: the slowest of {AT_ONCE} at once, to its first command"
        bench.table.add(Line(what, _ms(slowest)))


def _ms(seconds: list[float]) -> tuple[float, ...]:
    return tuple(one * 1000 for one in seconds)


@contextmanager
def _client(name: str, url: str, token: str) -> Generator["_Ask"]:
    env = {
        "PATH": "/usr/bin:/bin",
        "CLOISTER_SERVER": url,
        "CLOISTER_TOKEN": token,
        "E2B_API_KEY": token,
        "E2B_API_URL": f"{url}/compat/e2b",
        "E2B_SANDBOX_URL": f"{url}/compat/e2b",
        "PANDASTACK_API_KEY": token,
        "PANDASTACK_API": f"{url}/compat/pandastack",
    }
    program = f"{FIRST[name]}\n{LOOP}"
    with subprocess.Popen(
        [_python(PACKAGES[name]), "-c", program],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _Ask(process)
        finally:
            process.terminate()


class _Ask:
    """One client's process: asks for so many sandboxes at once."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, count: int) -> float:
        """Seconds until the last of them had run its first command."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def _python(packages: tuple[str, ...]) -> Path:
    """The Python that has these packages, in an environment that is made once."""
    if not packages:
        return Path(sys.executable)
    home = WARM / "clients" / "-".join(packages).replace("==", "-")
    python, made = home / "venv" / "bin" / "python", home / "made"
    if not made.exists():
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        made.touch()
        print(f"installed {' '.join(packages)} in {time.monotonic() - began:.0f} s")
    return python


# The harness seam.


CALLS = 200
GOAL_MS = 15.0
PROGRAM = """
import json, sys, time
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def read():
    return json.loads(sys.stdin.readline())
def update(**fields):
    send(method="session/update", params={"sessionId": "s", "update": fields})
options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
calls = int(sys.argv[1])
send(id=read()["id"], result={"protocolVersion": 1})
send(id=read()["id"], result={"sessionId": "s"})
while True:
    turn, times = read(), []
    for number in range(calls):
        begun = time.perf_counter()
        told = {"toolCallId": f"{turn['id']}-{number}", "title": "look", "kind": "execute", "rawInput": {"command": "cat a.txt"}}
        update(sessionUpdate="tool_call", status="pending", **told)
        send(id=f"{turn['id']}-{number}", method="session/request_permission",
             params={"sessionId": "s", "toolCall": told, "options": options})
        assert read()["result"]["outcome"]["optionId"] == "allow_once"
        text = open("a.txt").read()
        update(sessionUpdate="tool_call_update", status="completed",
               content=[{"type": "content", "content": {"type": "text", "text": text}}], **told)
        times.append(time.perf_counter() - begun)
    open("done.txt", "w").write("done")
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": json.dumps(times)})
    send(id=turn["id"], result={"stopReason": "end_turn"})
"""


def seam(bench: Bench) -> None:
    repo = SampleRepo(bench.directory / "harness-repo")
    repo.write("a.txt", "a line of the file that is looked at\n" * 50)
    repo.write("program.py", PROGRAM)
    repo.commit("base")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(max(1, bench.rounds // 5)):
        ours += anyio.run(_through_us, bench.directory, repo.path)
        theirs += _without_us(repo.path)
    added = [one - statistics.median(theirs) for one in ours]
    bench.table.add(Line("harness seam: added to each tool call", ms(added), goal=Goal(GOAL_MS)))
    bench.table.add(
        Line("harness: one tool call", ms(ours), beside="a client that only allows", theirs=ms(theirs))
    )


async def _through_us(directory: Path, repo: Path) -> list[float]:
    (directory / "script.toml").write_text('[[reply]]\nsay = "Never asked."\n')
    settings = read_settings(dict(os.environ), data_dir=directory)
    new = NewRun(
        "bench",
        str(repo),
        model=f"script:{directory / 'script.toml'}",
        harness=f"acp:python3 program.py {CALLS}",
        checks=("true",),
        budget=Budget(steps=3 * CALLS),
    )
    async with open_app(settings, role="embedded") as app:
        run = (await LocalVerbs(app, Caller("bench", "admin")).runs.submit(new)).id
        async with app.backbone.follow(run) as items:
            bodies = [item.body async for item in items if isinstance(item, Event)]
    told = [body.text for body in bodies if isinstance(body, ModelReplied) and body.text.startswith("[")]
    assert told, bodies[-1]
    return json.loads(told[0])


def _without_us(repo: Path) -> list[float]:
    argv = [sys.executable, "program.py", str(CALLS)]
    with subprocess.Popen(
        argv, cwd=repo, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None and program.stdout is not None

        def send(**message: object) -> None:
            assert program.stdin is not None
            program.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            program.stdin.flush()

        for number in range(3):
            send(id=number, method="any", params={})
        text = ""
        for line in program.stdout:
            message = json.loads(line)
            if message.get("method") == "session/request_permission":
                send(id=message["id"], result={"outcome": {"outcome": "selected", "optionId": "allow_once"}})
            elif message.get("id") == 2:
                break
            elif message.get("params", {}).get("update", {}).get("sessionUpdate") == "agent_message_chunk":
                text = message["params"]["update"]["content"]["text"]
        program.terminate()
    return json.loads(text)
