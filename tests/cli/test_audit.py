"""`cloister audit` and `cloister receipt` as a person runs them."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.cli.conftest import Cloister
from tests.conftest import tried
from tests.log.audit.test_audit import opened, to_version_1, whole_run

from cloister.cli.screen.tables import entry_line, read_since
from cloister.core.errors import UserError
from cloister.core.ids import RunId
from cloister.log.audit.entry import AuditEntry


@pytest.fixture
def run(data_dir: Path) -> Iterator[RunId]:
    data_dir.mkdir()

    async def make() -> RunId:
        async with opened(data_dir / "cloister.db") as backbone:
            return await whole_run(backbone)

    yield anyio.run(make)


def damaged(data_dir: Path, statement: str) -> None:
    with sqlite3.connect(data_dir / "cloister.db") as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
    db.close()


def test_show_prints_a_line_per_entry(cloister: Cloister, run: RunId) -> None:
    shown = cloister("audit", "show", run)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert f"{run}#1" in lines[0]
    assert any("action=write: .git/x  effect=deny  rule=write:.git/** (built-in)" in line for line in lines)
    as_json = [json.loads(line) for line in cloister("audit", "show", "--json").stdout.splitlines()]
    assert [entry["number"] for entry in as_json] == list(range(1, len(as_json) + 1))


def test_verify_says_ok_and_what_is_signed(cloister: Cloister, run: RunId) -> None:
    key = cloister("audit", "key").stdout.strip()
    done = cloister("audit", "verify", "--key", key)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK: ")
    assert f"Key     {key}" in done.stdout
    assert cloister("audit", "verify", "--key", "ed25519:" + "0" * 64).returncode == 1


def test_verify_says_which_entry_was_edited(cloister: Cloister, run: RunId, data_dir: Path) -> None:
    damaged(data_dir, "UPDATE audit SET who = 'mallory' WHERE number = 7")
    done = cloister("audit", "verify")
    assert done.returncode == 1
    assert done.stdout.startswith("NOT OK: entry 7: Entry 7 was edited")
    verdict = json.loads(cloister("audit", "verify", "--json").stdout)
    assert (verdict["ok"], verdict["problems"][0]["number"]) == (False, 7)


def test_export_contains_everything_needed_to_verify_it(cloister: Cloister, run: RunId) -> None:
    lines = [json.loads(line) for line in cloister("audit", "export").stdout.splitlines()]
    hashes = {line["number"]: line["hash"] for line in lines if "previous" in line}
    signed = [line for line in lines if "signature" in line]
    assert [line["run"] for line in signed] == [None, run]
    assert [line["hash"] for line in signed] == [hashes[line["number"]] for line in signed]
    of_run = cloister("audit", "export", "--run", run, "--since", "1h").stdout.splitlines()
    assert {json.loads(line)["run"] for line in of_run} == {run}
    missing = cloister("audit", "export", "--format", "otel")
    assert (missing.returncode, "OTEL_EXPORTER_OTLP_ENDPOINT" in missing.stderr) == (2, True)
    nobody = cloister("audit", "export", "--format", "otel", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert nobody.returncode == 4


def test_heads_leave_the_machine_and_doctor_says_how_far(
    cloister: Cloister, run: RunId, data_dir: Path, tmp_path: Path
) -> None:
    heads, away = tmp_path / "heads.jsonl", tmp_path / "away" / "heads.jsonl"
    tried(data_dir)
    (data_dir / "config.toml").write_text(f'audit_heads = ["{heads}", "{away}"]\n')
    assert cloister("serve", "--background", "--port", "0").returncode == 0
    assert cloister("serve", "--stop").returncode == 0
    assert cloister("audit", "verify", "--against", str(heads)).returncode == 0
    newest = json.loads(heads.read_text().splitlines()[-1])["number"]
    assert newest == json.loads(cloister("audit", "show", "--json").stdout.splitlines()[-1])["number"]
    found = [each["found"] for each in json.loads(cloister("doctor", "--json").stdout)["findings"]]
    assert f"sent to {heads} up to entry {newest}" in found
    assert any("No such file" in line for line in found)
    assert f"signed up to entry {newest}" in found
    (tmp_path / "empty").write_text("nothing")
    refused = cloister("audit", "verify", "--against", str(tmp_path / "empty"))
    assert (refused.returncode, "holds no signed head" in refused.stderr) == (2, True)

    # `verify` looks there by itself: a rollback of the whole data directory is found without any option.
    plain = cloister("audit", "verify")
    assert (plain.returncode, plain.stdout.partition(":")[0]) == (0, "OK")
    lines = heads.read_text()
    heads.write_text(lines.replace('"number":', '"number":9', 1))
    assert "is not signed by its key" in cloister("audit", "verify").stdout
    heads.unlink()
    missing = cloister("audit", "verify")
    assert missing.returncode == 1 and f"heads sent to {heads} cannot be read" in missing.stdout
    heads.write_text(lines)
    for file in data_dir.glob("cloister.*"):
        file.unlink()
    assert cloister("token", "add", "ada", "--role", "viewer").returncode == 0
    other = cloister("audit", "verify")
    assert other.returncode == 1 and "was exported and is gone" in other.stdout
    (data_dir / "config.toml").write_text('audit_heads = ["heads.jsonl"]\n')
    assert "is no place for signed heads" in cloister("serve", "--background", "--port", "0").stderr


def test_removing_a_run_is_no_finding(cloister: Cloister, run: RunId, data_dir: Path) -> None:
    (data_dir / "runs" / f"{run}.git").mkdir(parents=True)
    assert cloister("rm", run).returncode == 0
    assert "RunRemoved" in cloister("audit", "show").stdout
    assert cloister("audit", "verify").returncode == 0


def test_the_key_is_replaced_on_request(cloister: Cloister, run: RunId) -> None:
    first = cloister("audit", "key").stdout
    second = cloister("audit", "key", "--rotate").stdout
    assert first != second
    assert cloister("audit", "verify", "--key", first.strip()).returncode == 0


def test_an_empty_data_directory_has_no_audit_to_verify(cloister: Cloister) -> None:
    assert cloister("audit", "show").stdout == ""
    done = cloister("audit", "verify")
    assert (done.returncode, done.stdout.startswith("NOT OK: log: There is no audit")) == (1, True)


def test_a_log_of_an_older_version_is_audited_from_now_on(
    cloister: Cloister, run: RunId, data_dir: Path
) -> None:
    to_version_1(data_dir / "cloister.db")
    assert cloister("ps").returncode == 0
    assert "Backfilled" in cloister("audit", "show").stdout
    assert cloister("audit", "verify").returncode == 0


def test_a_receipt_is_a_page_or_json(cloister: Cloister, run: RunId) -> None:
    shown = cloister("receipt", "last")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"# Receipt of run `{run}`\n")
    assert "Signature: `" in shown.stdout
    assert json.loads(cloister("receipt", run, "--json").stdout)["run"] == run


def test_follow_shows_what_comes(plain_env: dict[str, str], run: RunId, data_dir: Path) -> None:
    argv = [sys.executable, "-m", "cloister", "audit", "show", "--follow", "--json"]
    with subprocess.Popen(argv, env=plain_env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["number"] == 1

        async def more() -> RunId:
            async with opened(data_dir / "cloister.db") as backbone:
                return await whole_run(backbone)

        second = anyio.run(more)
        deadline = time.monotonic() + 30
        while json.loads(process.stdout.readline())["run"] != second:
            assert time.monotonic() < deadline
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130


def test_a_server_signs_what_it_entered_when_it_stops(cloister: Cloister, data_dir: Path) -> None:
    assert cloister("serve", "--background", "--port", "0").returncode == 0
    try:
        place = json.loads((data_dir / "server.json").read_text())
        token = (data_dir / "token").read_text().strip()
        request = urllib.request.Request(
            f"{place['url']}/v1/runs/none/stop", method="POST", headers={"Authorization": f"Bearer {token}"}
        )
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)
    finally:
        assert cloister("serve", "--stop").returncode == 0
    verdict = json.loads(cloister("audit", "verify", "--json").stdout)
    assert (verdict["ok"], verdict["checkpoints"]) == (True, 2)
    assert verdict["signed"] == verdict["entries"] > 1


def test_a_moment_is_a_date_or_an_age() -> None:
    assert read_since("2h", 10_000.0) == 2_800 * 1_000_000
    assert read_since("1970-01-02T00:00:00Z", 0.0) == 86_400 * 1_000_000
    assert read_since("1970-01-02T01:00:00+01:00", 0.0) == 86_400 * 1_000_000
    for text in ("", "yesterday", "5 h", "-1h", "99999999999d"):
        with pytest.raises(UserError):
            read_since(text, 0.0)


def test_an_entry_whose_detail_was_spoilt_is_still_shown_on_one_line() -> None:
    for detail in ("no json \x1b[2J", "[1]", '{"a":"x\\ny\\u001b[31m","b":{"c":[1]}}'):
        line = entry_line(AuditEntry(1, 0, "K\n", "r\x1b", 2, "w\r", detail, None, "", ""))
        assert "\n" not in line
        assert "\x1b" not in line
