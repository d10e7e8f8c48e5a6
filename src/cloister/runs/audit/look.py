"""What the server and the command ask of the audit: a page of it, its verdict, a run's receipt."""

from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread

from cloister.core.events import Event
from cloister.core.ids import RunId
from cloister.runs.audit.entry import AuditEntry, Checkpoint
from cloister.runs.audit.key import check_public
from cloister.runs.audit.reader import AuditReader
from cloister.runs.audit.receipt import Receipt, receipt
from cloister.runs.audit.verify import Verdict, verify_file


async def audit_page(path: Path, after: int, limit: int, run: RunId | None) -> tuple[AuditEntry, ...]:
    def look() -> tuple[AuditEntry, ...]:
        with AuditReader(path) as audit:
            return audit.page(after, limit, run)

    return await to_thread.run_sync(look)


async def audit_verdict(path: Path, key: str | None) -> Verdict:
    """Raises `UserError` (`bad_key`)."""
    pinned = None if key is None else check_public(key)

    return await to_thread.run_sync(verify_file, path, pinned)


async def run_receipt(path: Path, run: RunId, events: Sequence[Event]) -> Receipt:
    """The receipt of a run, with the signature over its end once that is there."""

    def look() -> Checkpoint | None:
        with AuditReader(path) as audit:
            return audit.seal(run)

    return receipt(events, await to_thread.run_sync(look))
