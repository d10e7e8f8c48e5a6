"""What every forge, every lease and every store of run repositories promises."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
from tests.whole.conformance.suites.base import expect, promises, refused

from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.ids import Lease, OwnerId, RunId, new_owner_id, new_run_id
from cloister.forge.api import Base, Delivered, Forge, Proposal, RunRepositories
from cloister.forge.change import describe
from cloister.forge.host import in_bare


@dataclass(frozen=True)
class Place:
    """A place with a repository of at least two commits on its default branch."""

    forge: Forge
    repo: str
    branch: str
    """Its default branch."""
    commit: str
    """Where that branch is."""
    tag: str
    """An annotated tag of the commit before."""
    tagged: str
    empty: str
    """A repository without commits."""
    missing: str
    """A repository that does not exist."""
    branches: Callable[[], Awaitable[dict[str, str]]]
    """Branch → commit, as the place has them now."""


async def check_fetching_head(place: Place, scratch: Path) -> None:
    """Without a ref the default branch is fetched, whole; fetching again changes nothing."""
    bare = scratch / "head.git"
    for _ in range(2):
        base = await place.forge.fetch(place.repo, None, bare)
        _require(base.commit == place.commit, f"HEAD is {place.commit} and {base.commit} was fetched")
        _require(base.branch == place.branch, f"HEAD is on {place.branch}, not on {base.branch}")
    whole = await in_bare(bare, "fsck", "--connectivity-only", "--no-dangling", place.commit)
    _require(whole.ok, "something is missing in what was fetched")


async def check_fetching_refs(place: Place, scratch: Path) -> None:
    """A branch, a tag and a commit can be named; only a branch is reported as one."""
    wanted = {
        place.branch: (place.commit, place.branch),
        place.tag: (place.tagged, None),
        place.tagged: (place.tagged, None),
    }
    for number, (ref, (commit, branch)) in enumerate(wanted.items()):
        base = await place.forge.fetch(place.repo, ref, scratch / f"ref-{number}.git")
        found = Base(base.commit, base.branch)
        _require(found == Base(commit, branch), f"{ref} is {commit} on {branch}, not {found}")


async def check_bad_input(place: Place, scratch: Path) -> None:
    """What cannot be fetched is refused with a stable code and one sentence."""
    bare = scratch / "bad.git"
    code, _ = await _refusal(place, place.missing, None, bare)
    _require(code in ("no_repository", "fetch_failed"), f"a missing repository is {code}")
    code, _ = await _refusal(place, place.empty, None, bare)
    _require(code == "empty_repository", f"an empty repository is {code}")
    for ref in ("no-such-branch", "f" * 40, "-x", "--upload-pack=/bin/false", "a..b", "$(id)", "x" * 4_000):
        code, text = await _refusal(place, place.repo, ref, bare)
        _require(code == "unknown_ref", f"the unknown ref {ref[:20]} is {code}: {text}")
    code, _ = await _refusal(place, place.repo, "main\nx", bare)
    _require(code == "bad_name", f"a ref with a newline is {code}")


async def check_delivering(place: Place, scratch: Path) -> None:
    """A change arrives as a new branch, once, under a name of its own; no other branch moves."""
    bare = scratch / "deliver.git"
    await place.forge.fetch(place.repo, None, bare)
    before = await place.branches()
    first = await _deliver(place, bare, place.tagged)
    if first is None:
        _require(await place.branches() == before, "nothing was delivered and a branch moved")
        return
    _require(first.branch == "cloister/one", f"a free name was asked for, and {first.branch} was taken")
    again = await _deliver(place, bare, place.tagged)
    _require(again == first, "the same change was delivered twice under two names")
    other = await _deliver(place, bare, place.commit)
    if other is None or other.branch == first.branch:
        raise AssertionError("a branch that exists was moved")
    expected = {**before, first.branch: place.tagged, other.branch: place.commit}
    _require(await place.branches() == expected, "the branches are not what was delivered")


async def check_delivering_again(place: Place, scratch: Path) -> None:
    """A later round moves its branch only forward, and only if the branch still ends at the round before."""
    bare = scratch / "again.git"
    await place.forge.fetch(place.repo, None, bare)
    before = await place.branches()
    first = await _deliver(place, bare, place.tagged)
    if first is None:
        return
    second = await _deliver(place, bare, place.commit, previous=place.tagged)
    if second is None:
        raise AssertionError("the first round was delivered and the second was not")
    _require(second.branch == first.branch, f"{first.branch} was to move on, and {second.branch} was made")
    _require(second.commit == place.commit, f"{place.commit} was to be pushed, not {second.commit}")
    back = await _deliver(place, bare, place.tagged, previous=place.commit)
    if back is None or back.branch == first.branch:
        raise AssertionError("a branch was moved back")
    expected = {**before, first.branch: place.commit, back.branch: place.tagged}
    _require(await place.branches() == expected, "the branches are not what was delivered")


async def _deliver(place: Place, bare: Path, commit: str, previous: str | None = None) -> Delivered | None:
    proposal = Proposal(
        RunId("r-conform"), place.repo, place.tagged, commit, "cloister/one", bare, previous=previous
    )
    return await place.forge.deliver(await describe(proposal))


async def _refusal(place: Place, repo: str, ref: str | None, bare: Path) -> tuple[str, str]:
    try:
        base = await place.forge.fetch(repo, ref, bare)
    except (UserError, OutsideError) as error:
        _require("\n" not in error.message and error.message.endswith("."), f"no sentence: {error.message}")
        return error.code, error.message
    except CloisterError as error:
        raise AssertionError(f"bad input is reported as {type(error).__name__}: {error}") from error
    raise AssertionError(f"{repo} at {ref} was fetched as {base.commit}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


class LeaseRig(Protocol):
    """One place that knows no owner yet."""

    def open(self) -> Lease:
        """Another user of the place."""
        ...

    def held_elsewhere(self, owner: OwnerId) -> AbstractContextManager[Callable[[], None]]:
        """Another process that holds `owner`; the function kills it."""
        ...


LeasePromise = Callable[[LeaseRig], None]


def an_owner_lives_while_it_is_held(rig: LeaseRig) -> None:
    one, other, owner = rig.open(), rig.open(), new_owner_id()
    expect([lease.lives(owner) for lease in (one, other)], [False, False])
    with one.hold(owner):
        for _ in range(2):  # asking must not release it
            expect([lease.lives(owner) for lease in (one, other)], [True, True])
        expect(other.lives(new_owner_id()), False)
    expect([lease.lives(owner) for lease in (one, other)], [False, False])
    with other.hold(owner):
        expect(one.lives(owner), True)


def an_owner_is_held_once(rig: LeaseRig) -> None:
    one, other, owner = rig.open(), rig.open(), new_owner_id()
    with one.hold(owner), one.hold(new_owner_id()):
        for lease in (one, other):
            with refused("owner_taken"), lease.hold(owner):
                pass
        expect(other.lives(owner), True)


def a_block_that_fails_releases_its_owner(rig: LeaseRig) -> None:
    lease, owner = rig.open(), new_owner_id()
    with refused("broken"), lease.hold(owner):
        raise CloisterError("broken", "Broken.")
    expect(lease.lives(owner), False)


def a_killed_process_holds_nothing(rig: LeaseRig) -> None:
    lease, owner, survivor = rig.open(), new_owner_id(), new_owner_id()
    with lease.hold(survivor), rig.held_elsewhere(owner) as kill:
        expect(lease.lives(owner), True)
        expect(lease.remove_dead(), ())
        kill()
        expect([lease.lives(each) for each in (owner, survivor)], [False, True])
        expect(lease.remove_dead(), (owner,))
        expect(lease.remove_dead(), ())


LEASE_PROMISES: tuple[LeasePromise, ...] = promises(__name__, LeaseRig)


class RepositoriesRig(Protocol):
    """An empty store."""

    def open(self) -> RunRepositories:
        """Another user of the store."""
        ...


RepositoriesPromise = Callable[[RepositoriesRig], Awaitable[None]]


async def a_repository_is_the_same_for_every_user(rig: RepositoriesRig) -> None:
    one, other = rig.open(), rig.open()
    run, second = new_run_id(), new_run_id()
    expect(await one.exists(run), False)
    await anyio.Path(await one.open(run)).mkdir(parents=True)
    expect([await each.exists(run) for each in (one, other)], [True, True])
    expect(await one.exists(second), False)
    expect(await other.open(run), await one.open(run))
    expect(await one.open(second) == await one.open(run), False)


async def a_removed_repository_is_gone_for_good(rig: RepositoriesRig) -> None:
    one, other = rig.open(), rig.open()
    run, second = new_run_id(), new_run_id()
    for each in (run, second):
        await anyio.Path(await one.open(each)).mkdir(parents=True)
        await anyio.Path(await one.open(each), "HEAD").write_text("ref: refs/heads/main\n")
    expect((await one.remove(run, "ada")).who, "ada")
    await other.remove(run, "grace")
    for repositories in (one, other):
        expect([await repositories.exists(each) for each in (run, second)], [False, True])
        with refused("run_removed"):
            await repositories.open(run)
    expect(await anyio.Path(await other.open(second), "HEAD").exists(), True)


async def a_repository_that_was_never_made_can_be_removed(rig: RepositoriesRig) -> None:
    repositories, run = rig.open(), new_run_id()
    await repositories.remove(run, "ada")
    with refused("run_removed"):
        await repositories.open(run)


async def a_repository_at_work_is_not_collected(rig: RepositoriesRig) -> None:
    one, other = rig.open(), rig.open()
    run = new_run_id()
    asked: list[str] = []

    async def kept() -> frozenset[str] | None:
        asked.append(run)
        return None

    expect(await one.collect(run, 0.0, kept), False)
    async with one.working(run), other.working(run):
        await anyio.Path(await one.open(run)).mkdir(parents=True)
        expect(await other.collect(run, 0.0, kept), False)
    expect(asked, [])
    expect(await other.collect(run, 0.0, kept), False)
    expect(asked, [run])


REPOSITORIES_PROMISES: tuple[RepositoriesPromise, ...] = promises(__name__, RepositoriesRig)
