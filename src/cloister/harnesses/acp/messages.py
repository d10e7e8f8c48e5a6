"""The messages of ACP, version 1, as far as Cloister reads and writes them.

They come from a program in the sandbox and are hostile: unknown fields are skipped, and free JSON stays undecoded until
`known` bounds it.
"""

from typing import Any, Literal, TypeVar, cast

import msgspec

from cloister.core.text import bounded, inert, whole

VERSION = 1
TEXT_CHARS = 100_000
"""What is kept of one message of the program."""
_FREE_BYTES = 65_536
"""Free JSON, such as the input of a tool, is only read up to this size."""

NULL = msgspec.Raw(b"null")

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]


class _Of(msgspec.Struct, frozen=True, rename="camel"):
    """A message or a part of one."""


class RpcError(_Of, frozen=True):
    code: int = 0
    message: str = ""
    data: msgspec.Raw = NULL


class Message(_Of, frozen=True):
    """One line: a request, a notification or a response."""

    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = NULL
    result: msgspec.Raw = NULL
    error: RpcError | None = None


class PromptAbilities(_Of, frozen=True):
    image: bool = False


class Abilities(_Of, frozen=True):
    load_session: bool = False
    prompt_capabilities: PromptAbilities = PromptAbilities()


class Initialized(_Of, frozen=True):
    protocol_version: int
    agent_capabilities: Abilities = Abilities()


class Opened(_Of, frozen=True):
    session_id: str


class Loaded(_Of, frozen=True):
    pass


class Ended(_Of, frozen=True):
    """The end of a turn."""

    stop_reason: str


class Location(_Of, frozen=True):
    path: str


class PlanEntry(_Of, frozen=True):
    content: str


class Block(_Of, frozen=True):
    """A part of a text; other kinds have no text."""

    text: str = ""


class Content(_Of, frozen=True):
    """What a tool call shows: text, or the difference of one file."""

    type: str = ""
    content: Block | None = None
    path: str = ""
    old_text: str | None = None
    new_text: str | None = None


class Update(_Of, frozen=True):
    """One `session/update`. Each kind uses some of the fields."""

    session_update: str
    content: msgspec.Raw = NULL
    entries: tuple[PlanEntry, ...] = ()
    tool_call_id: str = ""
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: msgspec.Raw = NULL
    raw_output: msgspec.Raw = NULL
    locations: tuple[Location, ...] | None = None


class ToolCallUpdate(Update, frozen=True):
    """The call that a permission is asked for."""

    session_update: str = "tool_call_update"


class Updated(_Of, frozen=True):
    session_id: str
    update: Update


class Option(_Of, frozen=True):
    option_id: str
    kind: str = ""


class PermissionAsked(_Of, frozen=True):
    session_id: str
    tool_call: ToolCallUpdate
    options: tuple[Option, ...] = ()


T = TypeVar("T")


def decoded(raw: msgspec.Raw, kind: type[T]) -> T | None:
    """The record; None if the program sent something else."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def known(raw: msgspec.Raw) -> dict[str, Any]:
    """Free JSON as an object; empty if it is none, or too large to be read."""
    if len(bytes(raw)) > _FREE_BYTES:
        return {}
    found = decoded(raw, object)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def chunk_text(update: Update) -> str:
    """The text of a message chunk."""
    block = decoded(update.content, Block)
    return whole(block.text) if block else ""


def contents(update: Update) -> tuple[Content, ...]:
    """What a tool call shows."""
    return decoded(update.content, tuple[Content, ...]) or ()


def shown(content: Content) -> str:
    """One part of what a tool call shows, as text."""
    if content.type == "diff":
        old = "".join(f"-{line}\n" for line in (content.old_text or "").splitlines())
        new = "".join(f"+{line}\n" for line in (content.new_text or "").splitlines())
        return f"{content.path}\n{old}{new}".rstrip("\n")
    return content.content.text if content.content else ""


def result_text(update: Update) -> str:
    """The result of a tool call as text."""
    parts = [text for one in contents(update) if (text := shown(one))]
    if not parts and bytes(update.raw_output) != b"null":
        output = known(update.raw_output).get("output")
        parts = [output if isinstance(output, str) else bytes(update.raw_output).decode(errors="replace")]
    return bounded(inert(whole("\n".join(parts))), TEXT_CHARS)
