"""Builds the pydantic-ai model for a provider of the catalog. Each SDK is imported on first use."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx2
from pydantic_ai.models import Model as WireModel

from cloister.core.errors import UserError
from cloister.model.catalog import CATALOG, Amazon, Wire


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one model and the credentials for it."""

    kind: str
    """The name of the provider in the catalog."""
    model: str
    url: str | None
    key: str | None
    amazon: Amazon | None = None
    silence_seconds: float = 600.0
    """Longest wait for the next bytes of a reply, if the SDK has its own HTTP client."""

    @property
    def secrets(self) -> tuple[str, ...]:
        amazon = self.amazon or Amazon()
        return tuple(filter(None, (self.key, amazon.secret_key, amazon.session_token)))


def build(endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    """Build the model. Slow the first time. Raises `UserError` (`no_extra`)."""
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

    # A stream without a finish reason was cut off; half a tool call must not look complete.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    if endpoint.kind == "openai":
        provider = OpenAIProvider(base_url=endpoint.url, api_key=endpoint.key, http_client=http)
        return OpenAIChatModel(endpoint.model, provider=provider, profile=whole)
    served = OpenAICompatibleProvider(
        endpoint.kind, base_url=endpoint.url or "", api_key=endpoint.key, http_client=http
    )
    # Ollama, vLLM, llama.cpp, LM Studio and OpenRouter all accept a schema.
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
        # The SDK has an invalid escape in a docstring, which warns when Python compiles it.
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

    return BedrockConverseModel(
        endpoint.model, provider=BedrockProvider(bedrock_client=_bedrock_client(endpoint))
    )


# boto3 has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false


def _bedrock_client(endpoint: Endpoint) -> Any:
    """A client that never retries. Without a key, Amazon's chain finds credentials. Raises `UserError` (`no_region`)."""
    # boto3 is an optional dependency and takes most of a second to import.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import NoRegionError
    from botocore.session import Session
    from botocore.tokens import FrozenAuthToken

    class KeySession(Session):
        """Signs with an API key of Bedrock instead of account credentials."""

        def get_auth_token(self, **_: Any) -> FrozenAuthToken:
            return FrozenAuthToken(endpoint.key or "")

        def get_credentials(self) -> None:
            return None

    who = endpoint.amazon or Amazon()
    common: dict[str, Any] = {
        "read_timeout": endpoint.silence_seconds,
        "connect_timeout": 10,
        "retries": {"total_max_attempts": 1},
    }
    if endpoint.key:
        session = boto3.Session(botocore_session=KeySession(), region_name=who.region)
        common["signature_version"] = "bearer"
    else:
        session = boto3.Session(
            aws_access_key_id=who.access_key,
            aws_secret_access_key=who.secret_key,
            aws_session_token=who.session_token,
            region_name=who.region,
        )
    try:
        return session.client("bedrock-runtime", config=Config(**common), endpoint_url=endpoint.url)
    except NoRegionError:
        raise UserError(
            "no_region", "Amazon Bedrock needs a region: set AWS_REGION, e.g. to us-east-1."
        ) from None


_BUILDERS: dict[Wire, Callable[[Endpoint, httpx2.AsyncClient], WireModel]] = {
    "anthropic": _anthropic,
    "chat": _chat,
    "responses": _responses,
    "google": _google,
    "mistral": _mistral,
    "bedrock": _bedrock,
}


# Validation by JSON schema: the part of the standard that our own schemas use

Schema = Mapping[str, object]

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def problem(value: object, schema: Schema, where: str = "$") -> str | None:
    """Say what is wrong with `value`, and where; None if it is valid."""
    for key in ("anyOf", "oneOf"):
        if choices := cast("Sequence[Schema] | None", schema.get(key)):
            found = [problem(value, choice, where) for choice in choices]
            return None if None in found else f"{where} matches none of {len(choices)} forms"
    if "const" in schema and value != schema["const"]:
        return f"{where} is not {schema['const']!r}"
    if "enum" in schema and value not in cast("Sequence[object]", schema["enum"]):
        return f"{where} is not one of the allowed values"
    return _of_kind(value, schema, where)


def _of_kind(value: object, schema: Schema, where: str) -> str | None:
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else cast("list[str]", wanted or [])
    if names and not any(_is(value, name) for name in names):
        return f"{where} is not of type {' or '.join(names)}"
    if isinstance(value, dict):
        return _object(cast("dict[str, object]", value), schema, where)
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        inner = cast(Schema, items)
        parts = (
            problem(item, inner, f"{where}[{at}]") for at, item in enumerate(cast("list[object]", value))
        )
        return next((found for found in parts if found), None)
    return None


def _is(value: object, name: str) -> bool:
    # In Python a bool is an int, in JSON it is not.
    return isinstance(value, _KINDS.get(name, ())) and (name == "boolean" or not isinstance(value, bool))


def _object(value: dict[str, object], schema: Schema, where: str) -> str | None:
    for name in cast("Sequence[str]", schema.get("required", ())):
        if name not in value:
            return f"{where}.{name} is missing"
    known = cast("Mapping[str, Schema]", schema.get("properties", {}))
    for name, item in value.items():
        if name in known:
            if found := problem(item, known[name], f"{where}.{name}"):
                return found
        elif schema.get("additionalProperties") is False:
            return f"{where} has the unknown field {name[:40]!r}"
    return None
