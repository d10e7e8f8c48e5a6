"""Pull requests at GitHub and GitHub Enterprise."""

from contextlib import suppress

import msgspec

from cloister.core.errors import OutsideError
from cloister.forge.pulls.api import (
    DRAFT_TITLE,
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
from cloister.forge.pulls.http import Api, part

PUBLIC_API = "https://api.github.com"
GIT_USER = "x-access-token"
_WRITERS = ("owner", "admin", "maintain", "write")
_PAGES = range(1, 21)
_ENDS: dict[str, JobState] = {
    "success": "passed",
    "neutral": "passed",
    "skipped": "passed",
    "cancelled": "cancelled",
    "stale": "cancelled",
}
_READY = (
    "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { clientMutationId } }"
)
_DRAFT = "mutation($id: ID!) { convertPullRequestToDraft(input: {pullRequestId: $id}) { clientMutationId } }"


def api_of(host: str) -> str:
    """Where the API of an Enterprise server is."""
    return PUBLIC_API if host == "github.com" else f"https://{host}/api/v3"


def headers(token: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }


class Rights(msgspec.Struct):
    push: bool = False


class Repository(msgspec.Struct):
    default_branch: str
    private: bool = False
    permissions: Rights | None = None


class Head(msgspec.Struct):
    ref: str = ""
    sha: str = ""


class _Pull(msgspec.Struct):
    number: int
    html_url: str
    state: str
    head: Head
    base: Head = msgspec.field(default_factory=Head)
    draft: bool = False
    merged_at: str | None = None
    node_id: str = ""
    title: str = ""
    mergeable_state: str = ""

    def pull(self) -> Pull:
        state = "merged" if self.merged_at else "open" if self.state == "open" else "closed"
        draft = self.draft or self.title.startswith(DRAFT_TITLE)
        dirty = self.mergeable_state == "dirty"
        return Pull(self.number, self.html_url, state, draft, self.head.ref, self.head.sha, dirty)


class User(msgspec.Struct):
    login: str = ""


class _Comment(msgspec.Struct):
    id: int
    user: User | None = None
    body: str | None = None
    path: str = ""
    line: int | None = None
    created_at: str | None = None
    submitted_at: str | None = None


class _Run(msgspec.Struct):
    id: int
    name: str
    status: str
    conclusion: str | None = None
    html_url: str | None = None
    app: dict[str, object] | None = None


class _Runs(msgspec.Struct):
    check_runs: list[_Run]
    total_count: int = 0


class _Status(msgspec.Struct):
    context: str
    state: str
    target_url: str | None = None


class _Statuses(msgspec.Struct):
    statuses: list[_Status]
    total_count: int = 0


class Permission(msgspec.Struct):
    permission: str


class Label(msgspec.Struct):
    name: str = ""


class Issue(msgspec.Struct):
    """An issue, or a pull request as one. Gitea has the same form."""

    number: int
    title: str = ""
    body: str | None = None
    user: User | None = None
    html_url: str = ""
    created_at: str | None = None
    updated_at: str | None = None
    pull_request: dict[str, object] | None = None

    def topic(self) -> Topic:
        kind = "issue" if self.pull_request is None else "pull"
        who = login(self.user)
        opened = Saying("opened", who, who, read_time(self.created_at), self.body or "")
        ref = None if self.pull_request is None else f"refs/pull/{self.number}/head"
        spot, updated = Spot(kind, self.number), read_time(self.updated_at)
        return Topic(spot, self.title, opened, updated, self.html_url, ref)


class _Happened(msgspec.Struct):
    id: int
    event: str = ""
    actor: User | None = None
    label: Label | None = None
    created_at: str | None = None


class GitHub:
    """Implements `Pulls` and `Talks`."""

    def __init__(self, api: Api, path: str) -> None:
        """`path` is `owner/name`."""
        owner, _, name = path.partition("/")
        self._api, self._owner, self._at = api, owner, f"/repos/{part(owner)}/{part(name)}"

    async def access(self) -> Access:
        reply = await self._api.ask("GET", self._at)
        found = reply.read(Repository)
        lacks: tuple[str, ...] = ()
        if found.permissions is not None and not found.permissions.push:
            lacks = ("write access to the repository (contents and pull requests)",)
        # Only classic tokens have scopes; of others this header is missing, and nothing tells their rights.
        scopes, wanted = reply.headers.get("x-oauth-scopes"), "repo" if found.private else "public_repo"
        if scopes is not None and not {"repo", wanted} & set(scopes.replace(" ", "").split(",")):
            lacks = (*lacks, f"the scope {wanted}")
        return Access(found.default_branch, not lacks, lacks)

    async def find(self, branch: str) -> Pull | None:
        head = f"{self._owner}:{branch}"
        found = await self._api.get(f"{self._at}/pulls", list[_Pull], head=head, state="all", per_page=100)
        return newest([one.pull() for one in found if one.head.ref == branch])

    async def open(self, wish: PullWish) -> Pull:
        new = {
            "title": wish.title,
            "body": wish.body,
            "head": wish.branch,
            "base": wish.onto,
            "draft": wish.draft,
        }
        try:
            made = await self._api.send("POST", f"{self._at}/pulls", new, _Pull)
        except OutsideError as error:
            # Private repositories of some plans have no drafts.
            if not wish.draft or error.code != "forge_refused" or "draft" not in error.message.lower():
                raise
            marked = {**new, "draft": False, "title": titled(wish, DRAFT_TITLE)}
            made = await self._api.send("POST", f"{self._at}/pulls", marked, _Pull)
        await self._decorate(made.number, wish)
        return made.pull()

    async def _decorate(self, number: int, wish: PullWish) -> None:
        if wish.labels:
            with suppress(OutsideError):
                body = {"labels": wish.labels}
                await self._api.ask("POST", f"{self._at}/issues/{number}/labels", body=body)
        if wish.reviewers:
            with suppress(OutsideError):
                body = {"reviewers": wish.reviewers}
                await self._api.ask("POST", f"{self._at}/pulls/{number}/requested_reviewers", body=body)

    async def update(self, number: int, wish: PullWish) -> None:
        before = await self._api.get(f"{self._at}/pulls/{number}", _Pull)
        if before.draft != wish.draft and before.node_id and not before.title.startswith(DRAFT_TITLE):
            asked = {"query": _DRAFT if wish.draft else _READY, "variables": {"id": before.node_id}}
            with suppress(OutsideError):  # a plan without drafts
                await self._api.ask("POST", self._graphql, body=asked)
        marked = before.title.startswith(DRAFT_TITLE)
        title = titled(wish, DRAFT_TITLE) if marked else wish.title
        await self._api.ask("PATCH", f"{self._at}/pulls/{number}", body={"title": title, "body": wish.body})

    @property
    def _graphql(self) -> str:
        # Beside `/api/v3` on an Enterprise server, below the root at github.com.
        return f"{self._api.base.removesuffix('/v3')}/graphql"

    async def comment(self, number: int, text: str) -> None:
        await self._api.ask("POST", f"{self._at}/issues/{number}/comments", body={"body": text})

    async def read(self, number: int) -> Talk:
        at = f"{self._at}/pulls/{number}"
        found = await self._api.get(at, _Pull)
        pull = found.pull()
        general = await self._api.pages(f"{self._at}/issues/{number}/comments", list[_Comment])
        lines = await self._api.pages(f"{at}/comments", list[_Comment])
        reviews = await self._api.pages(f"{at}/reviews", list[_Comment])
        kinds = (("issue", general), ("line", lines), ("review", reviews))
        entries = [(kind, one) for kind, found in kinds for one in found if one.body and one.user]
        entries.sort(key=lambda entry: entry[1].created_at or entry[1].submitted_at or "")
        writers = {
            name: await may_write(self._api, self._at, name)
            for name in {login(one.user) for _, one in entries}
        }
        remarks = [
            Remark(
                f"{kind}-{one.id}",
                login(one.user),
                one.body or "",
                writers[login(one.user)],
                one.path,
                one.line or 0,
            )
            for kind, one in entries
        ]
        jobs, base = await self._jobs(pull.commit), tuple[Job, ...]()
        if failed(jobs):
            jobs = with_reruns(jobs, await self._runs(pull.commit, "all"))
            base = await self._jobs(found.base.ref) if found.base.ref else ()
        return Talk(pull, tuple(remarks), jobs, base)

    async def _runs(self, commit: str, which: str) -> list[Job]:
        where, runs = f"{self._at}/commits/{part(commit)}/check-runs", list[_Run]()
        for page in _PAGES:
            found = await self._api.get(where, _Runs, per_page=100, page=page, filter=which)
            runs += found.check_runs
            if not found.check_runs or len(runs) >= found.total_count:
                break
        return [Job(_log_id(one), one.name, _state(one), one.html_url or "") for one in runs]

    async def _jobs(self, commit: str) -> tuple[Job, ...]:
        """The newest run of each job of a commit, or of a branch's newest commit."""
        where, statuses = f"{self._at}/commits/{part(commit)}/status", list[_Status]()
        jobs = await self._runs(commit, "latest")
        for page in _PAGES:
            found = await self._api.get(where, _Statuses, per_page=100, page=page)
            statuses += found.statuses
            if not found.statuses or len(statuses) >= found.total_count:
                break
        states: dict[str, JobState] = {"success": "passed", "pending": "running"}
        jobs += [
            Job("", one.context, states.get(one.state, "failed"), one.target_url or "") for one in statuses
        ]
        return tuple(jobs)

    async def job_log(self, job: Job) -> str | None:
        where = f"{self._at}/actions/jobs/{part(job.id)}/logs"
        return without_times(await self._api.text(where)) if job.id else None

    async def upload(self, number: int, name: str, data: bytes) -> str | None:
        return None  # its API takes no files for texts

    async def close(self, number: int) -> None:
        await self._api.ask("PATCH", f"{self._at}/pulls/{number}", body={"state": "closed"})

    async def may_write(self, person: str) -> bool:
        return await may_write(self._api, self._at, person)

    async def tell(self, spot: Spot, text: str) -> None:
        await self.comment(spot.number, text)  # a pull request is an issue here

    async def told(self, spot: Spot, mark: str) -> bool:
        found = await self._api.pages(f"{self._at}/issues/{spot.number}/comments", list[_Comment])
        return any(mark in (one.body or "") for one in found)

    async def labelled(self, label: str) -> tuple[Topic, ...]:
        found = await self._api.pages(f"{self._at}/issues", list[Issue], labels=label, state="open")
        return tuple(one.topic() for one in found)

    async def labeller(self, topic: Topic, label: str) -> Saying | None:
        where = f"{self._at}/issues/{topic.spot.number}/events"
        for one in reversed(await self._api.pages(where, list[_Happened])):
            named = one.label is not None and one.label.name.casefold() == label.casefold()
            if one.event == "labeled" and named and one.actor is not None:
                who = one.actor.login
                return Saying(f"label {one.id}", who, who, read_time(one.created_at))
        return None

    async def changed(self, since: float) -> tuple[Topic, ...]:
        found = await self._api.pages(
            f"{self._at}/issues", list[Issue], state="all", sort="updated", since=write_time(since)
        )
        return tuple(one.topic() for one in found)

    async def said(self, topic: Topic) -> tuple[Saying, ...]:
        number = topic.spot.number
        places = {"issue": f"issues/{number}/comments"}
        if topic.spot.kind == "pull":
            places |= {"line": f"pulls/{number}/comments", "review": f"pulls/{number}/reviews"}
        found = {
            kind: await self._api.pages(f"{self._at}/{place}", list[_Comment])
            for kind, place in places.items()
        }
        return tuple(
            Saying(f"{kind} {one.id}", who, who, read_time(one.created_at or one.submitted_at), one.body)
            for kind, comments in found.items()
            for one in comments
            if (who := login(one.user)) and one.body
        )


class _Named(msgspec.Struct):
    full_name: str
    archived: bool = False


class _NamedList(msgspec.Struct):
    items: list[_Named]


async def repositories(api: Api, owner: str) -> list[str]:
    """The paths of the owner's repositories that are not archived, private ones that the token sees included."""
    found: list[_Named] = []
    query: dict[str, str | int] = {"q": f"user:{owner} fork:true", "per_page": 100}
    for page in range(1, 11):  # the search ends after a thousand
        more = (await api.get("/search/repositories", _NamedList, page=page, **query)).items
        found += more
        if len(more) < 100:
            break
    return [one.full_name for one in found if not one.archived]


def login(user: User | None) -> str:
    return user.login if user else ""


async def may_write(api: Api, repository: str, who: str) -> bool:
    """True if this person may push. Gitea has the same call, and one more word for its owners."""
    if not who:
        return False
    where = f"{repository}/collaborators/{part(who)}/permission"
    reply = await api.ask("GET", where, also=(403, 404))
    return reply.status == 200 and reply.read(Permission).permission in _WRITERS


def _log_id(run: _Run) -> str:
    """A check of GitHub Actions has the number of its job; other apps keep their logs elsewhere."""
    return str(run.id) if (run.app or {}).get("slug") == "github-actions" else ""


def _state(run: _Run) -> JobState:
    if run.status != "completed":
        return "running"
    return _ENDS.get(run.conclusion or "", "failed")
