"""What a reply cost, and how long a conversation may be."""

from pathlib import Path

import pytest
from tests.whole.conformance.suites.model import check_reply

from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.core.requests import Usage
from cloister.model.catalog import CATALOG, cost, window
from cloister.model.names import Access
from cloister.model.roles import Job, open_models

USAGE = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=500_000)


@pytest.mark.parametrize("kind", [kind for kind, provider in CATALOG.items() if provider.prices])
def test_the_usual_model_of_each_provider_has_a_price_and_a_cheaper_cache(kind: str) -> None:
    name = f"{kind}:{CATALOG[kind].model}"
    read = cost(name, USAGE, {})
    fresh = cost(name, Usage(1_000_000, 100_000), {})
    assert read is not None and fresh is not None
    assert 0 < read <= fresh


def test_an_unknown_model_has_no_price_rather_than_a_wrong_one() -> None:
    assert cost("anthropic:no-such-model", USAGE, {}) is None
    assert cost("compatible:claude-sonnet-5-5", USAGE, {}) is None, "who serves it decides what it costs"
    assert window("compatible:whatever", {}) is None


def test_settings_count_before_the_table() -> None:
    entries = {
        "compatible:q": ModelEntry(input_price=2.0, output_price=10.0, cached_price=1.0, window=32_768)
    }
    assert cost("compatible:q", USAGE, entries) == pytest.approx(0.5 * 2.0 + 0.5 * 1.0 + 0.1 * 10.0)
    assert window("compatible:q", entries) == 32_768
    assert window("anthropic:claude-sonnet-5-5", {}) == 1_000_000


@pytest.mark.anyio
async def test_every_reply_has_its_cost(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[[reply]]\nsay = "Hi."\n', encoding="utf-8")
    async with open_models(Access(f"script:{path}"), Job("r")) as models:
        assert (await check_reply(models.role("code"))).cost == 0.0
    entry = {f"script:{path}": ModelEntry(input_price=1_000_000.0, output_price=1_000_000.0)}
    async with open_models(Access(f"script:{path}", routes=ModelRoutes(entry=entry)), Job("r")) as models:
        reply = await check_reply(models.role("code"))
        assert reply.cost == float(reply.usage.total)
