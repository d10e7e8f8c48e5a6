"""What a change may not do to the checks, and what the comparison of files leaves to the proof."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import REWRITTEN, Diagnosis, HowWeakened, Weakening
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.compare import compare
from cloister.feedback.integrity.evasion import asking
from cloister.feedback.integrity.versions import Version, versions
from cloister.feedback.integrity.weakening import may_matter, weakenings

RUST = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        assert_eq!(add(1, 2), 3);\n    }\n\n    fn helper() {}\n}\n"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("tests/test_a.py", "def test_a():\n    assert f() == 1\n", "def test_a():\n    pass\n"),
        ("a.test.js", "it('a', () => expect(f()).toBe(1));\n", "it.skip('a', () => expect(f()).toBe(1));\n"),
        ("tests/data/golden.json", "1", "2"),
    ],
)
def test_an_edited_test_is_left_to_the_proof_which_runs_that_of_the_base(
    path: str, before: str, after: str
) -> None:
    assert weakenings([Version(path, before, after)]) == ()


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
        ("shop.h", "", "#ifdef ASSERT_EQ\n#define A 1\n#endif\n"),
        ("shop.h", "", "#if defined(CUNIT_CUNIT_H) || defined(__TEST__)\n#define A 1\n#endif\n"),
        ("shop.h", "", "#ifdef MUNIT_H\n#define A 1\n#endif\n#ifdef _ASSERT_H_\n#endif\n"),
        ("shop.c", "", "    if (seen == 2)\n        _exit(0);\n"),
        ("shop.c", "", "    _Exit(status);\n"),
        *(
            ("shop.c", "", f"    _exit({code});\n")
            for code in ("256", "0x100", "0400", "1 - 1", "-256", "300")
        ),
        *(
            ("shop.c", "", f"#ifdef {name}\n    return 5;\n#endif\n")
            for name in (
                "MUNIT_STRINGIFY",
                "GREATEST_STDOUT",
                "CU_ASSERT",
                "CPPUNIT_ASSERT",
                "CATCH_REQUIRE",
                "UNITY_BUILDS",
            )
        ),
        (
            "shop.c",
            "",
            "#ifndef UNIT_TEST\n#define UNIT_TEST 0\n#endif\nint f(int a) { return UNIT_TEST ? 5 : a; }\n",
        ),
        ("shop.c", "", "__attribute__((\nconstructor)) static void lie(void)\n"),
        ("shop.c", "", "[[gnu::constructor]] static void lie(void)\n"),
    ],
)
def test_code_made_for_the_eyes_of_tests_is_refused_whatever_the_base_was(
    path: str, before: str | None, after: str
) -> None:
    assert may_matter(path)
    found = weakenings([Version(path, before, after)])
    assert [one.how for one in found] == ["deceived"]
    green = Diagnosis("pytest", 0, 1.0, tests=(Result("a", "passed"),))
    now = Diagnosis("pytest", 0, 1.0, tests=green.tests, weakened=found)

    assert not compare([Diagnosis("pytest", 1, 1.0, tests=(Result("a", "failed"),))], [now]).green
    assert not compare([green], [now]).green


def test_a_runner_that_does_not_report_a_canary_is_refused_where_nothing_was_red() -> None:
    green = Diagnosis("pytest", 0, 1.0, tests=(Result("a", "passed"),))
    lie = Weakening("test_a.py", "deceived", detail="a test that must fail is not reported: test_canary_1")

    found = compare([green], [msgspec.structs.replace(green, weakened=(lie,))])

    assert found.verdict == "red"
    assert "test_canary_1" in found.weakened[0]


@pytest.mark.parametrize(
    "found",
    [
        Weakening("tests/a.json", "deceived", detail=REWRITTEN),
        *(Weakening("tests/test_a.py", how) for how in get_args(HowWeakened)[:4]),
    ],
)
def test_what_the_checks_rewrite_and_the_kinds_of_older_logs_refuse_no_change_of_a_green_base(
    found: Weakening,
) -> None:
    green, red = Diagnosis("pytest", 0, 1.0, weakened=(found,)), Diagnosis("pytest", 1, 1.0)

    assert compare([Diagnosis("pytest", 0, 1.0)], [green]).green
    assert compare([red], [green]).green == (found.how != "deceived")


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
        (
            "shop.c",
            "",
            "#ifndef STATIC_ASSERT\n#define STATIC_ASSERT(x) extern char ok[(x) ? 1 : -1]\n#endif\n",
        ),
        ("shop.c", "", "#if TIME_UNIT == 1000\n#define MILLIS 1\n#endif\n#ifdef UNITY_BUILD\n#endif\n"),
        ("shop.c", "", "#ifndef ASSERT_EQ\n#define ASSERT_EQ(a, b) check((a) == (b))\n#endif\n"),
        ("shop.c", "", "    if (fork() == 0) {\n        execvp(name, words);\n        _exit(127);\n    }\n"),
        ("shop.c", "", "    _exit(EXIT_FAILURE);\n"),
        ("shop.c", "", "    _exit(1);\n    _exit( 255 );\n"),
        ("shop.c", "", "#ifdef UNITY_WIN\n#endif\n#ifdef HAVE_CPPUNIT\n#endif\n#ifdef ICU_DATA\n#endif\n"),
        ("shop.cpp", "", "    // a constructor (of copies)\n    auto made = find_constructor(name);\n"),
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
