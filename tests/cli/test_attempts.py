"""Attempts as they are typed and as a run file has them: one table for both, which the server's tests share."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.core.attempts_table import BAD, GOOD, Row

from cloister.app.settings import read_settings
from cloister.cli.request import RunOptions, new_run, read_run_file
from cloister.core.attempts import AttemptWish
from cloister.core.errors import UserError
from cloister.core.requests import Budget, NewRun

ASKED = RunOptions("fix it", "https://host.example/a.git", None, (), None, 1, "auto", None, None, None, ())
NOTHING = ASKED._replace(prompt="", repo="")


def typed(row: Row, root: Path) -> NewRun:
    more = {**row.more, **row.more.get("budget", {})}
    more.pop("budget", None)
    settings = read_settings({}, root)
    return new_run(ASKED._replace(attempts=row.typed, **more), settings).new_run(settings.file.budget)


def written(row: Row, root: Path) -> NewRun:
    fields = {"prompt": ASKED.prompt, "repo": ASKED.repo, "attempts": row.attempts, **row.more}
    file = root / "run.toml"
    file.write_text("".join(f"{name} = {toml(value)}\n" for name, value in fields.items()))
    settings = read_settings({}, root)
    return new_run(NOTHING, settings, read_run_file(file)).new_run(settings.file.budget)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value).items()
        return "{ " + ", ".join(f"{name} = {toml(one)}" for name, one in fields) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in cast("list[Any]", value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize(("row", "wishes"), GOOD)
def test_attempts_mean_the_same_typed_and_written(
    row: Row, wishes: tuple[AttemptWish, ...], tmp_path: Path
) -> None:
    new = typed(row, tmp_path)
    assert new.attempts == wishes
    assert new.budget.steps == Budget().steps * max(1, len(wishes), new.n)
    assert written(row, tmp_path) == new


@pytest.mark.parametrize(("row", "sentence"), BAD)
def test_attempts_are_refused_in_the_same_words_typed_and_written(
    row: Row, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as by_command:
        typed(row, tmp_path)
    assert by_command.value.message == sentence
    with pytest.raises(UserError) as by_file:
        written(row, tmp_path)
    assert by_file.value.message.removeprefix(f"{tmp_path}/run.toml is not a valid run file: ") == sentence


@pytest.mark.parametrize("text", ["quick", "share=1,share=2", ",", "share=1,model=a,model=b"])
def test_malformed_list_of_fields_is_rejected_with_an_example(text: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="Write an attempt as model=M,temperature=T,share=S,harness=H,hint=TEXT"
    ):
        typed(Row((text,), []), tmp_path)


def test_attempt_fields_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    """They can be typed and be written in TOML; JSON has no word for them."""
    for text, name in (("nan", "share"), ("inf", "share"), ("nan", "temperature")):
        with pytest.raises(UserError, match=f"The {name} of an attempt is a number"):
            typed(Row((f"{name}={text}",), []), tmp_path)
        (tmp_path / "run.toml").write_text(
            f"prompt = 'x'\nrepo = 'file:///a'\nattempts = [{{ {name} = {text} }}]"
        )
        with pytest.raises(UserError, match=f"The {name} of an attempt is a number"):
            new_run(NOTHING, read_settings({}, tmp_path), read_run_file(tmp_path / "run.toml"))
