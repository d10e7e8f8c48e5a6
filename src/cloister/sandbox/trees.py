"""Whole directories as tar archives, packed and unpacked by tar inside. The host passes bytes on and looks at none."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from cloister.core import limits
from cloister.core.commands import Command, Computer, Exited, Output, Process, Sink
from cloister.core.errors import SandboxLost, UserError
from cloister.core.text import decode, one_line

_WORDS_BYTES = 2_000
_SECONDS = 86_400.0


@asynccontextmanager
async def download(computer: Computer, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
    """See `Computer.download`."""
    await computer.list(path)  # says why, when it cannot be
    command = Command(
        ("tar", "-c", "-f", "-", "--", "."), cwd=path, seconds=_SECONDS, limit_bytes=limits.ENDLESS_BYTES
    )
    async with computer.start(command) as process:
        await process.send_eof()
        pieces = _pieces(process)
        try:
            yield pieces
        finally:
            await pieces.aclose()


async def _pieces(process: Process) -> AsyncGenerator[bytes]:
    words = b""
    async for item in process:
        match item:
            case Output("out", data):
                yield data
            case Output(_, data):
                words = (words + data)[:_WORDS_BYTES]
            case Exited(code=1):
                return  # "file changed as we read it": what is there is whole
            case Exited():
                if not item.ok:
                    raise _refused("packed", words, item)


class _Unpacking:
    """What tar inside is fed with."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def send(self, data: bytes) -> None:
        await self._process.send(data)


@asynccontextmanager
async def upload(computer: Computer, path: str) -> AsyncGenerator[Sink]:
    """See `Computer.upload`."""
    await computer.mkdir(path)
    # The owners in it are of another machine.
    argv = ("tar", "-x", "-f", "-", "--no-same-owner", "--no-same-permissions", "--warning=no-timestamp")
    async with computer.start(Command(argv, cwd=path, seconds=_SECONDS)) as process:
        yield _Unpacking(process)
        await process.send_eof()
        words = b""
        async for item in process:
            match item:
                case Output(_, data):
                    words = (words + data)[:_WORDS_BYTES]
                case Exited():
                    if not item.ok:
                        raise _refused("unpacked", words, item)
                    return
        raise SandboxLost("The guest ended a command without saying how.")


def _refused(verb: str, words: bytes, exited: Exited) -> UserError:
    said = one_line(decode(words), 300) or f"status {exited.code}, signal {exited.signal}"
    return UserError("bad_archive", f"The archive could not be {verb} in the sandbox ({said}).")
