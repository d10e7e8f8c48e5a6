"""The bearer token: made once per data directory, readable by its owner alone."""

import os
import re
import secrets
import stat
from pathlib import Path

from cloister.core.errors import HostError

_SHAPE = re.compile(r"^[A-Za-z0-9_-]{32,128}$")
_READ_BYTES = 256


def load_token(path: Path) -> str:
    """The token in `path`, made now if there is none.

    Raises `HostError` with code `no_data_dir`, `token_exposed`, `token_broken` or `token_failed`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HostError(
            "no_data_dir",
            f"The data directory {path.parent} cannot be made ({error.strerror}): "
            "choose another with --data-dir.",
        ) from None
    try:
        if not path.exists() and not path.is_symlink():
            _make(path)
        return _read(path)
    except OSError as error:
        raise HostError("token_failed", f"The token file {path} cannot be used: {error.strerror}.") from None


def _make(path: Path) -> None:
    # Linked into place when it is whole: a crash in between never leaves an empty token behind.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # somebody else made one in this moment: theirs counts
    finally:
        draft.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise HostError(
                "token_exposed", f"{path} is not a file of yours: delete it and a new token is made."
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise HostError(
                "token_exposed",
                f"{path} can be read by others: delete it to get a new token, "
                f"or run `chmod 600 {path}` if you know nobody read it.",
            )
        text = file.read(_READ_BYTES).decode("ascii", errors="replace").strip()
    if not _SHAPE.match(text):
        raise HostError("token_broken", f"{path} holds no token: delete it and a new one is made.")
    return text
