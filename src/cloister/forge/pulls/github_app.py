"""A GitHub App in place of a token: it signs in with its private key and gets a short-lived token for each repository."""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import httpx2
import msgspec

from cloister.core.errors import OutsideError
from cloister.core.text import one_line
from cloister.forge.pulls.github import headers
from cloister.forge.pulls.http import PAUSES, Api, Token, part

_SPARE_SECONDS = 300.0
"""A token is replaced this long before its end, so that a push that began with it can finish."""
_SIGNED_SECONDS = 480
"""GitHub takes a signature for at most ten minutes."""
_EARLY_SECONDS = 60
"""For a forge whose clock is behind."""
_KEPT = 1_000
_LEVELS = ("", "read", "write", "admin")
_NEEDS: Mapping[str, str] = {
    "contents": "write",
    "pull_requests": "write",
    "issues": "write",
    "checks": "read",
    "statuses": "read",
    "actions": "read",
}
"""Permissions of the App: commits, pull requests, comments and labels, results of CI, their logs."""


class _Installation(msgspec.Struct):
    id: int


class _Issued(msgspec.Struct):
    token: str
    expires_at: datetime
    permissions: dict[str, str] = {}


class GitHubApp:
    """The tokens of one App at one GitHub. Its private key is used here only."""

    def __init__(
        self,
        app_id: str,
        key: Token,
        base: str,
        connect: Callable[[], httpx2.AsyncClient],
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """`key` reads the private key as PEM; `base` is the address of the API."""
        self._id, self._key, self._base, self._connect, self._pauses = app_id, key, base, connect, pauses
        self._issued: dict[str, _Issued] = {}

    async def token(self, path: str) -> str:
        """The token for the repository `owner/name`, or for all of `owner`. Raises `OutsideError`."""
        known = self._issued.pop(path, None)
        if known is None or known.expires_at.timestamp() - time.time() < _SPARE_SECONDS:
            known = await self._issue(path)
        self._issued[path] = known
        while len(self._issued) > _KEPT:
            del self._issued[next(iter(self._issued))]
        return known.token

    async def lacks(self, path: str) -> tuple[str, ...]:
        """The permissions that the App's installation lacks at a repository. Raises `OutsideError`."""
        has = (await self._issue(path)).permissions
        return tuple(
            f"the App's permission {name}: {level}"
            for name, level in _NEEDS.items()
            if _LEVELS.index(level) > _rank(has.get(name, ""))
        )

    async def _issue(self, path: str) -> _Issued:
        owner, _, name = path.partition("/")
        own = f"/repos/{part(owner)}/{part(name)}"
        places = (own,) if name else (f"/users/{part(owner)}", f"/orgs/{part(owner)}")
        body = {"repositories": [name]} if name else {}
        async with self._connect() as http:
            api = Api(http, self._base, self._sign, headers, self._pauses)
            for place in places:
                found = await api.ask("GET", f"{place}/installation", also=(401, 404))
                if found.status == 401:
                    raise OutsideError(
                        "forge_denied",
                        f"{api.host} does not accept the private key of the GitHub App {self._id}: "
                        "check app_id, the key and the clock of this machine.",
                    )
                if found.status == 404:
                    continue
                number = found.read(_Installation).id
                where = f"/app/installations/{number}/access_tokens"
                made = await api.ask("POST", where, body=body, also=(404, 422))
                if made.status < 300:
                    return made.read(_Issued)
        raise OutsideError(
            "forge_denied",
            f"The GitHub App {self._id} is not installed for {one_line(path, 200)}, or that does not exist: "
            "add it in the settings of the App's installation.",
        )

    async def _sign(self) -> str:
        """A signed statement of who asks (a JSON Web Token, RS256)."""
        # It takes long to load: only an App needs it.
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

        pem = await self._key()
        try:
            key = load_pem_private_key(pem.encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, RSAPrivateKey):
            raise OutsideError(
                "forge_denied",
                f"The credential of the GitHub App {self._id} is not an RSA private key in PEM without a passphrase: "
                "generate one in the App's settings.",
            )
        now = int(time.time())
        claims = {"iat": now - _EARLY_SECONDS, "exp": now + _SIGNED_SECONDS, "iss": self._id}
        said = b".".join(
            _base64(msgspec.json.encode(one)) for one in ({"alg": "RS256", "typ": "JWT"}, claims)
        )
        return b".".join((said, _base64(key.sign(said, PKCS1v15(), SHA256())))).decode("ascii")


def _rank(level: str) -> int:
    return _LEVELS.index(level) if level in _LEVELS else 0


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
