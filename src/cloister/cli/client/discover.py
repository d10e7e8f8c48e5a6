"""Whether a living server holds a data directory, and where it listens. The kernel answers: a lock dies with its holder."""

import json
from pathlib import Path
from typing import NamedTuple, cast

from cloister.core.errors import HostError
from cloister.system.locks import is_locked


class Place(NamedTuple):
    """A server that listens."""

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
                "no_access", f"{self.token_path} cannot be read: use the account that started the server."
            ) from None


def lock_held(data_dir: Path) -> bool:
    """Whether some process is the server of this data directory, listening already or not."""
    try:
        return is_locked(data_dir / "server.lock")
    except OSError:
        raise HostError("no_access", f"{data_dir} cannot be read: check its permissions.") from None


def _holder(data_dir: Path) -> int | None:
    """Who holds the lock, by its own word. What a dead server announced is not this one's announcement."""
    try:
        return int((data_dir / "server.lock").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def living(data_dir: Path) -> Place | None:
    """The server of this data directory, when it listens."""
    if not lock_held(data_dir):
        return None
    path = data_dir / "server.json"
    try:
        text, since = path.read_text(encoding="utf-8"), path.stat().st_mtime
        found = cast(object, json.loads(text))
    except (FileNotFoundError, ValueError):
        return None
    except OSError:
        raise HostError("no_access", f"{path} cannot be read: check its permissions.") from None
    match found:
        case {"pid": int(pid), "port": int(port), "url": str(url)} if pid == _holder(data_dir):
            return Place(pid, port, url, since, data_dir / "token")
        case _:
            return None
