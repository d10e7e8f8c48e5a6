"""What was typed after `cloister run`, as a request: relative names mean files of the caller."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloister.cli.speak import typed
from cloister.core.errors import UserError
from cloister.core.limits import PROMPT_BYTES
from cloister.core.records import Budget, NewRun, Tier, check_new_run

if TYPE_CHECKING:
    from cloister.settings import Settings

_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SCP = re.compile(r"^[^/\s]+@[^/\s:]+:")
_SCRIPT = "script:"


class Asked(NamedTuple):
    """The arguments of `cloister run`."""

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
    must_pass: tuple[str, ...] = ()


def new_run(asked: Asked, settings: "Settings") -> NewRun:
    """The request, checked as far as the caller's side can. Raises `UserError`."""
    usual = settings.file.budget
    new = NewRun(
        prompt=_prompt(asked.prompt),
        repo=repository(asked.repo),
        ref=asked.ref,
        checks=tuple(typed(check) for check in asked.checks),
        model=_model(asked.model),
        n=asked.n,
        tier=asked.tier,
        template=asked.template,
        budget=Budget(
            steps=usual.steps if asked.steps is None else asked.steps,
            tokens=usual.tokens if asked.tokens is None else asked.tokens,
            seconds=usual.seconds if asked.seconds is None else asked.seconds,
        ),
        allow_hosts=asked.allow_hosts,
        asked=tuple(typed(name) for name in asked.must_pass),
    )
    if problem := check_new_run(new):
        raise UserError("bad_run", problem)
    return new


def repository(name: str) -> str:
    """A URL as it is, a path made absolute. Raises `UserError` (`no_repository`)."""
    if _URL.match(name) or _SCP.match(name):
        return name
    if not name.strip():
        raise UserError("no_repository", "No repository: give a path or a git URL with --repo.")
    path = Path(name).expanduser()
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UserError("no_repository", f"There is no repository {name}: the path does not exist.") from None
    return typed(str(path))


def _prompt(text: str) -> str:
    if text != "-":
        return typed(text)
    # One byte more than the limit is enough to refuse it.
    return sys.stdin.buffer.read(PROMPT_BYTES + 1).decode("utf-8", errors="replace")


def _model(name: str | None) -> str | None:
    """A script's path is the caller's, too."""
    if name is None or not name.startswith(_SCRIPT):
        return name
    path = Path(name.removeprefix(_SCRIPT)).expanduser()
    if not path.is_file():
        raise UserError("no_script", f"There is no script {path}: give the file after script:.")
    return _SCRIPT + str(path.resolve())
