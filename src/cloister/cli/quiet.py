"""Output of a guest on a person's terminal: bytes in, harmless bytes out, piece by piece."""

import codecs

from cloister.core.text import harmless


class Quiet:
    """One stream of output. A program that was not given the terminal gets to do nothing with it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = ""
        """What cannot be judged before more of it is there."""

    def feed(self, data: bytes) -> bytes:
        """What may be written now."""
        text = self._kept + self._decoder.decode(data)
        # A line end may be cut in two.
        self._kept = "\r" if text.endswith("\r") else ""
        return harmless(text.removesuffix("\r") if self._kept else text).encode("utf-8", errors="replace")

    def end(self) -> bytes:
        """What is left when nothing more comes."""
        return harmless(self._kept + self._decoder.decode(b"", True)).encode("utf-8", errors="replace")
