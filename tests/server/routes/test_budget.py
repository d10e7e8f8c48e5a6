import pytest
from tests.server.conftest import Served

from cloister.core.events import BudgetWarned, ModelReplied
from cloister.core.requests import Usage

pytestmark = pytest.mark.anyio


async def test_the_budget_shows_every_level_and_a_run_shows_what_it_cost(served: Served) -> None:
    fence = await served.claimed_run()
    warned = BudgetWarned("user", "somebody", "tokens", 8, 10, 0)
    body = ModelReplied(0, 1, "p:m", "", (), Usage(90, 10), 0.1, cost=0.5)
    await served.app.backbone.append(fence, [body, warned])
    every = (await served.client.get("/v1/budget")).json()["accounts"]
    assert [(one["level"], one["spent"]["tokens"]) for one in every] == [
        ("organisation", 100),
        ("project", 100),
        ("user", 100),
    ]
    its = (await served.client.get("/v1/budget", params={"run": fence.run})).json()["accounts"]
    assert [one["level"] for one in its] == ["organisation", "project", "user", "run", "attempt"]
    view = (await served.client.get(f"/v1/runs/{fence.run}")).json()
    assert (view["cost"], view["attempts"][0]["cost"]) == (0.5, 0.5)
    assert view["budget_notes"][0]["type"] == "BudgetWarned"
    missing = await served.client.get("/v1/budget", params={"run": "r-nosuchrun0"})
    assert (missing.status_code, missing.json()["code"]) == (404, "no_such_run")
