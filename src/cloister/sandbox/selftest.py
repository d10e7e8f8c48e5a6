"""Which OCI runtimes really work on this machine. A version number proves nothing, so each one is tried.

A trial opens a throw-away sandbox and does something in it; its result is remembered until the runtime or
the kernel changes.
"""

import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from cloister.core.errors import CloisterError, HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture

CANDIDATES = ("crun", "runc")
"""In the order of preference: crun starts in a third of the time."""

_VERSION_SECONDS = 10.0

Trial = Callable[[Path], Awaitable[None]]
"""Tries one runtime; raises `CloisterError` with the reason when it does not work."""


class RuntimeReport(msgspec.Struct, frozen=True):
    """What is known about one runtime on this machine."""

    name: str
    path: Path | None
    """None when it is not installed."""
    version: str | None
    works: bool
    why: str | None = None
    """Why it does not work."""
    fix: str | None = None
    """What a person can do about it."""


class _Remembered(msgspec.Struct, frozen=True):
    key: str
    report: RuntimeReport


def candidates(chosen: str | None) -> tuple[str, ...]:
    """The runtimes to consider: the one that was asked for, or all that we know."""
    return (chosen,) if chosen else CANDIDATES


async def report(
    name: str, search_path: str, memory: Path, trial: Trial, *, store: str, again: bool = False
) -> RuntimeReport:
    """Try the runtime `name` (a name or a path) on this kind of `store`, or remember how it went.

    `again` does not remember failures. Raises `HostError` (`no_disk`).
    """
    found = shutil.which(name, path=search_path)
    if found is None:
        fix = f"apt-get install {name}" if name in CANDIDATES else "fix `runtime` in the configuration file"
        return RuntimeReport(name, None, None, works=False, why=f"{name} is not installed.", fix=fix)
    path = Path(found)
    key = f"{_key(path)} {store}"
    known = _read(memory).get(key)
    if known is not None and (known.works or not again):
        return known
    version = await _version(path, search_path)
    try:
        await trial(path)
    except CloisterError as error:
        if error.code == "no_disk":
            raise  # No runtime would fare better.
        made = RuntimeReport(name, path, version, works=False, why=error.message, fix=_fix(error, name))
        if isinstance(error, HostError) and error.code in ("no_root", "no_compiler"):
            return made  # This says nothing about the runtime.
    else:
        made = RuntimeReport(name, path, version, works=True)
    _write(memory, key, made)
    return made


def _key(path: Path) -> str:
    return f"{path} {path.stat().st_mtime_ns} {os.uname().release}"


def _fix(error: CloisterError, name: str) -> str:
    match error.code:
        case "no_root":
            return "run with sudo"
        case "no_limits":
            return "mount the memory, cpu and pids cgroup controllers"
        case "no_compiler":
            return "apt-get install gcc libc6-dev"
        case _ if "launch: " in error.message:
            return "use Linux 5.19 or newer, with the data directory on ext4, xfs or btrfs"
        case _:
            others = [other for other in CANDIDATES if other != name]
            return f"install another runtime: apt-get install {others[0]}"


async def _version(path: Path, search_path: str) -> str | None:
    with suppress(HostError):
        shown = await capture([str(path), "--version"], env={"PATH": search_path}, seconds=_VERSION_SECONDS)
        words = one_line(decode(shown.out).partition("\n")[0]).split()
        return words[-1] if shown.ok and words else None
    return None


def _read(memory: Path) -> dict[str, RuntimeReport]:
    with suppress(OSError, msgspec.MsgspecError):
        entries = msgspec.json.decode(memory.read_bytes(), type=tuple[_Remembered, ...], dec_hook=_to_path)
        return {entry.key: entry.report for entry in entries}
    return {}


def _write(memory: Path, key: str, made: RuntimeReport) -> None:
    entries = {**_read(memory), key: made}
    data = msgspec.json.encode(tuple(_Remembered(k, r) for k, r in entries.items()), enc_hook=str)
    memory.parent.mkdir(parents=True, exist_ok=True)
    scratch = memory.with_name(f".{memory.name}.{os.getpid()}")
    scratch.write_bytes(data)
    scratch.replace(memory)


def _to_path(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value
