"""Every route with hostile names, numbers and bodies, as each role: a short JSON error, never a failure of the server."""

import re
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx
import pytest
from tests.server.conftest import Served, serve_app

from cloister.app.settings import read_settings
from cloister.app.tokens import RANK, Tokens
from cloister.core.requests import Role
from cloister.server.app import HTTP_ROUTES, openapi_document

pytestmark = pytest.mark.anyio

ECHO = 400
"""Most bytes of an error."""

NAMES = (
    "x" * 5_000,
    "\x1b]0;title\x07",
    "..",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "-rf",
    "last",
    "r-",
    "'; DROP TABLE runs; --",
    "\u202e\u0000",
    "９",
    "0",
)
BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"[" * 100_000,
    b'{"x": ' * 50_000,
    b'{"' + b"k" * 100_000 + b'": 1}',
    b'{"text": "\\ud800"}',
    b'{"text": 1, "prompt": 1, "name": 1, "action": 1, "where": 1, "model": 1}',
    b'{"to": 9999999999999999999999, "at": -1, "since_us": 1e400}',
    b"\xff\xfe{}",
    b'{"text": "' + b"y" * 2_000_000 + b'"}',
)
OPEN = ("/v1/health", "/v1/hooks/{name}", "/v1/login", "/v1/login/share")
LASTING = {"rotateAuditKey", "newSandbox"}
"""Operations whose empty body is a valid request with lasting effects."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One server for all: hostile input changes nothing that another test relies on."""
    data = tmp_path_factory.mktemp("hostile") / "data"
    async with serve_app(
        read_settings({"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester"}, data)
    ) as running:
        yield running


def operations() -> list[tuple[str, str, str, Role]]:
    roles = {
        (path, method): route.opt.get(
            "role", "admin"
        )  # a route without a role knows its caller by a signature
        for route in HTTP_ROUTES
        for path, method in product(route.paths, route.http_methods)
    }
    found: list[tuple[str, str, str, Role]] = []
    for path, methods in openapi_document()["paths"].items():
        for method, operation in methods.items():
            plain = {
                re.sub(r":\w+", "", known): role
                for (known, verb), role in roles.items()
                if verb == method.upper()
            }
            found.append((method.upper(), path, operation["operationId"], plain[path]))
    return sorted(found)


def filled(path: str, name: str) -> str:
    return re.sub(r"\{\w+\}", lambda _: quoted(name), path)


def quoted(name: str) -> str:
    return "".join(f"%{byte:02x}" for byte in name.encode("utf-8", "surrogatepass"))


def is_short_error(answer: httpx.Response) -> bool:
    said: Any = answer.json()
    return set(said) == {"code", "message"} and len(answer.content) <= ECHO and answer.status_code < 500


@pytest.mark.parametrize(
    "method,path,operation,role", operations(), ids=lambda value: value if isinstance(value, str) else ""
)
async def test_a_hostile_name_or_body_is_a_short_error(
    served: Served, method: str, path: str, operation: str, role: Role
) -> None:
    for name in NAMES if "{" in path else ():
        answer = await served.client.request(method, filled(path, name), json={})
        assert answer.status_code < 500, (name, answer.text)
        if answer.is_error:
            assert is_short_error(answer), (name[:30], answer.text[:300])
    bodies = [body for body in BODIES if body or operation not in LASTING]
    for body in bodies if method != "GET" else ():
        answer = await served.client.request(
            method, filled(path, "nothing"), content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code < 500, (body[:30], answer.text)
        if answer.is_error:
            assert is_short_error(answer), (body[:30], answer.text[:300])


@pytest.mark.parametrize("caller", ["viewer", "operator"])
async def test_each_route_is_for_its_role_and_above(served: Served, caller: Role) -> None:
    secret = Tokens(served.app.settings.data_dir).add(f"tess-{caller}", caller, "tester")
    for method, path, operation, role in operations():
        if path in OPEN or operation in LASTING:
            continue
        headers = {"Authorization": f"Bearer {secret}"}
        request = served.client.build_request(method, filled(path, "nothing"), headers=headers, json={})
        answer = await served.client.send(request, stream=True)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            await answer.aclose()  # it would go on
            assert RANK[caller] >= RANK[role], path
            continue
        await answer.aread()
        denied = answer.status_code == 403 and answer.json()["code"] == "denied"
        assert denied == (RANK[caller] < RANK[role]), (method, path, answer.text[:200])


async def test_the_document_says_which_requests_need_a_body(served: Served) -> None:
    optional: list[str] = []
    for path, methods in openapi_document()["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {})
            if "application/json" not in body.get("content", {}) or operation["operationId"] == "newSandbox":
                continue
            answer = await served.client.request(method.upper(), filled(path, "none"))
            missing = answer.json()["message"] == "The request needs a JSON body."
            assert body["required"] is missing, (path, answer.text)
            optional += [] if missing else [operation["operationId"]]
    assert sorted(optional) == ["forkSandbox", "newContext", "newSnapshot", "openPullRequest"]


async def test_a_wrong_method_names_those_that_are_allowed(served: Served) -> None:
    for path, methods in openapi_document()["paths"].items():
        wanted = {method.upper() for method in methods}
        for wrong in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"} - wanted:
            answer = await served.client.request(wrong, filled(path, "nothing"))
            assert answer.status_code == 405, (wrong, path)
            assert wanted <= set(answer.headers["allow"].replace(" ", "").split(",")), (wrong, path)


async def test_options_names_every_method_of_the_address(served: Served) -> None:
    for path, methods in openapi_document()["paths"].items():
        answer = await served.client.options(filled(path, "nothing"))
        assert answer.status_code == 204, (path, answer.text)
        wanted = {"OPTIONS", *(method.upper() for method in methods)}
        assert set(answer.headers["allow"].replace(" ", "").split(",")) == wanted, path
    assert (await served.client.options("/v1/nowhere")).status_code == 404


async def test_numbers_out_of_range_and_repeated_parameters_are_refused(served: Served) -> None:
    fence = await served.claimed_run()
    for query in (
        "after=-1",
        "after=９",
        f"after={10**30}",
        "limit=0",
        "limit=100000",
        "attempt=-1",
        "attempt=99999999999999999999",
        "attempt=x",
    ):
        for kind in ("events", "words"):
            if query.startswith("attempt") and kind == "words":
                continue
            answer = await served.client.get(f"/v1/runs/{fence.run}/{kind}?{query}")
            assert (answer.status_code, is_short_error(answer)) == (400, True), (kind, query, answer.text)


def test_the_document_states_the_range_of_attempts_and_modes() -> None:
    paths = openapi_document()["paths"]
    (attempt,) = (
        one for one in paths["/v1/runs/{run}/events"]["get"]["parameters"] if one["name"] == "attempt"
    )
    assert attempt["schema"]["minimum"] == 0
    (mode,) = (
        one for one in paths["/v1/sandboxes/{sandbox}/files"]["put"]["parameters"] if one["name"] == "mode"
    )
    assert re.fullmatch(mode["schema"]["pattern"], "644")
    assert not re.fullmatch(mode["schema"]["pattern"], "4755")
