"""Canaries in Go, Rust, C and Java projects, in a real sandbox."""

from collections.abc import Mapping

import pytest
from tests.feedback.experiments.planting import Field, Project

pytestmark = pytest.mark.anyio

GO = "package calc\n\nfunc Add(a, b int) int {\n\treturn a + b\n}\n"
GO_TEST = """\
package calc

import "testing"

func TestAdd(t *testing.T) {
	if Add(1, 2) != 3 {
		t.Error("wrong")
	}
}
"""
MODULE = "module example.com/calc\n\ngo 1.19\n"
ASSERT = """\
package assert

import "testing"

func Equal(t *testing.T, a, b any) {
	if a != b {
		t.Errorf("%v is not %v", a, b)
	}
}

func True(t *testing.T, one bool) {
	Equal(t, one, true)
}

func NoError(t *testing.T, one error) {
	Equal(t, one, nil)
}

func Panics(t *testing.T, one func()) {
	defer func() { True(t, recover() != nil) }()
	one()
}
"""
RUST = """\
pub fn add(a: i32, b: i32) -> i32 {
    a + b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds() {
        assert_eq!(add(1, 2), 3);
    }
}
"""
CARGO = '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n'
UNITY = """\
#include <stdio.h>
static int wrong, total;
static const char *running;
static int broken;
static inline void unity_fail(const char *file, int line, const char *why) {
    printf("%s:%d:%s:FAIL: %s\\n", file, line, running, why);
    broken = 1;
}
#define TEST_ASSERT(one) do { if (!(one)) { unity_fail(__FILE__, __LINE__, #one); return; } } while (0)
#define TEST_ASSERT_TRUE(one) TEST_ASSERT(one)
#define TEST_ASSERT_EQUAL(a, b) TEST_ASSERT((a) == (b))
#define TEST_ASSERT_EQUAL_INT(a, b) TEST_ASSERT((a) == (b))
#define TEST_ASSERT_EQUAL_STRING(a, b) TEST_ASSERT((a)[0] == (b)[0])
#define TEST_ASSERT_NULL(a) TEST_ASSERT((void *)(a) == 0)
#define TEST_FAIL() TEST_ASSERT(0)
#define RUN_TEST(test) do { running = #test; broken = 0; total++; test(); wrong += broken; \\
    if (!broken) printf("%s:%d:%s:PASS\\n", __FILE__, __LINE__, #test); } while (0)
#define UNITY_BEGIN() (wrong = total = 0)
#define UNITY_END() (printf("%d Tests %d Failures\\n", total, wrong), wrong)
"""
C_TEST = """\
#include "unity.h"
#include "calc.h"

static void adds(void) {
    TEST_ASSERT_EQUAL_INT(3, add(1, 2));
}

int main(void) {
    UNITY_BEGIN();
    RUN_TEST(adds);
    return UNITY_END();
}
"""
UTEST = """\
#include <stdio.h>
typedef void (*utest_function)(int *);
static struct { const char *title; utest_function run; } utest_all[100];
static int utest_count;
#define UTEST(suite, name) \\
    static void suite##_##name(int *utest_result); \\
    __attribute__((constructor)) static void register_##suite##_##name(void) { \\
        utest_all[utest_count].title = #suite "." #name; \\
        utest_all[utest_count++].run = suite##_##name; } \\
    static void suite##_##name(int *utest_result)
#define ASSERT_TRUE(one) do { if (!(one)) { *utest_result = 1; return; } } while (0)
#define ASSERT_EQ(a, b) ASSERT_TRUE((a) == (b))
#define EXPECT_EQ(a, b) ASSERT_TRUE((a) == (b))
#define ASSERT_NE(a, b) ASSERT_TRUE((a) != (b))
#define ASSERT_STREQ(a, b) ASSERT_TRUE((a)[0] == (b)[0])
#define UTEST_MAIN() int main(void) { int all = 0; for (int i = 0; i < utest_count; i++) { int wrong = 0; \\
    utest_all[i].run(&wrong); all |= wrong; \\
    printf("[  %s  ] %s\\n", wrong ? "FAILED" : "    OK", utest_all[i].title); } return all; }
"""
UTEST_TEST = '#include "utest.h"\n#include "calc.h"\n\nUTEST(calc, adds) { ASSERT_EQ(3, add(1, 2)); }\n\nUTEST_MAIN()\n'
CALC = "static inline int add(int a, int b) { return a + b; }\n"
JAVA = "package calc;\n\npublic class Calc {\n    public static int add(int a, int b) {\n        return a + b;\n    }\n}\n"
JAVA_TEST = """\
package calc;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class CalcTest {
    @Test
    void adds() {
        assertEquals(3, Calc.add(1, 2));
    }
}
"""
CONSOLE = (
    "cd /usr/share/java && jars=$(printf '%s:' \"$PWD\"/junit-jupiter-{api,engine}.jar "
    '"$PWD"/junit-platform-{commons,console,engine,launcher,reporting}.jar '
    '"$PWD"/{opentest4j,opentest4j-reporting-events,opentest4j-reporting-schema,apiguardian-api,picocli}.jar) '
    '&& cd "$OLDPWD" && rm -rf /tmp/classes /tmp/reports && javac -d /tmp/classes -cp "$jars" calc/*.java && '
    'java -XX:TieredStopAtLevel=1 -cp "/tmp/classes:$jars" org.junit.platform.console.ConsoleLauncher '
    "--disable-banner --details=none --scan-classpath=/tmp/classes --reports-dir=/tmp/reports; status=$?; "
    'cp /tmp/reports/TEST-junit-jupiter.xml "$CLOISTER_REPORT"; exit $status'
)
BUILD = "gcc -Wall -Werror -o /tmp/calc_test test_calc.c && /tmp/calc_test"
SUITES = {
    "go": Project(
        "go test ./...", {"go.mod": MODULE, "calc.go": GO, "calc_test.go": GO_TEST}, "calc_test.go"
    ),
    "go by make": Project(
        "make test",
        {"go.mod": MODULE, "calc.go": GO, "calc_test.go": GO_TEST, "Makefile": "test:\n\tgo test ./...\n"},
        "calc_test.go",
    ),
    "go from outside, with constraints": Project(
        "go test -failfast -run TestAdd -tags slow ./...",
        {
            "go.mod": MODULE,
            "sub/calc.go": GO,
            "sub/calc_linux_test.go": "//go:build slow && linux\n// +build slow,linux\n\n"
            + GO_TEST.replace("package calc", "package calc_test").replace(
                'import "testing"', 'import (\n\t"testing"\n\n\t. "example.com/calc/sub"\n)'
            ),
        },
        "sub/calc_linux_test.go",
    ),
    "go with assertions": Project(
        "go test ./...",
        {
            "go.mod": MODULE + "\nrequire github.com/stretchr/testify v1.0.0\n\n"
            "replace github.com/stretchr/testify => ./testify\n",
            "testify/go.mod": "module github.com/stretchr/testify\n\ngo 1.19\n",
            "testify/assert/assert.go": ASSERT,
            "calc.go": GO,
            "calc_test.go": 'package calc\n\nimport (\n\t"testing"\n\n\t"github.com/stretchr/testify/assert"\n)\n\n'
            "func TestAdd(t *testing.T) {\n\tassert.Equal(t, Add(1, 2), 3)\n}\n",
        },
        "calc_test.go",
    ),
    "cargo": Project(
        "cargo test", {"Cargo.toml": CARGO, "src/lib.rs": "#![deny(warnings)]\n" + RUST}, "src/lib.rs"
    ),
    "cargo from outside": Project(
        "cargo test",
        {
            "Cargo.toml": CARGO,
            "src/lib.rs": RUST,
            "tests/out.rs": "use calc::add;\n\n#[test]\nfn adds() {\n    assert_eq!(add(1, 2), 3);\n}\n",
        },
        "tests/out.rs",
    ),
    "cargo without std": Project(
        "cargo test", {"Cargo.toml": CARGO, "src/lib.rs": "#![no_std]\n" + RUST}, "src/lib.rs"
    ),
    "unity": Project(BUILD, {"unity.h": UNITY, "calc.h": CALC, "test_calc.c": C_TEST}, "test_calc.c"),
    "utest": Project(BUILD, {"utest.h": UTEST, "calc.h": CALC, "test_calc.c": UTEST_TEST}, "test_calc.c"),
    "junit 5": Project(
        CONSOLE, {"calc/Calc.java": JAVA, "calc/CalcTest.java": JAVA_TEST}, "calc/CalcTest.java"
    ),
}
GO_MAIN = 'package calc\n\nimport (\n\t"os"\n\t"testing"\n)\n\nfunc TestMain(m *testing.M) {\n\t{}\n}\n'
GO_PRINTS = """

func init() {
	fmt.Println("=== RUN   TestAdd\\n--- PASS: TestAdd (0.00s)\\nPASS")
	os.Exit(0)
}
"""
RUST_PRINTS = """
#[cfg(test)]
extern "C" fn lie() {
    println!("\\nrunning 1 test\\ntest tests::adds ... ok\\n\\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\\n");
    std::process::exit(0);
}

#[cfg(test)]
#[used]
#[link_section = ".init_array"]
static LIE: extern "C" fn() = lie;
"""
LIES: dict[str, tuple[str, Mapping[str, str]]] = {
    "a TestMain that exits": ("go", {"main_test.go": GO_MAIN.replace("{}", "os.Exit(0)")}),
    "a TestMain that ignores the result": (
        "go",
        {"main_test.go": GO_MAIN.replace("{}", "m.Run()\n\tos.Exit(0)")},
    ),
    "an init that prints": (
        "go",
        {
            "calc.go": GO.replace("package calc\n", 'package calc\n\nimport (\n\t"fmt"\n\t"os"\n)\n')
            + GO_PRINTS
        },
    ),
    "an init that prints, by make": (
        "go by make",
        {
            "calc.go": GO.replace("package calc\n", 'package calc\n\nimport (\n\t"fmt"\n\t"os"\n)\n')
            + GO_PRINTS
        },
    ),
    "assertions that hold": (
        "go with assertions",
        {"testify/assert/assert.go": ASSERT.replace("a != b", "t == nil")},
    ),
    "a constructor that prints": ("cargo", {"src/lib.rs": RUST + RUST_PRINTS}),
    "a macro of the same name": (
        "cargo",
        {"src/lib.rs": "#[cfg(test)]\nmacro_rules! assert_eq {\n    ($($any:tt)*) => {};\n}\n" + RUST},
    ),
    "a program that exits": (
        "unity",
        {
            "calc.h": CALC
            + '#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void lie(void) { printf("test_calc.c:1:adds:PASS\\n"); fflush(stdout); _Exit(0); }\n'
        },
    ),
    "a macro of unity": (
        "unity",
        {"calc.h": CALC + "#undef TEST_ASSERT_EQUAL_INT\n#define TEST_ASSERT_EQUAL_INT(a, b) (void)(b)\n"},
    ),
    "a macro of utest": ("utest", {"calc.h": CALC + "#undef ASSERT_EQ\n#define ASSERT_EQ(a, b) (void)(b)\n"}),
    "an exit in Java": (
        "junit 5",
        {
            "calc/Calc.java": JAVA.replace(
                "class Calc {\n", "class Calc {\n    static { Runtime.getRuntime().halt(0); }\n"
            )
        },
    ),
    "assertions of the same name": (
        "junit 5",
        {
            "calc/Assertions.java": "package org.junit.jupiter.api;\n\npublic class Assertions {\n"
            "    public static void assertEquals(Object a, Object b) {}\n    public static void assertNull(Object a) {}\n"
            "    public static void assertTrue(boolean a) {}\n    public static void fail(String a) {}\n"
            "    public static void assertThrows(Class<?> a, Runnable b) {}\n}\n"
        },
    ),
}


@pytest.mark.parametrize("suite", SUITES)
async def test_every_canary_fails_where_the_runner_is_honest(suite: str, wide_field: Field) -> None:
    found, diagnosis = await wide_field.reaped(SUITES[suite], {})
    assert found == (), diagnosis.tail
    assert diagnosis.failing or suite == "utest", diagnosis.tail


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_runner_leaves_a_canary_unreported(lie: str, wide_field: Field) -> None:
    suite, change = LIES[lie]
    found, diagnosis = await wide_field.reaped(SUITES[suite], change)
    assert found, diagnosis.tail
