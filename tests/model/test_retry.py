"""How often and how patiently a failing model is asked again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.model.api import LONGEST_SECONDS, MAX_TRIES, PATIENCE_SECONDS, Failure, next_wait

BUSY = Failure("overloaded", "busy", retryable=True)


def test_waits_double_and_end_after_five_tries() -> None:
    assert [next_wait(BUSY, tries) for tries in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, None, None]


def test_the_wait_is_the_one_that_the_provider_requested() -> None:
    assert next_wait(Failure("rate_limit", "slow", retryable=True, retry_seconds=7.5), 1) == 7.5
    assert next_wait(Failure("rate_limit", "slow", retryable=True, retry_seconds=7.5), MAX_TRIES) is None


def test_a_provider_that_asks_for_an_hour_is_given_up() -> None:
    assert next_wait(Failure("rate_limit", "slow", retryable=True, retry_seconds=3_600.0), 1) is None


def test_a_failure_that_will_not_pass_is_not_tried_again() -> None:
    assert next_wait(Failure("auth", "no key"), 1) is None


@given(st.integers(0, 10_000), st.none() | st.floats(allow_nan=False))
def test_a_wait_is_never_negative_nor_beyond_our_patience(tries: int, asked: float | None) -> None:
    wait = next_wait(Failure("network", "x", retryable=True, retry_seconds=asked), tries)
    assert wait is None or 0.0 <= wait <= max(LONGEST_SECONDS, PATIENCE_SECONDS)


@pytest.mark.parametrize("tries", [1, 2, 3, 4])
def test_no_wait_of_our_own_is_longer_than_a_minute(tries: int) -> None:
    wait = next_wait(BUSY, tries)
    assert wait is not None
    assert wait <= LONGEST_SECONDS
