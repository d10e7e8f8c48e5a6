"""Routes of templates: list, describe, build, remove."""

import logging
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import MediaType, Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from cloister.app.verbs.api import TemplateVerbs
from cloister.sandbox.templates.catalog import TemplateInfo
from cloister.sandbox.templates.recipes import Recipe
from cloister.server.auth import role
from cloister.server.bodies import ProgressLines, while_wanted
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs

logger = logging.getLogger(__name__)

TemplateName = Annotated[str, PathParameter(description="A template's name.")]


class NewTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recipe of a template."""

    recipe: Recipe


class BuildTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to build a template."""

    again: bool = False
    """Build it even if it is ready."""
    progress: bool = False
    """Answer JSON lines: progress, then the result."""


@get(
    "/v1/templates",
    summary="The templates there are",
    operation_id="listTemplates",
    opt=role(TemplateVerbs.list),
)
async def list_templates(verbs: NamedDependency["Verbs"]) -> tuple[TemplateInfo, ...]:
    return await verbs.templates.list()


@get(
    "/v1/templates/{template:str}",
    summary="One template",
    operation_id="getTemplate",
    opt=role(TemplateVerbs.get),
)
async def get_template(template: TemplateName, verbs: NamedDependency["Verbs"]) -> TemplateInfo:
    return await verbs.templates.get(template)


@put(
    "/v1/templates/{template:str}",
    summary="Describe a template",
    operation_id="putTemplate",
    opt=role(TemplateVerbs.describe),
)
async def put_template(
    template: TemplateName, data: JSONBody[NewTemplate], verbs: NamedDependency["Verbs"]
) -> TemplateInfo:
    return await verbs.templates.describe(template, data.recipe)


@post(
    "/v1/templates/{template:str}/build",
    summary="Build a template and wait until it is ready",
    operation_id="buildTemplate",
    status_code=200,
    opt=role(TemplateVerbs.build),
)
async def build_template(
    template: TemplateName,
    data: JSONBody[BuildTemplate],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Response[TemplateInfo]:
    if data.progress:
        return ProgressLines(
            lambda report: verbs.templates.build(template, again=data.again, report=report), sockets.leaving
        )

    async def work() -> TemplateInfo:
        return await verbs.templates.build(template, again=data.again, report=log_progress)

    return Response(await while_wanted(request, sockets.leaving, work))


@get(
    "/v1/templates/{template:str}/log",
    summary="The output of the last build of a template",
    operation_id="getTemplateLog",
    media_type=MediaType.TEXT,
    opt=role(TemplateVerbs.log),
)
async def get_template_log(template: TemplateName, verbs: NamedDependency["Verbs"]) -> str:
    return await verbs.templates.log(template)


@delete(
    "/v1/templates/{template:str}",
    summary="Remove a template",
    operation_id="deleteTemplate",
    opt=role(TemplateVerbs.remove),
)
async def delete_template(template: TemplateName, verbs: NamedDependency["Verbs"]) -> None:
    await verbs.templates.remove(template)


def log_progress(fraction: float | None, note: str) -> None:
    """Log the progress of a build that a request waits for."""
    logger.info("Preparing a template: %s %s", note, "" if fraction is None else f"{fraction:.0%}")


ROUTES = (list_templates, get_template, put_template, build_template, get_template_log, delete_template)
RECORDS = (BuildTemplate, NewTemplate, TemplateInfo)
