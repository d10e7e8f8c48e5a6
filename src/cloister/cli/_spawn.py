"""Start processes on this machine: a detached server, a browser, and git in the caller's checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_GIT_SECONDS = 60.0


class GitResult(NamedTuple):
    """Exit code and output of git."""

    code: int
    out: str
    err: str


def start_server(data_dir: Path, options: list[str], config: Path | None) -> Callable[[], bool]:
    """Start a server in its own session, with output to `server.log`. Returns a function: has it ended?"""
    argv = [sys.executable, "-m", "cloister", "--data-dir", str(data_dir), "serve", *options]
    env = dict(os.environ)
    if config is not None:
        # The server runs in another directory, so the path must be absolute.
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
    # The server outlives this process: keep Popen from warning about an unreaped child.
    process.returncode = 0

    def ended() -> bool:
        try:
            return os.waitpid(process.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    return ended


def show_page(url: str) -> None:
    """Show an address in the desktop's browser, if there is a program for that; it outlives this process."""
    program = shutil.which("xdg-open") or shutil.which("open")
    if program is None:
        return
    process = subprocess.Popen(
        [program, url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # keep Popen from warning about an unreaped child


def git(repo: Path, *args: str) -> GitResult:
    """Run git in the caller's checkout. Raises `OSError`, `subprocess.TimeoutExpired`."""
    done = subprocess.run(
        [shutil.which("git") or "/usr/bin/git", "-C", str(repo), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_SECONDS,
        check=False,
    )
    return GitResult(
        done.returncode,
        done.stdout.decode("utf-8", errors="replace"),
        done.stderr.decode("utf-8", errors="replace"),
    )
