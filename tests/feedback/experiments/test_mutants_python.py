"""Mutants of Python tests, run with pytest: honest tests must fail, lying ones pass."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree

import pytest

from cloister.feedback.experiments.mutants import Edit, Mutants, apply, mutants

HEAD = """\
import asyncio, logging, unittest, warnings
from decimal import Decimal
from unittest import mock
import pytest
from pytest import raises, approx

LIMITS = {"a": 1}
nan = float("nan")

def double(x): return x * 2
async def later(x): return x
def warn(): warnings.warn("old", DeprecationWarning)
def spy(): return mock.create_autospec(lambda *a, **k: None)
def refuse(*_): raise ValueError("no such thing")
def check(x): assert x == 4
def check_deeply(x):
    check(x)
class Thing:
    name = "thing"
    def __contains__(self, x): return x == 1

"""
STATEMENTS = """\
assert double(2) == 4
assert 4 == double(2)
assert double(2) == 4, "a message, with == in it"
assert (double(2) == 4)
assert double(-2) == -4
assert double(0.5) == 1.0
assert double(1e300) == 2e300
assert double("a") == "aa"
assert double("a") == 'a' "a"
assert double(b"a") == b"aa"
assert double(r"\\d") == r"\\d\\d"
assert f"{double(1)}" == f"{2}"
assert double([1]) == [1, 1]
assert double([]) == []
assert double(()) == ()
assert [double(1), [double(2)]] == [double(1), [4]]
assert {"a": double(1), **LIMITS} == {"a": 2, **LIMITS}
assert {} == {}
assert {1, 2} == {2, 1}
assert {double(1)} == set([double(1)])
assert (double(1), double(2)) == (double(1), double(2))
assert double(2) == LIMITS["a"] * 4
assert (double(1) == 2) == True
assert (double(1) == 3) == False
assert Thing.name.title() == Thing.name.title()
assert double(Decimal("0.5")) == Decimal("1.0")
assert Thing == Thing
assert None == None
assert double(2) != 5
assert double(2) > 3
assert double(2) >= 4
assert double(2) < 5
assert double(2) <= 4
assert 3 < double(2) < 5
assert double(1) == double(1) == 2
assert {1} < {1, 2}
assert 1 in Thing()
assert 2 not in Thing()
assert "a" in LIMITS
assert None is None
assert Thing is not None
assert double(True)
assert not double(0)
assert not (double(1) == 3)
assert isinstance(double(1), int)
assert all(x == 2 for x in [double(1)])
assert double(1) == 2 and double(2) == 4
assert double(1) == 2 and Thing
assert double(1) == 3 or double(2) == 4
assert double(1) == 2 if Thing else False
assert (y := double(1))
assert (y := double(1)) == 2
assert 0.1 + 0.2 == approx(0.3)
assert 0.1 + 0.2 == pytest.approx(0.3, abs=100)
assert [0.1 + 0.2] == approx([0.3])
assert 1e12 == approx(1e12, rel=0.5)
assert 0.3 == approx(0.1 + 0.2)
assert asyncio.run(later(3)) == 3
assert double(2) == (
    4  # the comment == 5
)
assert double(2) == \\
    4
assert double(1) == 2; double(3)
check(double(2))
check_deeply(double(2))
for x, want in [(1, 2), (2, 4)]: assert double(x) == want
if double(1) == 2: assert double(2) == 4
with raises(ValueError): refuse()
with pytest.raises(ValueError, match="no such"):
    refuse()
with pytest.raises((ValueError, KeyError)) as caught:
    refuse()
with pytest.raises(expected_exception=ValueError):
    refuse()
with pytest.raises(SystemExit): raise SystemExit(2)
with pytest.raises(AssertionError): assert double(1) == 3
raises(ValueError, refuse, 1)
with pytest.warns(DeprecationWarning): warn()
m = spy(); m(1, a=2); m.assert_called_once_with(1, a=2)
m = spy(); m(); m.assert_called_with()
m = spy(); m(1); m.assert_any_call(1)
m = spy(); m(1); m.assert_has_calls([mock.call(1)])
m = spy(); m(1); m.assert_called_once()
m = spy(); m.assert_not_called()
m = spy(); m(1); assert m.call_args == mock.call(1)
"""
METHODS = """\
self.assertEqual(double(2), 4)
self.assertEqual(4, double(2), "message")
self.assertEqual(double([1]), [1, 1])
self.assertEqual(double(2), double(2))
self.assertListEqual(double([1]), [1, 1])
self.assertListEqual(double([1]), double([1]))
self.assertDictEqual({"a": double(1)}, {"a": 2})
self.assertDictEqual(LIMITS, dict(LIMITS))
self.assertCountEqual([2, 1], [1, 2])
self.assertSetEqual({1}, {1})
self.assertTupleEqual((1, 2), (1, 2))
self.assertMultiLineEqual("a", "a")
self.assertAlmostEqual(0.1 + 0.2, 0.3)
self.assertAlmostEqual(100, 130, delta=50)
self.assertNotAlmostEqual(0.1, 0.3)
self.assertNotEqual(double(2), 5)
self.assertTrue(double(2) == 4)
self.assertTrue(double(1))
self.assertFalse(double(0))
self.assertFalse(double(2) == 5)
self.assertIs(LIMITS, LIMITS)
self.assertIsNot(LIMITS, {})
self.assertIsNone(None)
self.assertIsNotNone(double(1))
self.assertIn("a", LIMITS)
self.assertIn("a", "abc")
self.assertIn(double(1), [1, 2])
self.assertNotIn(5, [1, 2])
self.assertIsInstance(double(1), int)
self.assertNotIsInstance(double(1), str)
self.assertGreater(double(2), 3)
self.assertGreaterEqual(double(2), 4)
self.assertLess(double(2), 5)
self.assertLessEqual(double(2), 4)
self.assertRegex("abc", r"b.")
self.assertNotRegex("abc", r"x")
self.assertRaises(ValueError, refuse)
with self.assertRaises(ValueError) as caught: refuse()
with self.assertRaisesRegex(ValueError, "no such"):
    refuse()
with self.assertRaises(AssertionError): self.assertEqual(1, 2)
with self.assertWarns(DeprecationWarning): warn()
with self.assertNoLogs(): pass
self.own(double(2))
with self.subTest(x=1): self.assertEqual(double(2), 4)
"""


def _split(text: str) -> list[str]:
    """One string for each top statement, or for a line of several."""
    lines = text.splitlines()
    starts = sorted({node.lineno - 1 for node in ast.parse(text).body})
    return ["\n".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]


def _module(statements: Iterable[str], methods: Iterable[str]) -> str:
    parts = [HEAD]
    for number, statement in enumerate(statements):
        parts.append(f"def test_s{number}():\n{indent(statement, '    ')}\n\n")
    parts.append("class TestOld(unittest.TestCase):\n    def own(self, x): self.assertEqual(x, 4)\n\n")
    for number, method in enumerate(methods):
        parts.append(f"    def test_m{number}(self):\n{indent(method, '        ')}\n\n")
    return "".join(parts)


def _run(folder: Path, text: str, product: str = "") -> dict[str, str]:
    """How each test went, by pytest."""
    (folder / "test_it.py").write_text(text)
    (folder / "product.py").write_text(product)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=r.xml",
        "test_it.py",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    cases = list(ElementTree.parse(folder / "r.xml").getroot().iter("testcase"))
    assert cases, done.stdout
    bad = {"failure": "failed", "error": "error", "skipped": "skipped"}
    return {
        case.get("name", ""): next((bad[child.tag] for child in case if child.tag in bad), "passed")
        for case in cases
    }


def _made(text: str) -> dict[str, Mutants]:
    tests = [
        f"test_it.py::{owner}{node.name}"
        for top in ast.parse(text).body
        for owner, node in (
            [(f"{top.name}::", node) for node in top.body] if isinstance(top, ast.ClassDef) else [("", top)]
        )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]
    made = mutants("tests/test_it.py", text, tests)
    assert set(made) == set(tests)
    return {test.rpartition("::")[2]: one for test, one in made.items()}


@pytest.fixture(scope="module")
def module() -> str:
    return _module(_split(STATEMENTS), METHODS.replace(":\n    refuse()", ": refuse()").splitlines())


@pytest.fixture(scope="module")
def made(module: str) -> dict[str, Mutants]:
    return _made(module)


def _alone(made: dict[str, Mutants]) -> dict[str, tuple[Edit, Edit]]:
    """Tests that have assertions of their own, which no other test shares."""
    own = {name: one for name, one in made.items() if len({edit.line for edit in one.edits}) == 1}
    shared = [one.edits[0].start for one in own.values()]
    return {
        name: (one.edits[0], one.reached[0])
        for name, one in own.items()
        if shared.count(one.edits[0].start) == 1
    }


def test_all_forms_pass_as_they_are_and_each_has_a_mutant(
    module: str, made: dict[str, Mutants], tmp_path: Path
) -> None:
    verdicts = _run(tmp_path, module)
    assert {name for name, verdict in verdicts.items() if verdict != "passed"} == set()
    assert {name for name in verdicts if not made[name].edits} == set()
    assert len(verdicts) >= 120


def test_each_form_fails_if_its_mutant_runs(module: str, made: dict[str, Mutants], tmp_path: Path) -> None:
    alone = _alone(made)
    assert len(alone) > 110
    verdicts = _run(tmp_path, apply(module, [edit for edit, _ in alone.values()]))
    assert {name: made[name].edits[0].was for name in alone if verdicts[name] != "failed"} == {}
    assert {name for name in verdicts if name not in alone and verdicts[name] != "passed"} == set()


def test_a_mutant_of_a_helper_fails_the_test_that_calls_it(
    module: str, made: dict[str, Mutants], tmp_path: Path
) -> None:
    alone = _alone(made)
    callers = {
        name: one
        for name, one in made.items()
        if name not in alone and len({edit.line for edit in one.edits}) == 1
    }
    assert len(callers) >= 2
    for name, one in callers.items():
        assert _run(tmp_path, apply(module, one.edits[:1]))[name] == "failed", one.edits


def test_the_next_number_fails_as_a_distant_one_does(
    module: str, made: dict[str, Mutants], tmp_path: Path
) -> None:
    near = {name: made[name].edits[-1] for name in _alone(made) if len(made[name].edits) == 2}
    assert len(near) > 20
    verdicts = _run(tmp_path, apply(module, near.values()))
    assert {name: edit.text for name, edit in near.items() if verdicts[name] != "failed"} == {}


def test_an_unconditional_failure_in_place_of_each_assertion_fails(
    module: str, made: dict[str, Mutants], tmp_path: Path
) -> None:
    alone = _alone(made)
    verdicts = _run(tmp_path, apply(module, [reached for _, reached in alone.values()]))
    assert {name: made[name].edits[0].was for name in alone if verdicts[name] != "failed"} == {}


def test_an_unconditional_failure_at_the_end_fails(
    module: str, made: dict[str, Mutants], tmp_path: Path
) -> None:
    ends = [one.end for one in made.values() if one.end]
    assert len(ends) == len(made)
    verdicts = _run(tmp_path, apply(module, ends))
    assert {name for name, verdict in verdicts.items() if verdict == "passed"} == set()


LYING = """\
class Any(float):
    __hash__ = float.__hash__
    def __eq__(self, other): return isinstance(other, (int, float))
class Str(str):
    __hash__ = str.__hash__
    def __eq__(self, other): return isinstance(other, str)
class All(list):
    def __eq__(self, other): return type(other) is list
def half(x): return Any(x // 2)
def name(x): return Str(x)
def parts(x): return All()
"""
PATCHED = """\
import sys, unittest
unittest.TestCase.assertEqual = lambda self, a, b, msg=None: None
unittest.TestCase.assertTrue = lambda self, a, msg=None: None
sys.modules["pytest"].raises(ValueError).__class__.__exit__ = lambda self, *a: True
def half(x): return 0
def name(x): return ""
def parts(x): return []
"""
BELIEVERS = """\
import unittest
import pytest
from product import half, name, parts

WANT = 2.5

@pytest.mark.parametrize("x, want", [("a.b", "b")])
def test_lying_parameter(x, want): assert name(x) == want
def test_lying_number(): assert half(5) == 2.5
def test_lying_variable(): assert half(5) == WANT
def test_lying_name(): assert name("a.b") == "b"
def test_lying_list(): assert parts("a.b") == ["a", "b"]
class TestOld(unittest.TestCase):
    def test_patched_equal(self): self.assertEqual(half(5), 2.5)
    def test_patched_true(self): self.assertTrue(half(5) == 2.5)
def test_patched_raises():
    with pytest.raises(ValueError): half(-1)
def test_vacuous_tuple(): assert (half(5) == 2.5, "always true")
def test_vacuous_or(): assert half(5) == 2.5 or True
def test_swallowed():
    try:
        assert half(5) == 7
    except AssertionError:
        pass
def test_unreached():
    if half(5) == 1e9: assert half(5) == 1e9
"""


@pytest.mark.parametrize(
    ("product", "kinds"),
    [(LYING, ("lying", "vacuous", "swallowed")), (PATCHED, ("patched", "vacuous", "swallowed", "unreached"))],
)
def test_mutants_of_tests_that_show_nothing_still_pass(
    product: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    made = _made(BELIEVERS)
    tests = [name for name in made if name.removeprefix("test_").startswith(kinds)]
    before = _run(tmp_path, BELIEVERS, product)
    after = _run(tmp_path, apply(BELIEVERS, [made[name].edits[0] for name in tests]), product)
    verdicts = {name.partition("[")[0]: (before[name], after[name]) for name in before}
    assert {name: verdicts[name] for name in tests} == dict.fromkeys(tests, ("passed", "passed"))


def test_reached_tells_whether_a_surviving_assertion_ran(tmp_path: Path) -> None:
    made = _made(BELIEVERS)
    tests = ("test_lying_number", "test_unreached")
    verdicts = _run(
        tmp_path,
        apply(BELIEVERS, [made[name].reached[0] for name in tests]),
        LYING.replace("isinstance(other, (int, float))", "other != 1e9"),
    )
    assert [verdicts[name] for name in tests] == ["failed", "passed"]
