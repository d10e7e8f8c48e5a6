"""Tests in Rust's documentation: bending them is found, adding to them is not held against anybody."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.feedback.parsers.test_formats import output

from cloister.core.diagnosis import Diagnosis
from cloister.feedback.compare import compare
from cloister.feedback.diagnose import diagnose
from cloister.feedback.integrity.versions import Version
from cloister.feedback.integrity.weakening import weakenings

FILE = "src/lib.rs"
SOURCE = """//! A shop.
//!
//! ```
//! assert_eq!(shop::add(1, 1), 2);
//! ```

/// Adds.
///
/// ```
/// assert_eq!(shop::add(1, 2), 3);
/// ```
pub fn add(a: i32, b: i32) -> i32 {
    a - b
}

pub mod till {
    impl Till {
        /// ```
        /// assert!(!shop::till::Till::opens());
        /// ```
        #[must_use]
        pub fn opens() -> bool {
            true
        }
    }
}
"""


def lost(old: str, new: str) -> tuple[str, ...]:
    """What a change that makes everything green is told to have weakened."""
    assert old in SOURCE
    found = weakenings([Version(FILE, SOURCE, SOURCE.replace(old, new))])
    now = Diagnosis("cargo_doc", 0, 1.0, weakened=found)
    return tuple(sorted(compare([diagnose(output("cargo_doc"))], [now]).weakened))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("add(1, 1), 2)", "add(1, 1), 0)", (f"{FILE} (the test was changed)",)),
        (
            "!shop::till::Till::opens()",
            "shop::till::Till::opens()",
            (f"{FILE} - till::Till::opens (the test was changed)",),
        ),
        (
            "        /// ```\n        /// assert!",
            "        /// ```ignore\n        /// assert!",
            (f"{FILE} - till::Till::opens (the test was skipped)",),
        ),
        (
            "        /// ```\n        /// assert!(!shop::till::Till::opens());\n        /// ```\n",
            "",
            (f"{FILE} - till::Till::opens (the test was deleted)",),
        ),
        (
            "/// ```\n/// assert_eq!(shop::add(1, 2), 3);",
            "/// ```should_panic\n/// assert_eq!(shop::add(1, 2), 3);",
            (f"{FILE} - add (3) (the test was changed)", f"{FILE} - add (the test was changed)"),
        ),
    ],
)
def test_a_weakened_example_is_reported(old: str, new: str, expected: tuple[str, ...]) -> None:
    assert lost(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    a - b", "    a + b"),
        ("/// Adds.", "/// Adds two numbers."),
        ("/// assert_eq!(shop::add(1, 2), 3);", "/// let _ = 1;\n/// assert_eq!(shop::add(1, 2), 3);"),
    ],
)
def test_the_code_and_the_words_around_an_example_may_change(old: str, new: str) -> None:
    assert lost(old, new) == ()


PIECES = st.sampled_from(
    ["/// ```\n", "//! ```x\n", "/// a\n", "fn f()\n", "```", "\n", "\x00", "pub mod ", "#[a]\n"]
)


@given(st.lists(PIECES).map("".join), st.lists(PIECES).map("".join))
def test_whatever_a_file_holds_it_is_compared(before: str, after: str) -> None:
    weakenings([Version(FILE, before, after)])
    assert weakenings([Version(FILE, before, before)]) == ()


@pytest.mark.parametrize("piece", ["/// ```\n", "//! ```\n//! a\n//! ```\n", "pub(a) const " * 20, "fn f\n"])
def test_a_megabyte_of_it_takes_no_longer_than_it_must(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    weakenings([Version(FILE, text, text[::-1])])
    assert time.process_time() - started < 5
