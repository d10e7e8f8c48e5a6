"""The process of a local model is gone when nobody wants it any more."""

import importlib.util
from pathlib import Path

import pytest
from tests.core.system.cancelled import left_behind

from cloister.model.local._spawn import Order, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the extra `local`"),
]


async def test_a_model_that_begins_in_the_moment_of_a_cancellation_is_ended_and_waited_for(
    tmp_path: Path,
) -> None:
    never_ready = tmp_path / "never.py"
    never_ready.write_text("import time\ntime.sleep(1000)\n")

    async def serve() -> None:
        async with serving(Order("none.gguf", "none", 100), tmp_path / "log", never_ready):
            raise AssertionError("it never says that it is ready")

    assert await left_behind(serve) == {}
