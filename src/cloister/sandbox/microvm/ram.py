"""The memory of machines as files: create, copy sparsely, seal, and copy out of a stopped machine.

Machines start from memory in a sealed file, which the kernel protects from changes. Each maps it privately: its writes
are its own, and unchanged pages are shared.
"""

import ctypes
import fcntl
import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence

from cloister.core.errors import HostError

PAGE = mmap.PAGESIZE
Run = tuple[int, int]
"""Begin and end of a range, in bytes."""

_PIECE = 1 << 20
_ENTRY = struct.calcsize("Q")
# From Linux's fcntl.h; Python has no names for them.
_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8
_SEALED = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE

_AT_ONCE = 512
"""Runs per system call; the kernel takes at most 1,024."""


class _Piece(ctypes.Structure):
    """The C library's `struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


# Several times as fast as reading /proc/PID/mem, which copies page by page. Python has no name for it.
_process_vm_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
_process_vm_readv.restype = ctypes.c_ssize_t

_PRESENT, _SWAPPED, _FILE = 0x80, 0x40, 0x20
"""Bits in the highest byte of an entry of the kernel's `pagemap`."""

_PRIVATE = re.compile(
    b"["
    + b"".join(
        b"\\x%02x" % flags
        for flags in range(256)
        if flags & _SWAPPED or flags & (_PRESENT | _FILE) == _PRESENT
    )
    + b"]+"
)


def new_ram(size: int = 0, name: str = "ram") -> int:
    """Create an empty memory file; return its only descriptor."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    return descriptor


def seal(ram: int) -> None:
    """Make the memory file immutable, also for processes that have it open. Raises `HostError` (`start_failed`)."""
    try:
        fcntl.fcntl(ram, _ADD_SEALS, _SEALED)
    except OSError as error:  # an emulator that was taken over may keep it mapped
        raise HostError("start_failed", "The memory of a machine is still being written.") from error


def extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """The ranges of a sparse file that hold data."""
    at, size = 0, os.fstat(descriptor).st_size
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, at


def copy_sparse(source: int, target: int) -> int:
    """Copy the data; pages of zeros become holes. Return the bytes written."""
    buffer, written = memoryview(bytearray(_PIECE)), 0
    zeros = bytes(_PIECE)
    for begin, end in extents(source):
        for at in range(begin, end, _PIECE):
            size = os.preadv(source, [buffer[: min(_PIECE, end - at)]], at)
            if bytes(buffer[:size]) != zeros[:size]:
                written += _write_pages(target, buffer[:size], at)
    return written


def fill_holes(source: int, target: int, written: Sequence[Run]) -> None:
    """Copy the data of `source` to `target`, except the ranges in `written`, which are in order.

    From file to file: through a mapping each page would fault, and be cleared before it is filled.
    """
    for begin, end in _without(extents(source), written):
        at = begin
        while at < end:
            copied = os.copy_file_range(source, target, min(_PIECE, end - at), at, at)
            if copied == 0:
                raise OSError("the memory of a machine ends too early")
            at += copied


def _without(runs: Iterable[Run], others: Sequence[Run]) -> Iterator[Run]:
    """The parts of `runs` outside `others`; both are in order, and so is the result."""
    number = 0
    for first, last in runs:
        at = first
        while number < len(others) and others[number][1] <= at:
            number += 1
        following = number
        while following < len(others) and others[following][0] < last:
            if at < others[following][0]:
                yield at, others[following][0]
            at = max(at, others[following][1])
            following += 1
        if at < last:
            yield at, last


def _write_pages(target: int, data: memoryview, at: int) -> int:
    written, zeros = 0, bytes(PAGE)
    run = 0
    for offset in range(0, len(data), PAGE):
        if bytes(data[offset : offset + PAGE]) == zeros:
            if run < offset:
                written += os.pwrite(target, data[run:offset], at + run)
            run = offset + PAGE
    if run < len(data):
        written += os.pwrite(target, data[run:], at + run)
    return written


def private_runs(flags: bytes) -> Iterator[tuple[int, int]]:
    """Runs of private pages, as page numbers, from the highest bytes of `pagemap` entries."""
    for found in _PRIVATE.finditer(flags):
        yield found.start(), found.end()


def copy_private(pid: int, address: int, size: int, target: mmap.mmap) -> tuple[Run, ...]:
    """Copy into `target` the pages that process `pid` has written in its private mapping.

    Return the copied ranges, in order. The copy is consistent only if the process is stopped.
    """
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123 - unbuffered, at an offset
        entries = os.pread(pagemap.fileno(), size // PAGE * _ENTRY, address // PAGE * _ENTRY)
    runs = tuple((first * PAGE, last * PAGE) for first, last in private_runs(entries[_ENTRY - 1 :: _ENTRY]))
    for first in range(0, len(runs), _AT_ONCE):
        _copy_runs(pid, address, runs[first : first + _AT_ONCE], target)
    return runs


def _copy_runs(pid: int, address: int, runs: Sequence[Run], target: mmap.mmap) -> None:
    begin = ctypes.c_char.from_buffer(target)
    try:
        here, there = ctypes.addressof(begin), address
        local = (_Piece * len(runs))(*((here + first, last - first) for first, last in runs))
        remote = (_Piece * len(runs))(*((there + first, last - first) for first, last in runs))
        copied = _process_vm_readv(pid, local, len(runs), remote, len(runs), 0)
        if copied != sum(last - first for first, last in runs):
            raise OSError(ctypes.get_errno(), "the memory of a machine cannot be read")
    finally:
        del begin  # or the mapping could not be closed


def find_mapping(pid: int, ram: int) -> tuple[int, int]:
    """Address and size of the mapping of `ram` in process `pid`. Raises `LookupError`."""
    about = os.fstat(ram)
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}"
    with open(f"/proc/{pid}/maps") as maps:  # noqa: PTH123 - a path object costs more than the read
        for line in maps:
            fields = line.split(maxsplit=5)
            if fields[3] == device and fields[4] == str(about.st_ino):
                begin, end = (int(part, 16) for part in fields[0].split("-"))
                return begin, end - begin
    raise LookupError(f"process {pid} has not mapped the memory")
