"""The index of a log answers as a scan would."""

from collections.abc import Sequence
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from cloister.core.events import (
    AnyBody,
    BaseFixed,
    Event,
    ModelReplied,
    PhaseStarted,
    ToolReturned,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.log import Index
from cloister.core.requests import Usage

KINDS = (ModelReplied, TurnEnded, ToolReturned, PhaseStarted)
BODIES = st.one_of(
    st.builds(
        ModelReplied,
        st.integers(0, 2),
        st.integers(1, 9),
        st.just("m"),
        st.just(""),
        st.just(()),
        st.just(Usage()),
        st.just(0.0),
    ),
    st.builds(TurnEnded, st.integers(0, 2), st.integers(1, 9), st.just("c"), st.booleans()),
    st.builds(
        ToolReturned,
        st.integers(0, 2),
        st.just("c"),
        st.just("bash"),
        st.just(True),
        st.just(""),
        st.just(0.0),
    ),
    st.just(PhaseStarted("work")),
)


def log(bodies: Sequence[AnyBody]) -> list[Event]:
    return [Event(RunId("r-test"), seq, float(seq), body) for seq, body in enumerate(bodies, 1)]


@given(
    st.lists(BODIES, max_size=30),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True),
    st.none() | st.integers(0, 3),
    st.integers(0, 30),
)
def test_index_answers_as_a_scan_does_however_it_was_fed(
    bodies: list[AnyBody], kinds: list[type[AnyBody]], attempt: int | None, cut: int
) -> None:
    events = log(bodies)
    index = Index(events[:cut])
    index.feed(events[cut:])
    scanned = [
        event
        for event in events
        if type(event.body) in kinds and attempt in (None, getattr(event.body, "attempt", None))
    ]
    assert [event for event, _ in index.events(*kinds, attempt=attempt)] == scanned
    assert index.of(*kinds, attempt=attempt) == [event.body for event in scanned]
    assert index.first(*kinds, attempt=attempt) == (scanned[0].body if scanned else None)
    assert index.last(*kinds, attempt=attempt) == (scanned[-1].body if scanned else None)


def test_unknown_kind_is_empty() -> None:
    index = Index(log([PhaseStarted("work")]))
    assert index.of(BaseFixed) == []
    assert index.of() == []
    assert index.last(BaseFixed) is None
    assert index.first(*get_args(AnyBody)) == PhaseStarted("work")
