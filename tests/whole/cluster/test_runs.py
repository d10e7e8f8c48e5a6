"""Runs on several machines: admitted on one, driven by another, and taken over when that one is lost."""

import os
import signal
from contextlib import suppress
from typing import Any

import anyio
from nats.js.errors import NoKeysError
from tests.log.jetstream.servers import NatsServer
from tests.whole.cluster.conftest import PROMPT, Start, bodies, one_story

from cloister.core.ids import is_id
from cloister.log.jetstream.link import Cluster, open_link
from cloister.log.jetstream.shared_log import Behind, open_shared_log


def test_a_run_admitted_on_one_machine_is_driven_by_a_worker_and_seen_from_both(
    machine: Start, nats: NatsServer
) -> None:
    front = machine("front", "--cluster", nats.url, "--name", "front", "--role", "api")
    worker = machine("worker", "--role", "worker")
    ledger = front.ledger()
    shown = front("run", PROMPT, "--repo", str(ledger), "--model", front.fix)
    assert "✓ proven" in shown.stdout
    one_story(front.events())
    assert front.events() == worker.events()
    assert not (front.data_dir / "sandboxes").exists()
    assert front("diff", "last").stdout == worker("diff", "last").stdout != ""
    continued = front("say", "last", "Now say thanks.")
    assert "continues" in continued.stdout
    worker("watch", "last", code=None)
    front.until(lambda: front.kinds()[-1] == "RunFinished")
    assert front.events() == worker.events()


def test_another_machine_resumes_the_run_of_a_killed_one_from_its_save_point(machine: Start) -> None:
    front = machine("front", "--role", "api")
    workers = [machine("left", "--role", "worker"), machine("right", "--role", "worker")]
    ledger = front.ledger()
    front("run", PROMPT, "--repo", str(ledger), "--model", front.fix, "--detach")
    front.until(lambda: "ChecksRan" in front.kinds())
    lost = next(one for one in workers if one.sandbox_processes())
    lost.kill_server()
    shown = front("watch", "last")
    assert "✓ proven" in shown.stdout
    events = front.events()
    one_story(events)
    owners = [body["owner"] for body in bodies(events, "RunClaimed")]
    assert len(owners) == len(set(owners)) == 2
    assert bodies(events, "RunResumed")
    lost("serve", "--background", "--role", "worker")
    assert [list((one.data_dir / "sandboxes").iterdir()) for one in workers] == [[], []]


def test_a_machine_that_slept_longer_than_its_lease_does_nothing_twice(machine: Start) -> None:
    front = machine("front", "--role", "api")
    workers = [machine("left", "--role", "worker"), machine("right", "--role", "worker")]
    ledger = front.ledger()
    front("run", PROMPT, "--repo", str(ledger), "--model", front.fix, "--detach")
    front.until(lambda: "ChecksRan" in front.kinds())
    asleep = next(one for one in workers if one.sandbox_processes())
    pid = asleep.server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "✓ proven" in front("watch", "last").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    one_story(front.events())
    # It ends what it had, and works again under another lease.
    front.until(lambda: not asleep.sandbox_processes())
    other = next(one for one in workers if one is not asleep)
    other("serve", "--stop")
    shown = front("run", PROMPT, "--repo", str(front.ledger("again")), "--model", front.fix)
    assert "✓ proven" in shown.stdout


WAITS = """
[[reply]]
calls = [{ tool = "bash", command = "echo one > note.txt" }]

[[reply]]
calls = [{ tool = "ask", question = "Which one?", choices = ["left", "right"], default = "left", wait_seconds = 900 }]

[[reply]]
expect = "right"
calls = [{ tool = "bash", command = "sleep 600", seconds = 900 }]
"""


def test_a_run_is_answered_told_and_stopped_from_a_machine_that_does_not_drive_it(machine: Start) -> None:
    front = machine("front", "--role", "api")
    machine("worker", "--role", "worker")
    ledger, script = front.ledger(), front.script(WAITS)
    front("run", "Ask.", "--repo", str(ledger), "--model", script, "--check", "true", "--detach")
    front.until(lambda: front.has("QuestionAsked"))
    assert "asks you" in front("ps").stdout
    front("answer", "last", "right")
    front.until(lambda: len(bodies(front.events(), "ActionDecided")) >= 2)
    front("say", "last", "Hurry up.")
    front("stop", "last")
    front("watch", "last", code=None)
    one_story(front.events())
    assert bodies(front.events(), "RunFinished")[0]["outcome"] == "stopped"
    assert "note.txt" in front("diff", "last").stdout


def test_runs_pause_while_nats_is_away_and_go_on_when_it_is_back(machine: Start, nats: NatsServer) -> None:
    front = machine("front", "--role", "api")
    worker = machine("worker", "--role", "worker")
    ledger = front.ledger()
    front("run", PROMPT, "--repo", str(ledger), "--model", front.fix, "--detach")
    front.until(lambda: "ChecksRan" in front.kinds())
    nats.kill()
    front.until(lambda: not worker.sandbox_processes())
    refused = front("ps", code=3)
    assert "The cluster does not answer" in refused.stderr
    nats.start()
    front.until(lambda: "RunFinished" in front.kinds())
    events = front.events()
    one_story(events)
    assert bodies(events, "RunFinished")[0]["outcome"] == "proven"


def test_a_machine_that_cannot_follow_the_log_leaves_its_runs_to_others(
    machine: Start, nats: NatsServer
) -> None:
    worker = machine("worker")
    worker("run", PROMPT, "--repo", str(worker.ledger()), "--model", worker.fix, "--detach")
    worker.until(lambda: bool(worker.sandbox_processes()))

    async def upgrade() -> None:
        async with open_link(Cluster((nats.url,))) as link:
            shared = await open_shared_log(link)
            while True:
                with suppress(Behind):
                    await shared.append(b'{"version": 2, "changes": [], "head": ""}', await shared.tip())
                    return

    async def owners() -> list[str]:
        async with open_link(Cluster((nats.url,))) as link:
            bucket: Any = await link.jetstream.key_value(f"{link.cluster.name}-leases")
            try:
                return [key for key in await bucket.keys() if is_id(key)]
            except NoKeysError:
                return []

    assert anyio.run(owners)
    anyio.run(upgrade)
    worker.until(lambda: not worker.sandbox_processes())
    worker.until(lambda: not anyio.run(owners))
    refused = worker("ps", code=3)
    assert "upgrade this machine" in refused.stderr


def test_a_second_machine_with_a_name_is_refused_and_the_first_goes_on(machine: Start) -> None:
    front = machine("front", "--role", "api")
    other = machine("other", "--name", "front", code=3)
    assert "called front: give this one another name" in (other.data_dir / "server.log").read_text()
    assert front("ps").returncode == 0
