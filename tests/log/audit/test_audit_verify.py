"""Whoever edits, removes, reorders or cuts off what was written is found, and it is said where."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.audit.test_audit import begun, entries, opened, problems, whole_run

from cloister.core import events as e
from cloister.core.errors import HostError, UserError
from cloister.log.audit.chain import UNCHECKED
from cloister.log.audit.entry import entry_hash
from cloister.log.audit.head import head_path
from cloister.log.audit.keys import KEY_FILE, HostKey, check_public, valid
from cloister.log.audit.verify import Verdict
from cloister.log.sqlite.reader import AuditReader

pytestmark = pytest.mark.anyio

COLUMNS = ("at_us", "kind", "run", "seq", "who", "detail", "log", "previous", "hash")


@pytest.fixture(scope="module")
def chained() -> Iterator[Path]:
    """Two whole runs, one in progress, and entries of no run."""

    async def make(path: Path) -> None:
        async with opened(path) as backbone:
            await whole_run(backbone)
            await backbone.note("ApiCall", "ada", {"method": "POST", "route": "/v1/runs", "status": 201})
            await whole_run(backbone, "grace")
            fence = await begun(backbone)
            await backbone.append(
                fence, [e.ActionDecided(1, "t", "bash: x", "allow", "r"), e.PhaseStarted("work")]
            )
            await backbone.note("LoginRefused", "", {"count": 3})

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "cloister.db"
        anyio.run(make, path)
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        assert problems(path) == []
        yield path


def attacked(original: Path, *statements: tuple[str, tuple[object, ...]]) -> Verdict:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "cloister.db"
        for file in (original, original.with_name(KEY_FILE), head_path(original)):
            shutil.copy(file, path.with_name(file.name))
        with sqlite3.connect(path) as db:
            # An attacker has the file and no respect for triggers.
            kept = db.execute(
                "SELECT name, type, sql FROM sqlite_master WHERE type = 'trigger' OR name = 'audit_of_runs'"
            ).fetchall()
            for part, kind, _ in kept:
                db.execute(f"DROP {kind} {part}")
            for statement, values in statements:
                db.execute(statement, values)
            with contextlib.suppress(sqlite3.IntegrityError):  # two entries of one event
                for _, _, text in kept:
                    db.execute(text)
        db.close()
        with AuditReader(path) as audit:
            return audit.verify()


def size(path: Path) -> int:
    return len(entries(path))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_edit_of_any_field_of_any_entry_is_found_at_its_number(
    chained: Path, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, size(chained)))
    column = data.draw(st.sampled_from(COLUMNS))
    entry = entries(chained)[number - 1]
    old = getattr(entry, column)
    numeric = column in ("at_us", "seq")
    new = data.draw(
        (st.integers(0, 2**60) if numeric else st.text(max_size=80)).filter(lambda value: value != old)
    )
    verdict = attacked(chained, (f"UPDATE audit SET {column} = ? WHERE number = ?", (new, number)))
    assert not verdict.ok
    assert verdict.problems[0].number in (number, number + 1)


def test_an_entry_that_points_at_anothers_event_is_blamed_and_not_the_other(chained: Path) -> None:
    found = entries(chained)
    one, other = [entry for entry in found if entry.seq is not None][-2:]
    statement = "UPDATE audit SET seq = ? WHERE number = ?"
    verdict = attacked(chained, (statement, (one.seq, other.number)))
    assert verdict.problems[0].number == other.number


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_entry_that_is_removed_is_missed(chained: Path, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, size(chained)))
    verdict = attacked(chained, ("DELETE FROM audit WHERE number = ?", (number,)))
    assert not verdict.ok
    assert verdict.problems[0].number == number


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_two_entries_that_change_places_are_found(chained: Path, data: st.DataObject) -> None:
    one, other = sorted(data.draw(st.sets(st.integers(1, size(chained)), min_size=2, max_size=2)))
    move = "UPDATE audit SET number = ? WHERE number = ?"
    verdict = attacked(chained, (move, (10_000, one)), (move, (one, other)), (move, (other, 10_000)))
    assert not verdict.ok
    assert verdict.problems[0].number == one


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_chain_that_is_cut_off_anywhere_is_found(chained: Path, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, size(chained)))
    verdict = attacked(chained, ("DELETE FROM audit WHERE number >= ?", (number,)))
    assert not verdict.ok
    assert verdict.problems[0].number == number


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_cutting_off_and_covering_it_up_is_found_wherever_a_run_or_a_signature_was_touched(
    chained: Path, data: st.DataObject
) -> None:
    last = [entry.number for entry in entries(chained) if entry.run][-1]
    number = data.draw(st.integers(1, last))
    verdict = attacked(
        chained,
        ("DELETE FROM audit WHERE number >= ?", (number,)),
        ("DELETE FROM audit_checkpoints WHERE number >= ?", (number,)),
        ("UPDATE sqlite_sequence SET seq = ? WHERE name = 'audit'", (number - 1,)),
    )
    assert not verdict.ok


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_edit_of_the_log_itself_is_found_too(chained: Path, data: st.DataObject) -> None:
    with sqlite3.connect(chained) as db:
        rows = db.execute(
            "SELECT e.id, r.id, e.seq, e.body FROM events e JOIN runs r ON r.num = e.run"
        ).fetchall()
    db.close()
    event, run, seq, body = data.draw(st.sampled_from(rows))
    forged = (
        bytes(body).replace(b"}", b' ,"x":1}', 1)
        if data.draw(st.booleans())
        else b'{"type":"StopRequested","who":"x"}'
    )
    verdict = attacked(chained, ("UPDATE events SET body = ? WHERE id = ?", (forged, event)))
    assert not verdict.ok
    assert verdict.problems[0].run == run
    assert (verdict.problems[0].seq or 0) >= seq


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_an_event_that_is_removed_or_given_another_time_is_found(chained: Path, data: st.DataObject) -> None:
    with sqlite3.connect(chained) as db:
        ids = [row[0] for row in db.execute("SELECT id FROM events")]
    db.close()
    event = data.draw(st.sampled_from(ids))
    statement = data.draw(
        st.sampled_from(["DELETE FROM events WHERE id = ?", "UPDATE events SET at = at + 1 WHERE id = ?"])
    )
    assert not attacked(chained, (statement, (event,))).ok


def test_a_run_that_is_removed_with_its_events_is_missed(chained: Path) -> None:
    verdict = attacked(
        chained, ("DELETE FROM events WHERE run = 2", ()), ("DELETE FROM runs WHERE num = 2", ())
    )
    assert not verdict.ok
    assert "which was removed" in verdict.problems[0].why


@pytest.mark.parametrize("column", ["number", "hash", "at_us", "run", "key", "signature"])
def test_a_checkpoint_that_is_edited_is_found(chained: Path, column: str) -> None:
    new = {"number": 1, "at_us": 1}.get(column, "ed25519:" + "0" * 64)
    verdict = attacked(chained, (f"UPDATE audit_checkpoints SET {column} = ? WHERE id = 1", (new,)))
    assert not verdict.ok


def test_a_checkpoint_that_is_removed_is_missed(chained: Path) -> None:
    verdict = attacked(chained, ("DELETE FROM audit_checkpoints WHERE id = 2", ()))
    assert [problem.why for problem in verdict.problems] == [
        f"The signature over the end of run {verdict.problems[0].run} was removed.",
        "A signature of the audit was removed.",
    ]
    assert not attacked(chained, ("DELETE FROM audit_checkpoints WHERE id = 1", ())).ok
    assert not attacked(chained, ("DELETE FROM audit_checkpoints", ())).ok


def rehashed(original: Path, number: int, **changes: object) -> list[tuple[str, tuple[object, ...]]]:
    """The statements of one who edits an entry and makes all hashes after it right."""
    found = entries(original)
    previous = found[number - 2].hash if number > 1 else "0" * 64
    statements: list[tuple[str, tuple[object, ...]]] = []
    for entry in found[number - 1 :]:
        changed = msgspec.structs.replace(
            entry, previous=previous, **(changes if entry.number == number else {})
        )
        changed = msgspec.structs.replace(changed, hash=entry_hash(changed))
        previous = changed.hash
        statements.append(
            (
                "UPDATE audit SET who = ?, detail = ?, previous = ?, hash = ? WHERE number = ?",
                (changed.who, changed.detail, changed.previous, changed.hash, changed.number),
            )
        )
    return statements


def test_one_who_makes_every_hash_right_again_still_lacks_the_key(chained: Path) -> None:
    denied = next(n for n in entries(chained) if '"deny"' in n.detail and n.kind == "ActionDecided")
    forged = denied.detail.replace('"deny"', '"allow"')
    verdict = attacked(chained, *rehashed(chained, denied.number, detail=forged))
    assert not verdict.ok
    assert "is not the one that was signed" in verdict.problems[0].why
    assert (verdict.problems[0].number or 0) >= denied.number


def test_what_no_signature_covers_yet_is_said(chained: Path) -> None:
    with AuditReader(chained) as audit:
        verdict = audit.verify()
    ends = [entry.number for entry in entries(chained) if entry.kind == "RunFinished"]
    assert verdict.signed == ends[-1]
    assert verdict.entries > verdict.signed


async def test_a_foreign_key_cannot_take_over(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
        ours = HostKey(tmp_path / KEY_FILE).public()
        (tmp_path / KEY_FILE).unlink()
        await whole_run(backbone)
        theirs = HostKey(tmp_path / KEY_FILE).public()
        for key in (None, ours):
            assert "did not introduce" in problems(path, key)[0]
        assert problems(path, theirs) != []  # the head outside is still of the first key
        await backbone.accept_audit("ada", "the key was lost")
        assert problems(path) == problems(path, theirs) == []
        assert "did not introduce" in problems(path, ours)[0]
        await whole_run(backbone)
    assert problems(path) == []


async def test_a_key_that_was_slipped_in_for_a_while_is_not_trusted_later(tmp_path: Path) -> None:
    path, file = tmp_path / "cloister.db", tmp_path / KEY_FILE
    async with opened(path) as backbone:
        await whole_run(backbone)
        ours = file.read_bytes()
        file.unlink()
        await whole_run(backbone)
        theirs = file.read_bytes()
        file.write_bytes(ours)
        await whole_run(backbone)
        assert ["did not introduce" in why for why in problems(path)] == [True]
        file.write_bytes(theirs)
        await whole_run(backbone)
    assert "did not introduce" in problems(path)[0]


def test_a_file_that_is_damaged_is_said(chained: Path, tmp_path: Path) -> None:
    data = bytearray(chained.read_bytes())
    data[8_192:] = bytes(len(data) - 8_192)
    (tmp_path / "cloister.db").write_bytes(data)
    with pytest.raises(HostError) as caught:
        AuditReader(tmp_path / "cloister.db").verify()
    assert caught.value.code == "corrupt_data"


async def test_a_key_that_is_replaced_in_order_is_introduced_by_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
        first = HostKey(tmp_path / KEY_FILE).public()
        second = await backbone.rotate_audit_key()
        await whole_run(backbone)
        third = await backbone.rotate_audit_key()
        await whole_run(backbone)
    assert len({first, second, third}) == 3
    assert HostKey(tmp_path / KEY_FILE).public() == third
    assert [problems(path, key) for key in (None, first, second, third)] == [[], [], [], []]
    with sqlite3.connect(path) as db:
        kept = {row[0] for row in db.execute("SELECT key FROM audit_checkpoints")}
    db.close()
    assert kept == {first, second, third}
    stranger = "ed25519:" + "ab" * 32
    assert problems(path, stranger) != []


async def test_a_key_that_cannot_be_used_keeps_no_run_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    (tmp_path / KEY_FILE).write_text("no key")
    (tmp_path / KEY_FILE).chmod(0o600)
    async with opened(path) as backbone:
        run = await whole_run(backbone)
        assert (await backbone.row(run)).state == "finished"
    assert entries(path)[-1].kind == "Unsigned"
    assert any("holds no Ed25519 key" in why for why in problems(path))


def test_the_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    key = HostKey(tmp_path / KEY_FILE)
    public = key.public()
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / KEY_FILE]
    assert valid(public, key.sign(b"x"), b"x")
    assert not valid(public, key.sign(b"x"), b"y")
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(HostError, match="can be read by others"):
        key.sign(b"x")


def test_what_is_no_public_key_is_said() -> None:
    for text in ("", "ed25519:", "ed25519:" + "g" * 64, "f" * 64):
        with pytest.raises(UserError):
            check_public(text)


async def test_many_entries_outside_runs_are_signed_before_any_run_ends(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        for _ in range(UNCHECKED):
            await backbone.note("ApiCall", "ada", {})
        with AuditReader(path) as audit:
            assert audit.verify().signed >= UNCHECKED
        await backbone.note("ApiCall", "ada", {})
        await backbone.sign_audit()
    with AuditReader(path) as audit:
        verdict = audit.verify()
    assert (verdict.ok, verdict.signed) == (True, verdict.entries)


def test_a_chain_without_a_run_is_checked_too(tmp_path: Path) -> None:
    async def make() -> None:
        async with opened(tmp_path / "cloister.db") as backbone:
            await backbone.note("ApiCall", "ada", {})

    anyio.run(make)
    assert [entry.kind for entry in entries(tmp_path / "cloister.db")] == ["KeyMade", "HeadBegun", "ApiCall"]
    assert problems(tmp_path / "cloister.db") == []


async def test_a_run_that_is_paused_and_goes_on_is_as_its_events_say(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        fence = await begun(backbone)
        await backbone.append(fence, [e.RunPaused("The disk is full.", 1.0)])
        assert problems(path) == []
        again = await backbone.claim(fence.owner, fence.run)
        assert again is not None
        assert problems(path) == []
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET reason = 'The disk is full.'")
    db.close()
    assert ["The list of runs was edited: reason" in why for why in problems(path)] == [True]
