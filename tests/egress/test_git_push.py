"""Git over HTTPS to the run's own repository, against git's own server: fetch yes, one branch yes, all else no."""

import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.egress.git_server import IDENTITY, TOKEN, git_server, make_repository
from tests.egress.world import SANDBOX, World, listening, over_tls

from cloister.core.events import RequestDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import CredentialEntry
from cloister.egress.credentials import Vault, read_credentials
from cloister.egress.factory import Doorway
from cloister.egress.git_push import Repository, commands_end, pushed_refs
from cloister.egress.rules import DoorEvent
from cloister.policy.api import Layer, Pointed, Policy, Rule

pytestmark = pytest.mark.anyio

HOST = "forge.test"
BRANCH = "cloister/mend-it-abc123"
ADDRESS = f"https://{HOST}/team/ledger.git"


class Forge:
    """A forge with a repository, and a working copy as a program inside has it."""

    def __init__(self, tmp_path: Path, proxy: str, authority: Path) -> None:
        self.bare = tmp_path / "forge" / "team" / "ledger.git"
        self.work = tmp_path / "work"
        self.proxy = proxy
        self.authority = str(authority)
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "https_proxy": proxy,
            "GIT_SSL_CAINFO": str(authority),
            "GIT_TERMINAL_PROMPT": "0",
            **IDENTITY,
        }

    async def git(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        argv = ["git", *words]
        return await anyio.run_process(argv, env=self._env, cwd=cwd or self.work, check=False)

    async def refs(self) -> set[str]:
        listed = await anyio.run_process(["git", "for-each-ref", "--format=%(refname)"], cwd=self.bare)
        return set(listed.stdout.decode().split())


@asynccontextmanager
async def forging(
    tmp_path: Path, *rules: Rule, above: Policy = (), untrusted: Callable[[], bool] | None = None
) -> AsyncGenerator[tuple[Forge, World]]:
    """A forge behind a door of a run whose policy has these rules and one for the credential."""
    world = World()
    bare = tmp_path / "forge" / "team" / "ledger.git"
    await anyio.to_thread.run_sync(make_repository, bare)
    entry = CredentialEntry("forge", "env:TOKEN", HOST, basic="x-access-token", paths=("/team/**",))
    policy = (Layer("host", (Rule("credential:forge", "allow"), *rules), may_widen=True),)

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        world.log.append(body)

    doorway = Doorway(
        credentials=read_credentials((entry,), "test"), vault=Vault({"TOKEN": TOKEN}), outside=world.outside
    )
    outfit = doorway.outfit((*policy, *above), record, Repository.of(ADDRESS, BRANCH), untrusted=untrusted)
    authority = tmp_path / "authority.pem"
    authority.write_bytes(outfit.authority)

    async def enter(client: SocketStream) -> None:
        await outfit.serve(SANDBOX, client)

    async with (
        listening(over_tls(world, HOST, git_server(tmp_path / "forge"))) as server,
        listening(enter) as port,
    ):
        world.has(HOST, server)
        forge = Forge(tmp_path, f"http://127.0.0.1:{port}", authority)
        cloned = await forge.git("clone", "-q", ADDRESS, str(forge.work), cwd=tmp_path)
        assert cloned.returncode == 0, cloned.stderr
        await forge.git("commit", "-q", "--allow-empty", "-m", "mended")
        yield forge, world


async def test_the_run_fetches_and_pushes_its_own_branch_without_ever_having_the_token(
    tmp_path: Path,
) -> None:
    async with forging(tmp_path) as (forge, world):
        pushed = await forge.git("push", "-q", "origin", f"HEAD:refs/heads/{BRANCH}")
        assert pushed.returncode == 0, pushed.stderr
        big = os.urandom(3_000_000)
        (forge.work / "big").write_bytes(big)
        await forge.git("add", "big")
        await forge.git("commit", "-q", "-m", "big")
        again = await forge.git("push", "-q", "origin", f"HEAD:{BRANCH}")
        assert again.returncode == 0, again.stderr
        fetched = await forge.git("fetch", "-q", "origin", BRANCH)
        assert fetched.returncode == 0
        assert f"refs/heads/{BRANCH}" in await forge.refs()
        found = await forge.git("grep", "-r", TOKEN, cwd=tmp_path / "work")
        assert not found.stdout
    assert TOKEN not in repr(world.log)
    assert ("allow", "POST", "/team/ledger.git/git-receive-pack", "forge") in world.requests


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("HEAD:main",), "not the run's own branch"),
        (("+HEAD:stable",), "not the run's own branch"),
        ((f"HEAD:refs/heads/{BRANCH}-2",), "not the run's own branch"),
        ((f"HEAD:refs/tags/{BRANCH}",), "not the run's own branch"),
        (("HEAD:refs/cloister/attempt/0",), "not the run's own branch"),
        ((f"HEAD:{BRANCH}", "HEAD:main"), "not the run's own branch"),
        ((":stable",), "deletes a ref"),
        ((f"HEAD:{BRANCH}", ":stable"), "deletes a ref"),
        (("-o", "merge_request.create", f"HEAD:{BRANCH}"), "asks for push-options"),
    ],
)
async def test_every_other_push_is_refused_and_moves_nothing(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    async with forging(tmp_path) as (forge, world):
        before = await forge.refs()
        options = words[:2] if words[0] == "-o" else ()
        pushed = await forge.git("push", "-q", *options, "origin", *words[len(options) :])
        assert pushed.returncode != 0
        assert await forge.refs() == before
    denied = [body.rule for body in world.log if isinstance(body, RequestDecided) and body.effect == "deny"]
    assert any(why in rule for rule in denied), denied


async def test_a_rule_of_the_policy_still_forbids_the_run_its_own_branch(tmp_path: Path) -> None:
    async with forging(tmp_path, Rule("push:**", "deny")) as (forge, _):
        assert (await forge.git("push", "-q", "origin", f"HEAD:{BRANCH}")).returncode != 0
        assert f"refs/heads/{BRANCH}" not in await forge.refs()


async def test_another_repository_of_the_same_forge_is_not_reached(tmp_path: Path) -> None:
    async with forging(tmp_path) as (forge, _):
        for address in (f"https://{HOST}/team/other.git", f"https://{HOST}/team/ledger.git/../other.git"):
            assert (await forge.git("ls-remote", address)).returncode != 0


async def test_a_rule_that_opens_the_whole_host_opens_no_push(tmp_path: Path) -> None:
    async with forging(tmp_path, Rule(f"connect:{HOST}", "allow")) as (forge, _):
        await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                ["cp", "-r", str(forge.bare), str(forge.bare.with_name("other.git"))], check=True
            )
        )
        other = f"https://{HOST}/team/other.git"
        assert (await forge.git("ls-remote", other)).returncode == 0
        for ref in ("main", BRANCH):
            assert (await forge.git("push", "-q", other, f"HEAD:{ref}")).returncode != 0
        assert (await forge.git("push", "-q", "origin", "HEAD:main")).returncode != 0


DISGUISES = [
    "/team/ledger.git/git-receive%2Dpack",
    "/team/ledger.git/git-receive-pack/",
    "/team/ledger.git//git-receive-pack",
    "/team/other.git/../ledger.git/git-receive-pack",
    "/team/ledger.git/GIT-RECEIVE-PACK",
    "/team/ledger.git/git-receive-pack;x",
    "/team/ledger.git%2fgit-receive-pack",
    "/team/%256cedger.git/git-receive-pack",
]


async def test_a_push_in_disguise_is_refused_even_where_the_whole_host_is_open(tmp_path: Path) -> None:
    body = line(ZERO + b" " + NEW + b" refs/heads/main") + b"0000"
    async with forging(tmp_path, Rule(f"connect:{HOST}", "allow")) as (forge, world):
        before = len(world.requests)
        words = (
            "curl",
            "-sS",
            "--path-as-is",
            "--cacert",
            forge.authority,
            "-x",
            forge.proxy,
            "--data-binary",
            "@-",
        )
        for path in DISGUISES:
            asked = await anyio.run_process([*words, f"https://{HOST}{path}"], input=body, check=False)
            assert b"is denied" in asked.stdout, asked
    assert [effect for effect, *_ in world.requests[before:]] == ["deny"] * len(DISGUISES)


def line(text: bytes) -> bytes:
    return b"%04x%s" % (len(text) + 4, text)


OLD, NEW, ZERO = b"1" * 40, b"2" * 40, b"0" * 40


@pytest.mark.parametrize(
    "data",
    [
        line(OLD + b" " + ZERO + b" refs/heads/x") + b"0000",
        line(OLD + b" " + NEW + b" refs/heads/x\0push-options") + b"0000",
        line(OLD + b" " + NEW + b" refs/heads/x\0push-cert=nonce") + b"0000",
        line(b"push-cert\0report-status") + b"0000",
        line(b"shallow " + OLD) + line(OLD + b" " + NEW + b" refs/heads/x") + b"0000",
        line(OLD + b" " + NEW + b" HEAD") + b"0000",
        line(OLD + b" " + NEW + b"  refs/heads/x") + b"0000",
        line(OLD + b" " + NEW + b" refs/heads/x y") + b"0000",
        line(OLD + b" " + NEW + b" refs/heads/x")
        + line(OLD + b" " + NEW + b" refs/heads/y\0ofs-delta")
        + b"0000",
        line(OLD.upper().replace(b"1", b"A") + b" " + NEW + b" refs/heads/x") + b"0000",
        b"0001",
        b"0004",
        b"zzzz",
    ],
)
def test_what_is_not_a_plain_push_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        if not commands_end(data)[1]:
            raise ValueError
        pushed_refs(data)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_commands_or_refused(data: bytes) -> None:
    try:
        end, whole = commands_end(data)
        refs = pushed_refs(data[:end]) if whole else ()
    except ValueError:
        return
    assert all(ref.startswith("refs/") for ref in refs)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=6), st.binary(max_size=9))
def test_commands_that_arrive_byte_by_byte_end_where_the_whole_does(lines: list[bytes], more: bytes) -> None:
    data = b"".join(line(one + b"x") for one in lines) + b"0000" + more
    end, whole, size = 0, False, 0
    while not whole:
        size += 1
        end, whole = commands_end(data[:size], end)
    assert (end, whole) == commands_end(data) == (len(data) - len(more), True)


@pytest.mark.parametrize(
    "address",
    [
        "http://forge.test/a/b",
        "git@forge.test:a/b",
        "/srv/repo",
        "https://forge.test",
        "https://forge.test/a/../b",
        "https://forge.test/a%2fb",
    ],
)
def test_only_a_plain_https_address_is_the_runs_own_repository(address: str) -> None:
    assert Repository.of(address, BRANCH) is None


async def test_where_a_push_is_of_high_impact_git_inside_does_not_push(tmp_path: Path) -> None:
    """To push, git must speak to the forge first, and from then on text from outside may have been read."""
    high = Layer("org", high_impact=(Pointed("push:*"),))
    async with forging(tmp_path, above=(high,), untrusted=lambda: True) as (forge, world):
        assert (await forge.git("push", "-q", "origin", f"HEAD:{BRANCH}")).returncode != 0
        assert f"refs/heads/{BRANCH}" not in await forge.refs()
    denied = [body.rule for body in world.log if isinstance(body, RequestDecided) and body.effect == "deny"]
    assert denied == ["ask push:*: high impact after untrusted text: a connection cannot wait for a person"]
