"""Images assembled by hand, byte by byte, so that a test can say anything an image can say."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from cloister.testing import _spawn
from cloister.testing._spawn import output_of

BUSYBOX = Path("/bin/busybox")
APPLETS = (
    *("sh", "ls", "cat", "id", "echo", "env", "stat", "test", "touch", "mkdir", "rm", "cp", "sed"),
    *("printf",),
)


def member(name: str, data: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of a layer; `more` are fields of TarInfo."""
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    for key, value in more.items():
        setattr(info, key, value)
    info.size = len(data)
    return info, data


def folder(name: str, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    more.setdefault("mode", 0o755)
    return member(name, b"", type=tarfile.DIRTYPE, **more)


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=to)


def busybox() -> list[tuple[tarfile.TarInfo, bytes]]:
    """The smallest system that can run something."""
    return [
        folder("bin"),
        folder("etc"),
        member("bin/busybox", BUSYBOX.resolve().read_bytes(), mode=0o755),
        *(link(f"bin/{name}", "busybox") for name in APPLETS),
    ]


def programs(*paths: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Programs of this machine at the same place, with the libraries they load."""
    wanted = dict.fromkeys(paths)
    for path in paths:
        for line in output_of(("ldd", str(path)), Path("/"), {"PATH": "/usr/bin:/bin"}).decode().splitlines():
            wanted.update(dict.fromkeys(Path(word) for word in line.split() if word.startswith("/")))
    return [member(str(path)[1:], path.read_bytes(), mode=0o755) for path in wanted]


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def layout(at: Path, *layers: bytes, **config: Any) -> Path:
    """An OCI layout with one image tagged `latest`; `config` is what the image says of itself."""
    blobs = at / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(x).hexdigest()}" for x in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(described).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [put(data, "application/vnd.oci.image.layer.v1.tar") for data in layers],
    }
    entry = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (at / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (at / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return at


def push(image: Path, *to: str) -> None:
    """Copy the image of a layout elsewhere, as skopeo names it."""
    argv = ("skopeo", "--insecure-policy", "copy", "--quiet", f"oci:{image}:latest", *to)
    output_of(argv, image, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"})


# Small git repositories for tests, made by git itself and independent of anybody's configuration.


_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


class SampleRepo:
    """A repository with a working tree at `path`, made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists():
            self.git("init", "--quiet", "--initial-branch=main", ".")

    def git(self, *args: str, stdin: bytes = b"") -> str:
        """What git prints, without the last newline."""
        return _spawn.output_of(("git", *args), self.path, _ENV, stdin).decode().removesuffix("\n")

    def write(self, name: str, text: str = "") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, message: str = "Change") -> str:
        """Commit everything, also nothing; returns the commit."""
        self.git("add", "--all", "--force", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def branches(self) -> dict[str, str]:
        """Branch → commit."""
        listed = self.git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
        return dict(line.split(" ") for line in listed.splitlines())

    def state(self) -> tuple[str, ...]:
        """What delivering a change must leave alone: HEAD, the index, and the tree."""
        status = self.git("status", "--porcelain", "--untracked-files=all")
        return ((self.path / ".git" / "HEAD").read_text(), self.git("ls-files", "--stage"), status)
