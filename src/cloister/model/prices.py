"""Prices and context windows of models: from the settings, else from the table of genai-prices."""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from cloister.core.model_config import ModelEntry
from cloister.core.requests import Usage
from cloister.model.catalog import CATALOG, FREE, LOCAL
from cloister.model.local.files import NO_SHELF, Shelf

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

MILLION = 1_000_000


def cost(name: str, usage: Usage, entries: Mapping[str, ModelEntry]) -> float | None:
    """US dollars for `usage` of the model with this full name; None if its price is unknown."""
    entry = entries.get(name)
    if entry is not None and entry.input_price is not None and entry.output_price is not None:
        return _own_price(usage, entry.input_price, entry.output_price, entry.cached_price)
    if name.partition(":")[0] in FREE:
        return 0.0
    return _table_price(name, usage)


def window(name: str, entries: Mapping[str, ModelEntry], files: Shelf = NO_SHELF) -> int | None:
    """The context window in tokens; None if unknown."""
    entry = entries.get(name)
    if entry is not None and entry.window is not None:
        return entry.window
    kind, _, model = name.partition(":")
    if kind == LOCAL:
        return files.window(model)
    known = _known(name)
    return None if known is None else known.context_window


def load_prices() -> None:
    """Load the table now; it takes part of a second, once."""
    import genai_prices  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _own_price(usage: Usage, into: float, out: float, cached: float | None) -> float:
    fresh = usage.input_tokens - usage.cached_tokens
    read = into if cached is None else cached
    return (fresh * into + usage.cached_tokens * read + usage.output_tokens * out) / MILLION


def _table_price(name: str, usage: Usage) -> float | None:
    kind, _, model = name.partition(":")
    provider = CATALOG.get(kind)
    if provider is None or provider.prices is None or _known(name) is None:
        return None
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    counted = Counted(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.written_tokens,
    )
    try:
        total: Decimal = calc_price(counted, model, provider_id=provider.prices).total_price
    except (LookupError, ValueError):  # a model without a price, or inconsistent counts
        return None
    return float(total)


def _known(name: str) -> "ModelInfo | None":
    kind, _, model = name.partition(":")
    provider = CATALOG.get(kind)
    if provider is None or provider.prices is None:
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, provider.prices, None)
    except LookupError:
        return None
    return found
