"""From a provider of the catalog to pydantic-ai's class that speaks its API. Each SDK is imported when it is needed."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import httpx2
from pydantic_ai.models import Model as WireModel

from cloister.core.errors import UserError
from cloister.model.catalog import CATALOG, Amazon, Wire


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is needed to talk to one model."""

    kind: str
    """The provider's name in the catalog."""
    model: str
    url: str | None
    key: str | None
    amazon: Amazon | None = None
    silence_seconds: float = 600.0
    """Longest wait for the next bytes of a reply, where the SDK has a client of its own."""

    @property
    def secrets(self) -> tuple[str, ...]:
        amazon = self.amazon or Amazon()
        return tuple(filter(None, (self.key, amazon.secret_key, amazon.session_token)))


def build(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    """The model's class, ready to be asked. Slow the first time. Raises `UserError` (`no_extra`)."""
    provider = CATALOG[endpoint.kind]
    try:
        return _BUILDERS[provider.wire](endpoint, http)
    except ImportError:
        extra = provider.extra or endpoint.kind
        raise UserError(
            "no_extra",
            f"{provider.title} needs a library that is not installed: pip install 'cloister[{extra}]'.",
        ) from None


def _anthropic(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(
        endpoint.model,
        provider=AnthropicProvider(api_key=endpoint.key or "", base_url=endpoint.url, http_client=http),
    )


def _chat(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    # A stream that ends without saying why was cut off; half a tool call must not look like a whole one.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    if endpoint.kind == "openai":
        provider = OpenAIProvider(base_url=endpoint.url, api_key=endpoint.key, http_client=http)
        return OpenAIChatModel(endpoint.model, provider=provider, profile=whole)
    served = OpenAICompatibleProvider(
        endpoint.kind, base_url=endpoint.url or "", api_key=endpoint.key, http_client=http
    )
    # Ollama, vLLM, llama.cpp, LM Studio and OpenRouter all take a schema.
    whole["supports_json_schema_output"] = True
    return OpenAIChatModel(endpoint.model, provider=served, profile=whole)


def _responses(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel(
        endpoint.model,
        provider=OpenAIProvider(base_url=endpoint.url, api_key=endpoint.key, http_client=http),
    )


def _google(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    with warnings.catch_warnings():
        # Compiling the SDK for the first time warns about an escape in one of its docstrings.
        warnings.filterwarnings("ignore", message="invalid escape sequence")
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(
        endpoint.model,
        provider=GoogleProvider(api_key=endpoint.key or "", base_url=endpoint.url, http_client=http),
    )


def _mistral(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    return MistralModel(
        endpoint.model,
        provider=MistralProvider(api_key=endpoint.key or "", base_url=endpoint.url, http_client=http),
    )


def _bedrock(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    from cloister.model.wire_bedrock import client

    amazon = client(endpoint.key, endpoint.amazon or Amazon(), endpoint.url, endpoint.silence_seconds)
    return BedrockConverseModel(endpoint.model, provider=BedrockProvider(bedrock_client=amazon))


_BUILDERS: dict[Wire, Callable[[Endpoint, httpx2.AsyncClient], WireModel]] = {
    "anthropic": _anthropic,
    "chat": _chat,
    "responses": _responses,
    "google": _google,
    "mistral": _mistral,
    "bedrock": _bedrock,
}
