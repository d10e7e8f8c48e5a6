"""The OpenAPI document and the code, held against each other."""

import json
from collections.abc import Iterator
from typing import Any, cast

import httpx
import msgspec
import pytest
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from tests.server.conftest import Served, serve_app

from cloister.app.settings import read_settings
from cloister.core import diagnosis
from cloister.core.events import (
    AnyBody,
    AskRaised,
    BaselineTaken,
    ChecksRan,
    ModelReplied,
    SandboxOpened,
    ToolReturned,
)
from cloister.core.requests import Isolation, ToolCall, Usage
from cloister.server.app import openapi_document

SCHEMA: Any = cast(Any, schemathesis.openapi).from_dict(openapi_document())
CHECKS: list[Any] = [
    cast(Any, checks).not_a_server_error,
    cast(Any, checks).status_code_conformance,
    cast(Any, checks).content_type_conformance,
    cast(Any, checks).response_schema_conformance,
]
DIAGNOSIS = diagnosis.Diagnosis(
    "pytest",
    1,
    2.5,
    tests=(diagnosis.TestResult("t", "failed", "f.py", 3, "no"),),
    diagnostics=(diagnosis.Diagnostic("m", "f.py", 1, 2, "warning", "E1", "ruff"),),
)
EVENTS: list[AnyBody] = [
    SandboxOpened("s-1", Isolation("container", "crun 1", shares_kernel=True, store="overlay")),
    BaselineTaken((DIAGNOSIS,)),
    ModelReplied(
        1, 1, "m", "text", (ToolCall("c", "bash", {"command": ["any", 1, None]}),), Usage(1, 2), 0.5
    ),
    ToolReturned(1, "c", "bash", ok=True, text="out", seconds=1.0, exit_code=0),
    ChecksRan(1, 1, (DIAGNOSIS,), diagnosis.Comparison(fixed=("a",), new=("b",))),
    AskRaised("a", 1, "tool:bash", "rm", deadline=2e9),
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A server in a thread of its own, and a run with a bit of everything in its log."""
    data = tmp_path_factory.mktemp("openapi") / "data"
    found = read_settings({"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester"}, data)

    async def seed(served: Served) -> str:
        fence = await served.claimed_run()
        await served.app.backbone.append(fence, EVENTS)
        return fence.run

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve_app(found)) as served:
        yield served, portal.call(seed, served)


BOUNDED = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def check(case: Any, served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.token}"}
    base = f"http://127.0.0.1:{served.port}"
    case.call_and_validate(base_url=base, headers=headers, checks=CHECKS, timeout=60)


def operations() -> Iterator[tuple[str, str]]:
    """Each path of the document with each method, but for what has no end, or makes a sandbox or a template."""
    for path, item in openapi_document()["paths"].items():
        for method, operation in item.items():
            if operation["operationId"] not in (
                "newSandbox",
                "buildTemplate",
                "fetchModel",
                "streamRun",
                "streamAll",
            ):
                yield path, method.upper()


def ask(path: str, method: str, served: Served, run: str | None = None) -> None:
    """What the document allows, and what it does not."""
    operation = SCHEMA[path][method]
    modes = cast(Any, schemathesis).GenerationMode

    @BOUNDED
    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)))
    def examples(case: Any) -> None:
        if run is not None:
            case.path_parameters = {**(case.path_parameters or {}), "run": run}
        check(case, served)

    examples()


@pytest.mark.parametrize(("path", "method"), list(operations()))
def test_every_operation_answers_as_documented(path: str, method: str, live: tuple[Served, str]) -> None:
    ask(path, method, live[0])


@pytest.mark.parametrize(
    ("path", "method"), [one for one in operations() if one[0].startswith("/v1/runs/{run}")]
)
def test_every_operation_on_an_existing_run_answers_as_documented(
    path: str, method: str, live: tuple[Served, str]
) -> None:
    ask(path, method, *live)


def test_a_log_with_many_event_types_is_as_documented(live: tuple[Served, str]) -> None:
    for path in ("/v1/runs/{run}", "/v1/runs/{run}/events", "/v1/runs"):
        case = SCHEMA[path]["GET"].Case(path_parameters={"run": live[1]} if "{run}" in path else {})
        check(case, live[0])


def references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(name)}:
            yield name
        case dict():
            for member in value.values():  # type: ignore[reportUnknownVariableType]
                yield from references(member)
        case list():
            for member in value:  # type: ignore[reportUnknownVariableType]
                yield from references(member)
        case _:
            pass


def test_the_document_is_plain_json_and_every_reference_resolves() -> None:
    document = openapi_document()
    assert json.loads(json.dumps(document)) == document
    assert document["openapi"].startswith("3.1.")
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_every_route_but_health_webhooks_and_login_is_documented_as_needing_the_token() -> None:
    document = openapi_document()
    assert document["security"] == [{"token": []}]
    open_paths = [
        path
        for path, item in document["paths"].items()
        for each in item.values()
        if each.get("security") == []
    ]
    open_routes = ["/healthz", "/readyz", "/v1/health", "/v1/hooks/{name}", "/v1/login", "/v1/login"]
    open_routes.append("/v1/login/share")
    assert sorted(open_paths) == open_routes


def test_requests_with_unknown_fields_are_documented_as_refused() -> None:
    schemas = openapi_document()["components"]["schemas"]
    names = (
        "NewRun",
        "Say",
        "Answer",
        "NewSandbox",
        "SandboxChange",
        "NewCommand",
        "Move",
        "Remove",
        "Exec",
        "Execute",
    )
    for name in (*names, "NewTemplate", "BuildTemplate"):
        assert schemas[name]["additionalProperties"] is False


def test_the_server_serves_the_same_document(live: tuple[Served, str]) -> None:
    served = live[0]
    headers = {"Authorization": f"Bearer {served.token}"}
    url = f"http://127.0.0.1:{served.port}/v1/openapi.json"
    reply = httpx.get(url, headers=headers, timeout=30, trust_env=False)
    assert msgspec.json.decode(reply.content) == openapi_document()
