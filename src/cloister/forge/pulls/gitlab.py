"""Merge requests at GitLab, also on servers of one's own."""

import msgspec

from cloister.core.errors import OutsideError
from cloister.forge.pulls.api import (
    DRAFT_TITLE,
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
    titled,
    with_reruns,
    without_times,
    write_time,
)
from cloister.forge.pulls.http import Api, Picture, part

GIT_USER = "oauth2"
_DEVELOPER = 30
"""The access level that may push branches."""
_STATES: dict[str, PullState] = {"opened": "open", "locked": "open", "merged": "merged"}
_JOBS: dict[str, JobState] = {
    "success": "passed",
    "skipped": "passed",
    "manual": "passed",
    "failed": "failed",
    "canceled": "cancelled",
    "canceling": "cancelled",
}


def api_of(host: str) -> str:
    return f"https://{host}/api/v4"


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Accept": "application/json"}


class _Level(msgspec.Struct):
    access_level: int = 0


class _Rights(msgspec.Struct):
    project_access: _Level | None = None
    group_access: _Level | None = None


class _Token(msgspec.Struct):
    scopes: list[str] = []


class _Project(msgspec.Struct):
    default_branch: str | None = None
    permissions: _Rights | None = None


class _Merge(msgspec.Struct):
    iid: int
    web_url: str
    state: str
    source_branch: str
    target_branch: str = ""
    sha: str | None = None
    draft: bool = False
    has_conflicts: bool = False

    def pull(self) -> Pull:
        state = _STATES.get(self.state, "closed")
        where = self.source_branch, self.sha or ""
        return Pull(self.iid, self.web_url, state, self.draft, *where, self.has_conflicts)


class _User(msgspec.Struct):
    id: int
    username: str = ""


class _Position(msgspec.Struct):
    new_path: str | None = None
    new_line: int | None = None


class _Note(msgspec.Struct):
    id: int
    body: str
    author: _User
    system: bool = False
    position: _Position | None = None
    created_at: str = ""


class _Topic(msgspec.Struct):
    """An issue or a merge request."""

    iid: int
    title: str
    author: _User
    description: str | None = None
    web_url: str = ""
    created_at: str = ""
    updated_at: str = ""
    source_branch: str | None = None

    def topic(self) -> Topic:
        kind = "issue" if self.source_branch is None else "pull"
        opened = _saying("opened", self.author, self.created_at, self.description or "")
        ref = None if self.source_branch is None else f"refs/merge-requests/{self.iid}/head"
        return Topic(Spot(kind, self.iid), self.title, opened, read_time(self.updated_at), self.web_url, ref)


class _Name(msgspec.Struct):
    name: str = ""


class _Labelled(msgspec.Struct):
    id: int
    action: str = ""
    user: _User | None = None
    label: _Name | None = None
    created_at: str = ""


def _saying(name: str, author: _User, at: str, text: str = "") -> Saying:
    return Saying(name, str(author.id), author.username, read_time(at), text)


class _Pipeline(msgspec.Struct):
    id: int


class _Job(msgspec.Struct):
    id: int
    name: str
    status: str
    web_url: str = ""
    allow_failure: bool = False


class _Named(msgspec.Struct):
    path_with_namespace: str


class _Upload(msgspec.Struct):
    url: str


async def repositories(api: Api, owner: str) -> list[str]:
    """The paths of the projects of a group with its subgroups, or of a person, that are not archived."""
    try:
        found = await api.pages(
            f"/groups/{part(owner)}/projects", list[_Named], include_subgroups="true", archived="false"
        )
    except OutsideError as error:
        if error.code != "forge_missing":
            raise
        found = await api.pages(f"/users/{part(owner)}/projects", list[_Named], archived="false")
    return [one.path_with_namespace for one in found]


class GitLab:
    """Implements `Pulls` and `Talks`."""

    def __init__(self, api: Api, path: str) -> None:
        """`path` is `group/…/name`."""
        self._api, self._at = api, f"/projects/{part(path)}"
        self._merges = f"{self._at}/merge_requests"

    async def access(self) -> Access:
        found = await self._api.get(self._at, _Project)
        rights = found.permissions or _Rights()
        levels = [one.access_level for one in (rights.project_access, rights.group_access) if one]
        may = found.permissions is None or max(levels, default=0) >= _DEVELOPER
        lacks = () if may else ("the role Developer in the project",)
        # Tokens of OAuth and of jobs are none of these, and read-only ones may not ask.
        reply = await self._api.ask("GET", "/personal_access_tokens/self", also=(400, 401, 403, 404))
        if reply.status == 200 and "api" not in reply.read(_Token).scopes:
            lacks = (*lacks, "the scope api")
        return Access(found.default_branch or "main", not lacks, lacks)

    async def find(self, branch: str) -> Pull | None:
        found = await self._api.get(
            self._merges, list[_Merge], source_branch=branch, state="all", per_page=100
        )
        return newest([one.pull() for one in found if one.source_branch == branch])

    async def open(self, wish: PullWish) -> Pull:
        reviewers = [one for name in wish.reviewers for one in await self._user(name)]
        new = {
            "source_branch": wish.branch,
            "target_branch": wish.onto,
            "title": titled(wish, DRAFT_TITLE),
            "description": wish.body,
            "labels": wish.labels,
            "reviewer_ids": reviewers,
            "remove_source_branch": True,
        }
        return (await self._api.send("POST", self._merges, new, _Merge)).pull()

    async def _user(self, name: str) -> list[int]:
        found = await self._api.get("/users", list[_User], username=name)
        return [one.id for one in found if one.username == name]

    async def update(self, number: int, wish: PullWish) -> None:
        body = {"title": titled(wish, DRAFT_TITLE), "description": wish.body}
        await self._api.ask("PUT", f"{self._merges}/{number}", body=body)

    async def comment(self, number: int, text: str) -> None:
        await self.tell(Spot("pull", number), text)

    async def read(self, number: int) -> Talk:
        found = await self._api.get(f"{self._merges}/{number}", _Merge)
        notes = await self._api.pages(
            f"{self._merges}/{number}/notes", list[_Note], sort="asc", order_by="created_at"
        )
        said = [one for one in notes if not one.system]
        writers = {who: await self._may_write(who) for who in {one.author.id for one in said}}
        remarks = [_remark(one, may_write=writers[one.author.id]) for one in said]
        pipelines = await self._api.get(f"{self._merges}/{number}/pipelines", list[_Pipeline])
        last = max((one.id for one in pipelines), default=None)
        jobs, base = await self._jobs(last, retried=False), tuple[Job, ...]()
        if failed(jobs):
            jobs = with_reruns(jobs, await self._jobs(last, retried=True))
            base = await self._jobs(await self._newest(found.target_branch), retried=False)
        return Talk(found.pull(), tuple(remarks), jobs, base)

    async def _newest(self, branch: str) -> int | None:
        """The pipeline of the branch's newest commit."""
        where = f"{self._at}/pipelines/latest"
        reply = await self._api.ask("GET", where, query={"ref": branch}, also=(403, 404))
        return reply.read(_Pipeline).id if reply.status == 200 else None

    async def _may_write(self, user: int) -> bool:
        reply = await self._api.ask("GET", f"{self._at}/members/all/{user}", also=(403, 404))
        return reply.status == 200 and reply.read(_Level).access_level >= _DEVELOPER

    async def _jobs(self, pipeline: int | None, *, retried: bool) -> tuple[Job, ...]:
        if pipeline is None:
            return ()
        where = f"{self._at}/pipelines/{pipeline}/jobs"
        also: dict[str, str | int] = {"include_retried": "true"} if retried else {}
        jobs = await self._api.pages(where, list[_Job], **also)
        return tuple(Job(str(one.id), one.name, _state(one), one.web_url) for one in jobs)

    async def job_log(self, job: Job) -> str | None:
        where = f"{self._at}/jobs/{part(job.id)}/trace"
        return without_times(await self._api.text(where)) if job.id else None

    async def upload(self, number: int, name: str, data: bytes) -> str | None:
        reply = await self._api.ask("POST", f"{self._at}/uploads", form=Picture("file", name, data))
        return reply.read(_Upload).url

    async def close(self, number: int) -> None:
        await self._api.ask("PUT", f"{self._merges}/{number}", body={"state_event": "close"})

    async def may_write(self, person: str) -> bool:
        return person.isdigit() and await self._may_write(int(person))

    def _place(self, spot: Spot) -> str:
        return f"{self._merges if spot.kind == 'pull' else f'{self._at}/issues'}/{spot.number}"

    def _notes(self, spot: Spot) -> str:
        return f"{self._place(spot)}/notes"

    async def tell(self, spot: Spot, text: str) -> None:
        await self._api.ask("POST", self._notes(spot), body={"body": text})

    async def told(self, spot: Spot, mark: str) -> bool:
        found = await self._api.pages(self._notes(spot), list[_Note])
        return any(mark in one.body for one in found)

    async def labelled(self, label: str) -> tuple[Topic, ...]:
        places = (f"{self._at}/issues", self._merges)
        found = [await self._api.pages(one, list[_Topic], labels=label, state="opened") for one in places]
        return tuple(one.topic() for topics in found for one in topics)

    async def labeller(self, topic: Topic, label: str) -> Saying | None:
        where = f"{self._place(topic.spot)}/resource_label_events"
        for one in reversed(await self._api.pages(where, list[_Labelled])):
            named = one.label is not None and one.label.name.casefold() == label.casefold()
            if one.action == "add" and named and one.user is not None:
                return _saying(f"label {one.id}", one.user, one.created_at)
        return None

    async def changed(self, since: float) -> tuple[Topic, ...]:
        at = write_time(since)
        places = (f"{self._at}/issues", self._merges)
        found = [await self._api.pages(one, list[_Topic], updated_after=at) for one in places]
        return tuple(one.topic() for topics in found for one in topics)

    async def said(self, topic: Topic) -> tuple[Saying, ...]:
        notes = await self._api.pages(self._notes(topic.spot), list[_Note])
        return tuple(
            _saying(f"note {one.id}", one.author, one.created_at, one.body) for one in notes if not one.system
        )


def _remark(note: _Note, *, may_write: bool) -> Remark:
    at = note.position or _Position()
    return Remark(
        str(note.id), note.author.username, note.body, may_write, at.new_path or "", at.new_line or 0
    )


def _state(job: _Job) -> JobState:
    state = _JOBS.get(job.status, "running")
    return "passed" if state == "failed" and job.allow_failure else state
