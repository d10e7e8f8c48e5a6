"""A sandbox's root as one plain directory, for a template: no layers, and nothing that a later write could change."""

from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.store.api import Layers, Root, Tree
from cloister.sandbox.store.merge import merge
from cloister.sandbox.templates.root import scrub

_COPY_SECONDS = 900.0


async def flatten(root: Root, at: Path, path: str) -> None:
    """Make the new directory `at` all that `root` holds. The caller has made sure that nobody writes to it.

    Raises `HostError` (`keep_failed`); then `at` and what is beside it with the same beginning may be half made.
    """
    match root:
        case Tree():
            await _copy(root.path, at, path)
            await anyio.to_thread.run_sync(scrub, at)
        case Layers():
            await _merged(root, at, path)


async def _merged(root: Layers, at: Path, path: str) -> None:
    upper = at.with_name(f"{at.name}-upper")
    await _copy(root.upper, upper, path)
    try:
        # Templates are never written, so that what did not change can be the same file on disk.
        await _copy(root.lower, at, path, "--link")
    except HostError:
        await _remove(at, path)
        await _copy(root.lower, at, path)
    try:
        await anyio.to_thread.run_sync(merge, str(upper), str(at))
    except (OSError, RecursionError) as error:
        raise HostError("keep_failed", f"The files could not be kept: {one_line(str(error))}.") from error
    await _remove(upper, path)


async def _copy(source: Path, target: Path, path: str, how: str = "--reflink=auto") -> None:
    # `-a` keeps owners, links, times, whiteouts (character devices 0:0) and the overlay's own attributes.
    argv = ["cp", "-a", how, "--", str(source), str(target)]
    copied = await capture(argv, env={"PATH": path, "LC_ALL": "C"}, seconds=_COPY_SECONDS)
    if not copied.ok:
        raise HostError("keep_failed", f"The files could not be kept: {one_line(decode(copied.err), 200)}")


async def _remove(at: Path, path: str) -> None:
    await capture(["rm", "-rf", "--", str(at)], env={"PATH": path}, seconds=_COPY_SECONDS)
