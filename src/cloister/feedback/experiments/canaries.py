"""Tests that must fail, planted beside real tests: a runner that does not report them as failed cannot be trusted."""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cloister.core.diagnosis import Diagnosis, TestResult
from cloister.feedback.check_commands import tool_of, words
from cloister.feedback.experiments.script_canaries import is_script, script_canaries


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
    """A test program prints the results itself; other tools may report only the program."""


def canaries(command: str, path: str, text: str, token: str) -> Planted | None:
    """Add tests that must fail to `text`, a test file that `command` runs, in the style of that file.

    `token` is lower-case hexadecimal and random, so that no code can know the names. None if the test framework is
    unknown.
    """
    sown = _Sown(token)
    if path.endswith(".py"):
        return _python(command, path, text, sown)
    if is_script(path):
        added = script_canaries(command, path, text, sown.name)
        return sown.planted(path, text + added) if added else None
    ending = path.rpartition(".")[2]
    return _COMPILED[ending](path, text, sown) if ending in _COMPILED else None


def silent(planted: Planted, diagnosis: Diagnosis) -> tuple[str, ...]:
    """The canaries that were not reported as failed, in words; empty if the runner is honest."""
    named = any(name in test.name for test in diagnosis.tests for name in planted.names)
    if not named and planted.by_program:
        found = _by_output(planted, diagnosis)
    elif not diagnosis.tests and not diagnosis.unlisted:
        found = _without_names(planted, diagnosis)
    else:
        found = [
            f"{why} ({name}) {seen}"
            for name, why in zip(planted.names, planted.why, strict=True)
            if (seen := _seen([test for test in diagnosis.tests if name in test.name]))
        ]
    if not found and diagnosis.green:
        found = ["the check is green although planted tests failed"]
    return tuple(found)


def _seen(results: Sequence[TestResult]) -> str:
    statuses = {test.status for test in results}
    if statuses & {"failed", "error"}:
        return ""
    if "passed" in statuses:
        return "was reported as passed"
    return "was skipped" if statuses else "was not reported"


def _without_names(planted: Planted, diagnosis: Diagnosis) -> list[str]:
    """The verdict on a runner whose output no parser knows: it must fail, and mention a canary at its end."""
    if diagnosis.killed is not None:
        return [f"the check was stopped ({diagnosis.killed}) before a planted test was reported"]
    if any(one.severity == "error" and one.file == planted.path for one in diagnosis.diagnostics):
        return ["the planted tests could not be built"]
    passed = diagnosis.exit_code == 0
    if not passed and any(name in diagnosis.tail for name in planted.names):
        return []
    return [f"the check {'passed' if passed else 'failed'} without a word about a planted test"]


def _is_cut(output: str) -> bool:
    return "left out …]" in output


_FAILED_TESTS = re.compile(r"\b(\d{1,9}) (?:failed|FAILED TESTS?)\b|\[ +FAILED +\] (\d{1,9}) tests?\b")


def _by_output(planted: Planted, diagnosis: Diagnosis) -> list[str]:
    """The verdict on a test program that prints its own results: by name, or by the number of failed tests."""
    failing = [test.message or "" for test in diagnosis.failing]
    if diagnosis.killed is not None or (diagnosis.tests and not failing):
        return _without_names(planted, diagnosis) or ["no test program failed"]
    output = "\n".join([*failing, diagnosis.tail])
    counts = [int(found[1] or found[2]) for found in _FAILED_TESTS.finditer(output)]
    enough = max(counts, default=0) >= len(planted.names)
    if diagnosis.tests and _is_cut(output) and not any(name in output for name in planted.names):
        return []  # the program failed, and its report is too long to be kept
    lines = output.split("\n")
    found: list[str] = []
    for name, why in zip(planted.names, planted.why, strict=True):
        if not enough and not any(name in line and "fail" in line.lower() for line in lines):
            found.append(f"{why} ({name}) was not reported as failed")
    return found


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
_OWNED = re.compile(r"^class \w{1,200}\(([\w., ]{1,300})\):", re.MULTILINE)
_ASYNC_METHOD = re.compile(r"^[ \t]+async def test", re.MULTILINE)
_MAIN = re.compile(r"^if __name__ ?== ?[\"']__main__[\"']", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*@pytest\.mark\.(\w+)", re.MULTILINE)
_LOOP_MARK = re.compile(r"@pytest\.mark\.(?:asyncio|anyio|trio)(?:\([^()\n]*\))?")
_METHOD = re.compile(r"\bself\.(assert\w+)\(")
_IMPORTED = re.compile(
    r"^from [\w.]+ import \(?.{0,300}?\b(assert_\w{0,40}(?:equal|close|same)\w{0,40})", re.MULTILINE
)
_FROM = re.compile(r"^from [\w.]+ import \(?([\w, \n]{1,600})", re.MULTILINE)
_CALLED = re.compile(r"^[ \t]{1,40}(\w{1,60})\([^\n]{1,200},[^\n]{1,200}\)$", re.MULTILINE)
_OWN_METHOD = re.compile(
    r"^[ \t]{1,40}self\.((?!assert|subTest|skip)\w{1,60})\([^\n]{1,200},[^\n]{1,200}\)$", re.MULTILINE
)
_QUALIFIED = re.compile(r"\b(\w{1,40}(?:\.\w{1,40})?\.assert_\w{0,40}(?:equal|allclose|same)\w{0,40})\(")
_BUILT_IN_MARKS = {
    *("parametrize", "skip", "skipif", "xfail", "usefixtures", "filterwarnings"),
    *("asyncio", "anyio", "trio", "timeout", "flaky"),
}

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
_ALWAYS_IN_CASES = ("assertEqual", "assertTrue", "assertRaises", "fail", "raise", "subTest")
_METHODS: Mapping[str, str] = {
    "assertEqual": "self.assertEqual(1, 2)",
    "assertTrue": "self.assertTrue(False)",
    "assertRaises": "with self.assertRaises(ValueError):\n            pass",
    "fail": 'self.fail("planted")',
    "raise": 'raise RuntimeError("planted")',
    "subTest": "with self.subTest(number=1):\n            self.assertEqual(1, 2)",
    "exit": "raise SystemExit(1)",
    "assert": "assert 1 == 2",
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
    bases = _bases(text)
    only_cases = _by_unittest(command, text, has_cases=any("TestCase" in base for base in bases))
    has_cases = (
        only_cases
        or bool(bases)
        or re.search(r"^(?:import|from) unittest\b(?! import mock)", text, re.MULTILINE)
    )
    parts: list[str] = []
    if not only_cases:
        parts += _functions(command, text, sown)
    if has_cases:
        parts += _cases(text, bases, sown)
    if "load_tests" in text and only_cases:
        return sown.planted(_named_anew(path, sown.token), "\n".join(parts))
    main = list(_MAIN.finditer(text))
    at = main[-1].start() if main else len(text)
    before = text[:at] if text[:at].endswith("\n") or not text[:at] else text[:at] + "\n"
    return sown.planted(path, before + "\n" + "\n".join(parts) + "\n" + text[at:])


def _bases(text: str) -> dict[str, list[str]]:
    """What the classes with tests inherit from → the methods that they call for their effect, as assertions are."""
    heads = list(_OWNED.finditer(text))
    found: dict[str, list[str]] = {}
    for head, after in zip(heads, [*heads, None][1:], strict=True):
        body = text[head.end() : after.start() if after else None]
        called = [*dict.fromkeys(_OWN_METHOD.findall(body))][:5]
        if _TEST.search(body) and ("TestCase" in head[1] or called):
            found.setdefault(head[1], []).extend(called)
    return dict([*found.items()][:3])


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
    """Functions that the file imports and calls for their effect, as assertions are, with arguments that differ."""
    own = {name for found in _FROM.findall(text) for name in re.findall(r"\w+", found)}
    names = [
        *_IMPORTED.findall(text),
        *_QUALIFIED.findall(text),
        *(n for n in _CALLED.findall(text) if n in own),
    ]
    plain = (name for name in dict.fromkeys(names) if "not_" not in name and not name.startswith("self."))
    return [(name, "1, 2") for name in plain][:8]


def _cases(text: str, bases: Mapping[str, Sequence[str]], sown: _Sown) -> list[str]:
    """Test cases of the classes that the file uses, and of the plain one."""
    unittest = f"_unittest_{sown.token}"
    # A base class of the project may let an exit through; the plain one does not.
    used = dict.fromkeys((*_ALWAYS_IN_CASES, "exit", *_METHOD.findall(text)))
    if re.search(r"^[ \t]+assert ", text, re.MULTILINE):
        used["assert"] = None
    forms = {name: _METHODS[name] for name in used if name in _METHODS}
    parts = [f"import unittest as {unittest}", _case(f"{unittest}.TestCase", forms, sown)]
    always = {name: _METHODS[name] for name in _ALWAYS_IN_CASES}
    for base, called in bases.items():
        own = {name: f"self.{name}(1, 2)" for name in called}
        if base != "unittest.TestCase" or own:
            parts.append(_case(base, {**always, **own}, sown))
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
    head = f"class Test_{sown.token}_{len(sown.names)}({bases}):\n    __test__ = True\n\n"
    return head + "\n".join(methods)


# Go

_PACKAGE = re.compile(r"^package \w{1,80}", re.MULTILINE)
_CONSTRAINT = re.compile(r"^//(?:go:build| \+build) .{1,300}$", re.MULTILINE)
_GO_LIBRARY = re.compile(
    r'"(github\.com/stretchr/testify/(?:assert|require)|gotest\.tools(?:/v\d)?/assert|'
    r'github\.com/alecthomas/assert(?:/v\d)?|github\.com/onsi/gomega)"'
)
_GO: Mapping[str, str] = {
    "a call of Error": 't.Error("planted")',
    "a call of Errorf": 't.Errorf("%d", 1)',
    "a call of Fatal": 't.Fatal("planted")',
    "a call of Fail": "t.Fail()",
    "a call of FailNow": "t.FailNow()",
    "a failing parallel test": 't.Parallel()\n\tt.Error("planted")',
    "a failing subtest": 't.Run("part", func(t *testing.T) { t.Error("planted") })',
    "a failing cleanup": 't.Cleanup(func() { t.Error("planted") })',
}
_GO_ASSERTS: Mapping[str, str] = {
    "Equal": "(t, 1, 2)",
    "True": "(t, false)",
    "NoError": '(t, errors.New("planted"))',
    "Panics": "(t, func() {})",
}


def _go(path: str, text: str, sown: _Sown) -> Planted | None:
    """Write a new file: all test files of a package run in one process. A panic would end it, so none is planted."""
    package = _PACKAGE.search(text)
    if package is None or not path.endswith("_test.go"):
        return None
    bodies, imports = dict(_GO), ['"testing"']
    for number, module in enumerate(dict.fromkeys(_GO_LIBRARY.findall(text))):
        library, kind = f"library{number}", module.rpartition("/")[2]
        if kind == "gomega":
            bodies["a false Expect"] = f"{library}.NewWithT(t).Expect(1).To({library}.Equal(2))"
        else:
            forms = _GO_ASSERTS if "testify" in module else {"Equal": _GO_ASSERTS["Equal"]}
            bodies |= {f"a false {kind}.{name}": f"{library}.{name}{given}" for name, given in forms.items()}
        imports.append(f'{library} "{module}"')
    if any("errors." in body for body in bodies.values()):
        imports.append('"errors"')
    head = [*_CONSTRAINT.findall(text[: package.start()]), "", package[0], ""]
    tests = [f"func Test_{sown.name(why)}(t *testing.T) {{\n\t{body}\n}}\n" for why, body in bodies.items()]
    new = f"{path.rpartition('/')[0]}/zz{sown.token}_test.go".removeprefix("/")
    return sown.planted(new, "\n".join([*head, *(f"import {one}" for one in imports), "", *tests]))


# Rust

_RUST_TEST = re.compile(r"#\[(?:\w+::)?test\b|#\[rstest")
_RUST_LOOP = re.compile(
    r"#\[(?:tokio|async_std|actix_rt|actix_web|smol_potat)::test(?:\([^()\]]{0,200}\))?\]"
)
_RUST: Mapping[str, str] = {
    "a false assert": "() { assert!(1 > 2); }",
    "a false assert_eq": "() { assert_eq!(1, 2); }",
    "a false assert_eq of texts": '() { assert_eq!("one", "two", "planted"); }',
    "a false assert_ne": "() { assert_ne!(1, 1); }",
    "a panic": '() { panic!("planted"); }',
    "an unwrapped None": "() { None::<u8>.unwrap(); }",
    "an error as result": '() -> Result<(), &\'static str> { Err("planted") }',
}


def _rust(path: str, text: str, sown: _Sown) -> Planted | None:
    """Append a module, which sees the macros of the file."""
    if not _RUST_TEST.search(text):
        return None
    tests = [f"    #[test]\n    fn t{sown.name(why)}{body}" for why, body in _RUST.items()]
    name = sown.name("an expected panic that does not happen")
    tests.append(f"    #[test]\n    #[should_panic]\n    fn t{name}() {{}}")
    if loop := _RUST_LOOP.search(text):
        name = sown.name("a false assert in an async test")
        tests.append(f"    {loop[0]}\n    async fn t{name}() {{ assert!(1 > 2); }}")
    head = (
        f"\n\n#[cfg(test)]\nmod planted_{sown.token} {{\n    #[allow(unused_imports)]\n    use super::*;\n\n"
    )
    return sown.planted(path, text + head + "\n\n".join(tests) + "\n}\n")


# C and C++: only frameworks in which a test registers itself, or whose list of tests is in the file

_IN_C = r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:[\w./-]{1,200}/)?"
_UTEST: Mapping[str, str] = {
    "ASSERT_EQ": "ASSERT_EQ(1, 2);",
    "EXPECT_EQ": "EXPECT_EQ(1, 2);",
    "ASSERT_NE": "ASSERT_NE(1, 1);",
    "ASSERT_TRUE": "ASSERT_TRUE(0);",
    "ASSERT_STREQ": 'ASSERT_STREQ("one", "two");',
}
_GTEST: Mapping[str, str] = {
    **_UTEST,
    "EXPECT_STREQ": 'EXPECT_STREQ("one", "two");',
    "FAIL": "FAIL();",
    "exception": "throw 1;",
    "EXPECT_THROW": "EXPECT_THROW((void)0, int);",
}
_CATCH: Mapping[str, str] = {
    "REQUIRE": "REQUIRE(1 == 2);",
    "CHECK": "CHECK(1 == 2);",
    "exception": "throw 1;",
    "REQUIRE_THROWS": "REQUIRE_THROWS((void)0);",
    "CHECK_FALSE": "CHECK_FALSE(1 == 1);",
}
_UNITY: Mapping[str, str] = {
    "TEST_ASSERT": "TEST_ASSERT(0);",
    "TEST_ASSERT_TRUE": "TEST_ASSERT_TRUE(0);",
    "TEST_ASSERT_EQUAL": "TEST_ASSERT_EQUAL(1, 2);",
    "TEST_ASSERT_EQUAL_INT": "TEST_ASSERT_EQUAL_INT(1, 2);",
    "TEST_ASSERT_EQUAL_STRING": 'TEST_ASSERT_EQUAL_STRING("one", "two");',
    "TEST_ASSERT_NULL": "TEST_ASSERT_NULL(&planted);",
    "TEST_FAIL": "TEST_FAIL();",
}
_C_FORMS = (
    (r"utest\.h", _UTEST, "UTEST({suite}, t{name})"),
    (r"(?:gtest|gmock)\.h", _GTEST, "TEST({suite}, t{name})"),
    (
        r"(?:catch|catch_all|catch_test_macros|catch_amalgamated|doctest)\.h(?:pp)?",
        _CATCH,
        'TEST_CASE("t{name}")',
    ),
)
_C_MAIN = re.compile(r"^(?:int|auto)\s{1,8}(?:CDECL )?main\s{0,8}\(", re.MULTILINE)
_UNITY_END = re.compile(r"return\s{1,8}UNITY_END\s{0,8}\(")


def _c(path: str, text: str, sown: _Sown) -> Planted | None:
    for header, forms, test in _C_FORMS:
        if re.search(_IN_C + header, text, re.MULTILINE):
            tests = [
                f"{test.format(suite=f'planted_{sown.token}', name=sown.name(_in_c(form)))} {{ {body} }}\n"
                for form, body in forms.items()
            ]
            return sown.planted(path, f"{text}\n{''.join(tests)}", by_program=True)
    main, end = _C_MAIN.search(text), list(_UNITY_END.finditer(text))
    if main is None or not end or not re.search(_IN_C + r"unity(?:_\w+)?\.h", text, re.MULTILINE):
        return None
    tests = [
        f"static void t{sown.name(_in_c(form))}(void) {{ int planted = 0; (void)planted; {body} }}\n"
        for form, body in _UNITY.items()
    ]
    calls = " ".join(f"RUN_TEST(t{name});" for name in sown.names)
    at = end[-1].start()
    changed = f"{text[: main.start()]}{''.join(tests)}\n{text[main.start() : at]}{{ {calls} }}\n{text[at:]}"
    return sown.planted(path, changed, by_program=True)


def _in_c(form: str) -> str:
    return "an exception" if form == "exception" else f"a false {form}"


# Java

_JAVA_CLASS = re.compile(
    r"^(?:@\S.{0,200} )?(?:public |final |abstract )*(?:class|interface|enum|record) \w+", re.MULTILINE
)
_JAVA_ASSERTS: Mapping[str, str] = {
    "assertEquals": "{owner}.assertEquals(1, 2);",
    "assertEquals of texts": '{owner}.assertEquals("one", "two");',
    "assertTrue": "{owner}.assertTrue(1 > 2);",
    "assertNull": '{owner}.assertNull("planted");',
    "fail": '{owner}.fail("planted");',
    "exception": 'throw new IllegalStateException("planted");',
}
_JAVA_LIBRARIES: Mapping[str, str] = {
    "org.assertj.core.api": "org.assertj.core.api.Assertions.assertThat(1).isEqualTo(2);",
    "org.hamcrest": "org.hamcrest.MatcherAssert.assertThat(1, org.hamcrest.CoreMatchers.is(2));",
    "com.google.common.truth": "com.google.common.truth.Truth.assertThat(1).isEqualTo(2);",
}
_THROWS = "{owner}.assertThrows(IllegalStateException.class, () -> {{ }});"
_JAVA_RUNNERS = (
    ("org.junit.jupiter.api", "@org.junit.jupiter.api.Test", "org.junit.jupiter.api.Assertions"),
    ("org.testng", "@org.testng.annotations.Test", "org.testng.Assert"),
    ("org.junit.", "@org.junit.Test", "org.junit.Assert"),
    ("junit.framework", "", "junit.framework.TestCase"),
)


def _java(path: str, text: str, sown: _Sown) -> Planted | None:
    """Add methods to the class: it is selected already, and it may have a runner or a base class of its own."""
    runner = next(
        (one for one in _JAVA_RUNNERS if f"import {one[0]}" in text or f"import static {one[0]}" in text),
        None,
    )
    end = text.rstrip().rfind("}")
    if runner is None or end < 0 or len(_JAVA_CLASS.findall(text)) != 1:
        return None
    package, mark, owner = runner
    bodies = {name: body.format(owner=owner) for name, body in _JAVA_ASSERTS.items()}
    if package in ("org.junit.jupiter.api", "org.testng"):
        bodies["assertThrows"] = _THROWS.format(owner=owner)
    bodies |= {library: body for library, body in _JAVA_LIBRARIES.items() if f" {library}" in text}
    methods = [
        f"    {mark} public void test{sown.name(_in_c(form))}() throws Exception {{ {body} }}\n"
        for form, body in bodies.items()
    ]
    if package == "org.junit.":
        name = sown.name("an expected exception that is not thrown")
        methods.append(
            f"    @org.junit.Test(expected = IllegalStateException.class) public void test{name}() {{ }}\n"
        )
    return sown.planted(path, f"{text[:end]}\n{''.join(methods)}{text[end:]}")


_COMPILED: Mapping[str, Callable[[str, str, _Sown], Planted | None]] = {
    "go": _go,
    "rs": _rust,
    "java": _java,
    **dict.fromkeys(("c", "cc", "cpp", "cxx"), _c),
}
