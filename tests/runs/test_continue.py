"""A finished run continues: another round with the conversation and the files of the one before."""

import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.runs.arena import ADD, FINISH, FIX, HALF, SUB, Arena, bash, of, script

from cloister.agent.taint import Provenance
from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    BaseFixed,
    ChangeDelivered,
    ChangeMade,
    Event,
    ModelReplied,
    PromptReceived,
    QuestionAnswered,
    RewindRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunResumed,
    SandboxUsed,
    TurnEnded,
)
from cloister.core.ids import RunId, SandboxId
from cloister.core.requests import Budget, NewRun, Origin
from cloister.forge import change
from cloister.forge.change import commit_tree
from cloister.forge.host import in_bare
from cloister.runs.attempts.tree import tree
from cloister.runs.delivery import Kept, Target, asker, make_result, propose

pytestmark = pytest.mark.anyio

AGAIN = FIX + script(bash("echo '# more' >> calc.py"), FINISH)
REOPENED = (RunContinued("bob"), PromptReceived("Add a comment.", "bob"), RunClaimed("o-2", 2))


async def continued(arena: Arena, journal: MemoryJournal, end: RunFinished) -> AttemptEnded:
    await journal.append(end, *REOPENED)
    return await arena.run(journal)


async def test_a_second_round_has_the_files_and_the_conversation_of_the_first(arena: Arena) -> None:
    journal = arena.journal(arena.request(AGAIN))
    first = await arena.run(journal)
    second = await continued(arena, journal, RunFinished("proven", "Done.", 0))
    assert (first.attempt, second.attempt, second.outcome) == (0, 1, "proven")
    (fork,) = of(journal, AttemptForked)
    turns = [event.seq for event in journal.events if isinstance(event.body, TurnEnded)]
    assert (fork.parent, fork.at_seq, fork.budget) == (0, turns[1], Budget(steps=60))
    assert "+# more" in await change.diff(arena.bare, first.commit, second.commit)
    replies = [(reply.attempt, reply.step) for reply in of(journal, ModelReplied)]
    assert replies == [(0, 1), (0, 2), (1, 3), (1, 4)]
    shown = tree(journal.events)
    assert [(node.attempt, node.parent, node.outcome) for node in shown.nodes] == [
        (0, None, "proven"),
        (1, 0, "proven"),
    ]


async def test_each_round_has_the_whole_budget(arena: Arena) -> None:
    journal = arena.journal(arena.request(AGAIN, budget=Budget(steps=2)))
    await arena.run(journal)
    second = await continued(arena, journal, RunFinished("proven", "Done.", 0))
    assert (second.outcome, len(of(journal, ModelReplied))) == ("proven", 4)
    third = await continued(arena, journal, RunFinished("proven", "Done.", 1))
    assert (third.attempt, third.outcome) == (2, "failed")  # the script has no more replies


async def test_a_red_round_is_continued_from_its_furthest_save_point(arena: Arena) -> None:
    text = script(
        bash(ADD),
        bash("true", 'name = "on"', 'branch = [{ when = "comment", goto = "rest" }, { goto = "on" }]'),
        bash(SUB, 'name = "rest"'),
        FINISH,
    )
    journal = arena.journal(arena.request(text, budget=Budget(steps=3)))
    first = await arena.run(journal)
    second = await continued(arena, journal, RunFinished(first.outcome, first.reason, 0))
    assert (first.outcome, second.outcome) == ("budget", "proven")
    assert second.comparison.green


async def test_several_attempts_are_continued_by_one_of_the_winner(arena: Arena) -> None:
    journal = arena.journal(arena.request(AGAIN, n=2, first_green=True))
    first = await arena.run(journal)
    second = await continued(arena, journal, RunFinished("proven", "Done.", first.attempt))
    assert (second.attempt, second.outcome) == (2, "proven")
    assert [fork.parent for fork in of(journal, AttemptForked)] == [first.attempt]


async def test_a_round_without_a_save_point_starts_from_the_base(arena: Arena) -> None:
    journal = arena.journal(arena.request(FIX))
    await journal.append(AttemptStarted(0, "p:m"))
    second = await continued(arena, journal, RunFinished("stopped", "Stopped by ada."))
    assert (second.attempt, second.outcome) == (1, "proven")
    assert [fork.at_seq for fork in of(journal, AttemptForked)] == [0]


async def test_a_crash_in_the_second_round_resumes_that_round(arena: Arena) -> None:
    journal = arena.journal(arena.request(AGAIN))
    await arena.run(journal)
    await journal.append(RunFinished("proven", "Done.", 0), *REOPENED)
    whole = MemoryJournal(*journal.bodies)
    await arena.run(whole)
    cut = next(e.seq for e in whole.events if isinstance(e.body, ModelReplied) and e.body.attempt == 1)
    half = MemoryJournal(*(event.body for event in whole.events[:cut]))
    await half.append(RunClaimed("o-3", 3), RunResumed(cut))
    ended = await arena.run(half)
    assert (ended.attempt, ended.outcome, len(of(half, AttemptForked))) == (1, "proven", 1)
    assert [(r.attempt, r.step) for r in of(half, ModelReplied)] == [(0, 1), (0, 2), (1, 3), (1, 4)]


async def test_a_stuck_round_starts_over_when_it_is_continued(arena: Arena) -> None:
    journal = arena.journal(arena.request(HALF))
    first = await arena.run(journal)
    second = await continued(arena, journal, RunFinished(first.outcome, first.reason, 0))
    assert (first.outcome, second.outcome) == ("red", "red")
    steps = [reply.attempt for reply in of(journal, ModelReplied)]
    assert steps.count(1) > 2


@pytest.mark.parametrize(
    ("origin", "untrusted"), [("user", False), ("issue", True), ("review", True), ("ci", True)]
)
def test_only_a_persons_own_words_keep_a_continued_run_trusted(
    arena: Arena, origin: Origin, untrusted: bool
) -> None:
    journal = arena.journal(arena.request(FIX))
    journal.add(RunFinished("proven", "Done.", 0), RunContinued("bob", origin))
    journal.add(PromptReceived("Look.", "bob", origin))
    assert Provenance(None, journal).untrusted is untrusted


async def test_a_run_can_be_rewound_to_a_save_point_of_an_earlier_round(arena: Arena) -> None:
    journal = arena.journal(arena.request(AGAIN))
    await arena.run(journal)
    point = next(event.seq for event in journal.events if isinstance(event.body, TurnEnded))
    await journal.append(RunFinished("proven", "Done.", 0), *REOPENED, RewindRequested(point, "bob"))
    ended = await arena.run(journal)
    forks = [(fork.attempt, fork.parent, fork.at_seq) for fork in of(journal, AttemptForked)]
    assert forks[-1] == (2, 0, point)
    assert (ended.attempt, ended.outcome) == (2, "proven")


async def saved_on(arena: Arena, parent: str, *names: str) -> str:
    """A commit on `parent` whose tree has the files `names` alone."""
    empty = (await in_bare(arena.bare, "hash-object", "-w", "--stdin", stdin=b"")).out.decode().strip()
    listed = "".join(f"100644 blob {empty}\t{name}\n" for name in sorted(names)).encode()
    made = (await in_bare(arena.bare, "mktree", stdin=listed)).out.decode().strip()
    return await commit_tree(arena.bare, made, parent, "Save point\n")


@pytest.mark.parametrize("makes_a_change", [False, True])
async def test_the_rounds_after_a_rebase_build_on_the_new_base_and_replace_what_was_delivered(
    arena: Arena, makes_a_change: bool
) -> None:
    journal = arena.journal(arena.request(AGAIN))
    run, where, services = journal.events[0].run, str(arena.repo.path), arena.services()
    kept = await services.repositories.open(run)
    kept.parent.mkdir(parents=True)
    kept.symlink_to(arena.bare)

    async def end_round(*names: str, on: str) -> ChangeMade:
        ended = AttemptEnded(0, "red", "Work.", await saved_on(arena, on, *names), Comparison())
        await make_result(services, journal, run, ended)
        return of(journal, ChangeMade)[-1]

    first = await end_round("ours", on=arena.base)
    journal.add(ChangeDelivered(where, first.branch), RunFinished("proven", "Done.", 0), *REOPENED)
    moved = await saved_on(arena, arena.base, "upstream")
    journal.add(
        BaseFixed(moved, "main"), TurnEnded(0, 1, await saved_on(arena, moved, "ours", "upstream"), True)
    )
    replayed = await end_round("ours", "upstream", on=moved) if makes_a_change else None
    journal.add(RunFinished("stopped", "Stopped by ada."), *REOPENED)

    last = await end_round("more", "ours", "upstream", on=moved)

    parent = (await in_bare(arena.bare, "rev-parse", f"{last.commit}^")).out.decode().strip()
    assert parent == (replayed.commit if replayed else moved)
    assert {one.path for one in last.files} == {"more", "ours"}, "what is upstream is no work of ours"
    ended = AttemptEnded(0, "red", "Work.", last.commit, Comparison())
    store = Kept(services.repositories, services.attachments)
    sent = await propose(store, journal.events, ended, last, Target(where))
    assert (sent.previous, sent.rebased) == (first.commit, True)


def test_a_run_is_one_persons_until_another_has_a_hand_in_it() -> None:
    def of_run(who: str, *bodies: AnyBody) -> str:
        first = RunAdmitted(NewRun("Fix it.", "r"), who)
        return asker([Event(RunId("r-1"), seq, 0.0, body) for seq, body in enumerate((first, *bodies), 1)])

    by_ci = PromptReceived("It failed.", "ci", "ci")
    by_none = QuestionAnswered("q-1", "Yes.", "deadline")
    assert of_run("ann", PromptReceived("More.", "ann"), by_ci, by_none) == "ann"
    assert of_run("bea (trigger)", PromptReceived("More.", "bea (review)", "review")) == "@bea"
    others = (
        PromptReceived("More.", "bob"),
        PromptReceived("More.", "ann (review)", "review"),
        QuestionAnswered("q-1", "Yes.", "bob"),
        SandboxUsed(0, SandboxId("s-1"), "terminal", "bash", "bob"),
    )
    for other in others:
        assert of_run("ann", by_ci, other) == "", other
    assert of_run("bea (trigger)", PromptReceived("More.", "bea")) == "", (
        "the account of a forge is another name"
    )
