"""The processes that the command starts on this machine: a detached server, and git on the caller's own checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_GIT_SECONDS = 60.0


class Said(NamedTuple):
    """How a short program ended."""

    code: int
    out: str
    err: str


def start_server(data_dir: Path, port: int | None, config: Path | None) -> Callable[[], bool]:
    """A server of its own session that outlives us; what it prints goes to `server.log`.

    Returns a function that says whether it has ended.
    """
    argv = [sys.executable, "-m", "cloister", "--data-dir", str(data_dir), "serve"]
    if port is not None:
        argv += ["--port", str(port)]
    env = dict(os.environ)
    if config is not None:
        # It runs in another directory, where a relative path would mean another file.
        env["CLOISTER_CONFIG"] = str(config.absolute())
    descriptor = os.open(
        data_dir / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    # It outlives us on purpose: Popen must not complain that nobody waits for it.
    process.returncode = 0

    def ended() -> bool:
        try:
            return os.waitpid(process.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    return ended


def git(repo: Path, *args: str) -> Said:
    """Git as the caller would type it in their own checkout. Raises `OSError`, `subprocess.TimeoutExpired`."""
    done = subprocess.run(
        [shutil.which("git") or "/usr/bin/git", "-C", str(repo), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_SECONDS,
        check=False,
    )
    return Said(
        done.returncode,
        done.stdout.decode("utf-8", errors="replace"),
        done.stderr.decode("utf-8", errors="replace"),
    )
