"""Test which runtimes work on this machine: open a throw-away sandbox and use it.

A version number proves nothing. The result is remembered until the runtime or the kernel changes.
"""

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec

from cloister.core.computer import Command
from cloister.core.errors import CloisterError, HostError
from cloister.core.requests import TierName
from cloister.core.system.locks import lock
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import Sandbox, TierReport
from cloister.sandbox.container import oci
from cloister.sandbox.container.oci import CANDIDATES, Way

STARTS = 50
"""Programs that a test starts inside: one packaged gVisor fails only when it has to fork often."""

_REVISION = 2
"""Version of the test; results of another version are ignored."""

NEWER_RUNSC = "install a runsc with systrap (Debian 12: apt-get install -t bookworm-backports runsc)"

_VERSION_SECONDS = 10.0


class Proof(msgspec.Struct, frozen=True):
    """The result of a test that passed."""

    way: Way = Way()
    starts_seconds: float = 0.0
    """How long `STARTS` programs took, ten at a time."""


Trial = Callable[[Path], Awaitable[Proof]]
"""Tests one runtime; raises `CloisterError` with the reason when it does not work."""


class RuntimeReport(msgspec.Struct, frozen=True):
    """The test result of one runtime on this machine."""

    name: str
    path: Path | None
    """None when it is not installed."""
    version: str | None
    works: bool
    why: str | None = None
    fix: str | None = None
    proof: Proof | None = None


class Bench(msgspec.Struct, frozen=True):
    """Where tests run and where their results are kept."""

    tier: TierName
    store: str
    """The kind of store that holds the test's files."""
    search_path: str
    memory: Path


def candidates(tier: TierName, chosen: str | None) -> tuple[str, ...]:
    """The configured runtime, or all known ones."""
    return (chosen,) if chosen else CANDIDATES[tier]


def remembered(name: str, bench: Bench) -> RuntimeReport | None:
    """The result of an earlier test, if there is one."""
    found = shutil.which(name, path=bench.search_path)
    return None if found is None else _read(bench.memory).get(_key(bench, Path(found)))


async def report(name: str, bench: Bench, trial: Trial, *, again: bool = False) -> RuntimeReport:
    """Test the runtime `name` (a name or a path), or return the earlier result; `again` repeats a failed test.

    Raises `HostError` (`no_disk`).
    """
    search_path, memory = bench.search_path, bench.memory
    found = shutil.which(name, path=search_path)
    if found is None:
        known_here = name in CANDIDATES[bench.tier]
        fix = f"apt-get install {name}" if known_here else "fix `runtime` in the configuration file"
        return RuntimeReport(name, None, None, works=False, why=f"{name} is not installed.", fix=fix)
    path = Path(found)
    key = _key(bench, path)
    known = _read(memory).get(key)
    if known is not None and (known.proof is not None or not (known.works or again)):
        return known
    version = await _version(path, search_path)
    try:
        proof = await trial(path)
    except CloisterError as error:
        if error.code == "no_disk":
            raise  # It would stop every other runtime too.
        made = RuntimeReport(
            name, path, version, works=False, why=error.message, fix=_fix(error, name, bench.tier)
        )
        if isinstance(error, HostError) and error.code in ("no_root", "no_compiler"):
            return made  # not a result about the runtime, so not remembered
    else:
        made = RuntimeReport(name, path, version, works=True, proof=proof)
    _write(memory, key, made)
    return made


def _key(bench: Bench, path: Path) -> str:
    return f"{bench.tier} {_REVISION} {path} {path.stat().st_mtime_ns} {os.uname().release} {bench.store}"


def summed_up(tier: TierName, reports: Sequence[RuntimeReport]) -> TierReport:
    """The report of a tier: the first runtime that works is the one in use."""
    for report in reports:
        if report.proof is None:
            continue
        way = report.proof.way
        on = f" on {way.platform}" if way.platform else ""
        took = f"{STARTS} programs in {report.proof.starts_seconds:.2f} s"
        found = f"{report.name} {report.version or '?'}{on}, self-test passed: {took}"
        if not way.seccomp:
            found += "; without the guest's seccomp filter, which this version refuses"
        if way.native:
            return TierReport(tier, works=True, native=True, found=found)
        found += "; not native speed, so used only when asked for by name"
        return TierReport(tier, works=True, native=False, found=found, fix=NEWER_RUNSC)
    why = " ".join(dict.fromkeys(report.why or "The self-test failed." for report in reports))
    fix = next((report.fix for report in reports if report.fix), None)
    return TierReport(tier, works=False, native=False, found=why, fix=fix)


def _fix(error: CloisterError, name: str, tier: TierName) -> str:
    match error.code:
        case "no_root":
            return "run with sudo"
        case "no_limits":
            return "mount the memory, cpu and pids cgroup controllers"
        case "no_compiler":
            return "apt-get install gcc libc6-dev"
        case _ if "launch: " in error.message:
            return "use Linux 5.19 or newer, with the data directory on ext4, xfs or btrfs"
        case _ if tier == "gvisor":
            return NEWER_RUNSC
        case _:
            others = [other for other in CANDIDATES[tier] if other != name]
            return f"install another runtime: apt-get install {others[0]}" if others else "see the log"


async def described(path: Path, search_path: str) -> str:
    """The output of `runsc flags`, which depends on the version. Raises `HostError`."""
    shown = await capture([str(path), "flags"], env={"PATH": search_path}, seconds=_VERSION_SECONDS)
    return decode(shown.out + shown.err)


async def _version(path: Path, search_path: str) -> str | None:
    with suppress(HostError):
        shown = await capture([str(path), "--version"], env={"PATH": search_path}, seconds=_VERSION_SECONDS)
        words = one_line(decode(shown.out).partition("\n")[0]).split()
        return words[-1] if shown.ok and words else None
    return None


def _read(memory: Path) -> dict[str, RuntimeReport]:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, RuntimeReport], dec_hook=_to_path)
    return {}


def _write(memory: Path, key: str, made: RuntimeReport) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    scratch = memory.with_name(f".{memory.name}.{os.getpid()}")
    # Lock the directory, so that a concurrent write of another process is not lost.
    with lock(memory.parent, wait=True):
        entries = {**_read(memory), key: made}
        scratch.write_bytes(msgspec.json.encode(entries, enc_hook=str))
        scratch.replace(memory)


def _to_path(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value


_AT_ONCE = 10


async def start_many(sandbox: Sandbox) -> float:
    """Start many programs; return the seconds it took. A bare root holds only the guest, which prints its usage."""
    started = anyio.current_time()

    async def some() -> None:
        for _ in range(STARTS // _AT_ONCE):
            finished = await sandbox.run(Command((oci.GUEST, "--help"), cwd="/"))
            if b"usage" not in finished.err:
                raise HostError("trial_failed", "A program inside did not print what it should.")

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(some)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return anyio.current_time() - started
