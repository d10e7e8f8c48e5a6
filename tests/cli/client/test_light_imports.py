"""What a command does not import: each of these would cost it more time than its own work."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.seeds import seed

from cloister.cli.lazy import COMMANDS
from cloister.cli.quick import GROUPS
from cloister.core.events import BaseFixed, ChangeMade, PromptReceived, RunFinished
from cloister.forge.host import bare_repository
from cloister.log.sqlite.reader import LogReader
from cloister.testing.samples import SampleRepo

HEAVY = (
    "anthropic",
    "cloister.app.wiring",
    "cloister.runs.driver",
    "cloister.sandbox.container",
    "cloister.server",
    "cryptography",
    "google",
    "h11",
    "httpx",
    "httpx2",
    "openai",
    "opentelemetry",
    "pydantic",
    "pydantic_ai",
    "rich",
    "starlette",
    "uvicorn",
)
LOOP = ("anyio._backends", "asyncio")
"""Only commands that wait for something need an event loop: its start-up takes a third of a quick command."""
TYPER = (*LOOP, "typer", "msgspec", "subprocess", "cloister.core.events", "cloister.app.settings")
LOOK = """
import json, sys
from cloister.cli import main

sys.argv = ["cloister", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
CASES = {
    "--help": (*TYPER, "sqlite3"),
    "--version": (*LOOP, "sqlite3", "cloister.cli.commands.run"),
    "ps": LOOP,
    "log DONE": LOOP,
    "diff DONE": (*LOOP, "cloister.feedback", "cloister.policy", "cloister.agent.tools"),
    "say GOING Hello.": (*LOOP, "cloister.forge", "cloister.agent"),
    "policy explain bash:ls": (*LOOP, "cloister.model.names", "cloister.model.scripted"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A data directory with a finished run that has a change, and one that goes on."""
    data_dir = tmp_path_factory.mktemp("data")
    repo = SampleRepo(data_dir / "repo")
    base, _ = repo.commit("base"), repo.write("new.py", "x = 1\n")
    fixed = repo.commit("fix")
    made = [
        BaseFixed(base, "main"),
        ChangeMade("cloister/fix", fixed, (), "Fix."),
        RunFinished("proven", "Fix."),
    ]
    done, going = seed(data_dir, more=made), seed(data_dir)
    repo.git("clone", "--quiet", "--bare", str(repo.path), str(bare_repository(data_dir, done)))
    return data_dir, {"DONE": done, "GOING": going}


def _ran(data_dir: Path, *args: str, **env: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it has imported at its end."""
    argv = [sys.executable, "-c", LOOK, *args]
    kept = os.environ | {"CLOISTER_DATA_DIR": str(data_dir)} | env
    done = subprocess.run(argv, capture_output=True, text=True, cwd=data_dir, env=kept, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


def _unwanted(found: set[str], more: Sequence[str]) -> set[str]:
    return {n for n in found if any(n == heavy or n.startswith(f"{heavy}.") for heavy in (*HEAVY, *more))}


@pytest.mark.parametrize("line", CASES)
def test_command_imports_no_module_that_it_does_not_need(
    line: str, runs: tuple[Path, dict[str, str]]
) -> None:
    data_dir, names = runs
    said, found = _ran(data_dir, *(names.get(word, word) for word in line.split()))
    assert said
    if line.startswith("say"):  # the head of the audit is signed with each write
        found = {name for name in found if not name.startswith("cryptography")}
    assert _unwanted(found, CASES[line]) == set()


def test_diff_and_say_without_an_event_loop_do_the_whole_work(runs: tuple[Path, dict[str, str]]) -> None:
    data_dir, names = runs
    assert "+x = 1" in _ran(data_dir, "diff", names["DONE"])[0]
    assert f"Sent to {names['GOING']}" in _ran(data_dir, "say", names["GOING"], "Hello again.")[0]
    with LogReader(data_dir / "cloister.db") as log:
        body = log.events(names["GOING"])[-1].body  # pyright: ignore[reportArgumentType]
    assert isinstance(body, PromptReceived) and body.text == "Hello again."
    verified = subprocess.run(
        [sys.executable, "-m", "cloister", "--data-dir", str(data_dir), "audit", "verify"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize(
    ("shell", "asked", "answer"),
    [
        ("bash", {"COMP_WORDS": "cloister\ndi", "COMP_CWORD": "1"}, "diff\n"),
        ("bash", {"COMP_WORDS": "cloister\ndiff\n", "COMP_CWORD": "2"}, "last\nGOING\nDONE\n"),
        ("bash", {"COMP_WORDS": "cloister\ndiff\nla", "COMP_CWORD": "2"}, "last\n"),
        (
            "zsh",
            {"_TYPER_COMPLETE_ARGS": "cloister env"},
            """_arguments '*: :(("env":"a repository''s environment"))'""",
        ),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "cloister diff x"}, "_files"),
        ("fish", {"_TYPER_COMPLETE_ARGS": "cloister in", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}, ""),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "cloister ini", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "init\twrite .cloister/config.toml\n",
        ),
    ],
)
def test_names_of_commands_and_runs_are_completed_without_typer(
    shell: str, asked: dict[str, str], answer: str, runs: tuple[Path, dict[str, str]]
) -> None:
    data_dir, names = runs
    for word, name in names.items():
        answer = answer.replace(word, name)
    said, found = _ran(data_dir, _CLOISTER_COMPLETE=f"complete_{shell}", **asked)
    assert said == answer
    assert _unwanted(found, TYPER) == set()


@pytest.mark.parametrize("words", ["ps\n--st", "sandbox\nru", "--data-dir\nx"])
def test_options_and_groups_are_completed_by_typer(words: str, runs: tuple[Path, dict[str, str]]) -> None:
    asked = {"COMP_WORDS": f"cloister\n{words}", "COMP_CWORD": str(words.count("\n") + 1)}
    _, found = _ran(runs[0], _CLOISTER_COMPLETE="complete_bash", **asked)
    assert "typer" in found


@pytest.mark.parametrize("module", ["runs.attempts.work", "app.verbs.local_policy", "app.verbs.local_runs"])
def test_what_a_quick_command_does_on_a_run_imports_none_either(module: str) -> None:
    code = f"import cloister.{module}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(json.loads(done.stdout))
    assert {name for name in found if name.partition(".")[0] in HEAVY or name in HEAVY} == set()


def test_every_command_can_be_loaded_and_has_words(tmp_path: Path) -> None:
    assert "cloister.cli.commands.operate.audit" in _ran(tmp_path, "audit", "--help")[1]
    assert set(COMMANDS) == {name for group in GROUPS.values() for name in group}


def test_a_run_begins_without_modules_that_only_later_steps_need() -> None:
    code = (
        "import cloister.app.wiring, cloister.runs.driver, json, sys; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    later = ("httpx2", "pydantic_ai", "anthropic", "openai", "cloister.server", "cloister.feedback.diagnose")
    assert {name for name in json.loads(done.stdout) if name in later} == set()
