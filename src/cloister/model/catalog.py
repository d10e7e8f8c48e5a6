"""The known providers, as data (API, default model, key variable, URL), and the prices and windows of models."""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import msgspec

from cloister.core.model_config import ModelEntry
from cloister.core.requests import Usage
from cloister.model.local.files import NO_SHELF, Shelf

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

Wire = Literal["anthropic", "chat", "responses", "google", "bedrock", "mistral"]
"""The API. `chat` is OpenAI's chat completions, which most servers support."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider of language models."""

    title: str
    """The name in messages."""
    wire: Wire
    model: str
    """The model if only the provider is named; `FIRST_LISTED` asks the server."""
    key_variable: str
    """The environment variable that holds the key."""
    needs_key: bool = True
    url: str | None = None
    """The base URL; None if the caller gives it or the SDK knows it."""
    prices: str | None = None
    """The name in the table of prices."""
    extra: str | None = None
    """The optional dependency that it needs."""


class Amazon(msgspec.Struct, frozen=True):
    """Credentials and region for Bedrock. Amazon's chain of files and roles supplies what is None."""

    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None


FIRST_LISTED = "default"
"""Means the first model that a server lists."""

NAME_CHARS = 300
"""Longest model name. Amazon's are the longest."""


def _hosted(title: str, wire: Wire, model: str, key_variable: str, url: str, prices: str) -> Provider:
    """A provider on the internet, which needs a key."""
    return Provider(title=title, wire=wire, model=model, key_variable=key_variable, url=url, prices=prices)


def _server(title: str, key_variable: str, url: str | None = None) -> Provider:
    """A server that the user runs, with OpenAI's chat completions."""
    return Provider(
        title=title, wire="chat", model=FIRST_LISTED, key_variable=key_variable, needs_key=False, url=url
    )


_OPENAI, _OPENAI_KEY = "https://api.openai.com/v1", "OPENAI_API_KEY"
_ANTHROPIC, _OPENROUTER_KEY = "https://api.anthropic.com", "OPENROUTER_API_KEY"
_GOOGLE, _OPENROUTER = "https://generativelanguage.googleapis.com", "https://openrouter.ai/api/v1"

CATALOG: dict[str, Provider] = {
    "anthropic": _hosted(
        "Anthropic", "anthropic", "claude-sonnet-5-5", "ANTHROPIC_API_KEY", _ANTHROPIC, "anthropic"
    ),
    "openai": _hosted("OpenAI", "chat", "gpt-6.1-sol", _OPENAI_KEY, _OPENAI, "openai"),
    "openai-responses": _hosted("OpenAI", "responses", "gpt-6.1-sol", _OPENAI_KEY, _OPENAI, "openai"),
    "google": _hosted("Google", "google", "gemini-3.8-flash", "GEMINI_API_KEY", _GOOGLE, "google"),
    "mistral": _hosted(
        "Mistral", "mistral", "mistral-large-latest", "MISTRAL_API_KEY", "https://api.mistral.ai", "mistral"
    ),
    # Without a key, Amazon's chain finds credentials.
    "bedrock": Provider(
        title="Amazon Bedrock",
        wire="bedrock",
        model="global.anthropic.claude-sonnet-5",
        key_variable="AWS_BEARER_TOKEN_BEDROCK",
        needs_key=False,
        prices="aws",
        extra="bedrock",
    ),
    "openrouter": _hosted(
        "OpenRouter", "chat", "anthropic/claude-sonnet-5.5", _OPENROUTER_KEY, _OPENROUTER, "openrouter"
    ),
    "ollama": _server("Ollama", "OLLAMA_API_KEY", "http://127.0.0.1:11434/v1"),
    "vllm": _server("vLLM", "VLLM_API_KEY", "http://127.0.0.1:8000/v1"),
    "llamacpp": _server("llama.cpp", "LLAMA_API_KEY", "http://127.0.0.1:8080/v1"),
    "lmstudio": _server("LM Studio", "LM_API_TOKEN", "http://127.0.0.1:1234/v1"),
    "compatible": _server("An OpenAI-compatible server", "CLOISTER_MODEL_KEY"),
}
"""In order of preference: the first provider with a key is the default."""

COMPATIBLE = "compatible"
"""Any server with OpenAI's chat completions, at a URL that the caller gives."""

SCRIPT = "script"

LOCAL = "local"
"""Models that run on this machine."""

FREE = frozenset({SCRIPT, LOCAL})
"""Kinds of models that cost nothing."""


_SEEING = frozenset({"anthropic", "openai", "openai-responses", "google", "bedrock", "openrouter", SCRIPT})
"""Kinds whose models take pictures, unless the settings say otherwise."""

MILLION = 1_000_000


def cost(name: str, usage: Usage, entries: Mapping[str, ModelEntry]) -> float | None:
    """US dollars for `usage` of the model with this full name; None if its price is unknown."""
    entry = entries.get(name)
    if entry is not None and entry.input_price is not None and entry.output_price is not None:
        return _own_price(usage, entry.input_price, entry.output_price, entry.cached_price)
    if name.partition(":")[0] in FREE:
        return 0.0
    return _table_price(name, usage)


def sees(name: str, entries: Mapping[str, ModelEntry]) -> bool:
    """Whether the model with this full name takes pictures."""
    entry = entries.get(name)
    if entry is not None and entry.sees is not None:
        return entry.sees
    return name.partition(":")[0] in _SEEING and (entry is None or entry.mode == "tools")


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


def load_prices(name: str) -> None:
    """Load the table now if it may have the model; it takes part of a second, once."""
    provider = CATALOG.get(name.partition(":")[0])
    if provider is None or provider.prices is None:
        return
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
