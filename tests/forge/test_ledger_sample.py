"""The sample that ships has the bug it is said to have, and the script that repairs it fits it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.model.scripted import load_script

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    return shutil.copytree(EXAMPLES / "ledger", tmp_path / "ledger", ignore=ignored)


def _failing(ledger: Path) -> set[str]:
    argv = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider"]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=ledger, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    return {line.split("::")[1].split(" ")[0] for line in lines}


def test_the_scripts_edits_take_the_sample_from_five_red_tests_over_two_to_none(ledger: Path) -> None:
    red = [_failing(ledger)]
    for reply in load_script(EXAMPLES / "ledger.script.toml").replies:
        edits = [call.arguments for call in reply.calls if call.tool == "edit"]
        for edit in edits:
            path = ledger / str(edit["path"])
            text = path.read_text()
            assert text.count(str(edit["old"])) == 1
            path.write_text(text.replace(str(edit["old"]), str(edit["new"])))
        if edits:
            red.append(_failing(ledger))
    leftover = "test_leftover_cents_go_to_those_whose_exact_share_lost_most"
    assert [len(names) for names in red] == [5, 2, 0]
    assert red[1] == {leftover, "test_after_a_trip_every_cent_is_settled"} < red[0]


def test_the_readmes_statement_is_what_the_program_prints(ledger: Path) -> None:
    argv = [sys.executable, "-m", "ledger", "trip.csv"]
    env = {"PYTHONPATH": str(ledger / "src")}
    done = subprocess.run(argv, cwd=ledger, env=env, capture_output=True, text=True, check=True)
    assert done.stdout in (ledger / "README.md").read_text()
