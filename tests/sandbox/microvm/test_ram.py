"""Memory as files: sparse, sealed, and taken out of a process that has written into it."""

import fcntl
import mmap
import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.sandbox.microvm import ram

PAGES = 64

GET_SEALS, SEAL_WRITE = 1034, 8


@contextmanager
def memory(pages: dict[int, bytes]) -> Generator[int]:
    descriptor = ram.new_ram(PAGES * ram.PAGE)
    try:
        for number, byte in pages.items():
            os.pwrite(descriptor, byte * ram.PAGE, number * ram.PAGE)
        yield descriptor
    finally:
        os.close(descriptor)


def content(descriptor: int) -> dict[int, bytes]:
    """The pages that are not zeros, by their first byte."""
    whole = os.pread(descriptor, PAGES * ram.PAGE, 0)
    firsts = {number: whole[number * ram.PAGE : number * ram.PAGE + 1] for number in range(PAGES)}
    return {number: byte for number, byte in firsts.items() if byte != b"\0"}


def test_a_sparse_copy_has_the_data_and_the_holes() -> None:
    with memory({1: b"a", 2: b"\0", 40: b"b"}) as source, memory({}) as target:
        assert ram.copy_sparse(source, target) == 2 * ram.PAGE
        assert content(target) == {1: b"a", 40: b"b"}
        assert os.fstat(target).st_blocks * 512 == 2 * ram.PAGE


def test_sealed_memory_cannot_change_but_a_private_mapping_can_be_written() -> None:
    with memory({3: b"a"}) as sealed:
        ram.seal(sealed)
        assert fcntl.fcntl(sealed, GET_SEALS) & SEAL_WRITE
        again = os.open(f"/proc/self/fd/{sealed}", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.pwrite(again, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 0)
        with mmap.mmap(again, 0, flags=mmap.MAP_PRIVATE) as own:
            own[3 * ram.PAGE] = ord("x")
            assert os.pread(sealed, 1, 3 * ram.PAGE) == b"a"
        os.close(again)


def test_privately_written_pages_are_found_and_completed_from_the_original() -> None:
    with memory({1: b"a", 2: b"b", 40: b"c"}) as base, memory({}) as target:
        with mmap.mmap(base, 0, flags=mmap.MAP_PRIVATE) as own, mmap.mmap(target, 0) as copy:
            assert own[ram.PAGE] == ord("a")  # read, and so not its own
            for number in (2, 3, 50):
                own[number * ram.PAGE : (number + 1) * ram.PAGE] = b"x" * ram.PAGE
            address, size = ram.find_mapping(os.getpid(), base)
            assert size == PAGES * ram.PAGE
            runs = ram.copy_private(os.getpid(), address, size, copy)
            assert runs == ((2 * ram.PAGE, 4 * ram.PAGE), (50 * ram.PAGE, 51 * ram.PAGE))
            assert content(target) == {2: b"x", 3: b"x", 50: b"x"}
            ram.fill_holes(base, target, runs)
        assert content(target) == {1: b"a", 2: b"x", 3: b"x", 40: b"c", 50: b"x"}


def test_a_mapping_that_is_not_there_is_not_found() -> None:
    with memory({}) as never, pytest.raises(LookupError):
        ram.find_mapping(os.getpid(), never)


@given(st.binary(max_size=200))
def test_runs_are_the_pages_that_are_present_and_of_no_file(flags: bytes) -> None:
    own = {i for i, byte in enumerate(flags) if byte & 0x40 or (byte & 0x80 and not byte & 0x20)}
    runs = list(ram.private_runs(flags))
    assert {i for first, last in runs for i in range(first, last)} == own
    assert all(a[1] < b[0] for a, b in pairwise(runs))


@given(st.sets(st.integers(0, PAGES - 1)), st.sets(st.integers(0, PAGES - 1)))
def test_holes_are_filled_and_nothing_that_was_written_is_touched(began: set[int], wrote: set[int]) -> None:
    with memory(dict.fromkeys(began, b"a")) as base, memory(dict.fromkeys(wrote, b"x")) as target:
        flags = bytes(0x80 if number in wrote else 0 for number in range(PAGES))
        runs = [(first * ram.PAGE, last * ram.PAGE) for first, last in ram.private_runs(flags)]
        ram.fill_holes(base, target, runs)
        assert content(target) == {**dict.fromkeys(began, b"a"), **dict.fromkeys(wrote, b"x")}
