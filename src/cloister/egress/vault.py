"""Reads the values of credentials where they are kept, again when they change, and shows them to nobody."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import anyio

from cloister.core import limits
from cloister.egress._spawn import Failed, output, words
from cloister.egress.credentials import Credential
from cloister.egress.fakes import MIN_CHARS

_BYTES = 16_384
_SECONDS = 10.0
_FRESH_SECONDS = 60.0
"""How long the answer of a command or a keyring is believed."""
_KEPT = 4
"""Former values that are still taken out of answers."""


class Unreadable(Exception):
    """There is no value now; the message says why in a few words and nothing of the value."""


class _Value:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.text: str | None = None
        self.mark: object = None
        self.read_at = float("-inf")
        self.known: list[str] = []

    def keep(self, text: str, mark: object) -> None:
        self.text, self.mark, self.read_at = text, mark, anyio.current_time()
        if text not in self.known:
            self.known = [*self.known[1 - _KEPT :], text] if self.known else [text]


class Vault:
    """The values of some credentials. `variables` is the environment as it was when the settings were read."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._values: dict[str, _Value] = {}

    def __repr__(self) -> str:
        return "Vault()"

    async def value(self, credential: Credential) -> str:
        """The value as it is now. Raises `Unreadable`."""
        value = self._values.setdefault(credential.name, _Value())
        async with value.lock:
            match credential.source.kind:
                case "env":
                    text = self._variables.get(credential.source.where)
                    if text is None:
                        raise Unreadable(f"the variable {credential.source.where} was not set")
                    value.keep(_checked(text.encode("utf-8", errors="replace")), None)
                case "file":
                    await self._file(value, Path(credential.source.where))
                case "command":
                    await self._asked(value, words_of(credential.source.where))
                case "keyring":
                    service, _, user = credential.source.where.partition("/")
                    argv = ("secret-tool", "lookup", "service", service, "username", user)
                    await self._asked(value, argv)
            if value.text is None:
                raise Unreadable("there is no value")
            return value.text

    def doubt(self, name: str) -> None:
        """A server did not take it: ask again next time."""
        if name in self._values:
            self._values[name].read_at = float("-inf")
            self._values[name].mark = None

    def known(self, name: str) -> tuple[str, ...]:
        """Every value of it that was read lately."""
        found = self._values.get(name)
        return tuple(found.known) if found else ()

    async def _file(self, value: _Value, path: Path) -> None:
        try:
            mark, data = await anyio.to_thread.run_sync(_read_file, path, value.mark)
        except OSError as error:
            raise Unreadable(f"its file cannot be read: {error.strerror}") from None
        if data is not None:
            value.keep(_checked(data), mark)

    async def _asked(self, value: _Value, argv: tuple[str, ...]) -> None:
        if anyio.current_time() - value.read_at < _FRESH_SECONDS:
            return
        try:
            data = await output(argv, seconds=_SECONDS, limit_bytes=_BYTES)
        except Failed as error:
            raise Unreadable(str(error)) from None
        value.keep(_checked(data), None)


def words_of(line: str) -> tuple[str, ...]:
    """Raises `Unreadable`."""
    try:
        return words(line)
    except Failed as error:
        raise Unreadable(str(error)) from None


def _read_file(path: Path, mark: object) -> tuple[object, bytes | None]:
    with path.expanduser().open("rb") as file:
        status = os.fstat(file.fileno())
        now = (status.st_ino, status.st_mtime_ns, status.st_size)
        if now == mark:
            return now, None
        # Another value may be written in the same tick of the file's clock: a file that new is read again.
        settled = time.time_ns() - status.st_mtime_ns > limits.FILE_CLOCK_NANOSECONDS
        return now if settled else None, file.read(_BYTES + 1)


def _checked(data: bytes) -> str:
    if len(data) > _BYTES:
        raise Unreadable(f"it has more than {_BYTES:,} bytes")
    text = data.decode("latin-1").strip("\r\n")
    if len(text) < MIN_CHARS or not text.isascii() or not text.isprintable():
        raise Unreadable(f"it is not one line of at least {MIN_CHARS} printable ASCII characters")
    return text
