"""Everything that can go wrong, by whose problem it is.

    CloisterError
    ├── UserError      fix your input                          exit 2
    ├── HostError      this machine cannot do that             exit 3
    ├── OutsideError   a model, a forge or the network failed  exit 4
    ├── SandboxLost    the sandbox is gone                     exit 5
    └── Bug            ours: please report it                  exit 70

A failing command, a refused action and a model that stopped early are results, not errors.
"""

from typing import Literal, cast

import msgspec


class CloisterError(Exception):
    """Base of all our errors. `code` is stable; the message is one sentence with what to do."""

    exit_code = 70
    blame: Literal["user", "host", "outside", "sandbox", "bug"] = "bug"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UserError(CloisterError):
    """The caller asked for something that cannot be; a different request would work."""

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
    """The sandbox died, was killed, or broke the protocol. Whatever was waiting on it fails with this."""

    exit_code = 5
    blame = "sandbox"

    def __init__(self, message: str) -> None:
        super().__init__("sandbox_lost", message)


class Fenced(CloisterError):
    """Another owner has claimed the run: this one may no longer append to its log."""

    def __init__(self, message: str) -> None:
        super().__init__("fenced", message)


class Bug(CloisterError):
    """A state we believed impossible."""

    def __init__(self, message: str) -> None:
        super().__init__("bug", message)


def sole(error: BaseException) -> BaseException:
    """The one error inside nested exception groups, or the error itself when there is no single one."""
    inner = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
    return sole(inner[0]) if len(inner) == 1 else error


# What is wrong with a record that people wrote, as one sentence: the same by every door it comes in.


ATTEMPTS = "$.attempts"


def describe(error: msgspec.MsgspecError) -> str:
    """Where a record is wrong and what was expected there. Values that were sent are not repeated."""
    message, _, path = str(error).partition(" - at ")
    if not isinstance(error, msgspec.ValidationError):
        return f"The request is not JSON: {message}."
    where = path.strip("`") or "$"
    if message.startswith(("Expected", "Object missing required field")):
        return f"At {where}: {message}."
    if message.startswith("Object contains unknown field"):
        known = ": an attempt has model, temperature, share and hint" if where.startswith(ATTEMPTS) else ""
        return f"At {where}: there is a field that is not known here{known}."
    if message.startswith("Invalid enum value"):
        return f"At {where}: the value is not one of those allowed."
    return f"At {where}: the value is not valid."
