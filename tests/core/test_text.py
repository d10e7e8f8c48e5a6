from hypothesis import given
from hypothesis import strategies as st

from cloister.core.text import bounded, decode, harmless, one_line


def test_text_within_the_limit_is_kept_as_it_is() -> None:
    assert bounded("short", 10) == "short"


def test_long_text_keeps_head_and_tail_and_says_how_much_is_gone() -> None:
    text = "HEAD" + "x" * 1000 + "\n" + "y" * 1000 + "TAIL"
    kept = bounded(text, 100)
    assert kept.startswith("HEAD")
    assert kept.endswith("TAIL")
    assert "1909 characters in 2 lines left out" in kept


def test_terminal_escapes_are_removed() -> None:
    hostile = "a\x1b[2Jb\x1b]52;c;ZXZpbA==\x07c\x1bP1$r\x1b\\d\x1b]0;title\x1b\\e"
    assert harmless(hostile) == "abcde"


def test_other_controls_become_visible_and_newlines_and_tabs_stay() -> None:
    assert harmless("a\x00\x08b\tc\nd\x9b31m") == "a\\x00\\x08b\tc\nd\\x9b31m"


def test_a_carriage_return_cannot_overwrite_what_was_shown() -> None:
    assert harmless("good\revil\r\nnext") == "good\nevil\nnext"


def test_direction_overrides_and_invisible_tags_become_visible() -> None:
    assert harmless("\u202eabc\U000e0041") == "\\x202eabc\\xe0041"


def test_invalid_utf8_is_replaced() -> None:
    assert decode(b"ok \xff\xfe") == "ok \ufffd\ufffd"


@given(st.text())
def test_harmless_text_has_no_control_characters_but_newline_and_tab(text: str) -> None:
    assert all(c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) for c in harmless(text))


@given(st.text(max_size=500), st.integers(10, 100))
def test_one_line_is_one_line_within_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert "\n" not in line
    assert len(line) <= limit
