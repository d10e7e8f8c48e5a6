"""The request that a verb declares is a route of the server with the same verb and arguments."""

import inspect
import re

import pytest
from tests.whole.conformance.suites.verbs import GROUPS

from cloister.app.verbs.declare import Route, route_of
from cloister.server.app import openapi_document

DECLARED = {
    f"{group}.{name}": (verb, route)
    for group, kind in GROUPS.items()
    for name, verb in vars(kind).items()
    if inspect.isfunction(verb) and (route := route_of(verb))
}


def nameless(path: str) -> str:
    """A path without the names of its parameters, which a route may choose."""
    return re.sub(r"\{\w+\}", "{}", path)


ROUTES = {nameless(path): item for path, item in openapi_document()["paths"].items()}


def test_most_verbs_declare_their_request() -> None:
    assert len(DECLARED) > 50


@pytest.mark.parametrize(("verb", "route"), DECLARED.values(), ids=DECLARED)
def test_declared_request_is_a_route_of_the_server(verb: object, route: Route) -> None:
    operation = ROUTES[nameless(f"/v1/{route.path}")][route.method.lower()]
    named = [each["name"] for each in operation.get("parameters", ())]
    assert inspect.isfunction(verb)
    for name in list(inspect.signature(verb).parameters)[1:]:
        if f"{{{name}}}" in route.path:
            continue
        if route.method in ("GET", "DELETE"):
            assert name in named
        elif name == "key":
            assert "Idempotency-Key" in named
        else:
            assert name == "report" or "requestBody" in operation
