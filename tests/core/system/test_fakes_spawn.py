"""Commands of a local computer are gone when nobody waits for them any more."""

from functools import partial
from pathlib import Path

import pytest
from tests.core.system.cancelled import left_behind

from cloister.core.computer import Command
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio


async def test_a_command_that_begins_in_the_moment_of_a_cancellation_is_ended_and_waited_for(
    tmp_path: Path,
) -> None:
    computer = LocalComputer(tmp_path)
    assert await left_behind(partial(computer.run, Command(("sh", "-c", "sleep 1000 & wait")))) == {}
