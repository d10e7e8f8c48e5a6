"""Files that are code and tests at once: the base's tests in what is otherwise as it is now."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.feedback.integrity.base_tests import grafted, without
from cloister.feedback.integrity.versions import Version

CODE = "pub fn add(a: i32, b: i32) -> i32 {\n    a - b\n}\n"
TESTS = """\
#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: i32, b: i32) {
        assert_eq!(a, b);
    }

    #[test]
    fn adds() {
        same(add(1, 2), 3);
    }

    #[test]
    fn calm() {
        same(add(0, 0), 0);
    }
}
"""
BASE = f"{CODE}\n{TESTS}"
FIXED = CODE.replace("a - b", "a + b")
CALM = TESTS[TESTS.index("    #[test]\n    fn calm") :].removesuffix("}\n")


def rust(after: str, calm: tuple[str, ...] = ()) -> str | None:
    return grafted(Version("src/lib.rs", BASE, after), calm)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    #[test]\n    fn adds", "    #[test]\n    #[should_panic]\n    fn adds"),
        ("        same(add(1, 2), 3);", "        if true { return; }\n        same(add(1, 2), 3);"),
        ("        assert_eq!(a, b);", "        assert!(a != b + 100);"),
        (
            "    use super::*;",
            "    macro_rules! assert_eq { ($a:expr, $b:expr) => {} }\n    use super::*;",
        ),
        ("    use super::*;", "    fn add(a: i32, b: i32) -> i32 { a + b }"),
        ("#[cfg(test)]", "#[cfg(any())]"),
        (TESTS, ""),
    ],
)
def test_test_module_of_the_base_replaces_any_edited_one(old: str, new: str) -> None:
    assert old in BASE
    changed = BASE.replace(CODE, FIXED).replace(old, new)

    text = rust(changed)

    assert text is not None
    assert FIXED in text
    assert TESTS.rstrip() in text
    assert text.count("mod tests") == 1


def test_where_only_the_code_was_changed_nothing_is_put_back() -> None:
    assert rust(BASE.replace(CODE, FIXED)) is None


def test_passing_tests_are_left_out_so_that_names_they_use_can_change() -> None:
    text = rust(BASE.replace(CODE, FIXED) + "\n// more\n", ("calm",))

    assert text is not None
    assert CALM.rstrip() not in text
    assert "fn adds" in text
    assert "fn same" in text


def test_a_test_that_stands_alone_and_a_module_in_another_file_go_back_too() -> None:
    before = f"{CODE}\n#[cfg(test)]\nmod more;\n\n#[test]\nfn alone() {{\n    assert_eq!(add(1, 2), 3);\n}}\n"
    after = before.replace("mod more;", '#[path = "fake.rs"]\nmod more;').replace(", 3)", ", -1)")

    assert grafted(Version("src/lib.rs", before, after)) == before


def test_a_file_of_tests_without_those_that_passed_keeps_the_rest() -> None:
    text = (
        "mod common;\n\n#[test]\nfn calm() {\n    a();\n}\n\n#[tokio::test]\nasync fn red() {\n    b();\n}\n"
    )

    assert without(text, {"calm"}) == "mod common;\n\n\n#[tokio::test]\nasync fn red() {\n    b();\n}\n"


@given(st.text(), st.text(), st.sampled_from(["src/lib.rs", "a.go"]))
def test_grafting_never_raises(before: str, after: str, path: str) -> None:
    grafted(Version(path, before, after), {"a"})


@pytest.mark.parametrize("line", ["fn a(\n", "#[test]\nfn a() {\n", "#[test]\n", "mod a {\n    fn b() {\n"])
def test_a_file_made_to_hurt_takes_no_longer_than_another_of_its_length(line: str) -> None:
    hostile = line * (200_000 // len(line))
    started = time.process_time()
    grafted(Version("src/lib.rs", BASE + hostile, hostile), ("a", "b"))
    assert time.process_time() - started < 3, "what is quadratic takes minutes"


DOCUMENTED = """//! A shop.
//!
//! ```
//! assert_eq!(shop::add(1, 1), 2);
//! ```

/// Adds.
///
/// ```
/// assert_eq!(shop::add(1, 2), 3);
/// ```
#[must_use]
pub fn add(a: i32, b: i32) -> i32 {
    a - b
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add(1, 1), 2)", "add(1, 1), 0)"),
        ("/// ```\n/// assert", "/// ```ignore\n/// assert"),
        ("add(1, 2), 3", "add(1, 2), -1"),
    ],
)
def test_examples_of_the_base_replace_edited_ones_and_the_code_stays(old: str, new: str) -> None:
    fixed = DOCUMENTED.replace("a - b", "a + b")
    assert old in fixed

    assert grafted(Version("src/lib.rs", DOCUMENTED, fixed.replace(old, new))) == fixed


def test_an_example_moves_with_its_function() -> None:
    above, mark, function = DOCUMENTED.partition("/// Adds.")
    new = f"{above}/// Takes.\npub fn take() {{}}\n\n{mark}{function}"

    assert grafted(Version("src/lib.rs", DOCUMENTED, new)) is None
    assert grafted(Version("src/lib.rs", DOCUMENTED, new.replace("2), 3", "2), 0"))) == new
