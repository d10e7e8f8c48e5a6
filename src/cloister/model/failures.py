"""Whatever a provider, its SDK or the network can throw, as one `Failure` with no secret in it."""

import logging
from dataclasses import dataclass

import httpx2
from pydantic_ai import exceptions as wire

from cloister.core.text import one_line
from cloister.model.api import Failure, FailureCode
from cloister.model.bodies import EndlessBody
from cloister.model.error_bodies import as_data, kind_told, sentence, wait_told
from cloister.model.retry import RETRYABLE

logger = logging.getLogger(__name__)

DETAIL_CHARS = 300

_MAPPED: tuple[tuple[type[Exception], FailureCode, str], ...] = (
    (wire.ModelQuotaExceededError, "quota", "says that the account's quota or credit is used up"),
    (wire.ModelRateLimitError, "rate_limit", "asks to slow down"),
    (wire.ModelUnavailableError, "overloaded", "is overloaded or unavailable"),
    (wire.ModelServerError, "overloaded", "had an error of its own"),
    (wire.ModelContextWindowExceededError, "context_too_long", "says that the conversation is too long"),
    (wire.ModelNotFoundError, "bad_request", "does not know this model, or its URL is wrong"),
    (wire.ModelRequestRejectedError, "bad_request", "rejected the request"),
    (wire.ModelTimeoutError, "network", "did not answer in time"),
    (wire.ModelConnectionError, "network", "cannot be reached, or the connection broke"),
    (wire.ContentFilterError, "refused", "refused to answer"),
    (EndlessBody, "bad_reply", "would not stop, or packed its reply although it was asked not to"),
    (wire.ModelAPIError, "bad_reply", "sent a reply that breaks off or cannot be read"),
    (wire.UnexpectedModelBehavior, "bad_reply", "sent a reply that cannot be used"),
    (wire.UserError, "bad_request", "cannot be asked this"),
    (httpx2.HTTPError, "network", "cannot be reached, or the connection broke"),
    (OSError, "network", "cannot be reached, or the connection broke"),
)
"""The first class that fits decides, so subclasses stand before their bases."""

_TELLING = (wire.ModelRequestRejectedError, wire.ModelRateLimitError)
"""Of these the words say more than the class, but for those below it that are plain enough."""
_TOLD = (wire.ModelContextWindowExceededError, wire.ModelNotFoundError)
_WHAT: dict[FailureCode, str] = {
    "context_too_long": "says that the conversation is too long",
    "refused": "refused to answer",
    "quota": "says that the account's quota or credit is used up",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose failure it is, and the secrets that must not be in its message."""

    name: str
    key_variable: str
    secrets: tuple[str, ...]


def failure_from(error: Exception, origin: Origin) -> Failure:
    """Never raises. An error we do not know is logged, without its text, and called a bad reply."""
    body = as_data(error.body) if isinstance(error, wire.ModelAPIError) else None
    # Before the status, which is the same for what one has to shorten, to pay or to leave alone.
    if isinstance(error, _TELLING) and not isinstance(error, _TOLD) and (told := kind_told(body)):
        return _failure(error, body, origin, told, _WHAT[told])
    if isinstance(error, wire.ModelAuthenticationError):
        return Failure("auth", f"{origin.name} refused the key: check {origin.key_variable}.")
    if isinstance(error, wire.ModelHTTPError) and type(error) is wire.ModelHTTPError:
        return _by_status(error, body, origin)
    for kind, code, what in _MAPPED:
        if isinstance(error, kind):
            return _failure(error, body, origin, code, what)
    logger.warning("%s: unexpected %s from the provider's SDK", origin.name, type(error).__qualname__)
    return _failure(error, body, origin, "bad_reply", "sent a reply that cannot be read")


def _by_status(error: wire.ModelHTTPError, body: object, origin: Origin) -> Failure:
    """A status that pydantic-ai puts into no category."""
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
        # As it is, and as Python writes it when it quotes it.
        for written in dict.fromkeys((secret, repr(secret)[1:-1], repr(secret.encode())[2:-1])):
            text = text.replace(written, "[key]")
    return one_line(text, DETAIL_CHARS)
