"""The known providers, as data: API, default model, key variable, URL."""

from typing import Literal

import msgspec

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


def _server(title: str, key_variable: str, url: str | None = None) -> Provider:
    """A server that the user runs, with OpenAI's chat completions."""
    return Provider(
        title=title, wire="chat", model=FIRST_LISTED, key_variable=key_variable, needs_key=False, url=url
    )


CATALOG: dict[str, Provider] = {
    "anthropic": Provider(
        title="Anthropic",
        wire="anthropic",
        model="claude-sonnet-5-5",
        key_variable="ANTHROPIC_API_KEY",
        url="https://api.anthropic.com",
        prices="anthropic",
    ),
    "openai": Provider(
        title="OpenAI",
        wire="chat",
        model="gpt-6.1-sol",
        key_variable="OPENAI_API_KEY",
        url="https://api.openai.com/v1",
        prices="openai",
    ),
    "openai-responses": Provider(
        title="OpenAI",
        wire="responses",
        model="gpt-6.1-sol",
        key_variable="OPENAI_API_KEY",
        url="https://api.openai.com/v1",
        prices="openai",
    ),
    "google": Provider(
        title="Google",
        wire="google",
        model="gemini-3.8-flash",
        key_variable="GEMINI_API_KEY",
        url="https://generativelanguage.googleapis.com",
        prices="google",
    ),
    "mistral": Provider(
        title="Mistral",
        wire="mistral",
        model="mistral-large-latest",
        key_variable="MISTRAL_API_KEY",
        url="https://api.mistral.ai",
        prices="mistral",
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
    "openrouter": Provider(
        title="OpenRouter",
        wire="chat",
        model="anthropic/claude-sonnet-5.5",
        key_variable="OPENROUTER_API_KEY",
        url="https://openrouter.ai/api/v1",
        prices="openrouter",
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
