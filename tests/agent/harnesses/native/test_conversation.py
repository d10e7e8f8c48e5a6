"""Model, window and time-outs of a conversation, also when the settings change under a run."""

from pathlib import Path

import anyio
import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.model.provider_server import open_model_server
from tests.model.wires import CHAT, Sent, json_answer

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import NoLedger, Purse
from cloister.agent.harnesses.api import Workplace
from cloister.agent.harnesses.native.conversation import Conversation
from cloister.agent.roles import call_once
from cloister.core.budget import BudgetTree
from cloister.core.events import (
    AnyBody,
    AskAnswered,
    AskRaised,
    AttemptStarted,
    ModelChosen,
    ModelFailed,
    ModelReplied,
    ModelSwitched,
    RunAdmitted,
)
from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.core.requests import Budget, NewRun, Usage
from cloister.model.api import Models, Reply, Request, UserMessage
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.policy.layers import BUILT_IN
from cloister.testing.local import LocalComputer
from cloister.testing.models import SayingModel, SoleModel

pytestmark = pytest.mark.anyio

GONE = "openai:gpt-that-had-a-key-once"


async def no_more(reply: ModelReplied) -> tuple[AnyBody, ...]:
    return ()


def journal(*more: AnyBody) -> MemoryJournal:
    return MemoryJournal(RunAdmitted(NewRun("Fix it.", "repo"), "me"), AttemptStarted(0, "x"), *more)


def mind(log: MemoryJournal, models: Models, root: Path) -> Conversation:
    paying = BudgetedModels(models, Purse(log, Budget(), BudgetTree(), NoLedger(), 1.0)).of(0, Budget())
    place = Workplace(0, log, LocalComputer(root / "computer"), paying, (BUILT_IN,), Budget(), 1.0)
    return Conversation(place, "base")


@pytest.mark.parametrize("how", [ModelChosen(GONE, "me"), ModelSwitched(0, "x", GONE, "It was slow.")])
async def test_run_continues_when_its_model_is_no_longer_in_the_settings(
    tmp_path: Path, how: AnyBody
) -> None:
    script = tmp_path / "m.toml"
    script.write_text('[[reply]]\nsay = "Here I am."\n[[reply]]\nsay = "All is left."\n')
    log = journal(how)
    access = Access(routes=ModelRoutes(code=(f"script:{script}",)))
    with anyio.fail_after(30):
        async with open_models(access, Job("repo")) as models:
            goes_on = mind(log, models, tmp_path)
            reply = await goes_on.ask(1, no_more)
            words = await goes_on.last_words("The time is over.", 5.0)
    assert isinstance(reply, ModelReplied), reply
    assert reply.text == "Here I am."
    assert words == "All is left."
    [failed] = [body for body in log.bodies if isinstance(body, ModelFailed)]
    assert "OPENAI_API_KEY" in failed.message
    assert any(isinstance(body, ModelSwitched) and body.from_model == GONE for body in log.bodies)


async def test_model_named_by_its_server_has_window_and_price_of_its_entry() -> None:
    entry = ModelEntry(window=4_096, input_price=1.0, output_price=2.0)
    async with open_model_server() as server:
        server.say(json_answer(200, {"data": [{"id": "qwen3:4b"}]}), CHAT.reply(Sent(text=("Ok.",))))
        access = Access(
            "ollama", routes=ModelRoutes(url={"ollama": server.url}, entry={"ollama:qwen3:4b": entry})
        )
        async with open_models(access, Job("repo")) as models:
            [name] = models.chain("code")
            assert name == "ollama:default"
            assert models.window(name) == 4_096
            assert models.cost(name, Usage(1_000_000, 1_000_000)) == 3.0


async def test_reply_timeout_starts_after_a_person_has_granted_the_budget() -> None:
    log = journal()
    tree = BudgetTree(ask=True, extend_percent=1_000)
    model = SayingModel((Reply("Yes.", (), Usage(5, 5)),))
    purse = Purse(log, Budget(tokens=50), tree, NoLedger(), 30.0)
    models = BudgetedModels(SoleModel(model), purse)
    answers: list[object] = []

    async def ask() -> None:
        # No second is left for it from the start: all of it passes while the person thinks.
        answers.append(
            await call_once(models.role("plan"), Request("", (UserMessage("How?"),), (), 100), 0.2)
        )
        tasks.cancel_scope.cancel()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not any(isinstance(body, AskRaised) for body in log.bodies):
                await log.changed(len(log.events))
            with anyio.move_on_after(0.5):
                await anyio.sleep_forever()
            while True:  # until the answer cancels this
                raised = [body for body in log.bodies if isinstance(body, AskRaised)]
                known = {body.ask for body in log.bodies if isinstance(body, AskAnswered)}
                for one in raised:
                    if one.ask not in known:
                        await log.append(AskAnswered(one.ask, "allow", "me", "admin"))
                await log.changed(len(log.events))
    assert [type(answer) for answer in answers] == [Reply]
