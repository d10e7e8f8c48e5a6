"""What a finished run keeps on disk beside its log, and taking that away."""

import shutil
import time
from pathlib import Path

import msgspec

from cloister.core.errors import UserError
from cloister.core.ids import RunId
from cloister.core.records import State

MARK = "removed.json"


def bare_repository(data_dir: Path, run: RunId) -> Path:
    """The run's own repository, which only we write to."""
    return data_dir / "runs" / run / "repo.git"


class Removed(msgspec.Struct, frozen=True):
    """Who took a run's files away. The log is append-only and stays as it is."""

    who: str
    at: float
    """Unix seconds."""


def remove_files(data_dir: Path, run: RunId, state: State, who: str) -> Removed:
    """Delete the run's own repository: its change, its attempts' diffs and its save points. Blocks.

    Raises `UserError` (`run_not_finished`). Doing it twice is fine, and so is being stopped in the middle.
    """
    if state != "finished":
        raise UserError(
            "run_not_finished", f"Run {run} is not finished: stop it first (`cloister stop {run}`)."
        )
    home = bare_repository(data_dir, run).parent
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    removed = Removed(who, time.time())
    # The mark comes first: whoever finds a half-deleted repository knows why.
    (home / MARK).write_bytes(msgspec.json.encode(removed))
    shutil.rmtree(bare_repository(data_dir, run), ignore_errors=True)
    return removed


def check_kept(data_dir: Path, run: RunId) -> None:
    """Raises `UserError` (`run_removed`) when the run's files were taken away."""
    if (bare_repository(data_dir, run).parent / MARK).exists():
        raise UserError("run_removed", f"The files of run {run} were removed: only its log is left.")
