"""Which harness an attempt has: the requested one, else the search where no model is configured."""

from pathlib import Path

import anyio
import pytest
from tests.agent.loop_bench import beginning, numbered

from cloister.agent.context.messages import request
from cloister.app.config import calls_models, harness_for, job_of, model_access
from cloister.app.settings import read_settings
from cloister.core.attempts import AttemptWish, check_attempts, wishes
from cloister.core.errors import UserError
from cloister.core.events import FaultLocalised, Suspect
from cloister.core.requests import NewRun, RunRule, check_new_run
from cloister.model.api import Failure, NoModels, Request, UserMessage
from cloister.policy.layers import BUILT_IN, layer
from cloister.runs.run_rules import check_allowed

REPAIRS = AttemptWish(harness="repair")


def harnesses(tmp_path: Path, new: NewRun, **env: str) -> list[str]:
    access = model_access(read_settings(env, tmp_path))
    return [harness_for(access, new, wish) for wish in wishes(new)]


@pytest.mark.parametrize(
    ("new", "env", "expected"),
    [
        (NewRun("p", "r"), {}, ["repair"]),
        (NewRun("p", "r"), {"ANTHROPIC_API_KEY": "k"}, ["native"]),
        (NewRun("p", "r"), {"CLOISTER_MODEL_URL": "http://127.0.0.1:1/v1"}, ["native"]),
        (NewRun("p", "r"), {"CLOISTER_MODEL": "anthropic"}, ["native"]),  # an error, not a reason to search
        (NewRun("p", "r", model="script:x"), {}, ["native"]),
        (NewRun("p", "r", harness="native"), {}, ["native"]),
        (NewRun("p", "r", harness="repair"), {"ANTHROPIC_API_KEY": "k"}, ["repair"]),
        (
            NewRun("p", "r", attempts=(REPAIRS, AttemptWish())),
            {"ANTHROPIC_API_KEY": "k"},
            ["repair", "native"],
        ),
        (NewRun("p", "r", attempts=(REPAIRS, AttemptWish("script:x"))), {}, ["repair", "native"]),
    ],
)
def test_harness_follows_the_request_and_then_the_models_there_are(
    tmp_path: Path, new: NewRun, env: dict[str, str], expected: list[str]
) -> None:
    assert harnesses(tmp_path, new, **env) == expected
    access = model_access(read_settings(env, tmp_path))
    assert calls_models(access, new) == ("native" in expected)


def test_model_of_the_only_attempt_that_talks_is_the_model_of_the_run() -> None:
    assert job_of(NewRun("p", "r", attempts=(REPAIRS, AttemptWish("script:x")))).model == "script:x"


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (NewRun("p", "r", harness="repair", model="a:b"), "leave the model out"),
        (NewRun("p", "r", attempts=(AttemptWish("a:b", harness="repair"),)), "takes no model"),
        (NewRun("p", "r", harness="repair", attempts=(AttemptWish(hint="x"),)), "takes no model"),
    ],
)
def test_repair_takes_nothing_that_only_a_model_reads(new: NewRun, says: str) -> None:
    assert says in (check_attempts(new) or "")
    assert check_new_run(NewRun("p", "r", seed=-1)) == "A seed is a whole number from 0 to 2147483647."


def test_policy_rules_harnesses_like_models() -> None:
    check_allowed((BUILT_IN,), harnesses=("native", "repair"))
    closed = (BUILT_IN, layer("host", (RunRule("harness:repair", "deny"),), "here", may_widen=True))
    check_allowed(closed, harnesses=("native",))
    with pytest.raises(UserError, match="may not have the harness repair"):
        check_allowed(closed, harnesses=("native", "repair"))


def test_no_models_refuse_every_call() -> None:
    async def call() -> list[object]:
        async with models.role("code").stream(Request("", (), ())) as items:
            return [item async for item in items]

    models = NoModels("This run calls no model.")
    assert models.chain("review") == ()
    assert anyio.run(call) == [Failure("bad_request", "This run calls no model.")]
    with pytest.raises(UserError, match="calls no model"):
        models.named("anthropic")


def test_what_a_search_localised_is_an_observation_for_the_models_of_the_run() -> None:
    found = FaultLocalised(("t",), (Suspect("rates.py", 20, 0.8, "in the traceback"),), "coverage", 1, 0.2)
    asked = request(numbered([*beginning(), found]), 0, ())
    last = asked.messages[-1]
    assert isinstance(last, UserMessage)
    assert "Observation: lines that may hold the fault" in last.text
    assert "- rates.py:20 (0.80) in the traceback" in last.text
