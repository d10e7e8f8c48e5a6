"""Build the request for a run from the options of `cloister run` and its `--file`. Relative paths are the caller's."""

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cloister.app.verbs.records import RunWish
from cloister.cli.options import typed
from cloister.core.attempts import AttemptWish, read_attempts
from cloister.core.errors import UserError, describe
from cloister.core.limits import PROMPT_BYTES
from cloister.core.requests import BudgetWish, FurtherRepository, Notes, RunRule, Tier, check_new_run
from cloister.core.text import one_line
from cloister.sandbox.api import SNAPSHOT_PREFIX
from cloister.sandbox.templates.recipes import (
    Devcontainer,
    Dockerfile,
    Environment,
    Oci,
    Packages,
    Recipe,
    Repository,
    Snapshot,
)

if TYPE_CHECKING:
    from cloister.app.settings import Settings


_BYTES = 1_048_576
"""Size limit of a run file."""


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The TOML file of `cloister run --file`. Every field is optional."""

    prompt: str = ""
    repo: str = ""
    ref: str | None = None
    checks: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    exclude_tests: tuple[str, ...] = ()
    allow_test_changes: tuple[str, ...] = ()
    ask_test_changes: bool | None = None
    setup: str = "auto"
    pull_request: bool | None = None
    notes: Notes | None = None
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
    harness: str | None = None
    seed: int = 0
    also: tuple[FurtherRepository, ...] = ()
    issue: int | None = None
    home: Path = Path()
    """The directory of the file, to resolve relative paths. Not a field of the file."""


def read_run_file(path: Path) -> RunFile:
    """Read and check a run file. Raises `UserError` (`no_run_file`, `bad_run_file`)."""
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
        raise UserError(
            "bad_run_file", f"{path} is not a valid run file. {describe(error, RunFile)}"
        ) from None
    except UserError as error:
        raise UserError("bad_run_file", f"{path} is not a valid run file: {error.message}") from None
    return msgspec.structs.replace(found, attempts=attempts, home=path.expanduser().absolute().parent)


_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SCP = re.compile(r"^[^/\s@]+@[^/\s:]+:")
_SCRIPT = "script:"
_HERE = Path()
_NO_FILE = RunFile()
_WISH = re.compile(
    r"(harness|model|temperature|share|hint)=((?<=hint=).*|.*?)"
    r"(?:,(?=(?:harness|model|temperature|share|hint)=)|$)",
    re.DOTALL,
)
_UNKNOWN = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""An unknown field: `read_attempts` rejects it, as it does in a file."""
_NUMBERS = ("temperature", "share")


class RunOptions(NamedTuple):
    """The options of `cloister run`. Unset ones come from the run file."""

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
    """Each an effect and an action, such as `deny bash:git push*`."""
    must_pass: tuple[str, ...] = ()
    exclude_tests: tuple[str, ...] = ()
    allow_test_changes: tuple[str, ...] = ()
    ask_test_changes: bool | None = None
    attended: bool = False
    """True if a person watches the run at a terminal: they are asked unless an option or the file says no."""
    harness: str | None = None
    seed: int | None = None
    setup: str = "auto"
    pull_request: bool | None = None
    notes: Notes | None = None
    also: tuple[str, ...] = ()
    """Repositories beside `repo`."""
    issue: int | None = None


def new_run(options: RunOptions, settings: "Settings", file: RunFile = _NO_FILE) -> RunWish:
    """Build and check the request; options take precedence over `file`. Raises `UserError`.

    The settings of the machine that drives the run complete its budget.
    """
    attempts = _attempts(options, file)
    count = options.n if options.n != 1 or options.attempts else file.n
    wish = RunWish(
        prompt=_prompt(options.prompt) if options.prompt else file.prompt,
        repo=repository(options.repo) if options.repo or not file.repo else repository(file.repo, file.home),
        ref=options.ref or file.ref,
        checks=tuple(typed(check) for check in options.checks) or file.checks,
        model=model_name(options.model) if options.model else model_name(file.model, file.home),
        kind=options.kind or file.kind,
        n=count,
        tier=options.tier if options.tier != "auto" else file.tier,
        template=options.template if options.template != "default" else file.template,
        budget=_budget(options, file.budget),
        allow_hosts=options.allow_hosts or file.allow_hosts,
        attempts=attempts,
        first_green=options.first_green or file.first_green,
        search=options.search or file.search,
        rules=(*(_rule(text) for text in options.rules), *file.rules),
        asked=tuple(typed(name) for name in options.must_pass) or file.asked,
        exclude_tests=tuple(map(typed, options.exclude_tests)) or file.exclude_tests,
        allow_test_changes=tuple(map(typed, options.allow_test_changes)) or file.allow_test_changes,
        ask_test_changes=_first(options.ask_test_changes, file.ask_test_changes, options.attended),
        setup=typed(options.setup) if options.setup != "auto" else file.setup,
        pull_request=file.pull_request if options.pull_request is None else options.pull_request,
        notes=options.notes or file.notes,
        also=_also(options, file),
        key=file.key,
        harness=options.harness or file.harness,
        seed=file.seed if options.seed is None else options.seed,
        issue=options.issue or file.issue,
    )
    if problem := check_new_run(wish.new_run(settings.file.budget)):
        raise UserError("bad_run", problem)
    return wish


def _also(options: RunOptions, file: RunFile) -> tuple[FurtherRepository, ...]:
    """The further repositories of the command line; without a repository there, those of the file."""
    if options.repo:
        return tuple(FurtherRepository(repository(one)) for one in options.also)
    return tuple(msgspec.structs.replace(one, repo=repository(one.repo, file.home)) for one in file.also)


def _first(*values: bool | None) -> bool:
    """The first that is not None."""
    return next((value for value in values if value is not None), False)


def _budget(options: RunOptions, wish: BudgetWish) -> BudgetWish:
    return BudgetWish(
        steps=wish.steps if options.steps is None else options.steps,
        tokens=wish.tokens if options.tokens is None else options.tokens,
        seconds=wish.seconds if options.seconds is None else options.seconds,
        dollars=wish.dollars if options.dollars is None else options.dollars,
    )


def _attempts(options: RunOptions, file: RunFile) -> tuple[AttemptWish, ...]:
    """The attempts of the command line, else those of the file. Script paths are relative to where they are named."""
    typed_ones = read_attempts([attempt_fields(typed(text)) for text in options.attempts])
    home = _HERE if typed_ones else file.home
    return tuple(
        msgspec.structs.replace(wish, model=model_name(wish.model, home))
        for wish in typed_ones or file.attempts
    )


def attempt_fields(text: str) -> dict[str, object]:
    """Parse `model=M,temperature=T,share=S,harness=H,hint=TEXT`: each field at most once, and the hint extends to the end.

    Raises `UserError` (`bad_attempt`).
    """
    fields: dict[str, object] = {}
    rest = text
    while rest:
        found = _WISH.match(rest) or _UNKNOWN.fullmatch(rest)
        if found is None or found[1] in fields:
            raise UserError(
                "bad_attempt",
                f"Write an attempt as model=M,temperature=T,share=S,harness=H,hint=TEXT, not {one_line(text, 80)!r}.",
            )
        fields[found[1]] = _number(found[2]) if found[1] in _NUMBERS else found[2]
        rest = rest[found.end() :]
    return fields


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # `read_attempts` rejects it


def repository(name: str, home: Path = _HERE) -> str:
    """Return a URL unchanged and a path made absolute from `home`. Raises `UserError` (`no_repository`)."""
    if _URL.match(name) or _SCP.match(name):
        from cloister.forge.plain_git import is_url

        is_url(name)  # raises for one that cannot be fetched
        return name
    if not name.strip():
        return current_repository()
    path = home / Path(name).expanduser()
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UserError("no_repository", f"There is no repository {name}: the path does not exist.") from None
    if path.is_file():
        raise UserError("no_repository", f"{name} is a file: give the directory of a git repository.")
    return typed(str(path))


def current_repository() -> str:
    """The repository around the current directory. Raises `UserError` (`no_repository`)."""
    here = Path.cwd()
    for place in (here, *here.parents):
        bare = place.name != ".git" and all((place / name).exists() for name in ("HEAD", "objects", "refs"))
        if bare or (place / ".git").exists():
            return typed(str(place))
    raise UserError(
        "no_repository",
        f"{here} is not inside a git repository: change to one, or name one with --repo PATH|URL, "
        "or make one: `git init && git add -A && git commit -m first`.",
    )


def _rule(text: str) -> RunRule:
    effect, _, action = typed(text).strip().partition(" ")
    match effect:
        case "allow" | "deny" | "ask" if action.strip():
            return RunRule(action.strip(), effect)
        case _:
            raise UserError(
                "bad_policy",
                "A rule is allow, deny or ask, followed by an action: --rule 'deny bash:git push*'.",
            )


def _prompt(text: str) -> str:
    if text != "-":
        return typed(text)
    # One byte more than the limit is enough to reject it.
    return sys.stdin.buffer.read(PROMPT_BYTES + 1).decode("utf-8", errors="replace")


def model_name(name: str | None, home: Path = _HERE) -> str | None:
    """Make the path of `script:FILE` absolute from `home`; other names are returned unchanged."""
    if name is None or not name.startswith(_SCRIPT):
        return name
    path = home / Path(name.removeprefix(_SCRIPT)).expanduser()
    if not path.is_file():
        raise UserError("no_script", f"There is no script {path}: give the file after script:.")
    return _SCRIPT + str(path.resolve())


# Build a template's recipe from the options of `cloister template build`. Relative paths are the caller's.


class TemplateOptions(NamedTuple):
    """The options that describe a template."""

    packages: str | None = None
    image: str | None = None
    dockerfile: str | None = None
    devcontainer: str | None = None
    repository: str | None = None
    snapshot: str | None = None
    base: str = "default"
    ref: str | None = None
    minutes: float = 30.0
    user: str | None = None
    network: bool = False
    tls: bool = True


def recipe_of(options: TemplateOptions) -> Recipe | None:
    """The recipe; None when no kind was given. Raises `UserError` (`bad_options`, `no_repository`)."""
    kinds = (
        *(options.packages, options.image, options.dockerfile),
        *(options.devcontainer, options.repository, options.snapshot),
    )
    if sum(kind is not None for kind in kinds) > 1:
        raise UserError(
            "bad_options",
            "Give one of --packages, --image, --dockerfile, --devcontainer, --repository and --snapshot.",
        )
    match kinds:
        case (str(packages), *_):
            return Packages(tuple(packages.replace(",", " ").split()))
        case (_, str(image), *_):
            return Oci(_image(image), user=options.user, tls=options.tls)
        case (_, _, str(path), *_):
            return _dockerfile(Path(path).expanduser().absolute(), options)
        case (_, _, _, str(repo), *_):
            return Devcontainer(repository(repo), ref=options.ref, network=options.network, tls=options.tls)
        case (*_, str(reference)):
            return Snapshot(reference.removeprefix(SNAPSHOT_PREFIX))
        case (*_, str(repo), _):
            return Repository(repository(repo), ref=options.ref, base=options.base, minutes=options.minutes)
        case _:
            return None


def _image(name: str) -> str:
    """Make the path of an existing file absolute; return any other name unchanged."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _dockerfile(path: Path, options: TemplateOptions) -> Dockerfile:
    folder, name = (path, "Dockerfile") if path.is_dir() else (path.parent, path.name)
    return Dockerfile(str(folder), name, network=options.network, user=options.user, tls=options.tls)


def source(recipe: Recipe) -> tuple[str, str]:
    """Kind and origin, for `template ls`."""
    match recipe:
        case Packages():
            return "packages", " ".join(recipe.packages)
        case Oci():
            return "oci", recipe.image
        case Dockerfile():
            return "dockerfile", str(Path(recipe.context) / recipe.dockerfile)
        case Devcontainer():
            return "devcontainer", recipe.repo
        case Repository():
            return "repository", f"{recipe.repo} on {recipe.base}"
        case Snapshot():
            return "snapshot", recipe.snapshot
        case Environment():
            return "environment", recipe.repo or " ".join((*recipe.packages, *recipe.steps[-1:]))


def paths(recipe: Recipe) -> tuple[str, ...]:
    """The paths in a recipe that the machine of the build must have."""
    match recipe:
        case Oci():
            return (recipe.image,)
        case Dockerfile():
            return (recipe.context,)
        case Devcontainer() | Repository():
            return (recipe.repo,)
        case Packages() | Snapshot() | Environment():
            return ()
