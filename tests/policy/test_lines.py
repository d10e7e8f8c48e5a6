"""Where in a TOML text a value is written."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.policy.file import Path, lines

TEXT = '''# [not.a.table]
title = "x" # a = 1
list = [ # one
  "a, ]",  'b # c',

  [1, 2], # nested
  { k = "}", "quoted key" = 1 },
]
long = """
[[rule]]
a = "1" \\"""
still
""""
raw = \'\'\'
x = 'y'
\'\'\'\'
dotted.key = 1
'single quoted'."double \\u0041" = 2

[table]
a = 1
  [table.sub]
  when = 1979-05-27 07:32:00Z
[[rule]]
action = "a"
[rule.more]
x = 1
[[rule]]
action = "b"
inline = { deep = { deeper = [ { x = 1 } ] } }
[[rule.child]]
[[rule.child]]
y = [
]
[ spaced . out ]
z = 1
'''


def all_paths(value: object, at: Path = ()) -> set[Path]:
    found: set[Path] = {at} if at else set()
    if isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            found |= all_paths(inner, (*at, str(key)))  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for number, inner in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            found |= all_paths(inner, (*at, number))  # pyright: ignore[reportUnknownArgumentType]
    return found


def test_exactly_the_values_have_a_line() -> None:
    assert set(lines(TEXT)) == all_paths(tomllib.loads(TEXT))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("list",), 3),
        (("list", 0), 4),
        (("list", 1), 4),
        (("list", 2), 6),
        (("list", 2, 1), 6),
        (("list", 3, "quoted key"), 7),
        (("long",), 9),
        (("raw",), 14),
        (("dotted", "key"), 17),
        (("single quoted", "double A"), 18),
        (("table",), 20),
        (("table", "sub", "when"), 23),
        (("rule",), 24),
        (("rule", 0), 24),
        (("rule", 0, "action"), 25),
        (("rule", 0, "more", "x"), 27),
        (("rule", 1), 28),
        (("rule", 1, "action"), 29),
        (("rule", 1, "inline", "deep", "deeper", 0, "x"), 30),
        (("rule", 1, "child", 0), 31),
        (("rule", 1, "child", 1), 32),
        (("rule", 1, "child", 1, "y"), 33),
        (("spaced", "out", "z"), 36),
    ],
)
def test_a_value_has_the_line_where_it_is_written(path: Path, line: int) -> None:
    assert lines(TEXT)[path] == line


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "'c d'",
        '"e\\"]"',
        "=",
        "=",
        " = ",
        ".",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ",",
        "\n",
        "\n",
        "#x",
        "1",
        "true",
        '"s"',
        "'''\n'''",
        '"""\n"""',
        '"#"',
        " ",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_toml_can_be_scanned(text: str) -> None:
    try:
        value = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    assert set(lines(text)) == all_paths(value)


KEYS = st.text("ab", min_size=1, max_size=2)
VALUES = st.recursive(
    st.sampled_from(["1", "true", '"]#\\""', "'}'", '"""\n"\n"""']),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[ # c\n" + ",\n".join(items) + "\n]")
        | st.dictionaries(KEYS, inner, max_size=2).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        )
    ),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.sampled_from(["", "[{}]\n", "[[{}]]\n"]), KEYS, KEYS, VALUES), max_size=5))
def test_tables_and_values_of_any_shape_can_be_scanned(
    parts: list[tuple[str, str, str, str]],
) -> None:
    text = "".join(f"{header.format(table)}{key} = {value}\n" for header, table, key, value in parts)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(lines(text)) == all_paths(found)
