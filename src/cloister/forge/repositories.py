"""The runs' own bare repositories in the data directory of this machine."""

import shutil
import time
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from cloister.core.errors import UserError
from cloister.core.ids import RunId
from cloister.forge.api import Removed

_MARK = "removed.json"


class LocalRepositories:
    """`RunRepositories` below `<data directory>/runs`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    async def open(self, run: RunId) -> Path:
        check_kept(self._data_dir, run)
        return bare_repository(self._data_dir, run)

    async def exists(self, run: RunId) -> bool:
        return await anyio.Path(bare_repository(self._data_dir, run)).exists()

    async def remove(self, run: RunId, who: str) -> Removed:
        return await to_thread.run_sync(_remove, bare_repository(self._data_dir, run), who)


def bare_repository(data_dir: Path, run: RunId) -> Path:
    """Return where the repository of `run` is, or will be."""
    return data_dir / "runs" / run / "repo.git"


def check_kept(data_dir: Path, run: RunId) -> None:
    """Raises `UserError` (`run_removed`) when the run's files were removed."""
    if (bare_repository(data_dir, run).parent / _MARK).exists():
        raise UserError("run_removed", f"The files of run {run} were removed: only its log is left.")


def _remove(bare: Path, who: str) -> Removed:
    bare.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    removed = Removed(who, time.time())
    # The mark comes first: it explains a repository that is only half deleted.
    (bare.parent / _MARK).write_bytes(msgspec.json.encode(removed))
    shutil.rmtree(bare, ignore_errors=True)
    return removed
