"""Every way of shortening or editing the audit that we know: `cloister audit verify` finds it, or the guide says why not."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import pytest
from tests.cli.client import forked
from tests.log.audit.test_audit import begun, opened, whole_run

from cloister.core import events as e
from cloister.core.ids import RunId
from cloister.log.audit.entry import AuditEntry, Checkpoint, entry_hash, extended, microseconds, signed_bytes
from cloister.log.audit.keys import HostKey
from cloister.log.sqlite.backbone import open_backbone

ENTRY = ", ".join(AuditEntry.__struct_fields__)
ENDS = "kind = 'RunFinished'"


def verify(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return audit(data, "verify", *options)


def audit(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`cloister audit …` as a person types it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLOISTER_")}
    env = kept | {"CLOISTER_DATA_DIR": str(data), "PYTHONWARNINGS": "error"}
    return forked.run(("audit", *words), cwd=Path.cwd(), env=env)


class Past(NamedTuple):
    """A data directory with a history, and what an attacker may have kept of it or brought along."""

    data: Path
    before: Path
    """A copy from before the last run."""
    beginning: Path
    """A copy from before the first run."""
    other: Path
    """The data directory of another machine."""
    exported: Path
    """The heads that left the machine."""
    runs: tuple[RunId, RunId, RunId, RunId]
    """Three that ended; one in progress."""


def make(root: Path) -> Past:
    data, before, beginning, other = (root / name for name in ("data", "before", "beginning", "other"))
    for directory in (data, other):
        directory.mkdir()
    exported = root / "heads.jsonl"

    def export() -> None:
        slots = (data / "cloister.head").read_text().splitlines()
        with exported.open("a") as file:
            file.write(max(slots, key=lambda line: json.loads(line)["number"]).strip() + "\n")

    async def work() -> tuple[RunId, RunId, RunId, RunId]:
        path = data / "cloister.db"
        async with opened(path) as backbone:
            await backbone.note("Login", "ada", {})
        export()
        shutil.copytree(data, beginning)
        async with opened(path) as backbone:
            first = await whole_run(backbone)
            await backbone.note("ApiCall", "ada", {"method": "POST", "route": "/v1/runs", "status": 201})
            second = await whole_run(backbone, "grace")
            await backbone.rotate_audit_key()
            live = (await begun(backbone)).run
        export()
        shutil.copytree(data, before)
        async with opened(path) as backbone:
            last = await whole_run(backbone, "mallory")
            await backbone.append_outside(live, e.PromptReceived("go on", "ada"))
            await backbone.note("LoginRefused", "", {"count": 3})
        export()
        async with opened(other / "cloister.db") as backbone:
            for _ in range(4):
                await whole_run(backbone, "eve")
        return first, second, last, live

    return Past(data, before, beginning, other, exported, anyio.run(work))


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    made = make(tmp_path_factory.mktemp("past"))
    done = verify(made.data, "--against", str(made.exported))
    assert done.returncode == 0, done.stdout
    yield made


@pytest.fixture
def data(past: Past, tmp_path: Path) -> Path:
    return Path(shutil.copytree(past.data, tmp_path / "data"))


@contextmanager
def editing(data: Path, *, triggers: bool = True) -> Generator[sqlite3.Connection]:
    """The database without its triggers, which are put back at the end: an attacker covers the tracks."""
    db = sqlite3.connect(data / "cloister.db", isolation_level=None)
    try:
        kept = db.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type = 'trigger' OR name = 'audit_of_runs'"
        ).fetchall()
        for kind, name, _ in kept:
            db.execute(f"DROP {kind} {name}")
        yield db
        for _, _, text in kept if triggers else ():
            db.execute(text)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()


def forge(db: sqlite3.Connection) -> None:
    """Make all hashes and numbers right again, as one can without the key; wrong signatures are removed."""
    logs: dict[tuple[str, int], str] = {}
    for num, name in db.execute("SELECT num, id FROM runs").fetchall():
        log, last = "0" * 64, 0
        for seq, at, body in db.execute(
            "SELECT seq, at, body FROM events WHERE run = ? ORDER BY seq", (num,)
        ):
            log, last = extended(log, seq, microseconds(at), body), seq
            logs[name, seq] = log
        db.execute("UPDATE runs SET log = ?, last_seq = ? WHERE num = ?", (log, last, num))
    previous, renumbered = "0" * 64, 0
    entries = [AuditEntry(*row) for row in db.execute(f"SELECT {ENTRY} FROM audit ORDER BY number")]
    db.execute("DELETE FROM audit")
    for renumbered, entry in enumerate(entries, start=1):
        log = None if entry.run is None else logs.get((entry.run, entry.seq or 0), entry.log)
        made = msgspec.structs.replace(entry, number=renumbered, log=log, previous=previous)
        made = msgspec.structs.replace(made, hash=entry_hash(made))
        previous = made.hash
        db.execute(f"INSERT INTO audit ({ENTRY}) VALUES (?,?,?,?,?,?,?,?,?,?)", msgspec.structs.astuple(made))
    db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'audit'", (renumbered,))
    db.execute(
        "DELETE FROM audit_checkpoints WHERE NOT EXISTS "
        "(SELECT 1 FROM audit a WHERE a.number = audit_checkpoints.number AND a.hash = audit_checkpoints.hash)"
    )
    for place, (old,) in enumerate(
        db.execute("SELECT id FROM audit_checkpoints ORDER BY id").fetchall(), start=1
    ):
        db.execute("UPDATE audit_checkpoints SET id = ? WHERE id = ?", (place, old))
    db.execute(
        "UPDATE sqlite_sequence SET seq = (SELECT COUNT(*) FROM audit_checkpoints) WHERE name = 'audit_checkpoints'"
    )


def remove_run(db: sqlite3.Connection, run: str) -> None:
    for statement in (
        "DELETE FROM events WHERE run = (SELECT num FROM runs WHERE id = ?)",
        "DELETE FROM runs WHERE id = ?",
        "DELETE FROM audit WHERE run = ?",
        "DELETE FROM audit_checkpoints WHERE run = ?",
    ):
        db.execute(statement, (run,))


def excuse(db: sqlite3.Connection, kind: str, **detail: object) -> None:
    """Append an entry that would explain a missing signature."""
    number = db.execute("SELECT MAX(number) FROM audit").fetchone()[0] + 1
    text = json.dumps(detail, separators=(",", ":"))
    row = (number, 1, kind, None, None, "", text, None, "", "")
    db.execute(f"INSERT INTO audit ({ENTRY}) VALUES (?,?,?,?,?,?,?,?,?,?)", row)


Manipulation = Callable[[Path, Past], None]
TABLE: dict[str, tuple[Manipulation, str]] = {}
"""Name → what is done, and a part of the finding."""


def found_as(why: str) -> Callable[[Manipulation], Manipulation]:
    def register(work: Manipulation) -> Manipulation:
        TABLE[work.__name__.replace("_", " ")] = (work, why)
        return work

    return register


def sql(name: str, why: str, *statements: str, forged: bool = False) -> None:
    def work(data: Path, past: Past) -> None:
        del past
        with editing(data) as db:
            for statement in statements:
                db.execute(statement)
            if forged:
                forge(db)

    TABLE[name] = (work, why)


# Rows that lists show.
for column, value in {
    "outcome": "'green'",
    "reason": "'it was fine'",
    "prompt": "'something else'",
    "repo": "'/elsewhere'",
    "who": "'eve'",
    "model": "'cheap:model'",
    "state": "'queued'",
    "owner": "'o-evil'",
    "epoch": "7",
    "key": "'k'",
    "created_at": "created_at - 86400",
    "updated_at": "updated_at + 86400",
}.items():
    change = "'failed'" if column == "outcome" else value
    sql(f"row: {column}", "The list of runs was edited", f"UPDATE runs SET {column} = {change} WHERE num = 1")
sql(
    "row: a run in progress",
    "The list of runs was edited",
    "UPDATE runs SET prompt = 'x' WHERE state = 'running'",
)
sql("row: outcome removed", "The list of runs was edited", "UPDATE runs SET outcome = NULL WHERE num = 2")
sql(
    "row: a run that never was",
    "is listed and has no events",
    "INSERT INTO runs SELECT 99, 'r-000000000000', NULL, state, outcome, reason, prompt, repo, model, created_at, "
    "updated_at, 0, owner, epoch, who, '' FROM runs WHERE num = 1",
)
sql("row: renamed", "is missing", "UPDATE runs SET id = 'r-000000000000' WHERE num = 1")
sql("row: removed", "which was removed", "DELETE FROM runs WHERE num = 1")
sql("row: last event", "should end with", "UPDATE runs SET last_seq = last_seq + 1 WHERE num = 1")
sql("row: hash of the log", "The end of the log", f"UPDATE runs SET log = '{'0' * 64}' WHERE num = 1")
sql(
    "row: order of the list",
    "The order of the list",
    *(
        f"UPDATE {table} SET {name} = {new} WHERE {name} = {old}"
        for table, name in (("events", "run"), ("runs", "num"))
        for old, new in ((1, 98), (2, 1), (98, 2))
    ),
)

# Events.
sql(
    "event: edited",
    "an event was edited",
    "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'deny', 'allow') AS BLOB) WHERE run = 1",
)
sql("event: one byte", "was edited", "UPDATE events SET body = CAST(body || ' ' AS BLOB) WHERE id = 3")
sql("event: not JSON", "is no event", "UPDATE events SET body = x'00' WHERE id = 4")
sql("event: time", "was edited", "UPDATE events SET at = at + 1 WHERE id = 5")
sql("event: time below the rounding", "The time of event", "UPDATE events SET at = at + 2.4e-7 WHERE id = 5")
sql(
    "event: time below the rounding, all of a run",
    "The time of event",
    "UPDATE events SET at = at + 2.4e-7 WHERE run = 4",
)
sql("event: deleted", "was removed", "DELETE FROM events WHERE id = 6")
sql(
    "event: last of a run deleted",
    "was removed",
    "DELETE FROM events WHERE run = 1 AND seq = (SELECT MAX(seq) FROM events WHERE run = 1)",
)
sql("event: all deleted", "was removed", "DELETE FROM events")
sql(
    "event: appended",
    "should end with",
    "INSERT INTO events (run, seq, at, body) SELECT run, MAX(seq) + 1, at, body FROM events WHERE run = 1",
)
sql(
    "event: two swapped",
    "an event was edited",
    "UPDATE events SET body = (SELECT body FROM events e2 WHERE e2.run = 1 AND e2.seq = 13 - events.seq) "
    "WHERE run = 1 AND seq IN (6, 7)",
)
sql("event: renumbered", "was removed", "UPDATE events SET seq = seq + 100 WHERE run = 1 AND seq > 5")
sql("event: moved to another run", "was removed", "UPDATE events SET run = 2, seq = 999 WHERE id = 5")
sql(
    "event: of no run",
    "events of a run that was removed",
    "INSERT INTO events (run, seq, at, body) SELECT 77, 1, at, body FROM events WHERE id = 1",
)
sql(
    "event: edited, all hashes right",
    "not the one",
    "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), '.git/x', 'docs/y') AS BLOB) WHERE run = 2",
    forged=True,
)
sql(
    "event: an action removed, all hashes right",
    "The signature over the end",
    "DELETE FROM audit WHERE run = (SELECT id FROM runs WHERE num = 4) AND seq = 9",
    "DELETE FROM events WHERE run = 4 AND seq = 9",
    "UPDATE audit SET seq = seq - 1 WHERE run = (SELECT id FROM runs WHERE num = 4) AND seq > 9",
    "UPDATE events SET seq = seq - 1 WHERE run = 4 AND seq > 9",
    forged=True,
)

# Entries.
for column, value in {
    "at_us": "at_us + 1",
    "kind": "'Login'",
    "run": "NULL",
    "seq": "seq + 100",
    "who": "'eve'",
    "detail": "'{}'",
    "log": f"'{'0' * 64}'",
    "previous": f"'{'0' * 64}'",
    "hash": f"'{'0' * 64}'",
}.items():
    sql(f"entry: {column}", "ntry", f"UPDATE audit SET {column} = {value} WHERE number = 9")
sql("entry: deleted", "Entry 9 was removed", "DELETE FROM audit WHERE number = 9")
sql("entry: first deleted", "Entry 1 was removed", "DELETE FROM audit WHERE number = 1")
sql("entry: several deleted", "Entry 9 to 12 was removed", "DELETE FROM audit WHERE number BETWEEN 9 AND 12")
sql(
    "entry: deleted and renumbered",
    "does not follow",
    "DELETE FROM audit WHERE number = 9",
    "UPDATE audit SET number = number - 1 WHERE number > 9",
)
sql(
    "entry: deleted, all hashes right",
    "The signature over the end",
    "DELETE FROM audit WHERE kind = 'ApiCall'",
    forged=True,
)
sql(
    "entry: edited, all hashes right",
    "not the one",
    "UPDATE audit SET who = 'eve' WHERE number = 9",
    forged=True,
)
sql(
    "entry: two swapped",
    "ntry 9",
    "UPDATE audit SET number = 9999 WHERE number = 9",
    "UPDATE audit SET number = 9 WHERE number = 10",
    "UPDATE audit SET number = 10 WHERE number = 9999",
)
sql(
    "entry: all deleted",
    "The audit is empty",
    "DELETE FROM audit",
    "DELETE FROM audit_checkpoints",
    "DELETE FROM sqlite_sequence",
)
sql("entry: end cut off", "its end was cut off", "DELETE FROM audit WHERE number > 60")
sql(
    "entry: end cut off, all counters right",
    "signed head is entry",
    f"DELETE FROM audit WHERE number > (SELECT MAX(number) FROM audit WHERE {ENDS})",
    forged=True,
)
sql(
    "entry: last one cut off",
    "signed head is entry",
    "DELETE FROM audit WHERE number = (SELECT MAX(number) FROM audit)",
    forged=True,
)
sql("entry: counter lowered", "once had entry", "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'audit'")
sql("entry: counter removed", "once had entry", "DELETE FROM sqlite_sequence WHERE name = 'audit'")
sql(
    "entry: a message in a run in progress, all hashes right",
    "not the one",
    "UPDATE audit SET who = 'eve' WHERE kind = 'PromptReceived' AND number = (SELECT MAX(number) FROM audit WHERE kind = 'PromptReceived')",
    forged=True,
)


@found_as("was edited")
def entry_appended_with_a_wrong_hash(data: Path, past: Past) -> None:
    with editing(data) as db:
        excuse(db, "Login")


# Signatures.
sql(
    "signature: one removed",
    "The signature over the end of run",
    "DELETE FROM audit_checkpoints WHERE id = 2",
)
sql("signature: the first removed", "The signature over entry", "DELETE FROM audit_checkpoints WHERE id = 1")
sql("signature: all removed", "No signature is left", "DELETE FROM audit_checkpoints")
sql(
    "signature: of a server's end removed",
    "A signature of the audit was removed",
    "DELETE FROM audit_checkpoints WHERE run IS NULL AND id > 1",
)
sql(
    "signature: one byte",
    "is not valid",
    "UPDATE audit_checkpoints SET signature = replace(signature, 'a', 'b') WHERE id = 2",
)
sql("signature: moved", "is not valid", "UPDATE audit_checkpoints SET number = number - 1 WHERE id = 2")
sql(
    "signature: of another run",
    "is not valid",
    "UPDATE audit_checkpoints SET run = (SELECT id FROM runs WHERE num = 2) WHERE id = 2",
)
sql("signature: time", "is not valid", "UPDATE audit_checkpoints SET at_us = at_us + 1 WHERE id = 2")
sql(
    "signature: key", "is not valid", f"UPDATE audit_checkpoints SET key = 'ed25519:{'ab' * 32}' WHERE id = 2"
)


@found_as("though the key worked before")
def unsigned_entry_excuses_an_edited_run(data: Path, past: Past) -> None:
    with editing(data) as db:
        db.execute("UPDATE audit SET who = 'eve' WHERE run = ? AND seq = 9", (past.runs[2],))
        forge(db)
        excuse(db, "Unsigned", run=past.runs[2], code="audit_key_failed")
        forge(db)


@found_as("was removed")
def backfilled_entry_excuses_missing_signatures(data: Path, past: Past) -> None:
    with editing(data) as db:
        db.execute("UPDATE audit SET who = 'eve' WHERE run = ? AND seq = 9", (past.runs[2],))
        forge(db)
        excuse(db, "Backfilled", entries=1, events=1)
        forge(db)


@found_as("was removed")
def accepted_entry_without_a_signature(data: Path, past: Past) -> None:
    with editing(data) as db:
        remove_run(db, past.runs[2])
        forge(db)
        excuse(db, "AuditAccepted", kept=1, lost=None, key="ed25519:" + "0" * 64, reason="trust me")
        forge(db)


@found_as("speaks of event")
def forgotten_entry_without_a_signature(data: Path, past: Past) -> None:
    run = past.runs[0]
    with editing(data) as db:
        log, last = db.execute("SELECT log, last_seq FROM runs WHERE id = ?", (run,)).fetchone()
        db.execute("DELETE FROM events WHERE run = (SELECT num FROM runs WHERE id = ?)", (run,))
        db.execute("DELETE FROM runs WHERE id = ?", (run,))
        excuse(db, "RunForgotten", run=run, events=last, log=log)
        number, previous = db.execute(
            "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1 OFFSET 1"
        ).fetchone()
        (row,) = db.execute(f"SELECT {ENTRY} FROM audit WHERE number = ?", (number + 1,)).fetchall()
        made = msgspec.structs.replace(AuditEntry(*row), previous=previous)
        db.execute(
            "UPDATE audit SET previous = ?, hash = ? WHERE number = ?",
            (previous, entry_hash(made), number + 1),
        )


@found_as("signed head is entry")
def last_signed_run_removed_with_its_checkpoint(data: Path, past: Past) -> None:
    with editing(data) as db:
        remove_run(db, past.runs[2])
        forge(db)


@found_as("ntry")
def first_signed_run_removed_with_its_checkpoint(data: Path, past: Past) -> None:
    with editing(data) as db:
        remove_run(db, past.runs[0])
        forge(db)


@found_as("ntry")
def all_runs_removed(data: Path, past: Past) -> None:
    with editing(data) as db:
        for run in past.runs:
            remove_run(db, run)
        forge(db)


@found_as("ntry")
def signature_copied_from_another_data_directory(data: Path, past: Past) -> None:
    with sqlite3.connect(past.other / "cloister.db") as db:
        theirs = db.execute(
            "SELECT number, hash, at_us, run, key, signature FROM audit_checkpoints"
        ).fetchall()[-1]
    db.close()
    with editing(data) as db:
        db.execute(
            "INSERT INTO audit_checkpoints (number, hash, at_us, run, key, signature) VALUES (?,?,?,?,?,?)",
            theirs,
        )


def sign_with(db: sqlite3.Connection, key: HostKey, run: str | None) -> None:
    """Introduce an attacker's key and sign the end of the chain with it."""
    excuse(db, "KeyMade", key=key.public(), previous=None)
    forge(db)
    number, hashed = db.execute("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    signature = key.sign(signed_bytes(number, hashed, 1, run, key.public()))
    db.execute(
        "INSERT INTO audit_checkpoints (number, hash, at_us, run, key, signature) VALUES (?,?,?,?,?,?)",
        (number, hashed, 1, run, key.public(), signature),
    )


@found_as("did not introduce")
def edited_run_signed_with_another_key(data: Path, past: Past) -> None:
    with editing(data) as db:
        db.execute("UPDATE audit SET who = 'eve' WHERE run = ? AND seq = 9", (past.runs[2],))
        forge(db)
        sign_with(db, HostKey(data / "other.key"), past.runs[2])


@found_as("is not one that the audit trusts")
def edited_run_signed_with_another_key_that_is_put_in_place(data: Path, past: Past) -> None:
    edited_run_signed_with_another_key(data, past)
    (data / "other.key").replace(data / "audit.key")


@found_as("another history")
def new_history_signed_with_another_key(data: Path, past: Past) -> None:
    for name in ("cloister.db", "audit.key"):
        shutil.copy(past.other / name, data / name)


# Files.


@found_as("There is no audit")
def database_deleted(data: Path, past: Past) -> None:
    (data / "cloister.db").unlink()


@found_as("There is no audit")
def database_emptied(data: Path, past: Past) -> None:
    (data / "cloister.db").write_bytes(b"")


@found_as("There is no audit")
def everything_deleted(data: Path, past: Past) -> None:
    for name in ("cloister.db", "cloister.head", "audit.key"):
        (data / name).unlink()


@found_as("signed head is entry")
def database_deleted_and_begun_again(data: Path, past: Past) -> None:
    (data / "cloister.db").unlink()

    async def write() -> None:
        async with opened(data / "cloister.db") as backbone:
            await whole_run(backbone)

    anyio.run(write)


@found_as("another history")
def database_begun_again_and_grown_longer(data: Path, past: Past) -> None:
    (data / "cloister.db").unlink()

    async def write() -> None:
        async with opened(data / "cloister.db") as backbone:
            for _ in range(6):
                await whole_run(backbone)

    anyio.run(write)


@found_as("key was removed")
def key_removed(data: Path, past: Past) -> None:
    (data / "audit.key").unlink()


@found_as("is not one that the audit trusts")
def key_replaced(data: Path, past: Past) -> None:
    shutil.copy(past.other / "audit.key", data / "audit.key")


@found_as("is not one that the audit trusts")
def key_removed_and_made_again(data: Path, past: Past) -> None:
    (data / "audit.key").unlink()

    async def write() -> None:
        async with opened(data / "cloister.db") as backbone:
            await backbone.note("Login", "ada", {})

    anyio.run(write)


@found_as("can be read by others")
def key_readable_by_all(data: Path, past: Past) -> None:
    (data / "audit.key").chmod(0o644)


@found_as("head outside the database was removed")
def head_removed(data: Path, past: Past) -> None:
    (data / "cloister.head").unlink()


@found_as("head outside the database was removed")
def head_removed_and_the_database_written_on(data: Path, past: Past) -> None:
    (data / "cloister.head").unlink()
    with editing(data) as db:
        db.execute("PRAGMA user_version = 2")

    async def write() -> None:
        async with opened(data / "cloister.db") as backbone:
            await whole_run(backbone)

    anyio.run(write)


@found_as("holds no signed head")
def head_emptied(data: Path, past: Past) -> None:
    (data / "cloister.head").write_bytes(b"")


@found_as("its signature is not valid")
def head_edited(data: Path, past: Past) -> None:
    slots = [json.loads(line) for line in (data / "cloister.head").read_text().splitlines()]
    text = "".join(json.dumps(slot | {"number": 3}).ljust(511) + "\n" for slot in slots)
    (data / "cloister.head").write_text(text)


@found_as("signed head is entry")
def head_of_another_data_directory(data: Path, past: Past) -> None:
    shutil.copy(past.other / "cloister.head", data / "cloister.head")


@found_as("its signature is not valid")
def head_replaced_by_a_checkpoint(data: Path, past: Past) -> None:
    with editing(data) as db:
        row = db.execute("SELECT number, hash, at_us, run, key, signature FROM audit_checkpoints").fetchone()
    line = msgspec.json.encode(Checkpoint(*row)).decode()
    (data / "cloister.head").write_text((line.ljust(511) + "\n") * 2)


@found_as("signed head is entry")
def rolled_back_to_an_earlier_copy(data: Path, past: Past) -> None:
    shutil.copy(past.before / "cloister.db", data / "cloister.db")


@found_as("another history")
def rolled_back_and_grown_longer(data: Path, past: Past) -> None:
    shutil.copy(past.before / "cloister.db", data / "cloister.db")

    async def write() -> None:
        async with opened(data / "cloister.db") as backbone:
            for _ in range(3):
                await whole_run(backbone)

    anyio.run(write)


@found_as("signed head is entry")
def rolled_back_to_the_beginning(data: Path, past: Past) -> None:
    shutil.copy(past.beginning / "cloister.db", data / "cloister.db")


@found_as("ntry")
def database_of_another_data_directory(data: Path, past: Past) -> None:
    shutil.copy(past.other / "cloister.db", data / "cloister.db")


@found_as("signed head is entry")
def write_ahead_log_removed(data: Path, past: Past) -> None:
    """A process was killed; its last writes are in the write-ahead log only."""
    program = (
        "import anyio, os, sys\n"
        "from pathlib import Path\n"
        "from tests.log.audit.test_audit import opened, whole_run\n"
        "async def main():\n"
        "    async with opened(Path(sys.argv[1])) as backbone:\n"
        "        await whole_run(backbone)\n"
        "        os.kill(os.getpid(), 9)\n"
        "anyio.run(main)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        [sys.executable, "-c", program, str(data / "cloister.db")], env=env, check=False, timeout=60
    )
    assert verify(data).returncode == 0
    # Verifying moved the writes into the database; so once more, and this time they are gone.
    subprocess.run(
        [sys.executable, "-c", program, str(data / "cloister.db")], env=env, check=False, timeout=60
    )
    (data / "cloister.db-wal").unlink()
    (data / "cloister.db-shm").unlink()


# The structure of the database.
sql(
    "structure: a trigger added",
    "was added to the database",
    "CREATE TRIGGER quiet AFTER INSERT ON audit BEGIN SELECT 1; END",
)
sql("structure: a view added", "was added to the database", "CREATE VIEW seen AS SELECT * FROM runs")
sql("structure: a table edited", "was edited", "ALTER TABLE audit_checkpoints ADD COLUMN more TEXT")
sql("structure: an index removed", "was removed", "DROP INDEX runs_to_claim")


@found_as("of the database was removed")
def structure_the_triggers_dropped(data: Path, past: Past) -> None:
    with editing(data, triggers=False) as db:
        db.execute("CREATE UNIQUE INDEX audit_of_runs ON audit (run, seq) WHERE run IS NOT NULL")


@found_as("The view 'audit'")
def structure_a_view_in_place_of_the_audit(data: Path, past: Past) -> None:
    with editing(data, triggers=False) as db:
        db.execute("ALTER TABLE audit RENAME TO hidden")
        db.execute("CREATE VIEW audit AS SELECT * FROM hidden")


@found_as("The view 'runs'")
def structure_a_view_in_place_of_the_list(data: Path, past: Past) -> None:
    with editing(data, triggers=False) as db:
        db.execute("ALTER TABLE runs RENAME TO hidden")
        db.execute("CREATE VIEW runs AS SELECT * FROM hidden")


def page_edit(data: Path, old: bytes, new: bytes) -> None:
    file = data / "cloister.db"
    content = file.read_bytes()
    assert old in content
    assert len(old) == len(new)
    file.write_bytes(content.replace(old, new))


@found_as("was edited")
def page_bytes_of_entries_and_events(data: Path, past: Past) -> None:
    page_edit(data, b"bash: ls", b"bash: rm")


@found_as("The list of runs was edited")
def page_bytes_of_a_row(data: Path, past: Past) -> None:
    page_edit(data, b"fix it/repo", b"fix it/else")


@found_as("is missing")
def page_bytes_of_an_index(data: Path, past: Past) -> None:
    with sqlite3.connect(data / "cloister.db") as db:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        root = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_runs_1'"
        ).fetchone()[0]
    db.close()
    content = bytearray((data / "cloister.db").read_bytes())
    page = content[(root - 1) * size : root * size]
    content[(root - 1) * size : root * size] = page.replace(past.runs[0].encode(), b"r-000000000000")
    (data / "cloister.db").write_bytes(content)


@pytest.mark.parametrize("name", TABLE)
def test_manipulation_is_found(name: str, data: Path, past: Past) -> None:
    work, why = TABLE[name]
    work(data, past)
    done = verify(data)
    assert done.returncode == 1, done.stdout + done.stderr
    assert why in done.stdout + done.stderr


def test_there_are_more_manipulations_than_were_reported() -> None:
    assert len(TABLE) > 80


@pytest.mark.parametrize("version", [1, 99])
def test_edited_version_of_the_database_is_an_error(version: int, data: Path) -> None:
    with editing(data) as db:
        db.execute(f"PRAGMA user_version = {version}")
    done = verify(data)
    assert done.returncode not in (0, 70)
    assert "cloister.db" in done.stderr


@pytest.mark.parametrize("name", ["before", "beginning", "other"])
def test_rollback_of_all_files_is_found_only_with_what_was_exported(
    name: str, data: Path, past: Past
) -> None:
    for file in ("cloister.db", "cloister.head", "audit.key"):
        shutil.copy(getattr(past, name) / file, data / file)
    assert verify(data).returncode == 0  # one machine cannot know it: see docs/guide/audit.md
    done = verify(data, "--against", str(past.exported))
    assert (done.returncode, done.stdout.startswith("NOT OK")) == (1, True)


def test_rollback_that_has_grown_longer_is_found_with_what_was_exported(data: Path, past: Past) -> None:
    for file in ("cloister.db", "cloister.head", "audit.key"):
        shutil.copy(past.before / file, data / file)

    async def write() -> None:
        async with opened(data / "cloister.db") as backbone:
            for _ in range(3):
                await whole_run(backbone)

    anyio.run(write)
    assert verify(data).returncode == 0
    assert "this is another history" in verify(data, "--against", str(past.exported)).stdout


def test_key_of_another_history_is_found_with_the_pinned_one(data: Path, past: Past) -> None:
    key = HostKey(past.beginning / "audit.key").public()
    assert verify(data, "--key", key).returncode == 0
    for file in ("cloister.db", "cloister.head", "audit.key"):
        shutil.copy(past.other / file, data / file)
    assert verify(data, "--key", key).returncode == 1


@pytest.mark.parametrize(
    "statement",
    ["VACUUM", "ANALYZE", "REINDEX", "PRAGMA wal_checkpoint(TRUNCATE)", "CREATE INDEX mine ON runs (who)"],
)
def test_maintenance_is_no_finding(statement: str, data: Path) -> None:
    db = sqlite3.connect(data / "cloister.db", isolation_level=None)
    db.execute(statement)
    db.close()
    done = verify(data)
    assert (done.returncode, done.stdout.startswith("OK")) == (0, True), done.stdout


def test_clock_that_was_set_back_is_no_finding_and_shows_in_the_order(data: Path) -> None:
    async def write() -> None:
        path = data / "cloister.db"
        async with open_backbone(path, owner_lives=lambda _: True, now=lambda: 1_000.5) as backbone:
            await whole_run(backbone)

    anyio.run(write)
    assert verify(data).returncode == 0


def test_entry_added_with_right_hashes_shows_only_as_one_that_the_head_does_not_cover(data: Path) -> None:
    with editing(data) as db:
        excuse(db, "Login")
        forge(db)
    done = verify(data)
    assert done.returncode == 0  # so would be the last entry of a killed process: see docs/guide/audit.md
    assert "not covered yet: 1" in done.stdout
