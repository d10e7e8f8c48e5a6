"""When the window nears its end: a summary in place of old turns, or nothing but what the log says of them."""

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
"""Turns between two summaries by a model. What must go sooner goes without one: no summaries of summaries."""
SHRINKS_TO = 0.7
"""A summary that leaves more than this of the conversation is no summary."""
_FILES = 200


def boundary(context: Context, window: Window) -> int | None:
    """Up to which event old turns can go, so that the rest fits well; None when none can. Pure."""
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
    """What to put into the log so that the conversation fits again; None when no turn can go."""
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
    """In a model's words; empty when it fails, or when there is no budget for it."""
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
    """What differs from the base in the sandbox now, whoever changed it; bounded, and only names."""
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
