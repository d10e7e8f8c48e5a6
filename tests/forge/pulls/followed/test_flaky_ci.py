"""Failures of CI that the change did not cause: told apart where the forge's API shows them, and no round is spent on them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.forge.pulls.conftest import place_of
from tests.forge.pulls.wires import Forge

from cloister.core import events as e
from cloister.core.ids import RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.forge import Forges
from cloister.forge.pulls.marks import Marks, looks_marked
from cloister.log.sqlite.backbone import open_backbone
from cloister.runs.follow_up import CI_ROUNDS, Follower

pytestmark = pytest.mark.anyio
with_logs = pytest.mark.parametrize("forge", ["github", "gitlab", "gitea"], indirect=True)
without_logs = pytest.mark.parametrize("forge", ["bitbucket", "pagure", "gitea"], indirect=True)


def failing(*names: str) -> str:
    """The end of pytest's output."""
    blocks = [
        f"{f' {name} ':_^80}\n\n>       assert 3 == 4\nE       assert 3 == 4\n\ntests/test_cart.py:4: AssertionError\n"
        for name in names
    ]
    lines = [f"FAILED tests/test_cart.py::{name} - AssertionError: assert 3 == 4\n" for name in names]
    blocks = [f"{' FAILURES ':=^80}\n", *blocks, f"{' short test summary info ':=^80}\n", *lines]
    return "".join((*blocks, f"{len(names)} failed, 2 passed in 0.1s\n"))


TOTAL = failing("test_total")
Look = Callable[..., Awaitable[list[str]]]


@pytest.fixture
async def look(forge: Forge, tmp_path: Path) -> AsyncIterator[Look]:
    """Look once at the pull request of a finished run; return what CI says to the run."""
    forge.open("fix", "main", "Fix", "")
    where, prompts = f"{forge.url}/team/shop", list[e.PromptReceived]()
    async with open_backbone(tmp_path / "log.db", owner_lives=lambda _: True) as backbone:
        run, _ = await backbone.admit(NewRun("Fix it", where), "ann")
        fence = await backbone.claim(new_owner_id(), run)
        assert fence is not None
        sent = e.ChangeDelivered(where, "fix", url=f"{where}/1", number=1)
        made = e.ChangeMade("fix", forge.commit("fix"), (), "Fixed.")
        await backbone.append(fence, (made, sent, e.RunFinished("proven", "Fixed.", 0)))

        async def tell(_: RunId, prompt: e.PromptReceived) -> None:
            prompts.append(prompt)

        async def bare(_: RunId) -> Path:
            return tmp_path

        async def looked(earlier: int = 0) -> list[str]:
            async def read(one: RunId) -> tuple[e.Event, ...]:
                events = await backbone.read(one)
                before = [e.PromptReceived("again", "ci", "ci", f"ci {number}") for number in range(earlier)]
                added = [replace(events[-1], body=body) for body in before]
                return (*events[:-1], *added, events[-1])

            forges = Forges(places=(place_of(forge),))
            marks, ended = Marks(b"k" * 32), tmp_path / "ended"
            follower = Follower(forges, backbone, read, tell, bare, "ann", marks, ended, 0)
            assert await follower.look() == set()
            return [one.text for one in prompts]

        yield looked


def _comments(forge: Forge) -> list[str]:
    return [text for _, _, text, _, _ in forge.comments]


def _shown(forge: Forge) -> str:
    """The name of the job `tests`, which has a log: at Gitea with the name of its workflow."""
    forge.workflow = "ci"
    return "ci / tests" if forge.kind == "gitea" else "tests"


@with_logs
async def test_a_job_that_fails_alike_on_the_base_costs_no_round_and_is_said_once(
    forge: Forge, look: Look
) -> None:
    name = _shown(forge)
    forge.jobs, forge.log = [("lint", "passed"), ("tests", "failed")], TOTAL
    forge.base_jobs, forge.base_log = [("tests", "failed")], failing("test_tax", "test_total")
    assert await look() == []
    (said,) = _comments(forge)
    assert looks_marked(said)
    assert f"In the same way on the newest commit of the base branch fail: `{name}`" in said
    assert await look() == []
    assert len(forge.comments) == 1


@with_logs
async def test_a_job_that_fails_otherwise_on_the_base_is_work_for_the_run(forge: Forge, look: Look) -> None:
    _shown(forge)
    forge.jobs, forge.log = [("tests", "failed")], TOTAL
    forge.base_jobs, forge.base_log = [("tests", "failed")], failing("test_tax")
    (text,) = await look()
    assert "test_total" in text
    assert "base branch" not in text
    assert forge.comments == []


@with_logs
async def test_a_failure_without_names_in_its_logs_is_not_excused(forge: Forge, look: Look) -> None:
    _shown(forge)
    forge.jobs = forge.base_jobs = [("tests", "failed")]
    forge.log = forge.base_log = "the machine went away\n"
    assert len(await look()) == 1


@without_logs
async def test_a_job_without_a_log_that_fails_on_the_base_too_costs_no_round_and_is_said_once(
    forge: Forge, look: Look
) -> None:
    name = "Pipeline" if forge.kind == "bitbucket" else "tests"
    forge.jobs = [("lint", "passed"), (name, "failed")]
    forge.base_jobs = [("lint", "failed"), (name, "failed")]
    for _ in range(2):
        assert await look() == []
    (said,) = _comments(forge)
    assert f"without a log that would tell why: `{name}`." in said
    assert "costs no round" in said


@without_logs
async def test_a_job_without_a_log_that_passes_on_the_base_is_work_for_the_run(
    forge: Forge, look: Look
) -> None:
    forge.jobs = [("lint", "failed"), ("tests", "failed")]
    forge.base_jobs = [("lint", "failed"), ("tests", "passed")]
    (text,) = await look()
    assert text.startswith("The CI job tests failed")
    assert "without a log that would tell why: `lint`." in text


async def test_a_job_that_passed_when_run_again_is_not_work_and_is_named_in_the_summary(
    forge: Forge, look: Look
) -> None:
    forge.jobs, forge.log = [("slow", "passed"), ("tests", "failed")], TOTAL
    forge.earlier = [("slow", "failed"), ("tests", "failed")]
    if forge.kind == "bitbucket":  # a status keeps its last state only, unless each run has one of its own
        forge.jobs[0], forge.earlier[0] = ("Pipeline", "passed"), ("Pipeline", "failed")
    assert await look(CI_ROUNDS) == []
    (said,) = _comments(forge)
    assert "after 2 automatic rounds: `tests`." in said
    assert f"passed when run again on the same commit: `{forge.jobs[0][0]}`" in said
    (text,) = await look()
    assert text.startswith("The CI job tests failed")
