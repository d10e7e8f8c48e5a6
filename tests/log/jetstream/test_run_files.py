"""Save points on their way from one machine to another, through a real NATS server."""

import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from nats.js.errors import ServiceUnavailableError
from tests.log.jetstream.servers import NatsServer, one_server

from cloister.core.errors import CloisterError
from cloister.core.ids import RunId, new_run_id
from cloister.forge.host import LocalRepositories, ensure_bare
from cloister.log.jetstream.link import Cluster, open_link, patiently
from cloister.log.jetstream.objects import open_objects
from cloister.log.jetstream.run_files import SharedRepositories

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with one_server(tmp_path / "nats") as started:
        yield started


@asynccontextmanager
async def machine(data: Path, server: NatsServer) -> AsyncGenerator[SharedRepositories]:
    with anyio.fail_after(60):
        async with open_link(Cluster((server.url,))) as link:
            local = LocalRepositories(data)
            yield SharedRepositories(local, data / "runs", await open_objects(link), ensure_bare)


def git(bare: Path, *words: str, text: str = "") -> str:
    who = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        ["git", "--git-dir", bare, *words], input=text, text=True, capture_output=True, check=True, env=who
    )
    return done.stdout.strip()


def save(bare: Path, text: str, ref: str = "refs/cloister/save") -> str:
    """A commit with one file, packed as a save point is."""
    blob = git(bare, "hash-object", "-w", "--stdin", text=text)
    tree = git(bare, "mktree", text=f"100644 blob {blob}\tfile\n")
    commit = git(bare, "commit-tree", tree, "-m", "save")
    git(bare, "update-ref", ref, commit)
    git(bare, "repack", "-q", "-d")
    return commit


async def begun(repositories: SharedRepositories, text: str) -> tuple[RunId, str]:
    """A run whose first save point is shared."""
    run = new_run_id()
    bare = await repositories.open(run)
    bare.parent.mkdir(parents=True, exist_ok=True)
    await ensure_bare(bare)
    commit = save(bare, text)
    await repositories.share(run, 1)
    return run, commit


async def test_a_save_point_goes_on_elsewhere_and_its_change_comes_back(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a", server) as one, machine(tmp_path / "b", server) as other:
        run, first = await begun(one, "one\n")
        taken = await other.open(run)
        assert git(taken, "cat-file", "-p", f"{first}:file") == "one"
        git(taken, "update-ref", "-d", "refs/cloister/save")
        second = save(taken, "two\n", "refs/cloister/next")
        await other.share(run, 2)
        back = await one.open(run)
        assert (
            git(back, "for-each-ref", "--format=%(refname) %(objectname)") == f"refs/cloister/next {second}"
        )
        assert git(back, "cat-file", "-p", f"{second}:file") == "two"
        git(back, "fsck", "--full", "--strict")


async def test_a_machine_whose_run_was_claimed_again_shares_nothing(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a", server) as one, machine(tmp_path / "b", server) as other:
        run, _ = await begun(one, "one\n")
        taken = await other.open(run)
        await other.share(run, 2)
        save(await LocalRepositories(tmp_path / "a").open(run), "late\n")
        with pytest.raises(CloisterError) as fenced:
            await one.share(run, 1)
        assert fenced.value.code == "fenced"
        kept = save(taken, "two\n")
        await other.share(run, 2)
        assert git(await one.open(run), "rev-parse", "refs/cloister/save") == kept


async def test_work_that_is_not_shared_yet_stays_when_the_repository_is_opened_again(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a", server) as one:
        run, _ = await begun(one, "one\n")
        newer = save(await one.open(run), "two\n")
        assert git(await one.open(run), "rev-parse", "refs/cloister/save") == newer


async def test_no_configuration_and_no_hook_travels(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a", server) as one, machine(tmp_path / "b", server) as other:
        run, _ = await begun(one, "one\n")
        bare = await one.open(run)
        git(bare, "config", "core.sshCommand", "touch /tmp/pwned")
        (bare / "hooks").mkdir()
        (bare / "hooks" / "pre-receive").write_text("#!/bin/sh\n")
        save(bare, "two\n")
        await one.share(run, 1)
        taken = await other.open(run)
        assert "sshCommand" not in (taken / "config").read_text()
        assert not (taken / "hooks").exists()


async def test_a_run_that_was_removed_on_one_machine_is_gone_on_the_other(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a", server) as one, machine(tmp_path / "b", server) as other:
        run, _ = await begun(one, "one\n")
        assert await other.exists(run)
        bare = await other.open(run)
        await one.remove(run, "ann")
        with pytest.raises(CloisterError) as removed:
            await other.open(run)
        assert removed.value.code == "run_removed"
        assert not bare.exists()
        assert not await other.exists(run)


async def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a", server) as one, machine(tmp_path / "b", server) as other:
        run, _ = await begun(one, "damaged\n")
        async with open_link(Cluster((server.url,))) as link:
            files = await link.jetstream.object_store("cloister-files")
            record = await (await open_objects(link)).record(run)
            assert record is not None
            for each in await files.list(ignore_deletes=True):
                if each.name.encode() in record.data:
                    await files.put(each.name, b"something else")
        with pytest.raises(CloisterError, match="no intact file") as refused:
            await other.open(run)
        assert refused.value.code == "file_lost"


async def test_a_request_waits_while_the_servers_choose_a_leader() -> None:
    answers = [ServiceUnavailableError(503, "JetStream system temporarily unavailable", 10_008)] * 2

    async def ask() -> str:
        if answers:
            raise answers.pop()
        return "stored"

    assert await patiently(ask) == "stored"


async def test_only_old_files_without_a_record_are_removed(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a", server) as one, machine(tmp_path / "b", server) as other:
        run, commit = await begun(one, "kept\n")
        await one.remove((await begun(one, "gone\n"))[0], "ann")
        assert await one.sweep() == 0
        assert await one.sweep(fresh_seconds=0.0) > 0
        assert await one.sweep(fresh_seconds=0.0) == 0
        assert git(await other.open(run), "cat-file", "-p", f"{commit}:file") == "kept"
