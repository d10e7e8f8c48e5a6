"""The audit on its way to a collector while a server runs. The chain on disk is the queue: what fails is sent again."""

import logging
import os
import secrets
from pathlib import Path

import anyio
from anyio import to_thread

from cloister.core.errors import CloisterError
from cloister.runs.audit.entry import AuditEntry
from cloister.runs.audit.otlp import Collector, client, send
from cloister.runs.audit.reader import PAGE, AuditReader

LOOK_SECONDS = 2.0
WAIT_SECONDS = 60.0
"""How long a collector that fails is left alone at most."""

CURSOR_FILE = "audit.exported"

logger = logging.getLogger(__name__)


async def ship(path: Path, collector: Collector, look_seconds: float = LOOK_SECONDS) -> None:
    """Send every entry of the log at `path` once, in order, and go on for ever; a page at most is in memory.

    Whatever fails is logged and tried again. Where it got to is in the data directory, so that the next
    server goes on there.
    """
    cursor_file = path.with_name(CURSOR_FILE)
    failures = 0
    async with client() as http:
        while True:
            try:
                after = await to_thread.run_sync(_sent, cursor_file)
                page = await to_thread.run_sync(_page, path, after)
                if page:
                    await send(http, collector, page)
                    await to_thread.run_sync(_save, cursor_file, page[-1].number)
                if failures:
                    logger.warning("the audit is exported again")
                failures = 0
                if len(page) == PAGE:
                    continue
            except (CloisterError, OSError) as error:
                failures += 1
                if failures == 1:
                    logger.warning("the audit is not exported: %s", error)
            await anyio.sleep(min(look_seconds * 2 ** min(failures, 10), WAIT_SECONDS))


def _page(path: Path, after: int) -> tuple[AuditEntry, ...]:
    with AuditReader(path) as audit:
        return audit.page(after)


def _sent(cursor_file: Path) -> int:
    """The number of the last entry that was taken; 0 where nobody knows: twice is better than never."""
    try:
        text = cursor_file.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _save(cursor_file: Path, number: int) -> None:
    draft = cursor_file.with_name(f"{cursor_file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{number}\n")
    draft.replace(cursor_file)
