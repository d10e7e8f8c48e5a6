"""Frames on their way to a guest: in order, bounded, and stoppable between two of them."""

from anyio.abc import ByteSendStream

from cloister.sandbox import frames
from cloister.sandbox.channels import Signpost
from cloister.sandbox.frames import encode

OUTBOX_BYTES = 4_194_304
"""What frames that no credit bounds may fill."""


class Outbox:
    """Frames on their way to the guest. What may be in it is bounded by the credit of the channels."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._size = 0
        self._filled = Signpost()
        self._emptied = Signpost()
        self._closed = False
        self._later: list[bytes] | None = None
        """While held: what is sent when the guest goes on."""

    def post(self, frame: frames.FromHost) -> None:
        self.post_bytes(encode(frame))

    def post_bytes(self, data: bytes) -> None:
        if self._closed:
            return
        (self._frames if self._later is None else self._later).append(data)
        self._size += len(data)
        self._filled.happened()

    def hold(self, *, quiet: bool) -> None:
        """Send what is here and then a hold; what is posted from now on waits for `go_on`."""
        self.post(frames.Hold(on=True, quiet=quiet))
        self._later = []

    def go_on(self) -> None:
        later, self._later = self._later or [], None
        self.post(frames.Hold(on=False))
        self._frames += later

    def close(self) -> None:
        self._closed = True
        self._frames.clear()
        self._later = None
        self._size = 0
        self._emptied.happened()

    async def room(self) -> None:
        """Wait until there is room for frames that no credit bounds."""
        while self._size > OUTBOX_BYTES:
            await self._emptied.wait()

    async def send_all(self, stream: ByteSendStream) -> None:
        while True:
            while not self._frames:
                await self._filled.wait()
            data = b"".join(self._frames)
            self._frames.clear()
            self._size -= len(data)
            await stream.send(data)
            self._emptied.happened()
