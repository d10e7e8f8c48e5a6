"""Attempts in a request: the table that typed and written attempts have, too."""

import msgspec
import pytest
from tests.core.attempts_table import BAD, GOOD
from tests.server.conftest import Served

from cloister.core.requests import Budget, NewRun

pytestmark = pytest.mark.anyio

ASKED = {"prompt": "fix it", "repo": "https://host.example/a.git"}


async def test_attempts_in_a_request_mean_the_same_as_typed_ones(served: Served) -> None:
    for row, wishes in GOOD:
        known = tuple(msgspec.structs.replace(wish, model=None) for wish in wishes)
        attempts = [{**one, "model": None} for one in row.attempts]
        reply = await served.client.post("/v1/runs", json={**ASKED, "attempts": attempts, **row.more})
        assert reply.status_code == 201, reply.text
        event = (await served.client.get(f"/v1/runs/{reply.json()['id']}/events?limit=1")).json()[0]
        new = msgspec.convert(event["body"]["request"], NewRun)
        assert new.attempts == known
        assert new.budget.steps == Budget().steps * max(1, len(wishes), new.n)


async def test_bad_attempts_in_a_request_have_the_same_errors_as_typed_ones(
    served: Served,
) -> None:
    for row, sentence in BAD:
        reply = await served.client.post("/v1/runs", json={**ASKED, "attempts": row.attempts, **row.more})
        assert (reply.status_code, reply.json()["message"]) == (400, sentence)
    assert (await served.client.get("/v1/runs")).json() == []
