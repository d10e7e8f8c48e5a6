"""`cloister policy`, as real processes."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.testing.samples import SampleRepo

Cloister = Callable[..., subprocess.CompletedProcess[str]]

ORGANISATION = """\
delegate = ["connect:*.example.com"]
high_impact = ["push:*"]

[[rule]]
action = "bash:git push*"
effect = "ask"
approver = "admin"

[limits]
steps = 30
"""
REPOSITORY = """\
[[rule]]
action = "connect:api.example.com"
effect = "allow"

[limits]
steps = 20

[[test]]
action = "bash:sh -c 'rm x'"
expect = "allow"
"""


@pytest.fixture
def repo(tmp_path: Path, data_dir: Path) -> SampleRepo:
    """A repository with rules, on a machine with an organisation's."""
    data_dir.mkdir()
    (data_dir / "organisation.toml").write_text(ORGANISATION)
    (data_dir / "config.toml").write_text('policy_file = "organisation.toml"\n')
    made = SampleRepo(tmp_path / "repo")
    made.write(".cloister/policy.toml", REPOSITORY)
    made.commit()
    return made


def test_a_decision_is_explained_with_its_rule_and_line(
    cloister: Cloister, repo: SampleRepo, data_dir: Path
) -> None:
    done = cloister("policy", "explain", "bash:cd x; git -C y push", "--repo", str(repo.path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "ask  bash:cd x; git -C y push\n"
        f"  because: ask tool:bash:git push* ({data_dir}/organisation.toml:5)\n"
        "  may be approved by: admin\n"
        "  runs: cd x\n"
        "  runs: git -C y push\n"
    )


def test_the_rules_of_the_committed_file_count_where_they_were_delegated(
    cloister: Cloister, repo: SampleRepo
) -> None:
    repo.write(".cloister/policy.toml", "what is not committed does not count")
    done = cloister("policy", "explain", "connect:api.example.com", "--json", cwd=repo.path)
    record = json.loads(done.stdout)
    commit = repo.head[:12]
    assert record["effect"] == "allow"
    assert record["rule"] == f"allow connect:api.example.com (.cloister/policy.toml@{commit}:2)"
    done = cloister("policy", "explain", "push:cloister/x", "--untrusted", cwd=repo.path)
    assert done.stdout.startswith("ask  push:cloister/x\n  because: ask push:*")


def test_what_holds_is_shown_with_the_smallest_limits(cloister: Cloister, repo: SampleRepo) -> None:
    done = cloister("policy", "show", "--effective", "--repo", str(repo.path))
    commit = repo.head[:12]
    assert f"  limit     steps 20  (.cloister/policy.toml@{commit}:6)\n" in done.stdout
    assert "steps 30" not in done.stdout
    assert "organisation lets the layers below allow connect:*.example.com" in done.stdout
    layers = [
        json.loads(line)
        for line in cloister("policy", "show", "--json", cwd=repo.path).stdout.split("\n")[:-1]
    ]
    assert [layer["name"] for layer in layers] == ["built-in", "organisation", "repository"]


def test_the_tests_of_a_file_are_run(cloister: Cloister, repo: SampleRepo) -> None:
    done = cloister("policy", "test", cwd=repo.path)
    assert (done.returncode, done.stdout) == (0, "ok    allow  bash:sh -c 'rm x'\n")
    path = repo.write("denies.toml", REPOSITORY + '\n[[rule]]\naction = "bash:rm *"\neffect = "deny"\n')
    done = cloister("policy", "test", str(path), "--json")
    assert done.returncode == 1
    verdict = json.loads(done.stdout)
    assert (verdict["ok"], verdict["effect"], verdict["source"]) == (False, "deny", f"{path}:9")
    assert verdict["rule"] == f"deny tool:bash:rm * ({path}:13)"


def test_a_file_is_checked_and_what_is_wrong_has_a_line(cloister: Cloister, repo: SampleRepo) -> None:
    good = repo.path / ".cloister" / "policy.toml"
    assert cloister("policy", "check", str(good)).stdout == f"{good} is valid: 1 rules, 1 tests.\n"
    bad = repo.write("bad.toml", "[limits]\nsteps = 1\nstep = 2\n")
    done = cloister("policy", "check", str(bad))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"cloister: {bad}:3: there is no key 'step' here.\n"


def test_a_rule_of_the_configuration_file_has_a_line_too(cloister: Cloister, data_dir: Path) -> None:
    data_dir.mkdir()
    config = data_dir / "config.toml"
    config.write_text('port = 1\n\n[[policy]]\neffect = "allow"\naction = "connect:a.test"\n')
    done = cloister("policy", "explain", "connect:a.test")
    assert done.stdout == f"allow  connect:a.test\n  because: allow connect:a.test ({config}:5)\n"


def test_an_action_that_is_none_is_refused(cloister: Cloister) -> None:
    done = cloister("policy", "explain", "fly:moon")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cloister: 'fly:moon': an action is bash:COMMAND")


def test_a_named_set_means_what_it_means_at_the_door(
    cloister: Cloister, repo: SampleRepo, data_dir: Path, tmp_path: Path
) -> None:
    meaning = {"name": "pypi", "hosts": ["mirror.internal:8443"], "found_at": time.time()}
    (data_dir / "sets.json").write_text(json.dumps({"pypi": meaning}))
    rule = '[[rule]]\naction = "connect:@pypi"\neffect = "allow"\n'
    tests = '[[test]]\naction = "connect:mirror.internal:8443"\nexpect = "allow"\n'
    (data_dir / "organisation.toml").write_text(rule)
    done = cloister("policy", "explain", "connect:mirror.internal:8443", "--repo", str(repo.path))
    assert done.stdout.startswith("allow  connect:mirror.internal:8443\n  because: allow connect:@pypi (")
    done = cloister("policy", "explain", "connect:mirror.internal:443", "--repo", str(repo.path))
    assert done.stdout.startswith("deny  ")

    file = tmp_path / "policy.toml"
    file.write_text(rule + tests)
    assert cloister("policy", "test", str(file)).stdout == "ok    allow  connect:mirror.internal:8443\n"
