"""Turns any exception of a provider, its SDK or the network into a `Failure` without secrets."""

import logging
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import cast

import httpx2
import msgspec
from pydantic_ai import exceptions as wire

from cloister.core import limits
from cloister.core.text import one_line
from cloister.model.api import RETRYABLE, Failure, FailureCode

# Bounds for HTTP bodies: longer or compressed ones are rejected

BODY_BYTES = 64 * limits.REPLY_BYTES
"""Largest body of one answer: a long reply in pieces of one token, each with its JSON envelope."""


class EndlessBody(Exception):
    """A body that exceeds its bound, or is compressed and therefore of unknown size."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > self._most:
                raise EndlessBody(f"more than {self._most:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def bound(response: httpx2.Response, most: int = BODY_BYTES) -> None:
    """Limit the body to `most` bytes. Raises `EndlessBody` if it is compressed although we requested it not to be."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise EndlessBody("a compressed body")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream, most)


# Error bodies, for failures that the status alone does not distinguish

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
"""Phrases from the providers' documentation, anywhere in the body."""

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
    """Seconds to wait, from Google's `RetryInfo` in the details."""
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


logger = logging.getLogger(__name__)

DETAIL_CHARS = 300

_MAPPED: tuple[tuple[type[Exception], FailureCode, str], ...] = (
    (wire.ModelQuotaExceededError, "quota", "says that the account's quota or credit is used up"),
    (wire.ModelRateLimitError, "rate_limit", "asks to slow down"),
    (wire.ModelUnavailableError, "overloaded", "is overloaded or unavailable"),
    (wire.ModelServerError, "overloaded", "had an internal error"),
    (wire.ModelContextWindowExceededError, "context_too_long", "says that the conversation is too long"),
    (wire.ModelNotFoundError, "bad_request", "does not know this model, or its URL is wrong"),
    (wire.ModelRequestRejectedError, "bad_request", "rejected the request"),
    (wire.ModelTimeoutError, "network", "did not answer in time"),
    (wire.ModelConnectionError, "network", "cannot be reached, or the connection broke"),
    (wire.ContentFilterError, "refused", "refused to answer"),
    (EndlessBody, "bad_reply", "did not stop, or compressed its reply against our request"),
    (wire.ModelAPIError, "bad_reply", "sent a reply that is cut off or cannot be parsed"),
    (wire.UnexpectedModelBehavior, "bad_reply", "sent a reply that cannot be used"),
    (wire.UserError, "bad_request", "does not support this request"),
    (httpx2.HTTPError, "network", "cannot be reached, or the connection broke"),
    (OSError, "network", "cannot be reached, or the connection broke"),
)
"""The first matching class decides, so subclasses come before their bases."""

_TELLING = (wire.ModelRequestRejectedError, wire.ModelRateLimitError)
"""The body of these says more than the class, except for the two below."""
_FAILURES_TOLD = (wire.ModelContextWindowExceededError, wire.ModelNotFoundError)
_WHAT: dict[FailureCode, str] = {
    "context_too_long": "says that the conversation is too long",
    "refused": "refused to answer",
    "quota": "says that the account's quota or credit is used up",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The model that failed, and the secrets to remove from the message."""

    name: str
    key_variable: str
    secrets: tuple[str, ...]


def failure_from(error: Exception, origin: Origin) -> Failure:
    """Never raises. An unknown error becomes a bad reply; its type is logged, its text is not."""
    body = as_data(error.body) if isinstance(error, wire.ModelAPIError) else None
    # Before the status, which is the same for a long conversation, a used-up quota and a refusal.
    if isinstance(error, _TELLING) and not isinstance(error, _FAILURES_TOLD) and (told := kind_told(body)):
        return _failure(error, body, origin, told, _WHAT[told])
    if isinstance(error, wire.ModelAuthenticationError):
        return Failure("auth", f"{origin.name} refused the key: check {origin.key_variable}.")
    if isinstance(error, wire.ModelHTTPError) and type(error) is wire.ModelHTTPError:
        return _by_status(error, body, origin)
    for kind, code, what in _MAPPED:
        if isinstance(error, kind):
            return _failure(error, body, origin, code, what)
    logger.warning("%s: unexpected %s from the provider's SDK", origin.name, type(error).__qualname__)
    return _failure(error, body, origin, "bad_reply", "sent a reply that cannot be parsed")


def _by_status(error: wire.ModelHTTPError, body: object, origin: Origin) -> Failure:
    """For a status that pydantic-ai does not classify."""
    if error.status_code == 413:
        return _failure(error, body, origin, "context_too_long", _WHAT["context_too_long"])
    if error.status_code in (408, 409, 424, 425) or error.status_code >= 500:
        return _failure(error, body, origin, "overloaded", f"answered with status {error.status_code}")
    return _failure(error, body, origin, "bad_request", f"answered with status {error.status_code}")


def _failure(error: Exception, body: object, origin: Origin, code: FailureCode, what: str) -> Failure:
    detail = _detail(error, body, origin)
    wait = error.retry_after if isinstance(error, wire.ModelAPIError) else None
    wait = wait_told(body) if wait is None else wait
    message = f"{origin.name} {what}" + (f": {detail}" if detail else ".")
    return Failure(code, message, code in RETRYABLE, wait if code in RETRYABLE else None)


def _detail(error: Exception, body: object, origin: Origin) -> str:
    text = sentence(body) or (str(error) if isinstance(error, wire.AgentRunError) else type(error).__name__)
    for secret in origin.secrets:
        # As it is, and as `repr` writes it.
        for written in dict.fromkeys((secret, repr(secret)[1:-1], repr(secret.encode())[2:-1])):
            text = text.replace(written, "[key]")
    return one_line(text, DETAIL_CHARS)
