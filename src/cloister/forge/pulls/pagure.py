"""Pull requests at Pagure."""

import re

import msgspec
from msgspec.structs import replace

from cloister.forge.pulls.api import (
    Access,
    Job,
    JobState,
    Pull,
    PullState,
    PullWish,
    Remark,
    Saying,
    Spot,
    Talk,
    Topic,
    failed,
    newest,
    titled,
    with_reruns,
)
from cloister.forge.pulls.http import Api, part

GIT_USER = "cloister"
"""Pagure wants the name of the token's owner: set `user`."""
_DRAFT = "WIP: "
_STATES: dict[str, PullState] = {"Open": "open", "Merged": "merged"}
_JOBS: dict[str, JobState] = {"success": "passed", "pending": "running", "canceled": "cancelled"}


def api_of(host: str) -> str:
    return f"https://{host}/api/0"


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}", "Accept": "application/json"}


class _People(msgspec.Struct):
    owner: list[str] = []
    admin: list[str] = []
    commit: list[str] = []

    @property
    def writers(self) -> set[str]:
        return {*self.owner, *self.admin, *self.commit}


class _Project(msgspec.Struct):
    access_users: _People = msgspec.field(default_factory=_People)
    access_groups: _People = msgspec.field(default_factory=_People)


class _Branches(msgspec.Struct):
    default: str | None = None


class _Tips(msgspec.Struct):
    branches: dict[str, str] = {}


class _User(msgspec.Struct):
    name: str = ""


class _Comment(msgspec.Struct):
    id: int
    comment: str = ""
    user: _User = msgspec.field(default_factory=_User)
    notification: bool = False
    filename: str | None = None
    line: int | None = None
    date_created: str = ""

    def saying(self) -> Saying:
        name, who = f"comment {self.id}", self.user.name
        return Saying(name, who, who, _seconds(self.date_created), self.comment)


class _Pull(msgspec.Struct):
    id: int
    status: str
    branch_from: str = ""
    branch: str = ""
    """The branch that it should be merged into."""
    title: str = ""
    commit_stop: str | None = None
    comments: list[_Comment] = []

    def pull(self, page: str) -> Pull:
        state = _STATES.get(self.status, "closed")
        draft = self.title.startswith(_DRAFT)
        return Pull(
            self.id, f"{page}/pull-request/{self.id}", state, draft, self.branch_from, self.commit_stop or ""
        )


class _Topic(msgspec.Struct):
    """An issue or a pull request."""

    id: int
    title: str = ""
    content: str | None = None
    initial_comment: str | None = None
    branch_from: str | None = None
    user: _User = msgspec.field(default_factory=_User)
    tags: list[str] = []
    date_created: str = ""
    last_updated: str = ""
    comments: list[_Comment] = []

    def topic(self, page: str) -> Topic:
        kind = "issue" if self.branch_from is None else "pull"
        where = "issue" if self.branch_from is None else "pull-request"
        who, text = self.user.name, self.content or self.initial_comment or ""
        opened = Saying("opened", who, who, _seconds(self.date_created), text)
        ref = None if self.branch_from is None else f"refs/pull/{self.id}/head"
        spot, updated = Spot(kind, self.id), _seconds(self.last_updated)
        return Topic(spot, self.title, opened, updated, f"{page}/{where}/{self.id}", ref)


class _Issues(msgspec.Struct):
    issues: list[_Topic]


class _Requests(msgspec.Struct):
    requests: list[_Topic]


class _Self(msgspec.Struct):
    username: str


_TAGGED = re.compile(r"(?<!\*)tagged with: (.+)")
"""In the comment that Pagure writes when a person adds tags; of removed ones it says `**un**tagged with`."""


def _seconds(text: str) -> float:
    """A time; old servers write whole seconds. 0 for anything else."""
    try:
        at = float(text)
    except ValueError:
        return 0.0
    return at if 0 <= at < 2**53 else 0.0


class _Pulls(msgspec.Struct):
    requests: list[_Pull]


class _Flag(msgspec.Struct):
    username: str
    status: str
    url: str = ""
    date_updated: str = ""

    def job(self) -> Job:
        return Job("", self.username, _JOBS.get(self.status, "failed"), self.url)


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
        project = await self._api.get(self._at, _Project)
        who = await self._api.ask("POST", "/-/whoami", also=(404, 405))
        # Old servers do not say whose the token is, and none names the members of groups here.
        groups = project.access_groups.admin + project.access_groups.commit
        may = bool(who.status != 200 or groups or who.read(_Self).username in project.access_users.writers)
        reply = await self._api.ask("GET", f"{self._at}/git/branches", query={"with_commits": 0}, also=(404,))
        branch = reply.read(_Branches).default if reply.status == 200 else None
        lacks = () if may else ("commit access of its owner to the project",)
        return Access(branch or "main", may, lacks)

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
        jobs, base = await self._jobs(self._number(number)), tuple[Job, ...]()
        if failed(jobs):
            where = f"{self._at}/git/branches"
            tips = (await self._api.get(where, _Tips, with_commits=1)).branches
            tip = tips.get(found.branch, "")
            base = await self._jobs(f"{self._at}/c/{part(tip)}") if tip else ()
        return Talk(found.pull(self._page), remarks, jobs, base)

    async def _jobs(self, at: str) -> tuple[Job, ...]:
        """The newest flag of each CI at a pull request or a commit."""
        flags = (await self._api.get(f"{at}/flag", _Flags)).flags
        flags.sort(key=lambda one: one.date_updated)
        newest = {one.username: one for one in flags}
        return with_reruns([one.job() for one in newest.values()], [one.job() for one in flags])

    async def job_log(self, job: Job) -> str | None:
        return None  # flags have an address and no log

    async def upload(self, number: int, name: str, data: bytes) -> str | None:
        return None  # its API takes files for issues only

    async def close(self, number: int) -> None:
        await self._api.ask("POST", f"{self._number(number)}/close")

    async def _writers(self) -> set[str]:
        return (await self._api.get(self._at, _Project)).access_users.writers

    async def may_write(self, person: str) -> bool:
        return person in await self._writers()

    def _spot(self, spot: Spot) -> str:
        return self._number(spot.number) if spot.kind == "pull" else f"{self._at}/issue/{spot.number}"

    async def tell(self, spot: Spot, text: str) -> None:
        await self._api.ask("POST", f"{self._spot(spot)}/comment", form={"comment": text})

    async def told(self, spot: Spot, mark: str) -> bool:
        return any(mark in one.comment for one in await self._comments(spot))

    async def _comments(self, spot: Spot) -> list[_Comment]:
        return (await self._api.get(self._spot(spot), _Topic)).comments

    async def _topics(self, *, status: str, **issues: str | int) -> list[_Topic]:
        """Pull requests in a state, and issues in it that fit a query."""
        where = f"{self._at}/pull-requests"
        found = (await self._api.get(where, _Requests, status=status, per_page=100)).requests
        reply = await self._api.ask(
            "GET",
            f"{self._at}/issues",
            query={"status": status, "per_page": 100, **issues},
            also=(404,),
        )
        return found + (reply.read(_Issues).issues if reply.status == 200 else [])  # 404: it has no issues

    async def labelled(self, label: str) -> tuple[Topic, ...]:
        found = await self._topics(status="Open", tags=label)
        return tuple(one.topic(self._page) for one in found if label in one.tags)

    async def labeller(self, topic: Topic, label: str) -> Saying | None:
        found = await self._api.get(self._spot(topic.spot), _Topic)
        for one in reversed(found.comments):
            tags = [tag.strip() for line in _TAGGED.findall(one.comment) for tag in line.split(",")]
            if one.notification and label in tags:
                return replace(one.saying(), text="")
        # No comment says so of a tag that an issue was opened with.
        return replace(topic.opened, id=f"label {label}", text="") if label in found.tags else None

    async def changed(self, since: float) -> tuple[Topic, ...]:
        found = await self._topics(status="all", since=int(since))
        return tuple(one.topic(self._page) for one in found if _seconds(one.last_updated) >= int(since))

    async def said(self, topic: Topic) -> tuple[Saying, ...]:
        found = await self._comments(topic.spot)
        return tuple(one.saying() for one in found if one.comment and not one.notification)


def _text(wish: PullWish) -> dict[str, str]:
    return {"title": titled(wish, _DRAFT), "initial_comment": wish.body}
