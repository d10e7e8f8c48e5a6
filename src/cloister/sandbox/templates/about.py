"""What is known of a template that was built: stored beside its root filesystem."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloister.core.diagnosis import Diagnosis

MARKER = "complete"
ABOUT = "about.json"
HOME = "/home/agent"


class About(msgspec.Struct, frozen=True):
    """The facts that do not show in the files themselves."""

    kind: str = "packages"
    built_at: float = 0.0
    """Unix seconds."""
    seconds: float = 0.0
    env: dict[str, str] = {}
    """The image's own environment, which commands find."""
    home: str = HOME
    """The agent's home directory."""
    git: bool = True
    """Whether there is a git; without one no run can start from it."""
    bash: bool = True
    digest: str | None = None
    """Of the image it was made from."""
    commit: str | None = None
    """Of the repository that is cloned in it."""
    base: str | None = None
    """The build that it was made from."""
    checks: tuple[str, ...] = ()
    baseline: tuple[Diagnosis, ...] = ()
    """What `checks` said on `commit` in it."""


@dataclass(frozen=True, slots=True)
class Built:
    """A template that is ready."""

    name: str
    home: Path
    about: About

    @property
    def rootfs(self) -> Path:
        return self.home / "rootfs"


def load(name: str, home: Path) -> Built | None:
    """The template in `home`; None when it is not complete."""
    if not (home / MARKER).is_file():
        return None
    try:
        about = msgspec.json.decode((home / ABOUT).read_bytes(), type=About)
    except FileNotFoundError:
        about = About()
    except (OSError, msgspec.MsgspecError):
        return None
    return Built(name, home, about)


def complete(home: Path, about: About) -> None:
    """Declare the template in `home` finished; the marker is the last thing written."""
    (home / ABOUT).write_bytes(msgspec.json.encode(about))
    (home / MARKER).touch()
