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
    "ollama": Provider(
        title="Ollama",
        wire="chat",
        model=FIRST_LISTED,
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
        url="http://127.0.0.1:11434/v1",
    ),
    "vllm": Provider(
        title="vLLM",
        wire="chat",
        model=FIRST_LISTED,
        key_variable="VLLM_API_KEY",
        needs_key=False,
        url="http://127.0.0.1:8000/v1",
    ),
    "llamacpp": Provider(
        title="llama.cpp",
        wire="chat",
        model=FIRST_LISTED,
        key_variable="LLAMA_API_KEY",
        needs_key=False,
        url="http://127.0.0.1:8080/v1",
    ),
    "lmstudio": Provider(
        title="LM Studio",
        wire="chat",
        model=FIRST_LISTED,
        key_variable="LM_API_TOKEN",
        needs_key=False,
        url="http://127.0.0.1:1234/v1",
    ),
    "compatible": Provider(
        title="An OpenAI-compatible server",
        wire="chat",
        model=FIRST_LISTED,
        key_variable="CLOISTER_MODEL_KEY",
        needs_key=False,
    ),
}
"""In order of preference: the first provider with a key is the default."""

COMPATIBLE = "compatible"
"""Any server with OpenAI's chat completions, at a URL that the caller gives."""

SCRIPT = "script"

LOCAL = "local"
"""Models that run on this machine."""

FREE = frozenset({SCRIPT, LOCAL})
"""Kinds of models that cost nothing."""
