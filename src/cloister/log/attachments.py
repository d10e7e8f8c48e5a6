"""The bytes of attachments: first for anyone who has the hash, then with the run whose log names them."""

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId, is_id
from cloister.core.requests import Attachment, attachment, is_digest, sniffed

_WAIT_SECONDS = 86_400.0
"""How long a file waits for the run that it was sent for."""
_WAITING = 256
"""Files that wait at most; the oldest go first."""


class Attachments:
    """Files below the data directory. Blocking: call it in a thread."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._waiting = data_dir / "attachments"

    def put(self, name: str, data: bytes) -> Attachment:
        """Keep a file for a day. Raises `UserError` (`attachment_too_large`, `bad_attachment`), `HostError` (`no_disk`)."""
        made = attachment(name, data)
        try:
            self._waiting.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
            with tempfile.NamedTemporaryFile(dir=self._waiting, prefix="new-", delete=False) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self._waiting / made.sha256)
        except OSError as error:
            raise HostError(
                "no_disk", f"The attachment cannot be stored ({error.strerror}): free some disk space."
            ) from error
        return made

    def check(self, given: Iterable[Attachment], *runs: RunId) -> None:
        """Raises `UserError` (`no_such_attachment`) unless each was sent here, or is that of one of the runs."""
        for one in given:
            data = next((found for run in (*runs, None) if (found := self.read(run, one.sha256))), None)
            if data is None or len(data) != one.size or sniffed(data) != one.media_type:
                raise UserError(
                    "no_such_attachment",
                    f"{one.name} is not stored here: send it again, and then the message.",
                )

    def waiting(self, sha256: str) -> Path:
        """Where a file waits for its run."""
        return self._waiting / sha256

    def keep(self, run: RunId, given: Iterable[Attachment], *others: RunId) -> None:
        """Put the files into the directory of the run: those that wait, and those of other runs."""
        home = self._home(run)
        for one in given:
            if not is_digest(one.sha256) or (home / one.sha256).exists():
                continue
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            for place in (self._waiting, *map(self._home, others)):
                try:
                    os.link(place / one.sha256, home / one.sha256)
                    break
                except FileExistsError:
                    break
                except OSError:
                    continue

    def read(self, run: RunId | None, sha256: str) -> bytes | None:
        """The bytes of an attachment of a run, or of one that waits; None if it is gone."""
        if not is_digest(sha256):
            return None
        for place in (() if run is None else (self._home(run),)) + (self._waiting,):
            try:
                return (place / sha256).read_bytes()
            except OSError:
                continue
        return None

    def _home(self, run: RunId) -> Path:
        """Beside the run's repository, and removed with it."""
        if not is_id(run):
            raise UserError("no_such_run", "There is no such run.")
        return self._data_dir / "runs" / run / "attachments"

    def _sweep(self) -> None:
        """Remove files whose message never came."""
        waiting = sorted((path for path in self._waiting.iterdir()), key=_age)
        old = time.time() - _WAIT_SECONDS
        for number, path in enumerate(reversed(waiting)):
            if number >= _WAITING or _age(path) < old:
                path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """When it was written; 0.0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
