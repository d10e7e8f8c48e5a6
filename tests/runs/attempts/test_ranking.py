"""Evidence ranks attempts. Only equal evidence ties."""

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.attempts import AttemptWish, Score, check_attempts, parse_search, shared, wishes
from cloister.core.diagnosis import Comparison
from cloister.core.events import AttemptEnded
from cloister.core.requests import Budget, NewRun, check_new_run
from cloister.runs.attempts.scores import rank, score

GREEN = Score(0, "proven", 0, 0, 0, 10, 1_000)


def better(a: Score, b: Score) -> bool:
    """True if `a`, as the later attempt, still comes before `b`."""
    (first, _), _ = rank([_as(b, 0), _as(a, 1)])
    return first.attempt == 1


def _as(one: Score, attempt: int) -> Score:
    return msgspec.structs.replace(one, attempt=attempt)


def test_each_kind_of_evidence_outranks_the_following() -> None:
    steps = [
        Score(0, "proven", 5, 5, 5, 99, 99),
        Score(0, "unproven", 0, 0, 0, 0, 0),
        Score(0, "red", 0, 9, 9, 99, 99),
        Score(0, "red", 1, 0, 9, 99, 99),
        Score(0, "red", 1, 1, 0, 99, 99),
        Score(0, "red", 1, 1, 1, 0, 99),
        Score(0, "red", 1, 1, 1, 1, 0),
        Score(0, "red", 1, 1, 1, 1, 1),
        Score(0, "red", 1, 1, 1, 0, 0, doubts=1),
        Score(0, "budget", 1, 1, 1, 0, 0),
        Score(0, "stopped", 0, 0, 0, 0, 0),
    ]
    for place, one in enumerate(steps):
        for worse in steps[place + 1 :]:
            assert better(one, worse), (one, worse)
            assert not better(worse, one)


def test_attempt_with_weakened_tests_ranks_lower() -> None:
    honest = score(
        AttemptEnded(1, "proven", "", "c", Comparison(fixed=("a",), green=True)), lines=90, tokens=9
    )
    cheat = score(AttemptEnded(0, "proven", "", "c", Comparison(missing=("a",))), lines=1, tokens=1)
    ordered, tied = rank([cheat, honest])
    assert [one.attempt for one in ordered] == [1, 0]
    assert ordered[0].why == "weakened tests: 0, attempt 0 1"
    assert tied == ()


def test_reason_names_the_deciding_evidence() -> None:
    spent, stuck = Score(0, "budget", 1, 0, 0, 9, 9), Score(1, "red", 3, 0, 0, 1, 1)
    ordered, _ = rank([stuck, spent])
    assert [one.why for one in ordered] == ["still red: 1, attempt 1 3", "still red: 3, attempt 0 1"]
    ordered, _ = rank([Score(0, "failed", 1, 0, 0, 0, 0), Score(1, "red", 1, 0, 0, 5, 5)])
    assert ordered[0].why == "red, attempt 0 failed", "one that broke off comes after one that got to its end"


def test_old_failures_outside_the_goals_do_not_count() -> None:
    old = Comparison(still=("a", "b"), unrelated=("a", "b"), green=True)
    one = score(AttemptEnded(0, "proven", "", "c", old), lines=1, tokens=1)
    asked = score(
        AttemptEnded(1, "red", "", "c", Comparison(still=("a", "b"), asked=("a",), unrelated=("b",))),
        lines=1,
        tokens=1,
    )
    unknown = score(AttemptEnded(2, "red", "", "c", Comparison(still=("a", "b"))), lines=1, tokens=1)
    assert (one.red, asked.red, unknown.red) == (0, 1, 2)


def test_skipped_and_weakened_tests_count_as_lost() -> None:
    found = Comparison(missing=("a",), skipped=("b",), weakened=("c", "d"))
    assert score(AttemptEnded(0, "red", "", "c", found), lines=1, tokens=1).weakened == 4


def test_dollars_decide_before_tokens_if_known_for_all() -> None:
    few_tokens = Score(0, "proven", 0, 0, 0, 10, 100, dollars=0.5)
    cheap = Score(1, "proven", 0, 0, 0, 10, 900, dollars=0.25)
    ordered, _ = rank([few_tokens, cheap])
    assert [one.attempt for one in ordered] == [1, 0]
    assert ordered[0].why == "dollars: 0.25, attempt 0 0.5"
    unknown = Score(2, "proven", 0, 0, 0, 10, 500)
    ordered, _ = rank([few_tokens, cheap, unknown])
    assert [(one.attempt, one.dollars) for one in ordered] == [(0, 0.5), (2, None), (1, 0.25)]
    assert ordered[1].why == "tokens: 500, attempt 0 100"


def test_only_equal_evidence_ties_and_the_earliest_comes_first() -> None:
    scores = [_as(GREEN, 2), _as(GREEN, 1), Score(0, "proven", 0, 0, 0, 11, 1_000)]
    for given_order in permutations(scores):
        ordered, tied = rank(given_order)
        assert [one.attempt for one in ordered] == [1, 2, 0]
        assert tied == (1, 2)
    assert rank([GREEN]) == ((GREEN,), ())


@given(
    st.lists(
        st.builds(
            Score,
            attempt=st.integers(0, 7),
            outcome=st.sampled_from(("proven", "unproven", "red", "budget", "failed", "stopped")),
            red=st.integers(0, 3),
            new=st.integers(0, 3),
            weakened=st.integers(0, 3),
            lines=st.integers(0, 3),
            tokens=st.integers(0, 3),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda one: one.attempt,
    )
)
def test_proven_attempt_always_wins(scores: list[Score]) -> None:
    ordered, tied = rank(scores)
    assert sorted(one.attempt for one in ordered) == sorted(one.attempt for one in scores)
    if any(one.outcome == "proven" for one in scores):
        assert ordered[0].outcome == "proven"
    assert not tied or ordered[0].attempt in tied


def test_shares_divide_the_budget_but_not_the_time() -> None:
    budget = Budget(steps=100, tokens=1_000, seconds=60.0)
    parts = shared(budget, (AttemptWish(share=3), AttemptWish(), AttemptWish()))
    assert [(part.steps, part.tokens, part.seconds) for part in parts] == [
        (60, 600, 60.0),
        (20, 200, 60.0),
        (20, 200, 60.0),
    ]
    assert shared(budget, (AttemptWish(),)) == (budget,)


@given(st.integers(1, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_shares_never_exceed_the_budget(steps: int, weights: list[float]) -> None:
    parts = shared(Budget(steps=steps), tuple(AttemptWish(share=weight) for weight in weights))
    assert sum(part.steps for part in parts) <= steps


def test_n_attempts_are_n_equal_wishes() -> None:
    assert wishes(NewRun("p", "r", n=3)) == (AttemptWish(),) * 3
    assert wishes(NewRun("p", "r", attempts=(AttemptWish("a:b"),))) == (AttemptWish("a:b"),)


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (NewRun("p", "r", n=3, attempts=(AttemptWish(),) * 2), "leave n out"),
        (NewRun("p", "r", attempts=(AttemptWish(),) * 9), "between 1 and 8"),
        (NewRun("p", "r", attempts=(AttemptWish(share=0),)), "share"),
        (NewRun("p", "r", attempts=(AttemptWish(share=float("nan")),)), "share"),
        (NewRun("p", "r", attempts=(AttemptWish(temperature=3),)), "temperature"),
        (NewRun("p", "r", attempts=(AttemptWish(hint="x" * 30_000),)), "hint"),
        (NewRun("p", "r", search="deep"), "greedy"),
        (NewRun("p", "r", search="beam:0"), "greedy"),
        (NewRun("p", "r", n=5, budget=Budget(steps=4)), "without a step"),
    ],
)
def test_invalid_attempts_are_refused_in_one_sentence(new: NewRun, text: str) -> None:
    problem = check_new_run(new)
    assert problem is not None
    assert text in problem
    assert problem == check_attempts(new)


def test_search_is_greedy_or_beam() -> None:
    greedy, beam = parse_search("greedy"), parse_search("beam:3")
    assert greedy is not None
    assert beam is not None
    assert (greedy.kind, beam.kind, beam.width) == ("greedy", "beam", 3)
