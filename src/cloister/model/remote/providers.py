"""`Model` for every remote provider of the catalog.

Uses only the model classes of pydantic-ai: one request in, one stream out. Retries, tools and the loop are ours.
Import this module only when a model is opened: it and the SDKs take seconds to load.
"""

import logging
import warnings
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

import anyio
import httpx2
import msgspec
from anyio import to_thread
from pydantic_ai.exceptions import UsageExtractionFailedWarning
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model as WireModel
from pydantic_ai.models import StreamedResponse, create_async_httpx2_client
from pydantic_ai.settings import ModelSettings

from cloister.core import limits
from cloister.core.errors import OutsideError
from cloister.core.text import whole
from cloister.model.api import Failure, FailureCode, Model, Reply, Request, TextDelta
from cloister.model.catalog import CATALOG, FIRST_LISTED, NAME_CHARS
from cloister.model.remote.failures import BODY_BYTES, EndlessBody, Origin, bound, failure_from
from cloister.model.remote.messages import calls_of, counted, parameters, tidy, to_opaque, to_wire, unfenced
from cloister.model.remote.wire_formats import Endpoint, build, problem

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 600.0
"""Longest wait for the next bytes of a reply. A local model may process a long prompt for minutes."""
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 5.0
ENDLESS_CHARS = 8 * limits.REPLY_BYTES
"""The longest reply, including thoughts and arguments."""
LIST_SECONDS = 10.0
LIST_BYTES = 4_194_304
_MADE: frozenset[FailureCode] = frozenset({"refused", "network", "bad_reply"})
"""Failures in the middle of a reply for which the provider may still charge."""


@asynccontextmanager
async def open_remote(endpoint: Endpoint, most_bytes: int = BODY_BYTES) -> AsyncGenerator[Model]:
    """Open a model on a server. The name `FIRST_LISTED` means the first model that the server lists.

    Reads at most `most_bytes` of one answer, unless the SDK has its own HTTP client.

    Raises `OutsideError` (`model_unreachable`) if the server must list its models and does not answer, and
    `UserError` (`no_extra`, `no_region`).
    """
    if endpoint.model == FIRST_LISTED:
        listed = await _first_listed(endpoint.url or "", endpoint.key)
        endpoint = replace(endpoint, model=listed)
    async with create_async_httpx2_client(
        timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    ) as http:
        # Importing an SDK takes a second or more and must not block other runs.
        wire = await to_thread.run_sync(build, endpoint, http)
        http.headers["accept-encoding"] = "identity"
        yield RemoteModel(endpoint, wire, http, most_bytes)


class RemoteModel:
    """A `Model` on a server."""

    def __init__(
        self, endpoint: Endpoint, wire: WireModel, http: httpx2.AsyncClient, most_bytes: int
    ) -> None:
        self._endpoint = endpoint
        self._wire = wire
        self._most_bytes = most_bytes
        self._answered: dict[int, httpx2.Response] = {}
        """The current HTTP response of each task, by task id."""
        http.event_hooks["response"].append(self._note_response)
        self._origin = Origin(self.name, CATALOG[endpoint.kind].key_variable, endpoint.secrets)

    @property
    def name(self) -> str:
        return f"{self._endpoint.kind}:{self._endpoint.model}"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        stack = AsyncExitStack()
        try:
            opened = await self._ask(stack, request)
            async with aclosing(self._items(opened, request.schema)) as items:
                yield items
        finally:
            await self._close(stack)

    async def _ask(self, stack: AsyncExitStack, request: Request) -> StreamedResponse | Failure:
        # Usage that a provider reports wrongly is estimated; do not warn about it on the terminal.
        warnings.simplefilter("ignore", UsageExtractionFailedWarning)
        settings = ModelSettings(max_tokens=request.max_tokens, cache=True)
        if CATALOG[self._endpoint.kind].wire != "bedrock":  # its client is configured in `wires`
            # max_retries=0: the loop decides about retries and logs them.
            settings.update(timeout=SILENCE_SECONDS, max_retries=0)
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        try:
            return await stack.enter_async_context(
                self._wire.request_stream(
                    to_wire(request.messages, self._endpoint.kind, self._endpoint.model),
                    settings,
                    parameters(request, native=self._wire.profile.get("supports_json_schema_output", False)),
                )
            )
        except Exception as error:  # contract of `Model`: a provider's error is an item of the stream
            return failure_from(error, self._origin)
        finally:
            # Google's SDK does not close a response that is not read to the end.
            if response := self._answered.pop(anyio.get_current_task().id, None):
                stack.push_async_callback(response.aclose)

    async def _note_response(self, response: httpx2.Response) -> None:
        self._answered[anyio.get_current_task().id] = response
        bound(response, self._most_bytes)

    async def _items(
        self, opened: StreamedResponse | Failure, schema: dict[str, object] | None
    ) -> AsyncGenerator[TextDelta | Reply | Failure]:
        if isinstance(opened, Failure):
            yield opened
            return
        text, size, half = "", 0, ""
        events = aiter(opened)
        while True:
            try:
                event = await anext(events)
            except StopAsyncIteration:
                break
            except Exception as error:  # as in `_ask`
                yield _begun(failure_from(error, self._origin), opened, text)
                return
            size += _size_of(event)
            if size > ENDLESS_CHARS:
                endless = f"{self.name} did not stop: its reply has more than {ENDLESS_CHARS:,} characters."
                yield _begun(Failure("bad_reply", endless), opened, text)
                return
            # Servers that count UTF-16 units, as JavaScript does, may split a character.
            piece, half = _without_half(half + _text_of(event))
            if piece:
                text += piece
                yield TextDelta(piece)
        try:
            ended = self._ended(tidy(opened.get()), text + whole(half))
            if schema is not None and isinstance(ended, Reply):
                ended = self._as_asked(ended, schema)
        except Exception as error:  # as in `_ask`
            ended = failure_from(error, self._origin)
        yield _begun(ended, opened, text) if isinstance(ended, Failure) else ended

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
        opaque = to_opaque(response, self._endpoint.kind, self._endpoint.model)
        return Reply(text, calls, counted(response.usage), stop, opaque)

    def _as_asked(self, reply: Reply, schema: dict[str, object]) -> Reply | Failure:
        """Return the reply if its text is JSON that matches the schema."""
        try:
            wrong = problem(msgspec.json.decode(unfenced(reply.text)), schema)
        except (msgspec.MsgspecError, RecursionError):
            wrong = "it is not JSON"
        if wrong is None:
            return msgspec.structs.replace(reply, text=unfenced(reply.text))
        return Failure(
            "bad_reply", f"{self.name} did not reply in the requested form: {wrong}.", retryable=True
        )

    async def _close(self, stack: AsyncExitStack) -> None:
        """Drop the connection in any state and ignore its errors."""
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            try:
                await stack.aclose()
            except Exception as error:  # the items are out; closing must not replace the caller's own error
                logger.debug("%s: closing a reply failed: %s", self.name, type(error).__name__)


def _begun(failure: Failure, opened: StreamedResponse, text: str) -> Failure:
    """Add the usage to the failure of a reply that had begun: the provider charges for it."""
    usage = counted(opened.usage)
    if usage.total or text or failure.code in _MADE:
        return msgspec.structs.replace(failure, usage=usage)
    return failure


def _text_of(event: ModelResponseStreamEvent) -> str:
    match event:
        case (
            PartStartEvent(part=TextPart(content=text))
            | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
        ):
            return text
        case _:
            return ""


def _without_half(text: str) -> tuple[str, str]:
    """Split off the first half of a surrogate pair at the end."""
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    return whole(text.removesuffix(half) if half else text), half


def _size_of(event: ModelResponseStreamEvent) -> int:
    """The number of characters that an event adds to the reply."""
    match event:
        case PartStartEvent(part=TextPart(content=str(more)) | ThinkingPart(content=str(more))):
            return len(more)
        case PartStartEvent(part=ToolCallPart(args=str(more))):
            return len(more)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=str(more))):
            return len(more)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(more))):
            return len(more)
        case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=str(more))):
            return len(more)
        case _:
            return 0


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _Listing(msgspec.Struct, frozen=True):
    data: tuple[_Listed, ...] = ()


async def _first_listed(url: str, key: str | None) -> str:
    """The first model that the server lists; `default` if it has no list."""
    headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with anyio.fail_after(LIST_SECONDS):
            async with (
                httpx2.AsyncClient(timeout=LIST_SECONDS) as client,
                client.stream("GET", url.rstrip("/") + "/models", headers=headers) as answer,
            ):
                bound(answer, LIST_BYTES)
                body = await answer.aread()
        listed = msgspec.json.decode(body, type=_Listing).data if answer.is_success else ()
    except (httpx2.HTTPError, httpx2.InvalidURL, EndlessBody, TimeoutError):
        raise OutsideError(
            "model_unreachable",
            f"No model server answers at {url}: start it, or correct its URL in the settings.",
            retryable=True,
        ) from None
    except msgspec.MsgspecError:
        listed = ()
    first = listed[0].id if listed else FIRST_LISTED
    return first if first.isprintable() and 0 < len(first) <= NAME_CHARS else FIRST_LISTED
