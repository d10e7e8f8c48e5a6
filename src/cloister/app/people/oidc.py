"""Login at an OpenID Connect provider: the authorization code flow with PKCE, and the checks of what it says.

What a browser brings back must match the signed record in its own cookie, so another browser's address is of no use.
What the provider says is bounded, and believed only with a signature by one of its published keys.
"""

import base64
import hashlib
import hmac
import re
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, cast
from urllib.parse import urlencode, urlsplit

import anyio
import msgspec

from cloister.app.tokens import RANK
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.requests import Role
from cloister.core.text import one_line
from cloister.egress.credentials import Unreadable, Vault, token_source

if TYPE_CHECKING:
    import httpx2
    from joserfc.jwk import KeySet

    from cloister.app.settings import OidcEntry, Settings

FLOW_SECONDS = 600.0
"""How long a person may take at the provider."""
SKEW_SECONDS = 60.0
"""How far the provider's clock may be from ours."""
KNOWN_SECONDS, AGAIN_SECONDS = 3_600.0, 10.0
"""How long its addresses and keys are kept, and the shortest time between two looks for a key that is not among them."""
DOWN_SECONDS = 3.0
"""A provider that did not answer is not asked again so soon."""
HTTP_SECONDS = 10.0
REPLY_BYTES = 1_048_576
GROUPS, NAME_CHARS, USED = 1_000, 100, 10_000
ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
]
"""Signatures with a private key. Neither `none` nor one with a shared secret, which a public key could be taken for."""

_Text = Annotated[str, msgspec.Meta(max_length=4_096)]
_ADDRESS = re.compile(r"/[A-Za-z0-9/._~%!$&'()*+,;=:@?#-]{0,500}")
_NAME = re.compile(r"[^\s<>\x00-\x1f\x7f](?:[^<>\x00-\x1f\x7f]{0,98}[^\s<>\x00-\x1f\x7f])?")
_RESERVED = re.compile(r"@.*|group:.*|guest .*|trigger .*|.* \((?:trigger|review|Slack)\)")
"""What projects call groups, `people` of a forge its accounts, and the log people who come in elsewhere than here.

SAFETY: at many providers people choose the name that others read.
"""

T = TypeVar("T")


class _Metadata(msgspec.Struct, frozen=True):
    """What we need of the provider's discovery document."""

    issuer: _Text
    authorization_endpoint: _Text
    token_endpoint: _Text
    jwks_uri: _Text
    userinfo_endpoint: _Text | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Granted(msgspec.Struct, frozen=True):
    """The reply of the token endpoint."""

    id_token: Annotated[str, msgspec.Meta(max_length=100_000)]
    access_token: Annotated[str, msgspec.Meta(max_length=100_000)] = ""


class _Refused(msgspec.Struct, frozen=True):
    error: str = ""


class _Claims(msgspec.Struct, frozen=True):
    """The claims of an id token that are checked; the rest is looked up by the names in the settings."""

    iss: _Text
    sub: _Text
    aud: _Text | tuple[_Text, ...]
    exp: float
    iat: float
    nonce: _Text
    azp: _Text | None = None
    nbf: float | None = None


class _Flow(msgspec.Struct, frozen=True):
    """What the browser keeps while its person is at the provider."""

    state: str
    nonce: str
    verifier: str
    next: str
    back: str
    until: float


class Begun(NamedTuple):
    """A login that begins: where the browser goes, and what it keeps."""

    url: str
    cookie: str


class Person(NamedTuple):
    """Whom the provider named."""

    name: str
    groups: tuple[str, ...]
    next: str
    """The page that they wanted to see."""


class LoginProvider:
    """One provider, as the settings name it."""

    def __init__(self, entry: "OidcEntry", vault: Vault, now: Callable[[], float] = time.time) -> None:
        self.entry = entry
        self._vault = vault
        self._now = now
        self._key = secrets.token_bytes(32)
        self._used: dict[str, float] = {}
        self._asking = anyio.Lock()
        self._metadata: tuple[float, _Metadata] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._down: tuple[float, CloisterError] | None = None

    def role_of(self, groups: tuple[str, ...]) -> Role | None:
        """The highest role that the settings give to one of these groups, or to everyone."""
        held = {role for group, role in self.entry.groups.items() if group in groups}
        held |= {self.entry.everyone} if self.entry.everyone else set()
        return next((role for role in reversed(RANK) if role in held), None)

    async def begin(self, back: str, page: str) -> Begun:
        """`back` is the address that the provider sends the browser to. Raises `OutsideError` (`provider_failed`)."""
        metadata = await self._discovered()
        verifier = secrets.token_urlsafe(48)
        flow = _Flow(
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(24),
            verifier,
            inside(page),
            back,
            self._now() + FLOW_SECONDS,
        )
        asked = {
            "response_type": "code",
            "client_id": self.entry.client_id,
            "redirect_uri": back,
            "scope": " ".join(dict.fromkeys(("openid", *self.entry.scopes))),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": _base64(hashlib.sha256(verifier.encode("ascii")).digest()),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(metadata.authorization_endpoint).query else "?"
        return Begun(f"{metadata.authorization_endpoint}{joint}{urlencode(asked)}", self._sealed(flow))

    async def finish(self, cookie: bytes, query: Mapping[str, str], back: str) -> Person:
        """Raises `UserError` (`bad_login`, `denied`), `OutsideError` (`provider_failed`)."""
        flow = self._opened(cookie)
        now, state = self._now(), query.get("state", "")
        if not hmac.compare_digest(state.encode(), flow.state.encode()) or back != flow.back:
            raise _bad("the address belongs to another login, of this or of another browser")
        if "iss" in query and query["iss"] != self.entry.issuer:
            raise _bad("it came from another provider")
        if not self._use(flow, now):
            raise _bad("its address was used already, or took longer than ten minutes")
        if "error" in query:
            raise UserError("denied", f"The provider refused: {one_line(query['error'], 60)}.")
        if not (code := query.get("code", "")):
            raise _bad("the provider sent no code")
        metadata = await self._discovered()
        granted = await self._exchanged(metadata, code, flow)
        content = await self._verified(metadata, granted.id_token)
        claims = _record(content, _Claims, "an id token without the claims that it must have")
        self._check(claims, flow)
        told = cast(dict[str, Any], msgspec.json.decode(content))
        missing = {self.entry.name_claim, self.entry.groups_claim.partition(".")[0]} - told.keys()
        if missing and granted.access_token:
            told = {**await self._more(metadata, granted.access_token, claims.sub), **told}
        return Person(self._name(told), _groups(told, self.entry.groups_claim), flow.next)

    # The record in the browser's cookie.

    def _sealed(self, flow: _Flow) -> str:
        content = _base64(msgspec.json.encode(flow))
        return f"{content}.{self._mac(content)}"

    def _opened(self, cookie: bytes) -> _Flow:
        content, _, mac = cookie.decode("ascii", "replace").partition(".")
        if not mac or not hmac.compare_digest(mac.encode(), self._mac(content).encode()):
            raise _bad("this browser has not begun it here, or the server was started again meanwhile")
        return msgspec.json.decode(_bytes(content), type=_Flow)

    def _mac(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), "sha256").hexdigest()

    def _use(self, flow: _Flow, now: float) -> bool:
        """True the first time, in time."""
        self._used = {state: until for state, until in self._used.items() if until > now}
        if flow.until <= now or flow.state in self._used:
            return False
        while len(self._used) >= USED:
            del self._used[next(iter(self._used))]
        self._used[flow.state] = flow.until
        return True

    # What the provider says.

    def _check(self, claims: _Claims, flow: _Flow) -> None:
        now = self._now()
        audience = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
        if claims.iss != self.entry.issuer:
            raise _bad("its token was issued by another provider")
        if self.entry.client_id not in audience or claims.azp not in (None, self.entry.client_id):
            raise _bad("its token is meant for another program")
        if len(audience) > 1 and claims.azp is None:
            raise _bad("its token is meant for several programs and names none")
        if not hmac.compare_digest(claims.nonce.encode(), flow.nonce.encode()):
            raise _bad("its token belongs to another login")
        if not now - SKEW_SECONDS < claims.exp or max(claims.iat, claims.nbf or 0) > now + SKEW_SECONDS:
            raise _bad("its token has expired or is of the future: compare the clocks of both machines")

    def _name(self, told: Mapping[str, Any]) -> str:
        found = told.get(self.entry.name_claim)
        if (
            not isinstance(found, str)
            or not _NAME.fullmatch(found)
            or not found.isprintable()
            or _RESERVED.fullmatch(found)
        ):
            raise UserError(
                "denied",
                f"The provider names no person: its claim {self.entry.name_claim!r} is missing or cannot be a name. "
                "The setting name_claim chooses another, scopes asks for more.",
            )
        if self.entry.name_claim == "email" and told.get("email_verified", True) not in (True, "true"):
            raise UserError(
                "denied", "The provider has not verified your e-mail address: do that there first."
            )
        return found

    async def _discovered(self) -> _Metadata:
        async with self._asking:
            if self._metadata is not None and self._now() - self._metadata[0] < KNOWN_SECONDS:
                return self._metadata[1]
            content = await self._ask(f"{self.entry.issuer.rstrip('/')}/.well-known/openid-configuration")
            found = _record(content, _Metadata, "a discovery document without the addresses that are needed")
            if found.issuer != self.entry.issuer:
                told = f"that it is {one_line(found.issuer, 100)}, not {self.entry.issuer}"
                raise _failed(f"{told}: write the setting issuer as the provider does")
            for address in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
                if problem := address_problem(address, self.entry.issuer):
                    raise _failed(f"{problem} as one of its addresses")
            self._metadata = (self._now(), found)
            return found

    async def _exchanged(self, metadata: _Metadata, code: str, flow: _Flow) -> _Granted:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.back,
            "code_verifier": flow.verifier,
            "client_id": self.entry.client_id,
        }
        headers: dict[str, str] = {}
        if self.entry.client_secret is not None:
            try:
                secret = await self._vault.value(token_source("oidc", self.entry.client_secret))
            except (Unreadable, ValueError) as error:
                raise OutsideError(
                    "provider_failed", f"The setting client_secret cannot be read: {error}."
                ) from None
            if "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
                # Both parts as in a form: RFC 6749, 2.3.1.
                pair = ":".join(urlencode({"": text})[1:] for text in (self.entry.client_id, secret))
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
                del form["client_id"]
            else:
                form["client_secret"] = secret
        content = await self._ask(metadata.token_endpoint, form, headers)
        return _record(content, _Granted, "no id token")

    async def _verified(self, metadata: _Metadata, token: str) -> bytes:
        """The claims of a token that one of the provider's keys has signed, as JSON."""
        from joserfc import jws  # noqa: PLC0415  (takes long to load, and few log in)
        from joserfc.errors import JoseError  # noqa: PLC0415

        try:
            header = jws.extract_compact(token.encode("ascii", "replace")).headers()
        except (JoseError, ValueError, TypeError):
            raise _bad("its token cannot be read") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise _bad(f"its token is signed with {one_line(str(algorithm), 20)}, which proves nothing")
        for again in (False, True):
            keys = await self._published(metadata, again=again)
            fitting = [
                key for key in keys.keys if key_id in (None, key.kid) and key.get("use") in (None, "sig")
            ]
            for key in fitting:
                try:
                    return bytes(jws.deserialize_compact(token, key, algorithms=ALGORITHMS).payload)
                except (JoseError, ValueError, TypeError):
                    continue
            if fitting and key_id is not None:
                break
        raise _bad("none of the provider's keys has signed its token")

    async def _published(self, metadata: _Metadata, *, again: bool) -> "KeySet":
        """The provider's keys; `again` looks for new ones, but not too often."""
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        async with self._asking:
            age = None if self._keys is None else self._now() - self._keys[0]
            if (
                self._keys is None
                or age is None
                or not 0 <= age < (AGAIN_SECONDS if again else KNOWN_SECONDS)
            ):
                content = await self._ask(metadata.jwks_uri)
                try:
                    raw = msgspec.json.decode(content, type=_Keys)
                    usable = [key for key in raw.keys if key.get("kty") in ("RSA", "EC", "OKP")]
                    found = KeySet.import_key_set({"keys": usable})  # pyright: ignore[reportArgumentType]
                except (msgspec.MsgspecError, JoseError, ValueError, TypeError, KeyError):
                    raise _failed("keys that cannot be read") from None
                self._keys = (self._now(), found)
            return self._keys[1]

    async def _more(self, metadata: _Metadata, token: str, subject: str) -> dict[str, Any]:
        """What the provider says about the person beside the token."""
        if metadata.userinfo_endpoint is None or address_problem(
            metadata.userinfo_endpoint, self.entry.issuer
        ):
            return {}
        content = await self._ask(metadata.userinfo_endpoint, None, {"authorization": f"Bearer {token}"})
        told = _record(content, dict[str, Any], "no facts about the person")
        if told.get("sub") != subject:
            raise _bad("the provider's facts are about another person")
        return told

    async def _ask(
        self, address: str, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        if self._down is not None and 0 <= self._now() - self._down[0] < DOWN_SECONDS:
            raise self._down[1]
        import httpx2  # noqa: PLC0415  (takes long to load)

        try:
            with anyio.fail_after(HTTP_SECONDS):
                async with httpx2.AsyncClient(
                    timeout=HTTP_SECONDS, trust_env=False, follow_redirects=False, verify=self._trusted()
                ) as client:
                    return await _read(client, address, form, headers or {})
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError, TimeoutError) as error:
            host = urlsplit(address).hostname or ""
            why = one_line(str(error), 120) or "it took too long"
            down = OutsideError(
                "provider_failed",
                f"The login provider {one_line(host, 100)} does not answer ({why}): try again later.",
            )
            self._down = (self._now(), down)
            raise down from None

    def _trusted(self) -> "ssl.SSLContext | bool":
        return True if self.entry.ca is None else ssl.create_default_context(cafile=self.entry.ca)


def login_provider(settings: "Settings", vault: Vault) -> LoginProvider | None:
    """The provider of the settings."""
    entry = settings.file.oidc
    if entry is None:
        return None
    ca = settings.config_path.parent / Path(entry.ca).expanduser() if entry.ca else None
    return LoginProvider(msgspec.structs.replace(entry, ca=str(ca) if ca else None), vault)


class _Keys(msgspec.Struct, frozen=True):
    keys: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(max_length=100)]


async def _read(
    client: "httpx2.AsyncClient", address: str, form: dict[str, str] | None, headers: dict[str, str]
) -> bytes:
    """The body of a good reply, at most `REPLY_BYTES` of it. Raises `OutsideError`, and `UserError` for a refused code."""
    ask = partial(client.stream, "GET") if form is None else partial(client.stream, "POST", data=form)
    content = b""
    async with ask(address, headers={"accept": "application/json", **headers}) as reply:
        async for piece in reply.aiter_bytes():
            content += piece
            if len(content) > REPLY_BYTES:
                raise _failed("more than a megabyte")
    if reply.status_code == 200:
        return content
    if form is not None and reply.status_code in (400, 401):
        try:
            why = msgspec.json.decode(content, type=_Refused).error
        except msgspec.MsgspecError:
            why = ""
        if why == "invalid_grant":
            raise _bad("the provider does not know its code, or knows that it was used")
        raise _failed(f"{one_line(why, 60) or reply.status_code} to our client id and secret")
    raise _failed(f"status {reply.status_code}")


def _record(content: bytes, kind: type[T], otherwise: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        raise _failed(otherwise) from None


def _groups(told: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """The groups of a claim, which may be a list or one text; a dot leads into a table, unless the name has it."""
    found: Any = told.get(claim)
    if claim not in told:
        found = told
        for part in claim.split("."):
            found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
    listed = (
        [found] if isinstance(found, str) else cast("list[Any]", found) if isinstance(found, list) else []
    )
    return tuple(dict.fromkeys(one for one in listed[:GROUPS] if isinstance(one, str) and len(one) <= 256))


def inside(page: str) -> str:
    """The address of one of our own pages; `/` for anything else, such as the address of another site."""
    fits = _ADDRESS.fullmatch(page) and not page.startswith(("//", "/login", "/v1"))
    return page if fits else "/"


def address_problem(address: str, issuer: str) -> str | None:
    """Why an address of the provider cannot be used, as what it is; None if it can."""
    try:
        parts = urlsplit(address)
        plain = (
            parts.scheme == "http" and urlsplit(issuer).scheme == "http" and is_loopback(parts.hostname or "")
        )
        fine = bool(parts.hostname) and parts.username is None and (parts.port or 1) > 0
    except ValueError:
        return "no address"
    if not fine or parts.fragment:
        return "no address"
    return None if parts.scheme == "https" or plain else "an address without TLS"


def is_loopback(host: str) -> bool:
    """Whether plain HTTP to this host stays on this machine."""
    return host in ("127.0.0.1", "::1", "localhost")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _bad(why: str) -> UserError:
    return UserError("bad_login", f"This login does not hold, because {why}. Begin it again.")


def _failed(what: str) -> OutsideError:
    return OutsideError("provider_failed", f"The login provider answered with {what}.")
