"""All errors, by who can fix them.

    CloisterError
    ├── UserError      fix your input                          exit 2
    ├── HostError      this machine cannot do that             exit 3
    ├── OutsideError   a model, a forge or the network failed  exit 4
    ├── SandboxLost    the sandbox died                        exit 5
    └── Bug            ours: please report it                  exit 70

A failing command, a refused action and a model that stopped early are results, not errors.
"""

import errno
import re
from typing import Any, Literal, cast

import msgspec


class CloisterError(Exception):
    """Base of all errors. `code` is stable; the message is one sentence that says what to do."""

    exit_code = 70
    blame: Literal["user", "host", "outside", "sandbox", "bug"] = "bug"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UserError(CloisterError):
    """The request is invalid; a different one would work."""

    exit_code = 2
    blame = "user"


class HostError(CloisterError):
    """This machine lacks something: a runtime, a privilege, disk."""

    exit_code = 3
    blame = "host"


class OutsideError(CloisterError):
    """Something outside this machine failed. `retryable` says whether the same call may work later.

    `after` is the number of seconds for which the other side asks to wait before that.
    """

    exit_code = 4
    blame = "outside"

    def __init__(self, code: str, message: str, *, retryable: bool = False, after: float = 0.0) -> None:
        super().__init__(code, message)
        self.retryable, self.after = retryable, after


class SandboxLost(CloisterError):
    """The sandbox died, was killed, or broke the protocol. Every operation that waits for it fails with this."""

    exit_code = 5
    blame = "sandbox"

    def __init__(self, message: str) -> None:
        super().__init__("sandbox_lost", message)


class Fenced(CloisterError):
    """Another owner has claimed the run: this one may no longer append to its log."""

    def __init__(self, message: str) -> None:
        super().__init__("fenced", message)


class Bug(CloisterError):
    """A state that should be impossible."""

    def __init__(self, message: str) -> None:
        super().__init__("bug", message)


def sole(error: BaseException) -> BaseException:
    """Return the only error inside nested exception groups, or `error` itself if there are several."""
    inner = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
    return sole(inner[0]) if len(inner) == 1 else error


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def lack_of(error: BaseException) -> str | None:
    """The sentence about what a run can wait for, if its lack caused `error`: room on a disk, or the cluster; else None."""
    inner = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
    for each in (*inner, error.__cause__):
        if each is not None and (why := lack_of(each)):
            return why
    if isinstance(error, HostError) and error.code in ("no_disk", "cluster_away"):
        return error.message
    if isinstance(error, OSError) and error.errno in _FULL:
        return "There is no space left on a disk of this machine: free some."
    return None


def describe(error: msgspec.MsgspecError, kind: Any = None) -> str:
    """Return where a record of `kind` is invalid and what was expected, as one sentence. Never repeats values."""
    message, _, path = str(error).partition(" - at ")
    if not isinstance(error, msgspec.ValidationError):
        return f"The request is not JSON: {message}."
    where = path.strip("`") or "$"
    if message.startswith(("Expected", "Object missing required field")):
        return f"At {where}: {message}."
    there = () if kind is None else _types(kind, where)
    if message.startswith("Object contains unknown field"):
        from difflib import get_close_matches  # noqa: PLC0415  (only errors need it)

        name = message.partition("`")[2].strip("`")
        fields = [field.encode_name for each in there for field in getattr(each, "fields", ())]
        named = f"unknown field {name!r}" if _NAME.fullmatch(name) else "unknown field"
        if near := get_close_matches(name, fields, 1):
            return f"At {where}: {named}; did you mean {near[0]!r}?"
        return f"At {where}: {named}" + (
            f"; known are {', '.join(dict.fromkeys(fields))}." if fields else "."
        )
    if message.startswith("Invalid enum value"):
        allowed = [str(value) for each in there for value in getattr(each, "values", ())]
        return f"At {where}: the value is not one of {', '.join(allowed) or 'those allowed'}."
    return f"At {where}: the value is not valid."


_NAME = re.compile(r"[A-Za-z_][\w-]{0,39}")
"""A field that is named back to the caller; anything else may be a misplaced value."""
_STEP = re.compile(r"\.([^.\[]{1,200})|\[[^\]]{0,200}\]")


def _types(kind: Any, where: str) -> tuple[Any, ...]:
    """The types of the value at a path such as `$.attempts[0].share`."""
    from msgspec import inspect  # noqa: PLC0415  (only errors need it)

    found: tuple[Any, ...] = (inspect.type_info(kind),)
    for step in _STEP.finditer(where):
        below = tuple(part for each in found for part in getattr(each, "types", (each,)))
        fields = [
            field.type
            for each in below
            for field in getattr(each, "fields", ())
            if field.encode_name == step[1]
        ]
        items = [
            getattr(each, name)
            for each in below
            for name in ("item_type", "value_type")
            if hasattr(each, name)
        ]
        items += [item for each in below for item in getattr(each, "item_types", ())]
        found = tuple(fields or items)
    return tuple(part for each in found for part in getattr(each, "types", (each,)))
