"""Brings the file of a model here: downloads or copies it, resumes a partial download and verifies the file."""

import hashlib
import os
import shutil
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx2
import msgspec
from anyio import from_thread, to_thread

from cloister.core.errors import HostError, OutsideError, UserError
from cloister.core.system.locks import take
from cloister.core.text import one_line
from cloister.model.local.files import OWN_WINDOW, LocalFile, Progress, Shelf
from cloister.model.local.gguf import MAGIC, problem_of, read_header

PIECE = 1_048_576
LARGEST_BYTES = 256 * 2**30
"""The largest file that can be added."""
FLOOR_BYTES = 2**30
FLOOR_SHARE = 0.02
"""Free space that adding a model leaves on the disk: the smaller of these two."""
_ROOM_BYTES = 64 * PIECE
"""How often the free space is looked at while a file of unknown size arrives."""
_HOPS = 10
_PATIENCE = httpx2.Timeout(60.0, connect=10.0)


class _Download(msgspec.Struct, frozen=True):
    """One file to download."""

    url: str
    most: int
    code: str
    """The code of an error of the server or the connection."""
    otherwise: str
    """What else a person can do."""
    pinned: bool = False
    """Its SHA-256 is known: a wrong mixture of two files would be noticed."""
    hub: bool = False
    """The size is exactly `most`, and the operator chose the address."""

    @property
    def shown(self) -> str:
        """The URL without the parts that may hold a secret."""
        return one_line(self.url.partition("?")[0].partition("#")[0], 300)


async def fetch(shelf: Shelf, name: str, hub: str, progress: Progress) -> Path:
    """Return the verified file of a model of the catalog; download it from the hub if it is missing.

    Raises `UserError` (`unknown_model`, `bad_model_file`, `fetch_under_way`), `OutsideError` (`hub_unreachable`,
    `bad_model_file`), `HostError` (`disk_full`, `disk_failed`).
    """
    file = shelf.entry(name)
    place = shelf.place(name)
    if place.is_file():
        if problem := await to_thread.run_sync(_check, place, file, progress):
            raise UserError("bad_model_file", f"{problem} Remove it and fetch it again.")
        return place
    if name in shelf.own:
        return shelf.found(name)
    part = place.with_suffix(".part")
    otherwise = "or name your own file in the settings (local_models)"
    source = _Download(
        f"{hub.rstrip('/')}/{file.hub_path}", file.bytes, "hub_unreachable", otherwise, pinned=True, hub=True
    )
    with _alone(place.parent, part):
        _check_room(part.parent, name, file.bytes - _had(part, file.bytes), floor=0)
        await _download(source, part, progress)
        if problem := await to_thread.run_sync(_check, part, file, progress):
            part.unlink()
            raise OutsideError("bad_model_file", f"{problem} It was deleted.")
        part.replace(place)
    return place


async def add(
    shelf: Shelf, source: str, name: str | None, sha256: str | None, progress: Progress
) -> LocalFile:
    """Copy or download any GGUF file and keep it under a name. The source stays as it is.

    A download that fails, or whose sum is not the given one, is kept, and the same call resumes it.
    Raises `UserError` (`bad_source`, `bad_sum`, `bad_name`, `name_taken`, `bad_model_file`, `fetch_under_way`),
    `OutsideError` (`download_failed`, `bad_model_file`), `HostError` (`disk_full`, `disk_failed`).
    """
    wanted = None if sha256 is None else _sum(sha256)
    remote = "://" in source
    if remote:
        _check_hop(source, source)
    elif not source.startswith("/"):
        raise UserError(
            "bad_source", f"{one_line(source)!r} is neither an https:// address nor an absolute path."
        )
    name = shelf.new_name(name, unquote(urlsplit(source).path) if remote else source)
    if official := shelf.files.get(name):
        if wanted not in (None, official.sha256):
            raise UserError("name_taken", f"{name} is the name of another file: choose one with --name.")
        wanted = official.sha256
    part = shelf.folder / f"{name}.{hashlib.sha256(source.encode()).hexdigest()[:12]}.part"
    with _alone(shelf.folder, part):
        name = shelf.new_name(name, source)
        if remote:
            file = await _add_download(source, part, name, wanted, progress)
        else:
            file = await to_thread.run_sync(_add_copy, Path(source), part, name, wanted, progress)
        place = shelf.place(name)
        if name not in shelf.files:
            place.with_suffix(".json").write_bytes(msgspec.json.encode(file))
        part.replace(place)
        _note_of(part).unlink(missing_ok=True)
    return file


async def _add_download(url: str, part: Path, name: str, wanted: str | None, progress: Progress) -> LocalFile:
    source = _Download(
        url, LARGEST_BYTES, "download_failed", "or add a file of this machine", pinned=wanted is not None
    )
    await _download(source, part, progress)
    digest = await to_thread.run_sync(_digest, part, progress)
    again = f"The download is kept: repeat the command to try again, or remove it (cloister model rm {name})."
    if wanted not in (None, digest):
        raise UserError("bad_sum", f"The SHA-256 of {source.shown} is {digest} and not {wanted}. {again}")
    if problem := await to_thread.run_sync(problem_of, part):
        raise OutsideError("bad_model_file", f"{source.shown} is not a model: {problem}. {again}")
    return _record(name, part, source.shown, digest)


def _add_copy(source: Path, part: Path, name: str, wanted: str | None, progress: Progress) -> LocalFile:
    shown = one_line(str(source), 300)
    try:
        info = source.stat()
        if not stat.S_ISREG(info.st_mode):
            raise UserError("bad_source", f"{shown} is not a regular file.")
        if problem := problem_of(source):
            raise UserError("bad_model_file", f"{shown} is not a model: {problem}.")
        stream = source.open("rb")
    except OSError as error:
        raise UserError("bad_source", f"{shown} cannot be read: {error.strerror}.") from None
    with stream:
        _check_size(shown, info.st_size)
        _check_room(part.parent, name, info.st_size)
        try:
            digest = hashlib.sha256()
            with part.open("wb") as target:
                while piece := stream.read(PIECE):
                    from_thread.check_cancelled()
                    digest.update(piece)
                    target.write(piece)
                    progress(min(target.tell(), info.st_size), info.st_size)
                os.fsync(target.fileno())
            if wanted not in (None, digest.hexdigest()):
                raise UserError(
                    "bad_sum", f"The SHA-256 of {shown} is {digest.hexdigest()} and not {wanted}."
                )
            if problem := problem_of(part):
                raise UserError("bad_model_file", f"{shown} changed while it was copied: {problem}.")
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return _record(name, part, shown, digest.hexdigest())


def _record(name: str, part: Path, source: str, digest: str) -> LocalFile:
    header = read_header(part)
    return LocalFile(
        name,
        header.title or name,
        header.license or "unknown",
        source,
        part.stat().st_size,
        digest,
        min(header.window or OWN_WINDOW, OWN_WINDOW),
    )


def _sum(text: str) -> str:
    found = text.strip().lower()
    if len(found) != 64 or not set(found) <= set("0123456789abcdef"):
        raise UserError("bad_sum", "A SHA-256 has 64 hexadecimal digits.")
    return found


def _check(path: Path, file: LocalFile, progress: Progress) -> str | None:
    """Why the bytes at `path` are not those of the official file, as one sentence; None when they are."""
    size = path.stat().st_size
    if size != file.bytes:
        return f"{path} has {size:,} bytes and the official file {file.bytes:,}."
    if (digest := _digest(path, progress)) != file.sha256:
        return f"{path} is not the official file: its SHA-256 is {digest}."
    return None


def _digest(path: Path, progress: Progress) -> str:
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as stream:
        while piece := stream.read(PIECE):
            from_thread.check_cancelled()
            digest.update(piece)
            progress(min(stream.tell(), size), size)
    return digest.hexdigest()


@contextmanager
def _alone(folder: Path, part: Path) -> Generator[None]:
    """Lock `folder` against other downloads. The kernel releases the lock when this process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = take(folder)
    except BlockingIOError:
        raise UserError(
            "fetch_under_way", f"Another process is fetching a model into {folder}: wait for it."
        ) from None
    except OSError as error:
        raise HostError("disk_failed", f"{folder} cannot be written ({error.strerror}).") from None
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise HostError(
            "disk_failed",
            f"{part} cannot be written ({why}). The partial file is kept: run the command again to resume.",
        ) from None
    finally:
        os.close(descriptor)


def _check_size(shown: str, size: int) -> None:
    if size > LARGEST_BYTES:
        raise UserError(
            "too_large", f"{shown} has {size / 2**30:.0f} GiB, and a model may have {LARGEST_BYTES >> 30}."
        )


def _check_room(folder: Path, name: str, need: int, floor: int | None = None) -> None:
    disk = shutil.disk_usage(folder)
    floor = min(FLOOR_BYTES, int(disk.total * FLOOR_SHARE)) if floor is None else floor
    if need + floor > disk.free:
        kept = f", of which {floor / 1e9:.1f} are reserved" if floor else ""
        raise HostError(
            "disk_full",
            f"The model {name} needs {need / 1e9:.1f} GB more in {folder} and {disk.free / 1e9:.1f} are free{kept}: "
            "free some space, or name your own file in the settings (local_models).",
        )


def _had(part: Path, most: int) -> int:
    """The size of the partial file; delete it if it is too large."""
    have = part.stat().st_size if part.exists() else 0
    if have > most:
        part.unlink()
        return 0
    return have


def _note_of(part: Path) -> Path:
    """Holds what identifies the version on the server that the partial file is of."""
    return part.with_suffix(".version")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_of(part).unlink(missing_ok=True)


async def _download(source: _Download, part: Path, progress: Progress) -> None:
    """Download the missing bytes of `part`. Keep what arrived if the connection breaks."""
    have = _had(part, source.most)
    if source.hub and have == source.most:
        return
    version = _note_of(part).read_text() if _note_of(part).exists() else ""
    if have and not version and not source.pinned:
        have = 0  # two versions of a file could be mixed without a trace
    headers = {"accept-encoding": "identity"}
    if have:
        headers |= {"range": f"bytes={have}-"} | ({"if-range": version} if version else {})
    try:
        async with _answered(source, headers) as answer:
            if (
                have
                and answer.status_code == 416
                and answer.headers.get("content-range", "") == f"bytes */{have}"
            ):
                return
            if answer.status_code not in (200, 206):
                raise OutsideError(
                    source.code,
                    f"{source.shown} answered with status {answer.status_code}: try later, {source.otherwise}.",
                )
            # A server without range support, or with another version, starts again at the first byte.
            have = have if answer.status_code == 206 else 0
            if not answer.headers.get("content-range", f"bytes {have}-").startswith(f"bytes {have}-"):
                raise OutsideError(source.code, f"{source.shown} answered with another part of the file.")
            await _receive(source, answer, part, have, progress)
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise OutsideError(
            source.code,
            f"{source.shown} cannot be fetched ({type(error).__name__}); {_had(part, source.most):,} bytes are kept: "
            f"run the command again to resume, {source.otherwise}.",
            retryable=True,
        ) from None


@asynccontextmanager
async def _answered(source: _Download, headers: dict[str, str]) -> AsyncGenerator[httpx2.Response]:
    """The answer behind all redirects."""
    async with httpx2.AsyncClient(timeout=_PATIENCE) as client:
        url = source.url
        for _ in range(_HOPS):
            async with client.stream("GET", url, headers=headers) as answer:
                to = answer.headers.get("location") if answer.is_redirect else None
                if to is None:
                    yield answer
                    return
            url = urljoin(url, to)
            if not source.hub:
                _check_hop(url, source.url)
    raise OutsideError(source.code, f"{source.shown} redirects more than {_HOPS} times.")


async def _receive(
    source: _Download, answer: httpx2.Response, part: Path, have: int, progress: Progress
) -> None:
    length = answer.headers.get("content-length", "")
    whole = have + int(length) if length.isdigit() else 0
    if not source.hub:
        _check_size(source.shown, whole)
        _check_room(part.parent, source.shown, whole - have)
        tag = answer.headers.get("etag", "")
        _note_of(part).write_text(answer.headers.get("last-modified", "") if tag.startswith("W/") else tag)
    with part.open("r+b" if have else "wb") as stream:
        stream.seek(have)
        async for piece in answer.aiter_raw():
            if have < len(MAGIC) and not source.hub and not piece.startswith(MAGIC[have : have + len(piece)]):
                _forget(part)
                raise OutsideError("bad_model_file", f"{source.shown} is not a model: it is not a GGUF file.")
            if have + len(piece) > source.most:
                raise OutsideError(
                    "bad_model_file",
                    f"{source.shown} sends more bytes than "
                    + (
                        "the official file has."
                        if source.hub
                        else f"the {source.most:,} that a model may have."
                    ),
                )
            if not source.hub and have // _ROOM_BYTES != (have + len(piece)) // _ROOM_BYTES:
                _check_room(part.parent, source.shown, max(whole - have, _ROOM_BYTES))
            await to_thread.run_sync(stream.write, piece)
            have += len(piece)
            progress(have, source.most if source.hub else whole)
        await to_thread.run_sync(os.fsync, stream.fileno())


def _check_hop(url: str, first: str) -> None:
    """Raises `UserError` (`bad_source`) for an address that a file of unknown content must not come from."""
    try:
        parts = urlsplit(url)
        host, user, _ = parts.hostname, parts.username, parts.port
    except ValueError:
        parts, host, user = urlsplit(""), None, None
    shown = one_line(url.partition("?")[0].rpartition("@")[2], 300)
    local = (
        parts.scheme == "http" and _is_loopback(host or "") and _is_loopback(urlsplit(first).hostname or "")
    )
    if parts.scheme != "https" and not local:
        led = f"{one_line(first.partition('?')[0], 300)} redirects to {shown}" if url != first else shown
        raise UserError(
            "bad_source",
            f"{led}, which is not an https:// address: the file could be changed on its way.",
        )
    if not host or not url.isprintable() or " " in url:
        raise UserError("bad_source", f"{shown} is not a valid address.")
    if user is not None:
        raise UserError("bad_source", f"The address of {host} holds a user name or password: remove it.")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
