"""What every implementation of `Verbs` promises, one function per promise: run each of `PROMISES` with a fresh `Rig`.

The promises are about what callers rely on wherever they call from: the same results, error codes and audit entries.
"""

import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, get_args

import anyio
from tests.whole.conformance.suites.base import expect, promises, refused

from cloister.app.tokens import RANK
from cloister.app.verbs import api
from cloister.app.verbs.api import Verbs
from cloister.app.verbs.declare import role_of
from cloister.app.verbs.knowledge import KnowledgeVerbs, SkillList
from cloister.app.verbs.records import (
    Exec,
    Execute,
    NewCommand,
    NewSandbox,
    RuleContext,
    RunCode,
    SandboxChange,
)
from cloister.app.verbs.tools import ToolList, ToolVerbs
from cloister.app.verbs.webhooks import NewWebhook, WebhookVerbs
from cloister.app.wiring import App
from cloister.core import limits
from cloister.core.events import (
    AskRaised,
    Event,
    InterruptRequested,
    NoteProposed,
    PromptReceived,
    RunFinished,
)
from cloister.core.requests import NewRun, Role
from cloister.environment.listing import Listing
from cloister.log.api import Fence
from cloister.sandbox.templates.recipes import Dockerfile, Oci
from cloister.testing.samples import SampleRepo

WAIT_SECONDS = 30.0
DENIED_MODEL = "script:/denied.toml"
POLICY = f'[[policy]]\naction = "model:{DENIED_MODEL}"\neffect = "deny"\n'
"""The rules that the configuration of a rig holds."""

GROUPS = {
    "runs": api.RunVerbs,
    "audit": api.AuditVerbs,
    "tokens": api.TokenVerbs,
    "webhooks": WebhookVerbs,
    "templates": api.TemplateVerbs,
    "snapshots": api.SnapshotVerbs,
    "sandboxes": api.SandboxVerbs,
    "files": api.FileVerbs,
    "models": api.ModelVerbs,
    "policy": api.PolicyVerbs,
    "environments": api.EnvironmentVerbs,
    "triggers": api.TriggerVerbs,
    "knowledge": KnowledgeVerbs,
    "tools": ToolVerbs,
    "people": api.PeopleVerbs,
    "machine": api.MachineVerbs,
}
ARGUMENTS: dict[str, object] = {
    "new": NewRun("p", "/nowhere"),
    "wish": NewSandbox(),
    "change": SandboxChange(),
    "program": Execute("sh", "true"),
    "recipe": Oci("/nowhere"),
    "context": RuleContext(),
    "code": RunCode("1"),
    "listing": Listing(()),
    "answer": "deny",
    "to": 1,
    "port": 80,
    "data": b"x",
    "repos": ("x/*",),
    "after": 0,
    "until": 1,
}
"""Values for required arguments of verbs, by name; any other is the text `x`."""


class Rig(Protocol):
    """An open `App` whose configuration holds `POLICY`, and callers of it."""

    @property
    def app(self) -> App: ...

    @property
    def image(self) -> Path | None:
        """An OCI layout to build a template of; None where the tools for that are missing."""
        ...

    def verbs(self, name: str, role: Role) -> Verbs:
        """The verbs of a caller. Asked again with the same name, the same caller."""
        ...


Promise = Callable[[Rig], Awaitable[None]]


async def called(found: object) -> None:
    """Await what a verb returned, or enter and leave it."""
    if isinstance(found, AbstractAsyncContextManager):
        async with found:
            pass
    else:
        await found  # type: ignore[misc]


async def a_run(rig: Rig) -> Fence:
    """A run that no process drives but the promise."""
    run, _ = await rig.app.backbone.admit(NewRun("do it", "/nowhere"), "ada")
    fence = await rig.app.backbone.claim(rig.app.owner, run)
    if fence is None:
        raise AssertionError("the run was not claimed")
    return fence


async def entered(rig: Rig, *kinds: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The audit entries of these kinds: kind, who, detail."""
    entries = await rig.verbs("root", "admin").audit.page(limit=10_000)
    return [(entry.kind, entry.who, json.loads(entry.detail)) for entry in entries if entry.kind in kinds]


def declared() -> Iterator[tuple[str, str, Role]]:
    """Every verb: group, name, role."""
    for group, kind in GROUPS.items():
        for name, verb in vars(kind).items():
            if not name.startswith("_"):
                yield group, name, role_of(verb)


def arguments(group: str, name: str) -> list[object]:
    parameters = list(inspect.signature(getattr(GROUPS[group], name)).parameters.values())[1:]
    required = [each.name for each in parameters if each.default is inspect.Parameter.empty]
    if group == "files":
        return ["x"] * len(required)
    if (group, name) == ("webhooks", "add"):
        return [NewWebhook("x", "https://192.88.98.7/")]
    commands = {"exec": Exec(("true",)), "process": NewCommand(("true",)), "start": NewCommand(("true",))}
    return [
        commands[name] if each == "command" and name in commands else ARGUMENTS.get(each, "x")
        for each in required
    ]


async def every_verb_is_denied_to_a_role_that_is_too_low(rig: Rig) -> None:
    roles: tuple[Role, ...] = get_args(Role)
    for group, name, needed in declared():
        for role in roles:
            if RANK[role] < RANK[needed]:
                with refused("denied"):
                    verb = getattr(getattr(rig.verbs(f"{role}-1", role), group), name)
                    await called(verb(*arguments(group, name)))
    expect(await entered(rig, "TokenAdded", "TokenRemoved", "TemplateDescribed"), [])


async def a_message_is_an_event_under_the_callers_name(rig: Rig) -> None:
    run = (await a_run(rig)).run
    event = await rig.verbs("otto", "operator").runs.say(run, "hello", "issue")
    expect(event.body, PromptReceived("hello", "otto", "issue"))
    expect((await rig.app.backbone.read(run))[-1], event)
    kind, who, detail = (await entered(rig, "PromptReceived"))[-1]
    expect((kind, who, detail["text"]), ("PromptReceived", "otto", "hello"))


async def an_empty_message_is_refused(rig: Rig) -> None:
    run, verbs = (await a_run(rig)).run, rig.verbs("otto", "operator")
    for text in ("", " \n"):
        with refused("empty_message"):
            await verbs.runs.say(run, text)
    with refused("too_large"):
        await verbs.runs.say(run, "x" * (limits.PROMPT_BYTES + 1))


async def a_finished_run_is_not_stopped(rig: Rig) -> None:
    fence, verbs = await a_run(rig), rig.verbs("otto", "operator")
    expect((await verbs.runs.stop(fence.run)).body.__class__.__name__, "StopRequested")
    await rig.app.backbone.append(fence, [RunFinished("stopped", "asked")])
    for verb in (verbs.runs.stop, verbs.runs.interrupt):
        with refused("run_finished"):
            await verb(fence.run)


async def a_step_is_stopped_under_the_callers_name(rig: Rig) -> None:
    run = (await a_run(rig)).run
    event = await rig.verbs("otto", "operator").runs.interrupt(run)
    expect(event.body, InterruptRequested("otto"))
    expect((await entered(rig, "InterruptRequested"))[-1][:2], ("InterruptRequested", "otto"))


async def a_run_is_named_by_its_id_a_beginning_or_last(rig: Rig) -> None:
    first, second = (await a_run(rig)).run, (await a_run(rig)).run
    runs = rig.verbs("vera", "viewer").runs
    expect([row.id for row in await runs.list()], [second, first])
    expect((await runs.row(first[:-1])).id, first)
    expect((await runs.view("last")).id, second)
    for name in ("r-nothing", "", "r/x", "é"):
        with refused("no_such_run"):
            await runs.row(name)
    with refused("ambiguous_run"):
        await runs.view("r-")


async def the_log_is_read_in_parts_and_by_attempt(rig: Rig) -> None:
    fence, runs = await a_run(rig), rig.verbs("vera", "viewer").runs
    whole = await rig.app.backbone.read(fence.run)
    expect(await runs.events(fence.run), whole)
    expect(await runs.events(fence.run, 1), whole[1:])
    expect(await runs.events(fence.run, 0, 1), whole[:1])
    with refused("no_such_attempt"):
        await runs.events(fence.run, attempt=7)
    with refused("no_such_attempt"):
        await runs.diff(fence.run, 7)
    expect(await runs.diff(fence.run), "")
    expect((await runs.tree(fence.run)).run, fence.run)
    expect((await runs.receipt(fence.run)).run, fence.run)
    expect(f"{fence.run}" in await runs.receipt_page(fence.run), True)
    with refused("no_change"):
        await runs.receipt_page(fence.run, delivered=True)
    with refused("no_change"):
        await runs.why(fence.run, "calc.py", 1)
    expect((await runs.budget(fence.run)).accounts != (), True)


async def a_run_is_followed_to_its_end(rig: Rig) -> None:
    fence, verbs = await a_run(rig), rig.verbs("vera", "viewer")
    seen: list[int] = []
    with anyio.fail_after(WAIT_SECONDS):
        async with verbs.runs.follow(fence.run, 1) as items, anyio.create_task_group() as tasks:
            tasks.start_soon(rig.app.backbone.append, fence, [RunFinished("failed", "no")])
            seen += [item.seq async for item in items if isinstance(item, Event)]
    expect(seen, [2, 3])
    with refused("no_such_run"):
        await called(verbs.runs.follow("r-nothing"))


async def a_question_is_answered_once_and_by_the_role_it_names(rig: Rig) -> None:
    fence = await a_run(rig)
    asks = [
        AskRaised("a1", 0, "bash: x", "x", 4e9, rule="r"),
        AskRaised("a2", 0, "bash: y", "y", 4e9, rule="r", approver="admin"),
    ]
    await rig.app.backbone.append(fence, asks)
    runs = rig.verbs("otto", "operator").runs
    with refused("no_such_ask"):
        await runs.answer(fence.run, "a3", "deny")
    await runs.answer(fence.run, "a1", "allow")
    with refused("ask_answered"):
        await runs.answer(fence.run, "a1", "deny")
    with refused("denied"):
        await runs.answer(fence.run, "a2", "allow")
    await rig.verbs("ada", "admin").runs.answer(fence.run, "a2", "allow")
    said = [(who, detail["ask"], detail["answer"]) for _, who, detail in await entered(rig, "AskAnswered")]
    expect(said, [("otto", "a1", "allow"), ("ada", "a2", "allow")])


async def a_model_that_the_rules_deny_is_not_used(rig: Rig) -> None:
    run, runs = (await a_run(rig)).run, rig.verbs("otto", "operator").runs
    with refused("denied"):
        await runs.use_model(run, DENIED_MODEL)
    with refused("unknown_model"):
        await runs.use_model(run, "unknown:model")
    await runs.use_model(run, "script:/other.toml")
    said = [(who, detail["model"]) for _, who, detail in await entered(rig, "ModelChosen")]
    expect(said, [("otto", "script:/other.toml")])


async def a_request_is_checked_before_it_is_a_run(rig: Rig) -> None:
    runs = rig.verbs("otto", "operator").runs
    for new, code in (
        (NewRun("", "/nowhere"), "bad_run"),
        (NewRun("p", "/nowhere", model=DENIED_MODEL), "denied"),
        (NewRun("p", "/nowhere", allow_hosts=("example.com",)), "denied"),
        (NewRun("p", "/nowhere", template="nothing"), "unknown_template"),
        (NewRun("p", "/nowhere", model="unknown:model"), "unknown_model"),
    ):
        with refused(code):
            await runs.submit(new)
    expect(await runs.list(), ())


async def a_server_that_works_alone_has_no_other_machines(rig: Rig) -> None:
    expect(await rig.verbs("vera", "viewer").machine.all(), ())
    with refused("no_such_machine"):
        await rig.verbs("ada", "admin").machine.drain("front", True)
    with refused("denied"):
        await rig.verbs("otto", "operator").machine.drain("front", True)


async def the_same_key_names_the_same_run(rig: Rig) -> None:
    runs = rig.verbs("otto", "operator").runs
    repo = SampleRepo(rig.app.settings.data_dir / "repo")
    repo.commit()
    new = NewRun("p", str(repo.path), model="script:/nowhere.toml", key="k")
    first = await runs.submit(new)
    second = await runs.submit(new)
    expect((first.id == second.id, first.made, second.made), (True, True, False))
    expect((await runs.view(first.id)).who, "otto")
    with refused("key_taken"):
        await runs.submit(NewRun("another", new.repo, model=new.model, key="k"))


async def a_run_without_save_points_is_not_branched(rig: Rig) -> None:
    run, runs = (await a_run(rig)).run, rig.verbs("otto", "operator").runs
    with refused("no_save_point"):
        await runs.fork(run)
    with refused("no_save_point"):
        await runs.rewind(run, 1)
    with refused("no_change"):
        await runs.change(run)
    with refused("same_twice"):
        await runs.compare(run, run)
    with refused("no_such_attempt"):
        await runs.compare(run, f"{run}/7")


async def an_applied_change_is_entered(rig: Rig) -> None:
    run = (await a_run(rig)).run
    await rig.verbs("otto", "operator").runs.applied(run, "/home/otto/repo", "cloister/x")
    detail = {"run": run, "where": "/home/otto/repo", "branch": "cloister/x"}
    expect(await entered(rig, "Applied"), [("Applied", "otto", detail)])


async def files_of_a_finished_run_are_removed_and_that_is_entered(rig: Rig) -> None:
    fence, runs = await a_run(rig), rig.verbs("ada", "admin").runs
    with refused("run_not_finished"):
        await runs.remove(fence.run)
    await rig.app.backbone.append(fence, [RunFinished("failed", "no")])
    expect((await runs.remove(fence.run)).who, "ada")
    expect(await entered(rig, "RunRemoved"), [("RunRemoved", "ada", {"run": fence.run})])


async def tokens_are_made_and_removed_and_that_is_entered(rig: Rig) -> None:
    tokens = rig.verbs("ada", "admin").tokens
    made = await tokens.add("max", "operator")
    expect((made.name, made.role, len(made.token) > 30), ("max", "operator", True))
    with refused("name_taken"):
        await tokens.add("max", "viewer")
    for name in ("Max", "deadline", rig.app.settings.user):
        with refused("bad_name"):
            await tokens.add(name, "viewer")
    expect([each.role for each in await tokens.list() if each.name == "max"], ["operator"])
    await tokens.remove("max")
    with refused("no_such_token"):
        await tokens.remove("max")
    expect(
        [entry for entry in await entered(rig, "TokenAdded", "TokenRemoved") if entry[1] == "ada"],
        [
            ("TokenAdded", "ada", {"name": "max", "role": "operator"}),
            ("TokenRemoved", "ada", {"name": "max"}),
        ],
    )


async def tools_are_listed_and_a_repository_must_be_there(rig: Rig) -> None:
    expect(await rig.verbs("ada", "operator").tools.list(), ToolList((), ()))
    tools = rig.verbs("root", "admin").tools
    with refused("no_repository"):
        await tools.list("/nowhere")
    with refused("no_repository"):
        await tools.call("x", {}, "/nowhere")
    with refused("bad_run"):
        await tools.call("x", {}, "")


async def skills_are_listed_and_an_unknown_one_is_refused(rig: Rig) -> None:
    knowledge = rig.verbs("ada", "operator").knowledge
    expect(await knowledge.skills(), SkillList((), ()))
    with refused("no_such_skill"):
        await knowledge.skill("release")
    with refused("no_repository"):
        await knowledge.skills("/nowhere")
    run = await a_run(rig)
    await rig.app.backbone.append(run, [NoteProposed(0, "Tests need Redis.")])
    found = await knowledge.notes(str(run.run))
    expect((found.notes, found.written), (("Tests need Redis.",), ()))
    expect("+- Tests need Redis." in found.diff, True)
    with refused("no_such_run"):
        await knowledge.notes("r-missing")


async def webhooks_are_added_listed_and_removed_and_that_is_entered(rig: Rig) -> None:
    webhooks = rig.verbs("ada", "admin").webhooks
    made = await webhooks.add(NewWebhook("team", "https://192.88.98.7/secret-path", kinds=("ended",)))
    expect((made.format, made.secret.startswith("whsec_")), ("json", True))
    with refused("name_taken"):
        await webhooks.add(NewWebhook("team", "https://192.88.98.7/other"))
    for address in ("http://192.88.98.7/", "https://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/",
                    "https://u:p@192.88.98.7/", "ftp://192.88.98.7/", "https://10.0.0.1/", "nonsense"):  # fmt: skip
        with refused("bad_webhook"):
            await webhooks.add(NewWebhook("other", address))
    with refused("no_mail"):
        await webhooks.add(NewWebhook("mail", "mailto:ada@example.org"))
    for name in ("../x", "", "A B"):
        with refused("bad_name"):
            await webhooks.add(NewWebhook(name, "https://192.88.98.7/"))
    (shown,) = await webhooks.list()
    expect((shown.address, shown.kinds, shown.who), ("https://192.88.98.7/…", ("ended",), "ada"))
    with refused("no_such_webhook"):
        await webhooks.test("missing")
    expect((await webhooks.dead(), await webhooks.replay()), ((), 0))
    await webhooks.remove("team")
    with refused("no_such_webhook"):
        await webhooks.remove("team")
    found = [kind for kind, who, _ in await entered(rig, "WebhookAdded", "WebhookRemoved") if who == "ada"]
    expect(found, ["WebhookAdded", "WebhookRemoved"])


async def viewers_see_no_values_of_a_recipe(rig: Rig) -> None:
    recipe = Dockerfile("/nowhere", args={"VERSION": "3"}, env={"MODE": "fast"})
    templates = rig.verbs("ada", "admin").templates
    await templates.describe("valued", recipe)
    expect((await templates.get("valued")).recipe, recipe)
    seen = rig.verbs("vi", "viewer").templates
    hidden = Dockerfile("/nowhere", args={"VERSION": "…"}, env={"MODE": "…"})
    expect((await seen.get("valued")).recipe, hidden)
    expect([info.recipe for info in await seen.list() if info.name == "valued"], [hidden])
    await templates.remove("valued")


async def a_template_is_described_built_and_removed_and_that_is_entered(rig: Rig) -> None:
    templates = rig.verbs("ada", "admin").templates
    with refused("no_such_template"):
        await templates.get("tiny")
    for verb in (templates.build, templates.log, templates.remove):
        with refused("no_such_template"):
            await verb("tiny")
    with refused("bad_template"):
        await templates.describe("Not A Name", Oci("x"))
    with refused("built_in_template"):
        await templates.describe("default", Oci("x"))
    with refused("bad_template"):
        await templates.describe("secretive", Oci("x", env={"GITHUB_TOKEN": "t"}))
    recipe = Oci(str(rig.image or "/nowhere"))
    expect((await templates.describe("tiny", recipe)).recipe, recipe)
    wanted: list[tuple[str, str, dict[str, Any]]] = [("TemplateDescribed", "ada", {"template": "tiny"})]
    if rig.image is not None:
        notes: list[str] = []
        built = await templates.build("tiny", report=lambda _, note: notes.append(note))
        expect((built.ready, notes != []), (True, True))
        expect("== ready" in await templates.log("tiny"), True)
        wanted.append(("TemplateBuilt", "ada", {"template": "tiny", "again": False}))
    expect("tiny" in [info.name for info in await templates.list()], True)
    await templates.remove("tiny")
    wanted.append(("TemplateRemoved", "ada", {"template": "tiny"}))
    expect(await entered(rig, "TemplateDescribed", "TemplateBuilt", "TemplateRemoved"), wanted)


async def unknown_sandboxes_and_snapshots_are_named_as_such(rig: Rig) -> None:
    verbs = rig.verbs("ada", "admin")
    expect(await verbs.sandboxes.list(), ())
    for group, names in (
        (
            "sandboxes",
            (
                *("get", "resolve", "change", "metrics", "token", "fork", "destroy", "exec", "execute"),
                *("process", "start", "commands", "dial"),
            ),
        ),
        (
            "files",
            ("read", "write", "list", "stat", "move", "remove", "mkdir", "download", "upload", "watch"),
        ),
        ("snapshots", ("take",)),
    ):
        for name in names:
            with refused("no_such_sandbox"):
                await called(getattr(getattr(verbs, group), name)(*arguments(group, name)))
    for verb in (verbs.snapshots.get, verbs.snapshots.remove):
        with refused("no_such_snapshot"):
            await verb("nothing")
    for verb in (verbs.sandboxes.output, verbs.sandboxes.attach, verbs.sandboxes.kill):
        with refused("no_such_command"):
            await called(verb("s-nothing", "c-nothing"))


async def a_sandbox_is_changed_found_by_its_metadata_and_measured(rig: Rig) -> None:
    sandboxes = rig.verbs("ada", "admin").sandboxes
    wish = NewSandbox("base", ttl_seconds=60, metadata={"user": "a b", "app": "x"})
    (made, _), (other, _) = await sandboxes.create(wish), await sandboxes.create(NewSandbox())
    expect((made.template, made.metadata, dict(other.metadata)), ("default", wish.metadata, dict[str, str]()))
    seen = rig.verbs("vera", "viewer").sandboxes
    for asked, found in (
        ("user=a+b&app=x", [made]),
        ("user=a%20b", [made]),
        ("user=c", []),
        ("", [made, other]),
    ):
        expect(list(await seen.list(asked)), found)
    expect(await seen.list(), (made, other))
    for wrong in ("user", "&&", "a=1&b"):
        with refused("bad_metadata"):
            await seen.list(wrong)
    longer = await sandboxes.change(made.id, SandboxChange(ttl_seconds=600))
    expect((longer.metadata, longer.expires_at - made.expires_at > 500), (made.metadata, True))
    expect((await sandboxes.change(made.id, SandboxChange(metadata={"k": ""}))).metadata, {"k": ""})
    expect(await sandboxes.get(made.id), (await sandboxes.list("k="))[0])
    (copy,) = await sandboxes.fork(made.id)
    expect(copy.metadata, {"k": ""})
    await _is_paused_and_goes_on(sandboxes, copy.id)
    server = "import socket, time; s = socket.create_server(('127.0.0.1', 8123)); time.sleep(99)"
    await sandboxes.start(made.id, NewCommand(("python3", "-c", server)))
    await sandboxes.exec(made.id, Exec(("python3", "-c", "print(1)")))
    with anyio.fail_after(WAIT_SECONDS):
        while not (metrics := await sandboxes.metrics(made.id)).ports:
            await anyio.lowlevel.checkpoint()
    expect((metrics.ports, metrics.memory_bytes > 0, metrics.cpu_seconds > 0), ((8123,), True, True))
    quota = made.quota
    limits = (metrics.cpus, metrics.memory_limit_bytes, metrics.disk_limit_bytes)
    expect(limits, (quota.cpus, quota.memory_bytes, quota.disk_bytes))
    entries = [detail for _, who, detail in await entered(rig, "SandboxChanged") if who == "ada"]
    changed = [detail for detail in entries if detail["sandbox"] == made.id]
    expect(changed, [{"sandbox": made.id, "ttl_seconds": 600.0}, {"sandbox": made.id, "metadata": {"k": ""}}])
    for info in (made, other, copy):
        await sandboxes.destroy(info.id)


async def _is_paused_and_goes_on(sandboxes: api.SandboxVerbs, name: str) -> None:
    still = await sandboxes.change(name, SandboxChange(ttl_seconds=300, paused=True))
    expect((still.paused, (await sandboxes.get(name)).paused), (True, True))
    expect((await sandboxes.change(name, SandboxChange(metadata={"k": ""}, paused=True))).paused, True)
    for call in (
        lambda: sandboxes.exec(name, Exec(("true",))),
        lambda: sandboxes.fork(name),
        lambda: sandboxes.metrics(name),
        lambda: sandboxes.change(name, SandboxChange(ttl_seconds=60)),
    ):
        with refused("sandbox_paused"):
            await call()
    going = await sandboxes.change(name, SandboxChange(paused=False))
    expect((going.paused, 200 < going.expires_at - time.time() <= 300), (False, True))
    expect((await sandboxes.exec(name, Exec(("echo", "on")))).stdout, "on\n")
    expect((await sandboxes.change(name, SandboxChange(paused=True))).paused, True)


async def the_audit_is_read_checked_and_its_key_replaced(rig: Rig) -> None:
    fence = await a_run(rig)
    await rig.app.backbone.append(fence, [RunFinished("failed", "no")])
    audit = rig.verbs("ada", "admin").audit
    first = (await audit.page(limit=1))[0]
    expect((await audit.page(first.number, 1))[0].number, first.number + 1)
    expect({entry.run for entry in await audit.page(run=fence.run)}, {fence.run})
    newest = (await audit.page(limit=10_000))[-1].number
    last, before = await audit.page(limit=2, newest=True)
    expect((last.number >= newest, before.number), (True, last.number - 1))
    expect(
        {one.kind for one in await audit.page(run=fence.run, kind="RunFinished", newest=True)},
        {"RunFinished"},
    )
    expect([one.who for one in await audit.page(run=fence.run, who="nobody like it")], [])
    expect((await audit.checkpoints(0, newest)) != (), True)
    key = await audit.key()
    expect((await audit.verify(key)).ok, True)
    expect(await audit.rotate() != key, True)
    expect((await audit.verify(key)).ok, True)
    await audit.accept("a test")
    expect([each.reason for each in (await audit.verify(key)).accepted], ["a test"])
    with refused("bad_reason"):
        await audit.accept(" ")
    with refused("bad_key"):
        await audit.verify("nonsense")
    with refused("no_collector"):
        await audit.send_logs()
    with refused("no_such_run"):
        await audit.page(run="r-nothing")


async def local_models_are_listed_and_their_files_removed(rig: Rig) -> None:
    models = rig.verbs("ada", "admin").models
    names = [model.name for model in await models.list()]
    expect((len(names) > 0, [model.here for model in await models.list()]), (True, [False] * len(names)))
    expect(await models.remove(names[0]), ())
    with refused("unknown_model"):
        await models.remove("nothing")
    with refused("unknown_model"):
        await models.fetch("nothing")


async def the_rules_are_shown_explained_and_tested(rig: Rig) -> None:
    policy = rig.verbs("otto", "operator").policy
    own = RuleContext(policy='[[rule]]\naction = "bash:git push*"\neffect = "deny"\n', source="mine.toml")
    expect([layer.name for layer in await policy.layers(RuleContext())], ["built-in", "host"])
    expect((await policy.layers(own))[-1].name, "repository")
    told = await policy.explain("bash:git push --force", own)
    expect((told.effect, "mine.toml" in told.rule, told.commands), ("deny", True, ("git push --force",)))
    expect((await policy.explain(f"model:{DENIED_MODEL}", RuleContext())).effect, "deny")
    with refused("bad_action"):
        await policy.explain("nonsense", RuleContext())
    with refused("bad_policy"):
        await policy.layers(RuleContext(policy="not = toml ["))
    with refused("no_such_set"):
        await rig.verbs("ada", "admin").policy.sets("nothing")
    tests = '[[test]]\naction = "bash:ls"\nexpect = "deny"\n'
    expect([verdict.ok for verdict in await policy.test(tests, "t.toml")], [False])


async def the_environment_of_a_listing_is_explained(rig: Rig) -> None:
    listing = Listing(("package.json",), {"package.json": '{"engines": {"node": "20"}}'})
    plan = await rig.verbs("otto", "operator").environments.plan(listing)
    told = [(one.name, one.version, one.why) for one in plan.toolchains]
    expect(told, [("node", "20", "20 in engines of package.json")])


async def a_repository_that_a_run_would_not_find_is_an_answer(rig: Rig) -> None:
    environments = rig.verbs("otto", "operator").environments
    found = await environments.look("/nowhere")
    expect(("/nowhere" in found.problem, found.commit, found.ready), (True, "", False))
    with refused("bad_run"):
        await environments.look("")


PROMISES: tuple[Promise, ...] = promises(__name__, Rig)
