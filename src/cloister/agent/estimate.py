"""How many tokens a text or a request is, roughly and cheaply. Pure.

No tokeniser: each provider has its own. What a call really took comes with its reply and replaces the estimate.
"""

from collections.abc import Sequence

import msgspec

from cloister.model.api import AssistantMessage, Message, Request, ToolSpec

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 6
"""What a provider adds around each message."""


def text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", errors="replace"))
    return size // BYTES_PER_TOKEN + 1


def message_tokens(message: Message) -> int:
    """One message; a reply counts as what goes back, the provider's own encoding where there is one."""
    if not isinstance(message, AssistantMessage):
        return text_tokens(message.text) + MESSAGE_TOKENS
    said = text_tokens(message.text)
    if message.calls:
        said += len(msgspec.json.encode(message.calls)) // BYTES_PER_TOKEN
    kept = 0 if message.opaque is None else text_tokens(message.opaque)
    return max(said, kept) + MESSAGE_TOKENS


def fixed_tokens(system: str, tools: Sequence[ToolSpec]) -> int:
    """What every request of a run starts with."""
    return text_tokens(system) + len(msgspec.json.encode(tools)) // BYTES_PER_TOKEN


def request_tokens(request: Request) -> int:
    """What goes in."""
    return fixed_tokens(request.system, request.tools) + sum(map(message_tokens, request.messages))
