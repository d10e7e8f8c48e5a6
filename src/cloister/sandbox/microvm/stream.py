"""Pages of memory put into a saved machine's state, in the emulator's own format. Pure.

The state of the devices alone begins with a header; a section of memory may follow it. Whoever starts from such a state
maps the memory that it began with and receives, privately, the pages that were different by then.
"""

import struct
from collections.abc import Iterable, Iterator

PAGE = 4096
BLOCK = b"ram"
"""What the emulator calls the machine's memory."""

_HEADER = struct.Struct(">II")
_MAGIC, _VERSION = 0x5145564D, 3
_SECTION = struct.Struct(">BIB3sII")
_START, _FOOTER = 0x01, 0x7E
_NUMBER = 0x7FFF
"""Of the section; the emulator counts its own from 0."""
_RAM_VERSION = 4
_PAGE, _END, _SAME_BLOCK = 0x08, 0x10, 0x20
_ADDRESS = struct.Struct(">Q")


def with_pages(state: bytes, pages: Iterable[tuple[int, memoryview]]) -> Iterator[bytes]:
    """`state` with `pages` in it, as pieces: each page is its place in the memory and its content.

    Raises `ValueError` when `state` is not what the emulator saves.
    """
    if _HEADER.unpack_from(state) != (_MAGIC, _VERSION):
        raise ValueError("this is not the state of a machine")
    yield state[: _HEADER.size]
    yield _SECTION.pack(_START, _NUMBER, 3, b"ram", 0, _RAM_VERSION)
    named = False
    for address, page in pages:
        if named:
            yield _ADDRESS.pack(address | _PAGE | _SAME_BLOCK)
        else:
            yield _ADDRESS.pack(address | _PAGE) + bytes((len(BLOCK),)) + BLOCK
        named = True
        yield bytes(page)
    yield _ADDRESS.pack(_END) + struct.pack(">BI", _FOOTER, _NUMBER)
    yield state[_HEADER.size :]
