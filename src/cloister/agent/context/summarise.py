"""Shorten a conversation that fills the window: replace old turns by a summary, or by the facts of the log alone."""

from collections.abc import Sequence

from cloister.agent.context.messages import BYTES_PER_TOKEN, KEPT_TURNS, NOTES_CHARS, Context, Window
from cloister.agent.context.prompts import SUMMARISE
from cloister.agent.roles import Adviser, Heard, consult
from cloister.core.computer import Command, Computer
from cloister.core.errors import UserError
from cloister.core.events import ContextSummarised
from cloister.core.text import bounded, decode, harmless
from cloister.model.api import AssistantMessage, Message, Request, UserMessage

SUMMARY_TOKENS = 1_024
SUMMARY_SECONDS = 120.0
APART_TURNS = 6
"""Turns between two summaries by a model. Turns that must go sooner go without one."""
SHRINKS_TO = 0.7
"""A summary that leaves a larger share of the conversation is dropped."""
_FILES = 200


def boundary(context: Context, window: Window) -> int | None:
    """The event up to which turns can go so that the rest fits; None if no turn can go. Pure."""
    turns = context.turns
    if len(turns) < 2:
        return None
    for kept in (KEPT_TURNS, 2):
        if len(turns) > kept and context.tokens_after(turns[-1 - kept], "") <= window.elide_at:
            return turns[-1 - kept]
    return turns[-2]


async def condense(
    context: Context, window: Window, adviser: Adviser, computer: Computer, base: str
) -> ContextSummarised | None:
    """The event that makes the conversation fit again; None if no turn can go."""
    up_to = boundary(context, window)
    if up_to is None:
        return None
    before = context.tokens
    text = ""
    if context.turns_since_summary >= APART_TURNS or not context.summarised_up_to:
        text = await _summary(context.messages(), window, adviser)
    if text and context.tokens_after(up_to, text) > before * SHRINKS_TO:
        text = ""
    return ContextSummarised(
        adviser.attempt,
        up_to,
        text,
        await touched(computer, base),
        before,
        context.tokens_after(up_to, text),
        sum(turn > up_to for turn in context.turns),
    )


async def _summary(messages: Sequence[Message], window: Window, adviser: Adviser) -> str:
    """Notes by a model; empty if it fails or has no budget."""
    told = bounded("\n\n".join(map(_told, messages)), window.room * BYTES_PER_TOKEN // 2)
    asking = Request(SUMMARISE, (UserMessage(told),), (), max_tokens=min(SUMMARY_TOKENS, window.reply))
    heard = await consult(adviser, "summarise", asking, SUMMARY_SECONDS)
    return bounded(harmless(heard.reply.text).strip(), NOTES_CHARS) if isinstance(heard, Heard) else ""


def _told(message: Message) -> str:
    match message:
        case UserMessage():
            return f"USER: {message.text}"
        case AssistantMessage():
            calls = "".join(f"\n  calls {call.name} {call.arguments}" for call in message.calls)
            return f"AGENT: {message.text}{calls}"
        case _:
            return f"RESULT of {message.tool}: {message.text}"


async def touched(computer: Computer, base: str) -> tuple[str, ...]:
    """Names of the files that differ from the base in the sandbox."""
    names: dict[str, None] = {}
    for argv in (
        ("git", "diff", "--name-only", "-z", base, "--"),
        ("git", "ls-files", "-z", "--others", "--exclude-standard"),
    ):
        try:
            done = await computer.run(Command(argv=argv, seconds=20))
        except UserError:
            continue
        names.update(dict.fromkeys(harmless(name) for name in decode(done.out).split("\0") if name))
    return tuple(name[:300] for name in names)[:_FILES]
