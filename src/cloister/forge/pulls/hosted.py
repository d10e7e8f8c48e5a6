"""A repository at a forge with an API: fetched and pushed with the forge's token, delivered as a pull request."""

import base64
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import httpx2
import msgspec

from cloister.core.addresses import canonical_repository, without_userinfo
from cloister.core.errors import OutsideError, UserError
from cloister.core.text import decode, one_line
from cloister.forge import host
from cloister.forge._spawn import Result
from cloister.forge.api import Base, Delivered, Proposal
from cloister.forge.host import complaint
from cloister.forge.plain_git import PlainGit
from cloister.forge.pulls import bitbucket, gitea, github, gitlab, pagure
from cloister.forge.pulls.api import Pull, Pulls, PullWish
from cloister.forge.pulls.http import PAUSES, Api, Token

_NAMES_TRIED = 99
_DENIED = re.compile(rb"uthentication failed|Access denied|returned error: 40[13]|could not read Username")
_TITLE_CHARS = 120
_SECONDS = 30.0


class _Dialect(Protocol):
    @property
    def GIT_USER(self) -> str: ...  # noqa: N802 - a constant of the module
    @staticmethod
    def api_of(host: str) -> str: ...
    @staticmethod
    def headers(token: str) -> Mapping[str, str]: ...


KINDS: dict[str, tuple[_Dialect, Callable[[Api, str], Pulls]]] = {
    "github": (github, github.GitHub),
    "gitlab": (gitlab, gitlab.GitLab),
    "gitea": (gitea, gitea.Gitea),
    "bitbucket": (bitbucket, bitbucket.Bitbucket),
    "pagure": (pagure, pagure.Pagure),
}


class ForgePlace(msgspec.Struct, frozen=True):
    """One forge that the settings name."""

    host: str
    """As in the addresses of its repositories; with a port if it is not the usual one."""
    kind: str
    token: Token
    api: str = ""
    """The address of its API, without a slash at the end; empty: the usual one of this kind."""
    git: str = ""
    """The address that repositories are below, without a slash at the end; empty: `https://host`."""
    user: str = ""
    """The user name that git sends with the token; empty: the usual one of this kind."""
    labels: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()
    pauses: Sequence[float] = PAUSES


class Hosted:
    """Implements `Forge` for the repositories of one forge."""

    def __init__(self, place: ForgePlace, environment: Mapping[str, str] | None = None) -> None:
        self._place, self._environment = place, environment
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

    def pulls(self, client: httpx2.AsyncClient, address: str) -> Pulls:
        """The pull requests of the repository at `address`."""
        place = self._place
        base = (place.api or self._dialect.api_of(place.host)).rstrip("/")
        return self._open(
            Api(client, base, place.token, self._dialect.headers, place.pauses), self.path(address)
        )

    async def fetch(self, repo: str, ref: str | None, into: Path) -> Base:
        settings, url = await self._reach(repo)
        return await PlainGit(self._environment, settings=settings).fetch(url, ref, into)

    async def deliver(self, proposal: Proposal) -> Delivered | None:
        """Push the commit as a branch, then open a pull request from it, or update the one that is open."""
        settings, url = await self._reach(proposal.repository)
        branch = await self._push(proposal, url, settings)
        async with client() as http:
            pull = await self._propose(self.pulls(http, proposal.repository), proposal, branch)
        where = without_userinfo(proposal.repository)
        return Delivered(where, branch, commit=proposal.commit, url=pull.url, number=pull.number)

    async def _reach(self, address: str) -> tuple[dict[str, str], str]:
        """Git's settings with the token, and the address for it. The token is in no argument and no address."""
        place = self._place
        root = (place.git or f"https://{place.host}").rstrip("/")
        user = place.user or self._dialect.GIT_USER
        secret = base64.b64encode(f"{user}:{await place.token()}".encode()).decode("ascii")
        settings = {
            f"http.{root}/.extraHeader": f"Authorization: Basic {secret}",
            "http.followRedirects": "initial",
            "credential.helper": "",
        }
        return settings, f"{root}/{self.path(address)}.git"

    async def _push(self, proposal: Proposal, url: str, settings: Mapping[str, str]) -> str:
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
            if tip in ("", proposal.previous):
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

    def _git_failed(self, result: Result) -> OutsideError:
        why = complaint(result)
        if _DENIED.search(result.err):
            return OutsideError(
                "forge_denied", f"{self._place.host} does not let the token push or read: {why}."
            )
        refused = b"[remote rejected]" in result.out + result.err
        return OutsideError(
            "forge_refused" if refused else "forge_unreachable",
            f"{self._place.host} did not take the branch: {why}.",
            retryable=not refused,
        )

    async def _propose(self, pulls: Pulls, proposal: Proposal, branch: str) -> Pull:
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
                return await pulls.open(wish)
            except OutsideError as error:
                # The forge may have opened it although its reply was lost, or another process did.
                there = await pulls.find(branch)
                if there is None or there.state != "open" or error.code == "forge_denied":
                    raise
        await pulls.update(there.number, wish)
        return there


@cache
def _tls() -> ssl.SSLContext:
    """Reading the machine's certificates takes most of the time of opening a client."""
    return ssl.create_default_context()


def client() -> httpx2.AsyncClient:
    """A client for the API of forges, which never follows a redirect by itself."""
    return httpx2.AsyncClient(timeout=_SECONDS, follow_redirects=False, verify=_tls())
