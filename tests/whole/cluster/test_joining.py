"""Machines let in with invitations, over TLS, and emptied by a person."""

import json
from pathlib import Path

import pytest
from tests.conftest import borrowing
from tests.log.jetstream.servers import guarded_server
from tests.whole.cluster.conftest import PROMPT, bodies, one_story
from tests.whole.e2e.conftest import Cloister


def joined(first: Cloister, warm_dir: Path, at: Path, name: str, role: str, url: str) -> Cloister:
    """A machine as a person sets it up: invited on the first one, and started."""
    one = Cloister(borrowing(warm_dir, at / name), at)
    (one.data_dir / "config.toml").write_text("port = 0\n")
    invitation = at / f"{name}.join"
    invitation.write_text(first("cluster", "invite", name, "--role", role).stdout)
    assert (
        f"This machine is {name} of the cluster cloister." in one("cluster", "join", str(invitation)).stdout
    )
    config = one.data_dir / "config.toml"
    config.write_text(config.read_text().replace("tls://127.0.0.1:4222", url))
    again = one("cluster", "join", str(invitation), code=2)
    assert "has a table [cluster] already" in again.stderr
    one("serve", "--background")
    return one


def states(one: Cloister) -> dict[str, tuple[bool, int]]:
    """Machine → whether it is drained, and how many runs it drives."""
    lines = one("cluster", "status", "--json").stdout.splitlines()
    return {each["name"]: (each["draining"], each["running"]) for each in map(json.loads, lines)}


@pytest.fixture
def first(tmp_path: Path) -> Cloister:
    return Cloister(tmp_path / "first", tmp_path)


def test_a_drained_machine_hands_its_runs_to_another(first: Cloister, warm_dir: Path, tmp_path: Path) -> None:
    first("cluster", "init", "127.0.0.1")
    machines: list[Cloister] = []
    with guarded_server(first.data_dir / "cluster" / "nats-1") as url:
        try:
            for name, role in (("front", "api"), ("left", "worker"), ("right", "worker")):
                machines.append(joined(first, warm_dir, tmp_path, name, role, url))
            front, *workers = machines
            front("run", PROMPT, "--repo", str(front.ledger()), "--model", front.fix, "--detach")
            front.until(lambda: "BaselineTaken" in front.kinds())
            busy = next(one for one in workers if one.sandbox_processes())
            name = busy.data_dir.name
            assert "takes no more runs" in front("cluster", "drain", name).stdout
            assert "✓ proven" in front("watch", "last").stdout
            one_story(front.events())
            claimed = [body["owner"] for body in bodies(front.events(), "RunClaimed")]
            assert len(set(claimed)) == 2
            empty = {"front": (False, 0), "left": (name == "left", 0), "right": (name == "right", 0)}
            front.until(lambda: states(front) == empty)
            wrong = front("cluster", "drain", "nobody", code=2)
            assert "no machine 'nobody'" in wrong.stderr
        finally:
            for one in machines:
                one("serve", "--stop", code=None)


def test_a_folder_of_nats_is_made_for_each_host_and_only_once(first: Cloister) -> None:
    shown = first("cluster", "init", "10.0.0.1", "10.0.0.2", "n3.example.org", "--name", "acme").stdout
    folder = first.data_dir / "cluster"
    for number, host in enumerate(("10.0.0.1", "10.0.0.2", "n3.example.org"), start=1):
        assert f"{folder}/nats-{number} to {host}" in shown
        assert (folder / f"nats-{number}" / "server.key").stat().st_mode & 0o777 == 0o600
    assert "cluster invite" in first("cluster", "init", "10.0.0.1", code=2).stderr
    assert "1, 3 or 5" in Cloister(first.cwd / "two", first.cwd)("cluster", "init", "a", "b", code=2).stderr
    assert "lower-case" in first("cluster", "invite", "A B", code=2).stderr
    bad = first.cwd / "bad.join"
    bad.write_text("{}")
    assert "is no invitation" in first("cluster", "join", str(bad), code=2).stderr
