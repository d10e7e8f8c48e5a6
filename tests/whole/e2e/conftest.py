"""The command as a person uses it: real processes on a data directory of their own."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli.client import forked
from tests.conftest import borrowing
from tests.log.jetstream.servers import one_server

ROOT = Path(__file__).parents[3]
LEDGER_SCRIPT = f"script:{ROOT / 'examples' / 'ledger.script.toml'}"
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")


@dataclass
class Cloister:
    """`cloister --data-dir …` with a clean environment, and what tests need around it.

    `run` and `serve` start as a person starts them; the commands that look at a run are forked (`tests.cli.client.forked`).
    """

    data_dir: Path
    cwd: Path
    fix: str = LEDGER_SCRIPT
    """The scripted model that repairs the ledger."""
    more_env: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def env(self) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**keep, "COLUMNS": "120", **self.more_env}

    @property
    def shared(self) -> bool:
        """Whether the log is that of a cluster: then each command starts the server again."""
        return "CLOISTER_CLUSTER" in self.more_env

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "cloister", "--data-dir", str(self.data_dir), *args]

    def __call__(
        self, *args: str, code: int | None = 0, stdin: str | None = None, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        if args[0] in ("run", "serve") or stdin is not None:
            done = subprocess.run(
                self.argv(*args),
                cwd=self.cwd,
                env=self.env,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=seconds,
                stdin=subprocess.DEVNULL if stdin is None else None,
            )
        else:
            command = ("--data-dir", str(self.data_dir), *args)
            done = forked.run(command, cwd=self.cwd, env=self.env | forked.inherited())
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.argv(*args),
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--json").stdout)

    def events(self, run: str = "last") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("log", run, "--json").stdout.splitlines()]

    def kinds(self, run: str = "last") -> list[str]:
        return [event["body"]["type"] for event in self.events(run)]

    def has(self, kind: str, run: str = "last") -> bool:
        done = self("log", run, "--json", code=None)
        return f'"type":"{kind}"' in done.stdout

    def ledger(self, name: str = "ledger") -> Path:
        """The sample repository with its bug, as a fresh git repository."""
        at = self.cwd / name
        shutil.copytree(ROOT / "examples" / "ledger", at, ignore=shutil.ignore_patterns("__pycache__"))
        for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
            self.git(at, *args)
        return at

    def git(self, repo: Path, *args: str) -> str:
        done = subprocess.run([*GIT, *args], cwd=repo, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def script(self, text: str) -> str:
        """A model that replays `text`."""
        path = self.cwd / f"{len(list(self.cwd.glob('*.script.toml')))}.script.toml"
        path.write_text(text)
        return f"script:{path}"

    def until(self, what: Callable[[], bool], seconds: float = 180) -> None:
        """Wait for something that no event announces to this process; each look may start one of its own."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, "the condition did not become true in time"
            time.sleep(0.02)

    def kill_server(self) -> None:
        """kill -9 its server and wait for the end of its sandboxes. A sandbox that was frozen for a fork in that
        moment cannot end by itself: the next process on the data directory removes it."""
        self.kill(self.server_pid())
        self.until(lambda: all(_is_frozen(pid) for pid in self.sandbox_processes()))

    def kill(self, pid: int) -> None:
        """kill -9, and wait until it is gone. It may have gone with another that was killed before."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: _gone(pid))

    def sandbox_processes(self) -> list[int]:
        """Host processes of sandboxes on this data directory."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if f"{self.data_dir}/sandboxes/".encode() in line:
                found.append(int(path.parent.name))
        return found

    def let_go(self) -> None:
        """What waits for the world outside may go on now."""
        (self.cwd / "go").touch()

    def server_pid(self) -> int:
        return int(json.loads((self.data_dir / "server.json").read_text())["pid"])


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], dict[str, str]]]:
    """What the environment of a data directory says of its log.

    With `CLOISTER_TEST_BACKBONE=nats` each is the only machine of a cluster of its own, on one NATS server.
    """
    if os.environ.get("CLOISTER_TEST_BACKBONE") != "nats":
        yield dict
        return
    with one_server(tmp_path_factory.mktemp("nats")) as server:
        numbers = itertools.count()
        yield lambda: {"CLOISTER_CLUSTER": server.url, "CLOISTER_CLUSTER_NAME": f"c{next(numbers)}"}


@contextmanager
def _opened(data_dir: Path, cwd: Path, env: dict[str, str]) -> Generator[Cloister]:
    # A server that a command starts by itself takes any port: the usual one may be another's on this machine.
    (data_dir / "config.toml").write_text("port = 0\n")
    command = Cloister(data_dir, cwd, more_env=env)
    yield command
    if (data_dir / "server.json").exists():
        command("serve", "--stop", code=None)


@pytest.fixture
def cloister(data_dir: Path, tmp_path: Path, backbone: Callable[[], dict[str, str]]) -> Iterator[Cloister]:
    with _opened(data_dir, tmp_path, backbone()) as command:
        yield command


@dataclass
class Repaired:
    """A finished run that repaired the ledger, for tests that only look at it."""

    cloister: Cloister
    repo: Path
    shown: str
    """What the command printed."""


@pytest.fixture(scope="session")
def repaired(
    warm_dir: Path, tmp_path_factory: pytest.TempPathFactory, backbone: Callable[[], dict[str, str]]
) -> Iterator[Repaired]:
    cwd = tmp_path_factory.mktemp("repaired")
    with _opened(borrowing(warm_dir, cwd / "data"), cwd, backbone()) as command:
        repo = command.ledger()
        prompt = "The test suite fails. Find the cause and fix it."
        done = command("run", prompt, "--repo", str(repo), "--model", command.fix)
        yield Repaired(command, repo, done.stdout)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[int]:
    """A web server on this machine that answers from the moment the test lets go; returns its port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if (tmp_path / "go").exists() else 503)
            self.end_headers()
            self.wfile.write(b"a page from outside\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def _gone(pid: int) -> bool:
    """Dead; perhaps not yet reaped by its parent."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def _is_frozen(pid: int) -> bool:
    """Stopped by the freezer of its cgroup. False for a process that has ended."""
    try:
        groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    except OSError:
        return False
    switches = {
        "": ("/sys/fs/cgroup/unified{}/cgroup.freeze", "/sys/fs/cgroup{}/cgroup.freeze"),
        "freezer": ("/sys/fs/cgroup/freezer{}/freezer.state",),
    }
    for _, controllers, group in groups:
        for switch in switches.get(controllers, ()):
            with suppress(OSError):
                if Path(switch.format(group)).read_text().strip() in ("1", "FROZEN", "FREEZING"):
                    return True
    return False
