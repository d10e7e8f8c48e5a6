"""Programs that the door asks are gone when nobody waits for their answer any more."""

from functools import partial

import pytest
from tests.core.system.cancelled import left_behind

from cloister.egress._spawn import output

pytestmark = pytest.mark.anyio


async def test_a_program_that_begins_in_the_moment_of_a_cancellation_is_ended_and_waited_for() -> None:
    ask = partial(output, ["sh", "-c", "sleep 1000 & wait"], seconds=60, limit_bytes=10)
    assert await left_behind(ask) == {}
