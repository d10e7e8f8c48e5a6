from hypothesis import given
from hypothesis import strategies as st

from cloister.cli.screen.keys import ESCAPE, PASTE, Editor, Keys
from cloister.core.text import harmless


def typed(*parts: bytes) -> list[str]:
    keys = Keys()
    found = [key for part in parts for key in keys.feed(part)]
    return found + keys.end()


def test_escape_alone_is_a_key_and_the_start_of_a_sequence_is_not() -> None:
    assert typed(b"a\x1b") == ["a", ESCAPE]
    assert typed(b"\x1b[D") == ["left"]
    assert typed(b"\x1b", b"[", b"3~") == ["delete"]
    assert typed(b"\x1bOH\x1b[1;5C\x1b[15~x") == ["home", "x"]


def test_each_press_of_ctrl_c_counts() -> None:
    assert typed(b"\x03\x03") == ["ctrl-c", "ctrl-c"]


def test_letters_of_several_bytes_may_arrive_in_parts() -> None:
    assert typed("ü".encode()[:1], "ü".encode()[1:] + b"\r") == ["ü", "enter"]


def test_a_paste_is_one_text_that_presses_no_key() -> None:
    assert typed(b"\x1b[200~y\r\nrm -rf\x1b[31m\x03 /\x1b[201~\r") == [
        PASTE + "y rm -rf\\x03 /",
        "enter",
    ]
    for text in (b"y", b"enter", b"ctrl-c"):
        (key,) = typed(b"\x1b[200~" + text[:1], text[1:] + b"\x1b[20", b"1~")
        assert key == PASTE + text.decode()


@given(st.lists(st.binary(max_size=12), max_size=6))
def test_no_bytes_become_a_key_that_a_terminal_acts_on(parts: list[bytes]) -> None:
    for key in typed(*parts):
        text = key.removeprefix(PASTE)
        assert harmless(text) == text or not text.isascii()


def edited(*keys: str) -> tuple[str, int]:
    editor = Editor()
    for key in keys:
        editor.press(key)
    return editor.shown(10)


def test_a_line_is_edited_as_in_a_shell() -> None:
    assert edited(*"two words", "ctrl-w", "x") == ("two x", 5)
    assert edited(*"abc", "left", "left", "backspace", "x") == ("xbc", 1)
    assert edited(*"abc", "home", "delete", "end", "d") == ("bcd", 3)
    assert edited(*"abc", "left", "ctrl-u") == ("c", 0)
    assert edited(*"abc", "home", "right", "ctrl-k") == ("a", 1)
    assert edited("esc", "ctrl-z", PASTE + "a pasted text") == ("sted text", 9)


@given(st.text(max_size=40), st.integers(4, 30))
def test_the_cursor_is_always_in_the_part_that_is_shown(text: str, width: int) -> None:
    editor = Editor()
    editor.press(text)
    part, column = editor.shown(width)
    assert column <= width
    assert part in text
