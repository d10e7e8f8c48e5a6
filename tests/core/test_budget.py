"""Whether a call fits into every level of the tree."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.budget import (
    LEAST_OUTPUT_TOKENS,
    WRAP_UP_TOKENS,
    Account,
    Call,
    Granted,
    Limits,
    Over,
    Spend,
    first_day,
    granted,
    sentence,
    spend_of,
    warnings,
)
from cloister.core.events import ModelReplied
from cloister.core.requests import Usage

CALL = Call(1_000, 8_000, dollars_in=0.01, dollars_out=0.00001)


def account(spent: Spend | None = None, **limits: float) -> Account:
    known = Limits(
        steps=int(limits["steps"]) if "steps" in limits else None,
        tokens=int(limits["tokens"]) if "tokens" in limits else None,
        dollars=limits.get("dollars"),
        seconds=limits.get("seconds"),
    )
    return Account("run", "r-1", known, spent or Spend())


def test_without_limits_everything_fits() -> None:
    assert granted([account()], CALL) == Granted(8_000, Spend(1, 9_000, 0.01 + 0.08))


def test_a_reply_is_cut_to_what_fits_and_room_for_the_last_words_stays() -> None:
    answer = granted([account(tokens=5_000)], CALL)
    assert isinstance(answer, Granted)
    assert answer.output_tokens == 5_000 - 1_000 - (1_000 + WRAP_UP_TOKENS)


def test_call_without_room_for_a_reply_is_refused_with_its_limit() -> None:
    answer = granted([account(tokens=10**6), account(dollars=0.02)], CALL)
    assert isinstance(answer, Over)
    assert (answer.what, answer.limit) == ("dollars", 0.02)
    assert sentence(answer) == "The run's budget of $0.02 is spent."


def test_the_last_words_may_use_what_was_kept_back() -> None:
    tight = account(tokens=1_000 + WRAP_UP_TOKENS)
    assert isinstance(granted([tight], Call(1_000, WRAP_UP_TOKENS)), Over)
    assert isinstance(granted([tight], Call(1_000, WRAP_UP_TOKENS, steps=0, keep_back=False)), Granted)


@pytest.mark.parametrize(
    ("spent", "limits"), [(Spend(steps=3), {"steps": 3.0}), (Spend(seconds=10), {"seconds": 10.0})]
)
def test_steps_and_seconds_end_at_their_limit(spent: Spend, limits: dict[str, float]) -> None:
    assert isinstance(granted([account(spent, **limits)], CALL), Over)


def test_token_limit_holds_for_models_with_unknown_price() -> None:
    unpriced = Call(1_000, 8_000)
    assert isinstance(granted([account(dollars=0.01)], unpriced), Granted)
    assert isinstance(granted([account(dollars=0.01, tokens=1_200)], unpriced), Over)


@given(
    tokens=st.integers(1, 50_000),
    dollars=st.floats(0.001, 1.0),
    used=st.integers(0, 50_000),
    paid=st.floats(0, 1.0),
    into=st.integers(1, 20_000),
    out=st.integers(1, 10_000),
)
def test_what_is_granted_never_exceeds_any_limit(
    tokens: int, dollars: float, used: int, paid: float, into: int, out: int
) -> None:
    call = Call(into, out, dollars_in=into * 1e-6, dollars_out=5e-6)
    accounts = [account(Spend(0, used, paid), tokens=tokens), account(Spend(0, used, paid), dollars=dollars)]
    answer = granted(accounts, call)
    if isinstance(answer, Granted):
        assert used + answer.hold.tokens <= tokens
        assert paid + answer.hold.dollars <= dollars + 1e-9
        assert answer.output_tokens >= min(out, LEAST_OUTPUT_TOKENS)


def test_extensions_raise_the_limit() -> None:
    full = account(Spend(steps=3), steps=3)
    more = Account("run", "r-1", full.limits, full.spent, {"steps": 1.0})
    assert isinstance(granted([more], CALL), Granted)


def test_a_warning_comes_with_the_percentage() -> None:
    assert [over.what for over in warnings([account(Spend(steps=8), steps=10)], 80)] == ["steps"]
    assert list(warnings([account(Spend(steps=7), steps=10)], 80)) == []


def test_a_month_begins_on_its_first_day() -> None:
    at = datetime(2026, 3, 17, 13, tzinfo=UTC).timestamp()
    first = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    assert first_day("month", at) == int(first // 86_400)
    assert first_day("day", at) == int(at // 86_400)


def test_tiny_price_is_counted() -> None:
    call = Call(1_000, 8_000, dollars_in=0.0, dollars_out=5e-324)
    answer = granted([account(dollars=10.0)], call)
    assert isinstance(answer, Granted)
    assert answer.output_tokens == 8_000


def test_no_reply_gives_anything_back() -> None:
    took = spend_of(ModelReplied(0, 1, "p:m", "", (), Usage(-50, -50), 0.1, cost=-3.0))
    assert took == Spend(1, 0, 0.0)
