"""A small JSON file that several processes read and change: read again when it changed, replaced as a whole."""

import os
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from cloister.core import limits
from cloister.core.errors import HostError
from cloister.core.system.locks import take

T = TypeVar("T", bound=msgspec.Struct)


class JsonFile(Generic[T]):
    """One record of type `T`. Raises `HostError` (`code`) when the file cannot be read or written."""

    def __init__(self, path: Path, empty: T, code: str, largest: int = 1_048_576) -> None:
        self._path = path
        self._empty = empty
        self._code = code
        self._largest = largest
        self._seen: tuple[int, int, int] | None = None
        self._known = empty

    def get(self) -> T:
        """The record as it stands; the empty one when there is no file."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._seen, self._known = None, self._empty
            return self._empty
        except OSError as error:
            raise self._broken(error.strerror or "no access") from None
        now = (status.st_mtime_ns, status.st_size, status.st_ino)
        if now != self._seen:
            self._known = self._read()
            # Another write in the same tick of the file's clock would go unnoticed: read a file that new again.
            settled = time.time_ns() - status.st_mtime_ns > limits.FILE_CLOCK_NANOSECONDS
            self._seen = now if settled else None
        return self._known

    def change(self, work: Callable[[T], T]) -> None:
        """Replace the record by what `work` makes of it. What `work` raises changes nothing."""
        with self._locked():
            self._write(work(self.get()))

    def _read(self) -> T:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(self._largest), type=type(self._empty))
        except OSError as error:
            raise self._broken(error.strerror or "no access") from None
        except msgspec.MsgspecError:
            raise self._broken("it is damaged") from None

    def _write(self, record: T) -> None:
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(record))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._broken(error.strerror or "no access") from None
        self._seen = None

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = take(self._path.with_suffix(".lock"), wait=True, create=True)
        except OSError as error:
            raise self._broken(error.strerror or "no access") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def _broken(self, why: str) -> HostError:
        return HostError(self._code, f"{self._path} cannot be used ({why}): repair or delete it.")
