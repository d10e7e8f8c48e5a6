"""Merge requests at GitLab, also on servers of one's own."""

import msgspec

from cloister.forge.pulls.api import (
    DRAFT_TITLE,
    Access,
    Job,
    JobState,
    Pull,
    PullState,
    PullWish,
    Remark,
    Talk,
    newest,
    titled,
)
from cloister.forge.pulls.http import Api, part

GIT_USER = "oauth2"
_DEVELOPER = 30
"""The access level that may push branches."""
_STATES: dict[str, PullState] = {"opened": "open", "locked": "open", "merged": "merged"}
_JOBS: dict[str, JobState] = {
    "success": "passed",
    "skipped": "passed",
    "manual": "passed",
    "failed": "failed",
    "canceled": "failed",
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


class _Project(msgspec.Struct):
    default_branch: str | None = None
    permissions: _Rights | None = None


class _Merge(msgspec.Struct):
    iid: int
    web_url: str
    state: str
    source_branch: str
    sha: str | None = None
    draft: bool = False

    def pull(self) -> Pull:
        state = _STATES.get(self.state, "closed")
        return Pull(self.iid, self.web_url, state, self.draft, self.source_branch, self.sha or "")


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


class _Pipeline(msgspec.Struct):
    id: int


class _Job(msgspec.Struct):
    id: int
    name: str
    status: str
    web_url: str = ""
    allow_failure: bool = False


class GitLab:
    """Implements `Pulls`."""

    def __init__(self, api: Api, path: str) -> None:
        """`path` is `group/…/name`."""
        self._api, self._at = api, f"/projects/{part(path)}"
        self._merges = f"{self._at}/merge_requests"

    async def access(self) -> Access:
        found = await self._api.get(self._at, _Project)
        rights = found.permissions or _Rights()
        levels = [one.access_level for one in (rights.project_access, rights.group_access) if one]
        may = found.permissions is None or max(levels, default=0) >= _DEVELOPER
        return Access(
            found.default_branch or "main", may, () if may else ("the role Developer in the project",)
        )

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
            "labels": ",".join(wish.labels),
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
        await self._api.ask("POST", f"{self._merges}/{number}/notes", body={"body": text})

    async def read(self, number: int) -> Talk:
        pull = (await self._api.get(f"{self._merges}/{number}", _Merge)).pull()
        notes = await self._api.pages(
            f"{self._merges}/{number}/notes", list[_Note], sort="asc", order_by="created_at"
        )
        said = [one for one in notes if not one.system]
        writers = {who: await self._may_write(who) for who in {one.author.id for one in said}}
        remarks = [_remark(one, may_write=writers[one.author.id]) for one in said]
        return Talk(pull, tuple(remarks), await self._jobs(number))

    async def _may_write(self, user: int) -> bool:
        reply = await self._api.ask("GET", f"{self._at}/members/all/{user}", also=(403, 404))
        return reply.status == 200 and reply.read(_Level).access_level >= _DEVELOPER

    async def _jobs(self, number: int) -> tuple[Job, ...]:
        pipelines = await self._api.get(f"{self._merges}/{number}/pipelines", list[_Pipeline])
        if not pipelines:
            return ()
        last = max(one.id for one in pipelines)
        jobs = await self._api.pages(f"{self._at}/pipelines/{last}/jobs", list[_Job])
        return tuple(Job(str(one.id), one.name, _state(one), one.web_url) for one in jobs)

    async def job_log(self, job: Job) -> str | None:
        return await self._api.text(f"{self._at}/jobs/{part(job.id)}/trace") if job.id else None

    async def close(self, number: int) -> None:
        await self._api.ask("PUT", f"{self._merges}/{number}", body={"state_event": "close"})


def _remark(note: _Note, *, may_write: bool) -> Remark:
    at = note.position or _Position()
    return Remark(
        str(note.id), note.author.username, note.body, may_write, at.new_path or "", at.new_line or 0
    )


def _state(job: _Job) -> JobState:
    state = _JOBS.get(job.status, "running")
    return "passed" if state == "failed" and job.allow_failure else state
