"""Pull requests at Pagure."""

import msgspec

from cloister.forge.pulls.api import (
    Access,
    Job,
    JobState,
    Pull,
    PullState,
    PullWish,
    Remark,
    Spot,
    Talk,
    newest,
    titled,
)
from cloister.forge.pulls.http import Api, part

GIT_USER = "cloister"
"""Pagure wants the name of the token's owner: set `user`."""
_DRAFT = "WIP: "
_STATES: dict[str, PullState] = {"Open": "open", "Merged": "merged"}
_JOBS: dict[str, JobState] = {"success": "passed", "pending": "running", "canceled": "failed"}


def api_of(host: str) -> str:
    return f"https://{host}/api/0"


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}", "Accept": "application/json"}


class _People(msgspec.Struct):
    owner: list[str] = []
    admin: list[str] = []
    commit: list[str] = []


class _Project(msgspec.Struct):
    full_url: str = ""
    access_users: _People = msgspec.field(default_factory=_People)


class _Branches(msgspec.Struct):
    default: str | None = None


class _User(msgspec.Struct):
    name: str = ""


class _Comment(msgspec.Struct):
    id: int
    comment: str = ""
    user: _User = msgspec.field(default_factory=_User)
    notification: bool = False
    filename: str | None = None
    line: int | None = None


class _Pull(msgspec.Struct):
    id: int
    status: str
    branch_from: str = ""
    title: str = ""
    commit_stop: str | None = None
    comments: list[_Comment] = []

    def pull(self, page: str) -> Pull:
        state = _STATES.get(self.status, "closed")
        draft = self.title.startswith(_DRAFT)
        return Pull(
            self.id, f"{page}/pull-request/{self.id}", state, draft, self.branch_from, self.commit_stop or ""
        )


class _Conversation(msgspec.Struct):
    comments: list[_Comment] = []


class _Pulls(msgspec.Struct):
    requests: list[_Pull]


class _Flag(msgspec.Struct):
    username: str
    status: str
    url: str = ""


class _Flags(msgspec.Struct):
    flags: list[_Flag]


class _Named(msgspec.Struct):
    fullname: str


class _NamedList(msgspec.Struct):
    projects: list[_Named]


async def repositories(api: Api, owner: str) -> list[str]:
    """The paths of a namespace's projects."""
    reply = await api.get("/projects", _NamedList, namespace=owner, per_page=100, fork="false")
    return [one.fullname for one in reply.projects]


class Pagure:
    """Implements `Pulls` and `Talks`."""

    def __init__(self, api: Api, path: str) -> None:
        """`path` is `name`, `namespace/name` or `fork/user/…`."""
        self._api = api
        self._at = "/" + "/".join(part(one) for one in path.split("/"))
        self._page = f"{api.base.removesuffix('/api/0')}{self._at}"

    async def access(self) -> Access:
        await self._api.get(self._at, _Project)
        reply = await self._api.ask("GET", f"{self._at}/git/branches", query={"with_commits": 0}, also=(404,))
        branch = reply.read(_Branches).default if reply.status == 200 else None
        return Access(branch or "main", may_push=True)

    async def find(self, branch: str) -> Pull | None:
        found = await self._api.get(f"{self._at}/pull-requests", _Pulls, status="all", per_page=100)
        return newest([one.pull(self._page) for one in found.requests if one.branch_from == branch])

    async def open(self, wish: PullWish) -> Pull:
        form = {
            "title": titled(wish, _DRAFT),
            "branch_from": wish.branch,
            "branch_to": wish.onto,
            "initial_comment": wish.body,
        }
        reply = await self._api.ask("POST", f"{self._at}/pull-request/new", form=form)
        made = reply.read(_Pull).pull(self._page)
        # The API sets no labels, and has one assignee instead of reviewers.
        for name in wish.reviewers[:1]:
            where = f"{self._number(made.number)}/assign"
            await self._api.ask("POST", where, form={"assignee": name}, also=(400, 401, 403, 404))
        return made

    def _number(self, number: int) -> str:
        return f"{self._at}/pull-request/{number}"

    async def update(self, number: int, wish: PullWish) -> None:
        await self._api.ask("POST", self._number(number), form=_text(wish))

    async def comment(self, number: int, text: str) -> None:
        await self.tell(Spot("pull", number), text)

    async def read(self, number: int) -> Talk:
        found = await self._api.get(self._number(number), _Pull)
        writers = await self._writers()
        remarks = tuple(
            Remark(
                str(one.id),
                one.user.name,
                one.comment,
                one.user.name in writers,
                one.filename or "",
                one.line or 0,
            )
            for one in found.comments
            if one.comment and not one.notification
        )
        flags = (await self._api.get(f"{self._number(number)}/flag", _Flags)).flags
        jobs = tuple(Job("", one.username, _JOBS.get(one.status, "failed"), one.url) for one in flags)
        return Talk(found.pull(self._page), remarks, jobs)

    async def job_log(self, job: Job) -> str | None:
        return None  # flags have an address and no log

    async def close(self, number: int) -> None:
        await self._api.ask("POST", f"{self._number(number)}/close")

    async def _writers(self) -> set[str]:
        people = (await self._api.get(self._at, _Project)).access_users
        return {*people.owner, *people.admin, *people.commit}

    async def may_write(self, person: str) -> bool:
        return person in await self._writers()

    def _spot(self, spot: Spot) -> str:
        return self._number(spot.number) if spot.kind == "pull" else f"{self._at}/issue/{spot.number}"

    async def tell(self, spot: Spot, text: str) -> None:
        await self._api.ask("POST", f"{self._spot(spot)}/comment", form={"comment": text})

    async def told(self, spot: Spot, mark: str) -> bool:
        found = await self._api.get(self._spot(spot), _Conversation)
        return any(mark in one.comment for one in found.comments)


def _text(wish: PullWish) -> dict[str, str]:
    return {"title": titled(wish, _DRAFT), "initial_comment": wish.body}
