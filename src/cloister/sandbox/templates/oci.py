"""Images as bytes: names, download, metadata, and layers decompressed by a program that can do nothing else.

skopeo fetches by digest, as a user without privileges, without a home directory and without the registry logins of this
machine. Nothing here reads a layer's archive: the guest unpacks it, inside a sandbox.
"""

import ctypes
import fcntl
import os
import re
import shutil
import socket
import struct
import tarfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import spawn
from cloister.sandbox.local.guest_build import build as build_program
from cloister.sandbox.local.spec import mount_point_here
from cloister.sandbox.templates.building import Build

_IMAGE = "image"
"""The image's name in the layout that is made of it."""

_BLOB_BYTES = 4_194_304
_LAYERS_MOST = 512
_CHUNK = 262_144
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_KEPT, _ENV_CHARS = 256, 32_768
_CLONE_NEWNET, _SIOCSIFFLAGS, _IFF_UP = 0x40000000, 0x8914, 1
_JAILED_ID = 0x6FFF0000
"""Just below the ids of sandboxes."""

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    r"(?:(?P<host>(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?)/)?"
    rf"(?P<path>{_PART}(?:/{_PART})*)(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?P<digest>@sha256:[0-9a-f]{{64}})?"
)
_NAME_CHARS = 512
_TRANSPORTS = frozenset(
    (
        "containers-storage",
        "dir",
        "docker-archive",
        "docker-daemon",
        "oci",
        "oci-archive",
        "ostree",
        "sif",
        "tarball",
    )
)
"""Words before a colon by which tools mean images of this machine; as names of images they would mislead."""

_COMPRESSED = (
    (b"\x1f\x8b", ("gzip", "-dc")),
    (b"BZh", ("bzip2", "-dc")),
    (b"\xfd7zXZ\x00", ("xz", "-dc", "--memlimit=268435456")),
    (b"\x28\xb5\x2f\xfd", ("zstd", "-dc")),
)


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[_Descriptor, ...]


class _Manifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: tuple[_Descriptor, ...] = ()


class _Config(msgspec.Struct, frozen=True, rename="pascal"):
    env: tuple[str, ...] | None = None
    user: str | None = None
    working_dir: str | None = None


class _ImageFile(msgspec.Struct, frozen=True):
    config: _Config | None = None


class Image(msgspec.Struct, frozen=True):
    """A downloaded image."""

    digest: str
    env: dict[str, str]
    user: str | None
    cwd: str
    layers: tuple[Path, ...]
    """Blobs of the layout, lowest first, perhaps compressed."""


def registry_name(image: str) -> str:
    """The name of an image in a registry, for skopeo. Raises `UserError` (`no_image`).

    Paths and other transports (`oci:`, `dir:`, `docker-archive:` …) are no such names: a repository may not choose
    files of this machine.
    """
    bare = image.removeprefix("docker://")
    if len(bare) > _NAME_CHARS or not _NAME.fullmatch(bare) or bare.partition(":")[0] in _TRANSPORTS:
        raise UserError(
            "no_image",
            f"{one_line(image, 100)} is not the name of an image in a registry: write registry/name:tag.",
        )
    return f"docker://{bare}"


def registry_host(image: str) -> str | None:
    """The registry in an image's name, with its port; None when the name has none."""
    found = _NAME.fullmatch(image.removeprefix("docker://"))
    host = found["host"] if found else None
    return host if host and (host == "localhost" or re.search(r"[.:\[]", host)) else None


def source_of(image: str) -> str:
    """The name, for skopeo, of an image that the operator chose: in a registry, or a path. Raises as `registry_name`."""
    if not image.startswith(("/", "./", "../", "~")):
        return registry_name(image)
    path = Path(image).expanduser()
    # A tag may follow the directory of a layout.
    folder, _, tag = image.rpartition(":")
    if not path.exists() and folder and Path(folder).is_dir():
        path = Path(folder)
    else:
        tag = ""
    if ":" in str(path):
        raise UserError("no_image", f"{one_line(image)} has a colon in its path: move it elsewhere.")
    if (path / "oci-layout").is_file():
        return f"oci:{path.absolute()}" + (f":{tag}" if tag else "")
    if path.is_file():
        return f"{_archive_kind(path)}:{path.absolute()}"
    raise UserError("no_image", f"{one_line(image)} is neither an OCI layout nor a tar file of an image.")


def _archive_kind(path: Path) -> str:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.removeprefix("./") == "oci-layout":
                    return "oci-archive"
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise UserError(
            "no_image", f"{path} is not a tar file of an image: {one_line(str(error))}."
        ) from None
    return "docker-archive"


@dataclass(frozen=True, slots=True)
class Network:
    """A network namespace that has nothing but a proxy on its loopback."""

    namespace: int
    """Its descriptor in this process."""
    port: int

    def enter(self, work: Build) -> list[str]:
        """Go's client does not send requests for loopback addresses to a proxy: inside, they reach nothing."""
        proxy = f"http://127.0.0.1:{self.port}"
        inside = [work.need("nsenter", "util-linux"), f"--net=/proc/{os.getpid()}/fd/{self.namespace}", "--"]
        return [*inside, work.need("env", "coreutils"), f"HTTP_PROXY={proxy}", f"HTTPS_PROXY={proxy}"]


def empty_network(*also: tuple[str, int]) -> tuple[list[socket.socket], int]:
    """Sockets that listen on the loopback of a new network namespace, and the descriptor of the namespace.

    One is on a free port, followed by those of `also` that the machine has. Raises `HostError` (`template_failed`).
    """
    made: list[tuple[list[socket.socket], int] | OSError] = []

    def make() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
            namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            taken: list[socket.socket] = []
            for address, port in also:
                with suppress(OSError):  # a machine without IPv6 has no ::1
                    family = socket.AF_INET6 if ":" in address else socket.AF_INET
                    taken.append(socket.create_server((address, port), family=family))
            made.append(([socket.create_server(("127.0.0.1", 0)), *taken], namespace))
        except OSError as error:
            made.append(error)

    # A thread of its own: it stays in the namespace.
    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    if isinstance(made[0], OSError):
        raise HostError("template_failed", f"Images cannot be downloaded here: {made[0].strerror}.")
    return made[0]


async def resolve(
    work: Build, source: str, *, tls: bool, login: bool = False, network: Network | None = None
) -> str:
    """`source` by digest, so that a tag that moves changes nothing afterwards."""
    name = source.removeprefix("docker://")
    found = _NAME.fullmatch(name)
    if not source.startswith("docker://") or found is None:
        return source
    plain = name[: found.end("path")]
    if found["digest"]:
        return f"docker://{plain}{found['digest']}"
    lines: list[str] = []
    work.tell(None, f"looking up {one_line(name, 80)}")
    async with _download(work, login=login) as place:
        argv = [
            *_unprivileged(work, network),
            "inspect",
            _LOGINS,
            f"--tls-verify={'true' if tls else 'false'}",
        ]
        await work.run([*argv, "--no-tags", "--format={{.Digest}}", "--", source], lines.append, cwd=place)
    digest = next((line.strip() for line in lines if _DIGEST.fullmatch(line.strip())), None)
    if digest is None:
        raise HostError("template_failed", f"The registry has no digest of {one_line(name, 80)}.")
    return f"docker://{plain}@{digest}"


async def fetch(
    work: Build, source: str, at: Path, *, tls: bool, login: bool = False, network: Network | None = None
) -> Image:
    """Download an image to the new directory `at`. Raises `HostError` (`template_failed`), `UserError` (`bad_image`)."""
    work.tell(None, f"fetching {one_line(source.removeprefix('docker://'), 80)}")
    # The operator's own files may be readable by root only.
    remote = source.startswith("docker://")
    program = _unprivileged(work, network) if remote else _skopeo(work)
    verify = f"--src-tls-verify={'true' if tls else 'false'}"
    async with _download(work, login=login) as place:
        argv = [*program, "copy", _LOGINS, "--retry-times=2", verify, "--", source, f"oci:{_IMAGE}:{_IMAGE}"]
        await work.run(argv, cwd=place)
        (place / _IMAGE).rename(at)
    return await anyio.to_thread.run_sync(read_layout, at)


_LOGINS = "--authfile=logins.json"


@asynccontextmanager
async def _download(work: Build, *, login: bool) -> AsyncGenerator[Path]:
    """A directory of the unprivileged user, with the logins that the operator put beside the recipes, or none."""
    chosen, place = work.home.parent / "registries.json", work.home / "download"
    place.mkdir(mode=0o700)
    logins = place / "logins.json"
    logins.write_bytes(chosen.read_bytes() if login and chosen.is_file() else b"{}")
    for path in (place, logins):
        os.chown(path, _JAILED_ID, _JAILED_ID)
    try:
        yield place
    finally:
        with anyio.CancelScope(shield=True):
            await work.remove(place)


def _skopeo(work: Build) -> list[str]:
    return [work.need("skopeo", "skopeo"), "--insecure-policy", "--override-os=linux"]


def _unprivileged(work: Build, network: Network | None) -> list[str]:
    """skopeo as a user of its own that owns the download alone: a registry's answers are a stranger's.

    skopeo looks at every directory above its target, and that user may not see the data directory. In a mount
    namespace of its own the download is at /mnt.
    """
    place = [work.need("unshare", "util-linux"), "--mount", "--propagation=private", "--", "/bin/sh", "-ec"]
    move = ['mount --bind . /mnt; cd /mnt; exec "$@"', "sh"]
    user = (f"--reuid={_JAILED_ID}", f"--regid={_JAILED_ID}", "--clear-groups")
    drops = ("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")
    entered = network.enter(work) if network else []
    return [*entered, *place, *move, work.need("setpriv", "util-linux"), *user, *drops, "--", *_skopeo(work)]


def read_layout(layout: Path) -> Image:
    """The only image in a layout. Raises `UserError` (`bad_image`)."""
    try:
        index = msgspec.json.decode(_bytes(layout / "index.json"), type=_Index)
        digest = index.manifests[0].digest
        manifest = msgspec.json.decode(_blob(layout, digest), type=_Manifest)
        config = (
            msgspec.json.decode(_blob(layout, manifest.config.digest), type=_ImageFile).config or _Config()
        )
        if len(manifest.layers) > _LAYERS_MOST:
            raise ValueError("it has too many layers")
        layers = tuple(_blob_path(layout, layer.digest) for layer in manifest.layers)
    except (msgspec.MsgspecError, OSError, IndexError, ValueError) as error:
        raise UserError("bad_image", f"The image cannot be read: {one_line(str(error), 200)}.") from None
    env: dict[str, str] = {}
    left = _ENV_CHARS
    for line in (config.env or ())[:_ENV_KEPT]:
        name, separator, value = line.partition("=")
        left -= len(value)
        if separator and _ENV_NAME.fullmatch(name) and "\0" not in value and left >= 0:
            env[name] = value
    cwd = (config.working_dir or "/").partition("\0")[0]
    return Image(digest, env, config.user or None, cwd, layers)


def _blob_path(layout: Path, digest: str) -> Path:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ValueError("a digest of an unknown kind")
    return layout / "blobs" / "sha256" / found[1]


def _blob(layout: Path, digest: str) -> bytes:
    return _bytes(_blob_path(layout, digest))


def _bytes(path: Path) -> bytes:
    """A small file of a layout. SAFETY: the program that wrote it may have put a link or a pipe there."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        data = file.read(_BLOB_BYTES + 1)
    if len(data) > _BLOB_BYTES:
        raise ValueError("its description is too large")
    return data


class Jail(msgspec.Struct, frozen=True):
    """Decompresses in a process without privileges: an own user, no network, no files but the system's programs."""

    program: Path
    place: str
    search: str

    @classmethod
    async def prepare(cls, data_dir: Path, search: str) -> "Jail":
        """Raises `HostError` (`no_compiler`, `no_mount_point`)."""
        return cls(await build_program("jail", data_dir / "programs"), mount_point_here([data_dir]), search)

    @asynccontextmanager
    async def plain(self, path: Path) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Stream a regular file, decompressed if it is compressed. Raises `HostError` (`no_TOOL`)."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            first = os.pread(descriptor, 8, 0)
            argv = next((argv for magic, argv in _COMPRESSED if first.startswith(magic)), None)
            if argv is None:
                yield _read(descriptor)
                return
            jail = [str(self.program), "-p", str(os.getpid()), "-u", str(_JAILED_ID), "-m", self.place, "--"]
            inside = [_program(argv[0], self.search), *argv[1:]]
            async with spawn([*jail, *inside], env={"PATH": self.search}, stdin=descriptor) as process:
                yield _decompressed(process)
        finally:
            os.close(descriptor)


def _program(name: str, search: str) -> str:
    found = shutil.which(name, path=search)
    if found is None:
        raise HostError(f"no_{name}", f"{name} is not installed: run `apt-get install {name}`.")
    return str(Path(found).resolve())


async def _read(descriptor: int) -> AsyncIterator[bytes]:
    offset = 0
    while data := await anyio.to_thread.run_sync(os.pread, descriptor, _CHUNK, offset):
        offset += len(data)
        yield data


async def _decompressed(process: anyio.abc.Process) -> AsyncIterator[bytes]:
    if process.stdout is None or process.stderr is None:
        return
    async for data in process.stdout:
        yield data
    said = b""
    async for data in process.stderr:
        said = (said + data)[:1_000]
    if await process.wait() != 0:
        raise UserError("bad_archive", f"It cannot be decompressed: {one_line(decode(said), 200)}.")
