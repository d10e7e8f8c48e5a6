"""Starts the host process that runs a local model."""

import importlib.util
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.system._spawn import begin, ending
from cloister.core.text import one_line

START_SECONDS = 180.0
"""Enough to read a gigabyte from a slow disk."""
LOG_BYTES = 65_536

_PROGRAM = Path(__file__).with_name("llama_process.py")


class Order(msgspec.Struct, frozen=True):
    """What the process serves."""

    model: str
    """Path of the file."""
    name: str
    window: int
    parallel: int = 2
    port: int = 0
    """0 means any free port."""


class Serving(msgspec.Struct, frozen=True):
    """A local model that is ready."""

    url: str
    """Base URL, as of any OpenAI-compatible server."""
    key: str
    process: anyio.abc.Process


class _Ready(msgspec.Struct, frozen=True):
    url: str


@asynccontextmanager
async def serving(order: Order, log: Path, program: Path = _PROGRAM) -> AsyncGenerator[Serving]:
    """Start a model and wait until it is ready. Raises `UserError` (`no_extra`), `HostError` (`local_model_failed`).

    `program` reads the order from its standard input and writes its address to standard output.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise UserError("no_extra", "Local models need llama.cpp: pip install 'cloister[local]'.")
    key = secrets.token_urlsafe(24)
    with log.open("wb") as errors:
        # Isolated and without our environment: it needs none of our keys.
        process = await begin([sys.executable, "-I", str(program)], stderr=errors, env={}, cwd="/")
    async with ending(process):
        url = await _started(process, order, key, log)
        yield Serving(url + "/v1", key, process)


async def _started(process: anyio.abc.Process, order: Order, key: str, log: Path) -> str:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101  (both are pipes)
    # llama.cpp's threads spin while they wait: without a spare core for sandboxes it becomes 20 times slower.
    threads = max(1, len(os.sched_getaffinity(0)) - 1)
    wanted = {**msgspec.structs.asdict(order), "key": key, "threads": threads}
    said = b""
    try:
        with anyio.fail_after(START_SECONDS):
            await process.stdin.send(msgspec.json.encode(wanted) + b"\n")
            while b"\n" not in said:
                said += await process.stdout.receive(4_096)
        return msgspec.json.decode(said, type=_Ready).url
    except (TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError, msgspec.MsgspecError):
        why = _last_error(log) or "no reason given"
        raise HostError(
            "local_model_failed", f"The local model {order.name} did not start ({why}); its log is {log}."
        ) from None


def _last_error(log: Path) -> str:
    lines = log.read_bytes()[-LOG_BYTES:].decode("utf-8", errors="replace").splitlines()
    told = [line for line in lines if " E " in line or "rror" in line]
    return one_line(told[-1], 200) if told else ""
