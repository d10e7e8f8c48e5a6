from hypothesis import given
from hypothesis import strategies as st

from cloister.runs.event_text.facts import LINE_CHARS, Excerpt, excerpt


def test_a_short_text_is_shown_whole() -> None:
    assert excerpt("one\ntwo\n") == ["one", "two"]
    assert excerpt("no newline") == ["no newline"]
    assert excerpt("") == []


def test_hidden_lines_that_all_fit_into_the_tail_need_no_note() -> None:
    assert excerpt("".join(f"{n}\n" for n in range(9))) == [str(n) for n in range(9)]


def test_one_hidden_line_is_counted_as_one() -> None:
    assert excerpt("".join(f"{n}\n" for n in range(10)))[6:] == ["… 1 more line …", "7", "8", "9"]


def test_an_endless_line_takes_no_memory() -> None:
    part = Excerpt()
    for _ in range(100):
        assert part.feed("x" * 10_000) == []
    assert part.end() == ["x" * LINE_CHARS]


@given(st.lists(st.text(alphabet="ab\n", max_size=30), max_size=20))
def test_how_a_text_was_cut_into_parts_makes_no_difference(parts: list[str]) -> None:
    streamed = Excerpt()
    shown = [line for part in parts for line in streamed.feed(part)] + streamed.end()
    assert shown == excerpt("".join(parts))
