"""Notices and how each format writes them. Pure.

A notice quotes people, models and repositories. What they wrote is data in each format: it makes no header, no mention,
no link and no markup.
"""

import base64
import hashlib
import hmac
import re
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage

import msgspec

from cloister.core.addresses import without_userinfo
from cloister.core.errors import UserError
from cloister.core.events import AskRaised, Event, QuestionAsked, RunFinished, StuckNoticed
from cloister.core.text import one_line
from cloister.log.api import RunRow
from cloister.log.sqlite.outbox import Delivery, Format, NoticeKind, Target

KINDS = ("RunFinished", "AskRaised", "QuestionAsked", "StuckNoticed")
"""Events that a notice is about."""
NAMES: tuple[NoticeKind, ...] = ("ended", "asks", "stuck")
TEXT_CHARS = 500
SIGNS = "whsec_"
"""How a signing secret begins, in the Standard Webhooks specification."""

_ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"
)


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened, bounded; texts are one line each."""

    kind: NoticeKind
    at: float
    run: str = ""
    repo: str = ""
    prompt: str = ""
    who: str = ""
    """Who asked for the run."""
    outcome: str = ""
    reason: str = ""
    """How it ended, what it asks, or why it counts as stuck."""
    ask: str = ""
    """The question's id, for `cloister answer`."""
    deadline: float | None = None
    url: str = ""
    """The page of the run, where the settings name a host."""


def notice_of(event: Event, row: RunRow, base: str) -> tuple[str, Notice]:
    """The notice of an event, and its key; the same event has the same key."""
    url = f"{base}/runs/{event.run}" if base else ""
    about = Notice(
        "ended",
        event.at,
        event.run,
        _cut(without_userinfo(row.repo)),
        _cut(row.prompt),
        _cut(row.who),
        url=url,
    )
    match event.body:
        case RunFinished(outcome=outcome, reason=reason):
            about = msgspec.structs.replace(about, outcome=outcome, reason=_cut(reason))
        case AskRaised(ask=ask, action=action, deadline=deadline):
            about = msgspec.structs.replace(
                about, kind="asks", reason=_cut(action), ask=_cut(ask), deadline=deadline
            )
        case QuestionAsked(question=ask, text=text, deadline=deadline):
            about = msgspec.structs.replace(
                about, kind="asks", reason=_cut(text), ask=_cut(ask), deadline=deadline
            )
        case StuckNoticed(kind=kind, evidence=evidence):
            about = msgspec.structs.replace(about, kind="stuck", reason=_cut(f"{kind}: {evidence}"))
        case _:
            raise ValueError(f"no notice is about {type(event.body).__name__}")
    return f"{event.run}-{event.seq}", about


def _cut(text: str) -> str:
    return one_line(text, TEXT_CHARS)


def title(notice: Notice) -> str:
    """One line in our own words, without a word of others."""
    match notice.kind:
        case "ended":
            return f"{notice.run} ended: {notice.outcome}"
        case "asks":
            return f"{notice.run} asks a person"
        case "stuck":
            return f"{notice.run} is stuck"
        case "test":
            return "A test of this webhook"


def _quoted(notice: Notice) -> list[tuple[str, str]]:
    """What others wrote, by name."""
    named = (("Prompt", notice.prompt), ("Repository", notice.repo), ("By", notice.who))
    return [(name, text) for name, text in (*named, ("Reason", notice.reason)) if text]


# Addresses.


def check_target(name: str, address: str, format: Format | None, kinds: tuple[NoticeKind, ...]) -> Format:
    """The format of a new target. Raises `UserError` (`bad_name`, `bad_webhook`)."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,39}", name):
        raise UserError("bad_name", "A webhook's name is up to 40 characters of a-z, 0-9 and . _ - .")
    if unknown := next((one for one in kinds if one not in NAMES), None):
        raise UserError("bad_webhook", f"There are notices of {', '.join(NAMES)}, not of {unknown[:40]!r}.")
    if re.search(r"[\x00-\x20\x7f]", address):
        raise UserError("bad_webhook", "The address has a space or a control character.")
    mail = address.startswith("mailto:")
    if mail and not _is_mail(address.removeprefix("mailto:")):
        raise UserError("bad_webhook", "Write an e-mail address as mailto:NAME@HOST, one for each webhook.")
    if mail != (format == "mail") and format is not None:
        raise UserError(
            "bad_webhook", "Mail goes to mailto: addresses, and the other formats to https:// ones."
        )
    return "mail" if mail else format or "json"


def _is_mail(address: str) -> bool:
    try:
        return bool(_ADDRESS.fullmatch(address) and Address(addr_spec=address).domain)
    except (ValueError, IndexError, MessageError):
        return False


# Formats.


def post(target: Target, delivery: Delivery, now: float) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of the request for a delivery."""
    notice = msgspec.json.decode(delivery.notice, type=Notice)
    if target.format == "slack":
        return _slack(notice), {"content-type": "application/json"}
    body = msgspec.json.encode({"type": f"run.{notice.kind}", "timestamp": notice.at, "data": notice})
    stamp, number = str(int(now)), f"msg_{delivery.key}"
    signed = sign(target.secret, number, stamp, body)
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    headers = dict(zip(names, (number, stamp, signed), strict=True))
    return body, {"content-type": "application/json", **headers}


def sign(secret: str, number: str, stamp: str, body: bytes) -> str:
    """The signature, as the Standard Webhooks specification writes it."""
    key = base64.b64decode(secret.removeprefix(SIGNS))
    digest = hmac.new(key, f"{number}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _slack(notice: Notice) -> bytes:
    """A message of an incoming webhook, as Slack, Mattermost and Rocket.Chat take it."""
    lines = [f"*{title(notice)}*", *(f"{name}: {_code(text)}" for name, text in _quoted(notice))]
    if notice.url:
        lines.append(notice.url)
    if notice.ask:
        lines.append(f"Answer: {_code(f'cloister answer {notice.run}')}")
    return msgspec.json.encode({"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False})


def _code(text: str) -> str:
    """Text of others as code: no service reads mentions, links or markup in it."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "`" + escaped.replace("`", "'") + "`"


def mail(target: Target, delivery: Delivery, sender: str) -> EmailMessage:
    """The message for a delivery."""
    notice = msgspec.json.decode(delivery.notice, type=Notice)
    name, _, address = sender.rpartition(" <")
    made = EmailMessage()
    made["Subject"] = f"[Cloister] {title(notice)}"
    made["From"] = Address(name, addr_spec=address.rstrip(">"))
    made["To"] = Address(addr_spec=target.address.removeprefix("mailto:"))
    made["Message-ID"] = f"<{delivery.key}.{delivery.id}@{address.rstrip('>').rpartition('@')[2]}>"
    made["Auto-Submitted"] = "auto-generated"
    lines = [title(notice), "", *(f"{name}: {_defanged(text)}" for name, text in _quoted(notice))]
    if notice.url:
        lines += ["", notice.url]
    made.set_content("\n".join(lines) + "\n")
    return made


def _defanged(text: str) -> str:
    """Text of others in which a mail program finds no link: they make one of what looks like an address."""
    return re.sub(r"(?<=\w)([:.@])(?=[/\w])", r"[\1]", text)
