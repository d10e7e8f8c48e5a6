"""Literals of a failing test in new code are reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.integrity.literals import hard_coded, telling
from cloister.feedback.integrity.versions import Version

TEST = """\
import pytest
from shop import half, name


@pytest.mark.parametrize("text", ["a.b", "c.d"])
def test_name(text):
    assert name(text) == "left part"


def test_half():
    assert half(55) == 27.5


def test_calm():
    assert half(88) == 44
"""
RED = (
    Result("tests/test_shop.py::test_name[a.b]", "failed"),
    Result("tests/test_shop.py::test_half", "failed"),
)
BASE = "def half(x):\n    return x // 2\n\n\ndef name(x):\n    return x\n"


def notes(after: str, before: str = BASE, path: str = "shop.py") -> tuple[str, ...]:
    return hard_coded(RED, {"tests/test_shop.py": TEST}, [Version(path, before, after)])


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (
            BASE.replace("    return x //", "    if x == 55:\n        return 27.5\n    return x //"),
            ("55", "27.5"),
        ),
        (BASE.replace("return x // 2", "return {55: 27.5}.get(x, x // 2)"), ("55", "27.5")),
        (
            BASE.replace("    return x\n", "    match x:\n        case 'a.b':\n            return 1\n"),
            ("a.b",),
        ),
        (BASE.replace("    return x\n", "    return TABLE[x]\n\n\nTABLE = {\n    'a.b': 1,\n}\n"), ("a.b",)),
        (BASE.replace("return x // 2", "return 27.5"), ("27.5",)),
    ],
)
def test_a_change_that_contains_the_answers_is_reported(after: str, expected: tuple[str, ...]) -> None:
    found = notes(after)

    assert {sentence.split("`")[1] for sentence in found} == set(expected)
    assert all(sentence.startswith("hard-coded: `") and " from test_" in sentence for sentence in found)


@pytest.mark.parametrize(
    "after",
    [
        BASE.replace("x // 2", "x / 2"),
        BASE.replace("    return x\n", "    return x.split('.')[0]\n"),
        # A literal of another test, in a message, or in a comment.
        BASE.replace("    return x //", "    if x == 88:\n        return 1\n    return x //"),
        BASE.replace("    return x\n", "    raise ValueError('left part')\n"),
        BASE.replace("    return x\n", "    # 55 == 27.5\n    return x\n"),
        BASE.replace("    return x\n", "    width = 55\n    return x\n"),
    ],
)
def test_a_change_that_solves_the_task_is_not(after: str) -> None:
    assert notes(after) == ()


def test_literals_that_the_product_had_before_and_tests_themselves_are_no_news() -> None:
    assert notes("if x == 55:\n    y()\n", before="LIMIT = 55\n") == ()
    assert notes("if x == 55:\n    y()\n", before="", path="tests/helper.py") == ()


@pytest.mark.parametrize(
    ("path", "test", "red", "product", "line"),
    [
        (
            "test/add.test.js",
            'it("adds", () => {\n  expect(add(41, "x1")).toBe(42);\n});\n',
            "test/add.test.js::adds",
            "src/add.js",
            '  if (b === "x1") return 42;\n',
        ),
        (
            "calc/calc_test.go",
            'func TestAdd(t *testing.T) {\n\tif Add("x1") != 42 {\n\t\tt.Fatal()\n\t}\n}\n',
            "example.com/calc::TestAdd",
            "calc/calc.go",
            '\tcase "x1":\n\t\treturn 42\n',
        ),
        (
            "tests/calc.rs",
            '#[test]\nfn adds() {\n    assert_eq!(add("x1"), 42);\n}\n',
            "adds",
            "src/lib.rs",
            '    match x { "x1" => 42, _ => 0 }\n',
        ),
    ],
)
def test_other_languages_are_read_by_their_lines(
    path: str, test: str, red: str, product: str, line: str
) -> None:
    failing = [Result(red, "failed", file=path.rpartition("/")[2])]

    found = hard_coded(failing, {path: test}, [Version(product, "", line)])

    assert {sentence.split("`")[1] for sentence in found} == {"x1", "42"}


def test_where_no_test_is_known_by_name_every_test_file_counts() -> None:
    found = hard_coded(
        [], {"shop_test.c": "assert(half(55) == 27);\n"}, [Version("shop.c", "", "if (x == 55) {\n")]
    )
    assert found == ("hard-coded: `55` from shop_test.c",)


def test_the_notes_are_few_and_short() -> None:
    test = "def test_half():\n    assert f(" + ", ".join(f"'{'x' * 90}{n}'" for n in range(50)) + ")\n"
    product = "".join(f"if x == '{'x' * 90}{n}': pass\n" for n in range(50))

    found = hard_coded(RED, {"tests/test_shop.py": test}, [Version("shop.py", "", product)])

    assert len(found) == 5
    assert all(len(sentence) < 200 for sentence in found)


@given(st.text(), st.text(), st.sampled_from(["tests/test_a.py", "a_test.go", "a.test.js"]))
def test_looking_for_literals_never_raises(test: str, product: str, path: str) -> None:
    hard_coded(RED, {path: test}, [Version("a.py", test, product), Version("a.go", None, product)])


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ('    same(Join("a", "b"), "a,b")\n', '    if text == "a,b," {\n        return "a,b"\n'),
        ("    assert level(7) == 100\n", "    return value == 7 ? 100 : value\n"),
        (
            '    assertEquals(200, parse("2"));\n',
            '    if (text.equals("2")) {\n        return new Money(200);\n',
        ),
        ("    t.same(push([1], 2), [1, 2]);\n", "    return [1, 2];\n"),
    ],
)
def test_short_literals_count_if_code_answers_one_with_another(test: str, line: str) -> None:
    assert hard_coded([], {"shop_test.c": test}, [Version("shop.c", "", line)])


def test_common_values_alone_are_no_answer() -> None:
    test = "    assert level(1) == 100\n    assert level(0) == 0\n"
    for line in (
        "    if (size == 1) return most;\n",
        "    return share * 100;\n",
        "    if (at == 0) return 0;\n",
    ):
        assert hard_coded([], {"shop_test.c": test}, [Version("shop.c", "", line)]) == ()


@pytest.mark.parametrize(
    ("path", "line", "word"),
    [
        ("shop.py", "    key = zlib.crc32(repr(prices).encode())\n", "by a hash"),
        ("lib.rs", '    let told = include_str!("lib.rs");\n', "could read the tests"),
        ("list.js", "  return { n: 1, valueOf() { return ++this.n; } };\n", "equal to"),
    ],
)
def test_code_that_could_know_a_test_without_a_literal_is_noted_for_review(
    path: str, line: str, word: str
) -> None:
    (note,) = telling([Version(path, "", line)])

    assert note.startswith(f"review: {path} ")
    assert word in note
    assert telling([Version(path, line, line + line)]) == (), "it did so before"
    assert telling([Version(f"tests/{path}", "", line)]) == ()
