"""One verb, three ways to it: typed without a server, typed beside an open `App`, and over HTTP.

Each test is about a verb that once behaved differently when it was typed.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from tests.server.conftest import Serve, Served

from cloister.app.settings import Settings, read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.api import Verbs
from cloister.app.verbs.apply import apply
from cloister.app.verbs.local import LocalVerbs, local_verbs
from cloister.app.verbs.records import ChangePack, NewSandbox
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import BaseFixed, ChangeMade, RunFinished
from cloister.core.ids import RunId
from cloister.core.requests import NewRun
from cloister.forge import change
from cloister.forge.change import Author, commit_tree
from cloister.forge.host import LocalRepositories, bare_repository
from cloister.forge.packs import tree_of
from cloister.forge.plain_git import PlainGit
from cloister.log.sqlite.reader import AuditReader
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

DENIED = "script:/denied.toml"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "config.toml"
    config.write_text(f'[[policy]]\naction = "model:{DENIED}"\neffect = "deny"\n')
    env = {"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester", "CLOISTER_CONFIG": str(config)}
    return read_settings(env, tmp_path / "data")


def typed(served: Served) -> tuple[Verbs, Verbs]:
    """The verbs of a person who types, without a server and with everything open."""
    settings = served.app.settings
    return local_verbs(settings), LocalVerbs(served.app, Caller(settings.user, "admin"))


async def code_of(work: Awaitable[object]) -> str:
    with pytest.raises(CloisterError) as caught:
        await work
    return caught.value.code


def entries(served: Served, *kinds: str) -> list[tuple[str, str, dict[str, object]]]:
    with AuditReader(served.app.settings.log_path) as audit:
        return [(e.kind, e.who, json.loads(e.detail)) for e in audit.page(limit=100_000) if e.kind in kinds]


async def test_an_empty_message_has_one_error_code(served: Served) -> None:
    run = (await served.claimed_run()).run
    reply = await served.client.post(f"/v1/runs/{run}/say", json={"text": " "})
    codes = [await code_of(verbs.runs.say(run, " ")) for verbs in typed(served)]
    assert [*codes, reply.json()["code"]] == ["empty_message"] * 3


async def test_a_model_is_checked_against_the_rules_wherever_it_is_named(served: Served) -> None:
    run = (await served.claimed_run()).run
    reply = await served.client.post(f"/v1/runs/{run}/model", json={"model": DENIED})
    codes = [await code_of(verbs.runs.use_model(run, DENIED)) for verbs in typed(served)]
    assert [*codes, reply.json()["code"]] == ["denied"] * 3
    assert entries(served, "ModelChosen") == []
    for verbs in typed(served):
        await verbs.runs.use_model(run, "script:/other.toml")
    await served.client.post(f"/v1/runs/{run}/model", json={"model": "script:/other.toml"})
    assert entries(served, "ModelChosen") == [("ModelChosen", "tester", {"model": "script:/other.toml"})] * 3


async def test_an_unknown_question_has_one_error_code(served: Served) -> None:
    run = (await served.claimed_run()).run
    reply = await served.client.post(f"/v1/runs/{run}/answer", json={"ask": "a", "answer": "deny"})
    codes = [await code_of(verbs.runs.answer(run, "a", "deny")) for verbs in typed(served)]
    assert [*codes, reply.json()["code"]] == ["no_such_ask"] * 3


async def test_a_token_is_entered_into_the_audit_wherever_it_is_made(served: Served) -> None:
    for verbs in typed(served):
        await verbs.tokens.add("max", "admin")
        await verbs.tokens.remove("max")
    made = await served.client.post("/v1/tokens", json={"name": "max", "role": "admin"})
    assert (made.status_code, set(made.json())) == (201, {"name", "role", "token"})
    held = httpx.Headers({"Authorization": f"Bearer {made.json()['token']}"})
    assert (await served.client.get("/v1/tokens", headers=held)).json()[0]["name"] == "max"
    assert (await served.client.delete("/v1/tokens/max")).status_code == 204
    assert (await served.client.get("/v1/tokens", headers=held)).status_code == 401
    pair = [
        ("TokenAdded", "tester", {"name": "max", "role": "admin"}),
        ("TokenRemoved", "tester", {"name": "max"}),
    ]
    assert entries(served, "TokenAdded", "TokenRemoved") == pair * 3


async def test_removed_files_are_entered_into_the_audit_wherever_they_are_removed(served: Served) -> None:
    removals: list[Callable[[RunId], Awaitable[object]]] = [verbs.runs.remove for verbs in typed(served)]
    removals.append(lambda run: served.client.delete(f"/v1/runs/{run}"))
    wanted: list[tuple[str, str, dict[str, object]]] = []
    for remove in removals:
        fence = await served.claimed_run()
        await served.app.backbone.append(fence, [RunFinished("failed", "no")])
        await remove(fence.run)
        wanted.append(("RunRemoved", "tester", {"run": fence.run}))
    assert entries(served, "RunRemoved") == wanted


async def test_a_template_is_entered_into_the_audit_wherever_it_is_changed(served: Served) -> None:
    recipe = {"kind": "oci", "image": "/nowhere"}
    info = (await served.client.put("/v1/templates/tiny", json={"recipe": recipe})).json()
    first, second = typed(served)
    described = await first.templates.get("tiny")
    assert msgspec.to_builtins(described) == info
    await second.templates.describe("other", described.recipe)
    await first.templates.remove("tiny")
    await served.client.delete("/v1/templates/other")
    assert entries(served, "TemplateDescribed", "TemplateRemoved") == [
        ("TemplateDescribed", "tester", {"template": "tiny"}),
        ("TemplateDescribed", "tester", {"template": "other"}),
        ("TemplateRemoved", "tester", {"template": "tiny"}),
        ("TemplateRemoved", "tester", {"template": "other"}),
    ]
    reply = await served.client.get("/v1/templates/tiny")
    assert {reply.json()["code"], await code_of(first.templates.get("tiny"))} == {"no_such_template"}


async def test_progress_comes_as_lines_that_end_with_the_result_or_the_error(served: Served) -> None:
    reply = await served.client.post("/v1/templates/none/build", json={"progress": True})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert (lines[-1]["error"]["status"], lines[-1]["error"]["code"]) == (404, "no_such_template")
    reply = await served.client.post("/v1/models/fetch", json={"name": "none", "progress": True})
    assert json.loads(reply.text.splitlines()[-1])["error"]["code"] == "unknown_model"


async def test_a_run_is_not_submitted_where_no_process_would_drive_it(settings: Settings) -> None:
    verbs = local_verbs(settings)
    assert await code_of(verbs.runs.submit(NewRun("p", "/nowhere"))) == "not_driven"
    assert await code_of(verbs.sandboxes.create(NewSandbox())) == "no_server"


async def test_looking_makes_no_files(settings: Settings) -> None:
    verbs = local_verbs(settings)
    assert (await verbs.runs.list(), await verbs.audit.page(), await verbs.tokens.list()) == ((), (), ())
    assert (await verbs.runs.budget()).accounts == ()
    assert await code_of(verbs.runs.row("last")) == "no_such_run"
    assert not settings.data_dir.exists()


async def changed_run(served: Served, repo: SampleRepo) -> tuple[RunId, str]:
    """A finished run on `repo` with a change and its note; and the commit."""
    fence = await served.claimed_run("change it")
    base = repo.commit("base")
    repo.write("a.txt", "two\n")
    tip = repo.commit("two")
    bare = bare_repository(served.app.settings.data_dir, fence.run)
    bare.parent.mkdir(parents=True)
    await PlainGit().fetch(str(repo.path), None, bare)
    commit = await commit_tree(
        bare, await tree_of(bare, tip), base, "Change\n", Author("A <a@b.c>"), at=1_700_000_000
    )
    await change.attach(bare, commit, "what it touched\n")
    bodies = [BaseFixed(base, "main"), ChangeMade("b", commit, (), ""), RunFinished("red", "no", 0)]
    await served.app.backbone.append(fence, bodies)
    repo.git("reset", "--quiet", "--hard", base)
    return fence.run, commit


async def test_a_message_to_a_run_waits_for_the_removal_of_its_files(served: Served, tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a.txt", "one\n")
    run, _ = await changed_run(served, repo)
    repositories, told = LocalRepositories(served.app.settings.data_dir), list[str]()

    async def say() -> None:
        told.append(await code_of(typed(served)[0].runs.say(run, "More.")))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, repositories.working(run, alone=True):
            tasks.start_soon(say)
            await anyio.wait_all_tasks_blocked()
            assert told == []
            await repositories.remove(run, "ada")
    assert told == ["run_removed"]
    assert (await typed(served)[0].runs.row(run)).state == "finished"


async def test_a_change_is_applied_to_a_checkout_with_and_without_its_base(
    served: Served, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a.txt", "one\n")
    run, commit = await changed_run(served, repo)
    other = SampleRepo(tmp_path / "other")
    other.write("b.txt", "unrelated\n")
    other.commit("elsewhere")
    for place, verbs in ((repo, typed(served)[0]), (other, typed(served)[1])):
        delivered = await apply(verbs, run, str(place.path))
        assert delivered.receipt
        assert place.git("rev-parse", delivered.branch) == commit
        assert place.git("show", f"{commit}:a.txt") == "two"
        assert place.git("notes", "--ref=cloister", "show", commit) == "what it touched"
    wheres = [detail["where"] for _, _, detail in entries(served, "Applied")]
    assert wheres == [str(repo.path), str(other.path)]
    with pytest.raises(UserError) as caught:
        await apply(typed(served)[0], run, "https://example.com/x.git")
    assert caught.value.code == "not_a_path"


async def test_a_change_is_fetched_over_http_as_the_caller_needs_it(serving: Serve, tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a.txt", "one\n")
    async with serving() as served:
        run, commit = await changed_run(served, repo)
        whole = msgspec.json.decode(
            (await served.client.get(f"/v1/runs/{run}/change")).content, type=ChangePack
        )
        address = f"/v1/runs/{run}/change?have={whole.base}"
        part = msgspec.json.decode((await served.client.get(address)).content, type=ChangePack)
        assert (whole.commit, whole.since, part.since) == (commit, None, whole.base)
        assert len(part.pack) < len(whole.pack)
        for have in ("--upload-pack=x", "f" * 40, ""):
            odd = await served.client.get(f"/v1/runs/{run}/change", params={"have": have})
            assert odd.json()["since"] is None
