"""Routes of templates: look, describe, build, remove."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import MediaType, Request, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from cloister.core.errors import UserError
from cloister.runs.templates import forget
from cloister.sandbox.templates.catalog import TemplateInfo
from cloister.sandbox.templates.recipes import Recipe
from cloister.server.bodies import while_wanted
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.wiring import App

logger = logging.getLogger(__name__)

TemplateName = Annotated[str, PathParameter(description="A template's name.")]


class NewTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a template shall be made of."""

    recipe: Recipe


class BuildTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wish to have a template ready."""

    again: bool = False
    """Build it anew although it is ready."""


@contextmanager
def _named() -> Generator[None]:
    """Where the template is the address, an unknown one is nothing at that address."""
    try:
        yield
    except UserError as error:
        if error.code != "unknown_template":
            raise
        raise UserError("no_such_template", error.message) from None


def _brief(info: TemplateInfo) -> TemplateInfo:
    """Without the tests of its baseline, which can be thousands."""
    if info.about is None:
        return info
    return msgspec.structs.replace(info, about=msgspec.structs.replace(info.about, baseline=()))


@get("/v1/templates", summary="The templates there are", operation_id="listTemplates")
async def list_templates(app: NamedDependency["App"]) -> tuple[TemplateInfo, ...]:
    return tuple(_brief(info) for info in app.workshop.templates.all())


@get("/v1/templates/{template:str}", summary="One template", operation_id="getTemplate")
async def get_template(template: TemplateName, app: NamedDependency["App"]) -> TemplateInfo:
    with _named():
        return app.workshop.templates.info(template)


@put("/v1/templates/{template:str}", summary="Describe a template", operation_id="putTemplate")
async def put_template(
    template: TemplateName, data: JSONBody[NewTemplate], app: NamedDependency["App"]
) -> TemplateInfo:
    app.workshop.templates.keep_recipe(template, data.recipe)
    return _brief(app.workshop.templates.info(template))


@post(
    "/v1/templates/{template:str}/build",
    summary="Build a template and wait until it is ready",
    operation_id="buildTemplate",
    status_code=200,
)
async def build_template(
    template: TemplateName,
    data: JSONBody[BuildTemplate],
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> TemplateInfo:
    async def work() -> TemplateInfo:
        with _named():
            await app.workshop.prepare(template, log_progress, again=data.again)
            return _brief(app.workshop.templates.info(template))

    return await while_wanted(request, sockets.leaving, work)


@get(
    "/v1/templates/{template:str}/log",
    summary="What the last build of a template said",
    operation_id="getTemplateLog",
    media_type=MediaType.TEXT,
)
async def get_template_log(template: TemplateName, app: NamedDependency["App"]) -> str:
    with _named():
        return app.workshop.templates.log(template)


@delete("/v1/templates/{template:str}", summary="Remove a template", operation_id="deleteTemplate")
async def delete_template(template: TemplateName, app: NamedDependency["App"]) -> None:
    with _named():
        await forget(app.workshop.templates, app.workshop.repositories, template)


def log_progress(fraction: float | None, note: str) -> None:
    """Progress of a build that a request waits for."""
    logger.info("Preparing a template: %s %s", note, "" if fraction is None else f"{fraction:.0%}")


ROUTES = (list_templates, get_template, put_template, build_template, get_template_log, delete_template)
