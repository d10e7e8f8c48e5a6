"""The routes of the API, one file per subject; each calls one verb and carries the role of that verb."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from litestar.di import NamedDependency

from cloister.app.verbs.declare import is_inside, role_of, scope_of

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs  # noqa: F401  (named as text below)

T = TypeVar("T")


class Waiting(Protocol):
    """Awaits work that is cancelled when the caller hangs up or the server stops."""

    async def __call__(self, work: Awaitable[T]) -> T: ...


Given = NamedDependency["Verbs"]
"""The verbs of the request's caller."""
Wait = NamedDependency["Waiting"]


def of(
    verb: Callable[..., object],
    summary: str | None = None,
    operation_id: str | None = None,
    status: int | None = None,
    *,
    reads: bool = False,
) -> dict[str, Any]:
    """Arguments of a route that calls `verb`. `reads` marks a `POST` that changes nothing: the audit skips it."""
    opt: dict[str, Any] = {"role": role_of(verb), "reads": reads, "scope": scope_of(verb)} | (
        {"inside": True} if is_inside(verb) else {}
    )
    told: dict[str, Any] = {"opt": opt}
    if operation_id is not None:
        told |= {"summary": summary, "operation_id": operation_id}
    return told if status is None else told | {"status_code": status}
