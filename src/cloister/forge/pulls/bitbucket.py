"""Pull requests at Bitbucket Cloud."""

import re
from typing import TypeVar

import msgspec

from cloister.core.errors import OutsideError
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
    read_time,
    with_reruns,
    write_time,
)
from cloister.forge.pulls.http import Api, part

GIT_USER = "x-token-auth"
_STATES: dict[str, PullState] = {"OPEN": "open", "MERGED": "merged"}
_JOBS: dict[str, JobState] = {"SUCCESSFUL": "passed", "INPROGRESS": "running", "STOPPED": "cancelled"}
_PIPELINE = re.compile(r"(Pipeline|Build) #[0-9]+( for .+)")
"""What Pipelines calls itself; each run and branch has another one."""
_EVERY_STATE = ("OPEN", "MERGED", "DECLINED", "SUPERSEDED")
_PAGES = 20
_T = TypeVar("_T")


def api_of(host: str) -> str:
    return "https://api.bitbucket.org/2.0" if host == "bitbucket.org" else f"https://{host}/2.0"


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Accept": "application/json"}


class _Name(msgspec.Struct):
    name: str = ""


class _Commit(msgspec.Struct):
    hash: str = ""


class _Repository(msgspec.Struct):
    mainbranch: _Name | None = None


class _End(msgspec.Struct):
    branch: _Name
    commit: _Commit | None = None


class _Link(msgspec.Struct):
    href: str = ""


class _Links(msgspec.Struct):
    html: _Link


class _Pull(msgspec.Struct):
    id: int
    state: str
    source: _End
    links: _Links
    destination: _End | None = None
    draft: bool = False

    def pull(self) -> Pull:
        commit = self.source.commit.hash if self.source.commit else ""
        state = _STATES.get(self.state, "closed")
        return Pull(self.id, self.links.html.href, state, self.draft, self.source.branch.name, commit)


class _User(msgspec.Struct):
    uuid: str = ""
    nickname: str = ""
    display_name: str = ""


class _Text(msgspec.Struct):
    raw: str = ""


class _Inline(msgspec.Struct):
    path: str = ""
    to: int | None = None


class _Comment(msgspec.Struct):
    id: int
    content: _Text = msgspec.field(default_factory=_Text)
    user: _User | None = None
    deleted: bool = False
    inline: _Inline | None = None
    created_on: str = ""


class _Topic(msgspec.Struct):
    """An issue or a pull request."""

    id: int
    title: str = ""
    links: _Links | None = None
    reporter: _User | None = None
    author: _User | None = None
    content: _Text | None = None
    description: str | None = None
    source: _End | None = None
    created_on: str = ""
    updated_on: str = ""

    def topic(self) -> Topic:
        spot = Spot("issue" if self.source is None else "pull", self.id)
        text = self.content.raw if self.content else self.description or ""
        opened = _saying("opened", self.reporter or self.author, self.created_on, text)
        url, updated = self.links.html.href if self.links else "", read_time(self.updated_on)
        return Topic(spot, self.title, opened, updated, url, self.source.branch.name if self.source else None)


def _saying(name: str, user: _User | None, at: str, text: str) -> Saying:
    who = user or _User()
    return Saying(name, who.uuid, who.nickname or who.display_name, read_time(at), text)


class _Status(msgspec.Struct):
    key: str
    state: str
    name: str | None = None
    url: str = ""
    updated_on: str = ""

    def job(self) -> Job:
        name = self.name or self.key
        found = _PIPELINE.fullmatch(name)
        return Job("", found[1] if found else name, _JOBS.get(self.state, "failed"), self.url)

    @property
    def of(self) -> str:
        """The same for a run and its repetition."""
        found = _PIPELINE.fullmatch(self.name or "")
        return found[1] + found[2] if found else self.key


class _Branch(msgspec.Struct):
    target: _Commit


class _Permission(msgspec.Struct):
    permission: str


class _Person(msgspec.Struct, frozen=True):
    uuid: str = ""


class _Right(msgspec.Struct):
    permission: str
    user: _Person = _Person()


_WRITERS = ("write", "admin")
_UUID = re.compile(r"\{[\w-]{1,64}\}")
_NEW_SCOPE = re.compile(r"\b(\w{1,40}):(\w{1,40}):bitbucket")
_REFUSED = (401, 402, 403)
_DEAF = (
    "the right to see who may push (of an administrator of the repository, with the scope repository:admin or account), "
    "without which no comment or mention is heard"
)


class _Page(msgspec.Struct):
    values: list[msgspec.Raw]
    next: str | None = None


class _Named(msgspec.Struct):
    full_name: str


async def _pages(api: Api, path: str, kind: type[_T], **query: str | int) -> list[_T]:
    found: list[_T] = []
    page = 1
    while page <= _PAGES:
        reply = await api.get(path, _Page, pagelen=50, page=page, **query)
        found += [msgspec.json.decode(one, type=kind, strict=False) for one in reply.values]
        if reply.next is None or not reply.values:
            break
        page += 1
    return found


async def repositories(api: Api, owner: str) -> list[str]:
    """The paths of a workspace's repositories."""
    return [one.full_name for one in await _pages(api, f"/repositories/{part(owner)}", _Named)]


class Bitbucket:
    """Implements `Pulls` and `Talks`."""

    def __init__(self, api: Api, path: str) -> None:
        """`path` is `workspace/name`."""
        owner, _, name = path.partition("/")
        self._api = api
        self._at = f"/repositories/{part(owner)}/{part(name)}"
        self._rights = f"/workspaces/{part(owner)}/permissions/repositories/{part(name)}"
        self._pulls = f"{self._at}/pullrequests"

    async def access(self) -> Access:
        reply = await self._api.ask("GET", self._at)
        branch = reply.read(_Repository).mainbranch
        # Newer tokens have `write:pullrequest:bitbucket` for `pullrequest:write`, which includes `repository:write`.
        scopes = _NEW_SCOPE.sub(r"\2:\1", reply.headers.get("x-oauth-scopes", ""))
        wanted = ("repository:write", "pullrequest:write")
        lacks = tuple(
            f"the scope {one}" for one in wanted if scopes and one not in scopes and wanted[1] not in scopes
        )
        deaf = (
            () if await self._permission("{00000000-0000-0000-0000-000000000000}") is not None else (_DEAF,)
        )
        return Access(branch.name if branch else "main", not lacks, (*lacks, *deaf))

    async def _all(self, path: str, kind: type[_T], **query: str | int) -> list[_T]:
        return await _pages(self._api, path, kind, **query)

    async def find(self, branch: str) -> Pull | None:
        quoted = branch.replace("\\", "\\\\").replace('"', '\\"')
        states = " OR ".join(f'state="{one}"' for one in _EVERY_STATE)
        query = f'source.branch.name="{quoted}" AND ({states})'
        found = await self._all(self._pulls, _Pull, q=query)
        return newest([one.pull() for one in found if one.source.branch.name == branch])

    async def open(self, wish: PullWish) -> Pull:
        new: dict[str, object] = {
            "title": wish.title,
            "description": wish.body,
            "source": {"branch": {"name": wish.branch}},
            "destination": {"branch": {"name": wish.onto}},
            "draft": wish.draft,
            "close_source_branch": True,
        }
        # Labels do not exist here; reviewers are named by their UUIDs.
        if reviewers := [{"uuid": one} for one in wish.reviewers if one.startswith("{")]:
            new["reviewers"] = reviewers
        return (await self._api.send("POST", self._pulls, new, _Pull)).pull()

    async def update(self, number: int, wish: PullWish) -> None:
        body = {"title": wish.title, "description": wish.body, "draft": wish.draft}
        await self._api.ask("PUT", f"{self._pulls}/{number}", body=body)

    async def comment(self, number: int, text: str) -> None:
        await self.tell(Spot("pull", number), text)

    async def read(self, number: int) -> Talk:
        found = await self._api.get(f"{self._pulls}/{number}", _Pull)
        said = [
            one
            for one in await self._all(f"{self._pulls}/{number}/comments", _Comment, sort="created_on")
            if one.user and not one.deleted and one.content.raw
        ]
        rights = {who: await self._permission(who) for who in {one.user.uuid for one in said if one.user}}
        writers = {who: right in _WRITERS for who, right in rights.items()}
        deaf = f"the token lacks {_DEAF}" if None in rights.values() else ""
        remarks = [_remark(one, one.user, writers) for one in said if one.user]
        jobs, base = await self._jobs(f"{self._pulls}/{number}"), tuple[Job, ...]()
        if failed(jobs) and found.destination is not None:
            base = await self._base_jobs(found.destination.branch.name)
        return Talk(found.pull(), tuple(remarks), jobs, base, deaf)

    async def _jobs(self, at: str) -> tuple[Job, ...]:
        """The newest status of each job of a pull request or a commit."""
        found = sorted(await self._all(f"{at}/statuses", _Status), key=lambda one: one.updated_on)
        last = {one.of: one for one in found}
        return with_reruns([one.job() for one in last.values()], [one.job() for one in found])

    async def _base_jobs(self, branch: str) -> tuple[Job, ...]:
        reply = await self._api.ask("GET", f"{self._at}/refs/branches/{part(branch)}", also=(404,))
        if reply.status != 200:
            return ()
        return await self._jobs(f"{self._at}/commit/{part(reply.read(_Branch).target.hash)}")

    async def _permission(self, who: str) -> str | None:
        """What a person may do; "none" for a stranger, None if the token may not ask. Only administrators may."""
        if not _UUID.fullmatch(who):
            return "none"
        # With the rights that groups and projects give.
        asked = {"q": f'user.uuid="{who}"'}
        reply = await self._api.ask("GET", self._rights, query=asked, also=(*_REFUSED, 404))
        if reply.status == 200:
            found = [msgspec.json.decode(one, type=_Right) for one in reply.read(_Page).values]
            return next((one.permission for one in found if one.user.uuid == who), "none")
        # The token of one repository may not ask the workspace. This names rights that a person has without a group.
        where = f"{self._at}/permissions-config/users/{part(who)}"
        reply = await self._api.ask("GET", where, also=(*_REFUSED, 404))
        if reply.status in _REFUSED:
            return None
        return reply.read(_Permission).permission if reply.status == 200 else "none"

    async def job_log(self, job: Job) -> str | None:
        return None  # statuses have an address and no log

    async def upload(self, number: int, name: str, data: bytes) -> str | None:
        return None  # its API takes files as downloads of the repository only

    async def close(self, number: int) -> None:
        if (await self._api.get(f"{self._pulls}/{number}", _Pull)).state == "OPEN":
            await self._api.ask("POST", f"{self._pulls}/{number}/decline")

    async def may_write(self, person: str) -> bool:
        if (right := await self._permission(person)) is None:
            raise OutsideError("forge_silent", f"The token for {self._api.host} lacks {_DEAF}.")
        return right in _WRITERS

    def _comments(self, spot: Spot) -> str:
        return f"{self._pulls if spot.kind == 'pull' else f'{self._at}/issues'}/{spot.number}/comments"

    async def tell(self, spot: Spot, text: str) -> None:
        await self._api.ask("POST", self._comments(spot), body={"content": {"raw": text}})

    async def told(self, spot: Spot, mark: str) -> bool:
        found = await self._all(self._comments(spot), _Comment, sort="created_on")
        return any(mark in one.content.raw for one in found)

    async def labelled(self, label: str) -> tuple[Topic, ...]:
        del label
        return ()  # Bitbucket has no labels

    async def labeller(self, topic: Topic, label: str) -> Saying | None:
        del topic, label
        return None

    async def changed(self, since: float) -> tuple[Topic, ...]:
        query = f"updated_on>={write_time(since)}"
        states = " OR ".join(f'state="{one}"' for one in _EVERY_STATE)
        found = await self._all(self._pulls, _Topic, q=f"{query} AND ({states})")
        try:
            found += await self._all(f"{self._at}/issues", _Topic, q=query)
        except OutsideError as error:  # a repository without a tracker of issues
            if error.code != "forge_missing":
                raise
        return tuple(one.topic() for one in found)

    async def said(self, topic: Topic) -> tuple[Saying, ...]:
        found = await self._all(self._comments(topic.spot), _Comment, sort="created_on")
        return tuple(
            _saying(f"comment {one.id}", one.user, one.created_on, one.content.raw)
            for one in found
            if one.user and not one.deleted and one.content.raw
        )


def _remark(comment: _Comment, user: _User, writers: dict[str, bool]) -> Remark:
    at = comment.inline or _Inline()
    who = user.nickname or user.display_name
    return Remark(str(comment.id), who, comment.content.raw, writers[user.uuid], at.path, at.to or 0)
