"""The forges of the settings: their places and tokens, and the check whether a token can do what is needed."""

import re
from urllib.parse import urlsplit

from cloister.app.settings import Settings
from cloister.app.verbs.records import ForgeCheck
from cloister.core.addresses import without_userinfo
from cloister.core.errors import OutsideError, UserError
from cloister.core.requests import ForgeEntry, ForgeKind
from cloister.core.text import one_line
from cloister.egress.credentials import Unreadable, Vault, token_source
from cloister.forge import Forges
from cloister.forge.plain_git import is_url, origin_of
from cloister.forge.pulls.hosted import KINDS, ForgePlace, client

_KNOWN_HOSTS: dict[str, ForgeKind] = {
    "github.com": "github",
    "gitlab.com": "gitlab",
    "codeberg.org": "gitea",
    "bitbucket.org": "bitbucket",
    "pagure.io": "pagure",
}
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
    credential = token_source(host, entry.source)

    async def token() -> str:
        try:
            return await vault.value(credential)
        except Unreadable as error:
            raise OutsideError("forge_denied", f"The token for {host} cannot be had: {error}.") from None

    return ForgePlace(
        host, kind, token, entry.api or "", entry.git or "", entry.user or "", entry.labels, entry.reviewers
    )


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


async def check_forge(forges: Forges, repo: str) -> ForgeCheck:
    """Ask the forge. Raises `UserError` (`no_forge`), and `OutsideError` when it does not answer."""
    address = await address_at_forge(forges, repo)
    hosted = forges.hosted(address)
    assert hosted is not None  # noqa: S101 - `address_at_forge` found it
    async with client() as http:
        found = await hosted.pulls(http, address).access()
    may = found.may_push and not found.lacks
    return ForgeCheck(without_userinfo(address), hosted.kind, found.default_branch, may, found.lacks)
