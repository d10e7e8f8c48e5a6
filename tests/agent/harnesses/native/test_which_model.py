"""Stand-in models take over the conversation of a failing model."""

from pathlib import Path

import anyio
import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.model.provider_server import Answer, open_model_server
from tests.model.wires import JSON, WIRES, Sent

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import NoLedger, Purse
from cloister.agent.context.messages import request
from cloister.agent.harnesses.native.conversation import Step, ask_model
from cloister.agent.progress import InCharge
from cloister.core.budget import BudgetTree
from cloister.core.events import (
    AnyBody,
    AttemptStarted,
    ModelChosen,
    ModelFailed,
    ModelReplied,
    ModelSwitched,
    RunAdmitted,
)
from cloister.core.model_config import ModelRoutes
from cloister.core.requests import Budget, NewRun, Usage
from cloister.model.api import Failure, Models
from cloister.model.names import Access
from cloister.model.roles import Job, open_models

pytestmark = pytest.mark.anyio


def script(tmp_path: Path, name: str, body: str) -> str:
    path = tmp_path / f"{name}.toml"
    path.write_text(f"[[reply]]\n{body}\n", encoding="utf-8")
    return f"script:{path}"


def replies(tmp_path: Path, name: str) -> str:
    return script(tmp_path, name, f'say = "I am {name}."\n[[reply]]\nsay = "Still {name}."')


def fails(tmp_path: Path, name: str, code: str, times: int = 9) -> str:
    return script(tmp_path, name, f'fail = {{ code = "{code}", times = {times} }}\nsay = "I am {name}."')


def journal(*more: AnyBody) -> MemoryJournal:
    found = MemoryJournal()
    found.add(RunAdmitted(NewRun("Fix it.", "repo"), "me"), AttemptStarted(0, "x"), *more)
    return found


async def step(models: Models, log: MemoryJournal) -> ModelReplied | Failure:
    purse = Purse(log, Budget(), BudgetTree(), NoLedger(), 1.0)
    asking = request(log.events, 0, ())
    names = InCharge(0).ring(log.events, models.chain("code"))
    return await ask_model(BudgetedModels(models, purse), log, Step(0, 1, names, asking, len(log.events)))


async def asked(chain: tuple[str, ...], log: MemoryJournal, access: Access | None = None) -> list[AnyBody]:
    """The events of one step."""
    before = len(log.bodies)
    access = access or Access(routes=ModelRoutes(code=chain))
    with anyio.fail_after(30):
        async with open_models(access, Job("repo")) as models:
            await step(models, log)
    return list(log.bodies[before:])


async def test_next_model_gets_the_same_request_at_once_and_stays_in_charge(tmp_path: Path) -> None:
    one, two = fails(tmp_path, "one", "overloaded"), replies(tmp_path, "two")
    log = journal()
    failed, switched, replied = await asked((one, two), log)
    assert isinstance(failed, ModelFailed) and (failed.model, failed.retry_seconds) == (one, 0.0)
    assert isinstance(switched, ModelSwitched) and (switched.from_model, switched.to_model) == (one, two)
    assert isinstance(replied, ModelReplied) and (replied.model, replied.text) == (two, "I am two.")
    [again] = await asked((one, two), log)
    assert isinstance(again, ModelReplied) and again.model == two, "the first is not asked again each time"


async def test_temporary_failure_is_retried_after_all_others_failed(tmp_path: Path) -> None:
    one, two = fails(tmp_path, "one", "overloaded", times=1), fails(tmp_path, "two", "auth")
    bodies = await asked((one, two), journal())
    assert [type(body) for body in bodies] == [
        ModelFailed,
        ModelSwitched,
        ModelFailed,
        ModelSwitched,
        ModelReplied,
    ]
    assert isinstance(bodies[2], ModelFailed) and bodies[2].retry_seconds == 1.0
    assert isinstance(bodies[4], ModelReplied) and bodies[4].model == one


@pytest.mark.parametrize("code", ["refused", "context_too_long"])
async def test_error_in_the_conversation_does_not_switch_the_model(tmp_path: Path, code: str) -> None:
    one, two = fails(tmp_path, "one", code), replies(tmp_path, "two")
    [failed] = await asked((one, two), journal())
    assert isinstance(failed, ModelFailed) and (failed.code, failed.retry_seconds) == (code, None)


async def test_permanent_failure_of_all_models_ends_the_attempt(tmp_path: Path) -> None:
    one, two = fails(tmp_path, "one", "quota"), fails(tmp_path, "two", "auth")
    bodies = await asked((one, two), journal())
    assert [type(body) for body in bodies] == [ModelFailed, ModelSwitched, ModelFailed]
    assert isinstance(bodies[2], ModelFailed) and bodies[2].retry_seconds is None


async def test_person_switches_the_model(tmp_path: Path) -> None:
    one, two = replies(tmp_path, "one"), replies(tmp_path, "two")
    [replied] = await asked((one,), journal(ModelChosen(two, "ann")))
    assert isinstance(replied, ModelReplied) and replied.model == two


async def test_unknown_model_does_not_end_the_run(tmp_path: Path) -> None:
    one = replies(tmp_path, "one")
    bodies = await asked((one,), journal(ModelChosen("unheard-of", "ann")))
    assert [type(body) for body in bodies] == [ModelFailed, ModelSwitched, ModelReplied]


async def test_next_model_does_not_get_the_opaque_data_of_another(tmp_path: Path) -> None:
    earlier = ModelReplied(
        0, 1, "anthropic:a", "I looked at split.py.", (), Usage(), 0.1, opaque="of another"
    )
    async with open_model_server() as server:
        server.say(
            Answer(200, JSON, (b'{"data": [{"id": "qwen"}]}',)),
            WIRES["compatible"].reply(Sent(text=("Go on.",))),
        )
        access = Access("compatible", url=server.url)
        [replied] = await asked((), journal(earlier), access)
    assert isinstance(replied, ModelReplied)
    body = server.asked[1].body.decode()
    assert "I looked at split.py." in body
    assert "of another" not in body


async def test_a_failure_of_the_only_model_is_returned(tmp_path: Path) -> None:
    access = Access(routes=ModelRoutes(code=fails(tmp_path, "one", "auth")))
    async with open_models(access, Job("repo")) as models:
        assert isinstance(await step(models, journal()), Failure)
