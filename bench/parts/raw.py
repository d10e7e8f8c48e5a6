"""What others need for the same: runtimes by hand, podman, bwrap, and SWE-ReX's local runtime.

The raw runtime is handed what we hand it: the same config.json, on an overlay that is already mounted, with the same limits
on memory, cpu and processes, which it then enforces by cgroups of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from parts.place import CACHE

_SWE_REX = """
import asyncio, sys, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime
action = BashAction(command="/bin/true")
async def made():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    await runtime.run_in_session(action)
    return runtime
async def main():
    live = await made()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        if line == "create\\n":
            runtime = await made()
            print(time.perf_counter() - began, flush=True)
            await runtime.close()
        else:
            await live.run_in_session(action)
            print(time.perf_counter() - began, flush=True)
    await live.close()
asyncio.run(main())
"""


class Shell:
    """A shell in a mount namespace of its own, with an overlay of a template; it does a line and says how it went."""

    def __init__(self, at: Path, rootfs: Path) -> None:
        self.at = at
        for name in ("up", "work", "root", "bundle"):
            (at / name).mkdir(parents=True)
        script = f"""
mount -t overlay overlay -o lowerdir={rootfs},upperdir={at}/up,workdir={at}/work {at}/root
umount -l /sys/fs/cgroup/unified 2>/dev/null
echo ready
while read -r line; do eval "$line" </dev/null 2>{at}/err; echo $?; done
"""
        self.shell = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.shell.stdout is not None
        return self.shell.stdout.readline().strip()

    def do(self, line: str, *, says: str | None = None) -> float:
        """Seconds until it is over, or until it has said something: the end of a container is not its start.

        Raises `OSError` with its last words when it fails.
        """
        assert self.shell.stdin is not None
        started = time.perf_counter()
        self.shell.stdin.write(line + "\n")
        self.shell.stdin.flush()
        first = self._line()
        took = time.perf_counter() - started
        code = first if says is None or first != says else self._line()
        if code != "0":
            words = (self.at / "err").read_text().strip().splitlines()
            raise OSError(words[-1][:200] if words else f"status {code}")
        return took

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.close()
        self.shell.wait(timeout=60)


class Peer:
    """Another project's way to start a program in a sandbox, and one more in a live sandbox."""

    def __init__(self, name: str, shell: Shell) -> None:
        self.name = name
        self.shell = shell
        self.count = 0

    def create(self) -> float:
        """Until the program inside has spoken."""
        self.count += 1
        return self.shell.do(self._create(f"b{self.count}"), says="started")

    def execute(self) -> float:
        return self.shell.do(self._execute())

    def _create(self, name: str) -> str:
        raise NotImplementedError

    def _execute(self) -> str:
        raise NotImplementedError

    def start(self) -> None:
        """Keep one alive for `execute`."""

    def stop(self) -> None:
        """End what `start` began."""


class Runtime(Peer):
    """`crun` or `runsc`, with the bundle that we would give it."""

    def __init__(self, shell: Shell, argv: str, config: dict[str, Any]) -> None:
        super().__init__(f"{Path(argv.split()[0]).name} run", shell)
        self._argv = f"{argv} --root {shell.at}/state"
        self._config = config
        config["root"] = {"path": str(shell.at / "root")}
        config["linux"]["cgroupsPath"] = "/cloister-bench"
        config["linux"]["resources"] = {
            "memory": {"limit": 2 << 30, "swap": 2 << 30},
            "cpu": {"quota": 200_000, "period": 100_000},
            "pids": {"limit": 512},
        }
        config["mounts"] = [m for m in config["mounts"] if "/.cloister" not in m["destination"]]
        self._bundle("/bin/echo", "started")

    def _bundle(self, *argv: str) -> None:
        self._config["process"]["args"] = list(argv)
        (self.shell.at / "bundle" / "config.json").write_text(json.dumps(self._config))

    def _create(self, name: str) -> str:
        return f"{self._argv} run --bundle {self.shell.at}/bundle {name}"

    def _execute(self) -> str:
        return f"{self._argv} exec live /bin/true"

    def start(self) -> None:
        self._bundle("/bin/sleep", "600")
        self.shell.do(f"{self._argv} run --detach --bundle {self.shell.at}/bundle live >/dev/null")

    def stop(self) -> None:
        self.shell.do(f"{self._argv} delete --force live")


class Podman(Peer):
    """`podman run --rootfs` with the same limits and no network."""

    def __init__(self, shell: Shell) -> None:
        super().__init__("podman run --rootfs", shell)
        at = shell.at
        self._podman = (
            f"podman --root {at}/pod --runroot {at}/podrun --cgroup-manager=cgroupfs --runtime=crun"
        )
        self._limits = "--network none --memory 2g --cpus 2 --pids-limit 512 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"

    def _create(self, name: str) -> str:
        return f"{self._podman} run --rm {self._limits} --rootfs {self.shell.at}/root /bin/echo started"

    def _execute(self) -> str:
        return f"{self._podman} exec live /bin/true"

    def start(self) -> None:
        line = f"run -d --name live {self._limits} --rootfs {self.shell.at}/root /bin/sleep 600 >/dev/null"
        self.shell.do(f"{self._podman} {line}")

    def stop(self) -> None:
        self.shell.do(f"{self._podman} rm -f -t 0 live >/dev/null")


class Bwrap(Peer):
    """Namespaces and nothing else: no limits, no second command."""

    def __init__(self, shell: Shell) -> None:
        super().__init__("bwrap", shell)

    def _create(self, name: str) -> str:
        flags = "--unshare-all --die-with-parent --proc /proc --dev /dev --tmpfs /tmp"
        return f"bwrap --bind {self.shell.at}/root / {flags} /bin/echo started"


class SweRex(Peer):
    """SWE-ReX's local runtime: a session of bash on this machine, without any isolation."""

    def __init__(self, shell: Shell, python: Path) -> None:
        super().__init__("SWE-ReX local", shell)
        env = {"PATH": os.environ["PATH"], "HOME": str(shell.at)}
        self._process = subprocess.Popen(
            [str(python), "-c", _SWE_REX],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline().strip()):
            raise OSError("it ended")
        return line

    def _ask(self, what: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def create(self) -> float:
        return self._ask("create")

    def execute(self) -> float:
        return self._ask("exec")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def swe_rex_python() -> Path | str:
    """A Python that has SWE-ReX, made on first use; or why there is none."""
    place = CACHE / "cloister-bench" / "swe-rex"
    python = place / "bin" / "python"
    if not (place / "done").exists():
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if uv is None:
            return "there is no uv to install it with"
        for argv in ([uv, "venv", "--clear", place], [uv, "pip", "install", "--python", python, "swe-rex"]):
            done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return (done.stderr.strip().splitlines() or ["it cannot be installed"])[-1][:200]
        (place / "done").touch()
    return python


def why_missing(program: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not installed"
