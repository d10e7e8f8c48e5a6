"""A run whose end only changes of tests refuse asks a person, who permits exactly the files that the question shows."""

from collections.abc import Mapping, Sequence

import anyio
import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.runs.arena import ADD, FINISH, SUB, Arena, Interrupted, bash, of, script

from cloister.agent.approvals import DETAIL_CHARS
from cloister.agent.evidence.permission import Permission, permitted
from cloister.agent.evidence.run_checks import run_checks
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.core.events import (
    AnyBody,
    AskAnswered,
    AskRaised,
    AttemptEnded,
    BaselineTaken,
    ChecksChosen,
    FinishRefused,
    ProofTaken,
    ToolReturned,
)
from cloister.core.requests import AttemptWish, Budget
from cloister.feedback.shown import permit
from cloister.forge import workspace

pytestmark = pytest.mark.anyio

WRONG = f"{ADD}; sed -i 's/calc.sub(3, 2), 1/calc.sub(3, 2), 5/' test_calc.py"
"""Repairs one bug, and has the test of the other expect what comes out."""
GONE = f"{ADD}; sed -i '/def test_sub/,$d' test_calc.py"
EACH = """
import unittest
import calc


class Calc(unittest.TestCase):
    if hasattr(calc, 'add'):
        def test_add(self):
            self.assertEqual(calc.add(1, 2), 3)
    if hasattr(calc, 'sub'):
        def test_sub(self):
            self.assertEqual(calc.sub(3, 2), 1)
"""
"""Tests only what the product has."""
NAMING = "python3 -m unittest -v"
"""Names the tests that pass, too."""
ONLY = "printf 'def {}(a, b):\\n    return a {} b\\n' > calc.py; printf '%s' \"{}\" > test_calc.py"
OTHER = "sed -i 's/calc.sub(3, 2), 5/calc.sub(4, 2), 6/' test_calc.py"
GIVE_UP = ('say = "I stop."',) * 3


class Person:
    """Answers each question with the next of these words; without words it does not answer."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)
        self.asked: list[AskRaised] = []
        self.journal: Interrupted | None = None

    def __call__(self, body: AnyBody) -> None:
        if isinstance(body, AskRaised):
            self.asked.append(body)
            if self.words and self.journal is not None:
                word = self.words.pop(0)
                self.journal.add(AskAnswered(body.ask, "allow" if word == "yes" else "deny", "ada"))


async def run(
    arena: Arena, text: str, person: Person, *, asks: bool = True, attempts: tuple[AttemptWish, ...] = ()
) -> tuple[AttemptEnded, Interrupted]:
    journal = Interrupted()
    request = arena.request(text, ask_test_changes=asks, attempts=attempts, budget=Budget(steps=24))
    journal.add(*arena.journal(request).bodies)
    journal.then, person.journal = person, journal
    return await arena.run(journal), journal


async def test_yes_accepts_the_tests_as_shown_and_the_result_lists_them(arena: Arena) -> None:
    person = Person("yes")

    ended, journal = await run(arena, script(bash(WRONG), FINISH), person)

    assert ended.outcome == "proven"
    assert ended.comparison is not None
    assert "changed with permission: test_calc.py" in ended.comparison.notes
    [asked] = person.asked
    assert asked.action == "change tests: test_calc.py"
    assert "-        self.assertEqual(calc.sub(3, 2), 1)" in asked.detail
    assert "+        self.assertEqual(calc.sub(3, 2), 5)" in asked.detail
    assert "calc.py b" not in asked.detail.replace("test_calc.py", ""), "only tests are shown"
    assert [body.comparison.green for body in of(journal, ProofTaken)] == [False, True]


async def test_product_code_that_is_compiled_for_tests_is_a_question_too(arena: Arena) -> None:
    person = Person("yes")
    code = "printf '#ifdef UNIT_TEST\\nint seen;\\n#endif\\n' > fast.c"

    ended, _ = await run(arena, script(bash(f"{ADD}; {SUB}; {code}"), FINISH), person)

    [asked] = person.asked
    assert (asked.action, ended.outcome) == ("change tests: fast.c", "proven")
    assert "a person must allow it: it is compiled differently for tests: #ifdef UNIT_TEST" in asked.detail
    assert "+int seen;" in asked.detail
    assert ended.comparison is not None
    assert "changed with permission: fast.c" in ended.comparison.notes


async def test_product_code_for_tests_without_a_person_is_refused(arena: Arena) -> None:
    code = "printf '#ifdef UNIT_TEST\\nint seen;\\n#endif\\n' > fast.c"

    ended, _ = await run(arena, script(bash(f"{ADD}; {SUB}; {code}"), FINISH, *GIVE_UP), Person(), asks=False)

    assert ended.outcome == "red"


async def test_no_goes_back_to_the_agent_and_is_not_asked_again(arena: Arena) -> None:
    person = Person("no")

    ended, journal = await run(arena, script(bash(WRONG), FINISH, FINISH, *GIVE_UP), person)

    assert ended.outcome == "red"
    assert len(person.asked) == 1
    told = [body.text for body in of(journal, ToolReturned) if body.tool == "finish"]
    assert len(told) == 2
    assert all("a person (ada) did not permit them. Undo them." in text for text in told)


async def test_attempts_share_a_yes_for_the_same_tests_and_ask_about_others(arena: Arena) -> None:
    person = Person("yes", "yes")
    same, other = script(bash(WRONG), FINISH), script(bash(f"{WRONG}; {OTHER}"), FINISH)
    wishes = tuple(AttemptWish(model=arena.model(text)) for text in (same, same, other))

    _, journal = await run(arena, same, person, attempts=wishes)

    assert {(body.outcome, body.reason) for body in of(journal, AttemptEnded)} == {("proven", "Done.")}
    assert len({asked.tests for asked in person.asked}) == 2
    assert len(person.asked) == 2, "the same tests with the same content are asked about once"


async def test_deadline_without_a_person_is_a_no(arena: Arena) -> None:
    person = Person()

    ended, journal = await run(arena, script(bash(WRONG), FINISH, *GIVE_UP), person)

    assert ended.outcome == "red"
    told = [body.text for body in of(journal, ToolReturned) if body.tool == "finish"]
    assert "no person permitted them in time. Undo them." in told[0]


async def test_deleted_test_needs_a_yes_too(arena: Arena) -> None:
    person = Person("yes")

    ended, _ = await run(arena, script(bash(GONE), FINISH), person)

    assert ended.outcome == "unbroken", "unittest -q does not say which tests passed"
    assert "test_calc.Calc::test_sub" in person.asked[0].detail.partition("diff ")[0]


async def on_base(arena: Arena, check: str) -> tuple[Diagnosis, ...]:
    spec = arena.services().sandbox_spec(arena.request(""), "default")
    async with arena.host.open(spec) as sandbox:
        await workspace.put(sandbox, arena.bare, arena.base)
        return await run_checks(sandbox, (check,), "baseline", lambda check, stream, data: None)


async def test_yes_gives_up_no_test_that_its_question_did_not_name(arena: Arena) -> None:
    """Two attempts have the same tests, and each has a product that loses another one of them."""
    lost: list[tuple[str, ...]] = []
    adds, subs = (
        script(bash(ONLY.format(*one, EACH)), FINISH, *GIVE_UP) for one in (("add", "+"), ("sub", "-"))
    )
    journal = Interrupted()
    wishes = tuple(AttemptWish(model=arena.model(text)) for text in (adds, subs))
    request = arena.request(adds, ask_test_changes=True, attempts=wishes, budget=Budget(steps=24))
    started = arena.journal(request).bodies[:3]
    journal.add(*started, ChecksChosen((NAMING,), found=False), BaselineTaken(await on_base(arena, NAMING)))

    def answer(body: AnyBody) -> None:
        if isinstance(body, AskRaised):
            # Yes to the one that comes first: a no to it would also refuse the same files of the other.
            journal.add(AskAnswered(body.ask, "deny" if lost else "allow", "ada"))
            lost.append(body.lost)

    journal.then = answer

    await arena.run(journal)

    assert sorted(lost) == [("test_calc.Calc::test_add",), ("test_calc.Calc::test_sub",)]
    outcomes = {body.attempt: body.outcome for body in of(journal, AttemptEnded)}
    first = 0 if lost[0] == ("test_calc.Calc::test_sub",) else 1
    assert outcomes == {first: "proven", 1 - first: "red"}


async def test_no_person_is_asked_if_none_is_there_or_something_else_is_red(arena: Arena) -> None:
    person = Person("yes")
    ended, journal = await run(arena, script(bash(WRONG), FINISH, *GIVE_UP), person, asks=False)
    assert ended.outcome == "red"
    assert person.asked == []
    assert of(journal, FinishRefused)

    half = "sed -i 's/calc.sub(3, 2), 1/calc.sub(3, 2), 5/' test_calc.py"
    ended, _ = await run(arena, script(bash(half), FINISH, *GIVE_UP), person)
    assert ended.outcome == "red"
    assert person.asked == [], "test_add still fails"


class Files:
    """A change of these files."""

    def __init__(self, *paths: str) -> None:
        self.paths = dict.fromkeys(paths, "c" * 40)

    async def contents(self, commit: str) -> Mapping[str, str]:
        return self.paths

    async def difference(self, commit: str, paths: Sequence[str]) -> str:
        return "diff"


async def ask(journal: MemoryJournal, files: Files, *lost: str) -> str | None:
    permission = Permission(0, journal, files, (), 60.0, anyio.Lock())
    return await permission.ask("c", (), Comparison(missing=lost))


def person(*words: str) -> tuple[Interrupted, Person]:
    journal, made = Interrupted(), Person(*words)
    journal.then, made.journal = made, journal
    return journal, made


async def test_a_yes_to_a_setting_gives_up_the_named_tests_of_other_files() -> None:
    journal, asked = person("yes", "yes")
    names = [f"tests/test_b.py::test_{number}" for number in range(30)]
    files = Files("conftest.py")

    assert await ask(journal, files, *names) is None
    assert await ask(journal, files, *names[:2]) is None

    assert [one.lost for one in asked.asked] == [tuple(names)]
    assert "# and 10 more" in asked.asked[0].detail
    given = permitted(journal.index, files.paths)
    baseline = [Diagnosis("pytest", 0, 1.0, tests=tuple(Result(name, "passed") for name in names))]
    seen = Comparison(missing=tuple(names[:5]), skipped=(names[6],), ran=1)
    assert permit(seen, baseline, (), given.lost).green
    other = Comparison(missing=("tests/test_c.py::test",), ran=1)
    assert permit(other, baseline, (), given.lost) == other
    assert not permitted(journal.index, {"conftest.py": "d" * 40}).lost, "other content was not shown"
    assert await ask(journal, files, *names, "tests/test_c.py::test") is None
    assert len(asked.asked) == 2, "another lost test is another question"


async def test_no_person_is_asked_about_what_a_question_cannot_show() -> None:
    journal, asked = person("yes")

    assert "without a readable name" in str(await ask(journal, Files("test_\ufffd.py"), "a"))
    assert "too many tests" in str(await ask(journal, Files("test_a.py"), "a" * DETAIL_CHARS, "b"))

    assert asked.asked == []
