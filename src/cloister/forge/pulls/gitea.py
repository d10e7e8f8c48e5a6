"""Pull requests at Gitea and Forgejo, whose replies are formed like GitHub's."""

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from cloister.core.errors import OutsideError
from cloister.forge.pulls.api import (
    Access,
    Job,
    JobState,
    Pull,
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
from cloister.forge.pulls.github import Head, Issue, Label, Repository, User, login, may_write
from cloister.forge.pulls.http import Api, Picture, part

GIT_USER = "cloister"
"""Any name: the token is the password."""
_DRAFT = "WIP: "
_JOBS: dict[str, JobState] = {
    "success": "passed",
    "warning": "passed",
    "skipped": "passed",
    "pending": "running",
}
_EVENT = re.compile(r"\([a-z_]+\)")
"""The end of the name of a job of Actions: what began it, which is another event on the base."""
_ACTION = re.compile(r"/actions/runs/[0-9]+/jobs/([0-9]{1,18})$")
"""The end of the address of a job of Actions."""


def api_of(host: str) -> str:
    return f"https://{host}/api/v1"


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}", "Accept": "application/json"}


class _Pull(msgspec.Struct):
    number: int
    html_url: str
    state: str
    head: Head
    base: Head = msgspec.field(default_factory=Head)
    title: str = ""
    merged: bool = False
    draft: bool = False

    def pull(self) -> Pull:
        state = "merged" if self.merged else "open" if self.state == "open" else "closed"
        draft = self.draft or self.title.startswith(_DRAFT)
        return Pull(self.number, self.html_url, state, draft, self.head.ref, self.head.sha)


class _Comment(msgspec.Struct):
    id: int
    body: str = ""
    user: User | None = None
    path: str = ""
    position: int = 0
    created_at: str = ""
    submitted_at: str = ""
    comments_count: int = 0


class _Status(msgspec.Struct):
    context: str
    status: str
    target_url: str = ""


class _Happened(msgspec.Struct):
    id: int
    type: str = ""
    body: str = ""
    """Of a label: `1` if it was added."""
    user: User | None = None
    label: Label | None = None
    created_at: str = ""


class _Statuses(msgspec.Struct):
    sha: str = ""
    statuses: list[_Status] | None = None


class _ActionJob(msgspec.Struct):
    id: int
    name: str
    head_sha: str = ""


class _Label(msgspec.Struct):
    id: int
    name: str


class _Named(msgspec.Struct):
    full_name: str
    archived: bool = False


class _Asset(msgspec.Struct):
    browser_download_url: str


async def repositories(api: Api, owner: str) -> list[str]:
    """The paths of the repositories of an organisation or a person that are not archived."""
    try:
        found = await api.pages(f"/orgs/{part(owner)}/repos", list[_Named], limit=50)
    except OutsideError as error:
        if error.code != "forge_missing":
            raise
        found = await api.pages(f"/users/{part(owner)}/repos", list[_Named], limit=50)
    return [one.full_name for one in found if not one.archived]


def _without_events(jobs: Sequence[Job]) -> tuple[Job, ...]:
    return tuple(replace(one, name=_without_event(one.name)) for one in jobs)


def _without_event(name: str) -> str:
    job, _, event = name.rpartition(" ")
    return job if " / " in job and _EVENT.fullmatch(event) else name


def _job(status: _Status, log_id: str = "") -> Job:
    return Job(log_id, status.context, _JOBS.get(status.status, "failed"), status.target_url)


class Gitea:
    """Implements `Pulls` and `Talks`."""

    def __init__(self, api: Api, path: str) -> None:
        """`path` is `owner/name`."""
        owner, _, name = path.partition("/")
        self._api, self._at = api, f"/repos/{part(owner)}/{part(name)}"

    async def access(self) -> Access:
        found = await self._api.get(self._at, Repository)
        may = found.permissions is None or found.permissions.push
        return Access(found.default_branch, may, () if may else ("write access to the repository",))

    async def find(self, branch: str) -> Pull | None:
        found = await self._api.pages(
            f"{self._at}/pulls", list[_Pull], state="all", sort="recentupdate", limit=50
        )
        return newest([one.pull() for one in found if one.head.ref == branch])

    async def open(self, wish: PullWish) -> Pull:
        new: dict[str, object] = {
            "title": titled(wish, _DRAFT),
            "body": wish.body,
            "head": wish.branch,
            "base": wish.onto,
        }
        if wish.labels:
            there = await self._api.pages(f"{self._at}/labels", list[_Label], limit=50)
            new["labels"] = [one.id for one in there if one.name in wish.labels]
        made = await self._api.send("POST", f"{self._at}/pulls", new, _Pull)
        if wish.reviewers:
            where = f"{self._at}/pulls/{made.number}/requested_reviewers"
            await self._api.ask("POST", where, body={"reviewers": wish.reviewers}, also=(403, 404, 422))
        return made.pull()

    async def update(self, number: int, wish: PullWish) -> None:
        body = {"title": titled(wish, _DRAFT), "body": wish.body}
        await self._api.ask("PATCH", f"{self._at}/pulls/{number}", body=body)

    async def comment(self, number: int, text: str) -> None:
        await self._api.ask("POST", f"{self._at}/issues/{number}/comments", body={"body": text})

    async def read(self, number: int) -> Talk:
        at = f"{self._at}/pulls/{number}"
        found = await self._api.get(at, _Pull)
        entries = [
            ("issue", one)
            for one in await self._api.get(f"{self._at}/issues/{number}/comments", list[_Comment])
        ]
        for review in await self._api.pages(f"{at}/reviews", list[_Comment], limit=50):
            entries.append(("review", review))
            if review.comments_count:
                lines = await self._api.get(f"{at}/reviews/{review.id}/comments", list[_Comment])
                entries += [("line", one) for one in lines]
        said = sorted(
            ((kind, one) for kind, one in entries if one.body and one.user and one.user.login),
            key=lambda entry: entry[1].created_at or entry[1].submitted_at,
        )
        writers = {
            who: await may_write(self._api, self._at, who) for who in {login(one.user) for _, one in said}
        }
        remarks = [
            Remark(
                f"{kind}-{one.id}",
                login(one.user),
                one.body,
                writers[login(one.user)],
                one.path,
                one.position,
            )
            for kind, one in said
        ]
        pull = found.pull()
        jobs, base = await self._jobs(pull.commit), tuple[Job, ...]()
        if failed(jobs):
            where = f"{self._at}/commits/{part(pull.commit)}/statuses"
            jobs = with_reruns(
                jobs, [_job(one) for one in await self._api.pages(where, list[_Status], limit=50)]
            )
            base = await self._jobs(found.base.ref) if found.base.ref else ()
        return Talk(pull, tuple(remarks), _without_events(jobs), _without_events(base))

    async def _jobs(self, commit: str) -> tuple[Job, ...]:
        """The newest run of each job of a commit, or of a branch's newest commit."""
        reply = await self._api.ask("GET", f"{self._at}/commits/{part(commit)}/status", also=(404,))
        found = reply.read(_Statuses) if reply.status == 200 else _Statuses()
        return tuple([_job(one, await self._log_id(one, found.sha)) for one in found.statuses or ()])

    async def _log_id(self, status: _Status, commit: str) -> str:
        """The number of the job of Actions behind a failed status; empty where the server or another CI has none.

        Servers have put other numbers into this address, so the job must be the one of the status.
        """
        at = _ACTION.search(status.target_url)
        if at is None or not commit or _JOBS.get(status.status, "failed") != "failed":
            return ""
        reply = await self._api.ask("GET", f"{self._at}/actions/jobs/{at[1]}", also=(403, 404))
        job = reply.read(_ActionJob) if reply.status == 200 else _ActionJob(0, "")
        same = job.head_sha == commit and f" / {job.name} (" in status.context
        return str(job.id) if same else ""

    async def job_log(self, job: Job) -> str | None:
        where = f"{self._at}/actions/jobs/{part(job.id)}/logs"
        return without_times(await self._api.text(where)) if job.id else None

    async def upload(self, number: int, name: str, data: bytes) -> str | None:
        where = f"{self._at}/issues/{number}/assets"
        reply = await self._api.ask(
            "POST", where, query={"name": name}, form=Picture("attachment", name, data)
        )
        return reply.read(_Asset).browser_download_url

    async def close(self, number: int) -> None:
        await self._api.ask("PATCH", f"{self._at}/pulls/{number}", body={"state": "closed"})

    async def may_write(self, person: str) -> bool:
        return await may_write(self._api, self._at, person)

    async def tell(self, spot: Spot, text: str) -> None:
        await self.comment(spot.number, text)  # a pull request is an issue here

    async def told(self, spot: Spot, mark: str) -> bool:
        found = await self._api.get(f"{self._at}/issues/{spot.number}/comments", list[_Comment])
        return any(mark in one.body for one in found)

    async def labelled(self, label: str) -> tuple[Topic, ...]:
        found = await self._api.pages(f"{self._at}/issues", list[Issue], labels=label, state="open", limit=50)
        return tuple(one.topic() for one in found)

    async def labeller(self, topic: Topic, label: str) -> Saying | None:
        where = f"{self._at}/issues/{topic.spot.number}/timeline"
        for one in reversed(await self._api.pages(where, list[_Happened], limit=50)):
            named = one.label is not None and one.label.name.casefold() == label.casefold()
            if one.type == "label" and one.body == "1" and named and one.user is not None:
                who = one.user.login
                return Saying(f"label {one.id}", who, who, read_time(one.created_at))
        return None

    async def changed(self, since: float) -> tuple[Topic, ...]:
        found = await self._api.pages(
            f"{self._at}/issues", list[Issue], state="all", since=write_time(since), limit=50
        )
        return tuple(one.topic() for one in found)

    async def said(self, topic: Topic) -> tuple[Saying, ...]:
        number = topic.spot.number
        found = await self._api.get(f"{self._at}/issues/{number}/comments", list[_Comment])
        if topic.spot.kind == "pull":
            found += await self._api.pages(f"{self._at}/pulls/{number}/reviews", list[_Comment], limit=50)
        return tuple(
            Saying(
                f"{one.submitted_at and 'review'} {one.id}",
                who,
                who,
                read_time(one.created_at or one.submitted_at),
                one.body,
            )
            for one in found
            if (who := login(one.user)) and one.body
        )
