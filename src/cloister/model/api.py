"""What the loop asks of a language model. Providers implement `Model`; nothing else does."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Literal, Protocol

import msgspec

from cloister.core import limits
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
"""What a model is asked to be. The steps of the loop are `code`."""

INVALID_ARGUMENTS = "_invalid"
"""The only key of a call's arguments when the model did not send a JSON object: its value is what came, bounded.

Such a call is still a call: the loop answers it with an error observation, so that the model can correct itself.
"""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, object]
    """JSON schema of the arguments object."""


class Image(msgspec.Struct, frozen=True):
    """A picture for the model. One that is larger than `limits.IMAGE_BYTES` is replaced by words that say so."""

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
    """The provider's own encoding of this reply, given back unchanged."""


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
    """None leaves it to the provider."""
    schema: dict[str, object] | None = None
    """A JSON schema of an object: the text of the reply is then JSON that fits it, or the call has failed."""


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
    """US dollars; None when nobody knows the price."""


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The call failed; nothing follows. The message holds no secret."""

    code: FailureCode
    message: str
    retryable: bool = False
    retry_seconds: float | None = None
    """What the provider asked us to wait."""
    usage: Usage | None = None
    """What the call took although it failed, as far as the provider said; None when it had not begun to answer."""


class Model(Protocol):
    """One language model behind one name."""

    @property
    def name(self) -> str:
        """`provider:model`, as it appears in events."""
        ...

    def stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[TextDelta | Reply | Failure]]:
        """Ask once. Yields text as it arrives, then exactly one `Reply` or `Failure`.

        Provider errors are items of the stream, never exceptions. Leaving the block early cancels the call.
        """
        ...


class Models(Protocol):
    """The models of one run, by what they are for. Each is opened when it is first asked, and closed with the run."""

    def role(self, role: Role) -> Model:
        """The first choice for a role."""
        ...

    def chain(self, role: Role) -> tuple[str, ...]:
        """All choices for a role, best first: names for `named`."""
        ...

    def named(self, name: str) -> Model:
        """Any model by its name. Raises `UserError` when nothing here can be called that."""
        ...

    def window(self, name: str) -> int | None:
        """How many tokens a conversation with this model may have; None when nobody knows."""
        ...

    def cost(self, name: str, usage: Usage) -> float | None:
        """US dollars for `usage` of this model; None when nobody knows its price."""
        ...

    def instead(self, name: str) -> "Models":
        """The same models, with this one for `code`: for an attempt with a model of its own. Raises as `named`."""
        ...


# When to ask a model again after a failure, and how long to wait first. Pure.


MAX_TRIES = 5
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""Longest wait of our own choosing."""
PATIENCE_SECONDS = 300.0
"""Longest wait a provider may ask for; beyond it we give up."""

RETRYABLE: frozenset[FailureCode] = frozenset({"rate_limit", "overloaded", "network", "bad_reply"})
"""Failures after which the same request may work."""


def next_wait(failure: Failure, tries: int) -> float | None:
    """Seconds to wait before the next try, after `tries` tries have failed; None means give up.

    Doubles from one second to a minute, unless the provider said how long to wait.
    """
    if not failure.retryable or tries >= MAX_TRIES:
        return None
    if failure.retry_seconds is None:
        return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** max(0, tries - 1))
    if failure.retry_seconds > PATIENCE_SECONDS:
        return None
    return max(0.0, failure.retry_seconds)
