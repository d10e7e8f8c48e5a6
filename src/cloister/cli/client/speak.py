"""What a person adds to a run's log, whoever drives it: the owner notices."""

from pathlib import Path
from typing import TYPE_CHECKING

from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.core.events import Event, FromOutside
    from cloister.core.ids import RunId


def typed(text: str) -> str:
    """An argument as text: bytes that are not UTF-8 arrive as lone surrogates and become replacement signs."""
    return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")


def add(settings: "Settings", run: "RunId", body: "FromOutside") -> "Event":
    """Append `body` durably. Raises `UserError` (`run_finished`)."""
    import anyio

    return anyio.run(_add, settings.data_dir, run, body)


async def _add(data_dir: Path, run: "RunId", body: "FromOutside") -> "Event":
    from cloister.log.sqlite.backbone import open_backbone
    from cloister.sandbox.liveness import Owners

    lives = Owners(data_dir / "owners").lives
    async with open_backbone(data_dir / "cloister.db", owner_lives=lives) as backbone:
        return await backbone.append_outside(run, body)


def enter(settings: "Settings", kind: str, detail: dict[str, object]) -> None:
    """Enter into the audit what a person did with this command, durably."""
    import anyio

    anyio.run(_enter, settings, kind, detail)


async def _enter(settings: "Settings", kind: str, detail: dict[str, object]) -> None:
    from cloister.log.sqlite.backbone import open_backbone

    async with open_backbone(settings.log_path, owner_lives=lambda owner: True) as backbone:
        await backbone.note(kind, settings.user, detail)


def not_empty(text: str) -> str:
    if not text.strip():
        raise UserError("empty", "There is nothing to say: give the text after the run.")
    return text
