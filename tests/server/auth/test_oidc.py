"""Login at a provider: whom it names is let in with the role of their groups; nothing forged, replayed or foreign is."""

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
from joserfc import jwk, jws
from tests.server.auth.login_provider import CLIENT, SECRET, LoginProvider, login_provider
from tests.server.conftest import Served, serve_app

from cloister.app.people.oidc import LoginProvider as OurSide
from cloister.app.people.oidc import inside
from cloister.app.people.projects import people_in
from cloister.app.settings import OidcEntry, Settings, read_settings
from cloister.app.tokens import Tokens
from cloister.core.errors import CloisterError, UserError
from cloister.egress.credentials import Vault

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def running() -> Iterator[LoginProvider]:
    with login_provider() as provider:
        yield provider


@pytest.fixture
def provider(running: LoginProvider) -> LoginProvider:
    """The same server for all tests, honest again."""
    port = running.port
    running.__init__()  # type: ignore[misc]
    running.port = port
    return running


def settings_with(directory: Path, text: str) -> Settings:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text(text)
    env = {"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester", "OIDC_SECRET": SECRET}
    return read_settings(env, directory)


@pytest.fixture
async def served(provider: LoginProvider, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve_app(settings_with(tmp_path / "data", provider.settings())) as running:
        yield running


class Person:
    """A browser, which keeps cookies."""

    def __init__(self, served: Served) -> None:
        self.origin = f"http://127.0.0.1:{served.port}"
        self.client = httpx.AsyncClient(base_url=self.origin, timeout=30, trust_env=False, verify=False)

    async def begin(self, page: str = "/runs/r-1") -> str:
        reply = await self.client.get("/login/oidc", params={"next": page})
        assert reply.status_code == 302, reply.text
        return reply.headers["location"]

    async def log_in(self, provider: LoginProvider) -> httpx.Response:
        return await self.client.get(provider.authorize(await self.begin()))

    async def me(self) -> httpx.Response:
        return await self.client.get("/v1/me")


@pytest.fixture
async def person(served: Served) -> AsyncIterator[Person]:
    found = Person(served)
    yield found
    await found.client.aclose()


BACK = "http://127.0.0.1:7717/login/oidc/callback"


class Direct:
    """The provider's side of our server, without the server, at a clock of the test."""

    def __init__(self, provider: LoginProvider) -> None:
        self.provider = provider
        self.ahead = 0.0
        entry = OidcEntry(provider.issuer, CLIENT, "env:OIDC_SECRET", {"dev": "operator", "ops": "admin"})
        self.login = OurSide(entry, Vault({"OIDC_SECRET": SECRET}), lambda: time.time() + self.ahead)

    async def log_in(self) -> tuple[str, tuple[str, ...]]:
        begun = await self.login.begin(BACK, "/")
        address = self.provider.authorize(begun.url)
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        found = await self.login.finish(begun.cookie.encode(), query, BACK)
        return found.name, found.groups

    async def refuses(self, code: str, says: str) -> None:
        with pytest.raises(CloisterError, match=says) as caught:
            await self.log_in()
        assert caught.value.code == code


async def kinds(served: Served) -> list[tuple[str, str]]:
    return [(entry.kind, entry.who) for entry in await served.app.backbone.audit(limit=10_000)]


async def refused(person: Person, provider: LoginProvider, says: str, status: int = 401) -> None:
    reply = await person.log_in(provider)
    assert (reply.status_code, says in reply.text) == (status, True), reply.text
    assert (await person.me()).status_code == 401


async def test_a_person_of_a_group_is_let_in_with_its_role_and_leads_on_to_the_page_they_wanted(
    served: Served, person: Person, provider: LoginProvider
) -> None:
    assert (await person.client.get("/v1/login")).json() == {"provider": f"127.0.0.1:{provider.port}"}
    reply = await person.log_in(provider)
    assert reply.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/runs/r-1"' in reply.text
    [made] = [one for one in reply.headers.get_list("set-cookie") if "SameSite=Strict" in one]
    assert set(made.split("; ")[1:]) == {"Path=/", "Max-Age=86400", "HttpOnly", "SameSite=Strict"}
    me = (await person.me()).json()
    assert (me["name"], me["role"]) == ("ada@example.org", "operator")
    [entry] = [e for e in await served.app.backbone.audit(limit=1_000) if e.kind == "LoginBegun"]
    assert entry.who == "ada@example.org"
    assert json.loads(entry.detail)["provider"] == provider.issuer
    stored = (served.app.settings.data_dir / "logins.json").read_text()
    assert made.split("=")[1].split(";")[0] not in stored


async def test_a_log_out_ends_it_and_an_entry_says_so(
    served: Served, person: Person, provider: LoginProvider
) -> None:
    await person.log_in(provider)
    assert (
        await person.client.post("/v1/logout", headers={"Origin": "http://evil.example"})
    ).status_code == 403
    assert (await person.client.post("/v1/logout", headers={"Origin": person.origin})).status_code == 200
    assert (await person.me()).status_code == 401
    assert ("LoginEnded", "ada@example.org") in await kinds(served)


async def test_what_the_person_tells_a_run_has_their_name(
    served: Served, person: Person, provider: LoginProvider
) -> None:
    await person.log_in(provider)
    fence = await served.claimed_run()
    headers = {"Origin": person.origin}
    reply = await person.client.post(f"/v1/runs/{fence.run}/say", json={"text": "go on"}, headers=headers)
    assert (reply.status_code, reply.json()["body"]["who"]) == (200, "ada@example.org")


async def test_a_person_of_no_group_with_a_role_is_not_let_in(
    person: Person, provider: LoginProvider
) -> None:
    found: list[dict[str, Any]] = [{"groups": ["others"]}, {"groups": "other"}, {"groups": {"dev": 1}}, {}]
    for facts in found:
        provider.facts = {"email": "ada@example.org", **facts}
        await refused(person, provider, "None of the groups of ada@example.org has a role", 403)


async def test_a_project_lets_a_person_in_who_has_no_role_on_the_server_as_long_as_it_names_them(
    served: Served, person: Person, provider: LoginProvider
) -> None:
    people = people_in(served.app.settings.data_dir)
    people.set_project("ledger", ("/nowhere",))
    people.set_member("ledger", "group:payments", "steers")
    run = (await served.claimed_run()).run
    provider.facts = {"email": "ada@example.org", "groups": ["payments", "others"]}
    assert (await person.log_in(provider)).status_code == 200
    me = (await person.me()).json()
    assert (me["name"], me["role"], me["known"]) == ("ada@example.org", "viewer", False)
    headers = {"Origin": person.origin}
    said = await person.client.post(f"/v1/runs/{run}/say", json={"text": "go on"}, headers=headers)
    assert (said.status_code, said.json()["body"]["who"]) == (200, "ada@example.org")
    for path in ("/v1/sandboxes", "/v1/budget", "/v1/audit", "/v1/triggers"):
        assert (await person.client.get(path)).status_code == 403
    people.set_member("ledger", "group:payments", None)
    assert (await person.me()).status_code == 401
    provider.facts = {"email": "guest sh-000000000000", "groups": ["dev"]}
    assert (await person.log_in(provider)).status_code == 403


async def test_groups_that_only_the_facts_name_are_read_there_and_the_highest_role_counts(
    provider: LoginProvider,
) -> None:
    provider.facts = {"email": "ada@example.org", "groups": ["dev", "ops"]}
    provider.claims = {"groups": None, "email": None}
    direct = Direct(provider)
    name, groups = await direct.log_in()
    assert (name, direct.login.role_of(groups)) == ("ada@example.org", "admin")
    provider.claims = {"groups": None, "sub": "u-2"}
    await direct.refuses("bad_login", "about another person")


async def test_groups_in_a_table_and_under_a_name_with_dots_are_found(provider: LoginProvider) -> None:
    direct = Direct(provider)
    for claim, facts in (
        ("realm_access.roles", {"realm_access": {"roles": ["dev"]}}),
        ("https://example.org/groups", {"https://example.org/groups": "dev"}),
    ):
        provider.facts = {"email": "ada@example.org", **facts}
        direct.login.entry = msgspec.structs.replace(direct.login.entry, groups_claim=claim)
        assert (await direct.log_in())[1] == ("dev",)


async def test_a_token_for_something_else_lets_no_one_in(provider: LoginProvider) -> None:
    direct = Direct(provider)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"iss": "https://login.example.org"}, "issued by another provider"),
        ({"aud": "another"}, "meant for another program"),
        ({"aud": ["cloister", "another"]}, "names none"),
        ({"aud": ["cloister", "another"], "azp": "another"}, "meant for another program"),
        ({"nonce": "guessed"}, "belongs to another login"),
        ({"exp": 1_000_000_000}, "has expired"),
        ({"exp": time.time() - 61}, "compare the clocks"),
        ({"iat": time.time() + 3_600}, "compare the clocks"),
        ({"nbf": time.time() + 3_600}, "compare the clocks"),
    )
    for provider.claims, says in wrong:
        await direct.refuses("bad_login", says)
    for name in ("iss", "sub", "aud", "exp", "iat", "nonce"):
        provider.claims = {name: None}
        await direct.refuses("provider_failed", "an id token without the claims")
    provider.claims = {"exp": time.time() - 20, "iat": time.time() + 20}
    await direct.log_in()  # clocks may differ by less than a minute


async def test_a_forged_token_lets_no_one_in(provider: LoginProvider) -> None:
    direct = Direct(provider)

    def with_header(header: dict[str, Any], key: Any) -> None:
        provider.token = lambda content: jws.serialize_compact(
            header, content, key, algorithms=[header["alg"]]
        )

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    for name in ("none", "None", "NONE", ""):
        header = json.dumps({"alg": name, "kid": "first"}).encode()
        provider.token = lambda content, header=header: f"{part(header)}.{part(content)}."
        await direct.refuses("bad_login", "which proves nothing")
    # The public key, which everyone has, as a shared secret.
    shared = provider.key.as_pem(private=False)
    header, signer = json.dumps({"alg": "HS256", "kid": "first"}).encode(), hmac.new
    provider.token = lambda content: (
        f"{part(header)}.{part(content)}."
        f"{part(signer(shared, f'{part(header)}.{part(content)}'.encode(), 'sha256').digest())}"
    )
    await direct.refuses("bad_login", "signed with HS256")
    with_header({"alg": "RS256", "kid": "first"}, jwk.RSAKey.generate_key(2048))
    await direct.refuses("bad_login", "none of the provider")
    with_header({"alg": "ES256", "kid": "first"}, jwk.ECKey.generate_key())
    await direct.refuses("bad_login", "none of the provider")
    own = jwk.RSAKey.generate_key(2048)
    with_header({"alg": "RS256", "jwk": own.as_dict(private=False)}, own)
    await direct.refuses("bad_login", "its token")
    for broken in ("", "a.b", "a.b.c", "e30.e30.", "é.é.é", "." * 99_000):
        provider.token = lambda _, text=broken: text
        await direct.refuses("bad_login", "its token")


async def test_a_changed_key_is_found_and_an_old_one_is_worth_nothing(provider: LoginProvider) -> None:
    direct = Direct(provider)
    await direct.log_in()
    old, asked = provider.key, provider.looks
    provider.key = jwk.RSAKey.generate_key(2048, {"kid": "second"})
    provider.published, provider.kid = [provider.key], "second"
    direct.ahead = 11.0
    await direct.log_in()
    assert provider.looks == asked + 1
    provider.key, provider.kid = old, "first"
    await direct.refuses("bad_login", "none of the provider")
    await direct.refuses("bad_login", "none of the provider")
    assert provider.looks == asked + 1, "an unknown key makes us look again, but not for each token"
    provider.published = [old]
    direct.ahead = 30.0
    await direct.log_in()


async def test_keys_that_cannot_sign_are_left_out_and_a_token_needs_no_key_id(
    provider: LoginProvider,
) -> None:
    direct = Direct(provider)
    unknown = {"kty": "future", "kid": "x"}
    shared = {"kty": "oct", "kid": "first", "k": "c2VjcmV0"}
    keys = [
        unknown,
        shared,
        jwk.ECKey.generate_key().as_dict(private=False),
        provider.key.as_dict(private=False),
    ]
    provider.raw_keys, provider.kid = json.dumps({"keys": keys}).encode(), None
    await direct.log_in()
    sealing = provider.key.as_dict(private=False) | {"use": "enc"}
    provider.raw_keys = json.dumps({"keys": [sealing]}).encode()
    direct.ahead = 4_000.0
    await direct.refuses("bad_login", "none of the provider")
    for provider.raw_keys in (b"[]", b'{"keys": 3}', b'{"keys": [{"kty": "RSA", "n": "!", "e": 1}]}', b"{}"):
        direct.ahead += 4_000
        await direct.refuses("provider_failed", "keys that cannot be read")


async def test_a_code_works_once(person: Person, provider: LoginProvider) -> None:
    back = provider.authorize(await person.begin())
    kept = dict(person.client.cookies)
    assert (await person.client.get(back)).status_code == 200
    person.client.cookies.clear()
    person.client.cookies.update(kept)
    reply = await person.client.get(back)
    assert (reply.status_code, "was used already" in reply.text) == (401, True)


async def test_an_address_of_another_browser_logs_no_one_in(served: Served, provider: LoginProvider) -> None:
    mallory, victim = Person(served), Person(served)
    trap = provider.authorize(await mallory.begin())
    reply = await victim.client.get(trap)
    assert (reply.status_code, "has not begun it here" in reply.text) == (401, True)
    await victim.begin()
    reply = await victim.client.get(trap)
    assert (reply.status_code, "another browser" in reply.text) == (401, True)
    assert (await victim.me()).status_code == 401
    for one in (mallory, victim):
        await one.client.aclose()


async def test_a_record_that_the_browser_changed_is_not_believed(
    person: Person, provider: LoginProvider
) -> None:
    back = provider.authorize(await person.begin())
    [(name, value)] = person.client.cookies.items()
    content, _, mac = value.partition(".")
    for wrong in (f"{content}x.{mac}", f"{content}.{mac[:-1]}0", content, "", ".", f".{mac}", "e30.é"):
        client = httpx.AsyncClient(base_url=person.origin, trust_env=False, verify=False)
        reply = await client.get(back, headers=[(b"cookie", f"{name}={wrong}".encode())])
        await client.aclose()
        assert reply.status_code == 401


async def test_the_answer_of_another_provider_and_parameters_given_twice_are_refused(
    person: Person, provider: LoginProvider
) -> None:
    back = provider.authorize(await person.begin())
    state = parse_qs(urlsplit(back).query)["state"][0]
    mixed = f"/login/oidc/callback?code=c&state={state}&iss=https://other.example"
    assert "another provider" in (await person.client.get(mixed)).text
    await person.begin()
    reply = await person.client.get(f"{back}&state=other")
    assert reply.status_code == 401


async def test_a_refusal_of_the_provider_is_said_and_its_text_is_no_markup(
    person: Person, provider: LoginProvider
) -> None:
    state = parse_qs(urlsplit(await person.begin()).query)["state"][0]
    query = {"state": state, "error": "<script>alert(1)</script>", "error_description": "x" * 9_000}
    reply = await person.client.get("/login/oidc/callback", params=query)
    assert reply.status_code == 403
    assert "<script>" not in reply.text and "&lt;script&gt;" in reply.text
    assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    "page",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/%0a//evil.example\n",
        "javascript:alert(1)",
        "/a\r\nSet-Cookie: x=y",
        '/"><script>',
        "/login/oidc",
        "/v1/logout",
        "",
        "/" + "a" * 600,
    ],
)
def test_the_page_to_show_is_always_one_of_ours(page: str) -> None:
    assert inside(page) in ("/", "/%0a//evil.example") and inside(page) != page


def test_pages_of_ours_are_kept() -> None:
    for page in ("/", "/runs/r-1?at=3#e12", "/new?from=r-2", "/sandboxes"):
        assert inside(page) == page


async def test_a_provider_that_answers_nonsense_is_said_so(provider: LoginProvider) -> None:
    direct = Direct(provider)
    for provider.answer, says in (
        ((500, b"oops"), "status 500"),
        ((200, b"<html>"), "a discovery document without"),
        ((200, b"[" * 200_000), "a discovery document without"),
        ((200, b"{}" + b" " * 1_100_000), "more than a megabyte"),
        ((302, b""), "status 302"),
    ):
        await direct.refuses("provider_failed", says)


async def test_addresses_that_a_provider_must_not_have_are_refused(provider: LoginProvider) -> None:
    direct = Direct(provider)
    found: tuple[dict[str, Any], ...] = (
        {"issuer": "https://other.example"},
        {"token_endpoint": "http://10.0.0.1/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "https://user:password@evil.example/"},
        {"token_endpoint": "http://127.0.0.1:99999/"},
    )
    for provider.metadata in found:
        await direct.refuses("provider_failed", "answered with")


async def test_a_provider_that_is_down_is_said_and_other_logins_still_work(
    served: Served, person: Person, provider: LoginProvider
) -> None:
    await person.begin()
    gone = served.app.provider
    assert gone is not None
    closed = read_settings({"USER": "tester"}, served.app.settings.data_dir.parent / "other")
    text = provider.settings(issuer="http://127.0.0.1:1")
    async with serve_app(settings_with(closed.data_dir, text)) as other:
        late = Person(other)
        reply = await late.client.get("/login/oidc")
        assert (reply.status_code, "does not answer" in reply.text) == (502, True)
        secret = (await other.client.post("/v1/logins")).json()["secret"]
        made = await late.client.post("/v1/login", json={"secret": secret}, headers={"Origin": late.origin})
        assert made.status_code == 200
        assert ("LoginRefused", "") in await kinds(other)
        await late.client.aclose()


async def test_a_wrong_client_secret_is_named_in_the_answer(
    person: Person, provider: LoginProvider, served: Served
) -> None:
    provider.facts["groups"] = ["dev"]
    back = provider.authorize(await person.begin())
    provider.answer = (401, b'{"error": "invalid_client"}')
    reply = await person.client.get(back)
    assert (reply.status_code, "invalid_client to our client id and secret" in reply.text) == (502, True)


async def test_a_person_without_a_usable_name_is_not_let_in(provider: LoginProvider) -> None:
    direct = Direct(provider)
    for name in (
        None,
        7,
        "",
        "ada\u202e@example.org",
        "<b>@example.org",
        "a" * 101,
        "ada@example.org\nx",
        " a",
        "@ada",
        "group:dev",
        "guest 1",
        "trigger nightly",
        "ada (trigger)",
        "U1 (Slack)",
    ):
        provider.facts = {"groups": ["dev"], "email": name}
        await direct.refuses("denied", "names no person")
    provider.facts = {"email": "ada@example.org", "email_verified": False}
    await direct.refuses("denied", "has not verified")


async def test_no_person_takes_the_name_of_a_token_or_of_the_account_of_the_server(
    provider: LoginProvider, tmp_path: Path
) -> None:
    settings = settings_with(tmp_path / "data", provider.settings(name_claim="preferred_username"))
    Tokens(settings.data_dir).add("bot", "viewer", "tester")
    async with serve_app(settings) as served:
        for name in ("bot", "tester", "deadline"):
            provider.facts = {"preferred_username": name, "groups": ["ops"]}
            person = Person(served)
            await refused(person, provider, "is the name of a token", 403)
            await person.client.aclose()


async def test_a_login_ends_when_the_settings_give_its_groups_no_role_any_more(
    provider: LoginProvider, tmp_path: Path
) -> None:
    settings = settings_with(tmp_path / "data", provider.settings())
    async with serve_app(settings) as served:
        person = Person(served)
        await person.log_in(provider)
        cookie = dict(person.client.cookies)
        await person.client.aclose()
        port = served.port
    for text, status in (
        (provider.settings(), 200),
        (provider.settings().replace("dev", "developers"), 401),
        (provider.settings(issuer="http://127.0.0.1:1"), 401),
        ("", 401),
    ):
        async with serve_app(settings_with(tmp_path / "data", text)) as served:
            value = cookie[f"cloister-{port}"]
            headers = {"Cookie": f"cloister-{served.port}={value}", "Authorization": ""}
            assert (await served.client.get("/v1/me", headers=headers)).status_code == status


def test_settings_that_cannot_work_are_refused_with_the_reason(tmp_path: Path) -> None:
    for text, says in (
        ('issuer = "http://login.example.org"\nclient_id = "c"', "without TLS"),
        ('issuer = "login.example.org"\nclient_id = "c"', "is an https address"),
        ('issuer = "https://login.example.org"\nclient_id = ""', "needs a client_id"),
        ('issuer = "https://login.example.org"\nclient_id = "c"\ngroups = {a = "king"}', "oidc"),
        ('issuer = "https://login.example.org"\nclient_id = "c"\nscopes = ["a b"]', "are words"),
    ):
        with pytest.raises(UserError, match=says):
            settings_with(tmp_path, f"[oidc]\n{text}\n")
