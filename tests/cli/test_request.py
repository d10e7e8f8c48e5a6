from pathlib import Path

import pytest

from cloister.cli.request import Asked, new_run, repository
from cloister.core.records import Budget
from cloister.settings import read_settings

ASKED = Asked("fix it", ".", None, (), None, 1, "auto", None, None, None, ())


@pytest.mark.parametrize(
    "url",
    ["https://host.example/a.git", "ssh://git@host.example/a", "git@host.example:a/b.git", "file:///srv/a"],
)
def test_a_url_is_left_as_it_is(url: str) -> None:
    assert repository(url) == url


def test_relative_names_are_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "replies.toml").write_text("")
    monkeypatch.chdir(tmp_path / "repo")
    new = new_run(ASKED._replace(model="script:../replies.toml"), read_settings({}, tmp_path))
    assert (new.repo, new.model) == (f"{tmp_path}/repo", f"script:{tmp_path}/replies.toml")


def test_a_name_with_a_colon_is_a_path_when_there_is_no_user_before_it(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert repository(f"{tmp_path}/a:b") == f"{tmp_path}/a:b"


def test_the_budget_is_the_configured_one_except_where_said(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[budget]\nsteps = 7\ntokens = 900\n")
    new = new_run(ASKED._replace(steps=3), read_settings({}, tmp_path))
    assert new.budget == Budget(steps=3, tokens=900)
