"""Routes of templates: list, describe, build, remove; of the environments of repositories; of skills and notes."""

import logging
from collections.abc import Awaitable
from typing import Annotated

import msgspec
from litestar import MediaType, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.app.verbs.api import EnvironmentVerbs, RunVerbs, TemplateVerbs
from cloister.app.verbs.knowledge import KnowledgeVerbs, RunNotes, SkillList, SkillText
from cloister.app.verbs.records import EnvironmentInfo
from cloister.app.verbs.tools import ToolList, ToolTried, ToolVerbs
from cloister.core import limits
from cloister.core.requests import Tier
from cloister.environment.api import Plan
from cloister.environment.listing import LISTING_BYTES, Listing
from cloister.runs.attempts.verify import Claim, Verified
from cloister.runs.environments.repository import Outlook
from cloister.sandbox.api import Report
from cloister.sandbox.templates.catalog import TemplateInfo
from cloister.sandbox.templates.recipes import Recipe
from cloister.server.bodies import ProgressLines
from cloister.server.routes import Given, Wait, of
from cloister.server.ws import Sockets

logger = logging.getLogger(__name__)

TemplateName = Annotated[str, PathParameter(description="A template's name.")]


class NewTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recipe of a template."""

    recipe: Recipe
    replace_built_in: bool = False
    """Whether it may take the place of a built-in template, which runs start from by default."""


class BuildTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to build a template."""

    again: bool = False
    """Build it even if it is ready."""
    progress: bool = False
    """Answer JSON lines: progress, then the result."""


class NewEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to set up the environment of a repository."""

    repo: str
    """A path on the server's machine or a git URL."""
    ref: str | None = None
    setup: str = "auto"
    """`auto`, or a command line in place of the detected ones."""
    settings: Annotated[str, msgspec.Meta(max_length=262_144)] = ""
    """The text of a `.cloister/config.toml` that takes the place of the committed one."""
    progress: bool = False
    """Answer JSON lines: progress, then the result."""


@get("/v1/templates", **of(TemplateVerbs.list, "The templates there are", "listTemplates"))
async def list_templates(verbs: Given) -> tuple[TemplateInfo, ...]:
    return await verbs.templates.list()


@get("/v1/templates/{name:str}", **of(TemplateVerbs.get, "One template", "getTemplate"))
async def get_template(name: TemplateName, verbs: Given) -> TemplateInfo:
    return await verbs.templates.get(name)


@put("/v1/templates/{name:str}", **of(TemplateVerbs.describe, "Describe a template", "putTemplate"))
async def put_template(name: TemplateName, data: JSONBody[NewTemplate], verbs: Given) -> TemplateInfo:
    return await verbs.templates.describe(name, data.recipe, replace_built_in=data.replace_built_in)


@post(
    "/v1/templates/{name:str}/build",
    **of(TemplateVerbs.build, "Build a template and wait until it is ready", "buildTemplate", 200),
)
async def build_template(
    name: TemplateName,
    data: JSONBody[BuildTemplate],
    verbs: Given,
    sockets: NamedDependency[Sockets],
    wait: Wait,
) -> Response[TemplateInfo]:
    if data.progress:
        return ProgressLines(
            lambda report: verbs.templates.build(name, again=data.again, report=report), sockets.leaving
        )

    return Response(await wait(verbs.templates.build(name, again=data.again, report=log_progress)))


@post(
    "/v1/environments",
    **of(
        TemplateVerbs.set_up, "Set up the environment of a repository and check it", "setUpEnvironment", 200
    ),
)
async def set_up_environment(
    data: JSONBody[NewEnvironment], verbs: Given, sockets: NamedDependency[Sockets], wait: Wait
) -> Response[EnvironmentInfo]:
    def work(report: Report) -> Awaitable[EnvironmentInfo]:
        return verbs.templates.set_up(data.repo, data.ref, data.setup, report, data.settings)

    if data.progress:
        return ProgressLines(work, sockets.leaving)
    return Response(await wait(work(log_progress)))


class LookAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A repository on which a run may be asked for."""

    repo: Annotated[str, msgspec.Meta(max_length=4_096)]
    """A path on the server's machine or a git URL."""
    ref: str | None = None
    tier: Tier = "auto"


@post(
    "/v1/environments/look",
    **of(EnvironmentVerbs.look, "What a run on a repository would find", "lookAtRepository", 200, reads=True),
)
async def look_at_repository(data: JSONBody[LookAt], verbs: Given, wait: Wait) -> Outlook:
    return await wait(verbs.environments.look(data.repo, data.ref, data.tier))


_Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]


class ToVerify(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ref: Annotated[str, msgspec.Meta(min_length=1, max_length=1_200)]
    """The branch or the commit with the change; without `repo`, a run or the address of a pull request."""
    repo: Annotated[str, msgspec.Meta(max_length=4_096)] = ""
    """A path on the server's machine or a git URL."""
    claim: Claim | None = None
    """What a proof file says; with `repo`, in place of `ref`."""
    allow_test_changes: Annotated[tuple[_Pattern, ...], msgspec.Meta(max_length=limits.ASKED)] = ()
    """Patterns of test files that may have lost tests."""
    progress: bool = False


@post("/v1/verify", **of(RunVerbs.verify, "Run the proof of a change again", "verifyChange", 200))
async def verify_change(
    data: JSONBody[ToVerify], verbs: Given, sockets: NamedDependency[Sockets], wait: Wait
) -> Response[Verified]:
    def work(report: Report) -> Awaitable[Verified]:
        return verbs.runs.verify(data.repo, data.ref, report, data.claim, data.allow_test_changes)

    if data.progress:
        return ProgressLines(work, sockets.leaving)
    return Response(await wait(work(log_progress)))


@get(
    "/v1/templates/{name:str}/log",
    **of(TemplateVerbs.log, "The output of the last build of a template", "getTemplateLog"),
    media_type=MediaType.TEXT,
)
async def get_template_log(name: TemplateName, verbs: Given) -> str:
    return await verbs.templates.log(name)


@delete("/v1/templates/{name:str}", **of(TemplateVerbs.remove, "Remove a template", "deleteTemplate"))
async def delete_template(name: TemplateName, verbs: Given) -> None:
    await verbs.templates.remove(name)


def log_progress(fraction: float | None, note: str) -> None:
    """Log the progress of a build that a request waits for."""
    logger.info("Preparing a template: %s %s", note, "" if fraction is None else f"{fraction:.0%}")


@post(
    "/v1/environments/plan",
    **of(
        EnvironmentVerbs.plan, "What a repository needs, from its files", "planEnvironment", 200, reads=True
    ),
    request_max_body_size=LISTING_BYTES,
)
async def plan_environment(data: JSONBody[Listing], verbs: Given) -> Plan:
    return await verbs.environments.plan(data)


# Skills, and the notes of runs.


SkillsOf = Annotated[
    str | None,
    QueryParameter(
        description="A directory on the server's machine; the skills at its HEAD.", max_length=4_096
    ),
]


@get("/v1/skills", **of(KnowledgeVerbs.skills, "The skills that a run would have", "listSkills"))
async def list_skills(verbs: Given, repo: SkillsOf = None) -> SkillList:
    return await verbs.knowledge.skills(repo)


@get("/v1/skills/{name:str}", **of(KnowledgeVerbs.skill, "One skill", "getSkill"))
async def get_skill(
    name: Annotated[str, PathParameter(description="Its name.")], verbs: Given, repo: SkillsOf = None
) -> SkillText:
    return await verbs.knowledge.skill(name, repo)


@get("/v1/runs/{run:str}/notes", **of(KnowledgeVerbs.notes, "What a run learned, as a proposal", "getNotes"))
async def get_notes(
    run: Annotated[str, PathParameter(description="A run's id, or the start of one.")], verbs: Given
) -> RunNotes:
    return await verbs.knowledge.notes(run)


# Tools that are added to runs.


class TryTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a tool."""

    arguments: dict[str, object] | None = None
    repo: Annotated[str, msgspec.Meta(max_length=4_096)] | None = None
    """A path on the server's machine or a git URL; None: an empty sandbox."""
    ref: str | None = None


ToolsOf = Annotated[
    str | None,
    QueryParameter(
        description="A directory on the server's machine; the tools at its HEAD.", max_length=4_096
    ),
]


@get("/v1/tools", **of(ToolVerbs.list, "The tools that are added to runs", "listTools"))
async def list_tools(verbs: Given, repo: ToolsOf = None) -> ToolList:
    return await verbs.tools.list(repo)


@post("/v1/tools/{name:str}/try", **of(ToolVerbs.call, "Try an added tool", "tryTool", 200))
async def try_tool(
    name: Annotated[str, PathParameter(description="Its name, or SERVER.TOOL.")],
    data: JSONBody[TryTool],
    verbs: Given,
    wait: Wait,
) -> ToolTried:
    return await wait(verbs.tools.call(name, data.arguments, data.repo, data.ref))
