"""The plain store: an overlay whose upper directory is copied on fork. Works on every filesystem."""

from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.store.api import Layers

_COPY_SECONDS = 600.0
_REMOVE_SECONDS = 600.0


class OverlayStore:
    """Create is two empty directories; fork costs as much as what was written since; both share the template."""

    def __init__(self, path: str) -> None:
        self._env = {"PATH": path, "LC_ALL": "C"}

    @property
    def kind(self) -> str:
        return "overlay+copy"

    async def create(self, template: Path, at: Path) -> Layers:
        layers = Layers(lower=template, upper=at / "upper", work=at / "work")
        _make(at, layers.upper, layers.work)
        return layers

    async def fork(self, parent: Layers, at: Path) -> Layers:
        layers = Layers(lower=parent.lower, upper=at / "upper", work=at / "work")
        _make(at, layers.work)
        # `-a` keeps owners, links, times, whiteouts (character devices 0:0) and the overlay's own attributes.
        copied = await capture(
            ["cp", "-a", "--reflink=auto", "--", str(parent.upper), str(layers.upper)],
            env=self._env,
            seconds=_COPY_SECONDS,
        )
        if not copied.ok:
            raise HostError("fork_failed", f"The files could not be copied: {one_line(decode(copied.err))}")
        return layers

    async def remove(self, at: Path) -> None:
        if not await anyio.Path(at).exists():
            return
        # SAFETY: the guest chose every name and depth below; `rm` neither follows links nor recurses in memory.
        removed = await capture(
            ["rm", "-rf", "--one-file-system", "--", str(at)], env=self._env, seconds=_REMOVE_SECONDS
        )
        if not removed.ok:
            raise HostError(
                "remove_failed",
                f"{at} could not be removed: {one_line(decode(removed.err))}; remove it by hand.",
            )


def _make(*directories: Path) -> None:
    for directory in directories:
        directory.mkdir()
        # The upper directory is the guest's `/`, which everybody inside must be able to pass; what keeps
        # others of this machine out is the data directory around it.
        directory.chmod(0o755)
