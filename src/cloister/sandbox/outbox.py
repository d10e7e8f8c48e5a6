"""Frames on their way to a guest: in order, bounded, and stoppable between two of them."""

from anyio.abc import ByteSendStream

from cloister.sandbox import frames
from cloister.sandbox.frames import encode, encode_data
from cloister.sandbox.pipes import PipeSender
from cloister.sandbox.signpost import Signpost

OUTBOX_BYTES = 4_194_304
"""What may wait here, whatever the credit of all channels together would allow."""


class Outbox:
    """Frames on their way to the guest. Who sends data, or what no credit bounds, waits for `room` first."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.size = 0
        """Bytes that wait."""
        self._filled = Signpost()
        self.emptied = Signpost()
        self._closed = False
        self._later: list[bytes] | None = None
        """While held: what is sent when the guest goes on."""

    def post(self, frame: frames.FromHost) -> None:
        self.post_bytes(encode(frame))

    def post_data(self, channel: int, data: memoryview) -> None:
        self.post_bytes(encode_data(channel, data))

    def post_bytes(self, data: bytes) -> None:
        if self._closed:
            return
        (self._frames if self._later is None else self._later).append(data)
        self.size += len(data)
        self._filled.happened()

    def hold(self, *, quiet: bool) -> None:
        """Send what is here and then a hold; what is posted from now on waits for `go_on`."""
        self.post(frames.Hold(on=True, quiet=quiet))
        self._later = []

    def go_on(self) -> None:
        later, self._later = self._later or [], None
        self.post(frames.Hold(on=False))
        self._frames += later

    @property
    def full(self) -> bool:
        return self.size > OUTBOX_BYTES

    def close(self) -> None:
        self._closed = True
        self._frames.clear()
        self._later = None
        self.size = 0
        self.emptied.happened()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self.full:
            await self.emptied.wait()

    async def send_all(self, stream: ByteSendStream) -> None:
        while True:
            while not self._frames:
                await self._filled.wait()
            frames, self._frames = self._frames, []
            self.size -= sum(map(len, frames))
            if isinstance(stream, PipeSender):
                await stream.send_all(frames)
            else:
                await stream.send(b"".join(frames))
            self.emptied.happened()
