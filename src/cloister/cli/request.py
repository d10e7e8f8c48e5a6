"""What was typed after `cloister run`, as a request: relative names mean files of the caller."""

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cloister.cli.client.speak import typed
from cloister.core.attempts import AttemptWish, read_attempts
from cloister.core.errors import UserError
from cloister.core.limits import PROMPT_BYTES
from cloister.core.requests import BudgetWish, NewRun, RunRule, Tier, check_new_run
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.settings import Settings


# A run written down: the TOML file that `cloister run --file` takes.


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


_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SCP = re.compile(r"^[^/\s]+@[^/\s:]+:")
_SCRIPT = "script:"
_HERE = Path()
_NO_FILE = RunFile()
_WISH = re.compile(
    r"(model|temperature|share|hint)=((?<=hint=).*|.*?)(?:,(?=(?:model|temperature|share|hint)=)|$)",
    re.DOTALL,
)
_UNKNOWN = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""Is refused where it is read, as in a file."""
_NUMBERS = ("temperature", "share")


class Asked(NamedTuple):
    """The arguments of `cloister run`; empty, or as usual, where a file may say it."""

    prompt: str
    repo: str
    ref: str | None
    checks: tuple[str, ...]
    model: str | None
    n: int
    tier: Tier
    steps: int | None
    tokens: int | None
    seconds: float | None
    allow_hosts: tuple[str, ...]
    template: str = "default"
    kind: str | None = None
    attempts: tuple[str, ...] = ()
    first_green: bool = False
    search: str | None = None
    dollars: float | None = None
    rules: tuple[str, ...] = ()
    """Each an effect and an action, as in `deny bash:git push*`."""
    must_pass: tuple[str, ...] = ()


def new_run(asked: Asked, settings: "Settings", file: RunFile = _NO_FILE) -> NewRun:
    """The request, checked as far as the caller's side can: what was typed counts before `file`. Raises `UserError`."""
    attempts = _attempts(asked, file)
    count = asked.n if asked.n != 1 or asked.attempts else file.n
    new = NewRun(
        prompt=_prompt(asked.prompt) if asked.prompt else file.prompt,
        repo=repository(asked.repo) if asked.repo or not file.repo else repository(file.repo, file.home),
        ref=asked.ref or file.ref,
        checks=tuple(typed(check) for check in asked.checks) or file.checks,
        model=model_name(asked.model) if asked.model else model_name(file.model, file.home),
        kind=asked.kind or file.kind,
        n=count,
        tier=asked.tier if asked.tier != "auto" else file.tier,
        template=asked.template if asked.template != "default" else file.template,
        budget=_budget(asked, file.budget).instead_of(settings.file.budget, max(1, count, len(attempts))),
        allow_hosts=asked.allow_hosts or file.allow_hosts,
        attempts=attempts,
        first_green=asked.first_green or file.first_green,
        search=asked.search or file.search,
        rules=(*(_rule(text) for text in asked.rules), *file.rules),
        asked=tuple(typed(name) for name in asked.must_pass) or file.asked,
        key=file.key,
    )
    if problem := check_new_run(new):
        raise UserError("bad_run", problem)
    return new


def _budget(asked: Asked, wish: BudgetWish) -> BudgetWish:
    """What was typed counts before what was written."""
    return BudgetWish(
        steps=wish.steps if asked.steps is None else asked.steps,
        tokens=wish.tokens if asked.tokens is None else asked.tokens,
        seconds=wish.seconds if asked.seconds is None else asked.seconds,
        dollars=wish.dollars if asked.dollars is None else asked.dollars,
    )


def _attempts(asked: Asked, file: RunFile) -> tuple[AttemptWish, ...]:
    """Those that were typed, or else those of the file; a script is a file of whoever named it."""
    typed_ones = read_attempts([attempt_fields(typed(text)) for text in asked.attempts])
    home = _HERE if typed_ones else file.home
    return tuple(
        msgspec.structs.replace(wish, model=model_name(wish.model, home))
        for wish in typed_ones or file.attempts
    )


def attempt_fields(text: str) -> dict[str, object]:
    """`model=M,temperature=T,share=S,hint=…`, each at most once, as a file or a request would have them; a hint goes
    on to the end. Raises `UserError` (`bad_attempt`).
    """
    fields: dict[str, object] = {}
    rest = text
    while rest:
        found = _WISH.match(rest) or _UNKNOWN.fullmatch(rest)
        if found is None or found[1] in fields:
            raise UserError(
                "bad_attempt",
                f"An attempt is written as model=M,temperature=T,share=S,hint=TEXT, not {one_line(text, 80)!r}.",
            )
        fields[found[1]] = _number(found[2]) if found[1] in _NUMBERS else found[2]
        rest = rest[found.end() :]
    return fields


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # refused where it is read, too


def repository(name: str, home: Path = _HERE) -> str:
    """A URL as it is, a path made absolute, from `home` on. Raises `UserError` (`no_repository`)."""
    if _URL.match(name) or _SCP.match(name):
        return name
    if not name.strip():
        raise UserError("no_repository", "No repository: give a path or a git URL with --repo.")
    path = home / Path(name).expanduser()
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UserError("no_repository", f"There is no repository {name}: the path does not exist.") from None
    return typed(str(path))


def _rule(text: str) -> RunRule:
    effect, _, action = typed(text).strip().partition(" ")
    match effect:
        case "allow" | "deny" | "ask" if action.strip():
            return RunRule(action.strip(), effect)
        case _:
            raise UserError(
                "bad_policy",
                "A rule is allow, deny or ask, and an action, as in --rule 'deny bash:git push*'.",
            )


def _prompt(text: str) -> str:
    if text != "-":
        return typed(text)
    # One byte more than the limit is enough to refuse it.
    return sys.stdin.buffer.read(PROMPT_BYTES + 1).decode("utf-8", errors="replace")


def model_name(name: str | None, home: Path = _HERE) -> str | None:
    """A script's path is the caller's, too, or that of the file which names it."""
    if name is None or not name.startswith(_SCRIPT):
        return name
    path = home / Path(name.removeprefix(_SCRIPT)).expanduser()
    if not path.is_file():
        raise UserError("no_script", f"There is no script {path}: give the file after script:.")
    return _SCRIPT + str(path.resolve())
