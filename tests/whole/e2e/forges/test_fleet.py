"""One prompt over many repositories: a table of outcomes, and the same command goes on where it was."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.whole.e2e.test_continue import CHECK, FIX, bash, finish, repository, script


@pytest.fixture
def listed(cloister: Any) -> Path:
    """A file with two repositories and one that does not exist."""
    first = repository(cloister)
    cloister.git(cloister.cwd, "clone", "-q", str(first), str(cloister.cwd / "second"))
    found = cloister.cwd / "repos.txt"
    found.write_text(f"# ours\n{first}\n\nsecond\nhttps://127.0.0.1:9/none/such\nsecond\n")
    return found


def _results(done: Any) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["repo"].rpartition("/")[2]: one for one in found}


def test_each_repository_has_an_outcome_and_the_same_command_makes_no_run_twice(
    cloister: Any, listed: Path
) -> None:
    model = cloister.script(script(bash(FIX), finish("Add adds.")))
    command = ("fleet", "Fix add", "--repos", str(listed), "--model", model, *CHECK)
    done = cloister(*command, "--parallel", "2", code=1, seconds=300)
    lines = done.stdout.splitlines()
    end = lines[lines.index("") + 1 :]
    assert end[0].split() == ["REPOSITORY", "OUTCOME", "RUN", "PULL", "REQUEST", "OR", "REASON"]
    assert [line.split()[1] for line in end[1:3]] == ["proven", "proven"]
    assert len(end) == 4
    again = _results(cloister(*command, "--json", code=1, seconds=300))
    assert {
        name: (one["made"], one["outcome"]) for name, one in again.items() if one["run"] and name != "such"
    } == {
        "calc": (False, "proven"),
        "second": (False, "proven"),
    }
    assert again["such"]["outcome"] in (None, "failed")
    assert again["such"]["reason"]
    assert len(cloister("ps", "--json").stdout.splitlines()) == 2 + bool(again["such"]["run"])
    server = cloister("serve", "--background", "--json", code=None)
    assert server.returncode == 0
    third = _results(cloister(*command, "--name", "second time", "--json", code=1, seconds=300))
    assert {one["made"] for one in third.values() if one["run"]} == {True}
    # From another machine, which has an address and a token.
    url, token = cloister.json("serve", "--status")["url"], cloister.data_dir / "token"
    other = replace(cloister, data_dir=cloister.cwd / "other")
    reach = ("--server", url, "--token-file", str(token))
    elsewhere = _results(other(*reach, *command, "--name", "second time", "--json", code=1, seconds=300))
    assert {name: one["run"] for name, one in elsewhere.items() if name != "such"} == {
        name: one["run"] for name, one in third.items() if name != "such"
    }


def test_an_interrupted_fleet_goes_on_with_the_same_runs(cloister: Any, listed: Path) -> None:
    listed.write_text("calc\nsecond\n")
    model = cloister.script(script(bash("true", "wait_seconds = 600")))
    slow = ("fleet", "Fix add", "--repos", str(listed), "--model", model, *CHECK, "--parallel", "1")
    with cloister.start(*slow) as process:
        cloister.until(lambda: '"state":"running"' in cloister("ps", "--json").stdout)
        cloister.kill(process.pid)
    (run,) = _runs(cloister)
    with cloister.start(*slow) as process:
        cloister.until(lambda: cloister.kinds(run).count("RunClaimed") == 2)
        cloister("stop", run)
        cloister.until(
            lambda: (
                cloister("ps", "--json").stdout.count('"state":"running"') == 1 and len(_runs(cloister)) == 2
            )
        )
        (second,) = _runs(cloister) - {run}
        cloister("stop", second)
        assert process.wait(60) == 1


def _runs(cloister: Any) -> set[str]:
    return {json.loads(line)["id"] for line in cloister("ps", "--json").stdout.splitlines()}


def test_what_names_no_repository_is_one_sentence(cloister: Any) -> None:
    empty = cloister.cwd / "none.txt"
    empty.write_text("# nothing\n")
    for repos, words in (
        (str(empty), "names no repository"),
        ("github.com/acme/*", "no forge github.com"),
        ("missing.txt", "host/owner/pattern"),
    ):
        done = cloister("fleet", "Fix it", "--repos", repos, "--model", cloister.script(""), code=2)
        assert words in done.stderr
    assert "--repos FILE" in cloister("fleet", "Fix it", code=2).stderr
