"""What the conformance suites say their promises with."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio

from cloister.core.commands import Exited, Finished, Output, Process, shell
from cloister.core.errors import CloisterError
from cloister.sandbox.api import Host, Sandbox

WAIT_SECONDS = 30.0
"""How long a promise may take to be seen; only a broken one takes so long."""

Promise = Callable[[Host], Awaitable[None]]


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def hold(truth: bool, promise: str) -> None:
    if not truth:
        raise AssertionError(promise)


@contextmanager
def refused(*codes: str) -> Generator[None]:
    """The block must raise one of our errors with one of these codes."""
    try:
        yield
    except CloisterError as error:
        hold(error.code in codes, f"{error.code} ({error.message}) instead of {codes}")
    else:
        raise AssertionError(f"nothing was raised instead of {codes}")


async def first_output(process: Process) -> bytes:
    async for item in process:
        if isinstance(item, Output):
            return item.data
    raise AssertionError("the command ended without output")


async def rest(process: Process) -> Finished:
    """Everything up to the end."""
    out, err = bytearray(), bytearray()
    async for item in process:
        match item:
            case Output("out", data):
                out += data
            case Output(_, data):
                err += data
            case Exited():
                return Finished(item, bytes(out), bytes(err))
    raise AssertionError("there was no end")


async def ample_seconds(sandbox: Sandbox) -> float:
    """A time in which a shell has long begun, however slow this sandbox is on this machine now."""
    began = anyio.current_time()
    await sandbox.run(shell("true"))
    return 0.3 + 10 * (anyio.current_time() - began)


async def text(sandbox: Sandbox, line: str) -> str:
    """What a shell line prints; it must succeed."""
    finished = await sandbox.run(shell(line))
    hold(finished.ok, f"{line!r} ended with {finished.exited}: {finished.err!r}")
    return finished.out.decode().strip()
