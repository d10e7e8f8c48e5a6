"""Tests that must fail, planted beside real tests: a runner that does not report them as failed cannot be trusted."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from cloister.core.diagnosis import Diagnosis, TestResult
from cloister.feedback.check_commands import tool_of, words


class Planted(msgspec.Struct, frozen=True):
    """One file with canaries."""

    path: str
    text: str
    """The whole content of the file."""
    names: tuple[str, ...]
    """Each is part of the name of one canary, and of no other test."""
    why: tuple[str, ...]
    """Why each canary must fail, parallel to `names`."""
    by_program: bool = False
    """The runner reports whole test programs; the canaries are named in the program's output."""


def canaries(command: str, path: str, text: str, token: str) -> Planted | None:
    """Add tests that must fail to `text`, a test file that `command` runs, in the style of that file.

    `token` is lower-case hexadecimal and random, so that no code can know the names. None if the test framework is
    unknown.
    """
    sown = _Sown(token)
    if path.endswith(".py"):
        return _python(command, path, text, sown)
    return None


def silent(planted: Planted, diagnosis: Diagnosis) -> tuple[str, ...]:
    """The canaries that were not reported as failed, in words; empty if the runner is honest."""
    if not diagnosis.tests and not diagnosis.unlisted:
        return _without_names(planted, diagnosis)
    failing = [test for test in diagnosis.tests if test.status in ("failed", "error")]
    others = [test for test in diagnosis.tests if test.status not in ("failed", "error")]
    output = f"{diagnosis.tail}\n" + "\n".join(test.message or "" for test in failing)
    found: list[str] = []
    for name, why in zip(planted.names, planted.why, strict=True):
        if any(name in test.name for test in failing):
            continue
        if planted.by_program and failing and name in output:
            continue
        found.append(f"{why} ({name}) {_seen(name, others)}")
    return tuple(found)


def _seen(name: str, others: Iterable[TestResult]) -> str:
    statuses = {test.status for test in others if name in test.name}
    if "passed" in statuses:
        return "was reported as passed"
    return "was skipped" if statuses else "was not reported"


def _without_names(planted: Planted, diagnosis: Diagnosis) -> tuple[str, ...]:
    """The verdict on a runner whose output names no test: the canaries must at least change its exit status."""
    if diagnosis.killed is not None:
        return (f"the check was stopped ({diagnosis.killed}) before a planted test was reported",)
    if diagnosis.green:
        return ("the check is green although every planted test must fail",)
    if any(one.severity == "error" and one.file == planted.path for one in diagnosis.diagnostics):
        return ("the planted tests could not be built",)
    return ()


class _Sown:
    """Names the canaries of one file. All names have the same length, so none is part of another."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.names: list[str] = []
        self._why: list[str] = []

    def name(self, why: str) -> str:
        self.names.append(f"{self.token}{len(self.names):02d}")
        self._why.append(why)
        return self.names[-1]

    def planted(self, path: str, text: str, *, by_program: bool = False) -> Planted:
        return Planted(path, text, tuple(self.names), tuple(self._why), by_program)


# Python

_TEST = re.compile(r"^[ \t]*(?:async )?def test", re.MULTILINE)
_FUNCTION = re.compile(r"^def test", re.MULTILINE)
_ASYNC = re.compile(r"^async def test", re.MULTILINE)
_CLASS = re.compile(r"^class Test\w*(?:\(\))?:", re.MULTILINE)
_CASE = re.compile(r"^class \w+\(([\w., ]*?Case\w*)\):", re.MULTILINE)
_ASYNC_METHOD = re.compile(r"^[ \t]+async def test", re.MULTILINE)
_MAIN = re.compile(r"^if __name__ ?== ?[\"']__main__[\"']", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*@pytest\.mark\.(\w+)", re.MULTILINE)
_LOOP_MARK = re.compile(r"@pytest\.mark\.(?:asyncio|anyio|trio)(?:\([^()\n]*\))?")
_METHOD = re.compile(r"\bself\.(assert\w+)\(")
_IMPORTED = re.compile(r"^from [\w.]+ import \(?.{0,300}?\b(assert_\w*(?:equal|close|same)\w*)", re.MULTILINE)
_QUALIFIED = re.compile(r"\b(\w{1,40}(?:\.\w{1,40})?\.assert_\w*(?:equal|allclose|same)\w*)\(")
_BUILT_IN_MARKS = frozenset(
    (
        "parametrize",
        "skip",
        "skipif",
        "xfail",
        "usefixtures",
        "filterwarnings",
        "asyncio",
        "anyio",
        "trio",
        "timeout",
        "flaky",
    )
)

_STATEMENTS: Mapping[str, str] = {
    "a false assertion": "assert 1 == 2",
    "a false assertion about lists": "assert [1, 2] == [1, 3]",
    "a false assertion about texts": 'assert "one" == "two", "planted"',
    "a false assertion about dictionaries": 'assert {"a": 1} == {"a": 2}',
    "a false assertion about numbers": "assert 0.5 == 0.25",
    "a false assertion about a type": "assert isinstance(1, str)",
    "a false assertion about members": "assert 3 in (1, 2)",
    "a false assertion about truth": "assert not [1]",
    "an exception": 'raise RuntimeError("planted")',
    "an exit with status 1": "raise SystemExit(1)",
}
_WITH_PYTEST: Mapping[str, str] = {
    "an expected exception that is not raised": "with {pytest}.raises(ValueError):\n        pass",
    "another exception than the expected one": 'with {pytest}.raises(ValueError):\n        raise KeyError("planted")',
    "an expected warning that is not given": "with {pytest}.warns(UserWarning):\n        pass",
    "a call of fail": '{pytest}.fail("planted")',
    "a false approximation": "assert 0.5 == {pytest}.approx(0.25)",
}
_MOCKS: Mapping[str, str] = {
    "an expected call that is not made": "{mock}.create_autospec(lambda: 1).assert_called_once()",
    "a call with other arguments": "double = {mock}.create_autospec(lambda one: one)\n    double(1)\n    double.assert_called_with(2)",
    "a call that the signature forbids": "{mock}.create_autospec(lambda one: one)(1, 2)",
}
_ALWAYS_IN_CASES = ("assertEqual", "assertTrue", "assertRaises", "fail", "raise", "exit", "subTest")
_METHODS: Mapping[str, str] = {
    "assertEqual": "self.assertEqual(1, 2)",
    "assertTrue": "self.assertTrue(False)",
    "assertRaises": "with self.assertRaises(ValueError):\n            pass",
    "fail": 'self.fail("planted")',
    "raise": 'raise RuntimeError("planted")',
    "exit": "raise SystemExit(1)",
    "subTest": "with self.subTest(number=1):\n            self.assertEqual(1, 2)",
    "assertEquals": "self.assertEquals(1, 2)",
    "assertNotEqual": "self.assertNotEqual(1, 1)",
    "assertFalse": "self.assertFalse(True)",
    "assertIs": "self.assertIs(None, self)",
    "assertIsNot": "self.assertIsNot(None, None)",
    "assertIsNone": "self.assertIsNone(1)",
    "assertIsNotNone": "self.assertIsNotNone(None)",
    "assertIn": "self.assertIn(3, [1, 2])",
    "assertNotIn": "self.assertNotIn(1, [1, 2])",
    "assertIsInstance": "self.assertIsInstance(1, str)",
    "assertNotIsInstance": "self.assertNotIsInstance(1, int)",
    "assertRaisesRegex": 'with self.assertRaisesRegex(ValueError, "a"):\n            pass',
    "assertWarns": "with self.assertWarns(UserWarning):\n            pass",
    "assertLogs": "with self.assertLogs():\n            pass",
    "assertAlmostEqual": "self.assertAlmostEqual(0.5, 0.25)",
    "assertGreater": "self.assertGreater(1, 2)",
    "assertGreaterEqual": "self.assertGreaterEqual(1, 2)",
    "assertLess": "self.assertLess(2, 1)",
    "assertLessEqual": "self.assertLessEqual(2, 1)",
    "assertRegex": 'self.assertRegex("one", "two")',
    "assertNotRegex": 'self.assertNotRegex("one", "one")',
    "assertCountEqual": "self.assertCountEqual([1], [2])",
    "assertListEqual": "self.assertListEqual([1], [2])",
    "assertTupleEqual": "self.assertTupleEqual((1,), (2,))",
    "assertSetEqual": "self.assertSetEqual({1}, {2})",
    "assertDictEqual": "self.assertDictEqual({1: 1}, {1: 2})",
    "assertSequenceEqual": "self.assertSequenceEqual([1], [2])",
    "assertMultiLineEqual": 'self.assertMultiLineEqual("one", "two")',
}


def _python(command: str, path: str, text: str, sown: _Sown) -> Planted | None:
    """Append to the file itself: the canaries share its imports, its fixtures and its collection rules."""
    if not _TEST.search(text):
        return None
    case = _CASE.search(text)
    only_cases = _by_unittest(command, text, has_cases=case is not None)
    has_cases = only_cases or case is not None
    parts: list[str] = []
    if not only_cases:
        parts += _functions(command, text, sown)
    if has_cases:
        parts += _cases(text, case[1] if case else "", sown)
    if "load_tests" in text and only_cases:
        return sown.planted(_named_anew(path, sown.token), "\n".join(parts))
    main = list(_MAIN.finditer(text))
    at = main[-1].start() if main else len(text)
    before = text[:at] if text[:at].endswith("\n") or not text[:at] else text[:at] + "\n"
    return sown.planted(path, before + "\n" + "\n".join(parts) + "\n" + text[at:])


def _by_unittest(command: str, text: str, *, has_cases: bool) -> bool:
    """True if the runner collects test cases and no functions."""
    if tool_of(command) == "pytest" or re.search(r"\b(?:pytest|py\.test)\b", command):
        return False
    if re.search(r"\bunittest\b|\bmanage\.py\b|\bstestr\b|\btrial\b", command):
        return True
    # The command does not show the runner: test cases run everywhere.
    return has_cases and not _FUNCTION.search(text)


def _named_anew(path: str, token: str) -> str:
    """A new name beside `path` that matches the same patterns."""
    stem = path.removesuffix(".py")
    return f"{stem.removesuffix('_test')}_{token}_test.py" if stem.endswith("_test") else f"{stem}_{token}.py"


def _functions(command: str, text: str, sown: _Sown) -> list[str]:
    pytest, mock = f"_pytest_{sown.token}", f"_mock_{sown.token}"
    marks = "".join(f"@{pytest}.mark.{mark}\n" for mark in _marks(command, text))
    bodies = {**_STATEMENTS, **{why: body.format(pytest=pytest) for why, body in _WITH_PYTEST.items()}}
    parts = [f"import pytest as {pytest}"]
    if re.search(r"\bmock", text):
        parts.append(f"from unittest import mock as {mock}")
        bodies |= {why: body.format(mock=mock) for why, body in _MOCKS.items()}
    bodies |= {f"a false {name}": f"{name}({given})" for name, given in _helpers(text)}
    parts += [f"{marks}def test_{sown.name(why)}():\n    {body}\n" for why, body in bodies.items()]
    cases = [sown.name("a failing parametrised test") for _ in range(2)]
    parts.append(
        f'{marks}@{pytest}.mark.parametrize("one", [1, 2], ids={cases})\n'
        f"def test_{sown.token}_each(one):\n    assert one == 3\n"
    )
    fixture = f"_fixture_{sown.token}"
    parts.append(
        f'@{pytest}.fixture\ndef {fixture}():\n    raise RuntimeError("planted")\n\n\n'
        f"{marks}def test_{sown.name('a failing fixture')}({fixture}):\n    pass\n"
    )
    if _CLASS.search(text):
        method = sown.name("a false assertion in a method")
        parts.append(
            f"{marks}class Test_{sown.token}:\n    def test_{method}(self):\n        assert 1 == 2\n"
        )
    if _ASYNC.search(text):
        loop = _LOOP_MARK.search(text)
        marks += loop[0].replace("pytest", pytest, 1) + "\n" if loop else ""
        name = sown.name("a false assertion in a coroutine")
        parts.append(f"{marks}async def test_{name}():\n    assert 1 == 2\n")
    return parts


def _marks(command: str, text: str) -> list[str]:
    """The marks by which the command, or all tests of the file, are selected."""
    parts = words(command)
    chosen = [parts[index + 1] for index, part in enumerate(parts[:-1]) if part == "-m"]
    wanted = [word for one in chosen[-1:] for word in re.findall(r"(?<!not )\b(?!not\b|and\b|or\b)\w+", one)]
    if "-m" in parts and wanted[:1] == ["pytest"]:
        wanted = []  # `python -m pytest`
    used = _MARK.findall(text)
    tests = len(_TEST.findall(text))
    everywhere = {mark for mark in used if used.count(mark) >= tests and mark not in _BUILT_IN_MARKS}
    return sorted(everywhere | set(wanted) - _BUILT_IN_MARKS)


def _helpers(text: str) -> list[tuple[str, str]]:
    """Assertion functions of libraries that the file uses, with arguments that differ."""
    names = [*_IMPORTED.findall(text), *_QUALIFIED.findall(text)]
    plain = (name for name in dict.fromkeys(names) if "not_" not in name and not name.startswith("self."))
    return [(name, "1, 2") for name in plain][:5]


def _cases(text: str, bases: str, sown: _Sown) -> list[str]:
    """Test cases of the class that the file uses, and of the plain one."""
    unittest = f"_unittest_{sown.token}"
    used = dict.fromkeys((*_ALWAYS_IN_CASES, *_METHOD.findall(text)))
    forms = {name: _METHODS[name] for name in used if name in _METHODS}
    parts = [f"import unittest as {unittest}", _case(f"{unittest}.TestCase", forms, sown)]
    if bases and bases != "unittest.TestCase":
        parts.append(_case(bases, {name: _METHODS[name] for name in _ALWAYS_IN_CASES}, sown))
    if _ASYNC_METHOD.search(text) and "Async" in text:
        forms = {"coroutine": "self.assertEqual(1, 2)"}
        parts.append(_case(f"{unittest}.IsolatedAsyncioTestCase", forms, sown, "async "))
    return parts


_WORDS = {
    "raise": "an exception in a test case",
    "exit": "an exit with status 1 in a test case",
    "subTest": "a failing subtest",
    "coroutine": "a false assertion in a coroutine",
    "assertRaises": "an expected exception that is not raised (assertRaises)",
}


def _case(bases: str, forms: Mapping[str, str], sown: _Sown, kind: str = "") -> str:
    methods = [
        f"    {kind}def test_{sown.name(_WORDS.get(name, f'a false {name}'))}(self):\n        {body}\n"
        for name, body in forms.items()
    ]
    return f"class Test_{sown.token}_{len(sown.names)}({bases}):\n" + "\n".join(methods)
