"""The signed head: the number and hash of the newest entry of the audit, in a file beside the database.

A writer advances the head after each commit that added entries. The head is therefore never ahead of the
database, also after a kill or a power failure, and at most one transaction behind it. It never goes back: a
database that lost entries the head has seen, or that holds others, is not followed.
"""

import os
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from cloister.core.errors import HostError
from cloister.core.system.locks import lock
from cloister.log.audit.chain import Head, Signer
from cloister.log.audit.entry import FIRST, Checkpoint, head_bytes, microseconds
from cloister.log.audit.keys import KEY_FILE, HostKey, valid

_SLOT = 512
"""Two slots are written in turns: a write that is torn leaves the other one."""

SYNC_SECONDS = 1.0
"""How often the head is flushed to the disk at most; a power failure may take it back by as much."""


class Chain(Protocol):
    """The chain in the database, as far as the head must know it."""

    def newest(self) -> Head: ...

    def hash_of(self, number: int) -> str | None:
        """Return the hash of an entry; None if there is none."""
        ...

    def replaced(self, old: str, new: str) -> bool:
        """Return whether the key `old` introduced the key `new`."""
        ...


def head_path(database: Path) -> Path:
    return database.with_suffix(".head")


class HeadFile:
    """The head of the audit in one database. Every method may raise `HostError`.

    Its codes are `audit_head_failed`, `audit_head_broken` and `audit_head_differs`, and those of the key.
    """

    def __init__(self, database: Path) -> None:
        self._path = head_path(database)
        self.key: Signer = HostKey(database.with_name(KEY_FILE))
        self._seen = -1
        """The newest entry at the last advance."""
        self._synced = 0.0
        self._dirty = False

    def read(self) -> Checkpoint | None:
        """Return the stored head; None if there is no file."""
        try:
            with self._open(shared=True) as file:
                return self._stored(file)
        except FileNotFoundError:
            return None

    def begin(self, head: Head, at: float) -> None:
        """Store the first head, durably, unless there is one."""
        if self.read() is None:
            self._create(self._signed(head, at), os.link)

    def advance(self, chain: Chain) -> None:
        """Store the newest entry if it follows the stored head. Does nothing where no head was ever stored."""
        newest = chain.newest()
        if newest.number == self._seen:
            return
        try:
            with self._open(shared=False) as file:
                stored = self._stored(file)
                if newest.number > stored.number:
                    self._check(stored, chain)
                    self._put(file, self._signed(newest, time.time()))
                    self._dirty = True
        except FileNotFoundError:
            raise HostError("audit_head_failed", f"The signed head {self._path} is missing.") from None
        self._seen = newest.number

    def replace(self, head: Head) -> None:
        """Replace the stored head: a person accepted the new one."""
        self._create(self._signed(head, time.time()), os.replace)

    def sync(self, *, now: bool = False) -> None:
        """Flush the head to the disk, at most every `SYNC_SECONDS` unless `now`."""
        if self._dirty and (now or time.monotonic() - self._synced >= SYNC_SECONDS):
            with suppress(FileNotFoundError), self._open(shared=True) as file:
                os.fdatasync(file)
            self._synced, self._dirty = time.monotonic(), False

    def _signed(self, head: Head, at: float) -> Checkpoint:
        public, at_us = self.key.public(), microseconds(at)
        signature = self.key.sign(head_bytes(head.number, head.hash, at_us, public))
        return Checkpoint(head.number, head.hash, at_us, None, public, signature)

    def _check(self, stored: Checkpoint, chain: Chain) -> None:
        """Raises `HostError` (`audit_head_differs`) unless the database continues the stored head."""
        followed = stored.hash == (chain.hash_of(stored.number) if stored.number else FIRST)
        public = self.key.public()
        if not followed or (public != stored.key and not chain.replaced(stored.key, public)):
            raise HostError(
                "audit_head_differs",
                f"The audit does not continue its signed head {self._path}: run `cloister audit verify`.",
            )

    @contextmanager
    def _open(self, *, shared: bool) -> Generator[int]:
        """Lock the file; yields a descriptor to read from. Raises `FileNotFoundError`, `HostError`."""
        try:
            with lock(self._path, shared=shared, wait=True) as file:
                yield file
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failed(error) from None

    def _create(self, signed: Checkpoint, place: Callable[[Path, Path], None]) -> None:
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        try:
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, _slot(signed), 0)
                os.fsync(file)
            finally:
                os.close(file)
            with suppress(FileExistsError):  # another process stored the first head
                place(draft, self._path)
            draft.unlink(missing_ok=True)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._failed(error) from None

    def _put(self, file: int, signed: Checkpoint) -> None:
        """Replace the older of the two slots."""
        slots = _slots(os.pread(file, 2 * _SLOT, 0))
        older = min((0, 1), key=lambda slot: -1 if (kept := slots[slot]) is None else kept.number)
        writable = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(writable, _slot(signed), older * _SLOT)
        finally:
            os.close(writable)

    def _stored(self, file: int) -> Checkpoint:
        kept = [each for each in _slots(os.pread(file, 2 * _SLOT, 0)) if each is not None]
        if not kept:
            raise HostError("audit_head_broken", f"{self._path} holds no signed head: it was edited.")
        return max(kept, key=lambda each: each.number)

    def _failed(self, error: OSError) -> HostError:
        return HostError(
            "audit_head_failed", f"The signed head {self._path} cannot be used: {error.strerror}."
        )


def _slot(signed: Checkpoint) -> bytes:
    return msgspec.json.encode(signed).ljust(_SLOT - 1) + b"\n"


def _slots(data: bytes) -> tuple[Checkpoint | None, Checkpoint | None]:
    return _decoded(data[:_SLOT]), _decoded(data[_SLOT:])


def _decoded(data: bytes) -> Checkpoint | None:
    try:
        return msgspec.json.decode(data, type=Checkpoint)
    except msgspec.MsgspecError:
        return None


def signed_by_its_key(head: Checkpoint) -> bool:
    return valid(head.key, head.signature, head_bytes(head.number, head.hash, head.at_us, head.key))
