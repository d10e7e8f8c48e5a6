"""Errors as clients see them: a status, a stable code and one sentence, never a traceback or an input value."""

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from cloister.core.errors import (
    CloisterError,
    Fenced,
    HostError,
    OutsideError,
    SandboxLost,
    UserError,
    describe,
    sole,
)
from cloister.core.text import bounded
from cloister.server.compat import in_shape

logger = logging.getLogger(__name__)

MESSAGE_CHARS = 1_000

_CONFLICT = {
    "ambiguous_snapshot",
    "ask_answered",
    "built_in_template",
    "key_taken",
    "name_taken",
    "question_answered",
    "several_questions",
    "no_change",
    "run_finished",
    "run_not_finished",
    "run_forked",
    "run_not_paused",
    "run_paused",
    "run_removed",
    "sandbox_of_run",
    "sandbox_paused",
    "several_asks",
    "task_id_taken",
    "template_in_use",
    "too_many_attempts",
    "trigger_paused",
}
_HTTP_CODES = {
    400: ("bad_request", "The request is not valid."),
    404: ("no_such_route", "There is nothing at this address: see /v1/openapi.json."),
    405: ("bad_method", "This address does not take that method: see /v1/openapi.json."),
    413: ("too_large", "The request body is too large."),
}
_NO_BODY = "Object missing required field `data`"


class Problem(msgspec.Struct, frozen=True):
    """An error."""

    code: str
    """Stable; see the list of error codes."""
    message: str
    """One sentence with what to do."""


def problem(error: BaseException) -> tuple[int, Problem]:
    """The status and the body for `error`. Unexpected errors are logged here and hidden from the client."""
    error = sole(error)
    match error:
        case CloisterError():
            return _own_status(error), Problem(error.code, bounded(error.message, MESSAGE_CHARS))
        case msgspec.MsgspecError():
            return 400, Problem("bad_request", describe(error))
        case HTTPException() if error.status_code in _HTTP_CODES:
            return _from_framework(error)
        case TimeoutError():
            return 504, Problem("timeout", "It took too long and was cancelled: try again.")
        case _:
            logger.error("A request failed unexpectedly.", exc_info=error)
            return 500, Problem("bug", "Something unexpected happened: the server's log has the details.")


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """`problem` as an exception handler of Litestar."""
    status, body = problem(error)
    headers = {}
    if isinstance(error, MethodNotAllowedException):
        headers = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    told = in_shape(request.scope["path"], status, body.code, body.message)
    if told is not None:
        return Response(told[1], status_code=told[0], headers=headers, media_type="application/json")
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def _own_status(error: CloisterError) -> int:
    match error:
        case UserError():
            return _user_status(error.code)
        case HostError():
            return 503
        case OutsideError():
            return 502
        case SandboxLost():
            return 410
        case Fenced():
            return 409
        case _:
            logger.error("A request failed: %s", error.message, exc_info=error)
            return 500


def _user_status(code: str) -> int:
    if code == "not_found" or code.startswith("no_such_"):
        return 404
    if code in _CONFLICT:
        return 409
    if code.endswith(("too_large", "too_long")):
        return 413
    if code.startswith("too_many_"):
        return 429
    return {"unauthorized": 401, "bad_login": 401, "denied": 403, "slow_request": 408, "hung_up": 499}.get(
        code, 400
    )


def _from_framework(error: HTTPException) -> tuple[int, Problem]:
    code, message = _HTTP_CODES[error.status_code]
    cause = error.__cause__
    if isinstance(cause, msgspec.ValidationError):
        message = "The request needs a JSON body." if str(cause) == _NO_BODY else describe(cause)
    if isinstance(error, RequestEntityTooLarge):
        code = "too_large"
    return error.status_code, Problem(code, message)
