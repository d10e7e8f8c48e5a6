"""The forges of the settings: their places and tokens, and the check whether a token can do what is needed."""

import re
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from cloister.app.settings import Settings
from cloister.app.verbs.records import ForgeCheck
from cloister.core.addresses import without_userinfo
from cloister.core.errors import OutsideError, UserError
from cloister.core.requests import ForgeEntry, ForgeKind
from cloister.core.text import one_line
from cloister.egress.credentials import Credential, Unreadable, Vault, token_source
from cloister.forge import Forges
from cloister.forge.host import is_oid
from cloister.forge.plain_git import is_url, origin_of
from cloister.forge.pulls.github_app import GitHubApp
from cloister.forge.pulls.hosted import KINDS, ForgePlace, api_base, client
from cloister.forge.pulls.http import Token

_KNOWN_HOSTS: dict[str, ForgeKind] = {
    "github.com": "github",
    "gitlab.com": "gitlab",
    "codeberg.org": "gitea",
    "bitbucket.org": "bitbucket",
    "pagure.io": "pagure",
}
_APP_ID = re.compile(r"[A-Za-z0-9.]{1,64}")
_HOST = re.compile(r"[a-z0-9][a-z0-9.-]{0,251}(?::[0-9]{1,5})?")


def forge_places(settings: Settings, vault: Vault) -> tuple[ForgePlace, ...]:
    """The forges of the settings. Raises `UserError` (`bad_forge`) that names the table."""
    found: dict[str, ForgePlace] = {}
    for number, entry in enumerate(settings.file.forge, start=1):
        try:
            place = _forge_place(entry, vault)
            if place.host in found:
                raise ValueError("two forges have this host")
        except ValueError as error:
            raise UserError(
                "bad_forge", f"{settings.config_path}, forge {number} ({entry.host[:80]!r}): {error}."
            ) from None
        found[place.host] = place
    return tuple(found.values())


def _forge_place(entry: ForgeEntry, vault: Vault) -> ForgePlace:
    host = entry.host.lower()
    kind = entry.kind or _KNOWN_HOSTS.get(host)
    if not _HOST.fullmatch(host):
        raise ValueError("a host is a name such as git.example.org, with a port if it is not the usual one")
    if kind is None:
        raise ValueError(f"kind is one of {', '.join(sorted(KINDS))}")
    for name, address in (("api", entry.api), ("git", entry.git)):
        if address is not None and not _safe_address(address):
            raise ValueError(f"{name} is an https address: the token must not travel in the clear")
    app_id = str(entry.app_id or "")
    if entry.app_id is not None and (kind != "github" or not _APP_ID.fullmatch(app_id)):
        raise ValueError("app_id is the number or the client id of an App of GitHub")
    credential = token_source(host, entry.source, lines=bool(app_id))

    secret = _reader(vault, credential, f"{'private key' if app_id else 'token'} for {host}")
    for who in entry.people:
        if not who.strip("@ "):
            raise ValueError("a person in people has a name, or `@` and the name of an account")
        if kind == "bitbucket" and who.startswith("@"):
            # Nicknames there are not unique, and people change them.
            raise ValueError("at Bitbucket an account is not known by its name: people has no @ there")
    people = {
        who: _reader(vault, token_source(f"{host} {who}", source), f"token of {who} for {host}")
        for who, source in entry.people.items()
    }

    async def token(_path: str) -> str:
        return await secret()

    api = entry.api or ""
    app = GitHubApp(app_id, secret, api_base(kind, host, api), client) if app_id else None
    return ForgePlace(
        *(host, kind, app.token if app else token, api, entry.git or "", entry.user or ""),
        labels=entry.labels,
        reviewers=entry.reviewers,
        people=people,
        lacks=app.lacks if app else None,
    )


def _reader(vault: Vault, credential: Credential, what: str) -> Token:
    async def secret() -> str:
        try:
            return await vault.value(credential)
        except Unreadable as error:
            raise OutsideError("forge_denied", f"The {what} cannot be had: {error}.") from None

    return secret


def _safe_address(address: str) -> bool:
    """True for https, and for http on this machine."""
    url = urlsplit(address)
    plain = url.scheme == "http" and url.hostname in ("127.0.0.1", "::1", "localhost")
    return bool(url.hostname) and (plain or url.scheme == "https") and "@" not in url.netloc and not url.query


async def address_at_forge(forges: Forges, repo: str) -> str:
    """The address of `repo` at a forge of the settings; of a directory, its `origin`. Raises `UserError` (`no_forge`)."""
    origin = repo if is_url(repo) else await origin_of(repo)
    if origin is None or forges.hosted(origin) is None:
        where = without_userinfo(one_line(origin or repo, 200))
        raise UserError(
            "no_forge", f"There is no forge for {where}: name its host in a [[forge]] table of the settings."
        )
    return origin


_PAGE = re.compile(
    r"(https?://[^\s?#]{1,1000}?)/(pull|pulls|(?:-/)?merge_requests|pull-requests|pull-request)/([0-9]{1,9})(?![^/?#])"
)


async def pull_at(forges: Forges, page: str) -> tuple[str, str]:
    """The repository of the pull request with the address `page`, and the ref or commit of its change there.

    A forge of the settings is asked by its API. The refs of GitHub, Gitea and GitLab are known without one.
    Raises `UserError` (`no_claim`, `no_forge`), `OutsideError`.
    """
    found = _PAGE.match(page)
    if found is None:
        raise UserError("no_claim", f"{one_line(page, 200)} is not the address of a pull request.")
    repo, word, number = found.groups()
    hosted = forges.hosted(repo)
    if hosted is not None:
        async with client() as http:
            pull = (await hosted.pulls(http, repo).read(int(number))).pull
        return repo, pull.commit if is_oid(pull.commit) else pull.branch
    if word in ("pull", "pulls"):
        return repo, f"refs/pull/{number}/head"
    if word.endswith("merge_requests"):
        return repo, f"refs/merge-requests/{number}/head"
    raise UserError(
        "no_forge", f"The change of {one_line(page, 200)} has no ref: name its host in a [[forge]] table."
    )


async def find_repositories(forges: Forges, query: str) -> tuple[str, ...]:
    """The addresses of the repositories that `host/owner/pattern` names, sorted. Raises `UserError` (`bad_query`, `no_forge`)."""
    host, _, path = query.removeprefix("https://").strip("/").partition("/")
    owner, slash, pattern = path.rpartition("/")
    if not slash or not owner or any(one in owner + host for one in "*?["):
        raise UserError("bad_query", "Name repositories as host/owner/pattern, such as github.com/acme/*.")
    hosted = forges.of_host(host.lower())
    if hosted is None:
        raise UserError(
            "no_forge",
            f"There is no forge {one_line(host, 80)}: name it in a [[forge]] table of the settings.",
        )
    async with client() as http:
        found = await hosted.repositories(http, owner)
    wanted = f"{owner}/{pattern}".casefold()
    return tuple(sorted(f"https://{host}/{one}" for one in found if fnmatchcase(one.casefold(), wanted)))


async def check_forge(forges: Forges, repo: str) -> ForgeCheck:
    """Ask the forge. Raises `UserError` (`no_forge`), and `OutsideError` when it does not answer."""
    address = await address_at_forge(forges, repo)
    hosted = forges.hosted(address)
    assert hosted is not None  # noqa: S101 - `address_at_forge` found it
    async with client() as http:
        found = await hosted.access(http, address)
    where = without_userinfo(address)
    return ForgeCheck(where, hosted.kind, found.default_branch, found.may_push, found.lacks)
