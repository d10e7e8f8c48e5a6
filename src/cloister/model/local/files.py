"""The files of local models: those that Cloister knows, as data, those that were added, and where they are."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from cloister.core.errors import UserError
from cloister.core.text import one_line

OWN_WINDOW = 16_384
"""How many tokens of conversation a file that we do not know is run with."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

Progress = Callable[[int, int], None]
"""How many bytes are done, of how many; 0 if that is unknown."""


class LocalFile(msgspec.Struct, frozen=True):
    """One model's file."""

    name: str
    title: str
    license: str
    hub_path: str
    """Where the official model hub has it, below its address; of an added file, its source."""
    bytes: int
    sha256: str
    window: int = 8_192
    """How many tokens of conversation it is run with."""


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
        ),
        LocalFile(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
            "Apache-2.0",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
    )
}
"""The first is the one that `local` alone means."""


class Shelf(msgspec.Struct, frozen=True):
    """Where files of models are looked for."""

    folder: Path
    """Where those that were fetched or added are kept."""
    own: Mapping[str, str] = {}
    """Name → path of a file that the user manages."""
    files: Mapping[str, LocalFile] = msgspec.field(default_factory=lambda: FILES)

    def known(self, name: str) -> LocalFile | None:
        """The record of a model: of the catalog, or of a file that was added."""
        if (found := self.files.get(name)) or not _NAME.fullmatch(name):
            return found
        place = self.place(name)
        if not place.is_file():
            return None
        try:
            return msgspec.json.decode(place.with_suffix(".json").read_bytes(), type=LocalFile)
        except (OSError, msgspec.MsgspecError):  # put there by hand
            return LocalFile(name, name, "unknown", str(place), place.stat().st_size, "", OWN_WINDOW)

    def names(self) -> tuple[str, ...]:
        """The catalog, then what was added."""
        here = sorted(path.stem for path in self.folder.glob("*.gguf")) if self.folder.is_dir() else []
        return (*self.files, *(name for name in here if name not in self.files and self.known(name)))

    def entry(self, name: str, otherwise: str = "") -> LocalFile:
        """Raises `UserError` (`unknown_model`); `otherwise` says what else a caller can give."""
        if found := self.known(name):
            return found
        known = ", ".join(self.names()) + otherwise
        raise UserError("unknown_model", f"There is no local model {one_line(name)!r}: use {known}.")

    def catalog_name(self, name: str | None) -> str:
        """The name of a model that can be fetched; None is the first. Raises `UserError` (`unknown_model`)."""
        wanted = name or next(iter(self.files))
        if wanted not in self.files and self.known(wanted):
            raise UserError("unknown_model", f"{wanted} was added as a file: there is nothing to fetch.")
        return self.entry(wanted).name

    def window(self, name: str) -> int:
        """How many tokens of conversation a model is run with."""
        found = self.known(name)
        return OWN_WINDOW if found is None else found.window

    def place(self, name: str) -> Path:
        """Where the file of a model is, or would be."""
        return Path(self.own[name]).expanduser() if name in self.own else self.folder / f"{name}.gguf"

    def parts(self, name: str) -> tuple[Path, ...]:
        """Everything that is kept of a model, complete or not, besides a file that the user manages."""
        if not _NAME.fullmatch(name) or not self.folder.is_dir():
            return ()
        here = [self.folder / f"{name}{end}" for end in (".gguf", ".part", ".json")]
        begun = sorted(self.folder.glob(f"{name}.{'[0-9a-f]' * 12}.*"))
        return tuple(path for path in (*here, *begun) if path.exists())

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

    def new_name(self, name: str | None, source: str) -> str:
        """The name for a file to add, from its source if none is given. Raises `UserError` (`bad_name`, `name_taken`)."""
        wanted = name or re.sub(r"[^a-z0-9._-]+", "-", _stem(source).lower()).strip("-._")[:64]
        if not _NAME.fullmatch(wanted):
            raise UserError(
                "bad_name",
                f"{one_line(wanted, 80)!r} cannot name a model: use --name with up to 64 lower-case letters, digits, "
                "'.', '_' and '-', beginning with a letter or digit.",
            )
        if wanted in self.own or self.place(wanted).exists():
            raise UserError(
                "name_taken",
                f"There is a local model {wanted} already: choose another name with --name, or remove it first "
                f"(cloister model rm {wanted}).",
            )
        return wanted


NO_SHELF = Shelf(Path("/nonexistent"))
"""The catalog alone."""


def is_path(name: str) -> bool:
    return name.startswith("/") and name.endswith(".gguf")


def _stem(source: str) -> str:
    last = source.partition("?")[0].partition("#")[0].rstrip("/").rpartition("/")[2]
    return last.removesuffix(".gguf")
