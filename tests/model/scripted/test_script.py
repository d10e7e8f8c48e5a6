"""What can be wrong with a script is said before the run, with the file and the reply."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import UserError
from cloister.model.scripted import SCRIPT_BYTES, load_script


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bad.script.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_script(path)
    assert caught.value.code == "bad_script"
    assert str(path) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[reply]\n", "not valid TOML"),
        ("", "reply"),
        ("reply = []\n", "has no [[reply]]"),
        ("[[replies]]\nsay = 'x'\n", "replies"),
        ("pace_seconds = -1\n[[reply]]\nsay = 'x'\n", "pace_seconds"),
        ("[[reply]]\nsay = 'x'\n[[reply]]\nsey = 'x'\n", "reply 2: Object contains unknown field `sey`"),
        ("[[reply]]\nsay = 3\n", "reply 1: Expected `str | null`, got `int` - at `$.say`"),
        ("[[reply]]\nname = 'idle'\n", 'reply 1 ("idle"): it does nothing'),
        ("[[reply]]\nsay = 'x'\ngoto = 'nowhere'\n", "no reply named 'nowhere'"),
        ("[[reply]]\nsay = 'x'\nbranch = [{ when = '(', goto = 'a' }]\n", "'a'"),
        (
            "[[reply]]\nname = 'a'\nsay = 'x'\nbranch = [{ when = '(', goto = 'a' }]\n",
            "not a regular expression",
        ),
        ("[[reply]]\nsay = 'x'\nexpect = '['\n", "not a regular expression"),
        ("[[reply]]\nname = 'a'\nsay = 'x'\n[[reply]]\nname = 'a'\nsay = 'y'\n", "reply 1 has the same name"),
        ("[[reply]]\nname = 'a'\nsay = ''\ngoto = 'a'\nbranch = [{ goto = 'a' }]\n", "not both"),
        (
            "[[reply]]\nname = 'a'\nsay = ''\nbranch = [{ goto = 'a' }, { when = 'x', goto = 'a' }]\n",
            "can never be taken",
        ),
        ("[[reply]]\ncalls = [{ tol = 'bash' }]\n", 'a call needs tool = "NAME"'),
        ("[[reply]]\ncalls = [{ tool = 7 }]\n", 'a call needs tool = "NAME"'),
        ("[[reply]]\ncalls = [{ tool = 'x', at = [1, { when = 2020-01-01 }] }]\n", "JSON cannot hold"),
        ("[[reply]]\ncalls = [{ tool = 'x', at = nan }]\n", "JSON cannot hold"),
        ("[[reply]]\nsay = 'line {{line}}'\n", "{{line}} is not a group"),
        ("[[reply]]\ncalls = [{ tool = 'x', at = ['{{line:int}}'] }]\n", "{{line:int}} is not a group"),
        ("[[reply]]\nfail = { code = 'tired' }\n", "tired"),
        ("[[reply]]\nfail = { code = 'auth', times = 0 }\n", "at least 1"),
        ("[[reply]]\nsay = ''\nwait_seconds = -1\n", "cannot be negative"),
    ],
)
def test_a_script_that_cannot_be_right_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path, Path("/dev/zero")):
        with pytest.raises(UserError, match="There is no script") as caught:
            load_script(path)
        assert caught.value.code == "bad_script"


def test_a_script_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        load_script(path)


def test_a_script_of_absurd_size_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(SCRIPT_BYTES + 1)
    with pytest.raises(UserError, match="the limit is"):
        load_script(path)


@given(st.text(max_size=200))
def test_whatever_the_text_a_script_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("script") / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        load_script(path)
    except UserError as error:
        assert error.code == "bad_script"


def test_templates_with_spaces_in_their_braces_are_not_placeholders(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[[reply]]\nsay = 'Hello {{ user }}'\n", encoding="utf-8")
    assert load_script(path).replies[0].entry.say == "Hello {{ user }}"
