"""The `cloister` command in processes that are forked from one that has imported its modules.

Most of the time of a short command is the start of the interpreter and its imports. Tests start the command a thousand
times, each time as a process of its own with its own arguments, environment, directory and standard streams. The tests
in `whole/e2e` start `run` and `serve` as a person does.

Run as a program, this file is the process that is forked: `python -W error tests/cli/client/forked.py SOCKET`.
"""

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

_PACKAGES = ("cloister.cli", "cloister.app", "cloister.server", "cloister.runs")
_STARTS = ("PYTHON", "LANG", "LC_")
"""Variables that Python reads while it starts."""
SECONDS = 120.0
"""Longer than any command takes in a test."""
Done = subprocess.CompletedProcess[str]


class _Forks:
    """The process that is forked. It ends with this one, or when `close` is called."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="cloister-forks-")
        self.place = Path(self._directory.name) / "socket"
        argv = [sys.executable, "-W", "error", str(Path(__file__).resolve()), str(self.place)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout and self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._process.communicate()
        self._directory.cleanup()


_forks = cache(_Forks)


def close() -> None:
    """End the process that is forked, if there is one."""
    if _forks.cache_info().currsize:
        _forks().close()
        _forks.cache_clear()


def run(args: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> Done:
    """`cloister ARGS`, as `subprocess.run` would run it."""
    return start(args, cwd=cwd, env=env).finish()


def start(args: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> "Command":
    """Start `cloister ARGS`. An environment with which Python itself starts differently gets a new interpreter."""
    return _Fork(_forks().place, args, cwd, env) if _startup(env) == inherited() else _Started(args, cwd, env)


class Command(Protocol):
    """A command that was started."""

    def finish(self) -> Done: ...


def inherited() -> dict[str, str]:
    """The variables with which Python started in the process that is forked."""
    return _startup(os.environ) | {"PYTHONWARNINGS": "error"}


def _startup(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_STARTS)}


class _Started:
    """A command in an interpreter of its own."""

    def __init__(self, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cloister", *args],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> Done:
        out, err = self._process.communicate(timeout=SECONDS)
        return Done(self._process.args, self._process.returncode, out, err)


class _Fork:
    """A command in a forked process."""

    def __init__(self, place: Path, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._args = ["cloister", *args]
        self._out, self._err = _Reader(), _Reader()
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.settimeout(SECONDS)
        self._link.connect(str(place))
        order = json.dumps({"args": list(args), "cwd": str(cwd), "env": dict(env)}).encode()
        socket.send_fds(self._link, [len(order).to_bytes(8)], [self._out.end, self._err.end])
        os.close(self._out.end)
        os.close(self._err.end)
        self._link.sendall(order)
        self._pid = int.from_bytes(_exactly(self._link, 8))

    def finish(self) -> Done:
        with self._link:
            try:
                code = int.from_bytes(_exactly(self._link, 8), signed=True)
            except TimeoutError:
                os.kill(self._pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(self._args, SECONDS) from None
        return Done(self._args, code, self._out.text(), self._err.text())


class _Reader:
    """A pipe that a thread reads to its end."""

    def __init__(self) -> None:
        self._read, self.end = os.pipe()
        self._data = b""
        self._thread = threading.Thread(target=self._drain)
        self._thread.start()

    def _drain(self) -> None:
        with os.fdopen(self._read, "rb") as pipe:
            self._data = pipe.read()

    def text(self) -> str:
        self._thread.join()
        return self._data.decode().replace("\r\n", "\n").replace("\r", "\n")


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        assert piece, "the process that is forked has ended"
        data += piece
    return data


# The process that is forked


def _import_all() -> None:
    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _become(order: dict[str, Any], streams: Sequence[int]) -> None:
    """Turn this process into the command, up to the call of `main`."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [importlib.import_module("cloister.__main__").__file__ or "", *order["args"]]


def _wake_up(number: int, frame: object) -> None:
    """The signal writes to the wakeup descriptor."""


class _Forked:
    """Accepts orders, forks, and reports how each process ended."""

    def __init__(self, place: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(place)
        self._listener.listen()
        self._asked: dict[int, socket.socket] = {}
        self._wake, waker = socket.socketpair()
        for one in (self._wake, waker):
            one.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(waker.fileno())

    def serve(self) -> None:
        """Returns in each forked process only."""
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([sys.stdin, self._listener, self._wake], [], [])
            if sys.stdin in ready:
                sys.exit()
            if self._wake in ready:
                self._wake.recv(4096)
                self._report()
            if self._listener in ready and self._fork():
                return

    def _fork(self) -> bool:
        asked, _ = self._listener.accept()
        start, streams, _, _ = socket.recv_fds(asked, 8, 2)
        order = json.loads(_exactly(asked, int.from_bytes(start)))
        if pid := os.fork():
            self._asked[pid] = asked
            for stream in streams:
                os.close(stream)
            asked.sendall(pid.to_bytes(8))
            return False
        _become(order, streams)
        for one in (asked, self._listener, self._wake, self._waker, *self._asked.values()):
            one.close()
        return True

    def _report(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                with self._asked.pop(pid) as asked, suppress(OSError):
                    asked.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, signed=True))


if __name__ == "__main__":
    _import_all()
    forked = _Forked(sys.argv[1])
    forked.serve()
    del forked
    importlib.import_module("cloister.cli").main()
