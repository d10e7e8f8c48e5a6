"""Real output of tools, in `captured/`, one folder for each family of tools. File names are unique across folders."""

from pathlib import Path

CAPTURED = Path(__file__).parent / "captured"


def files(pattern: str = "*") -> list[Path]:
    """The captured files whose name matches."""
    return sorted(path for path in CAPTURED.rglob(pattern) if path.is_file())


def captured(name: str) -> bytes:
    (path,) = files(name)
    return path.read_bytes()
