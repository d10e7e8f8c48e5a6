"""The providers we know, as data: which model when none is named, where the key comes from, where it is served."""

import msgspec


class Provider(msgspec.Struct, frozen=True):
    """One provider of language models."""

    title: str
    """What people call it."""
    model: str
    """The model when only the provider is named."""
    key_variable: str
    """The environment variable that holds the key."""
    url: str | None
    """Where it is served; None when the caller says."""
    prices: str | None = None
    """What the table of prices calls it."""


CATALOG: dict[str, Provider] = {
    "anthropic": Provider(
        "Anthropic", "claude-sonnet-5-5", "ANTHROPIC_API_KEY", "https://api.anthropic.com", "anthropic"
    ),
    "openai": Provider("OpenAI", "gpt-6.1-sol", "OPENAI_API_KEY", "https://api.openai.com/v1", "openai"),
    "google": Provider(
        "Google", "gemini-3.8-flash", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com", "google"
    ),
}
"""In the order in which a key that is set makes a provider the default."""

COMPATIBLE = "compatible"
"""Any server that speaks OpenAI's chat completions, at a URL of the caller's."""

COMPATIBLE_MODEL = "default"
"""Stands for the first model such a server lists."""

COMPATIBLE_KEY_VARIABLE = "CLOISTER_MODEL_KEY"

SCRIPT = "script"

FREE = frozenset({SCRIPT})
"""Kinds of models that cost nothing to ask."""
