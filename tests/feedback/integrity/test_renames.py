"""Tests that were renamed or moved are the tests they were."""

import pytest

from cloister.core.diagnosis import Diagnosis, TestStatus, Weakening
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback import shown
from cloister.feedback.compare import compare
from cloister.feedback.integrity.renames import renames
from cloister.feedback.integrity.versions import Version
from cloister.feedback.integrity.weakening import moved_names, weakenings

PYTHON = """\
from shop import total

LIMIT = 10


def at_most(value):
    assert value <= LIMIT


def test_total():
    prices = [1, 2]
    assert total(prices) == 3
    at_most(total(prices))


class TestCart:
    def setup_method(self):
        self.items = []

    def test_empty(self):
        assert total(self.items) == 0
"""
SCRIPT = """\
const { add } = require("../src/add");

describe("add", () => {
  it("adds two", () => {
    expect(add(1, 2)).toBe(3);
  });

  it("adds none", () => expect(add()).toBe(0));
});
"""
GO = "package calc\n\nfunc TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n"
RUST = "fn add() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        assert_eq!(add(1, 2), 3);\n    }\n}\n"
C = "static void adds(void)\n{\n    TEST_ASSERT_EQUAL_INT(3, add(1, 2));\n}\n"
JAVA = "class AddTest {\n    @Test\n    public void adds() {\n        assertEquals(3, Calc.add(1, 2));\n    }\n}\n"


def edited(path: str, text: str, old: str, new: str) -> Version:
    assert old in text
    return Version(path, text, text.replace(old, new))


def others(*changed: Version) -> dict[tuple[str, str], tuple[str, str]]:
    found = renames(changed)
    return {old: new for old, new in found.items() if old != new}


@pytest.mark.parametrize(
    ("path", "text", "old", "new"),
    [
        ("tests/test_shop.py", PYTHON, "test_total", "test_sum_of_prices"),
        ("tests/test_shop.py", PYTHON, "TestCart::test_empty", "TestBasket::test_empty"),
        ("test/add.test.js", SCRIPT, "adds two", "returns the sum of two numbers"),
        ("test/add.test.js", SCRIPT, "adds none", "is zero without numbers"),
        ("calc_test.go", GO, "TestAdd", "TestSum"),
        ("src/lib.rs", RUST, "adds", "sums_up"),
        ("tests/calc.c", C, "adds", "sums"),
        ("src/test/java/AddTest.java", JAVA, "adds", "sums"),
    ],
)
def test_a_test_with_another_name_and_the_same_body_is_renamed_and_not_deleted(
    path: str, text: str, old: str, new: str
) -> None:
    before, after = old.partition("::")[0], new.partition("::")[0]
    change = edited(path, text, before, after)

    assert others(change) == {(path, old): (path, new)}
    assert {one.how for one in weakenings([change])} == {"moved"}


def test_a_test_that_moved_to_another_file_is_recognised() -> None:
    cart = PYTHON[PYTHON.index("class TestCart") :]
    source = Version("tests/test_shop.py", PYTHON, PYTHON.removesuffix(cart))
    target = Version("tests/cart/test_cart.py", None, f"from shop import total\n\n\n{cart}")

    assert others(source, target) == {
        ("tests/test_shop.py", "TestCart::test_empty"): ("tests/cart/test_cart.py", "TestCart::test_empty")
    }
    assert {one.how for one in weakenings([source, target])} == {"moved"}
    assert others(
        Version("test/add.test.js", SCRIPT, None), Version("test/unit/sum.test.js", None, SCRIPT)
    ) == {("test/add.test.js", name): ("test/unit/sum.test.js", name) for name in ("adds two", "adds none")}


def test_a_test_that_was_tidied_while_it_was_renamed_is_recognised_by_its_assertions() -> None:
    change = Version(
        "tests/test_shop.py",
        PYTHON,
        PYTHON.replace("test_total", "test_sum").replace("prices = [1, 2]", "prices = list(range(1, 3))"),
    )

    assert others(change) == {("tests/test_shop.py", "test_total"): ("tests/test_shop.py", "test_sum")}


@pytest.mark.parametrize(
    ("path", "text", "old", "new"),
    [
        ("tests/test_shop.py", PYTHON, "test_total", "check_total"),
        ("tests/test_shop.py", PYTHON, "TestCart:\n", "TestCart:\n    items = [1]\n\n"),
        ("calc_test.go", GO, "TestAdd", "testAdd"),
    ],
)
def test_a_name_that_is_none_of_a_test_is_no_new_name(path: str, text: str, old: str, new: str) -> None:
    assert others(edited(path, text, old, new)) == {}


def test_a_method_whose_own_helper_asserts_is_recognised_under_another_name() -> None:
    text = "class CalmTest(ClockCase):\n    def test_midnight(self):\n        self.same(parse('0:00'), 0)\n"

    found = renames([edited("tests/test_calm.py", text, "test_midnight", "test_the_day_begins")])

    assert found == {
        ("tests/test_calm.py", "CalmTest::test_midnight"): (
            "tests/test_calm.py",
            "CalmTest::test_the_day_begins",
        )
    }


def test_one_test_cannot_stand_for_two() -> None:
    twice = (
        PYTHON
        + "\n\ndef test_again():\n    assert total([]) == 0\n\n\ndef test_twice():\n    assert total([]) == 0\n"
    )
    once = PYTHON + "\n\ndef test_once():\n    assert total([]) == 0\n"

    assert len(others(Version("tests/test_shop.py", twice, once))) == 1


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (
            edited("tests/test_shop.py", PYTHON, "test_total", "test_sum"),
            ("tests/test_shop.py::test_total[1]", "tests/test_shop.py::test_total[2]"),
            ("tests/test_shop.py::test_sum[1]", "tests/test_shop.py::test_sum[2]"),
        ),
        (
            edited("tests/test_shop.py", PYTHON, "TestCart", "TestBasket"),
            ("tests.test_shop.TestCart::test_empty",),
            ("tests.test_shop.TestBasket::test_empty",),
        ),
        (
            edited("test/add.test.js", SCRIPT, "adds two", "sums two"),
            ("test/add.test.js::add > adds two",),
            ("test/add.test.js::add > sums two",),
        ),
        (
            edited("test/add.test.js", SCRIPT, '"add"', '"sum"'),
            ("test/add.test.js::add > adds two", "test/add.test.js::add > adds none"),
            ("test/add.test.js::sum > adds two", "test/add.test.js::sum > adds none"),
        ),
        (
            edited("calc_test.go", GO, "TestAdd", "TestSum"),
            ("example.com/calc::TestAdd", "example.com/calc::TestAdd/one"),
            ("example.com/calc::TestSum", "example.com/calc::TestSum/one"),
        ),
        (edited("src/lib.rs", RUST, "mod tests", "mod unit"), ("tests::adds",), ("unit::adds",)),
    ],
)
def test_renamed_tests_are_found_in_the_spelling_of_the_runner(
    change: Version, old: tuple[str, ...], new: tuple[str, ...]
) -> None:
    before = check(*(Result(name, "passed") for name in (*old, "other::stays")))
    now = check(
        *(Result(name, "passed") for name in (*reversed(new), "other::stays")), weak=weakenings([change])
    )

    assert moved_names(before, now) == dict(zip(old, new, strict=True))
    assert compare([before], [now]).green
    skipped = check(
        *(Result(name, "skipped") for name in new), Result("other::stays", "passed"), weak=now.weakened
    )
    assert compare([before], [skipped]).skipped == old


def check(*tests: Result, weak: tuple[Weakening, ...] = ()) -> Diagnosis:
    red = any(test.status == "failed" for test in tests)
    return Diagnosis("check", int(red), 1.0, tests=tests, weakened=weak)


def test_a_red_test_that_was_renamed_and_passes_is_fixed() -> None:
    before = check(Result("tests/test_shop.py::test_total", "failed"))
    new = Result("tests/test_shop.py::test_sum", "passed")
    renamed = edited("tests/test_shop.py", PYTHON, "test_total", "test_sum")

    assert compare([before], [check(new)]).missing == ("tests/test_shop.py::test_total",)
    found = compare([before], [check(new, weak=weakenings([renamed]))])
    assert (found.green, found.fixed) == (True, ("tests/test_shop.py::test_total",))


MOVED = (
    Version("tests/test_shop.py", PYTHON, None),
    Version("tests/test_store.py", None, "def test_total():\n    pass\n"),
)
OLD, NEW = "tests/test_shop.py::test_total", "tests/test_store.py::test_total"


def test_a_passing_test_that_moved_runs_as_the_base_has_it() -> None:
    base, now = check(Result(OLD, "passed")), check(Result(NEW, "passed"))

    assert compare([base], [now]).green
    assert shown.edited_tests([base], [now], MOVED) == {OLD: "check"}
    assert shown.edited_tests([base], [now], (), MOVED) == {}  # the task may change the file


@pytest.mark.parametrize(
    ("again", "hidden"),
    [
        ((OLD, "passed"), ()),
        ((OLD, "failed"), (OLD,)),
        (("tests/test_other.py::test_else", "passed"), (OLD,)),
        (("other.test_shop::test_total", "passed"), ()),
    ],
)
def test_a_test_that_moved_hides_a_regression_if_its_old_form_fails_or_does_not_run(
    again: tuple[str, TestStatus], hidden: tuple[str, ...]
) -> None:
    assert shown.hidden_by_edits([OLD], [check(Result(*again))], MOVED, {OLD}) == (hidden, ())


@pytest.mark.parametrize("body", ["pass", "assert sum_of([1]) == 1"])
def test_a_test_that_moved_with_what_it_uses_must_say_as_much(body: str) -> None:
    failed = Result(OLD, "failed", message="NameError: name 'total' is not defined")
    product = Version("shop.py", "def total(prices):\n    return 3\n", "def sum_of(prices):\n    return 3\n")
    same = "prices = [1, 2]\n    assert sum_of(prices) == 3\n    at_most(sum_of(prices))"
    weaker, equal = (
        (product, MOVED[0], Version("tests/test_store.py", None, f"def test_total():\n    {text}\n"))
        for text in (body, same)
    )

    assert shown.hidden_by_edits([OLD], [check(failed)], weaker, {OLD})[0] == (OLD,)
    assert shown.hidden_by_edits([OLD], [check(failed)], equal, {OLD})[0] == ()


@pytest.mark.parametrize(
    "said",
    [
        "Error: Failed to load url ../src/old.js (resolved id: ../src/old.js) in /work/test/a.test.js. Does the file exist?",
        'Error: Failed to resolve import "../src/old.js" from "test/a.test.js". Does the file exist?',
    ],
)
def test_a_test_whose_import_was_renamed_along_with_the_file_hides_nothing(said: str) -> None:
    text = "export const one = 1;\n"
    test = "import { one } from '../src/old.js';\ntest('adds', () => expect(one).toBe(1));\n"
    name = "test/a.test.js::adds"
    renamed = [
        Version("src/old.js", text, None),
        Version("src/new.js", None, text),
        Version("test/a.test.js", test, test.replace("old", "new")),
    ]
    other = [Version("src/new.js", None, text), *renamed[2:]]
    stopped = Diagnosis("npx vitest run", 1, 1.0, tail=said)

    found = shown.hidden_by_edits([name], [stopped], renamed, all_restored=True)

    assert found == ((), (f"changed along with what it uses: {name}",))
    assert shown.hidden_by_edits([name], [stopped], other, all_restored=True) == ((name,), ())


@pytest.mark.parametrize(("ending", "hidden"), [("py", (OLD,)), ("go", ())])
def test_an_edited_test_whose_old_form_cannot_be_loaded_for_another_reason_hides_something(
    ending: str, hidden: tuple[str, ...]
) -> None:
    stopped = Diagnosis("check", 2, 1.0, tail="RuntimeError: set SHOP")
    edit = Version(f"tests/test_shop.{ending}", PYTHON, PYTHON.replace("prices = [1, 2]", "prices = [3]"))

    assert shown.hidden_by_edits([OLD], [stopped], [edit], all_restored=True) == (hidden, ())
    assert shown.hidden_by_edits([OLD], [stopped], [edit]) == ((), ())
