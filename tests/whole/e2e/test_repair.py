"""Runs without a model: the repair harness, from the command line, through a server and beside a model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.whole.e2e.setup.ordinary import NPM, SINGLE, Sample, clean, project, registry

from cloister.core.events.repair import PLAUSIBLE

ROOT = Path(__file__).parents[3]
PROMPT = "The test suite of this repository fails. Find the cause and fix it."
TYPESCRIPT, GO = (next(one for one in SINGLE if one.name == name) for name in ("vitest", "go"))
GIVES_UP = """
[[reply]]
calls = [{ tool = "bash", command = "true" }]
[[reply]]
say = "I do not know."
[[reply]]
say = "I do not know."
[[reply]]
say = "I do not know."
"""


@pytest.fixture
def depot(cloister: Any) -> Path:
    """The sample of the demo, as a fresh git repository."""
    at = cloister.cwd / "depot"
    shutil.copytree(ROOT / "examples" / "depot", at, ignore=shutil.ignore_patterns("__pycache__"))
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return at


def _result(cloister: Any) -> tuple[Any, ...]:
    bodies = [event["body"] for event in cloister.events()]
    (change,) = [body for body in bodies if body["type"] == "ChangeMade"]
    return bodies[-1]["outcome"], change["summary"].split("\n")[0], change["files"]


def test_plain_prompt_without_a_model_repairs_the_sample_and_calls_it_plausible(
    cloister: Any, depot: Path
) -> None:
    done = cloister("run", PROMPT, "--repo", str(depot), seconds=300)
    said = " ".join(done.stdout.split())
    assert "no model is configured: the repair harness searches by rules and tests" in said
    assert "It cannot write new behaviour or follow instructions." in said
    assert f"repair: {PLAUSIBLE}" in said
    kinds = cloister.kinds()
    for kind in ("FaultLocalised", "CandidatesTried", "PatchFound", "PatchChosen", "ProofTaken"):
        assert kind in kinds
    assert not {"ModelReplied", "ModelSpent", "ModelFailed", "Advised"} & set(kinds)
    assert "+        if grams <= limit:" in cloister("diff", "last").stdout
    branch = cloister.git(depot, "branch", "--list", "cloister/*", "--format=%(refname:short)")
    message = cloister.git(depot, "log", "-1", "--format=%B", branch)
    chosen = next(e["body"] for e in cloister.events() if e["body"]["type"] == "PatchChosen")
    assert f"({chosen['rule']})" in message.splitlines()[0]
    assert PLAUSIBLE in message.lower()
    # The same search through a server that is killed in the middle, and resumed.
    straight = _result(cloister)
    cloister("serve", "--background", "--port", "0")
    cloister("run", PROMPT, "--repo", str(depot), "--harness", "repair", "--detach")
    cloister.until(lambda: "FaultLocalised" in cloister.kinds())
    cloister.kill_server()
    assert "RunFinished" not in cloister.kinds()
    cloister("serve", "--background", "--port", "0")
    watched = cloister("watch", "last", seconds=300)
    assert "✓ proven" in watched.stdout
    assert _result(cloister) == straight
    assert cloister.kinds().count("FaultLocalised") == 1
    assert "RunResumed" in cloister.kinds()


def test_repair_beside_a_model_is_ranked_by_the_same_evidence(cloister: Any, depot: Path) -> None:
    script = cloister.script(GIVES_UP)
    attempts = ("--attempt", "harness=repair", "--attempt", f"model={script}")
    done = cloister("run", PROMPT, "--repo", str(depot), *attempts, "--json", seconds=300)
    bodies = [json.loads(line)["body"] for line in done.stdout.splitlines()]
    started = {body["attempt"]: body for body in bodies if body["type"] == "AttemptStarted"}
    assert (started[0]["harness"], started[0]["model"]) == ("repair", "")
    assert started[1].get("harness", "native") == "native"
    assert (bodies[-1]["outcome"], bodies[-1]["attempt"]) == ("proven", 0)
    assert {body["attempt"] for body in bodies if body["type"] == "ModelReplied"} == {1}


def test_rule_against_the_harness_refuses_the_run_before_it_begins(cloister: Any, depot: Path) -> None:
    refused = cloister("run", PROMPT, "--repo", str(depot), "--rule", "deny harness:repair", code=2)
    assert "A run may not have the harness repair" in refused.stderr


LANGUAGES = [
    pytest.param(NPM, "npm", id="JavaScript"),
    pytest.param(TYPESCRIPT, "ordinary-vitest", id="TypeScript", marks=pytest.mark.long(only=True)),
    pytest.param(GO, "ordinary-go", id="Go", marks=pytest.mark.long(only=True)),
]


@pytest.mark.parametrize(("sample", "name"), LANGUAGES)
def test_other_languages_are_repaired_and_proven_in_a_sandbox(
    cloister: Any, sample: Sample, name: str
) -> None:
    for needed in sample.registries:
        registry(needed)
    repo = project(name, **sample.broken)
    cloister("run", PROMPT, "--repo", str(repo), "--harness", "repair", seconds=900)
    clean(repo)
    outcome, _, files = _result(cloister)
    assert outcome == "proven"
    assert sample.file in json.dumps(files)
    (localised,) = [e["body"] for e in cloister.events() if e["body"]["type"] == "FaultLocalised"]
    assert sample.file in {one["path"] for one in localised["suspects"]}
    assert ("coverage" in localised["how"]) == (sample is not TYPESCRIPT)
