"""What the audit adds to an append: events with an entry against events without, in turns, on the same log.

Also the part that is the audit's own inside a transaction, without the disk; and how fast a chain is verified.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import anyio

from cloister.core.events import ActionDecided, AnyBody, FinishRefused, ToolReturned
from cloister.core.ids import OwnerId
from cloister.core.requests import NewRun
from cloister.log.audit.chain import logged
from cloister.log.sqlite import audit as audit_tables
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.reader import AuditReader
from cloister.log.sqlite.schema import open_to_write
from cloister.log.sqlite.transactions import encoded

ROUNDS = int(os.environ.get("ROUNDS", "400"))
TEXT = "a line of output\n" * 20

WITHOUT: tuple[AnyBody, ...] = (FinishRefused(1, TEXT),)
WITH: tuple[AnyBody, ...] = (ToolReturned(1, "t1", "bash", True, TEXT, 0.25, 0),)
"""The same size, so that only the entry differs."""


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        path = Path(name) / "cloister.db"
        times: dict[bool, list[float]] = {True: [], False: []}
        async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
            run, _ = await backbone.admit(NewRun("bench", "/nowhere"), "bench")
            fence = await backbone.claim(OwnerId("o-1"), run)
            assert fence is not None
            for turn in range(ROUNDS * 2):
                audited = turn % 2 == 1
                started = time.perf_counter()
                await backbone.append(fence, WITH if audited else WITHOUT)
                times[audited].append(time.perf_counter() - started)
        plain, audited_ms = (statistics.median(times[kind]) * 1000 for kind in (False, True))
        print(
            f"append without an entry   p50 {plain:.3f} ms   with one p50 {audited_ms:.3f} ms   "
            f"added {audited_ms - plain:.3f} ms   (goal: at most 0.5 ms)"
        )
        inside(path, run)
        with AuditReader(path) as audit:
            started = time.perf_counter()
            verdict = audit.verify()
            took = time.perf_counter() - started
        assert verdict.entries > ROUNDS
        print(f"verify   {verdict.entries / took:,.0f} entries with their events per second")


def inside(path: Path, run: str) -> None:
    """Hash, link and insert, and the hash over the log, in a transaction that is thrown away."""
    body = ActionDecided(1, "t1", "bash: python3 -m pytest -q", "allow", "tool:bash (built-in)")
    data = encoded(body).data
    db = open_to_write(path)
    took: list[float] = []
    db.execute("BEGIN IMMEDIATE")
    for seq in range(1_000_000, 1_000_000 + ROUNDS):
        started = time.perf_counter()
        audit_tables.enter(db, 1, run, [logged(seq, 1.0, body, data)])
        took.append(time.perf_counter() - started)
    db.execute("ROLLBACK")
    db.close()
    print(f"all of the audit inside the transaction   p50 {statistics.median(took) * 1000:.3f} ms")


if __name__ == "__main__":
    anyio.run(main)
