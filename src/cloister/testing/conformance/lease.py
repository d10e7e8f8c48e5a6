"""What every lease and every store of run repositories promises: run each promise with a fresh `Rig`."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol

import anyio

from cloister.core.errors import CloisterError
from cloister.core.ids import Lease, OwnerId, new_owner_id, new_run_id
from cloister.forge.api import RunRepositories
from cloister.testing.conformance import expect, promises, refused


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


REPOSITORIES_PROMISES: tuple[RepositoriesPromise, ...] = promises(__name__, RepositoriesRig)
