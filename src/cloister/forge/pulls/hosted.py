"""A repository at a forge with an API: fetched and pushed with the forge's token, delivered as a pull request."""

import base64
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import httpx2
import msgspec
from msgspec.structs import replace

from cloister.core.addresses import canonical_repository, without_userinfo
from cloister.core.errors import OutsideError, UserError
from cloister.core.text import decode, one_line
from cloister.forge import host
from cloister.forge._spawn import Result
from cloister.forge.api import Base, Delivered, PagePictures, Proposal
from cloister.forge.cache import ObjectCache
from cloister.forge.host import complaint
from cloister.forge.lfs import Server
from cloister.forge.plain_git import PlainGit
from cloister.forge.pulls import bitbucket, gitea, github, gitlab, pagure
from cloister.forge.pulls.api import Access, Pull, Pulls, PullWish, Repository
from cloister.forge.pulls.http import PAUSES, Api, Replies, Token

logger = logging.getLogger(__name__)

_NAMES_TRIED = 99
_ADDRESS = re.compile(r"[^\s<>()\[\]\\]{1,2000}")
"""An address that Markdown takes as it is."""
_DENIED = re.compile(rb"uthentication failed|Access denied|returned error: 40[13]|could not read Username")
_GONE = re.compile(rb"repository '[^'\n]*' not found|returned error: 4(?:04|10)")
_TITLE_CHARS = 120
_SECONDS = 30.0


class _Dialect(Protocol):
    @property
    def GIT_USER(self) -> str: ...  # noqa: N802 - a constant of the module
    @staticmethod
    def api_of(host: str) -> str: ...
    @staticmethod
    def headers(token: str) -> Mapping[str, str]: ...
    @staticmethod
    async def repositories(api: Api, owner: str) -> list[str]: ...


KINDS: dict[str, tuple[_Dialect, Callable[[Api, str], Repository]]] = {
    "github": (github, github.GitHub),
    "gitlab": (gitlab, gitlab.GitLab),
    "gitea": (gitea, gitea.Gitea),
    "bitbucket": (bitbucket, bitbucket.Bitbucket),
    "pagure": (pagure, pagure.Pagure),
}


def api_base(kind: str, host: str, api: str) -> str:
    """The address of a forge's API; without `api` the usual one of its kind."""
    return (api or KINDS[kind][0].api_of(host)).rstrip("/")


class ForgePlace(msgspec.Struct, frozen=True):
    """One forge that the settings name."""

    host: str
    """As in the addresses of its repositories; with a port if it is not the usual one."""
    kind: str
    token: Callable[[str], Awaitable[str]]
    """Reads the token for a repository, named by its path, or for all of an owner. Raises `OutsideError` (`forge_denied`)."""
    api: str = ""
    """The address of its API, without a slash at the end; empty: the usual one of this kind."""
    git: str = ""
    """The address that repositories are below, without a slash at the end; empty: `https://host`."""
    user: str = ""
    """The user name that git sends with the token; empty: the usual one of this kind."""
    labels: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()
    pauses: Sequence[float] = PAUSES
    people: Mapping[str, Token] = {}
    """Who asks for runs → reads this person's own token, which opens their pull requests. Raises `OutsideError` (`forge_denied`)."""
    lacks: Callable[[str], Awaitable[tuple[str, ...]]] | None = None
    """The rights that the token for a repository lacks, where its own page does not tell them."""
    replies: Replies = msgspec.field(default_factory=Replies)


class Hosted:
    """Implements `Forge` for the repositories of one forge."""

    def __init__(
        self,
        place: ForgePlace,
        environment: Mapping[str, str] | None = None,
        cache: ObjectCache | None = None,
    ) -> None:
        self._place, self._environment, self._cache = place, environment, cache
        self._dialect, self._open = KINDS[place.kind]
        self.kind = place.kind

    def path(self, address: str) -> str:
        """The repository's path at this forge. Raises `UserError` (`no_repository`)."""
        path = canonical_repository(address).partition("/")[2]
        if not path or (self._place.kind != "pagure" and "/" not in path):
            raise UserError(
                "no_repository",
                f"{without_userinfo(one_line(address))} names no repository of {self._place.host}.",
            )
        return path

    def pulls(self, client: httpx2.AsyncClient, address: str) -> Repository:
        """The pull requests and conversations of the repository at `address`."""
        path = self.path(address)
        return self._open(self._api(client, partial(self._place.token, path), self._place.replies), path)

    async def access(self, client: httpx2.AsyncClient, address: str) -> Access:
        """What the token may do at a repository."""
        found = await self.pulls(client, address).access()
        if self._place.lacks is None:
            return found
        lacks = await self._place.lacks(self.path(address))
        return replace(found, may_push=not lacks, lacks=lacks)

    def _api(self, client: httpx2.AsyncClient, token: Token, replies: Replies | None = None) -> Api:
        place = self._place
        base = api_base(place.kind, place.host, place.api)
        return Api(client, base, token, self._dialect.headers, place.pauses, replies)

    async def repositories(self, client: httpx2.AsyncClient, owner: str) -> list[str]:
        """The paths of an owner's repositories at this forge."""
        api = self._api(client, partial(self._place.token, owner))
        return await self._dialect.repositories(api, owner)

    async def fetch(self, repo: str, ref: str | None, into: Path) -> Base:
        settings, url = await self._reach(repo)
        return await PlainGit(self._environment, settings=settings, cache=self._cache).fetch(url, ref, into)

    async def tip(self, repo: str, ref: str | None, bare: Path) -> str:
        settings, url = await self._reach(repo)
        return await PlainGit(self._environment, settings=settings).tip(url, ref, bare)

    async def content(self, address: str) -> Server:
        """Where the content of LFS of the repository at `address` is."""
        settings, url = await self._reach(address)
        header = next(value for name, value in settings.items() if name.endswith(".extraHeader"))

        async def credential() -> str:
            return header.partition(": ")[2]

        return Server(url, credential)

    async def deliver(self, proposal: Proposal) -> Delivered | None:
        """Push the commit as a branch, then open a pull request from it, or update the one that is open.

        Never pushes to the branch of a pull request that was merged or closed.
        """
        settings, url = await self._reach(proposal.repository)
        async with client() as http:
            pulls = self.pulls(http, proposal.repository)
            if proposal.follows:
                await self._check_open(pulls, proposal)
            branch = await self._push(pulls, proposal, url, settings)
            pull = await self._propose(http, pulls, proposal, branch)
        where = without_userinfo(proposal.repository)
        return Delivered(where, branch, commit=proposal.commit, url=pull.url, number=pull.number)

    async def _reach(self, address: str) -> tuple[dict[str, str], str]:
        """Git's settings with the token, and the address for it. The token is in no argument and no address."""
        place = self._place
        root = (place.git or f"https://{place.host}").rstrip("/")
        user = place.user or self._dialect.GIT_USER
        secret = base64.b64encode(f"{user}:{await place.token(self.path(address))}".encode()).decode("ascii")
        settings = {
            f"http.{root}/.extraHeader": f"Authorization: Basic {secret}",
            "http.followRedirects": "initial",
            "credential.helper": "",
        }
        return settings, f"{root}/{self.path(address)}.git"

    async def _check_open(self, pulls: Pulls, proposal: Proposal) -> None:
        """Raises `OutsideError` (`pull_request_ended`)."""
        there = await pulls.find(proposal.follows)
        if there is not None and there.state != "open":
            raise OutsideError(
                "pull_request_ended",
                f"Pull request {there.number} at {self._place.host} was {there.state} while the run worked, so nothing was "
                f"pushed and the change is kept with the run: `cloister pr {proposal.run}` opens another pull request.",
            )

    async def _push(self, pulls: Pulls, proposal: Proposal, url: str, settings: Mapping[str, str]) -> str:
        """Create the branch, fast-forward the one of an earlier round, or take the next free name. Return the name."""
        branch = proposal.branch
        for number in range(2, _NAMES_TRIED):
            ref = f"refs/heads/{branch}"
            listed = await host.list_remote(
                proposal.bare, url, ref, known=self._environment, settings=settings
            )
            if not listed.ok:
                raise self._git_failed(listed)
            lines = [line.split("\t") for line in decode(listed.out).splitlines()]
            tip = next((line[0] for line in lines if line[1:] == [ref]), "")
            if tip == proposal.commit:
                return branch
            if tip == "" or (tip == proposal.previous and not await _is_ended(pulls, branch)):
                pushed = await host.push_remote(
                    *(proposal.bare, url, f"{proposal.commit}:{ref}", tip),
                    known=self._environment,
                    settings=settings,
                )
                if pushed.ok:
                    return branch
                # Another writer was faster, or took a name that makes a directory of this one.
                if (
                    b"stale info" not in pushed.out + pushed.err
                    and b"directory file conflict" not in pushed.err
                ):
                    raise self._git_failed(pushed)
            branch = f"{proposal.branch}-{number}"
        raise UserError(
            "not_delivered", f"{self._place.host} already has too many branches called {proposal.branch}."
        )

    async def remove_branch(self, bare: Path, address: str, branch: str, commit: str) -> bool:
        """Delete a branch that still ends at `commit`. False if it has other commits, is gone or is protected."""
        settings, url = await self._reach(address)
        ref = f":refs/heads/{branch}"
        return (await host.push_remote(bare, url, ref, commit, known=self._environment, settings=settings)).ok

    def _git_failed(self, result: Result) -> OutsideError:
        why = complaint(result)
        if _DENIED.search(result.err):
            return OutsideError(
                "forge_denied", f"{self._place.host} does not let the token push or read: {why}."
            )
        if _GONE.search(result.err):
            return OutsideError(
                "forge_missing",
                f"{self._place.host} no longer has this repository, or the token may not see it: {why}.",
            )
        refused = b"[remote rejected]" in result.out + result.err
        return OutsideError(
            "forge_refused" if refused else "forge_unreachable",
            f"{self._place.host} did not take the branch: {why}.",
            retryable=not refused,
        )

    async def _propose(
        self, http: httpx2.AsyncClient, pulls: Repository, proposal: Proposal, branch: str
    ) -> Pull:
        onto = proposal.onto or (await pulls.access()).default_branch
        wish = PullWish(
            title=one_line(proposal.title, _TITLE_CHARS),
            body=proposal.page or proposal.body,
            branch=branch,
            onto=onto,
            draft=proposal.draft,
            labels=self._place.labels,
            reviewers=self._place.reviewers,
        )
        there = await pulls.find(branch)
        if there is None or there.state != "open":
            try:
                made = await self._opened(http, pulls, proposal, wish)
            except OutsideError as error:
                # The forge may have opened it although its reply was lost, or another process did.
                there = await pulls.find(branch)
                if there is None or there.state != "open" or error.code == "forge_denied":
                    raise
            else:
                await self._show(pulls, made.number, wish, proposal)
                return made
        await pulls.update(there.number, wish)
        await self._show(pulls, there.number, wish, proposal)
        return there

    async def _show(self, pulls: Repository, number: int, wish: PullWish, proposal: Proposal) -> None:
        """Add the pictures of pages to the text where the forge keeps them. Without them the text stays as it is."""
        try:
            rows = [row for one in proposal.pictures if (row := await _row(pulls, number, one))]
            if rows:
                await pulls.update(
                    number,
                    replace(wish, body=f"{wish.body.rstrip()}\n\n{_PICTURES}{''.join(rows)}\n</details>\n"),
                )
        except OutsideError as error:
            logger.warning("the pictures of run %s are not shown: %s", proposal.run, error.message)

    async def _opened(
        self, http: httpx2.AsyncClient, pulls: Pulls, proposal: Proposal, wish: PullWish
    ) -> Pull:
        """Open it as the person who asked where their token is known and may; else with the token of the settings."""
        if (own := self._place.people.get(proposal.who)) is not None:
            path = self.path(proposal.repository)
            try:
                return await self._open(self._api(http, own), path).open(wish)
            except OutsideError as error:
                if error.code not in ("forge_denied", "forge_missing"):
                    raise
                logger.warning(
                    "the pull request of run %s is not opened as %s: %s",
                    *(proposal.run, one_line(proposal.who, 80), error.message),
                )
        return await pulls.open(wish)


_PICTURES = (
    "<details><summary>Pictures before and after</summary>\n\n| page | before | after |\n|---|---|---|\n"
)


async def _row(pulls: Repository, number: int, page: PagePictures) -> str:
    """A line of the table of pictures; empty if the forge keeps none."""
    cells = list[str]()
    for when, data in (("before", page.before), ("after", page.after)):
        address = await pulls.upload(number, f"{when}-{page.name}", data) if data else ""
        if address is None or (address and not _ADDRESS.fullmatch(address)):
            return ""
        cells.append(f"![{when}]({address})" if address else "")
    return f"| `{page.name}` | {' | '.join(cells)} |\n"


async def _is_ended(pulls: Pulls, branch: str) -> bool:
    """True if the pull request of the branch was merged or closed."""
    there = await pulls.find(branch)
    return there is not None and there.state != "open"


@cache
def _tls() -> ssl.SSLContext:
    """Reading the machine's certificates takes most of the time of opening a client."""
    return ssl.create_default_context()


def client() -> httpx2.AsyncClient:
    """A client for the API of forges, which never follows a redirect by itself."""
    return httpx2.AsyncClient(timeout=_SECONDS, follow_redirects=False, verify=_tls())
