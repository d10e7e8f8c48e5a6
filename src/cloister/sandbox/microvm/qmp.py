"""A small client of QEMU's control protocol. The emulator may have been taken over from inside, so nothing it says is trusted."""

import socket
from collections.abc import Sequence

import anyio
import msgspec
from anyio.abc import UNIXSocketStream

from cloister.core.errors import HostError
from cloister.core.text import one_line

ANSWER_SECONDS = 30.0
LINE_BYTES = 1_048_576
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class _Error(msgspec.Struct):
    desc: str = ""


class _Message(msgspec.Struct):
    """A greeting, an answer or an event; events and greetings are of no interest here."""

    answer: object = msgspec.field(default=msgspec.UNSET, name="return")
    error: _Error | None = None


class Qmp:
    """One conversation, one question at a time."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self._asking = anyio.Lock()
        self._greeted = False

    @staticmethod
    async def over(sock: socket.socket) -> "Qmp":
        return Qmp(await UNIXSocketStream.from_socket(sock))

    async def ask(self, command: str, arguments: object = None, descriptors: Sequence[int] = ()) -> None:
        """Have `command` done. Raises `HostError` (`emulator_failed`)."""
        async with self._asking:
            try:
                with anyio.fail_after(ANSWER_SECONDS):
                    if not self._greeted:
                        await self._ask("qmp_capabilities", None, ())
                        self._greeted = True
                    await self._ask(command, arguments, descriptors)
            except TimeoutError as error:
                raise HostError(
                    "emulator_failed", f"The emulator did not answer {command} in time."
                ) from error
            except _GONE as error:
                raise HostError(
                    "emulator_failed", f"The emulator ended before {command} was done."
                ) from error

    async def _ask(self, command: str, arguments: object, descriptors: Sequence[int]) -> None:
        question = {"execute": command} if arguments is None else {"execute": command, "arguments": arguments}
        line = msgspec.json.encode(question) + b"\n"
        if descriptors:
            await self._stream.send_fds(line, list(descriptors))
        else:
            await self._stream.send(line)
        while True:
            message = await self._next()
            if message.error is not None:
                said = one_line(message.error.desc, 300)
                raise HostError("emulator_failed", f"The emulator refused {command}: {said}")
            if message.answer is not msgspec.UNSET:
                return

    async def _next(self) -> _Message:
        while b"\n" not in self._rest:
            if len(self._rest) > LINE_BYTES:
                raise HostError("emulator_failed", "The emulator said more than an answer can be.")
            self._rest += await self._stream.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return msgspec.json.decode(line, type=_Message)
        except msgspec.MsgspecError as error:
            raise HostError("emulator_failed", "The emulator said something that is no answer.") from error

    async def aclose(self) -> None:
        await self._stream.aclose()
