"""Every action and decision has its entry, written with it; a log that is older than the audit gets one."""

import hashlib
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core import events as e
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import FileChange, Isolation, NewRun, ToolCall, Usage
from cloister.log.api import Fence
from cloister.log.audit.details import AUDITED, AUDITED_KINDS, LIST_BYTES, fact
from cloister.log.audit.entry import AuditEntry, entry_hash
from cloister.log.audit.head import head_path
from cloister.log.audit.keys import KEY_FILE
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone
from cloister.log.sqlite.reader import AuditReader

pytestmark = pytest.mark.anyio

ISOLATION = Isolation("container", "crun 1", True, "overlay")
CHECK = Diagnosis("pytest -q", 1, 2.0)
WORK: tuple[e.AnyBody, ...] = (
    e.BaseFixed("c" * 40, "main"),
    e.SandboxOpened("s-1", ISOLATION),
    e.BaselineTaken((CHECK,)),
    e.AttemptStarted(1, "m"),
    e.ModelReplied(1, 1, "m", "let me", (ToolCall("t1", "bash", {"command": "ls"}),), Usage(10, 5), 0.5),
    e.ActionDecided(1, "t1", "bash: ls", "allow", "tool:bash (built-in)"),
    e.ToolReturned(1, "t1", "bash", True, "a\nb", 0.25, 0),
    e.ActionDecided(1, "t2", "write: .git/x", "deny", "write:.git/** (built-in)"),
    e.AskRaised("a-1", 1, "bash: rm", "rm -rf /", 99.0),
    e.AskAnswered("a-1", "deny", "grace"),
    e.ConnectionDecided("s-1", "pypi.example", 443, "allow", "connect:pypi.example", "pypi-token"),
    e.ConnectionClosed("s-1", "pypi.example", 443, 10, 20, 1.5, "pypi-token"),
    e.ChecksRan(1, 1, (CHECK,), Comparison(fixed=("t",), passed=3, green=True)),
    e.TurnEnded(1, 1, "d" * 40, True),
    e.AttemptEnded(1, "proven", "fixed it", "d" * 40, Comparison(passed=3, green=True)),
    e.ChangeMade("cloister/fix", "f" * 40, (FileChange("a.py", 1, 2),), "fixed it"),
    e.ChangeDelivered("/repo", "cloister/fix"),
    e.SandboxClosed("s-1", "done"),
    e.ServiceFailed("s-1", "error: Redis did not answer"),
)


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[SqliteBackbone]:
    with anyio.fail_after(30):
        async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
            yield backbone


async def begun(backbone: SqliteBackbone, who: str = "ada") -> Fence:
    run, _ = await backbone.admit(NewRun(prompt="fix it", repo="/repo"), who)
    fence = await backbone.claim(OwnerId("o-1"), run)
    assert fence is not None
    return fence


async def whole_run(backbone: SqliteBackbone, who: str = "ada") -> RunId:
    fence = await begun(backbone, who)
    await backbone.append(fence, WORK)
    await backbone.append_outside(fence.run, e.PromptReceived("and the docs", "grace"))
    await backbone.append(fence, [e.RunFinished("proven", "fixed it", 1)])
    return fence.run


def entries(path: Path, run: RunId | None = None) -> list[AuditEntry]:
    with AuditReader(path) as audit:
        return list(audit.page(limit=100_000, run=run))


def problems(path: Path, key: str | None = None) -> list[str]:
    with AuditReader(path) as audit:
        return [problem.why for problem in audit.verify(key).problems]


UNAUDITED: frozenset[type[e.AnyBody]] = frozenset(
    {
        e.RunResumed,
        e.RunPaused,
        e.PhaseStarted,
        e.PhaseEnded,
        e.ChecksChosen,
        e.BaselineSampled,
        e.AttemptStarted,
        e.SaveRefused,
        e.FinishRefused,
        e.PagesPictured,
        e.TurnEnded,
        e.Inherited,
        e.BudgetWarned,
        e.ContextSummarised,
        e.StuckNoticed,
        e.FaultLocalised,
        e.CandidatesTried,
        e.PatchFound,
    }
)
"""Events without an entry; only the hash over the log covers them."""


def test_every_kind_of_event_is_audited_or_exempt() -> None:
    assert {*AUDITED, *UNAUDITED} == set(get_args(e.AnyBody))
    assert not UNAUDITED & {*AUDITED}
    for kind, fields in AUDITED.items():
        assert {field for field in fields if isinstance(field, str)} <= {*kind.__struct_fields__}, kind


async def test_every_action_and_decision_of_a_run_has_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        run = await whole_run(backbone)
        log = await backbone.read(run)
    found = entries(path, run)
    expected = [(ev.seq, type(ev.body).__name__) for ev in log if type(ev.body).__name__ in AUDITED_KINDS]
    assert [(entry.seq, entry.kind) for entry in found] == expected
    by_kind = {entry.kind: json.loads(entry.detail) for entry in found}
    assert by_kind["ActionDecided"]["effect"] == "deny"
    assert by_kind["ActionDecided"]["rule"] == "write:.git/** (built-in)"
    assert by_kind["ToolReturned"] == {
        "attempt": 1,
        "call": "t1",
        "tool": "bash",
        "ok": True,
        "exit_code": 0,
        "bytes": 3,
        "seconds": 0.25,
    }
    closed = by_kind["ConnectionClosed"]
    assert (closed["host"], closed["port"], closed["sent_bytes"], closed["received_bytes"]) == (
        "pypi.example",
        443,
        10,
        20,
    )
    assert closed["credential"] == "pypi-token"
    assert by_kind["ChangeMade"]["files"][0]["path"] == "a.py"
    whos = {entry.kind: entry.who for entry in found}
    assert (whos["RunAdmitted"], whos["ToolReturned"]) == ("ada", "ada")
    assert (whos["AskAnswered"], whos["PromptReceived"]) == ("grace", "grace")


async def test_the_hash_can_be_made_without_us(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone, 'Ädä "\u2028" \x7f')
    previous = "0" * 64
    for entry in entries(path):
        fields = [entry.number, entry.at_us, entry.kind, entry.run, entry.seq, entry.who]
        fields += [entry.detail, entry.log, previous]
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        assert hashlib.sha256(b"cloister audit entry 1\n" + text.encode()).hexdigest() == entry.hash
        previous = entry.hash


async def test_an_event_that_is_refused_has_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        fence = await begun(backbone)
        await backbone.append(fence, [e.RunFinished("failed", "no")])
        before = entries(path)
        with pytest.raises(Exception, match="finished"):
            await backbone.append(fence, [e.StopRequested("ada")])
    assert entries(path) == before
    assert problems(path) == []


async def test_runs_in_one_data_directory_share_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone, anyio.create_task_group() as tasks:
        for who in ("ada", "grace", "barbara"):
            tasks.start_soon(whole_run, backbone, who)
    found = entries(path)
    assert [entry.number for entry in found] == list(range(1, len(found) + 1))
    assert len({entry.run for entry in found}) == 4  # and the key, which belongs to no run
    assert problems(path) == []


async def test_two_processes_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as one, opened(path) as two, anyio.create_task_group() as tasks:
        for backbone in (one, two, one, two):
            tasks.start_soon(whole_run, backbone)
    assert problems(path) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET who = 'nobody' WHERE number = 1",
        "DELETE FROM audit WHERE number = 1",
        "INSERT OR REPLACE INTO audit SELECT * FROM audit WHERE number = 1",
        "INSERT INTO audit SELECT 100, at_us, kind, NULL, NULL, who, detail, log, previous, hash FROM audit",
        "UPDATE audit_checkpoints SET run = NULL",
        "DELETE FROM audit_checkpoints",
    ],
)
async def test_the_audit_itself_refuses_to_be_rewritten(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
    with sqlite3.connect(path) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute(statement)
    db.close()
    assert problems(path) == []


def to_version_1(path: Path) -> None:
    """The file as the version before the audit left it."""
    with sqlite3.connect(path) as db:
        for name in ("audit", "audit_checkpoints"):
            db.execute(f"DROP TABLE {name}")
        for column in ("who", "log"):
            db.execute(f"ALTER TABLE runs DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    for file in (head_path(path), path.with_name(KEY_FILE)):
        file.unlink()


async def test_a_log_that_is_older_than_the_audit_gets_its_entries_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        runs = [await whole_run(backbone), await whole_run(backbone, "grace")]
        fence = await begun(backbone)
    before = [(entry.run, entry.seq, entry.detail, entry.who) for entry in entries(path) if entry.run]
    to_version_1(path)
    async with opened(path) as backbone:
        assert [row.id for row in await backbone.runs()] == [fence.run, *reversed(runs)]
        await backbone.append(fence, [e.RunFinished("failed", "enough")])
    found = entries(path)
    old = [entry for entry in found if entry.run][: len(before)]
    assert [(entry.run, entry.seq, entry.detail, entry.who) for entry in old] == before
    assert found[len(before)].kind == "Backfilled"
    assert json.loads(found[len(before)].detail)["entries"] == len(before)
    assert problems(path) == []


async def test_looking_at_the_audit_of_an_older_log_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
    to_version_1(path)
    assert [entry.kind for entry in entries(path)][-3:] == ["Backfilled", "KeyMade", "HeadBegun"]
    assert problems(path) == []


async def test_undecodable_old_event_is_entered_as_such(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await begun(backbone)
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO events (run, seq, at, body) VALUES (1, 3, 0.0, ?)", (b'{"type":"StopRequested"}',)
        )
        db.execute("UPDATE runs SET last_seq = 3, updated_at = 0.0")
    db.close()
    to_version_1(path)
    assert [entry.detail for entry in entries(path) if entry.kind == "StopRequested"] == [
        '{"unreadable":true}'
    ]
    assert problems(path) == []


async def test_there_is_nothing_to_show_before_the_first_run(tmp_path: Path) -> None:
    assert entries(tmp_path / "cloister.db") == []
    assert problems(tmp_path / "cloister.db")[0].startswith("There is no audit")


LONG = st.text(max_size=40).map(lambda text: text * 500)


@given(st.lists(LONG, max_size=60), LONG)
@settings(max_examples=30, deadline=None)
def test_no_text_makes_an_entry_large(paths: list[str], text: str) -> None:
    change = e.ChangeMade(text, text, tuple(FileChange(path, 1, 1) for path in paths), text)
    bodies = (
        change,
        e.RunAdmitted(NewRun(prompt=text, repo=text, checks=tuple(paths), allow_hosts=tuple(paths)), text),
        e.ActionDecided(1, text, text, "deny", text),
        e.ToolReturned(1, text, text, False, text, 1.0),
        e.ConnectionDecided(text, text, 1, "deny", text, text),
        e.BaselineTaken(tuple(Diagnosis(path, 0, 1.0) for path in paths)),
    )
    for body in bodies:
        stated = fact(body)
        assert stated is not None
        assert len(stated.detail.encode()) < 4 * LIST_BYTES
        json.loads(stated.detail)


def test_a_change_of_very_many_files_says_how_many_are_not_listed() -> None:
    stated = fact(e.ChangeMade("b", "c", tuple(FileChange(f"file{n}", 1, 0) for n in range(5_000)), "s"))
    assert stated is not None
    files = json.loads(stated.detail)["files"]
    assert files[-1]["left_out"] == 5_000 - len(files) + 1


def test_events_of_older_logs_are_entered_as_they_were_then() -> None:
    """Copies of a shared log, and logs that are audited later, derive the same entries from the same events."""
    older = fact(e.EnvironmentPrepared("env-1", True, 2.0))
    assert older is not None
    assert json.loads(older.detail).keys().isdisjoint({"built_at", "reached"})
    newer = fact(e.EnvironmentPrepared("env-1", True, 2.0, built_at=3.0, reached=("pypi:443",)))
    assert newer is not None
    assert json.loads(newer.detail)["reached"] == ["pypi:443"]


def test_entries_with_different_content_have_different_hashes() -> None:
    entry = AuditEntry(1, 2, "k", "r", 3, "w", "{}", "l", "p", "")
    others = [
        AuditEntry(2, 2, "k", "r", 3, "w", "{}", "l", "p", ""),
        AuditEntry(1, 3, "k", "r", 3, "w", "{}", "l", "p", ""),
        AuditEntry(1, 2, "kr", "", 3, "w", "{}", "l", "p", ""),
        AuditEntry(1, 2, "k", "r", None, "w", "{}", "l", "p", ""),
        AuditEntry(1, 2, "k", "r", 3, "w{}", "", "l", "p", ""),
        AuditEntry(1, 2, "k", "r", 3, "w", "{}", None, "p", ""),
        AuditEntry(1, 2, "k", "r", 3, "w", "{}", "l", "q", ""),
    ]
    assert len({entry_hash(each) for each in [entry, *others]}) == 8
