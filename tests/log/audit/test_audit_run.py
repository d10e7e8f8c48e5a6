"""A whole run with a real sandbox: everything it did is entered, signed, and on the receipt beside its branch."""

import hashlib
import json
import os
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.log.audit.test_tampering import verify

from cloister.app.settings import read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.app.wiring import open_app
from cloister.core.events import ChangeDelivered, Event
from cloister.core.requests import NewRun
from cloister.log.audit.keys import KEY_FILE, HostKey
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.reader import AuditReader
from cloister.runs.receipt import page
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

SCRIPT = r"""
[[reply]]
say = "Look ![x](http://evil.example/p.png)"
calls = [
  { tool = "bash", command = "printf 'good\n' > '<img src=x>.txt'; printf 'good\n' > state; python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT nowhere.example:443 HTTP/1.1\\r\\n\\r\\n'); print(s.recv(99))\"; true" },
  { tool = "write", path = ".git/config", content = "x" },
]
[[reply]]
calls = [{ tool = "finish", summary = "Made it good." }]
"""


async def test_what_a_run_did_is_entered_signed_and_beside_its_branch(data_dir: Path, tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("state", "bad\n")
    repo.commit("base")
    script = tmp_path / "fix.script.toml"
    script.write_text(SCRIPT)
    settings = read_settings({"PATH": os.environ["PATH"], "USER": "ada"}, data_dir)
    new = NewRun("make it good", str(repo.path), model=f"script:{script}", checks=("grep -q good state",))
    async with open_app(settings, role="embedded") as app:
        verbs = LocalVerbs(app, Caller("ada", "admin"))
        run = (await verbs.runs.submit(new)).id
        async with app.backbone.follow(run) as items:
            events = [item async for item in items if isinstance(item, Event)]
        receipt = await verbs.runs.receipt(run)
        verdict = await app.backbone.verify_audit(HostKey(data_dir / KEY_FILE).public())
    assert verdict.problems == ()
    with AuditReader(settings.log_path) as audit:
        entered = [(entry.kind, json.loads(entry.detail)) for entry in audit.page(limit=100_000, run=run)]
    decided = [detail for kind, detail in entered if kind == "ActionDecided"]
    assert [(each["action"], each["effect"]) for each in decided if each["effect"] == "deny"] == [
        ("write: .git/config", "deny")
    ]
    assert {detail["host"] for kind, detail in entered if kind == "ConnectionDecided"} == {"nowhere.example"}

    assert receipt.outcome == "proven", receipt.reason
    assert {file.path for file in receipt.files} == {"<img src=x>.txt", "state"}
    assert [(way.host, way.effect) for way in receipt.connections] == [("nowhere.example", "deny")]
    assert (receipt.proof.red_before, receipt.proof.red_now) == (1, 0)
    assert receipt.proof.proven_commit is not None
    assert receipt.seal is not None
    assert receipt.isolation[0].tier in page(receipt)

    delivered = [event.body for event in events if isinstance(event.body, ChangeDelivered)]
    assert [body.receipt for body in delivered] == [True]
    note = repo.git("notes", "--ref=cloister", "show", delivered[0].branch) + "\n"
    assert "- `<img src=x>.txt` +1 −0 added" in note
    trailer = repo.git(
        "log", "-1", "--format=%(trailers:key=Cloister-Receipt,valueonly)", delivered[0].branch
    )
    assert trailer.strip() == f"sha256:{hashlib.sha256(note.encode()).hexdigest()}"
    assert repo.git("status", "--porcelain") == ""

    # The head that the branch carries reveals a rollback of the whole data directory.
    assert await to_thread.run_sync(verified, data_dir, repo.path) == (0, "OK")
    async for file in anyio.Path(data_dir).glob("cloister.*"):
        await file.unlink()
    async with open_backbone(settings.log_path, owner_lives=lambda _: True) as backbone:
        await backbone.note("Login", "ada", {})
    assert (await to_thread.run_sync(verified, data_dir))[0] == 0
    assert await to_thread.run_sync(verified, data_dir, repo.path) == (1, "NOT OK")


def verified(data_dir: Path, *against: Path) -> tuple[int, str]:
    done = verify(data_dir, *(word for place in against for word in ("--against", str(place))))
    return done.returncode, done.stdout.partition(":")[0]
