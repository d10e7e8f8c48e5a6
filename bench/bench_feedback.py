"""Processor time to understand 10 MB of what pytest prints, beside one plain pass over its lines, and to fold the
context of a whole log of many steps at once, and of one more turn on top of it. Also what many tools cost a request."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cloister.agent.context.messages import Context, Window, fixed_tokens
from cloister.agent.context.prompts import SYSTEM
from cloister.agent.harnesses.native.stuck import StuckDetector
from cloister.agent.tools import TOOLS
from cloister.agent.tools.toolset import ToolSet
from cloister.core.events import Event
from cloister.core.requests import Patience
from cloister.feedback.api import CheckOutput
from cloister.feedback.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.agent.loop_bench import RUN, long_log, turn
from tests.agent.tools.test_toolset import added_tools

CAPTURED = Path(__file__).parent.parent / "tests" / "feedback" / "captured" / "python_tests"
BYTES = 10_000_000
LIMIT_SECONDS = 0.5
STEPS = 1_000
SPECS = tuple(tool.spec for tool in TOOLS.values())


def best(action: Callable[[], object], rounds: int = 5) -> float:
    found: list[float] = []
    for _ in range(rounds):
        started = time.process_time()
        action()
        found.append(time.process_time() - started)
    return min(found)


def pytest_text() -> bytes:
    """A verbose session with many passing tests, its failures at the end as pytest has them."""
    report = (CAPTURED / "pytest_verbose.txt").read_bytes()
    line = b"tests/test_part_%06d.py::TestSomething::test_case_number_%06d PASSED [ 50%%]\n"
    count = (BYTES - len(report)) // len(line % (0, 0))
    return b"".join(line % (n // 20, n) for n in range(count)) + report


def junit_xml() -> bytes:
    case = b'<testcase classname="tests.test_part_%06d" name="test_case_%06d" file="tests/a.py" line="3" time="0.001"/>\n'
    count = BYTES // len(case % (0, 0))
    cases = b"".join(case % (n // 20, n) for n in range(count))
    return b'<testsuites><testsuite name="pytest">' + cases + b"</testsuite></testsuites>"


def measure(name: str, work: Callable[[], object], goal: str) -> None:
    times: list[float] = []
    for _ in range(25):
        started = time.process_time()
        work()
        times.append((time.process_time() - started) * 1000)
    best, middle = min(times), statistics.median(times)
    print(f"{name:<52} best {best:7.2f} ms   p50 {middle:7.2f} ms   (goal: {goal})")


def context() -> None:
    events = long_log(STEPS)
    window = Window.of(128_000, SPECS)

    def whole() -> Context:
        context = Context(0, window)
        context.update(events)
        context.messages()
        return context

    measure(f"context fold of a {STEPS:,}-step log ({len(events):,} events)", whole, "≤ 20 ms")
    folded = whole()
    grown = list(events)
    step = STEPS

    def one_more() -> None:
        nonlocal step
        step += 1
        for body in turn(step, 3_000):
            grown.append(Event(RUN, len(grown) + 1, 1.0, body))
        folded.update(grown)
        folded.messages()

    measure("one more turn, and its request", one_more, "≤ 5 ms")

    def circles() -> None:
        watch = StuckDetector(0, Patience())
        watch.update(events)
        watch.found()

    measure("looking for circles in the whole log", circles, "≤ 20 ms")


def many_tools() -> None:
    """What a request costs with many added tools. The figure depends on no machine."""
    plain = fixed_tokens(SYSTEM, SPECS)
    for count in (20, 100, 500):
        cost = fixed_tokens(SYSTEM, ToolSet(added_tools(count)).specs) - plain
        print(f"a request with {count} added tools: {cost:,} tokens more   (goal: ≤ 2,000)")


def main() -> int:
    context()
    many_tools()
    text, xml = pytest_text(), junit_xml()
    plain = best(lambda: text.decode().splitlines())
    understood = best(lambda: diagnose(CheckOutput("pytest", 1, None, 1.0, text, b"")))
    reported = best(lambda: diagnose(CheckOutput("pytest", 1, None, 1.0, b"", b"", (xml,))), rounds=3)
    print(f"splitlines     {len(text) / 1e6:5.1f} MB  {plain * 1000:7.1f} ms")
    print(
        f"pytest's text  {len(text) / 1e6:5.1f} MB  {understood * 1000:7.1f} ms  {understood / plain:5.1f}×"
    )
    print(f"its JUnit XML  {len(xml) / 1e6:5.1f} MB  {reported * 1000:7.1f} ms  {reported / plain:5.1f}×")
    print(
        f"limit for the text: {LIMIT_SECONDS * 1000:.0f} ms: {'kept' if understood <= LIMIT_SECONDS else 'NOT kept'}"
    )
    return understood > LIMIT_SECONDS


if __name__ == "__main__":
    sys.exit(main())
