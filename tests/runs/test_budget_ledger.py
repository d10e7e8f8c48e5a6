"""The levels above the run: derived from the log, the same for every process, and never promised twice."""

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import pytest

from cloister.agent.budget.purse import Held
from cloister.core.budget import (
    Account,
    BudgetTree,
    Call,
    Over,
    PeriodLimits,
    ProjectLimits,
    Spend,
    UserLimits,
)
from cloister.core.events import AttemptStarted, BudgetExtended, ModelReplied, ModelSpent
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import Budget, NewRun, Usage
from cloister.log.api import Fence
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone
from cloister.runs.budget import BudgetLedger, above, accounts, run_accounts

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 3, 17, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0
TREE = BudgetTree(
    organisation=PeriodLimits(tokens=10_000),
    project=(
        ProjectLimits(match="*/billing", period="day", dollars=1.0),
        ProjectLimits(match="*/web*", steps=5),
    ),
    user=(UserLimits(name="ann", tokens=4_000), UserLimits(name="*", tokens=9_000)),
)
SMALL_CALL = Call(100, 300, keep_back=False)


class Clock:
    """Stands still until it is told."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@asynccontextmanager
async def opened(
    path: Path,
    tree: BudgetTree = TREE,
    *,
    now: Callable[[], float] | None = None,
    owner: str = "o-1111",
    dead: tuple[str, ...] = (),
) -> AsyncGenerator[tuple[SqliteBackbone, BudgetLedger]]:
    def lives(name: OwnerId) -> bool:
        return name not in dead

    async with open_backbone(path / "log.db", owner_lives=lives, now=now or Clock(NOON)) as backbone:
        yield backbone, BudgetLedger(backbone, tree, lambda: OwnerId(owner), now or Clock(NOON))


async def begun(backbone: SqliteBackbone, repo: str, who: str) -> Fence:
    run, _ = await backbone.admit(NewRun("p", repo), who)
    fence = await backbone.claim(OwnerId("o-1111"), run)
    assert fence is not None
    return fence


def replied(tokens: int, cost: float | None = None) -> ModelReplied:
    return ModelReplied(0, 1, "p:m", "", (), Usage(tokens - 1, 1), 0.1, cost=cost)


def by_level(accounts: tuple[Account, ...]) -> dict[str, tuple[str, Spend]]:
    return {account.level: (account.name, account.spent) for account in accounts}


async def test_what_was_spent_is_what_the_log_says_at_every_level(tmp_path: Path) -> None:
    clock = Clock(NOON)
    async with opened(tmp_path, now=clock) as (backbone, _):
        one = await begun(backbone, "/src/billing", "ann")
        other = await begun(backbone, "/src/webshop", "bob")
        clock.at += 30
        await backbone.append(one, [replied(1_000, 0.25), ModelSpent(0, "judge", "p:j", Usage(90, 10), 0.1)])
        await backbone.append(other, [replied(500, 0.5)])
        found = by_level(await backbone.totals(partial(above, TREE, clock.at, one.run)))
        assert found == {
            "organisation": ("all", Spend(2, 1_600, 0.75, 60.0, unpriced=100)),
            "project": ("*/billing", Spend(1, 1_100, 0.25, 30.0, unpriced=100)),
            "user": ("ann", Spend(1, 1_100, 0.25, 30.0, unpriced=100)),
        }
        every = [
            (account.level, account.name) for account in await backbone.totals(partial(accounts, TREE, NOON))
        ]
        assert every == [
            ("organisation", "all"),
            ("project", "*/billing"),
            ("project", "*/web*"),
            ("user", "ann"),
            ("user", "bob"),
        ]


@pytest.mark.parametrize("said", [Usage(10**30, 10**19), Usage(-(10**30), -5)])
async def test_absurd_usage_in_an_old_log_blocks_no_user(tmp_path: Path, said: Usage) -> None:
    tree = BudgetTree(user=(UserLimits(name="bob", tokens=10_000),))
    async with opened(tmp_path, tree) as (backbone, ledger):
        odd = await begun(backbone, "/src/odd", "ann")
        await backbone.append(odd, [ModelReplied(0, 1, "p:m", "", (), said, 0.1)])
        other = await begun(backbone, "/src/web", "bob")
        assert isinstance(await ledger.reserve(other.run, "t1", SMALL_CALL), Held)
        found = by_level(await backbone.totals(partial(above, tree, NOON, odd.run)))
        assert 0 <= found["user"][1].tokens <= 10**12


async def test_ledger_is_the_same_after_a_restart_and_when_rebuilt_from_the_log(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (backbone, ledger):
        fence = await begun(backbone, "/src/billing", "ann")
        await backbone.append(fence, [replied(1_000, 0.25)])
        assert isinstance(await ledger.reserve(fence.run, "t1", SMALL_CALL), Held)
        await ledger.release("t1")
        await backbone.append(fence, [replied(200, 0.1)])
        before = await backbone.totals(partial(accounts, TREE, NOON))
    async with opened(tmp_path) as (backbone, ledger):
        assert await backbone.totals(partial(accounts, TREE, NOON)) == before
        with closing(sqlite3.connect(tmp_path / "log.db")) as db:
            for table in ("read", "runs", "days", "extensions", "holds"):
                db.execute(f"DROP TABLE ledger_{table}")
        assert await backbone.totals(partial(accounts, TREE, NOON)) == before


async def test_what_is_held_counts_until_it_is_released_and_dead_owners_hold_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        backbone, ledger = await stack.enter_async_context(opened(tmp_path))
        fence = await begun(backbone, "/src/other", "ann")
        held = await ledger.reserve(fence.run, "t1", Call(3_000, 600, keep_back=False))
        assert isinstance(held, Held)
        refused = await ledger.reserve(fence.run, "t2", Call(500, 300, keep_back=False))
        assert isinstance(refused, Over)
        assert (refused.level, refused.name, refused.what) == ("user", "ann", "tokens")
        _, elsewhere = await stack.enter_async_context(opened(tmp_path, owner="o-2222", dead=("o-1111",)))
        assert isinstance(await elsewhere.reserve(fence.run, "t3", Call(500, 300, keep_back=False)), Held)
        await elsewhere.release("t3")
        await elsewhere.release("t3")


async def test_runs_in_two_processes_never_hold_the_same_token_twice(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        tree = BudgetTree(organisation=PeriodLimits(tokens=10 * 400))
        sides = [
            await stack.enter_async_context(opened(tmp_path, tree, owner=owner))
            for owner in ("o-1111", "o-2222")
        ]
        fence = await begun(sides[0][0], "/r", "ann")
        results: list[Held | Over] = []

        async def call(number: int) -> None:
            ledger = sides[number % 2][1]
            results.append(await ledger.reserve(fence.run, f"t{number}", SMALL_CALL))

        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(call, number)
        assert sum(isinstance(result, Held) for result in results) == 10


async def test_a_new_period_begins_with_nothing_spent(tmp_path: Path) -> None:
    clock = Clock(NOON)
    async with opened(tmp_path, now=clock) as (backbone, ledger):
        fence = await begun(backbone, "/src/billing", "ann")
        await backbone.append(fence, [replied(3_900, 0.99)])
        priced = Call(100, 300, dollars_in=0.01, dollars_out=0.0001, keep_back=False)
        assert isinstance(await ledger.reserve(fence.run, "t1", priced), Over)
        clock.at += DAY
        answer = await ledger.reserve(fence.run, "t2", priced)
        assert isinstance(answer, Over), "the project's day is over, the user's month is not"
        assert answer.level == "user"
        clock.at += 31 * DAY
        assert isinstance(await ledger.reserve(fence.run, "t3", priced), Held)


async def test_what_a_person_added_counts_for_all_runs_of_that_level(tmp_path: Path) -> None:
    async with opened(tmp_path) as (backbone, ledger):
        one = await begun(backbone, "/src/web1", "bob")
        other = await begun(backbone, "/src/web2", "bob")
        await backbone.append(one, [replied(10)] * 5)
        refused = await ledger.reserve(other.run, "t1", SMALL_CALL)
        assert isinstance(refused, Over)
        assert (refused.level, refused.name, refused.what) == ("project", "*/web*", "steps")
        await backbone.append(one, [BudgetExtended("project", "*/web*", "steps", 1, "ada")])
        assert isinstance(await ledger.reserve(other.run, "t2", SMALL_CALL), Held)
        assert isinstance(await ledger.reserve(one.run, "t3", SMALL_CALL), Over)


async def test_a_run_and_its_attempts_are_accounts_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as (backbone, _):
        fence = await begun(backbone, "/r", "ann")
        await backbone.append(
            fence, [replied(100, 0.5), ModelSpent(None, "judge", "p:j", Usage(5, 5), 0.1, 0.25)]
        )
        accounts = list(run_accounts(await backbone.read(fence.run)))
    assert [(one.level, one.name, one.spent.tokens, one.spent.dollars) for one in accounts] == [
        ("run", fence.run, 110, 0.75),
        ("attempt", "0", 100, 0.5),
    ]
    assert accounts[0].limits.tokens == 2_000_000


async def test_an_attempt_is_shown_with_its_share_of_the_budget_also_before_it_spent_anything(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (backbone, _):
        fence = await begun(backbone, "/r", "ann")
        shares = (Budget(steps=20, tokens=700), Budget(steps=40, tokens=1_400))
        started = [AttemptStarted(number, "p:m", budget=share) for number, share in enumerate(shares)]
        await backbone.append(fence, [*started, replied(100, 0.5)])
        _, one, other = run_accounts(await backbone.read(fence.run))
    assert (one.name, one.limits.steps, one.limits.tokens, one.spent.tokens) == ("0", 20, 700, 100)
    assert (other.name, other.limits.steps, other.limits.tokens, other.spent.tokens) == ("1", 40, 1_400, 0)


async def test_an_append_meant_for_the_end_of_the_log_is_none_when_the_log_went_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as (backbone, _):
        fence = await begun(backbone, "/r", "ann")
        last = (await backbone.read(fence.run))[-1].seq
        assert len(await backbone.append(fence, [replied(10)], last=last)) == 1
        assert await backbone.append(fence, [replied(10)], last=last) == ()
        assert len(await backbone.read(fence.run)) == last + 1
        assert RunId(fence.run) == fence.run
