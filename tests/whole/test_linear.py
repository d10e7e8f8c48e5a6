"""Work on the text of a guest, a model or a repository takes time in proportion to its size.

Processor time decides, never the clock on the wall: input that is eight times as long may take at most three times
eight as long. Work that grows with the square takes 64 times as long.
"""

import re
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import pytest
from tests.feedback.test_hostile import MATCHER, SEEDS
from tests.whole.linear_patterns import Expression, expressions, hostile, packages

from cloister.core.diagnosis import Comparison, Diagnosis, Weakening
from cloister.core.diagnosis import TestResult as Result
from cloister.core.repository import read_settings
from cloister.core.text import harmless, one_line
from cloister.feedback.api import CheckOutput
from cloister.feedback.compare import compare
from cloister.feedback.diagnose import diagnose
from cloister.feedback.discover import discover, scripts_of
from cloister.feedback.goals import Goals, asked
from cloister.feedback.integrity.base_tests import grafted
from cloister.feedback.integrity.versions import Version, versions
from cloister.feedback.integrity.weakening import weakenings
from cloister.feedback.report import tell
from cloister.runs.event_text import facts

TIMES = 8
MOST = 3 * TIMES
SUSPECT = 1.5 * TIMES
"""A single measurement below this is not repeated."""
NOISE = 0.03
"""Seconds below which a measurement says nothing: quadratic work on the sizes below takes far longer."""

LENGTH = 500
"""Characters: more than a pattern with limited repeats looks back."""
SLOW = 0.02
"""Seconds that a shorter text never takes, unless the work grows with more than the square."""


def cpu(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def grows_too_fast(
    make: Callable[[int], Any], work: Callable[[Any], object], size: int, noise: float = NOISE
) -> bool:
    """True if input of `TIMES` times `size` takes much longer than that many times as long."""
    small, large = make(size), make(size * TIMES)

    def ratio(rounds: int) -> float:
        long = cpu(lambda: work(large), rounds)
        return 0.0 if long < noise else long / max(cpu(lambda: work(small), 3 * rounds), noise / MOST / TIMES)

    return ratio(1) > SUSPECT and all(ratio(3) > MOST for _ in range(3))


@cache
def patterns() -> list[Expression]:
    return expressions()


@pytest.mark.parametrize("package", packages())
def test_no_pattern_backtracks_more_than_linearly(package: str) -> None:
    slow: list[str] = []
    for one in patterns():
        if one.where.rpartition(":")[0].rpartition("/")[0] == package:
            bad = next((text for text in hostile(one.pattern) if _backtracks(one, *text)), None)
            slow += [f"{one.where} {one.method} on {bad}"] if bad else []
    assert slow == []


def _backtracks(one: Expression, prefix: str, piece: str, tail: str) -> bool:
    def made(size: int) -> str:
        return prefix + piece * max(1, size // len(piece)) + tail

    # Longer and longer: a pattern that doubles its work with each character must not get a long text.
    # One that has not done so at a hundred characters does not.
    length = 8
    while length < LENGTH * TIMES and cpu(partial(one.apply, made(length)), 1) < SLOW:
        length = length * 5 // 4 if length < 100 else length * 2
    return grows_too_fast(made, one.apply, min(length // TIMES, LENGTH), noise=1e-3)


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(a+)+$", "match"),
        (r"^SUBFAILED(?:\[.{0,300}?\]|\(.{0,300}?\))* (?=\S{1,300}::)", "match"),
        (r"\d+ items", "finditer"),
        (r"\s*x\s*=\s*(.*)y", "match"),
        (r"<[^>]*>", "finditer"),
        (r".*;s.*;s.*e", "match"),
        (r"^\s*-", "finditer"),
        (r"(?:a|ab|b)*c", "match"),
        (r"[^/]*:[^/]*@", "match"),
    ],
)
def test_hostile_strings_find_patterns_that_backtrack(pattern: str, method: str) -> None:
    one = Expression("here", re.compile(pattern, re.MULTILINE), method)
    assert any(_backtracks(one, *text) for text in hostile(one.pattern))


# Functions

OUTPUTS = [*SEEDS, *(seed.replace(b"\n", b" ") + b"\n" for seed in SEEDS)]


def _output(seed: bytes) -> Callable[[int], CheckOutput]:
    def made(size: int) -> CheckOutput:
        data = seed * max(1, size // len(seed))
        return CheckOutput("check", 1, None, 1.0, data, data, (data,), (MATCHER,))

    return made


@pytest.mark.parametrize("seeds", [OUTPUTS[start::8] for start in range(8)], ids=range(8))
def test_output_of_checks_is_diagnosed_in_linear_time(seeds: Iterable[bytes]) -> None:
    assert [seed for seed in seeds if grows_too_fast(_output(seed), diagnose, 16_000)] == []


PATHS = ("tests/test_a.py", "a.test.js", "a_test.go", "src/a.rs", "tests/ATest.java", "test_a.c")
SETTINGS = (
    *("package.json", "pyproject.toml", "setup.cfg", "Makefile", "Cargo.toml", "tests/data.txt", "a.py"),
    *("CMakeLists.txt", "tox.ini", "conftest.py", "go.mod", "pom.xml", ".flake8"),
)
CODE = (
    "def test_a():\n    assert f(1) == 2\n",
    "(",
    "it('a', () => { expect(a).toBe(1) })\n",
    "#[test]\nfn a() {\n}\n",
    "#[cfg(test)]\nmod a {\n",
    "/// ```\n/// a\n/// ```\npub fn a() {\n}\n",
    "func TestA(t *testing.T) {\n\tt.Fatal(1)\n}\n",
    "@Test\nvoid a() {\n}\n",
    "test: a b\n\tpytest -k x || true; $(A)\n",
    '{"scripts":{"test":"a"},',
    "addopts = -k x\n[tool.pytest.ini_options]\n",
    "add_test(a b)\nadd_executable(test_a)\n",
    "replace a => ./b\n",
    "# noqa: E501 # type: ignore # pylint: disable=x\n",
    "\n",
    " ",
    "a",
    "=",
)


def _changed(path: str, piece: str) -> Callable[[int], Version]:
    def made(size: int) -> Version:
        text = piece * (size // len(piece))
        return Version(path, text, text[len(text) // 3 :] + piece.upper() * (size // len(piece) // 3))

    return made


@pytest.mark.parametrize("path", (*PATHS, *SETTINGS))
def test_changed_files_are_compared_in_linear_time(path: str) -> None:
    def work(version: Version) -> None:
        weakenings([version])
        grafted(version)

    assert [piece for piece in CODE if grows_too_fast(_changed(path, piece), work, 8_000)] == []


def _results(status: Any, count: int, name: str) -> Diagnosis:
    tests = tuple(Result(name.format(number), status, "a.py", 1, "why") for number in range(count))
    red = status in ("failed", "error")
    return Diagnosis("pytest", 1 if red else 0, 1.0, tests=tests)


def _weak(count: int) -> tuple[list[Diagnosis], list[Diagnosis]]:
    weak = tuple(Weakening(f"a{number}.py", "changed", f"test_{number}") for number in range(50))
    now = Diagnosis("pytest", 0, 1.0, unlisted=count, weakened=weak)
    return [_results("failed", count, "a.py::test_{}")], [now]


def _compared(before: str, after: str, status: str = "error") -> Callable[[int], Any]:
    def made(count: int) -> Any:
        goals = Goals(names=tuple(before.format(number) for number in range(count)), exactly=True)
        return [_results(status, count, before)], [_results("passed", count, after)], goals

    return made


def _red(count: int) -> Comparison:
    names = tuple(f"test {number}" for number in range(count))
    return Comparison(new=names, still=names, unrelated=names[::2], missing=names, fixed=names)


def _diff(count: int) -> str:
    return "".join(
        f"diff --git a/{number} b/{number}\n--- a/{number}\n+++ b/{number}\n@@ -1 +1 @@\n-a\n+b\n"
        for number in range(count)
    )


def _failing(count: int) -> list[Diagnosis]:
    return [_results("failed", count, "a test of {}")]


LISTS: dict[str, tuple[Callable[[int], Any], Callable[[Any], object]]] = {
    "tests that are gone": (_compared("m{}", "n{}"), lambda it: compare(*it)),
    "fixtures that stood for tests": (_compared("m{}::setUpClass", "n{}::t"), lambda it: compare(*it)),
    "tests that only their package names": (_compared("m/{}", "n/{}", "passed"), lambda it: compare(*it)),
    "names of suites as goals": (
        lambda n: ([_results("failed", n, "s{}")], [_results("failed", n, "t{} > x")], _goals(n)),
        lambda it: compare(*it),
    ),
    "weakened tests": (_weak, lambda it: compare(*it)),
    "goals of a prompt": (_failing, lambda it: asked("Fix `a` and b::c.", it)),
    "report to the model": (_failing, lambda it: tell(compare(it, it), it)),
    "names on the screen": (_red, lambda it: facts.red_names(it, 100)),
    "files of a diff": (_diff, versions),
    "files of a repository": (
        lambda n: [f"d{number}/test_{number}.py" for number in range(n)],
        lambda it: discover(it, {}, frozenset({"pytest", "python3"})),
    ),
}


def _goals(count: int) -> Goals:
    return Goals(names=tuple(f"x{number}" for number in range(count)))


@pytest.mark.parametrize("name", LISTS)
def test_long_lists_take_linear_time(name: str) -> None:
    make, work = LISTS[name]
    assert not grows_too_fast(make, work, 400)


TEXTS = (
    "\x1b[",
    "\x1b]0;",
    "\x1b[0 ",
    "\x1b",
    "\u0301",
    "\u200d",
    "a\r",
    "\x9b",
    "e\u0301" * 7,
    "\ud800",
    " ",
    "\t",
)


@pytest.mark.parametrize("show", [harmless, one_line, facts.excerpt, facts.said], ids=lambda it: it.__name__)
def test_text_is_made_harmless_in_linear_time(show: Callable[[str], object]) -> None:
    assert [text for text in TEXTS if grows_too_fast(lambda n, text=text: text * n, show, 2_000)] == []


WORKFLOW = (
    "jobs:\n  a:\n    steps:\n      - run: pytest\n",
    "      - run: |\n          pytest\n",
    "run:",
    " ",
    "\n",
)
FILES = (".github/workflows/a.yml", "package.json", "pyproject.toml", "Makefile", "tox.ini", "CMakeLists.txt")


@pytest.mark.parametrize("file", FILES)
def test_settings_of_a_repository_are_read_in_linear_time(file: str) -> None:
    def work(text: str) -> None:
        discover([file], {file: text}, frozenset({"pytest", "npm", "make", "tox"}))
        read_settings({".cloister/config.toml": text})
        scripts_of(text)

    pieces = (*WORKFLOW, *CODE)
    assert [
        piece for piece in pieces if grows_too_fast(lambda n, p=piece: p * (n // len(p)), work, 2_000)
    ] == []
