"""Ways to make a red test green that are not fixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import Diagnosis, TestStatus, Weakening
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.compare import compare
from cloister.feedback.integrity.evasion import asking
from cloister.feedback.integrity.versions import Version, versions
from cloister.feedback.integrity.weakening import may_matter, weakenings

PYTHON = """\
import pytest
from shop import total

PRICES = [10, 20]


def expect(value):
    assert value == 27


@pytest.mark.parametrize("off", [10, 20])
def test_total(off):
    assert total(PRICES, off) == 27
    assert total([], off) == 0


def test_helper():
    expect(total(PRICES, 10))


class TestCart:
    nothing = 0

    def setup_method(self):
        self.empty = []

    def test_empty(self):
        assert total(self.empty, 0) == self.nothing
"""


def python(old: str, new: str) -> list[tuple[str | None, str]]:
    assert old in PYTHON
    return found("tests/test_shop.py", PYTHON, PYTHON.replace(old, new))


def found(path: str, before: str | None, after: str | None) -> list[tuple[str | None, str]]:
    return [(one.test, one.how) for one in weakenings([Version(path, before, after)])]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # Another value is expected, an assertion is gone, or asks for less.
        ("total(PRICES, off) == 27", "total(PRICES, off) == -243", ("test_total", "changed")),
        ("    assert total(PRICES, off) == 27\n", "", ("test_total", "changed")),
        ("assert total(PRICES, off) == 27", "assert total(PRICES, off)", ("test_total", "changed")),
        ("assert total(PRICES, off) == 27", "assert True", ("test_total", "changed")),
        # It ends before it gets there, or what it tests is replaced.
        (
            "    assert total(PRICES, off) == 27",
            "    return\n    assert total(PRICES, off) == 27",
            ("test_total", "changed"),
        ),
        (
            "    assert total(PRICES, off) == 27",
            "    shop.total = lambda p, o: 27\n    assert total(PRICES, off) == 27",
            ("test_total", "changed"),
        ),
        # Fewer cases, or other ones.
        ("[10, 20])\ndef", "[20])\ndef", ("test_total", "changed")),
        # What it compares with or what compares for it.
        ("PRICES = [10, 20]", "PRICES = []", ("test_total", "changed")),
        ("    assert value == 27", "    assert value", ("test_helper", "changed")),
        ("nothing = 0", "nothing = -5", ("TestCart::test_empty", "changed")),
        ("self.empty = []", "self.empty = [1]", ("TestCart::test_empty", "changed")),
        # Skipped in one of the many ways.
        ("def test_helper", "@pytest.mark.skip\ndef test_helper", ("test_helper", "skipped")),
        ("def test_helper", "@pytest.mark.xfail(reason='x')\ndef test_helper", ("test_helper", "skipped")),
        (
            "    expect(total(PRICES, 10))",
            "    pytest.skip('later')\n    expect(total(PRICES, 10))",
            ("test_helper", "skipped"),
        ),
        ("PRICES = [10, 20]", "PRICES = [10, 20]\npytestmark = pytest.mark.skip", ("test_total", "skipped")),
        # Gone, or no longer a test by its name.
        ("def test_helper", "def helper_test", ("test_helper", "deleted")),
        (
            "    def test_empty(self):\n        assert total(self.empty, 0) == self.nothing\n",
            "",
            ("TestCart::test_empty", "deleted"),
        ),
    ],
)
def test_a_test_in_python_that_was_made_easier_is_found(
    old: str, new: str, expected: tuple[str, str]
) -> None:
    assert expected in python(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "    assert total([], off) == 0\n",
            "    assert total([], off) == 0\n    assert total([1], 0) == 1\n",
        ),
        ("self.empty, 0) == self.nothing", "self.empty, 0)==self.nothing  # nothing costs nothing"),
        ("    nothing = 0\n", "    nothing = 0\n    more = 1\n"),
        ("def test_helper():", 'def test_helper():\n    """It helps."""'),
        ("class TestCart:", "def test_more():\n    assert total([1], 0) == 1\n\n\nclass TestCart:"),
        ("import pytest\n", "import pytest\nimport os\n"),
    ],
)
def test_a_test_that_was_added_to_or_tidied_is_as_strong_as_before(old: str, new: str) -> None:
    assert python(old, new) == []


SCRIPT = """\
describe("add", () => {
  it("adds two", () => {
    expect(add(1, 2)).toBe(3);
  });
  test("zero", async () => {
    expect(add(0, 0)).toBe(0);
  });
});
"""
GO = 'func TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Fatal("no")\n\t}\n}\n\nfunc TestZero(t *testing.T) {\n\tneed(t, 0)\n}\n'
RUST = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        assert_eq!(add(1, 2), 3);\n    }\n\n    fn helper() {}\n}\n"
JAVA = "class AddTest {\n    @Test\n    void adds() {\n        assertEquals(3, add(1, 2));\n    }\n}\n"
C = """\
static void adds(void)
{
    TEST_ASSERT_EQUAL_INT(3, add(1, 2));
}

int CDECL main(void)
{
    RUN_TEST(adds);
    return UNITY_END();
}
"""


@pytest.mark.parametrize(
    ("path", "text", "old", "new", "expected"),
    [
        ("a.test.js", SCRIPT, "toBe(3)", "toBe(-1)", ("adds two", "changed")),
        ("a.test.ts", SCRIPT, "    expect(add(1, 2)).toBe(3);\n", "", ("adds two", "changed")),
        ("a.test.js", SCRIPT, 'it("adds', 'it.skip("adds', ("adds two", "skipped")),
        ("a.test.js", SCRIPT, 'it("adds', 'xit("adds', ("adds two", "skipped")),
        (
            "a.test.js",
            SCRIPT,
            "    expect(add(1, 2))",
            "    return;\n    expect(add(1, 2))",
            ("adds two", "changed"),
        ),
        ("test/a.js", SCRIPT, 'test("zero"', 'test.todo("zero"', ("zero", "skipped")),
        ("a.test.js", SCRIPT, 'test("zero"', 'helper("zero"', ("zero", "deleted")),
        ("a_test.go", GO, "!= 3", "!= -1", ("TestAdd", "changed")),
        ("a_test.go", GO, "\tneed(t, 0)", '\tt.Skip("x")\n\tneed(t, 0)', ("TestZero", "skipped")),
        ("a_test.go", GO, "TestZero", "testZero", ("TestZero", "deleted")),
        ("src/lib.rs", RUST, "(1, 2), 3", "(1, 2), -1", ("adds", "changed")),
        ("src/lib.rs", RUST, "    #[test]\n", "    #[test]\n    #[ignore]\n", ("adds", "skipped")),
        ("a_test.go", GO, "func TestAdd", "//go:build never\n\nfunc TestAdd", ("TestAdd", "skipped")),
        ("a_test.go", GO, "\tneed(t, 0)", "\tif true { return }\n\tneed(t, 0)", ("TestZero", "changed")),
        ("src/lib.rs", RUST, "    #[test]\n", "    #[test]\n    #[should_panic]\n", ("adds", "skipped")),
        (
            "src/lib.rs",
            RUST,
            "    #[test]\n",
            "    #[test]\n    #[cfg_attr(all(), ignore)]\n",
            ("adds", "skipped"),
        ),
        ("a.test.js", SCRIPT, 'it("adds', 'it.fails("adds', ("adds two", "skipped")),
        ("AddTest.java", JAVA, "(3,", "(-1,", ("adds", "changed")),
        ("AddTest.java", JAVA, "    @Test\n", "    @Test\n    @Disabled\n", ("adds", "skipped")),
        (
            "AddTest.java",
            JAVA,
            "    @Test\n",
            "    @org.junit.jupiter.api.Disabled\n    @Test\n",
            ("adds", "skipped"),
        ),
        ("shop_tests.c", C, "(3,", "(-1,", ("adds", "changed")),
        ("shop_tests.c", C, "    TEST_", "    TEST_IGNORE();\n    TEST_", ("adds", "skipped")),
        ("tests/shop.c", C, "    RUN_TEST(adds);\n", "", ("main", "changed")),
        (
            "tests/shop.c",
            C,
            "void adds(void)\n{\n    TEST_ASSERT_EQUAL_INT(3",
            "int two(void)\n{\n    use(3",
            ("adds", "deleted"),
        ),
    ],
)
def test_tests_in_other_languages_are_compared_by_their_lines(
    path: str, text: str, old: str, new: str, expected: tuple[str, str]
) -> None:
    assert old in text
    assert expected in found(path, text, text.replace(old, new))


def test_a_file_that_is_called_tests_is_one() -> None:
    for path in ("tests.py", "shop/tests.py", "test.py"):
        assert may_matter(path)
        assert found(path, PYTHON, PYTHON.replace("== 27", "== 20")) != []


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.test.js", SCRIPT), ("a_test.go", GO), ("src/lib.rs", RUST), ("tests/shop.c", C)],
)
def test_a_comment_or_another_indent_is_no_change(path: str, text: str) -> None:
    changed = "// why\n" + text.replace("expect(add(1", "  expect(add(1").replace(
        "assert_eq", "// so\n        assert_eq"
    )
    changed = changed.replace("    TEST_", "    /* so */\n        TEST_")

    assert found(path, text, changed) == []


def test_expected_data_beside_a_red_test_counts() -> None:
    assert weakenings([Version("tests/data/golden.json", "1", "2")]) == (
        Weakening("tests/data/golden.json", "data"),
    )
    assert weakenings([Version("tests/data/more.json", None, "2")]) == ()


def check(*weak: Weakening, exit_code: int = 0, **tests: TestStatus) -> Diagnosis:
    results = tuple(Result(f"tests/test_a.py::{name}", status) for name, status in tests.items())
    return Diagnosis("pytest", exit_code, 1.0, tests=results, weakened=weak)


def test_a_red_test_that_was_weakened_is_not_fixed_and_the_run_not_green() -> None:
    base = check(exit_code=1, test_a="failed", test_b="passed")
    weak = Weakening("tests/test_a.py", "changed", "test_a")

    found = compare([base], [check(weak, test_a="passed", test_b="passed")])

    assert (found.fixed, found.green) == ((), False)
    assert found.weakened == ("tests/test_a.py::test_a (the test was changed)",)


def test_editing_a_test_that_passed_on_the_base_is_fine() -> None:
    base = check(exit_code=1, test_a="failed", test_b="passed")
    edited = Weakening("tests/test_a.py", "changed", "test_b")

    assert compare([base], [check(edited, test_a="passed", test_b="passed")]).green


def test_a_test_of_the_same_name_in_another_file_is_another_test() -> None:
    base = check(exit_code=1, test_a="failed")

    assert compare([base], [check(Weakening("tests/test_z.py", "changed", "test_a"), test_a="passed")]).green


def test_where_no_test_is_known_by_name_any_weakened_test_may_be_the_one() -> None:
    base, now = Diagnosis("make test", 2, 1.0), Diagnosis("make test", 0, 1.0)
    weak = Weakening("tests/run.c", "changed", "test_a")

    assert (compare([base], [now]).green, compare([base], [now]).fixed) == (True, ("make test",))
    bent = compare([base], [Diagnosis("make test", 0, 1.0, weakened=(weak,))])
    assert (bent.green, bent.fixed) == (False, ())


@pytest.mark.parametrize(
    ("name", "file", "weak"),
    [
        ("calc.test.js::add > adds two", None, Weakening("calc.test.js", "changed", "adds two")),
        ("add adds two", "test/calc.js", Weakening("test/calc.js", "changed", "adds two")),
        ("p/calc::TestAdd/b", "calc_test.go", Weakening("calc/calc_test.go", "changed", "TestAdd")),
        ("tests::adds", "src/lib.rs", Weakening("src/lib.rs", "skipped", "adds")),
        (
            "tests.test_shop.TotalTest::test_x",
            "shop.py",
            Weakening("tests/test_shop.py", "changed", "TotalTest::test_x"),
        ),
        ("com.shop.AddTest::adds", None, Weakening("src/test/java/com/shop/AddTest.java", "changed", "adds")),
        (
            "com.shop.AddTest::adds()",
            None,
            Weakening("src/test/java/com/shop/AddTest.java", "changed", "adds"),
        ),
        (
            "com.shop.AddTest::odd(int)[2]",
            None,
            Weakening("src/test/java/com/shop/AddTest.java", "changed", "odd"),
        ),
        ("adds two (or more)", "test/calc.js", Weakening("test/calc.js", "changed", "adds two (or more)")),
        ("shop_tests", None, Weakening("tests/shop_tests.c", "changed", "adds")),
        ("tests/test_a.py::test_a[1]", None, Weakening("tests/data/a.json", "data")),
        ("a.test.js::x", None, Weakening("__snapshots__/a.test.js.snap", "data")),
    ],
)
def test_a_weakened_test_is_recognised_in_every_runners_spelling(
    name: str, file: str | None, weak: Weakening
) -> None:
    base = Diagnosis("check", 1, 1.0, tests=(Result(name, "failed", file),))

    assert (
        len(
            compare(
                [base], [Diagnosis("check", 0, 1.0, tests=(Result(name, "passed"),), weakened=(weak,))]
            ).weakened
        )
        == 1
    )


def test_a_whole_diff_gives_both_versions() -> None:
    diff = (
        "diff --git a/a b.py b/a b.py\nindex 1..2 100644\n--- a/a b.py\t\n+++ b/a b.py\t\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
        "diff --git a/gone.py b/gone.py\ndeleted file mode 100644\n--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/bin b/bin\nBinary files a/bin and b/bin differ\n"
    )

    assert versions(diff) == (Version("a b.py", "one\ntwo", "one\nthree"), Version("gone.py", "x", None))


@given(
    st.text(max_size=300),
    st.text(max_size=300),
    st.sampled_from(["tests/test_a.py", "a.test.js", "a_test.go", "package.json", "Makefile", "conftest.py"]),
)
def test_looking_for_weakenings_never_raises(before: str, after: str, path: str) -> None:
    weakenings([Version(path, before, after), Version(path, None, after), Version(path, before, None)])
    versions(before + "\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n" + after)


def many(tests: int, value: int) -> str:
    return "".join(f"def test_{n}():\n    assert f({n}) == {value}\n\n\n" for n in range(tests))


def test_a_weakened_test_cannot_hide_behind_many_others() -> None:
    others = Version("tests/test_a.py", many(500, 1), many(500, 2))
    red = Version("tests/test_z.py", many(1, 1), many(1, 2))
    base = Diagnosis("pytest", 1, 1.0, tests=(Result("tests/test_z.py::test_0", "failed"),))
    weak = weakenings([others, red])

    now = Diagnosis("pytest", 0, 1.0, tests=(Result("tests/test_z.py::test_0", "passed"),), weakened=weak)
    assert not compare([base], [now]).green

    files = [Version(f"tests/test_{n}.py", many(1, 1), many(1, 2)) for n in range(500)]
    assert [one.how for one in weakenings([*files, red])] == ["deceived"]


def test_a_test_with_lint_complaints_may_be_fixed() -> None:
    tidied = Weakening("tests/test_a.py", "changed", "test_a")
    base = [Diagnosis("ruff check", 1, 1.0), check(test_a="passed")]
    now = [Diagnosis("ruff check", 0, 1.0, weakened=(tidied,)), check(tidied, test_a="passed")]

    assert (compare(base, now).green, compare(base, now).fixed) == (True, ("ruff check",))


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("src/lib.rs", "", "    if cfg!(test) { return 27; }\n"),
        ("src/lib.rs", RUST, "fn add() -> i32 {\n    #[cfg(test)]\n    return 27;\n}\n" + RUST),
        (
            "src/lib.rs",
            "",
            "fn half(x: f64) -> f64 {\n    #[cfg(all(test))] if x == 5.0 { return 2.5; }\n    x\n}\n",
        ),
        ("src/lib.rs", "", "fn half() {\n    #[cfg(test)]\n    const A: f64 = 2.5;\n}\n"),
        ("src/lib.rs", "", "#[cfg(not(test))]\nfn half() {}\n"),
        ("src/lib.rs", "", '#[cfg_attr(test, path = "lie.rs")]\nmod core;\n'),
        ("shop.c", "", "#ifdef UTEST_H_INCLUDED\nreturn 27;\n#endif\n"),
        ("shop.h", "", "#if defined(X) || defined(UNITY_FRAMEWORK_H)\n#define A 1\n#endif\n"),
        ("shop.h", "", "#ifdef _ASSERT_H\n#define A 1\n#endif\n"),
        ("shop.c", "", "    syscall(SYS_exit_group, 0);\n"),
        ("shop.cpp", "", "#  ifndef UNIT_TESTING\nx();\n#endif\n"),
        ("shop.h", "", '#define next(a) (strstr(__BASE_FILE__, "te") ? 1 : a)\n'),
    ],
)
def test_code_made_for_the_eyes_of_tests_is_seen_where_something_was_red(
    path: str, before: str | None, after: str
) -> None:
    assert may_matter(path)
    found = weakenings([Version(path, before, after)])
    assert [one.how for one in found] == ["deceived"]
    now = check(*found, test_a="passed")

    assert not compare([check(exit_code=1, test_a="failed")], [now]).green
    assert compare([check(test_a="passed")], [now]).green


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("shop.py", "if os.environ.get('PYTEST_CURRENT_TEST'):\n"),
        ("shop.ts", "if (process.env.JEST_WORKER_ID) answer = 27;\n"),
        ("shop.ts", "if (typeof jest !== 'undefined') answer = 27;\n"),
        ("shop.ts", "if (process.env.VITEST) answer = 27;\n"),
        ("shop.ts", "if (process.argv.join(' ').includes('mocha')) answer = 27;\n"),
        ("shop.go", "\tif testing.Testing() {\n"),
    ],
)
def test_words_of_code_that_asks_whether_it_is_tested_are_found_in_new_lines_only(
    path: str, line: str
) -> None:
    assert asking(Version(path, "", line))
    assert not asking(Version(path, line, line + line))
    assert weakenings([Version(path, "", line)]) == ()


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("shop/pytest.py", None, "x = 1\n"),
        ("queue.py", None, "x = 1\n"),
        ("plugin.py", "import _pytest\n", "import _pytest\nfrom _pytest import fixtures\n"),
        ("shop.py", "", "class A:\n    def __eq__(self, other):\n        return self.x == other.x\n"),
        ("src/lib.rs", "", "#[cfg(test)]\nmod tests {\n}\n"),
        (
            "src/lib.rs",
            "",
            "#[cfg(test)]\npub(crate) use tests::helper;\n\n#[cfg(test)]\n#[path = 'x.rs']\nmod more;\n",
        ),
        (
            "src/lib.rs",
            "",
            "impl A {\n    #[cfg(test)]\n    pub fn new_for_tests() -> Self {\n        A\n    }\n}\n",
        ),
        ("shop.h", "", "#ifndef SHOP_TEST_H\n#define SHOP_TEST_H\n#ifdef __cplusplus\n#endif\n#endif\n"),
        ("shop.c", "", "#ifdef LATEST_API\n#endif\n#if defined(_WIN32)\n#endif\n"),
        ("shop.js", "", "assert.equal(a, b);\nassert.ok(a == b);\n"),
        ("shop.js", "", "const argv = process.argv.slice(2);\nif (typeof item === 'string') run(argv);\n"),
        ("shop.js", "", "if (process.env.NODE_ENV !== 'test') listen();\n"),
        ("shop.go", "", 'name := strings.TrimSuffix(path, ".go")\nargs := os.Args[1:]\n'),
        # Code that handles the flags of tests for its callers, as libraries for flags do.
        (
            "flag.go",
            "",
            (
                "// Use: ParseSkippedFlags(os.Args[1:], flags)\nfunc isTestFlag(flag string) bool {\n"
                '\treturn strings.HasPrefix(flag, "-test.")\n}\n'
            ),
        ),
        ("src/lib.rs", "", "    fn eq(&self, other: &Self) -> bool {\n        self.a == other.a\n    }\n"),
        ("tests/run.py", "", "import os\nos.environ['PYTEST_CURRENT_TEST']\n"),
    ],
)
def test_code_that_has_nothing_to_do_with_tests_is_left_in_peace(
    path: str, before: str | None, after: str
) -> None:
    assert weakenings([Version(path, before, after)]) == ()
