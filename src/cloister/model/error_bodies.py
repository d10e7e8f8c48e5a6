"""What a provider's error body says, where the status alone does not tell the kinds of failure apart. Pure."""

import re
from typing import cast

import msgspec

from cloister.model.api import FailureCode

_TOLD: tuple[tuple[FailureCode, re.Pattern[str]], ...] = (
    (
        "context_too_long",
        re.compile(
            r"exceed context limit|exceeds? the available context size|exceed_context_size"
            r"|greater than the context length|context the overflows|context length of only|too large for model with",
            re.IGNORECASE,
        ),
    ),
    (
        "refused",
        re.compile(
            r"content filtering policy|content_policy_violation|content management policy|content_filter"
            r"|safety system|flagged_input",
            re.IGNORECASE,
        ),
    ),
    ("quota", re.compile(r"specified API usage limits|spending limit|PerDayPerProject", re.IGNORECASE)),
)
"""Words of the providers' own documentation, in any part of the body."""

_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_TEXT_CHARS = 20_000
"""As much of a body is looked at."""
_DEPTH = 6


def as_data(body: object) -> object:
    """The body as data; some clients hand over its text."""
    if not isinstance(body, str | bytes):
        return body
    try:
        return cast("object", msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", errors="replace") if isinstance(body, bytes) else body


def sentence(body: object, depth: int = _DEPTH) -> str | None:
    """What it says to a person: `message`, or `error.message`, or `detail`, or the text itself."""
    match body:
        case str():
            return body
        case dict() if depth:
            table = cast("dict[str, object]", body)
            said = (sentence(table.get(key), depth - 1) for key in ("message", "msg", "error", "detail"))
            return next((text for text in said if text), None)
        case list() if depth:
            items = cast("list[object]", body)
            return sentence(items[0], depth - 1) if items else None
        case _:
            return None


def kind_told(body: object) -> FailureCode | None:
    """The kind of failure that the words of a rejected request name; None when they name none."""
    text = body if isinstance(body, str) else _encoded(body)
    return next((code for code, words in _TOLD if words.search(text[:_TEXT_CHARS])), None)


def wait_told(body: object) -> float | None:
    """Seconds until it is worth trying again, as Google writes them: in a `RetryInfo` among the details."""
    error = cast("dict[str, object]", body).get("error") if isinstance(body, dict) else None
    details = cast("dict[str, object]", error).get("details") if isinstance(error, dict) else None
    for detail in cast("list[object]", details) if isinstance(details, list) else ():
        delay = cast("dict[str, object]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (found := _DELAY.fullmatch(delay)):
            return float(found[1])
    return None


def _encoded(body: object) -> str:
    try:
        return msgspec.json.encode(body).decode()
    except (TypeError, RecursionError, msgspec.MsgspecError):
        return ""
