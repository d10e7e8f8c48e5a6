"""The interface of a language model, and when to retry."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Literal, Protocol

import msgspec

from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.requests import ToolCall, Usage

FailureCode = Literal[
    "auth",
    "quota",
    "rate_limit",
    "context_too_long",
    "refused",
    "overloaded",
    "network",
    "bad_request",
    "bad_reply",
    "off_script",
    "budget",
]

Role = Literal["plan", "code", "review", "summarise", "judge", "classify"]
"""The purpose of a call. The steps of the loop use `code`."""

INVALID_ARGUMENTS = "_invalid"
"""The only key of a call's arguments if the model did not send a JSON object; the value is the bounded text.

The loop answers such a call with an error observation, so that the model can correct itself.
"""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, object]
    """JSON schema of the arguments object."""


class Image(msgspec.Struct, frozen=True):
    """A picture for the model. A picture larger than `limits.IMAGE_BYTES` is replaced by a note."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]


Images = Annotated[tuple[Image, ...], msgspec.Meta(max_length=limits.IMAGES)]


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    text: str
    images: Images = ()


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    text: str
    calls: tuple[ToolCall, ...] = ()
    opaque: str | None = None
    """The provider's encoding of this reply, sent back unchanged."""


class ToolMessage(msgspec.Struct, frozen=True, tag="tool"):
    """The observation for one call."""

    call: str
    tool: str
    text: str
    images: Images = ()


Message = UserMessage | AssistantMessage | ToolMessage


class Request(msgspec.Struct, frozen=True):
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    max_tokens: int = 8_192
    temperature: float | None = None
    """None uses the provider's default."""
    schema: dict[str, object] | None = None
    """A JSON schema of an object. The text of the reply is then JSON that matches it, or the call fails."""


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The whole reply; nothing follows."""

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    stop: Literal["end", "tools", "length"] = "end"
    opaque: str | None = None
    cost: float | None = None
    """US dollars; None if the price is unknown."""


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The call failed; nothing follows. The message contains no secret."""

    code: FailureCode
    message: str
    retryable: bool = False
    retry_seconds: float | None = None
    """The wait that the provider requested."""
    usage: Usage | None = None
    """The usage of the failed call, if reported; None if the reply had not begun."""


_UNSEEN = "(Pictures are attached to this message, but you cannot see them. If they matter, ask for a description in words.)"


def blind(request: Request) -> Request:
    """The request for a model that takes no pictures: a sentence stands in their place."""
    messages = tuple(
        message
        if isinstance(message, AssistantMessage) or not message.images
        else msgspec.structs.replace(message, text=f"{message.text}\n\n{_UNSEEN}", images=())
        for message in request.messages
    )
    return msgspec.structs.replace(request, messages=messages)


class Model(Protocol):
    """One language model behind one name."""

    @property
    def name(self) -> str:
        """`provider:model`, as it appears in events."""
        ...

    def stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[TextDelta | Reply | Failure]]:
        """Make one call. Yields text as it arrives, then exactly one `Reply` or `Failure`.

        Provider errors are items of the stream, never exceptions. Leaving the block early cancels the call.
        """
        ...


async def single(failure: Failure) -> AsyncGenerator[TextDelta | Reply | Failure]:
    """The stream of a call that failed at once."""
    yield failure


class Models(Protocol):
    """The models of one run, by role. Each is opened on first use and closed with the run."""

    def role(self, role: Role) -> Model:
        """The first choice for a role."""
        ...

    def chain(self, role: Role) -> tuple[str, ...]:
        """All choices for a role, best first: names for `named`. Empty if the run calls no model."""
        ...

    def named(self, name: str) -> Model:
        """Any model by its name. Raises `UserError` if there is no such model."""
        ...

    def window(self, name: str) -> int | None:
        """The context window in tokens; None if unknown."""
        ...

    def cost(self, name: str, usage: Usage) -> float | None:
        """US dollars for `usage` of this model; None if its price is unknown."""
        ...

    def instead(self, name: str) -> "Models":
        """The same models with this one for `code`, for an attempt with its own model. Raises as `named`."""
        ...


class NoModels:
    """The `Models` of a run that calls none. Chains are empty, so that no role asks, and every call is refused."""

    name = ""

    def __init__(self, why: str) -> None:
        self._why = why

    def role(self, role: Role) -> Model:
        return self

    def chain(self, role: Role) -> tuple[str, ...]:
        return ()

    def named(self, name: str) -> Model:
        raise UserError("no_model", self._why)

    def window(self, name: str) -> int | None:
        return None

    def cost(self, name: str, usage: Usage) -> float | None:
        return None

    def instead(self, name: str) -> "Models":
        raise UserError("no_model", self._why)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        """Also the model of every role: programs in the sandbox may ask for one."""
        yield single(Failure("bad_request", self._why))


# Retries

MAX_TRIES = 5
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""Longest wait that we choose ourselves."""
PATIENCE_SECONDS = 300.0
"""Longest wait that a provider can request; beyond it we give up."""

RETRYABLE: frozenset[FailureCode] = frozenset({"rate_limit", "overloaded", "network", "bad_reply"})
"""Failures after which the same request may work."""


def next_wait(failure: Failure, tries: int) -> float | None:
    """Seconds to wait after `tries` failed tries; None means give up.

    Doubles from one second to a minute, unless the provider requested a wait.
    """
    if not failure.retryable or tries >= MAX_TRIES:
        return None
    if failure.retry_seconds is None:
        return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** max(0, tries - 1))
    if failure.retry_seconds > PATIENCE_SECONDS:
        return None
    return max(0.0, failure.retry_seconds)
