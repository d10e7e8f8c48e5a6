"""What every backbone promises, one function per promise: run each of `PROMISES` with a fresh `Rig`."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
from msgspec.structs import replace
from tests.whole.conformance.suites.base import expect, promises, refused

from cloister.core.budget import Spend
from cloister.core.errors import CloisterError
from cloister.core.events import (
    AnyBody,
    AskAnswered,
    BudgetExtended,
    ChangeDelivered,
    Delta,
    Event,
    FromOutside,
    ModelReplied,
    ModelText,
    PauseRequested,
    PhaseStarted,
    PromptReceived,
    ResumeRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    StopRequested,
)
from cloister.core.ids import OwnerId, RunId, new_owner_id, new_run_id
from cloister.core.requests import NewRun, Usage
from cloister.log.api import Backbone, Fence, Hold, Payers, RunFilter, Totals

WAIT_SECONDS = 20.0
"""How long a promise may take to be seen; only a broken one takes so long."""

ME = "ann"
NEW = NewRun(prompt="make it green", repo="/somewhere")
STARTED = PhaseStarted("work")
FINISHED = RunFinished("proven", "all checks pass", 0)


class Rig(Protocol):
    """One empty store."""

    def open(self) -> AbstractAsyncContextManager[Backbone]:
        """Another user of the store, as another process would be; several may be open at once."""
        ...

    def bury(self, owner: OwnerId) -> None:
        """From now on `owner` does not live; every other owner does."""
        ...


Promise = Callable[[Rig], Awaitable[None]]


def replied(tokens: int, cost: float | None) -> ModelReplied:
    return ModelReplied(0, 1, "p:m", "", (), Usage(tokens, 0), 0.1, cost=cost)


def bodies(items: Iterable[Event | Delta]) -> list[object]:
    return [item.body if isinstance(item, Event) else item for item in items]


async def claimed(backbone: Backbone, new: NewRun = NEW) -> Fence:
    """A run that was just admitted and claimed by an owner of its own."""
    run, _ = await backbone.admit(new, ME)
    fence = await backbone.claim(new_owner_id(), run)
    if fence is None:
        raise AssertionError("a queued run could not be claimed")
    return fence


async def collect(
    backbone: Backbone, run: RunId, after: int = 0, ready: anyio.Event | None = None
) -> list[Event | Delta]:
    """Everything that `follow` gives until it ends; `ready` is set when the first item came."""
    seen: list[Event | Delta] = []
    with anyio.fail_after(WAIT_SECONDS):
        async with backbone.follow(run, after) as items:
            async for item in items:
                seen.append(item)
                if ready is not None:
                    ready.set()
    return seen


async def an_admitted_run_survives_closing(rig: Rig) -> None:
    async with rig.open() as first:
        run, made = await first.admit(NEW, ME)
        expect(made, True)
    async with rig.open() as second:
        events = await second.read(run)
        expect([(event.run, event.seq, event.body) for event in events], [(run, 1, RunAdmitted(NEW, ME))])
        expect((await second.row(run)).state, "queued")


async def the_same_key_is_the_same_run(rig: Rig) -> None:
    keyed = NewRun(prompt=NEW.prompt, repo=NEW.repo, key="k")
    answers: list[tuple[RunId, bool]] = []

    async def admit(backbone: Backbone) -> None:
        answers.append(await backbone.admit(keyed, ME))

    async with rig.open() as one, rig.open() as other, anyio.create_task_group() as tasks:
        for backbone in (one, other) * 8:
            tasks.start_soon(admit, backbone)
    expect(len({run for run, _ in answers}), 1)
    expect(sum(made for _, made in answers), 1)


async def queued_runs_are_claimed_oldest_first_and_once(rig: Rig) -> None:
    taken: list[RunId] = []

    async def take(backbone: Backbone) -> None:
        if fence := await backbone.claim(new_owner_id()):
            taken.append(fence.run)

    async with rig.open() as one, rig.open() as other:
        runs = [(await one.admit(NEW, ME))[0] for _ in range(6)]
        for backbone in (one, other, one):
            await take(backbone)
        expect(taken, runs[:3])
        async with anyio.create_task_group() as tasks:
            for backbone in (one, other) * 4:
                tasks.start_soon(take, backbone)
        expect(sorted(taken), sorted(runs))


async def a_claim_is_an_event_of_the_log(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        expect((await backbone.read(fence.run))[-1].body, RunClaimed(fence.owner, fence.epoch))
        row = await backbone.row(fence.run)
        expect(
            (row.state, row.owner, row.epoch, row.owner_lives), ("running", fence.owner, fence.epoch, True)
        )


async def a_run_is_claimed_again_only_when_its_owner_is_dead(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        heir = new_owner_id()
        expect(await other.claim(heir), None)
        expect(await other.claim(heir, fence.run), None)
        rig.bury(fence.owner)
        expect((await other.row(fence.run)).owner_lives, False)
        expect(await other.claim(heir), Fence(fence.run, heir, fence.epoch + 1))


async def a_paused_run_shows_why_and_only_its_owner_resumes_it(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        expect(await one.claim(fence.owner, fence.run), None)
        await one.append(fence, [RunPaused("The disk is full.", 1.0)])
        row = await other.row(fence.run)
        expect((row.state, row.reason, row.owner_lives), ("paused", "The disk is full.", True))
        expect(await other.runs(only=RunFilter(state="paused")), (row,))
        expect(await other.runs(only=RunFilter(state="running")), ())
        expect(await one.claim(fence.owner), None)
        expect(await other.claim(new_owner_id(), fence.run), None)
        again = await one.claim(fence.owner, fence.run)
        expect(again, Fence(fence.run, fence.owner, fence.epoch + 1))
        row = await other.row(fence.run)
        expect((row.state, row.reason), ("running", None))
        expect(await other.runs(only=RunFilter(state="running")), (row,))
        with refused("fenced"):
            await one.append(fence, [STARTED])


async def a_pause_of_a_person_and_one_for_disk_end_independently(rig: Rig) -> None:
    async with rig.open() as one:
        fence = await claimed(one)
        await one.append(fence, [RunPaused("The disk is full.", 1.0)])
        await one.append_outside(fence.run, PauseRequested(ME))
        await one.append_outside(fence.run, ResumeRequested(ME))
        expect((await one.row(fence.run)).reason, "The disk is full.")
        again = await one.claim(fence.owner, fence.run)
        assert again is not None
        expect((await one.row(fence.run)).reason, None)
        await one.append_outside(fence.run, PauseRequested(ME))
        expect(await one.claim(fence.owner, fence.run), None)
        await one.append(again, [RunPaused("The disk is full.", 2.0)])
        expect((await one.row(fence.run)).reason, "The disk is full.")
        expect(await one.claim(fence.owner, fence.run) is not None, True)
        expect((await one.row(fence.run)).reason, "Paused by ann.")
        await one.append_outside(fence.run, ResumeRequested(ME))
        expect((await one.row(fence.run)).state, "running")


async def a_paused_run_of_a_dead_owner_is_claimed_by_another(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        await one.append(fence, [RunPaused("The disk is full.", 1.0)])
        rig.bury(fence.owner)
        heir = new_owner_id()
        expect(await other.claim(heir), Fence(fence.run, heir, fence.epoch + 1))
        expect((await other.row(fence.run)).state, "running")


async def a_claim_by_name_takes_that_run_or_nothing(rig: Rig) -> None:
    async with rig.open() as backbone:
        await backbone.admit(NEW, ME)
        second, _ = await backbone.admit(NEW, ME)
        fence = await backbone.claim(new_owner_id(), second)
        expect(fence is not None and fence.run == second, True)
        expect(await backbone.claim(new_owner_id(), second), None)


async def a_finished_run_is_never_claimed(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        await backbone.append(fence, [FINISHED])
        rig.bury(fence.owner)
        expect(await backbone.claim(new_owner_id()), None)
        expect(await backbone.claim(new_owner_id(), fence.run), None)


async def a_fenced_owner_can_no_longer_append(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        old = await claimed(one)
        rig.bury(old.owner)
        fresh = await other.claim(new_owner_id())
        if fresh is None:
            raise AssertionError("the run of a dead owner could not be claimed")
        before = await one.read(old.run)
        with refused("fenced"):
            await one.append(old, [STARTED])
        expect(await one.read(old.run), before)
        await other.append(fresh, [RunResumed(2)])
        with refused("fenced"):
            await one.append(Fence(old.run, fresh.owner, old.epoch), [STARTED])


async def an_append_is_whole_and_numbered_without_gap(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        added = await backbone.append(fence, [STARTED, RunResumed(1), STARTED])
        expect([event.seq for event in added], [3, 4, 5])
        expect((await backbone.read(fence.run))[2:], added)
        with refused("run_finished"):
            await backbone.append(fence, [STARTED, FINISHED, STARTED])
        expect((await backbone.row(fence.run)).last_seq, 5)
        expect(await backbone.append(fence, []), ())


async def a_failing_append_fails_nobody_else(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        dead = await claimed(one)
        rig.bury(dead.owner)
        await other.claim(new_owner_id())
        fences = [await claimed(one) for _ in range(4)]
        fenced = 0

        async def add(fence: Fence) -> None:
            nonlocal fenced
            try:
                await one.append(fence, [STARTED])
            except CloisterError as error:
                expect((error.code, fence), ("fenced", dead))
                fenced += 1

        async with anyio.create_task_group() as tasks:
            for fence in (dead, *fences, dead):
                tasks.start_soon(add, fence)
        expect(fenced, 2)
        expect([(await one.row(fence.run)).last_seq for fence in fences], [3, 3, 3, 3])


async def appends_of_many_have_no_gap_and_keep_each_ones_order(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)

        async def work() -> None:
            for number in range(20):
                await one.append(fence, [RunResumed(number), STARTED])

        async def talk(backbone: Backbone, who: str) -> None:
            for number in range(20):
                await backbone.append_outside(fence.run, PromptReceived(str(number), who))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(talk, one, "here")
            tasks.start_soon(talk, other, "there")
        events = await other.read(fence.run)
        expect([event.seq for event in events], list(range(1, 83)))
        for who in ("here", "there"):
            said = [e.body.text for e in events if isinstance(e.body, PromptReceived) and e.body.who == who]
            expect(said, [str(number) for number in range(20)])


async def nothing_follows_the_end(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        await backbone.append(fence, [FINISHED])
        with refused("run_finished"):
            await backbone.append(fence, [STARTED])
        with refused("run_finished"):
            await backbone.append_outside(fence.run, StopRequested(ME))
        row = await backbone.row(fence.run)
        expect((row.state, row.outcome, row.reason), ("finished", FINISHED.outcome, FINISHED.reason))


async def a_message_queues_a_finished_run_again(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        old = await claimed(one)
        await one.append(old, [FINISHED])
        async with anyio.create_task_group() as tasks:
            for backbone in (one, other):
                tasks.start_soon(backbone.append_outside, old.run, PromptReceived("more", ME, "review"))
        row = await one.row(old.run)
        expect((row.state, row.outcome, row.reason, row.owner), ("queued", None, None, None))
        with refused("fenced"):
            await one.append(old, [STARTED])
        fence = await other.claim(new_owner_id())
        expect((fence and fence.run, fence and fence.epoch), (old.run, 2))
        if fence is not None:
            await other.append(fence, [FINISHED])
        kinds = [type(event.body) for event in await one.read(old.run)][2:]
        expect(kinds, [RunFinished, RunContinued, PromptReceived, PromptReceived, RunClaimed, RunFinished])
        expect(len(await collect(one, old.run)), len(kinds) + 2)


async def a_delivery_after_the_end_leaves_the_run_finished(rig: Rig) -> None:
    sent = ChangeDelivered("https://forge/a", "fix", url="https://forge/a/1", number=1, who=ME)
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        with refused("run_not_finished"):
            await other.append_outside(fence.run, sent)
        await one.append(fence, [FINISHED])
        sealed = await one.seal(fence.run)
        expect((await other.append_outside(fence.run, sent)).body, sent)
        expect(bodies(await collect(one, fence.run))[-2:], [sent, replace(FINISHED, again=True)])
        row = await other.row(fence.run)
        expect((row.state, row.outcome, row.last_seq), ("finished", FINISHED.outcome, 5))
        expect(await one.claim(new_owner_id()), None)
        expect((await one.audit(run=fence.run))[-2].who, ME)
        expect((await one.seal(fence.run)) != sealed, True)
        expect((await one.verify_audit()).ok, True)
        await one.append_outside(fence.run, PromptReceived("more", ME))
        expect((await one.row(fence.run)).state, "queued")


async def people_need_no_fence(rig: Rig) -> None:
    said: tuple[FromOutside, ...] = (
        PromptReceived("look at the lock", ME),
        AskAnswered("a", "allow", ME),
        StopRequested(ME),
    )
    async with rig.open() as one, rig.open() as other:
        queued, _ = await one.admit(NEW, ME)
        for run in (queued, (await claimed(one)).run):
            added = [await other.append_outside(run, body) for body in said]
            expect((await one.read(run))[-3:], tuple(added))
            expect(bodies(added), list(said))


async def reading_pages_through_the_log_in_order(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        await backbone.append(fence, [STARTED] * 7)
        whole = await backbone.read(fence.run)
        expect([event.seq for event in whole], list(range(1, 10)))
        expect(await backbone.read(fence.run, after=3, limit=2), whole[3:5])
        expect(await backbone.read(fence.run, after=9), ())


async def a_reader_of_all_runs_sees_each_event_once_in_the_order_of_commits(rig: Rig) -> None:
    async with rig.open() as backbone:
        one, two = await claimed(backbone), await claimed(backbone)
        for fence in (one, two, one):
            await backbone.append(fence, [STARTED])
        await backbone.append(two, [FINISHED])
        cursor, seen = 0, list[Event]()
        for _ in range(5):
            cursor, page = await backbone.since(cursor, ["PhaseStarted", "RunFinished"], 2)
            seen += page
        wanted = [(one.run, STARTED), (two.run, STARTED), (one.run, STARTED), (two.run, FINISHED)]
        expect([(event.run, event.body) for event in seen], wanted)
        await backbone.append(one, [FINISHED])
        _, page = await backbone.since(cursor, ["RunFinished"])
        expect([event.run for event in page], [one.run])


async def unknown_runs_are_named_as_such(rig: Rig) -> None:
    unknown = new_run_id()
    async with rig.open() as backbone:
        with refused("no_such_run"):
            await backbone.read(unknown)
        with refused("no_such_run"):
            await backbone.row(unknown)
        with refused("no_such_run"):
            await backbone.claim(new_owner_id(), unknown)
        with refused("no_such_run"):
            await backbone.append(Fence(unknown, new_owner_id(), 1), [STARTED])
        with refused("no_such_run"):
            await backbone.append_outside(unknown, StopRequested(ME))
        with refused("no_such_run"):
            async with backbone.follow(unknown):
                pass


async def following_goes_from_the_past_to_the_end_without_gap_or_repetition(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        await one.append(fence, [STARTED] * 300)
        seen: dict[str, list[Event | Delta]] = {}
        ready = [anyio.Event(), anyio.Event()]

        async def watch(name: str, backbone: Backbone, after: int, begun: anyio.Event) -> None:
            seen[name] = await collect(backbone, fence.run, after, begun)

        with anyio.fail_after(WAIT_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, "here", one, 0, ready[0])
                tasks.start_soon(watch, "there", other, 250, ready[1])
                for begun in ready:
                    await begun.wait()
                for number in range(50):
                    await one.append(fence, [RunResumed(number)])
                    await other.append_outside(fence.run, PromptReceived(str(number), ME))
                await one.append(fence, [FINISHED])
        log = list(await one.read(fence.run))
        expect(seen["here"], log)
        expect(seen["there"], log[250:])


async def following_a_finished_run_ends(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        await backbone.append(fence, [STARTED, FINISHED])
        expect(bodies(await collect(backbone, fence.run, after=2)), [STARTED, FINISHED])
        expect(await collect(backbone, fence.run, after=4), [])
        expect(await collect(backbone, fence.run, after=400), [])


async def fragments_come_between_the_events(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        with anyio.fail_after(WAIT_SECONDS):
            async with backbone.follow(fence.run, after=2) as items:
                backbone.publish(fence.run, ModelText(0, "a"))
                await backbone.append(fence, [STARTED])
                # The reader has not begun: the first fragment may be past for it, the second may not.
                backbone.publish(fence.run, ModelText(0, "b"))
                seen: list[object] = []
                async for item in items:
                    seen += bodies([item])
                    if item == ModelText(0, "b"):
                        break
        expect([item for item in seen if item != ModelText(0, "a")], [STARTED, ModelText(0, "b")])
        expect(seen[-1], ModelText(0, "b"))
        expect(len(await backbone.read(fence.run)), 3)


async def a_slow_reader_misses_fragments_and_never_events(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        with anyio.fail_after(WAIT_SECONDS):
            async with backbone.follow(fence.run) as items:
                first = await anext(aiter(items))
                for number in range(2_000):
                    backbone.publish(fence.run, ModelText(0, str(number)))
                many: list[AnyBody] = [STARTED] * 100
                for _ in range(20):
                    await backbone.append(fence, many)
                await backbone.append(fence, [FINISHED])
                seen = [first, *[item async for item in items]]
        expect([e for e in seen if isinstance(e, Event)], list(await backbone.read(fence.run)))
        if sum(isinstance(item, ModelText) for item in seen) >= 2_000:
            raise AssertionError("fragments for a reader that does not read were all kept")


async def who_wants_no_fragments_gets_none(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        newest = (await backbone.read(fence.run))[-1]
        async with (
            backbone.follow(fence.run, newest.seq - 1, deltas=False) as events,
            backbone.follow(fence.run, newest.seq - 1) as everything,
        ):
            expect([await anext(aiter(items)) for items in (events, everything)], [newest] * 2)
            backbone.publish(fence.run, ModelText(0, "x"))
            added = await backbone.append(fence, [STARTED])
            expect(await anext(aiter(events)), added[0])
            expect([await anext(aiter(everything)) for _ in range(2)], [ModelText(0, "x"), added[0]])


async def showing_to_nobody_is_nothing(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        backbone.publish(fence.run, ModelText(0, "x"))
        backbone.publish(new_run_id(), ModelText(0, "x"))
        async with backbone.follow(fence.run) as items:
            expect((await anext(aiter(items))), (await backbone.read(fence.run))[0])
        backbone.publish(fence.run, ModelText(0, "x"))
        expect(len(await backbone.append(fence, [STARTED])), 1)


async def runs_are_listed_newest_first(rig: Rig) -> None:
    async with rig.open() as backbone:
        ids = [(await backbone.admit(NewRun(prompt=f"p{n}", repo="r"), ME))[0] for n in range(5)]
        rows = await backbone.runs()
        expect([row.id for row in rows], ids[::-1])
        expect([row.prompt for row in await backbone.runs(limit=2)], ["p4", "p3"])
        expect(await backbone.row(ids[0]), rows[-1])


async def runs_are_listed_page_by_page_with_a_filter(rig: Rig) -> None:
    async with rig.open() as backbone:
        ids = [
            (await backbone.admit(NewRun(prompt=f"p{n}", repo=f"r{n % 2}"), f"u{n % 3}"))[0] for n in range(6)
        ]
        first = await backbone.runs(limit=4)
        rest = await backbone.runs(limit=4, before=first[-1].id)
        expect([row.id for row in (*first, *rest)], ids[::-1])
        expect(await backbone.runs(before=ids[0]), ())
        fence = await backbone.claim(new_owner_id(), ids[3])
        if fence is None:
            raise AssertionError("a queued run could not be claimed")
        await backbone.append(fence, [FINISHED])
        for only, wanted in (
            (RunFilter(state="finished"), [3]),
            (RunFilter(outcome=FINISHED.outcome), [3]),
            (RunFilter(outcome="red"), []),
            (RunFilter(repo="r0"), [4, 2, 0]),
            (RunFilter(who="u1"), [4, 1]),
            (RunFilter(state="queued", repo="r1"), [5, 1]),
        ):
            expect([row.id for row in await backbone.runs(only=only)], [ids[n] for n in wanted])
        page = await backbone.runs(limit=1, before=ids[4], only=RunFilter(repo="r0"))
        expect([row.id for row in page], [ids[2]])
        with refused("no_such_run"):
            await backbone.runs(before=new_run_id())


async def a_run_is_found_by_the_start_of_its_id(rig: Rig) -> None:
    async with rig.open() as backbone:
        with refused("no_such_run"):
            await backbone.resolve("last")
        one, _ = await backbone.admit(NEW, ME)
        other, _ = await backbone.admit(NEW, ME)
        expect(await backbone.resolve("last"), other)
        for name in (one, one[2:]):
            expect(await backbone.resolve(name), one)
        with refused("ambiguous_run"):
            await backbone.resolve("r-")
        for name in ("", "r-nothing", "%"):
            with refused("no_such_run"):
                await backbone.resolve(name)


async def actions_of_runs_and_notes_are_one_chain(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        await other.note("Login", ME, {"route": "/v1/runs"})
        await one.append(fence, [STARTED, RunResumed(1)])
        await other.append_outside(fence.run, StopRequested(ME))
        entries = await one.audit()
        expect([entry.number for entry in entries], list(range(1, len(entries) + 1)))
        kinds = [entry.kind for entry in entries if entry.kind not in ("KeyMade", "HeadBegun")]
        expect(kinds, ["RunAdmitted", "RunClaimed", "Login", "StopRequested"])
        expect([entry.previous for entry in entries[1:]], [entry.hash for entry in entries[:-1]])
        expect([entry.kind for entry in await other.audit(run=fence.run)], [k for k in kinds if k != "Login"])
        expect(await other.audit(after=1, limit=1), entries[1:2])
        expect((await one.verify_audit()).ok, True)


async def a_refused_append_leaves_no_audit_entry(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        before = await backbone.audit()
        with refused("run_finished"):
            await backbone.append(fence, [FINISHED, FINISHED])
        with refused("fenced"):
            await backbone.append(Fence(fence.run, new_owner_id(), fence.epoch), [FINISHED])
        expect(await backbone.audit(), before)


async def the_head_outside_covers_every_acknowledged_entry(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        for backbone in (one, other, one):
            await backbone.note("Login", ME, {})
            verdict = await other.verify_audit()
            expect((verdict.ok, verdict.anchor and verdict.anchor.number), (True, verdict.entries))
        key = await one.rotate_audit_key()
        await other.note("Login", ME, {})
        verdict = await one.verify_audit()
        expect((verdict.ok, verdict.anchor and verdict.anchor.key), (True, key))


async def an_accepted_audit_says_so(rig: Rig) -> None:
    async with rig.open() as backbone:
        await backbone.accept_audit(ME, "restored")
        verdict = await backbone.verify_audit()
        expect(
            (verdict.ok, [(each.who, each.reason) for each in verdict.accepted]), (True, [(ME, "restored")])
        )


async def the_end_of_a_run_is_signed_with_it(rig: Rig) -> None:
    async with rig.open() as backbone:
        fence = await claimed(backbone)
        expect(await backbone.seal(fence.run), None)
        await backbone.append(fence, [FINISHED])
        seal = await backbone.seal(fence.run)
        if seal is None:
            raise AssertionError("the end of the run is not signed")
        entries = await backbone.audit()
        expect((seal.run, seal.number, seal.hash), (fence.run, entries[-1].number, entries[-1].hash))
        await backbone.note("Login", ME, {})
        expect((await backbone.verify_audit(seal.key)).signed, seal.number)
        await backbone.sign_audit()
        verdict = await backbone.verify_audit(seal.key)
        expect((verdict.ok, verdict.signed), (True, verdict.entries))
        await backbone.sign_audit()
        expect((await backbone.verify_audit()).checkpoints, verdict.checkpoints)


async def a_forgotten_run_is_gone_and_the_audit_still_speaks_of_it(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence, kept = await claimed(one), await claimed(one)
        with refused("run_not_finished"):
            await one.forget(fence.run, ME)
        await one.append(fence, [replied(100, 0.5), FINISHED])
        expect(await one.forget(fence.run, ME), False)  # it has the newest event
        await one.append(kept, [STARTED])
        said = await one.audit(run=fence.run)
        async with other.follow(fence.run) as items:
            await anext(aiter(items))
            expect(await one.forget(fence.run, ME), True)
        for backbone in (one, other):
            with refused("no_such_run"):
                await backbone.read(fence.run)
            with refused("no_such_run"):
                await backbone.forget(fence.run, ME)
            expect([row.id for row in await backbone.runs()], [kept.run])
            expect(await backbone.audit(run=fence.run), said)
            expect((await backbone.verify_audit()).ok, True)
        spent = await other.totals(lambda totals: totals.spent(0)[Payers(NEW.repo, ME)])
        expect((spent.steps, spent.tokens, spent.dollars), (1, 100, 0.5))
        await claimed(one)
        expect((await other.verify_audit()).ok, True)


def held(amount: Spend) -> Callable[[Totals], tuple[Spend, Spend | None]]:
    """Hold `amount`, and answer with the sum of what was spent and held before."""
    return lambda totals: (sum(totals.spent(0).values(), Spend()), amount)


async def totals_are_what_the_log_says(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)
        await one.append(fence, [replied(100, 0.5), replied(50, None)])
        await one.append(fence, [BudgetExtended("user", ME, "tokens", 7.0, ME)])
        for backbone in (one, other):
            found = await backbone.totals(lambda totals: (totals.payers(fence.run), totals.spent(0)))
            payers, spent = found
            expect(payers, Payers(NEW.repo, ME))
            took = spent[payers]
            expect((took.steps, took.tokens, took.dollars, took.unpriced), (2, 150, 0.5, 50))
            expect(await backbone.totals(lambda totals: totals.extended("user", ME, 0)), {"tokens": 7.0})
            expect(await backbone.totals(lambda totals: totals.spent(2**31)), {})
            # Storing the totals, with a cursor, changes none of them.
            await backbone.reserve(Hold(new_run_id(), fence.run, fence.owner), lambda totals: (None, None))
            await one.append(fence, [STARTED])


async def a_hold_counts_until_it_is_released_or_its_owner_dies(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)

        async def tokens(backbone: Backbone) -> int:
            return await backbone.totals(lambda totals: sum(s.tokens for s in totals.spent(0).values()))

        before = await one.reserve(Hold("t1", fence.run, fence.owner), held(Spend(1, 300)))
        expect(before.tokens, 0)
        expect([await tokens(backbone) for backbone in (one, other)], [300, 300])
        await other.release("t1")
        await other.release("t1")
        expect(await tokens(one), 0)
        await one.reserve(Hold("t2", fence.run, fence.owner), held(Spend(1, 200)))
        rig.bury(fence.owner)
        survivor = Hold("t3", fence.run, new_owner_id())
        expect((await other.reserve(survivor, held(Spend(1, 40)))).tokens, 0)
        expect(await tokens(other), 40)


async def two_users_never_hold_the_same_room(rig: Rig) -> None:
    def decide(totals: Totals) -> tuple[bool, Spend | None]:
        room = sum(spend.tokens for spend in totals.spent(0).values()) + 100 <= 500
        return room, Spend(1, 100) if room else None

    granted: list[bool] = []
    async with rig.open() as one, rig.open() as other:
        fence = await claimed(one)

        async def ask(backbone: Backbone, number: int) -> None:
            granted.append(await backbone.reserve(Hold(f"t{number}", fence.run, fence.owner), decide))

        async with anyio.create_task_group() as tasks:
            for number, backbone in enumerate((one, other) * 8):
                tasks.start_soon(ask, backbone, number)
    expect(sum(granted), 5)


PROMISES: tuple[Promise, ...] = promises(__name__, Rig)
