"""The signed head outside the database: never ahead of it, never a false alarm, and copied to other places."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.log.audit.test_audit import entries, opened, problems, whole_run
from tests.log.audit.test_tampering import audit as cloister_audit
from tests.log.audit.test_tampering import verify

from cloister.core.errors import UserError
from cloister.log.audit.chain import Head
from cloister.log.audit.entry import Checkpoint
from cloister.log.audit.export import HeadExport, check_place, find_heads, head_states
from cloister.log.audit.head import HeadFile, signed_by_its_key
from cloister.log.audit.keys import KEY_FILE, HostKey
from cloister.log.sqlite import audit
from cloister.log.sqlite.reader import AuditReader
from cloister.log.sqlite.schema import open_to_write
from cloister.runs.receipt import page, receipt

pytestmark = pytest.mark.anyio


def head_of(path: Path) -> Checkpoint:
    head = HeadFile(path).read()
    assert head is not None
    assert signed_by_its_key(head)
    return head


async def test_every_acknowledged_entry_is_covered(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        for _ in range(5):
            await backbone.note("Login", "ada", {})
            newest = entries(path)[-1]
            assert (head_of(path).number, head_of(path).hash) == (newest.number, newest.hash)


async def test_killed_between_the_commit_and_the_head_is_no_finding_and_the_next_writer_catches_up(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
        lagging = (tmp_path / "cloister.head").read_bytes()
        await whole_run(backbone)
    (tmp_path / "cloister.head").write_bytes(lagging)
    assert problems(path) == []
    async with opened(path) as backbone:
        await backbone.row((await backbone.runs())[0].id)
    assert head_of(path).number == entries(path)[-1].number


async def test_head_that_was_half_written_leaves_the_one_before(tmp_path: Path) -> None:
    path, file = tmp_path / "cloister.db", tmp_path / "cloister.head"
    async with opened(path) as backbone:
        await whole_run(backbone)
    newest = head_of(path).number
    slots = file.read_text().splitlines()
    place = next(at for at, line in enumerate(slots) if json.loads(line)["number"] == newest)
    with file.open("r+b") as stream:
        stream.seek(place * 512 + 100)
        stream.write(bytes(200))
    assert head_of(path).number < newest
    assert problems(path) == []


async def test_killed_before_the_first_commit_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    HeadFile(path).begin(Head(0, "0" * 64), 1.0)
    async with opened(path) as backbone:
        await whole_run(backbone)
    assert problems(path) == []


async def test_log_of_the_version_before_gets_a_head_when_it_is_opened_or_verified(tmp_path: Path) -> None:
    path, file = tmp_path / "cloister.db", tmp_path / "cloister.head"
    file.mkdir()  # no head can be stored: the file stays at version 2
    async with opened(path) as backbone:
        await whole_run(backbone)
    assert "HeadBegun" not in [entry.kind for entry in entries(path)]
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    db.close()
    file.rmdir()
    assert problems(path) == []
    assert [entry.kind for entry in entries(path)][-1] == "HeadBegun"
    async with opened(path) as backbone:
        await whole_run(backbone)
    assert problems(path) == []


async def test_rotation_that_was_killed_half_way_is_no_finding_later(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
    db = open_to_write(path)
    db.execute("BEGIN IMMEDIATE")
    audit.rotate(db, HostKey(tmp_path / KEY_FILE), "ed25519:" + "ab" * 32, 1.0)
    db.execute("COMMIT")
    db.close()
    assert problems(path) == []
    async with opened(path) as backbone:
        await backbone.rotate_audit_key()
        await whole_run(backbone)
    assert problems(path) == []


WRITER = """
import anyio, sys
from pathlib import Path
from tests.log.audit.test_audit import opened, whole_run
async def main():
    async with opened(Path(sys.argv[1])) as backbone:
        for _ in range(15):
            await whole_run(backbone)
            await backbone.note("Login", "ada", {})
anyio.run(main)
"""


def test_verifying_while_two_processes_write_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env=env) for _ in range(2)]
    found: list[list[str]] = []
    while any(writer.poll() is None for writer in writers):
        if (tmp_path / "cloister.head").exists() and entries(path):
            found.append(problems(path))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(found) > 3
    assert [why for each in found for why in each] == []
    assert head_of(path).number == entries(path)[-1].number


async def test_restored_backup_is_reported_until_a_person_accepts_it(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup.db"
    data.mkdir()
    path, exported = data / "cloister.db", tmp_path / "heads.jsonl"
    async with opened(path) as backbone:
        await whole_run(backbone)
        with sqlite3.connect(path) as source, sqlite3.connect(backup) as target:
            source.backup(target)
        source.close()
        target.close()
        await whole_run(backbone)
    lost = head_of(path)
    exported.write_bytes(msgspec.json.encode(lost))
    for file in data.glob("cloister.db*"):
        file.unlink()
    shutil.copy(backup, path)
    first = verify(data)
    assert (first.returncode, first.stdout.count("\n        ")) == (1, 0)
    assert f"its signed head is entry {lost.number}" in first.stdout
    async with opened(path) as backbone:  # a server that runs on it changes nothing about that
        await backbone.note("Login", "ada", {})
    assert verify(data).returncode == 1
    assert cloister_audit(data, "accept").returncode == 2
    assert cloister_audit(data, "accept", "--reason", "restored the backup").returncode == 0
    async with opened(path) as backbone:
        await whole_run(backbone)
    second = verify(data, "--against", str(exported))
    assert second.returncode == 0, second.stdout
    assert f"the signed head was entry {lost.number:,}: restored the backup" in second.stdout
    assert "AuditAccepted" in [entry.kind for entry in entries(path)]


async def test_restore_into_an_empty_directory_is_accepted_too(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with opened(tmp_path / "old" / "cloister.db") as backbone:
        await whole_run(backbone)
    for name in ("cloister.db", KEY_FILE):
        shutil.copy(tmp_path / "old" / name, tmp_path / "new" / name)
    path = tmp_path / "new" / "cloister.db"
    assert problems(path) == ["The signed head outside the database was removed."]
    async with opened(path) as backbone:
        await backbone.accept_audit("ada", "moved")
        await whole_run(backbone)
    assert problems(path) == []


async def test_accepting_excuses_no_edit(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET outcome = 'failed'")
    db.close()
    async with opened(path) as backbone:
        await backbone.accept_audit("ada", "nothing to see")
    assert ["The list of runs was edited" in why for why in problems(path)] == [True]


async def test_end_that_could_not_be_signed_is_reported_until_a_person_accepts_it(tmp_path: Path) -> None:
    path, key = tmp_path / "cloister.db", tmp_path / KEY_FILE
    async with opened(path) as backbone:
        await whole_run(backbone)
        key.chmod(0o644)
        await whole_run(backbone)
        key.chmod(0o600)
        await whole_run(backbone)
        assert ["though the key worked before" in why for why in problems(path)] == [True]
        await backbone.accept_audit("ada", "the key's mode was wrong")
    assert problems(path) == []


# Heads elsewhere.


class Hook:
    def __init__(self) -> None:
        self.status = 200
        self.heads: list[Checkpoint] = []
        self.arrived = threading.Event()
        self.url = ""


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if hook.status == 200:
                hook.heads.append(msgspec.json.decode(data, type=Checkpoint))
                hook.arrived.set()
            self.send_response(hook.status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/heads"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield hook
        server.shutdown()
        thread.join()


async def test_heads_are_sent_to_a_file_an_address_and_syslog(hook: Hook, tmp_path: Path) -> None:
    path, file, log = tmp_path / "cloister.db", tmp_path / "heads.jsonl", tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(log))
        export = HeadExport(HeadFile(path).read, tmp_path, (str(file), hook.url, f"syslog:{log}"))
        async with opened(path) as backbone:
            for _ in range(2):
                await whole_run(backbone)
                await export.step()
                await export.step()  # nothing new: nothing is sent
        messages = [syslog.recv(2_000).decode() for _ in range(2)]
        syslog.setblocking(False)
        with pytest.raises(BlockingIOError):
            syslog.recv(1)
    in_file = find_heads(file.read_text())
    assert [head.number for head in in_file] == [head.number for head in hook.heads]
    assert len(in_file) == 2
    assert find_heads("\n".join(messages)) == in_file
    assert messages[0].startswith("<110>cloister-audit: {")
    assert in_file[-1] == head_of(path)
    assert file.stat().st_mode & 0o777 == 0o600


async def test_place_that_fails_is_remembered_and_tried_again(hook: Hook, tmp_path: Path) -> None:
    path, file = tmp_path / "cloister.db", tmp_path / "away" / "heads.jsonl"
    hook.status = 500
    export = HeadExport(HeadFile(path).read, tmp_path, (str(file), hook.url))
    async with opened(path) as backbone:
        await whole_run(backbone)
    with pytest.raises(Exception, match="it answered 500"):
        await export.step()
    states = head_states(tmp_path)
    assert "No such file" in (states[str(file)].problem or "")
    assert "it answered 500" in (states[hook.url].problem or "")
    hook.status = 200
    file.parent.mkdir()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(export.run, 0.01)
        assert await anyio.to_thread.run_sync(hook.arrived.wait, 30)
        tasks.cancel_scope.cancel()
    await export.step()
    assert {state.number for state in head_states(tmp_path).values()} == {head_of(path).number}
    assert {head.number for head in (*hook.heads, *find_heads(file.read_text()))} == {head_of(path).number}


def test_place_that_is_none_is_refused() -> None:
    for text in ("", "heads.jsonl", "syslog:log", "https://", "https://user:secret@host/x", "ftp://host/x"):
        with pytest.raises(UserError):
            check_place(text)


async def test_heads_are_found_in_exports_and_receipts(tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        run = await whole_run(backbone)
        log = await backbone.read(run)
        seal = await backbone.seal(run)
    assert seal is not None
    shown = page(receipt(log, seal))
    assert find_heads(shown) == [seal]
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seal.at_us // 1_000_000))
    assert f"- Signed at: {told} ({seal.at_us} µs since 1970), key" in shown
    older = shown.replace(f"{told} ({seal.at_us} µs since 1970)", f"{seal.at_us} µs since 1970")
    assert find_heads(older) == [seal], "receipts of older versions count"
    assert find_heads(msgspec.json.encode(receipt(log, seal)).decode()) == [seal]
    delivered = page(receipt(log[:-1], head_of(path)))
    assert [head.hash for head in find_heads(f"{delivered}\n{shown}")] == [head_of(path).hash, seal.hash]
    with AuditReader(path) as reader:
        (tmp_path / "all").write_text(shown + delivered)
        verdict = reader.verify()
    assert (verdict.ok, verdict.anchor) == (True, head_of(path))
    assert find_heads("nothing here") == []
