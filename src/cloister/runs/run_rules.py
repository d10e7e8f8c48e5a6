"""The layers of rules above a run: where they are written, and the limits they set. Read again for every run."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

import msgspec

from cloister.core.addresses import canonical_glob, repository_names
from cloister.core.attempts import parse_search, wishes
from cloister.core.computer import WORK_DIR
from cloister.core.errors import UserError
from cloister.core.requests import Budget, NewRun, Quota, Role, RunRule, Usage
from cloister.core.system import in_thread
from cloister.core.text import one_line
from cloister.forge.plain_git import find_checkout, is_url
from cloister.forge.read import read_file, touched
from cloister.forge.several import folders
from cloister.model.api import Model, Models
from cloister.model.api import Role as ModelRole
from cloister.policy.api import (
    Action,
    ConnectAction,
    HarnessAction,
    Layer,
    LimitName,
    ModelAction,
    Pointed,
    Policy,
    Rule,
    TierAction,
)
from cloister.policy.decide import Decider, PathRules
from cloister.policy.file import FILE_BYTES, Author, read_policy
from cloister.policy.layers import BUILT_IN, capped, layer
from cloister.policy.pattern import (
    PATH_TOOLS,
    ToolPattern,
    path_glob,
    read_pattern,
    text_matches,
)

REPOSITORY_FILE = ".cloister/policy.toml"
"""Read from the base commit: a run cannot change its own rules."""

_PATHS_SHOWN = 5
_Item = TypeVar("_Item", Rule, Pointed)
_LIMITS: tuple[LimitName, ...] = get_args(LimitName)


def run_layer(request: NewRun) -> Layer:
    """The rules of a request. Raises `UserError` (`bad_policy`)."""
    opened = [RunRule(f"connect:{host}", "allow") for host in request.allow_hosts]
    own = layer("run", (*opened, *request.rules), "the run's request", may_widen=True)
    return placed(own, [part.folder for part in parts_of(request)])


class Part(NamedTuple):
    """One of several repositories of a run."""

    folder: str
    repo: str


def parts_of(request: NewRun) -> tuple[Part, ...]:
    """Each of several repositories; none for a run on one."""
    repos = [one.repo for one in request.repositories]
    return tuple(map(Part, folders(repos), repos)) if request.also else ()


def check_role(above: Policy, request: NewRun, role: Role) -> None:
    """Raises `UserError` (`denied`) if a caller who is no admin opens hosts without a delegation."""
    opens = request.allow_hosts or any(rule.effect != "deny" for rule in request.rules)
    if opens and role != "admin" and all(layer.delegate is None for layer in above):
        raise UserError(
            "denied",
            "Only an admin may open hosts or allow actions here: no policy delegates that to runs.",
        )


@dataclass(frozen=True, slots=True)
class RuleFiles:
    """Where the layers above a repository are written."""

    organisation: Path
    organisation_required: bool
    """True if the settings name it: then it must exist."""
    host: Layer
    projects: tuple[tuple[str, Path], ...] = ()
    """Globs over repositories → policy file."""

    def above(self, repo: str | None, parts: Sequence[Part] = ()) -> Policy:
        """The layers above `repo` (None: above all), or above all `parts`. Blocks briefly.

        Rules about paths mean the paths of each repository. Raises `UserError` (`bad_policy`).
        """
        layers = [BUILT_IN]
        if self.organisation_required or _there(self.organisation):
            layers.append(_read("organisation", self.organisation))
        if self.host.rules:
            layers.append(self.host)
        layers = [placed(one, [part.folder for part in parts]) for one in layers]
        places = parts or ((Part("", repo),) if repo is not None else ())
        named = [(part, _names(part.repo)) for part in places] if self.projects else []
        for glob, path in self.projects:
            within = [
                part.folder
                for part, names in named
                if any(text_matches(canonical_glob(glob), name) for name in names)
            ]
            if within:
                own = placed(_read("project", path), within, also_root=not parts)
                # SAFETY: the repositories share one sandbox, so what a project opens would be open to the others.
                layers.append(own if len(within) == len(places) else _narrowing(own))
        return tuple(layers)


@dataclass(frozen=True, slots=True)
class Governed:
    """A run within the limits of the layers above it and of its repository."""

    policy: Policy
    """Without the run's own layer."""
    request: NewRun
    """Within the limits."""
    quota: Quota
    layers: tuple[str, ...]
    limited: tuple[str, ...]


async def govern(files: RuleFiles, request: NewRun, quota: Quota, bare: Path, commit: str) -> Governed:
    """The rules for a run on `commit`, which `bare` holds. Raises `UserError` (`bad_policy`, `file_too_large`)."""
    parts = parts_of(request)
    above = await in_thread(files.above, request.repo, parts)
    named = [each.name if each.name == "built-in" else f"{each.name} ({_file_of(each)})" for each in above]
    for folder in [part.folder for part in parts] or [""]:
        path = f"{folder}/{REPOSITORY_FILE}" if folder else REPOSITORY_FILE
        written = await read_file(bare, commit, path)
        if written is not None:
            name = f"{path}@{commit[:12]}"
            own = read_policy("repository", written, name).layer
            above = (*above, placed(own, [folder], also_root=not parts))
            named.append(f"repository ({name})")
    budget = request.budget
    given, limited = capped(above, _wanted(request, quota))
    request = _with_attempts(request, int(given["attempts"] or 1))
    request = msgspec.structs.replace(request, budget=_fitted(budget, given))
    return Governed(above, request, _fitted(quota, given), tuple(named), limited)


def placed(rules: Layer, within: Sequence[str], *, also_root: bool = True) -> Layer:
    """The layer with its rules about paths of a repository for each folder of `within`, where repositories are."""
    names = [folder for folder in within if folder]
    if not names:
        return rules

    def spread(listed: Sequence[_Item]) -> tuple[_Item, ...]:
        found: list[_Item] = []
        for one in listed:
            path = _path_of(one.action)
            if path is None or also_root:
                found.append(one)
            if path is not None:
                tool, glob = path
                actions = [f"tool:{tool}:{folder}/{glob}" for folder in names]
                found += [msgspec.structs.replace(one, action=action) for action in actions]
        return tuple(found)

    return msgspec.structs.replace(
        rules,
        rules=spread(rules.rules),
        delegate=None if rules.delegate is None else spread(rules.delegate),
        only=spread(rules.only),
        high_impact=spread(rules.high_impact),
        approve=None if rules.approve is None else spread(rules.approve),
    )


def _narrowing(rules: Layer) -> Layer:
    """The layer without what it opens or delegates."""
    return msgspec.structs.replace(rules, may_widen=False, delegate=None)


def _path_of(action: str) -> tuple[str, str] | None:
    """The tool, and the glob below the work directory, of a pattern about the paths of a repository."""
    pattern = read_pattern(action)
    if not isinstance(pattern, ToolPattern) or pattern.glob is None:
        return None
    inside, _, below = path_glob(pattern.glob).partition(f"{WORK_DIR}/")
    about_paths = pattern.tool in PATH_TOOLS or "*" in pattern.tool
    return (pattern.tool, below) if about_paths and not inside and below else None


async def check_change(policy: Policy, bare: Path, base: str, tree: str) -> None:
    """Raises `UserError` (`denied`) if `tree` differs from `base` in a path that a `write:` or `edit:` rule denies.

    The save point, the end of an attempt and the delivery call it. It reads the trees of git, so that it does not
    matter which program made the change, nor through which link.
    """
    rules = PathRules(policy)
    if not rules:
        return
    denied: dict[str, str] = {}
    for one in await touched(bare, base, tree):
        rule = rules.denies(one.name, holder=one.holder)
        if rule is not None:
            denied.setdefault(one.path, rule if one.name == one.path else f"{rule}, as {one_line(one.name)}")
    if denied:
        shown = [f"{one_line(path)} ({rule})" for path, rule in list(denied.items())[:_PATHS_SHOWN]]
        more = f" and {len(denied) - len(shown)} more" if len(denied) > len(shown) else ""
        raise UserError(
            "denied",
            f"The change is not saved, because the rules deny it for {', '.join(shown)}{more}: undo it there, as with "
            f"`git checkout refs/cloister/base -- PATH`, and delete what is new there.",
        )


def every_name(models: Models) -> tuple[str, ...]:
    """Every model that a run may call, in any role."""
    return tuple(dict.fromkeys(name for role in get_args(ModelRole) for name in models.chain(role)))


def reachable(policy: Policy) -> Callable[[str, int], bool]:
    """Whether the rules let a host be reached at a port."""
    decider = Decider(policy)
    return lambda host, port: decider.decide(ConnectAction(host, port)).effect == "allow"


def check_allowed(
    policy: Policy, *, tier: str | None = None, models: Iterable[str] = (), harnesses: Iterable[str] = ()
) -> None:
    """Raises `UserError` (`denied`) if the rules deny this tier, one of these models or one of these harnesses."""
    check_decided(Decider(policy), tier=tier, models=models, harnesses=harnesses)


def check_decided(
    decider: Decider, *, tier: str | None = None, models: Iterable[str] = (), harnesses: Iterable[str] = ()
) -> None:
    """As `check_allowed`, with a prepared decider."""
    asked: list[tuple[str, Action]] = []
    if tier is not None and tier != "auto":
        asked.append((f"the tier {tier}", TierAction(tier)))
    asked += [(f"the model {one_line(name, 100)}", ModelAction(name)) for name in models]
    asked += [(f"the harness {one_line(name, 100)}", HarnessAction(name)) for name in harnesses]
    for what, action in asked:
        decision = decider.decide(action)
        if decision.effect == "ask":
            raise UserError("denied", f"A run cannot wait for a person to allow {what}: {decision.rule}.")
        if decision.effect == "deny":
            raise UserError("denied", f"A run may not have {what}: {decision.rule}.")


def _attempts(request: NewRun) -> int:
    """How many attempts may work at a time."""
    search = parse_search(request.search or "")
    return max(len(wishes(request)), search.width if search else 1)


def _with_attempts(request: NewRun, most: int) -> NewRun:
    """`request` with at most `most` attempts."""
    search = parse_search(request.search or "")
    beam = None if search is None or search.width <= most else f"beam:{most}"
    return msgspec.structs.replace(
        request,
        n=min(len(wishes(request)), most),
        attempts=request.attempts[:most],
        search=beam or request.search,
    )


def _wanted(request: NewRun, quota: Quota) -> dict[LimitName, float | None]:
    records = (request.budget, quota)
    found: dict[LimitName, float | None] = {"attempts": _attempts(request)}
    for name in _LIMITS:
        for record in records:
            if name in record.__struct_fields__:
                found[name] = getattr(record, name)
    return found


_Record = TypeVar("_Record", Budget, Quota)


def _fitted(record: _Record, given: Mapping[LimitName, float | None]) -> _Record:
    """`record` with the given numbers, each in its own type."""
    values: dict[str, float] = {}
    for name, most in given.items():
        if name in record.__struct_fields__ and most is not None:
            values[name] = int(most) if isinstance(getattr(record, name), int) else most
    return msgspec.structs.replace(record, **values)


def _there(path: Path) -> bool:
    """True if the file exists. An unreadable one counts as existing and is not skipped."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _read(author: Author, path: Path) -> Layer:
    return read_policy(author, read_bounded(path), str(path)).layer


def read_bounded(path: Path) -> bytes:
    """The bytes of a policy file, up to its limit. Raises `UserError` (`bad_policy`)."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES + 1)
    except OSError as error:
        raise UserError("bad_policy", f"The policy {path} cannot be read: {error.strerror}.") from None


def _file_of(layer: Layer) -> str:
    pieces: Iterable[str] = (
        item.source
        for group in (layer.rules, layer.delegate or (), layer.only, layer.high_impact, layer.caps)
        for item in group
    )
    first = next(iter(pieces), "empty")
    return re.sub(r"(:\d+|, rule \d+)$", "", first)


def _names(repo: str) -> tuple[str, ...]:
    """The names that a project's glob is matched with: a URL in its canonical forms, a directory by its full path."""
    try:
        return repository_names(repo) if is_url(repo) else (str(find_checkout(repo).top),)
    except UserError:
        return repository_names(repo)


class AllowedModels:
    """`Models` without those that the rules deny, whether settings, an attempt or a person names them."""

    def __init__(self, models: Models, policy: Policy) -> None:
        self._models = models
        self._policy = policy
        self._decider = Decider(policy)

    def role(self, role: ModelRole) -> Model:
        names = self._models.chain(role)
        return self.named(names[0]) if names else self._models.role(role)

    def chain(self, role: ModelRole) -> tuple[str, ...]:
        return self._models.chain(role)

    def named(self, name: str) -> Model:
        """Also raises `UserError` (`denied`)."""
        check_decided(self._decider, models=(name,))
        found = self._models.named(name)
        # The real name of a model that a server chooses is known only after opening it.
        check_decided(self._decider, models=(found.name,))
        return found

    def window(self, name: str) -> int | None:
        return self._models.window(name)

    def cost(self, name: str, usage: Usage) -> float | None:
        return self._models.cost(name, usage)

    def instead(self, name: str) -> "AllowedModels":
        check_decided(self._decider, models=(name,))
        return AllowedModels(self._models.instead(name), self._policy)
