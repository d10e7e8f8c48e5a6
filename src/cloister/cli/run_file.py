"""A run written down: the TOML file that `cloister run --file` takes."""

import tomllib
from pathlib import Path

import msgspec

from cloister.core.attempts import AttemptWish, read_attempts
from cloister.core.errors import UserError
from cloister.core.records import BudgetWish, RunRule, Tier

_BYTES = 1_048_576


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a request for a run that a person writes; each may be left to the command line or to what is usual."""

    prompt: str = ""
    repo: str = ""
    ref: str | None = None
    checks: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    model: str | None = None
    kind: str | None = None
    n: int = 1
    attempts: tuple[AttemptWish, ...] = ()
    first_green: bool = False
    search: str | None = None
    tier: Tier = "auto"
    template: str = "default"
    budget: BudgetWish = BudgetWish()
    allow_hosts: tuple[str, ...] = ()
    rules: tuple[RunRule, ...] = ()
    key: str | None = None
    home: Path = Path()
    """The directory of the file: relative names in it start there. Not written in it."""


def read_run_file(path: Path) -> RunFile:
    """The run that `path` describes. Raises `UserError` (`no_run_file`, `bad_run_file`)."""
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(_BYTES + 1)
    except OSError as error:
        raise UserError("no_run_file", f"The run file {path} cannot be read: {error.strerror}.") from None
    if len(data) > _BYTES:
        raise UserError("bad_run_file", f"The run file {path} is larger than {_BYTES >> 20} MiB.")
    try:
        table = tomllib.loads(data.decode())
        if "home" in table:
            raise msgspec.ValidationError("Object contains unknown field `home`")
        attempts = read_attempts(table.pop("attempts", ()))
        found = msgspec.convert(table, RunFile)
    except UnicodeDecodeError:
        raise UserError("bad_run_file", f"{path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError("bad_run_file", f"{path} is not valid TOML: {error}.") from None
    except msgspec.ValidationError as error:
        raise UserError("bad_run_file", f"{path} describes no run: {error}.") from None
    except UserError as error:
        raise UserError("bad_run_file", f"{path} describes no run: {error.message}") from None
    return msgspec.structs.replace(found, attempts=attempts, home=path.expanduser().absolute().parent)
