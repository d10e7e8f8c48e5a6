"""Pull requests at Gitea and Forgejo, whose replies are formed like GitHub's."""

import msgspec

from cloister.core.errors import OutsideError
from cloister.forge.pulls.api import Access, Job, JobState, Pull, PullWish, Remark, Spot, Talk, newest, titled
from cloister.forge.pulls.github import Head, Repository, User, login, may_write
from cloister.forge.pulls.http import Api, part

GIT_USER = "cloister"
"""Any name: the token is the password."""
_DRAFT = "WIP: "
_JOBS: dict[str, JobState] = {
    "success": "passed",
    "warning": "passed",
    "skipped": "passed",
    "pending": "running",
}


def api_of(host: str) -> str:
    return f"https://{host}/api/v1"


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}", "Accept": "application/json"}


class _Pull(msgspec.Struct):
    number: int
    html_url: str
    state: str
    head: Head
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


class _Statuses(msgspec.Struct):
    statuses: list[_Status] | None = None


class _Label(msgspec.Struct):
    id: int
    name: str


class _Named(msgspec.Struct):
    full_name: str
    archived: bool = False


async def repositories(api: Api, owner: str) -> list[str]:
    """The paths of the repositories of an organisation or a person that are not archived."""
    try:
        found = await api.pages(f"/orgs/{part(owner)}/repos", list[_Named], limit=50)
    except OutsideError as error:
        if error.code != "forge_missing":
            raise
        found = await api.pages(f"/users/{part(owner)}/repos", list[_Named], limit=50)
    return [one.full_name for one in found if not one.archived]


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
        pull = (await self._api.get(at, _Pull)).pull()
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
        return Talk(pull, tuple(remarks), await self._jobs(pull.commit))

    async def _jobs(self, commit: str) -> tuple[Job, ...]:
        try:
            found = await self._api.get(f"{self._at}/commits/{part(commit)}/status", _Statuses)
        except OutsideError as error:
            if error.code != "forge_missing":
                raise
            return ()
        return tuple(
            Job("", one.context, _JOBS.get(one.status, "failed"), one.target_url)
            for one in found.statuses or ()
        )

    async def job_log(self, job: Job) -> str | None:
        return None  # the API has no logs of the jobs behind its statuses

    async def close(self, number: int) -> None:
        await self._api.ask("PATCH", f"{self._at}/pulls/{number}", body={"state": "closed"})

    async def may_write(self, person: str) -> bool:
        return await may_write(self._api, self._at, person)

    async def tell(self, spot: Spot, text: str) -> None:
        await self.comment(spot.number, text)  # a pull request is an issue here

    async def told(self, spot: Spot, mark: str) -> bool:
        found = await self._api.get(f"{self._at}/issues/{spot.number}/comments", list[_Comment])
        return any(mark in one.body for one in found)
