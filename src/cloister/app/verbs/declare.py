"""How a verb declares the role that it needs, and its request over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloister.core.requests import Role

    Verb = TypeVar("Verb", bound=Callable[..., object])


QUICK_SECONDS = 30.0
SLOW_SECONDS = 300.0
"""Limit of a request that reads much: a diff, a verification, a snapshot."""
END_SECONDS = 60.0
BUILD_SECONDS = 86_400.0
"""Limit of a request that may build a template."""


Scope = Literal["server", "run", "anywhere"]


class Route(NamedTuple):
    """The request that a verb is over HTTP: arguments are parts of the path, then the query or the JSON body."""

    method: str
    path: str
    """Below `/v1`; `{name}` is the argument of that name."""
    body: str | None = None
    """The argument that is the whole body."""
    member: str | None = None
    """The member of the reply that is the result."""
    seconds: float = QUICK_SECONDS
    names: tuple[tuple[str, str], ...] = ()
    """Arguments that have another name in the body."""


def needs(
    role: Role,
    request: str | None = None,
    *,
    body: str | None = None,
    member: str | None = None,
    seconds: float = QUICK_SECONDS,
    anywhere: bool = False,
    **names: str,
) -> Callable[[Verb], Verb]:
    """Declare the lowest role that may use a verb, and its request over HTTP, such as `GET runs/{run}`.

    Routes and implementations read them with `role_of` and `route_of`. A verb that streams, or that is several
    requests, declares no request; the HTTP client implements it by hand. See `Route` for the other arguments.

    The role counts on the server. Of a verb whose first argument is `run` it counts with that run, where a project or a
    link may give it; with `anywhere` it is enough to have it with some run, and the verb leaves out what the caller
    may not see.
    """

    def mark(verb: Verb) -> Verb:
        verb.__dict__["role"] = role
        verb.__dict__["anywhere"] = anywhere
        if request is not None:
            method, path = request.split()
            verb.__dict__["route"] = Route(method, path, body, member, seconds, tuple(names.items()))
        return verb

    return mark


def inside(verb: Verb) -> Verb:
    """Mark a verb that a sandbox's own token may use, for that sandbox: its first argument."""
    verb.__dict__["inside"] = True
    return verb


def is_inside(verb: Callable[..., object]) -> bool:
    """Whether `inside` marks a verb."""
    return bool(verb.__dict__.get("inside"))


def scope_of(verb: Callable[..., object]) -> Scope:
    """Where the role that a verb needs may come from; see `needs`."""
    if verb.__dict__.get("anywhere"):
        return "anywhere"
    return "run" if verb.__code__.co_varnames[1:2] == ("run",) else "server"


def route_of(verb: Callable[..., object]) -> Route | None:
    """The request that a verb declares."""
    return cast("Route | None", verb.__dict__.get("route"))


def role_of(verb: Callable[..., object]) -> Role:
    """The role that a verb declares; a verb that declares none is for admins."""
    return cast("Role", verb.__dict__.get("role", "admin"))


def no_report(_fraction: float | None, _note: str) -> None:
    """A `Report` that ignores progress."""
