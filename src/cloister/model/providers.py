"""Real models behind the seam: Anthropic, OpenAI, Google, and any server that speaks OpenAI's chat completions.

Only pydantic-ai's model classes are used: one request in, one stream out. Retries, tools and the loop are ours.
This module is imported when a model is opened and not before, because it and the SDKs take seconds to load.
"""

import logging
import warnings
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx2
import msgspec
from anyio import to_thread
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model as WireModel
from pydantic_ai.models import StreamedResponse, create_async_httpx2_client
from pydantic_ai.settings import ModelSettings

from cloister.core.errors import OutsideError
from cloister.model.api import Failure, Model, Reply, Request, TextDelta
from cloister.model.catalog import CATALOG, COMPATIBLE, COMPATIBLE_KEY_VARIABLE, COMPATIBLE_MODEL
from cloister.model.failures import Origin, failure_from
from cloister.model.messages import calls_of, parameters, to_opaque, to_wire, usage_of

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 600.0
"""Longest wait for the next bytes of a reply; a local model may read a long prompt for minutes."""
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 5.0
LIST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """What is needed to talk to one model."""

    kind: str
    model: str
    url: str
    key: str | None
    key_variable: str


@asynccontextmanager
async def open_provider(kind: str, model: str, *, key: str, url: str | None = None) -> AsyncGenerator[Model]:
    """A model of a provider in the catalog; `url` replaces the address it is usually served at."""
    provider = CATALOG[kind]
    where = url or provider.url or ""
    async with _open(_Endpoint(kind, model, where, key, provider.key_variable)) as remote:
        yield remote


@asynccontextmanager
async def open_compatible(model: str, *, url: str, key: str | None = None) -> AsyncGenerator[Model]:
    """A model of the server at `url`; the model name `default` is the first that the server lists.

    Raises `OutsideError` (`model_unreachable`) when it must be asked for that and does not answer.
    """
    if model == COMPATIBLE_MODEL:
        model = await _first_listed(url, key)
    async with _open(_Endpoint(COMPATIBLE, model, url, key, COMPATIBLE_KEY_VARIABLE)) as remote:
        yield remote


@asynccontextmanager
async def _open(endpoint: _Endpoint) -> AsyncGenerator[Model]:
    # Importing an SDK takes a second or more; other runs must not stand still for it.
    async with create_async_httpx2_client(
        timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    ) as http:
        wire = await to_thread.run_sync(_BUILDERS[endpoint.kind], endpoint, http)
        yield RemoteModel(endpoint, wire, http)


class RemoteModel:
    """A `Model` served by somebody else."""

    def __init__(self, endpoint: _Endpoint, wire: WireModel, http: httpx2.AsyncClient) -> None:
        self._endpoint = endpoint
        self._wire = wire
        self._answered: dict[int, httpx2.Response] = {}
        """The HTTP response to the request that a task is making, by the task's id."""
        http.event_hooks["response"].append(self._note_response)
        self._origin = Origin(self.name, endpoint.key_variable, endpoint.key)

    @property
    def name(self) -> str:
        return f"{self._endpoint.kind}:{self._endpoint.model}"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        stack = AsyncExitStack()
        try:
            opened = await self._ask(stack, request)
            async with aclosing(self._items(opened)) as items:
                yield items
        finally:
            await self._close(stack)

    async def _ask(self, stack: AsyncExitStack, request: Request) -> StreamedResponse | Failure:
        # max_retries=0: the loop decides when to try again, and says so in the log.
        settings = ModelSettings(
            max_tokens=request.max_tokens, timeout=SILENCE_SECONDS, max_retries=0, cache=True
        )
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        try:
            return await stack.enter_async_context(
                self._wire.request_stream(
                    to_wire(request.messages, self._endpoint.kind), settings, parameters(request)
                )
            )
        except Exception as error:  # the seam's promise: a provider's error is an item of the stream
            return failure_from(error, self._origin)
        finally:
            # Google's SDK leaves its response to the garbage collector when it is not read to the end.
            if response := self._answered.pop(anyio.get_current_task().id, None):
                stack.push_async_callback(response.aclose)

    async def _note_response(self, response: httpx2.Response) -> None:
        self._answered[anyio.get_current_task().id] = response

    async def _items(self, opened: StreamedResponse | Failure) -> AsyncGenerator[TextDelta | Reply | Failure]:
        if isinstance(opened, Failure):
            yield opened
            return
        text = ""
        events = aiter(opened)
        while True:
            try:
                piece = _text_of(await anext(events))
            except StopAsyncIteration:
                break
            except Exception as error:  # as in `_ask`
                yield failure_from(error, self._origin)
                return
            if piece:
                text += piece
                yield TextDelta(piece)
        try:
            yield self._ended(opened.get(), text)
        except Exception as error:  # as in `_ask`
            yield failure_from(error, self._origin)

    def _ended(self, response: ModelResponse, text: str) -> Reply | Failure:
        calls = calls_of(response)
        match response.finish_reason:
            case "content_filter":
                return Failure("refused", f"{self.name} refused to answer.")
            case "error" | None:
                return Failure("bad_reply", f"{self.name} broke off its reply.", retryable=True)
            case "length":
                stop = "length"
            case "stop" | "tool_call":
                stop = "tools" if calls else "end"
        if not text and not calls and stop != "length":
            return Failure("bad_reply", f"{self.name} sent an empty reply.", retryable=True)
        return Reply(text, calls, usage_of(response), stop, to_opaque(response, self._endpoint.kind))

    async def _close(self, stack: AsyncExitStack) -> None:
        """Drop the connection, whatever state it is in; what it has to say no longer matters."""
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            try:
                await stack.aclose()
            except Exception as error:  # the items are out; closing must not replace the caller's own error
                logger.debug("%s: closing a reply failed: %s", self.name, type(error).__name__)


def _text_of(event: ModelResponseStreamEvent) -> str:
    match event:
        case (
            PartStartEvent(part=TextPart(content=text))
            | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
        ):
            return text
        case _:
            return ""


def _anthropic(endpoint: _Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(
        endpoint.model,
        provider=AnthropicProvider(api_key=endpoint.key or "", base_url=endpoint.url, http_client=http),
    )


def _openai(endpoint: _Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    if endpoint.kind == COMPATIBLE:
        provider = OpenAICompatibleProvider(
            COMPATIBLE, base_url=endpoint.url, api_key=endpoint.key, http_client=http
        )
    else:
        provider = OpenAIProvider(base_url=endpoint.url, api_key=endpoint.key, http_client=http)
    # A stream that ends without saying why was cut off; half a tool call must not look like a whole one.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(endpoint.model, provider=provider, profile=whole)


def _google(endpoint: _Endpoint, http: httpx2.AsyncClient) -> WireModel:
    with warnings.catch_warnings():
        # Compiling the SDK for the first time warns about an escape in one of its docstrings.
        warnings.filterwarnings("ignore", message="invalid escape sequence")
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(
        endpoint.model,
        provider=GoogleProvider(api_key=endpoint.key or "", base_url=endpoint.url, http_client=http),
    )


_BUILDERS = {"anthropic": _anthropic, "openai": _openai, "google": _google, COMPATIBLE: _openai}


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _Listing(msgspec.Struct, frozen=True):
    data: tuple[_Listed, ...] = ()


async def _first_listed(url: str, key: str | None) -> str:
    """What the server calls its first model; `default` when it keeps no list."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx2.AsyncClient(timeout=LIST_SECONDS) as client:
            answer = await client.get(url.rstrip("/") + "/models", headers=headers)
        listed = msgspec.json.decode(answer.content, type=_Listing).data if answer.is_success else ()
    except (httpx2.HTTPError, httpx2.InvalidURL):
        raise OutsideError(
            "model_unreachable",
            f"No model server answers at {url}: start it, or correct CLOISTER_MODEL_URL.",
            retryable=True,
        ) from None
    except msgspec.MsgspecError:
        listed = ()
    return listed[0].id if listed else COMPATIBLE_MODEL
