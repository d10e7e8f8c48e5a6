"""The wire of e2b: its control plane, and what runs inside its sandboxes (processes, files, code interpreter)."""

from typing import Any

from litestar import Request
from litestar.datastructures import State

from cloister.core.computer import User
from cloister.core.errors import UserError
from cloister.server.compat import E2B, user_of

HOME = "/home/user"
"""Where its clients expect the home directory."""


def at(path: str) -> str:
    return E2B + path


def sandbox_of(request: Request[Any, Any, State]) -> str:
    """The sandbox that a call is for. Raises `UserError` (`bad_request`)."""
    if not (named := request.headers.get("e2b-sandbox-id")):
        raise UserError("bad_request", "Name the sandbox in the header E2b-Sandbox-Id.")
    return named


def user(request: Request[Any, Any, State], named: str | None = None) -> User:
    """Who a call acts as: `root`, or the agent under any other name."""
    return "root" if (named or user_of(request.headers.get("authorization"))) == "root" else "agent"


def placed(path: str) -> str:
    """A path as its clients mean it: relative to the home directory."""
    if path.startswith("/"):
        return path
    path = path.removeprefix("~/") if path != "~" else ""
    return f"{HOME}/{path}".rstrip("/")
