"""Programs inside that speak to a model: the attempt whose sandbox they are in pays, and no other is the poorer for it."""

from pathlib import Path

import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.runs.arena import ADD, FINISH, FIX, STUCK, SUB, Arena, Interrupted, bash, of, script

from cloister.core.attempts import AttemptWish
from cloister.core.computer import Command
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptForked,
    AttemptsRanked,
    AttemptStarted,
    BudgetSpent,
    ModelReplied,
    ModelSpent,
)
from cloister.core.requests import Budget
from cloister.sandbox.api import Sandbox

pytestmark = pytest.mark.anyio

ASK = """
import json, os, sys, urllib.error, urllib.request
body = {"model": "any", "max_tokens": 400, "messages": [{"role": "user", "content": "Who are you?"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"},
)
said = "200"
try:
    for _ in range(int(sys.argv[1])):
        answer = json.load(urllib.request.urlopen(request, timeout=30))
        said = "200 " + (answer["choices"][0]["message"]["content"] or "")
except urllib.error.HTTPError as error:
    said = f"{error.code} {error.read().decode()}"
with open(sys.argv[2] + ".part", "w") as file:
    file.write(said)
os.rename(sys.argv[2] + ".part", sys.argv[2])
"""
SPENT = "input_tokens = 1000\noutput_tokens = 200"
ALL = 1_000
"""More calls than any share here pays for."""


def program(arena: Arena) -> Path:
    """Asks a number of times, and writes down what it was told last."""
    path = arena.root / "ask.py"
    path.write_text(ASK)
    return path


def wait_for(path: Path) -> str:
    return f"until [ -e {path} ]; do sleep 0.02; done"


def took(journal: MemoryJournal, attempt: int | None) -> int:
    kinds = (ModelReplied, ModelSpent)
    return sum(
        body.usage.total for body in journal.bodies if isinstance(body, kinds) and body.attempt == attempt
    )


async def test_a_program_that_spends_everything_ends_its_own_attempt_and_no_other(arena: Arena) -> None:
    ask, done, own = program(arena), arena.root / "greedy", arena.root / "modest"
    greedy = script(bash(f"python3 {ask} {ALL} {done}", SPENT), FINISH)
    modest = script(
        bash(f"{wait_for(done)}; python3 {ask} 5 {own}", SPENT, 'say = "I am the modest one."'),
        bash(f"{ADD}; {SUB}", SPENT),
        f"{FINISH}\n{SPENT}",
    )
    wishes = (AttemptWish(model=arena.model(greedy)), AttemptWish(model=arena.model(modest)))
    journal = arena.journal(arena.request(FIX, attempts=wishes, budget=Budget(steps=60, tokens=80_000)))
    winner = await arena.run(journal)

    assert (winner.attempt, winner.outcome) == (1, "proven")
    assert done.read_text().startswith("402 ")
    assert "The attempt's budget of 40,000 tokens is spent." in done.read_text()
    assert own.read_text() == "200 I am the modest one.", "its programs speak to the attempt's own model"
    ended = {body.attempt: body for body in of(journal, AttemptEnded)}
    assert ended[0].outcome == "budget"
    assert "The attempt's budget of 40,000 tokens is spent." in ended[0].reason
    assert 36_000 < took(journal, 0) <= 40_000
    assert took(journal, None) == 0
    (over,) = of(journal, BudgetSpent)
    assert (over.level, over.name, over.attempt) == ("attempt", "0", 0)
    inside = [body.attempt for body in of(journal, ModelSpent) if body.purpose == "inside"]
    assert inside.count(1) == 5
    assert set(inside) == {0, 1}
    (ranked,) = of(journal, AttemptsRanked)
    assert {score.attempt: score.tokens for score in ranked.scores} == {n: took(journal, n) for n in (0, 1)}


async def test_what_was_left_running_before_the_attempts_began_has_no_model_any_more(arena: Arena) -> None:
    """The run pays for the baseline; the attempts divide what is left of it, and a daemon does not eat from it."""
    ask, early, late, go = program(arena), arena.root / "early", arena.root / "late", arena.root / "go"

    async def before(warm: Sandbox) -> None:
        up = arena.root / "up"
        daemon = f"touch {up}; {wait_for(go)}; python3 {ask} {ALL} {late}"
        left = f"setsid sh -c '{daemon}' > /dev/null 2>&1 < /dev/null & {wait_for(up)}"
        await warm.run(Command(("sh", "-c", f"python3 {ask} 10 {early}; {left}")))

    arena.before = before
    text = script(bash(f"touch {go}; {wait_for(late)}; {ADD}; {SUB}", SPENT), f"{FINISH}\n{SPENT}")
    journal = arena.journal(arena.request(text, n=2, budget=Budget(steps=60, tokens=112_000)))
    assert (await arena.run(journal)).outcome == "proven"
    assert early.read_text().startswith("200")
    assert late.read_text().startswith("503 ")
    assert took(journal, None) == 12_000
    shares = [body.budget.tokens for body in of(journal, AttemptStarted) if body.budget]
    assert shares == [50_000, 50_000]
    assert [body.attempt for body in of(journal, ModelSpent)] == [None] * 10


async def test_programs_of_the_proof_are_paid_by_the_attempt_that_is_proven(arena: Arena) -> None:
    ask, told = program(arena), arena.root / "told"
    told.mkdir()
    lines = (
        "import os, subprocess, sys",
        f"subprocess.run([sys.executable, {str(ask)!r}, '1', {str(told)!r} + '/' + os.getcwd().split('/')[-2]])",
        "def add(a, b):",
        "    return a + b",
        "def sub(a, b):",
        "    return a - b",
    )
    write = "\n".join(("cat > calc.py <<'EOF'", *lines, "EOF"))
    journal = arena.journal(arena.request(script(bash(write), FINISH)))
    assert (await arena.run(journal)).outcome == "proven"
    answers = [path.read_text()[:3] for path in told.iterdir()]
    assert answers == ["200"] * 4, (
        "where it worked, where it was proven, and in two copies that repeat its calls"
    )
    assert {body.attempt for body in of(journal, ModelSpent)} == {0}


async def test_a_stuck_attempt_spends_nothing_more_once_others_were_given_what_it_had_left(
    arena: Arena,
) -> None:
    journal = arena.journal(arena.request(STUCK, search="greedy"), Interrupted)
    assert isinstance(journal, Interrupted)
    asked: list[tuple[type[AnyBody], bool]] = []

    def then(body: AnyBody) -> None:
        if isinstance(body, ModelReplied | AttemptForked):
            works = next(each for each in arena.host.living if each.info.parent is not None)
            asked.append((type(body), arena.inside.model(works.info.id) is not None))

    journal.then = then
    assert (await arena.run(journal)).outcome == "proven"
    assert asked[0] == (ModelReplied, True)
    assert (AttemptForked, False) in asked
    assert (AttemptForked, True) not in asked
