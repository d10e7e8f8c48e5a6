"""Find the living server of a data directory. It holds a file lock, which the kernel releases when it dies."""

import json
from pathlib import Path
from typing import NamedTuple, cast

from cloister.core.errors import HostError
from cloister.system.locks import is_locked


class LocalServer(NamedTuple):
    """A server that listens on this machine."""

    pid: int
    port: int
    url: str
    since: float
    """Unix seconds."""
    token_path: Path

    def token(self) -> str:
        try:
            return self.token_path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise HostError(
                "no_access", f"{self.token_path} is not readable: use the account that started the server."
            ) from None


def lock_held(data_dir: Path) -> bool:
    """True if a process is the server of this data directory, whether or not it listens already."""
    try:
        return is_locked(data_dir / "server.lock")
    except OSError:
        raise HostError("no_access", f"{data_dir} is not readable: check its permissions.") from None


def _holder(data_dir: Path) -> int | None:
    """The process that holds the lock, by its own account. The announcement of a dead server names another."""
    try:
        return int((data_dir / "server.lock").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def living(data_dir: Path) -> LocalServer | None:
    """The server of this data directory, if it listens."""
    if not lock_held(data_dir):
        return None
    path = data_dir / "server.json"
    try:
        text, since = path.read_text(encoding="utf-8"), path.stat().st_mtime
        found = cast(object, json.loads(text))
    except (FileNotFoundError, ValueError):
        return None
    except OSError:
        raise HostError("no_access", f"{path} is not readable: check its permissions.") from None
    match found:
        case {"pid": int(pid), "port": int(port), "url": str(url)} if pid == _holder(data_dir):
            return LocalServer(pid, port, url, since, data_dir / "token")
        case _:
            return None
