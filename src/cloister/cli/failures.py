"""Turn every failure into one sentence on stderr and one exit code; format the log of the process."""

import errno
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from io import TextIOBase
from pathlib import Path
from typing import TextIO

from cloister.core.errors import CloisterError, HostError
from cloister.core.text import harmless

INTERRUPTED = 130
BUG = 70
QUIET = 1
"""Exit code after a closed pipe."""


def explain(error: BaseException, argv: Sequence[str]) -> int:
    """Print one sentence about `error` and return the exit code."""
    leaves = [_no_space(leaf) or leaf for leaf in _leaves(error)]
    ours = [leaf for leaf in leaves if isinstance(leaf, CloisterError)]
    if ours and len(ours) == len(leaves) and ours[0].exit_code != BUG:
        _say(ours[0].message)
        return ours[0].exit_code
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    if all(isinstance(leaf, BrokenPipeError | SystemExit) for leaf in leaves):  # rich ends with the latter
        # The reader is gone. The flush at interpreter exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return QUIET
    _bug(error, leaves, argv)
    return BUG


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
            yield from _leaves(inner)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


def _no_space(error: BaseException) -> HostError | None:
    """A full disk is no bug, wherever it is noticed first."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    place = f" for {error.filename}" if isinstance(error.filename, str) else ""
    return HostError("no_disk", f"There is no space left on the disk{place}: free some, and try again.")


def _say(sentence: str) -> None:
    print(f"cloister: {harmless(sentence)}", file=sys.stderr)


def _bug(error: BaseException, leaves: Sequence[BaseException], argv: Sequence[str]) -> None:
    from cloister.app.settings import debug_wanted

    text = "".join(traceback.format_exception(error))
    first = leaves[0]
    what = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
    if debug_wanted():
        print(harmless(text), file=sys.stderr)
        _say(f"this is a bug in Cloister ({what}).")
        return
    kept = _keep(text, argv)
    where = f"the traceback is in {kept}" if kept else "run it again with CLOISTER_DEBUG=1 for the traceback"
    _say(f"this is a bug in Cloister ({what}); {where}.")


def _keep(text: str, argv: Sequence[str]) -> Path | None:
    """Append the traceback to `server.log` of the data directory, if it is writable."""
    from cloister.app import default_data_dir
    from cloister.app.settings import environment

    data_dir = _named_data_dir(argv) or default_data_dir(environment())
    path = data_dir / "server.log"
    if not data_dir.is_dir():
        return None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            file.write(f"{stamp} cloister {argv[0] if argv else ''} failed\n{harmless(text)}")
    except OSError:
        return None
    return path


def _named_data_dir(argv: Sequence[str]) -> Path | None:
    for index, word in enumerate(argv):
        if word == "--data-dir" and index + 1 < len(argv):
            return Path(argv[index + 1])
        if word.startswith("--data-dir="):
            return Path(word.partition("=")[2])
    return None


# Logging. Messages quote errors, and errors quote text from guests and repositories.


class Harmless(logging.Formatter):
    """Formats time, level, message and traceback without terminal control characters."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def log_to(file: TextIO | TextIOBase) -> None:
    """Write warnings and errors to `file` until the process ends."""
    handler = logging.StreamHandler(file)
    handler.setFormatter(Harmless())
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
