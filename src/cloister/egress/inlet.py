"""A byte stream that can be read by lines and lengths, and into which bytes can be put back."""

from anyio import EndOfStream, IncompleteRead
from anyio.streams.buffered import BufferedByteStream


class Inlet(BufferedByteStream):
    """What comes from one side, and the way back to it."""

    def unread(self, data: bytes) -> None:
        """Put `data` back before what was not read yet."""
        self._buffer[:0] = data

    async def peek(self) -> int:
        """The next byte, which stays. Raises `EndOfStream`."""
        try:
            first = await self.receive_exactly(1)
        except IncompleteRead:
            raise EndOfStream from None
        self.unread(first)
        return first[0]
