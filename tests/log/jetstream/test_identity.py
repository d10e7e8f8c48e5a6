"""Credentials of machines against a real NATS server with the files that `cloister cluster init` makes."""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
import nats.errors
import pytest
from anyio import to_thread
from tests.log.jetstream.servers import guarded_server

from cloister.app.cluster.joining import Invitation, begin, invite
from cloister.app.settings import MachineRole
from cloister.core.errors import CloisterError, UserError
from cloister.core.ids import OwnerId, RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.log.api import Peer
from cloister.log.jetstream.backbone import open_backbone
from cloister.log.jetstream.identity import Key
from cloister.log.jetstream.leases import open_leases
from cloister.log.jetstream.link import Cluster, open_link
from cloister.log.jetstream.machines import open_machines
from cloister.log.jetstream.objects import digest_of, open_objects

pytestmark = pytest.mark.anyio


@contextmanager
def guarded(data_dir: Path) -> Generator[str]:
    """The one server of a cluster that was begun in `data_dir`, on a port of its own; yields its address."""
    with guarded_server(begin(data_dir, ["127.0.0.1"], "acme") / "nats-1") as url:
        yield url


def cluster(data_dir: Path, url: str, machine: str, role: MachineRole = "worker") -> Cluster:
    """What a machine connects with after it joined."""
    given = invite(data_dir, machine, role)
    path = data_dir / f"{machine}.json"
    path.write_bytes(msgspec.json.encode(given.credentials))
    return Cluster((url,), given.name, 1, machine, path, data_dir / "cluster" / "ca.crt")


def lives(_: OwnerId) -> bool:
    return True


async def test_a_machine_with_credentials_writes_to_the_log_over_tls(tmp_path: Path) -> None:
    with guarded(tmp_path / "first") as url, anyio.fail_after(60):
        own = cluster(tmp_path / "first", url, "w1")
        async with (
            open_link(own) as link,
            open_backbone(link, tmp_path / "copy.db", owner_lives=lives) as backbone,
        ):
            run, _ = await backbone.admit(NewRun("p", "/nowhere"), "me")
            assert await backbone.claim(new_owner_id(), run) is not None


async def test_credentials_suffice_for_leases_files_of_runs_and_the_list_of_machines(tmp_path: Path) -> None:
    with guarded(tmp_path / "first") as url, anyio.fail_after(60):
        one, other = (cluster(tmp_path / "first", url, name) for name in ("w1", "w2"))
        async with open_link(one) as link, open_link(other) as second:
            objects = await open_objects(link)
            file = tmp_path / "file"
            file.write_bytes(b"x" * 300_000)
            digest = digest_of(file)
            await objects.put(digest, file)
            assert await objects.replace(RunId("r-12345"), b"{}", 0) is not None
            there = await open_objects(second)
            await there.get(digest, tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == file.read_bytes()
            assert await there.runs() == ("r-12345",)
            assert await there.sweep((), 0.0) == 1
            machines = await open_machines(link, lives)
            now = time.time()
            await machines.join(Peer("w1", "i", new_owner_id(), "worker", "1", now, now), 0.0)
            assert [each.name for each in await (await open_machines(second, lives)).all()] == ["w1"]
        await to_thread.run_sync(_hold_and_bury, one)


def _hold_and_bury(own: Cluster) -> None:
    owner = new_owner_id()
    with open_leases(own) as leases, leases.hold(owner):
        assert leases.lives(owner)
        assert leases.remove_dead() == ()


@pytest.mark.parametrize(
    ("role", "subject"),
    [
        ("worker", "acme.log.w2"),
        ("worker", "acme.delta.w2.r-1"),
        ("worker", "$JS.API.STREAM.DELETE.acme"),
        ("worker", "$JS.API.STREAM.PURGE.acme"),
        ("worker", "$JS.API.STREAM.UPDATE.acme"),
        ("worker", "$JS.API.STREAM.INFO.other"),
        ("worker", "$KV.acme-machines.w2"),
        ("worker", "$KV.acme-machines.drain.w2"),
        ("api", "acme.delta.w1.r-1"),
    ],
)
async def test_a_machine_cannot_use_what_its_role_does_not_need(
    tmp_path: Path, role: MachineRole, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    with guarded(tmp_path / "first") as url, anyio.fail_after(60):
        own = cluster(tmp_path / "first", url, "w1", role)
        async with open_link(own) as link:
            await link.client.publish(subject, b"x")
            with pytest.raises(nats.errors.Error):
                await link.client.request("$JS.API.STREAM.INFO.acme.never", b"", timeout=0.3)
            await link.client.flush()
            problems = [record.getMessage().lower() for record in caplog.records]
            assert any("permissions violation" in text and subject.lower() in text for text in problems)


async def test_a_machine_cannot_listen_to_what_others_are_answered(tmp_path: Path) -> None:
    with guarded(tmp_path / "first") as url, anyio.fail_after(60):
        own, other = (cluster(tmp_path / "first", url, name) for name in ("w1", "w2"))
        async with open_link(own) as spy, open_link(other) as link:
            heard: list[bytes] = []

            async def hear(message: object) -> None:
                heard.append(b"heard")

            for subject in ("_INBOX.>", "_INBOX.w2.>", "acme.log.>"):
                await spy.client.subscribe(subject, cb=hear)
            await spy.client.flush()
            async with open_backbone(link, tmp_path / "copy.db", owner_lives=lives) as backbone:
                await backbone.admit(NewRun("p", "/nowhere"), "me")
            await spy.client.flush()
            assert heard == []


async def test_credentials_of_another_cluster_or_none_are_refused(tmp_path: Path) -> None:
    begin(tmp_path / "other", ["127.0.0.1"], "acme")
    with guarded(tmp_path / "first") as url, anyio.fail_after(60):
        ca = tmp_path / "first" / "cluster" / "ca.crt"
        foreign = msgspec.structs.replace(cluster(tmp_path / "other", url, "w1"), ca=ca)
        for wrong in (foreign, Cluster((url,), "acme", 1, "w1", None, ca)):
            with pytest.raises(CloisterError) as refused:
                async with open_link(wrong):
                    pass
            assert refused.value.code == "cluster_refused", refused.value.message


async def test_a_server_that_the_authority_does_not_vouch_for_is_not_believed(tmp_path: Path) -> None:
    begin(tmp_path / "other", ["127.0.0.1"], "acme")
    with guarded(tmp_path / "first") as url, anyio.fail_after(60):
        wrong = tmp_path / "other" / "cluster" / "ca.crt"
        mine = msgspec.structs.replace(cluster(tmp_path / "first", url, "w1"), ca=wrong)
        with pytest.raises(CloisterError) as refused:
            async with open_link(mine):
                pass
        assert refused.value.code == "cluster_away"
        assert "certificate" in refused.value.message.lower()


def test_a_key_is_read_as_it_was_written_and_a_damaged_one_is_refused() -> None:
    for kind, first in (("operator", "O"), ("account", "A"), ("user", "U")):
        key = Key.make(kind)  # pyright: ignore[reportArgumentType]
        assert key.public[0] == first and key.seed[:2] == f"S{first}"
        assert Key.read(key.seed).public == key.public
        broken = key.seed[:20] + ("A" if key.seed[20] != "A" else "B") + key.seed[21:]
        for text in (broken, "", "é", key.public):
            with pytest.raises(UserError) as refused:
                Key.read(text)
            assert refused.value.code == "bad_credentials"


def test_an_invitation_has_no_key_that_lets_others_in(tmp_path: Path) -> None:
    folder = begin(tmp_path, ["10.0.0.1"], "acme")
    given: Invitation = invite(tmp_path, "w1", "worker")
    assert Key.read(given.credentials.seed).kind == "user"
    assert msgspec.json.decode((folder / "cluster.json").read_bytes())["account"] not in str(given)
    with pytest.raises(UserError) as again:
        begin(tmp_path, ["10.0.0.1"], "acme")
    assert again.value.code == "cluster_begun"
    shutil.rmtree(folder)
    with pytest.raises(UserError) as none:
        invite(tmp_path, "w1", "worker")
    assert none.value.code == "no_cluster"
