"""Compile the C programs of `guest/`, once per version of their sources."""

import hashlib
import os
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from cloister.core.errors import HostError
from cloister.sandbox._spawn import Captured, capture

Program = Literal["guest", "launch", "jail", "automount"]

FLAGS = ("-O2", "-static", "-std=c11", "-Wall", "-Wextra")
"""Without `-Werror`: a newer compiler may know more warnings."""

GUEST_PARTS = ("", "protocol", "process", "files", "system")
"""Folders of the program that is PID 1 inside; `host` holds those that run outside."""

LIBRARY_FLAGS = ("-O2", "-shared", "-fPIC", "-nostdlib", "-std=c11", "-Wall", "-Wextra")

COMPILE_SECONDS = 120.0
NO_COMPILER = "install a C compiler with static libraries, e.g. `apt-get install gcc libc6-dev`"


def source_dir() -> Path:
    """The C sources: package data of an installed wheel, or `guest/` of a checkout."""
    here = Path(__file__).resolve()
    packaged = here.parents[2] / "_guest"
    return packaged if packaged.is_dir() else here.parents[4] / "guest"


def guest_sources(directory: Path) -> list[Path]:
    """The files of the guest, with their headers."""
    return sorted(path for part in GUEST_PARTS for path in (directory / part).glob("*.[ch]"))


async def build(program: Program, cache_dir: Path, search: str | None = None) -> Path:
    """Compile `program` into `cache_dir/PROGRAM-HASH` unless it is there. Safe to interrupt and to run twice.

    `search` is the path to look for the compiler on, None for `PATH`. Raises `HostError` (`no_compiler`,
    `no_guest_sources`).
    """
    sources, target = await anyio.to_thread.run_sync(partial(_plan, source_dir(), program, cache_dir))
    if await anyio.Path(target).is_file():
        return target
    compiler = await anyio.to_thread.run_sync(partial(shutil.which, "cc", path=search))
    if compiler is None:
        raise HostError("no_compiler", f"There is no C compiler (cc) on this machine: {NO_COMPILER}.")
    await anyio.Path(cache_dir).mkdir(parents=True, exist_ok=True)
    # In a scratch directory, so that the final name never shows a half-written program.
    scratch = cache_dir / f".build-{secrets.token_hex(8)}"
    try:
        await anyio.Path(scratch).mkdir()
        made = scratch / program
        argv = (compiler, *_flags(program), "-o", str(made), *(str(s) for s in sources if s.suffix == ".c"))
        done = await capture(argv, seconds=COMPILE_SECONDS)
        if not done.ok:
            raise HostError(
                "no_compiler", f"{compiler} could not build {program} ({_why(done)}): {NO_COMPILER}."
            )
        await anyio.to_thread.run_sync(partial(_install, made, target))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, scratch, ignore_errors=True))
    return target


def _plan(sources_dir: Path, program: Program, cache_dir: Path) -> tuple[list[Path], Path]:
    """The source files of `program`, and its target, named by their content."""
    match program:
        case "launch" | "jail":
            sources = [sources_dir / "host" / f"{program}.c", sources_dir / "host" / "outside.h"]
        case "guest":
            sources = guest_sources(sources_dir)
        case "automount":
            sources = [sources_dir / "compat" / "automount.c"]
    digest = hashlib.sha256(repr(_flags(program)).encode())
    if not sources or not all(source.is_file() for source in sources):
        raise HostError(
            "no_guest_sources",
            f"{sources_dir} lacks the sources of {program}: this installation is incomplete.",
        )
    for source in sources:
        data = source.read_bytes()
        digest.update(f"{source.name} {len(data)}\n".encode() + data)
    return sources, cache_dir / f"{program}-{digest.hexdigest()[:16]}"


def _flags(program: Program) -> tuple[str, ...]:
    return LIBRARY_FLAGS if program == "automount" else FLAGS


def _install(made: Path, target: Path) -> None:
    made.chmod(0o755)
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(target)


def _why(done: Captured) -> str:
    lines = done.err.decode("utf-8", errors="replace").strip().splitlines()
    return lines[0][:200] if lines else f"status {done.code}"
