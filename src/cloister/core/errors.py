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
from typing import Literal, cast

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
    """Something outside this machine failed. `retryable` says whether the same call may work later."""

    exit_code = 4
    blame = "outside"

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(code, message)
        self.retryable = retryable


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


def disk_full(error: BaseException) -> str | None:
    """The sentence about a full disk, if that is the cause of `error`; else None."""
    inner = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
    for each in (*inner, error.__cause__):
        if each is not None and (why := disk_full(each)):
            return why
    if isinstance(error, HostError) and error.code == "no_disk":
        return error.message
    if isinstance(error, OSError) and error.errno in _FULL:
        return "There is no space left on a disk of this machine: free some."
    return None


def describe(error: msgspec.MsgspecError) -> str:
    """Return where a record is invalid and what was expected, as one sentence. Never repeats values."""
    message, _, path = str(error).partition(" - at ")
    if not isinstance(error, msgspec.ValidationError):
        return f"The request is not JSON: {message}."
    where = path.strip("`") or "$"
    if message.startswith(("Expected", "Object missing required field")):
        return f"At {where}: {message}."
    if message.startswith("Object contains unknown field"):
        known = (
            ": an attempt has model, temperature, share and hint" if where.startswith("$.attempts") else ""
        )
        return f"At {where}: unknown field{known}."
    if message.startswith("Invalid enum value"):
        return f"At {where}: the value is not one of those allowed."
    return f"At {where}: the value is not valid."
