"""Detect the environment of a repository from its file names and manifests."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from cloister.core.repository import RepositorySettings, below, folders_of, read_settings
from cloister.core.text import one_line
from cloister.environment.api import (
    TAG,
    AptPackage,
    Line,
    Manager,
    Note,
    Plan,
    PlannedCheck,
    Registry,
    Service,
    Step,
    Toolchain,
    Used,
    Variable,
)
from cloister.environment.ecosystems import go, java, javascript, native, others, php, python, ruby, rust
from cloister.environment.hints import SERVICES, Hints, Unstarted
from cloister.environment.listing import Files, Listing, Project
from cloister.feedback.discover import deep_projects, discover, nested_projects

_ECOSYSTEMS: tuple[Callable[[Project, Hints], Iterator[Line]], ...] = (
    *(
        python.plan,
        javascript.plan,
        go.plan,
        rust.plan,
        java.plan,
        native.plan,
        ruby.plan,
        php.plan,
        others.plan,
    ),
)

_COVERS: dict[str, Callable[[Project, bool], bool]] = {
    "python": python.covers,
    "node": javascript.covers,
    "go": go.covers,
}
"""Whether set-up of the root also prepares the projects below it; of other languages it does."""

_NESTED = 12
_LOCKS = (
    *("package-lock.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "go.sum", "Cargo.lock"),
    *("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "requirements.txt", "Gemfile.lock"),
    *("composer.lock",),
)

T = TypeVar("T")


def detect(listing: Listing) -> Plan:
    """The environment that the repository's checks need. Never raises: what cannot be read becomes a note."""
    files = Files(listing)
    hints = Hints(files)
    parts = [list(ecosystem(Project(files), hints)) for ecosystem in _ECOSYSTEMS]
    lines = [line for part in parts for line in part]
    manifests = [part for part in parts if any(isinstance(line, Used) for line in part)]
    have = {line.name for part in manifests for line in part if isinstance(line, Toolchain)}
    checks = discover(files.names, listing.texts)
    # The root only says how its tests run, and they import the projects below.
    python_below = "python" in have and not python.covers(Project(files), False)
    folders = folders_of(files.names)
    for home in dict.fromkeys((*folders, *nested_projects(files.names)[:_NESTED])):
        project = Project(files, home)
        tested = home in folders or any(check.startswith(f"cd {home} ") for check in checks)
        covered = {name for name in have if name not in _COVERS or _COVERS[name](Project(files), tested)}
        if not tested and not project.first(*_LOCKS) and not (python_below and python.is_installed(project)):
            continue  # it accompanies the product: no check runs there, and no one pins its dependencies
        found = [list(ecosystem(project, hints)) for ecosystem in _ECOSYSTEMS]
        if home in folders:
            lines += _of_folder(found, read_settings(below(home, listing.texts)), home)
            continue
        lines += [line for part in found if not _covered(part, covered) for line in part]
    lines += hints.lines()
    lines += [PlannedCheck(check, _why(check)) for check in checks]
    lines += _deep(files, bool(have))
    if listing.left_out:
        lines.append(Note(f"{listing.left_out:,} files far from the root are not considered"))
    own = read_settings(listing.texts)
    if own.services is not None:
        lines = [line for line in lines if not isinstance(line, Unstarted)]
    return _startable(_overridden(_joined(lines, files), own, files))


def _deep(files: Files, rooted: bool) -> Iterator[Note]:
    """Projects too deep to be set up. Below a root with a manifest, those without a lock file only accompany it."""
    found = [home for home in deep_projects(files.names) if not rooted or Project(files, home).first(*_LOCKS)]
    if found:
        more = f" and {len(found) - 1:,} more" if found[1:] else ""
        yield Note(
            f"{one_line(found[0], 80)}{more} is too deep to be set up: name `setup` and `checks` in the settings"
        )


def _of_folder(found: list[list[Line]], own: RepositorySettings, folder: str) -> list[Line]:
    """What one of several repositories needs, with its own settings in place of what is detected."""
    lines = [line for part in found for line in part]
    if own.setup is not None:
        why = f"setup in {folder}/{own.source('setup')}"
        lines = [line for line in lines if not isinstance(line, Step) or line.stage == "tools"]
        given = () if own.setup == "off" else own.setup
        lines += [Step(f"cd {shlex.quote(folder)} && {line}", why) for line in given]
    why = f"packages in {folder}/{own.source('packages')}"
    lines += [AptPackage(name, why) for name in own.packages or ()]
    for one in own.services or ():
        name, port = SERVICES.get(one.name, (one.name, 0))
        where = f"services in {folder}/{own.source('services')}"
        command = f"cd {shlex.quote(folder)} && {one.command}" if one.command else ""
        lines.append(Service(name, where, one.version, one.port or port, one.env, command))
    lines += [
        Variable(name, value, f"env in {folder}/{own.source('env')}") for name, value in own.env.items()
    ]
    lines += [Used(f"{folder}/{name}") for name in set(own.files.values())]
    return [*lines, *(Note(f"{folder}: {problem}") for problem in own.problems)]


def _overridden(plan: Plan, own: RepositorySettings, files: Files) -> Plan:
    """Replace what the repository's settings name."""
    changes: dict[str, object] = {"notes": (*own.problems, *plan.notes), "template": own.template}
    if own.setup is not None:
        why = f"setup in {own.source('setup')}"
        tools = [step for step in plan.steps if step.stage == "tools" and own.setup != "off"]
        changes["steps"] = (*tools, *(Step(line, why) for line in own.setup if own.setup != "off"))
    if own.packages is not None:
        why = f"packages in {own.source('packages')}"
        changes["apt"] = tuple(AptPackage(name, why) for name in own.packages)
        if own.packages and all(one.set != "@debian" for one in plan.registries):
            changes["registries"] = (*plan.registries, Registry("@debian", why))
    if own.services is not None:
        why = f"services in {own.source('services')}"
        known = {one.name: SERVICES.get(one.name, (one.name, 0)) for one in own.services}
        changes["services"] = tuple(
            Service(
                known[one.name][0], why, one.version, one.port or known[one.name][1], one.env, one.command
            )
            for one in own.services
        )
    if own.checks:
        why = f"checks in {own.source('checks')}"
        changes["checks"] = tuple(PlannedCheck(one.command, why) for one in own.checks)
    if own.env:
        why = f"env in {own.source('env')}"
        rest = [one for one in plan.env if one.name not in own.env]
        changes["env"] = (*rest, *(Variable(name, value, why) for name, value in own.env.items()))
    if used := set(own.files.values()):
        changes["files"] = tuple(sorted({*plan.files, *used & files.names}))
    return msgspec.structs.replace(plan, **changes)


def _startable(plan: Plan) -> Plan:
    """The plan without services that nothing here starts; a note names each."""
    there = {name for name, _ in SERVICES.values()}
    kept = tuple(one for one in plan.services if one.command or one.name in there)
    notes = (
        f"there is no service {one.name} here ({one.why}): give it a `command` and a `port`"
        for one in plan.services
        if one not in kept
    )
    return msgspec.structs.replace(plan, services=kept, notes=(*plan.notes, *notes))


def _covered(part: list[Line], have: set[str]) -> bool:
    return any(isinstance(line, Toolchain) and line.name in have for line in part)


def _why(check: str) -> str:
    words = re.sub(r"^cd \S+ && ", "", check)
    return f"the repository's {words.split()[0]} suite" if words.split() else "the repository names it"


def _joined(lines: list[Line], files: Files) -> Plan:
    """Sort the lines into a plan; the first of several with the same meaning stays."""

    def of(kind: type[T], key: Callable[[T], object]) -> tuple[T, ...]:
        found: dict[object, T] = {}
        for line in lines:
            if isinstance(line, kind):
                found.setdefault(key(line), line)
        return tuple(found.values())

    steps = of(Step, lambda step: (step.command, step.cwd))
    problems = [line.problem for line in lines if isinstance(line, Toolchain) and line.problem]
    notes = [line.text for line in lines if isinstance(line, Note)]
    return Plan(
        toolchains=of(Toolchain, lambda line: line.name),
        managers=of(Manager, lambda line: line.name),
        apt=of(AptPackage, lambda line: line.name),
        registries=_registries(lines, of(Registry, lambda line: line.set)),
        # What reads no file comes first, so that repositories share it.
        steps=tuple(sorted(steps, key=lambda step: step.stage != "tools")),
        services=of(Service, lambda line: line.name),
        checks=of(PlannedCheck, lambda line: line.command),
        env=_variables(of(Variable, lambda line: (line.name, line.value))),
        files=tuple(sorted({line.file for line in lines if isinstance(line, Used)} & files.names)),
        notes=tuple(dict.fromkeys((*problems, *notes, *files.notes))),
    )


def with_version(plan: Plan, version: str) -> Plan:
    """The plan with the version that the nearest tag names; empty if there is none."""
    env = (msgspec.structs.replace(one, value=version) if one.value == TAG else one for one in plan.env)
    return msgspec.structs.replace(plan, env=tuple(one for one in env if one.value))


def with_programs(plan: Plan, packages: Sequence[str], why: str) -> Plan:
    """The plan with programs from npm, which change nothing for the repository's own tools and checks."""
    lines = [*plan.registries, *plan.steps, *javascript.programs(packages, why)]
    more = _joined(lines, Files(Listing(())))
    return msgspec.structs.replace(plan, registries=more.registries, steps=more.steps)


def _registries(lines: list[Line], found: tuple[Registry, ...]) -> tuple[Registry, ...]:
    packages = [line for line in lines if isinstance(line, AptPackage)]
    if packages and all(line.set != "@debian" for line in found):
        return (*found, Registry("@debian", f"{packages[0].name}: {packages[0].why}"))
    return found


def _variables(found: tuple[Variable, ...]) -> tuple[Variable, ...]:
    """One PATH of all its parts; of other variables the first."""
    paths = [line for line in found if line.name == "PATH"]
    others = {line.name: line for line in reversed(found) if line.name != "PATH"}
    if not paths:
        return tuple(others.values())
    # The last one is the innermost: the environment of the project before the tools.
    parts = list(dict.fromkeys(line.value.removesuffix(":$PATH") for line in reversed(paths)))
    why = "; ".join(dict.fromkeys(line.why for line in paths))
    return (Variable("PATH", ":".join((*parts, "$PATH")), why), *others.values())
