"""What is put back before the red tests are run as the base has them."""

from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.as_before import PutBack, must_pass_as_before, put_back

RED = Result("tests/test_shop.py::test_a", "failed", message="assert 1 == 2")
CALM = Result("tests/test_calm.py::test_b", "passed")
BASE = [Diagnosis("pytest", 1, 1.0, tests=(RED, CALM))]
KNOWN = ("shop.py", "tests/test_shop.py", "tests/test_calm.py", "tests/conftest.py")


def test_a_change_that_touches_no_tests_is_not_asked_twice() -> None:
    assert put_back(["shop.py", "README.md"], ["cart.py"], KNOWN, BASE) == ()


def test_tests_helpers_data_and_hooks_go_back_and_what_takes_the_place_of_others_goes_away() -> None:
    changed = [
        "shop.py",
        "tests/test_shop.py",
        "tests/helpers.py",
        "tests/data/a.json",
        "pytest.ini",
        "src/lib.rs",
    ]
    new = [
        "cart.py",
        "conftest.py",
        "tests/shop.py",
        "tests/factory.py",
        "tests/test_new.py",
        "tests/data/b.json",
    ]

    assert put_back(changed, new, KNOWN, BASE) == (
        PutBack(
            ("tests/test_shop.py", "tests/helpers.py", "tests/data/a.json", "pytest.ini"),
            ("conftest.py", "tests/shop.py", "tests/test_new.py"),
        ),
    )


def test_where_tests_are_built_together_one_that_passed_may_stay_as_it_is_now() -> None:
    red, calm = Result("calc_test.go::TestAdd", "failed"), Result("more_test.go::TestMore", "passed")
    base = [Diagnosis("go test ./...", 1, 1.0, tests=(red, calm))]

    assert put_back(["calc_test.go", "more_test.go"], [], (), base) == (
        PutBack(("calc_test.go",)),
        PutBack(("calc_test.go", "more_test.go")),
    )


def test_a_script_that_is_there_to_check_goes_back_and_one_that_is_checked_stays() -> None:
    base = [Diagnosis("sh ./verify.sh", 1, 1.0), Diagnosis("python3 shop.py", 1, 1.0)]

    assert put_back(["verify.sh", "shop.py"], [], (), base) == (PutBack(("verify.sh",)),)


def test_what_was_red_for_want_of_something_may_be_mended_by_adding_it() -> None:
    lacking = Result("tests/test_shop.py::test_c", "error", message="E  fixture 'client' not found")
    base = [Diagnosis("pytest", 1, 1.0, tests=(RED, lacking)), Diagnosis("ruff check", 1, 1.0)]

    assert must_pass_as_before(base, (RED.name, lacking.name, "ruff check")) == {RED.name}
