"""What Slack sends, and the messages that it gets. Pure; words of people, models and repositories have no effect in them."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec

from cloister.core.text import bounded, harmless, one_line
from cloister.forge.hooks import CLOCK_SECONDS, look_up

_TEXT_CHARS = 2_800
"""A block takes 3,000."""
_SAID_CHARS = 20_000
_ID = re.compile(r"[A-Z0-9]{2,40}")
_TS = re.compile(r"[0-9]{1,20}\.[0-9]{1,10}")
_MENTION = re.compile(r"<@[A-Z0-9]{2,40}(?:\|[^>]{0,200})?>")
Blocks = list[dict[str, Any]]


class Place(msgspec.Struct, frozen=True):
    """A thread of a channel."""

    channel: str
    thread: str


class Said(msgspec.Struct, frozen=True):
    """A person wrote a message: a mention, or a reply in a thread."""

    place: Place
    user: str
    text: str
    ts: str
    mention: bool


class Pressed(msgspec.Struct, frozen=True):
    """A person pressed a button of a question."""

    place: Place
    user: str
    run: str
    ask: str
    answer: Literal["allow", "deny"]


def genuine(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """True if Slack signed the body, not long ago."""
    at = headers.get("x-slack-request-timestamp", "")
    if not at.isascii() or not at.isdigit() or len(at) > 12 or abs(now - int(at)) > CLOCK_SECONDS:
        return False
    wanted = "v0=" + hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(headers.get("x-slack-signature", "").encode(), wanted.encode())


def payload_of(body: bytes) -> bytes:
    """The JSON of a request: buttons send it as a field of a form."""
    if not body.startswith(b"payload="):
        return body
    found = parse_qs(body.decode("utf-8", errors="replace"), max_num_fields=4).get("payload", [""])
    return found[0].encode()


def number_of(payload: object) -> str:
    """The number by which a repeated delivery is known; empty if it has none."""
    own = look_up(payload, "event_id") or look_up(payload, "actions.0.action_ts")
    who = look_up(payload, "user.id")
    return f"{own} {who or ''}"[:200].strip() if isinstance(own, str) and own else ""


def challenge(payload: object) -> str | None:
    """What Slack wants to read back when its address is entered."""
    text = look_up(payload, "challenge")
    named = look_up(payload, "type") == "url_verification"
    return text[:1_000] if named and isinstance(text, str) else None


def heard(payload: object) -> Said | Pressed | None:
    """What a person did; None for anything else, messages of programs included."""
    match look_up(payload, "type"):
        case "event_callback":
            return _said(look_up(payload, "event"))
        case "block_actions":
            return _pressed(payload)
        case _:
            return None


def _text(body: object, path: str, form: re.Pattern[str] | None = None) -> str:
    value = look_up(body, path)
    return value if isinstance(value, str) and (form is None or form.fullmatch(value)) else ""


def _said(event: object) -> Said | None:
    kind = look_up(event, "type")
    channel, ts = _text(event, "channel", _ID), _text(event, "ts", _TS)
    thread, user = _text(event, "thread_ts", _TS), _text(event, "user", _ID)
    mention = kind == "app_mention"
    strange = look_up(event, "bot_id") or look_up(event, "subtype") or not (channel and ts and user)
    if strange or not (mention or (kind == "message" and thread)):
        return None
    text = _MENTION.sub("", _text(event, "text")).strip()
    plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return Said(Place(channel, thread or ts), user, bounded(harmless(plain), _SAID_CHARS), ts, mention)


def _pressed(payload: object) -> Pressed | None:
    answer = look_up(payload, "actions.0.action_id")
    run, _, ask = _text(payload, "actions.0.value").partition(" ")
    channel, user = _text(payload, "container.channel_id", _ID), _text(payload, "user.id", _ID)
    thread = _text(payload, "message.thread_ts", _TS) or _text(payload, "container.thread_ts", _TS)
    if answer not in ("allow", "deny") or not (run and ask and channel and user and thread):
        return None
    return Pressed(Place(channel, thread), user, run[:100], ask[:100], answer)


# Messages.


def escaped(text: str) -> str:
    """`text` for the field that notifications show: no mention, link or channel in it means anything."""
    plain = one_line(text, 300).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"[*_~`]", "", plain).replace("@", "@\u2060").replace("://", ":\u2060//")


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": bounded(harmless(text), _TEXT_CHARS) or "-", "emoji": False}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _plain(text)}


def _button(word: str, **more: str) -> dict[str, Any]:
    return {"type": "button", "text": _plain(word), **more}


def state_blocks(run: str, state: str) -> Blocks:
    """The first message of a run."""
    return [_section(f"Run {run}: {state}")]


def ask_blocks(run: str, ask: str, what: str, why: str) -> Blocks:
    """A question with its buttons."""
    buttons = [
        _button("Allow", action_id="allow", value=f"{run} {ask}", style="primary"),
        _button("Deny", action_id="deny", value=f"{run} {ask}", style="danger"),
    ]
    asked = _section(f"The run asks: {what}" + (f"\n{why}" if why else ""))
    return [asked, {"type": "actions", "elements": buttons}]


def end_blocks(run: str, outcome: str, reason: str, page: str) -> Blocks:
    """The result, with a button to the pull request."""
    blocks = [_section(f"Run {run} ended: {outcome}")]
    if reason.strip():
        blocks.append(_section(reason))
    if page.startswith(("https://", "http://")) and len(page) <= 2_000:
        blocks.append({"type": "actions", "elements": [_button("Pull request", url=page, action_id="page")]})
    return blocks
