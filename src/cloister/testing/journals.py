"""A `Journal` in memory, for driving the loop without a database."""

import time
from collections.abc import Iterator, Sequence

import anyio

from cloister.core.diagnosis import Comparison, Diagnosis, TestResult
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    ChecksRan,
    Delta,
    Event,
    ModelReplied,
    RunAdmitted,
    ToolReturned,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.log import Index
from cloister.core.requests import NewRun, ToolCall, Usage

_RUN = RunId("r-memory")


class MemoryJournal:
    """Keeps events and deltas in memory."""

    def __init__(self, *bodies: AnyBody) -> None:
        self._events: list[Event] = []
        self._index = Index()
        self._news = anyio.Event()
        self.deltas: list[Delta] = []
        self.add(*bodies)

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    @property
    def index(self) -> Index:
        return self._index

    @property
    def bodies(self) -> list[AnyBody]:
        return [event.body for event in self._events]

    def add(self, *bodies: AnyBody) -> None:
        """As `append`, for callers that cannot await."""
        for body in bodies:
            self._events.append(Event(_RUN, len(self._events) + 1, time.time(), body))
            self._index.feed(self._events[-1:])
        self._news.set()
        self._news = anyio.Event()

    async def append(self, *bodies: AnyBody) -> None:
        self.add(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        if len(self._events) != last:
            return False
        self.add(*bodies)
        return True

    def show(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def changed(self, after: int) -> None:
        while len(self._events) <= after:
            await self._news.wait()


# Synthetic logs of long attempts


RUN = RunId("r-long")


def beginning(prompt: str = "Make every test pass.") -> list[AnyBody]:
    red = _diagnosis(3)
    return [
        RunAdmitted(NewRun(prompt, "/repo"), "ann"),
        BaseFixed("0123456789abcdef", "main"),
        ChecksChosen(("pytest -q",), True),
        BaselineTaken((red,)),
        AttemptStarted(0, "p:m"),
    ]


def turn(step: int, chars: int, *, changed: bool = False, text: str = "") -> Iterator[AnyBody]:
    """One turn with an observation of `chars` characters, and the checks if files changed."""
    call = ToolCall(
        f"call-{step}", "bash", {"command": f"sed -n {step},{step + 40}p src/file_{step % 17}.py"}
    )
    yield ModelReplied(0, step, "p:m", text, (call,), Usage(1_000, 50), 1.0)
    yield ActionDecided(0, call.id, "bash: sed", "allow", "built-in")
    line = f"step {step}: the quick brown fox\n"
    yield ToolReturned(0, call.id, "bash", True, (line * (chars // len(line) + 1))[:chars], 0.1, 0)
    if changed:
        found = _diagnosis(1 + step % 3, step)
        names = tuple(test.name for test in found.failing)
        yield ChecksRan(0, step, (found,), Comparison(still=names, passed=40))
    yield TurnEnded(0, step, f"commit-{step}", changed)


def _diagnosis(failing: int, step: int = 0) -> Diagnosis:
    tests = tuple(
        TestResult(
            f"tests/test_{n}.py::test_{n}",
            "failed",
            f"tests/test_{n}.py",
            n + 1,
            f"assert {step} == {n}\n" * 8,
        )
        for n in range(failing)
    )
    passed = tuple(TestResult(f"tests/ok.py::test_{n}", "passed") for n in range(40))
    return Diagnosis("pytest -q", 1, 1.0, tests=(*tests, *passed), tail="E assert")


def numbered(bodies: list[AnyBody], start: int = 1) -> list[Event]:
    return [Event(RUN, seq, 1_000.0 + seq, body) for seq, body in enumerate(bodies, start)]


def long_log(steps: int, chars: int = 3_000) -> list[Event]:
    """A log of `steps` turns of which every fourth changed files."""
    bodies = beginning()
    for step in range(1, steps + 1):
        bodies.extend(turn(step, chars, changed=step % 4 == 0, text=f"I look at part {step}."))
    return numbered(bodies)
