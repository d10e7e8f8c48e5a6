"""Canaries without a sandbox: which text is planted, and what the results say about the runner."""

import ast

import msgspec
import pytest

from cloister.core.diagnosis import Diagnosis, Diagnostic, TestStatus
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.experiments.canaries import Planted, canaries, silent

PLANTED = Planted("tests/test_a.py", "", ("ab00", "ab01"), ("a false assertion", "an exception"))


def _told(*tests: tuple[str, TestStatus]) -> Diagnosis:
    return Diagnosis("pytest", 1, 1.0, tests=tuple(Result(name, status) for name, status in tests))


def test_runner_that_reports_every_canary_is_honest() -> None:
    told = _told(("tests/test_a.py::test_ab00", "failed"), ("tests/test_a.py::test_ab01", "error"))
    assert silent(PLANTED, told) == ()


def test_canary_that_passes_is_skipped_or_is_absent_is_named() -> None:
    assert silent(PLANTED, _told(("test_ab00", "passed"), ("test_ab01", "skipped"))) == (
        "a false assertion (ab00) was reported as passed",
        "an exception (ab01) was skipped",
    )
    assert silent(PLANTED, _told(("test_ab00", "failed"))) == ("an exception (ab01) was not reported",)


def test_parent_of_a_failing_subtest_may_pass() -> None:
    told = _told(("test_ab00", "passed"), ("test_ab00 [i=1]", "failed"), ("test_ab01", "failed"))
    assert silent(PLANTED, told) == ()


def test_runner_without_names_must_at_least_turn_red() -> None:
    assert silent(PLANTED, Diagnosis("make", 0, 1.0)) == (
        "the check passed without a word about a planted test",
    )
    assert silent(PLANTED, Diagnosis("make", 1, 1.0, tail="ab01: wrong")) == ()
    assert silent(PLANTED, Diagnosis("make", 127, 1.0, tail="make: not found")) == (
        "the check failed without a word about a planted test",
    )
    assert silent(PLANTED, Diagnosis("make", None, 1.0, killed="time")) == (
        "the check was stopped (time) before a planted test was reported",
    )
    broken = (Diagnostic("expected `;`", file="tests/test_a.py"),)
    assert silent(PLANTED, Diagnosis("make", 1, 1.0, diagnostics=broken)) == (
        "the planted tests could not be built",
    )


def test_green_check_is_not_honest_even_if_it_lists_the_failures() -> None:
    told = msgspec.structs.replace(_told(("test_ab00", "failed"), ("test_ab01", "failed")), exit_code=0)
    assert silent(PLANTED, told) == ("the check is green although planted tests failed",)


@pytest.mark.parametrize(
    ("output", "honest"),
    [
        ("[  FAILED  ] planted.tab00\n[  FAILED  ] planted.tab01", True),
        ("[  FAILED  ] planted.tab00\n[      OK ] planted.tab01", False),
        ("test cases: 3 | 1 passed | 2 failed", True),
        ("test cases: 3 | 2 passed | 1 failed", False),
        (" 2 FAILED TESTS", True),
        ("error: ab00 and ab01 were not declared", False),
    ],
)
def test_output_of_a_test_program_shows_which_canaries_failed(output: str, honest: bool) -> None:
    planted = msgspec.structs.replace(PLANTED, by_program=True)
    alone = Diagnosis("make test", 1, 1.0, tail=output)
    by_ctest = Diagnosis("ctest", 8, 1.0, tests=(Result("calc", "failed", message=output),))
    assert (silent(planted, alone) == ()) is honest
    assert (silent(planted, by_ctest) == ()) is honest
    assert silent(planted, msgspec.structs.replace(by_ctest, tests=(Result("calc", "passed"),)))


def test_red_check_that_counts_tests_without_the_canaries_is_not_honest() -> None:
    """For example a coverage threshold that fails anyway."""
    assert len(silent(PLANTED, Diagnosis("make", 1, 1.0, unlisted=4))) == 2


def test_no_name_is_part_of_another() -> None:
    planted = canaries("pytest", "test_a.py", "def test_a():\n    mock = 1\n", "c0ffee")
    assert planted is not None
    assert len(planted.names) == len(planted.why) == len(set(planted.names))
    assert not any(a in b for a in planted.names for b in planted.names if a is not b)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("README.md", "def test_a(): pass"),
        ("src/product.py", "def half(x):\n    return x / 2\n"),
        ("tests/data.json", "{}"),
        (
            "tests/a.spec.ts",
            "import { test, expect } from '@playwright/test';\ntest('a', () => expect(1).toBe(1));\n",
        ),
        ("test/a.js", "const { test } = require('uvu');\ntest('a', () => {});\ntest.run();\n"),
        ("test/a.js", "require('assert').equal(1, 1);\n"),
        ("src/a.go", "package a\n\nfunc A() {}\n"),
        ("src/a.rs", "pub fn a() {}\n"),
        ("tests/bench.rs", "fn main() {}\n"),
        ("tests/a.c", "#include <assert.h>\nint main(void) { assert(1); }\n"),
        ("src/A.java", "package a;\n\nclass A {\n}\n"),
    ],
)
def test_file_of_no_known_framework_has_no_canaries(path: str, text: str) -> None:
    assert canaries("make test", path, text, "c0ffee") is None


@pytest.mark.parametrize(
    "text",
    [
        "async def test_a():\n    pass",
        "import numpy as np\nfrom numpy.testing import assert_allclose\ndef test_a():\n    np.testing.assert_array_equal(1, 1)\n",
        "class TestA(Base, unittest.TestCase):\n    async def test_a(self):\n        self.assertLess(1, 2)\n",
        "def test_a(): pass\n\nif __name__ == '__main__':\n    pytest.main()\n",
        "def test_a():\r\n    pass\r\n",
    ],
)
@pytest.mark.parametrize("command", ["pytest", "python3 -m unittest", "make test", "tox -e py"])
def test_python_file_with_canaries_is_valid_and_keeps_its_text(command: str, text: str) -> None:
    planted = canaries(command, "tests/test_a.py", text, "c0ffee")
    assert planted is not None
    ast.parse(planted.text)
    assert planted.path == "tests/test_a.py"
    assert all(line in planted.text for line in text.splitlines())


def test_assertion_functions_of_libraries_are_called_with_arguments_that_differ() -> None:
    text = "from numpy.testing import assert_allclose\ndef test_a():\n    assert_allclose(1, 1)\n"
    planted = canaries("pytest", "tests/test_a.py", text, "c0ffee")
    assert planted is not None
    assert "assert_allclose(1, 2)" in planted.text


VITEST = """\
import { beforeEach, expect as want, it, vi } from 'vitest';
import type { Calc } from './calc';
import { add } from './calc';

it('adds', () => {
  want(add(1, 2)).toBeGreaterThan(2);
  want(vi.fn()).not.toHaveBeenCalled();
});
"""


def test_script_with_canaries_uses_the_names_that_it_imports() -> None:
    planted = canaries("vitest run", "src/calc.test.ts", VITEST, "c0ffee")
    assert planted is not None
    assert planted.text.startswith(VITEST)
    added = planted.text.removeprefix(VITEST)
    assert "it('c0ffee00', () => { throw new Error('planted'); });" in added
    assert "want(1).toBe(2)" in added
    assert "want(1).toBeGreaterThan(2)" in added
    assert "want(vi.fn()).toHaveBeenCalled()" in added
    assert "describe" not in added
    assert " expect" not in added


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("const assert = require('assert');", "assert.equal(1, 2)"),
        ("import assert from 'node:assert/strict';", "assert.deepEqual([1], [2])"),
        ("import { ok as sure } from 'assert';", "sure(false)"),
        ("var a = 1,\n    check = require('assert');", "check.ok(false)"),
        ("const chai = require('chai');\nconst want = chai.expect;", "want(1).to.equal(2)"),
        ("import { assert } from 'chai';", "assert.isTrue(false)"),
        ("const want = require('chai').expect;", "want(false).to.be.true"),
        ("import want from 'expect';", "want(1).toBe(2)"),
        ("require('chai').should();\n(2).should.equal(2);", "(1).should.equal(2)"),
    ],
)
def test_mocha_canaries_use_the_assertions_of_the_file(head: str, call: str) -> None:
    planted = canaries(
        "mocha", "test/a.js", f"{head}\ndescribe('a', () => {{ it('b', () => {{}}); }});\n", "c0ffee"
    )
    assert planted is not None
    assert call in planted.text


@pytest.mark.parametrize(
    ("path", "text", "part"),
    [
        (
            "test/a.mjs",
            "import check from 'tape';\ncheck('a', (t) => t.end());\n",
            "check('c0ffee00', function (t) { t.equal(1, 2); t.end(); });",
        ),
        (
            "test/a.ts",
            "import test from 'ava';\ntest('a', t => t.pass());\n",
            "test('c0ffee00', function (t: any) { t.is(1, 2); });",
        ),
        ("a_test.go", "package a_test\n", "package a_test"),
        (
            "d/A.java",
            "import org.junit.Test;\n\npublic class A {\n}\n",
            "@org.junit.Test public void testc0ffee00()",
        ),
        (
            "d/A.java",
            "import junit.framework.*;\n\npublic class A extends TestCase {\n}\n",
            "     public void testc0ffee00()",
        ),
        ("t.cc", "#include <gtest/gtest.h>\n", "TEST(planted_c0ffee, tc0ffee00) { ASSERT_EQ(1, 2); }"),
        ("t.cpp", "#include <catch2/catch_all.hpp>\n", 'TEST_CASE("tc0ffee00") { REQUIRE(1 == 2); }'),
        ("t.cpp", '#include "doctest.h"\n', 'TEST_CASE("tc0ffee01") { CHECK(1 == 2); }'),
        ("src/a.rs", "#[tokio::test]\nasync fn a() {}\n", "#[tokio::test]\n    async fn tc0ffee08()"),
    ],
)
def test_other_files_get_canaries_in_their_own_style(path: str, text: str, part: str) -> None:
    planted = canaries("make test", path, text, "c0ffee")
    assert planted is not None
    assert part in planted.text


@pytest.mark.parametrize(
    "path", ["a_test.py", "a.test.js", "a.test.ts", "a_test.go", "a.rs", "a.c", "ATest.java"]
)
@pytest.mark.parametrize(
    "text",
    [
        "\n",
        " ",
        ",\n",
        "import {",
        "\nimport type ",
        "const a = ",
        "class A(a, ",
        "x.assert_",
        "#[test]",
        "def test",
    ],
)
def test_hostile_files_take_linear_time(path: str, text: str) -> None:
    """A quadratic search would take hours."""
    canaries("make test", path, text * 100_000, "c0ffee")
