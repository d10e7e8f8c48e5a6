"""Maven and Gradle: what becomes of classes that cannot begin, of builds with many parts, and of tests that take something."""

from tests.feedback.captures import captured

from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.api import CheckOutput
from cloister.feedback.check_commands import leaves_reports
from cloister.feedback.compare import compare
from cloister.feedback.diagnose import diagnose
from cloister.feedback.parsers.test_runners.java import console_text, untouched


def told(name: str, *reports: str) -> Diagnosis:
    return diagnose(
        CheckOutput("mvn test", 1, None, 1.0, captured(name), b"", tuple(captured(one) for one in reports))
    )


def test_a_failure_is_reported_with_its_whole_message_and_no_frames() -> None:
    said = {test.name: test.message for test in told("maven_junit4.out").failing}

    assert said == {
        "shop.LabelTest::isShort": "java.lang.AssertionError: \na label\nof two lines",
        "shop.FixtureTest": "java.lang.IllegalStateException: no database",
        "shop.BrokenTest": "org.junit.runners.model.InvalidTestClassError: \n"
        "Invalid test class 'shop.BrokenTest':\n  1. Method isNotPublic() should be public",
        "shop.BasketTest::takesTheDiscountOff": "java.lang.AssertionError: expected:<27> but was:<33>",
        "shop.BasketTest::nobodyPaysNothing": "java.lang.ArithmeticException: / by zero",
    }


def test_a_missing_symbol_is_reported_with_its_name() -> None:
    said = [one.message for one in told("maven_compile.out").diagnostics]

    assert said[1] == "cannot find symbol\n  symbol:   variable undefined\n  location: class shop.Bad"


def test_compile_errors_are_reported_beside_test_reports() -> None:
    found = told("maven_compile.out", "surefire_junit5.CalmTest.xml")

    assert [test.name for test in found.tests] == ["shop.CalmTest::isCalm"]
    assert [(one.file, one.line) for one in found.diagnostics] == [
        ("src/main/java/shop/Bad.java", line) for line in (8, 12, 13)
    ]


def test_the_error_of_a_class_is_not_missing_once_the_class_runs() -> None:
    for report in ("gradle_reports.FixtureTest.xml", "surefire_junit4.BrokenTest.xml"):
        before = told("maven_model.out", report)
        (stood,) = before.failing
        now = Diagnosis("mvn test", 0, 1.0, tests=(Result(f"{stood.name}::reads", "passed"),))

        assert compare([before], [now]).fixed == (stood.name,)
        assert compare([before], [now]).green


def test_only_reports_of_tests_that_gradle_calls_up_to_date_are_taken_as_they_are() -> None:
    out = (
        b":compileTestJava UP-TO-DATE\n:test UP-TO-DATE\n> Task :shop:till:integrationTest UP-TO-DATE\n"
        b"> Task :other:test\n:..:x:test UP-TO-DATE\n:testClasses UP-TO-DATE\nsaid :a:test UP-TO-DATE\n"
    )

    assert untouched(captured("gradle_again.out")) == ("./build/test-results/test",)
    assert untouched(captured("gradle_test.out")) == ()
    assert untouched(out) == (
        "./build/test-results/test",
        "./shop/till/build/test-results/integrationTest",
    )


def test_reports_are_looked_for_wherever_maven_or_gradle_has_a_part() -> None:
    lines = ("mvn test", "cd app && ./mvnw -B verify", "./gradlew test", "JAVA_HOME=/x gradle check; true")

    assert all(map(leaves_reports, lines))
    assert not any(map(leaves_reports, ("javac A.java", "pytest tests/gradle_test.py", "ls .gradle", "mvnd")))


LAUNCHER = """
╷
├─ JUnit Jupiter ✔
│  ├─ CalmTest ✔
│  │  └─ parsesCents() ✔
│  └─ MoneyTest ✔
│     ├─ Nested ✔
│     │  └─ inside() ↷ later
│     └─ adds() ✘ expected: <3> but was: <-1>
└─ JUnit Vintage ✔

[         3 tests found           ]
"""


def test_tree_of_the_console_launcher_names_each_test_by_its_classes() -> None:
    found = console_text(CheckOutput("java", 1, None, 1.0, LAUNCHER.encode(), b""))
    assert found is not None
    assert [(one.name, one.status, one.message) for one in found.tests] == [
        ("CalmTest::parsesCents()", "passed", None),
        ("MoneyTest$Nested::inside()", "skipped", "later"),
        ("MoneyTest::adds()", "failed", "expected: <3> but was: <-1>"),
    ]


def test_plain_form_of_the_launcher_s_tree_is_read_too() -> None:
    text = ".\n+-- JUnit Jupiter [OK]\n| '-- MoneyTest [OK]\n|   '-- adds() [X] no\n\n[  1 tests found  ]\n"
    found = console_text(CheckOutput("java", 1, None, 1.0, text.encode(), b""))
    assert found is not None
    assert [(one.name, one.status) for one in found.tests] == [("MoneyTest::adds()", "failed")]


def test_summary_of_the_launcher_without_a_tree_names_no_test() -> None:
    text = b"[  0 containers found  ]\n[  0 tests found  ]\n"
    assert console_text(CheckOutput("java", 1, None, 1.0, text, b"")) is None
