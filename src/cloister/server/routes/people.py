"""Routes of projects, their members, and links that share a run."""

from typing import Annotated, Any, Protocol

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from cloister.app.people.logins import Login
from cloister.app.people.projects import Access, Level, MadeShare, Project, Shareable, ShareInfo
from cloister.app.verbs.api.people import PeopleVerbs
from cloister.server.auth import cookie_in, cookie_name
from cloister.server.routes import Given, of
from cloister.server.routes.login import Secret, set_cookie
from cloister.server.routes.runs import Run

Name = Annotated[str, PathParameter(description="A project's name.")]
Text = Annotated[str, msgspec.Meta(max_length=1_000)]


class LetIn(Protocol):
    """Gives a browser, which may have a login already, what a link shares. Raises `UserError` (`bad_login`)."""

    async def __call__(self, secret: str, cookie: bytes) -> tuple[str | None, Login, str]: ...


class SetProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The repositories of a project."""

    repos: Annotated[tuple[Text, ...], msgspec.Meta(max_length=100)]


class SetMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member; without a level, one to remove."""

    who: Text
    level: Level | None = None


class NewShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link to make."""

    level: Shareable = "sees"
    seconds: float = 604_800.0


class Opened(msgspec.Struct, frozen=True):
    """What a link leads to."""

    run: str


@get("/v1/projects", **of(PeopleVerbs.projects, "The projects of the caller", "listProjects"))
async def list_projects(verbs: Given) -> tuple[Project, ...]:
    return await verbs.people.projects()


@put("/v1/projects/{name:str}", **of(PeopleVerbs.set_project, "Make or change a project", "setProject", 200))
async def set_project(name: Name, data: JSONBody[SetProject], verbs: Given) -> Project:
    return await verbs.people.set_project(name, data.repos)


@delete("/v1/projects/{name:str}", **of(PeopleVerbs.remove_project, "Remove a project", "removeProject"))
async def remove_project(name: Name, verbs: Given) -> None:
    await verbs.people.remove_project(name)


@post(
    "/v1/projects/{name:str}/members",
    **of(PeopleVerbs.set_member, "Add, change or remove a member", "setMember", 200),
)
async def set_member(name: Name, data: JSONBody[SetMember], verbs: Given) -> Project:
    return await verbs.people.set_member(name, data.who, data.level)


@post("/v1/runs/{run:str}/shares", **of(PeopleVerbs.share, "Make a link to a run", "shareRun", 201))
async def share(run: Run, data: JSONBody[NewShare], verbs: Given) -> MadeShare:
    return await verbs.people.share(run, data.level, data.seconds)


@get("/v1/runs/{run:str}/shares", **of(PeopleVerbs.shares, "The links to a run", "listShares"))
async def list_shares(run: Run, verbs: Given) -> tuple[ShareInfo, ...]:
    return await verbs.people.shares(run)


@delete("/v1/runs/{run:str}/shares/{share:str}", **of(PeopleVerbs.unshare, "End a link", "endShare"))
async def end_share(
    run: Run, share: Annotated[str, PathParameter(description="A link's id.")], verbs: Given
) -> None:
    await verbs.people.unshare(run, share)


@get("/v1/runs/{run:str}/access", **of(PeopleVerbs.access, "What the caller may do with a run", "getAccess"))
async def get_access(run: Run, verbs: Given) -> Access:
    return await verbs.people.access(run)


@post(
    "/v1/login/share",
    summary="Open a link: the browser gets a login, or its login gets the run",
    operation_id="openShare",
    status_code=200,
    opt={"open": True, "reads": True},
)
async def open_share(
    data: JSONBody[Secret], request: Request[Any, Any, State], let_in: NamedDependency["LetIn"]
) -> Response[Opened]:
    host = request.headers.get("host", "").lower().encode()
    cookie = cookie_in(request.scope["headers"], cookie_name(request.scope, host))
    fresh, _, run = await let_in(data.secret, cookie)
    headers = {} if fresh is None else {"set-cookie": set_cookie(request, fresh)}
    return Response(Opened(run), headers=headers)
