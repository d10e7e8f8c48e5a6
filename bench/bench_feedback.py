"""Processor time to understand 10 MB of what pytest prints, beside one plain pass over its lines."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from cloister.feedback.api import CheckOutput
from cloister.feedback.diagnose import diagnose

CAPTURED = Path(__file__).parent.parent / "tests" / "feedback" / "captured" / "python_tests"
BYTES = 10_000_000
LIMIT_SECONDS = 0.5


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


def main() -> int:
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
