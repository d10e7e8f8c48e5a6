"""How fast this machine's time stamp counter runs, measured once and kept: images are made for one speed."""

from contextlib import suppress
from pathlib import Path

from cloister.core.errors import HostError
from cloister.sandbox._spawn import capture

_MEASURE_SECONDS = 30.0
_TOLERANCE = 0.005
"""What two measurements on the same machine may differ by; more than that is another machine."""


async def counter_khz(jail: Path, memory: Path) -> int:
    """The counter's speed. Raises `HostError` (`no_counter`)."""
    shown = await capture([str(jail), "-t"], env={}, seconds=_MEASURE_SECONDS)
    if not shown.ok or not shown.out.strip().isdigit():
        raise HostError("no_counter", "The speed of this machine's time stamp counter could not be measured.")
    return _remember(int(shown.out), memory)


def _remember(measured: int, memory: Path) -> int:
    with suppress(OSError, ValueError):
        known = int(memory.read_text())
        if abs(known - measured) <= _TOLERANCE * measured:
            return known
    memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    memory.write_text(f"{measured}\n")
    return measured
