from pathlib import Path

import pytest
from tests.core.system.own_process import own_process

from cloister.app.settings import read_settings
from cloister.cli.request import RunOptions, new_run, read_run_file, repository
from cloister.core.attempts import AttemptWish
from cloister.core.errors import UserError
from cloister.core.requests import Budget, RunRule

ASKED = RunOptions("fix it", ".", None, (), None, 1, "auto", None, None, None, ())


@pytest.mark.parametrize(
    "url",
    ["https://host.example/a.git", "ssh://git@host.example/a", "git@host.example:a/b.git", "file:///srv/a"],
)
def test_a_url_is_left_as_it_is(url: str) -> None:
    assert repository(url) == url


RELATIVE = """
import pathlib, sys
from cloister.cli.request import RunOptions, new_run
from cloister.app.settings import read_settings
asked = RunOptions("fix it", ".", None, (), "script:../replies.toml", 1, "auto", None, None, None, ())
new = new_run(asked, read_settings({}, pathlib.Path(sys.argv[1])))
print(new.repo, new.model)
"""


def test_relative_names_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "replies.toml").write_text("")
    told = own_process(RELATIVE, str(tmp_path), cwd=tmp_path / "repo")
    assert told.stdout == f"{tmp_path}/repo script:{tmp_path}/replies.toml\n", told.stderr


def test_a_name_with_a_colon_is_a_path_when_there_is_no_user_before_it(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert repository(f"{tmp_path}/a:b") == f"{tmp_path}/a:b"


def test_the_budget_is_the_configured_one_except_where_said(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[budget]\nsteps = 7\ntokens = 900\n")
    settings = read_settings({}, tmp_path)
    new = new_run(ASKED._replace(steps=3), settings).new_run(settings.file.budget)
    assert new.budget == Budget(steps=3, tokens=900)


def test_the_issue_is_that_of_the_option_or_the_file_and_has_a_number(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("issue = 7\n")
    settings, file = read_settings({}, tmp_path), read_run_file(tmp_path / "run.toml")
    asked = ASKED._replace(repo="https://git.example.org/team/shop")
    assert [new_run(asked._replace(issue=n), settings, file).issue for n in (None, 4)] == [7, 4]
    with pytest.raises(UserError, match="by its number"):
        new_run(asked._replace(issue=-1), settings, file)


RUN = """
prompt = "fix the failing test"
repo = "../repo"
checks = ["make test"]
exclude_tests = ["test_fetch*"]
first_green = true
attempts = [{ model = "script:one.toml" }, { temperature = 0.5, share = 2, hint = "Look twice." }]
rules = [{ effect = "deny", action = "bash:git push*" }]

[budget]
steps = 30
"""
NOTHING = RunOptions("", "", None, (), None, 1, "auto", None, None, None, ())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.toml").write_text("")
    file = tmp_path / "runs" / "run.toml"
    file.write_text(RUN)
    return file


def test_a_run_file_is_a_whole_request_and_its_paths_start_where_it_is(written: Path) -> None:
    settings = read_settings({}, written.parent)
    new = new_run(NOTHING, settings, read_run_file(written))
    root = written.parents[1]
    assert (new.prompt, new.repo, new.checks) == ("fix the failing test", f"{root}/repo", ("make test",))
    assert new.exclude_tests == ("test_fetch*",)
    assert new.attempts == (
        AttemptWish(model=f"script:{root}/runs/one.toml"),
        AttemptWish(temperature=0.5, share=2, hint="Look twice."),
    )
    assert (new.first_green, new.rules) == (True, (RunRule("bash:git push*", "deny"),))
    whole = new.new_run(settings.file.budget).budget
    assert whole == Budget(steps=30, tokens=2 * Budget().tokens), "the configured budget is for one attempt"


def test_what_is_typed_counts_before_the_run_file(written: Path) -> None:
    typed = NOTHING._replace(prompt="do it", checks=("true",), steps=5, attempts=("share=1", "hint=x"))
    new = new_run(typed, read_settings({}, written.parent), read_run_file(written))
    assert (new.prompt, new.checks, new.budget.steps) == ("do it", ("true",), 5)
    assert new.attempts == (AttemptWish(), AttemptWish(hint="x"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt = ", "not valid TOML"),
        ("promt = 'x'", "promt"),
        ("attempts = [{ modell = 'x' }]", "unknown field 'modell'; did you mean 'model'"),
        ("home = '/'", "home"),
        ("forked_from = { run = 'r-1', seq = 3 }", "forked_from"),
    ],
)
def test_a_run_file_that_is_not_understood_is_refused_by_what_is_wrong(
    written: Path, text: str, said: str
) -> None:
    written.write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        read_run_file(written)
    assert refused.value.code == "bad_run_file"


def test_without_a_prompt_or_a_repository_nothing_is_asked_for(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read_settings({}, written.parent)
    monkeypatch.chdir(written.parent)
    with pytest.raises(UserError, match="--repo"):
        new_run(NOTHING._replace(prompt="x"), settings)
    with pytest.raises(UserError, match="prompt is empty"):
        new_run(NOTHING._replace(repo=str(written.parent)), settings)
    with pytest.raises(UserError, match="cannot be read"):
        read_run_file(written.with_name("none.toml"))
