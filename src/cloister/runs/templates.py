"""Builds templates of every kind; those of a repository or a snapshot from the files of a sandbox.

Nothing of a repository runs on this machine: its setup runs in a sandbox from another template, with the
network rules of any sandbox made by hand.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shutil
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import msgspec
from anyio.abc import ByteStream

from cloister.agent.evidence.run_checks import find_checks, run_on_base
from cloister.core.addresses import canonical_repository
from cloister.core.computer import Command, Computer, Stream, shell
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.ids import SandboxId
from cloister.core.repository import FILES, read_settings
from cloister.core.requests import NewRun, Quota
from cloister.core.text import decode, one_line
from cloister.environment.installers import Refused, explain
from cloister.forge import Forges, read, workspace
from cloister.forge.api import Base
from cloister.forge.plain_git import find_checkout, is_url
from cloister.sandbox.api import SNAPSHOT_PREFIX, Door, Host, Report, Sandbox, SandboxSpec, keep
from cloister.sandbox.providers import which
from cloister.sandbox.templates import root
from cloister.sandbox.templates.building import About, Build, Built
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.oci import Jail, registry_name
from cloister.sandbox.templates.recipes import (
    Devcontainer,
    Dockerfile,
    Environment,
    Oci,
    Packages,
    Recipe,
    Repository,
    Snapshot,
    credentials_of,
    with_stand_ins,
)

if TYPE_CHECKING:
    from cloister.runs.images.image_build import BuildLimits

logger = logging.getLogger(__name__)

_TTL_SECONDS = 7_200.0
_STEP_SECONDS = 1_800.0
IMAGE = "-image"
"""Ending of the name of the template that a devcontainer's image becomes."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """Builds templates."""

    templates: Templates
    host: Host
    forges: Forges
    door: Door | None
    quota: Quota
    repositories: Path
    """Where the repositories of templates are fetched to."""
    bounds: BuildLimits | None = None
    credentials: frozenset[str] = frozenset()
    """Names that recipes may refer to."""
    refused: deque[Refused] = field(default_factory=deque[Refused])
    """The newest connections that the proxy denied to sandboxes of no run."""

    async def prepare(self, name: str, report: Report, *, again: bool = False, strict: bool = False) -> Built:
        """Build `name` if it is missing, or `again`. Raises as `Templates.prepare` and the forge.

        Unless `strict`, a build of an older recipe is used when the recipe cannot be built.
        """
        recipe = self.templates.recipe(name)
        try:
            if again or self.templates.current(name) is None:
                await self._build(name, recipe, report, again=again)
        except (UserError, HostError) as error:
            before = None if again or strict else self.templates.built(name)
            if before is None:
                raise
            logger.warning("the template %s is an older one: %s", name, error.message)
            report(None, f"the recipe of {name} cannot be built; using what was built before")
            return before
        await self.host.prepare(name, report)
        built = self.templates.built(name)
        if built is None:
            raise UserError("unknown_template", f"The template {name} was removed just now.")
        return built

    async def _build(self, name: str, recipe: Recipe, report: Report, *, again: bool) -> None:
        self._check_credentials(recipe)
        match recipe:
            case Repository():
                await self._repository(name, recipe, report, again=again)
            case Devcontainer():
                await self._devcontainer(name, recipe, report, again=again)
            case Snapshot():
                await self._snapshot(name, recipe, report, again=again)
            case Oci() | Dockerfile():
                await self._image(name, recipe, report, again=again)
            case Packages():
                await self.templates.prepare(name, report, again=again)
            case Environment():
                raise UserError(
                    "bad_template",
                    f"{name} is an environment, which set-up builds: run `cloister env build` in its repository.",
                )

    def _check_credentials(self, recipe: Recipe) -> None:
        if unknown := sorted(credentials_of(recipe) - self.credentials):
            raise UserError(
                "unknown_credential",
                f"The recipe refers to the credential {unknown[0]}: add a [[credential]] of this name to the settings.",
            )

    async def fetch(self, name: str, recipe: Repository | Devcontainer) -> Base:
        """Fetch the repository of a template."""
        self.repositories.mkdir(parents=True, exist_ok=True, mode=0o700)
        return await self.forges.bring(recipe.repo, recipe.ref, self.bare(name))

    def bare(self, name: str) -> Path:
        return self.repositories / f"{name}.git"

    async def _image(
        self, name: str, recipe: Oci | Dockerfile, report: Report, *, again: bool, trusted: bool = True
    ) -> None:
        from cloister.runs.images import image_build  # noqa: PLC0415  (few templates need it, and it takes long to load)

        recipe = with_stand_ins(recipe)
        bounds = self.bounds or image_build.BuildLimits()

        def opened(template: str, network: bool) -> AbstractAsyncContextManager[Sandbox]:
            spec = SandboxSpec(template=template, quota=self.quota, ttl_seconds=_TTL_SECONDS)
            return self.host.open(spec, self.door if network else _closed)

        async def make(work: Build) -> About:
            jail = await Jail.prepare(self.templates.directory.parent, work.path)
            try:
                with anyio.fail_after(bounds.seconds):
                    async with work.watching_disk():
                        if isinstance(recipe, Oci):
                            return await image_build.ImageBuilder(work, opened, jail, bounds, trusted).image(
                                recipe
                            )
                        return await image_build.DockerfileBuilder(
                            work, opened, jail, bounds, trusted, recipe, self.host
                        ).build()
            except TimeoutError:
                raise HostError(
                    "template_failed",
                    f"The template {name} could not be built: it took more than {bounds.seconds:g} s.",
                ) from None

        await self.templates.build(name, make, report, again=again)

    async def _repository(self, name: str, recipe: Repository, report: Report, *, again: bool) -> None:
        if isinstance(self.templates.recipe(recipe.base), Repository):
            raise UserError("bad_template", f"{recipe.base} holds a repository: choose another base.")
        await self.prepare(recipe.base, report)

        async def make(work: Build) -> About:
            base = await self.fetch(name, recipe)
            below = self.templates.built(recipe.base)
            if below is None or not below.about.git:
                raise UserError("no_git", f"The template {recipe.base} has no git: choose another base.")
            setup = await setup_lines(self.bare(name), base.commit)
            async with self._opened(recipe.base) as sandbox:
                work.tell(0.1, f"cloning {base.commit[:7]}")
                await workspace.put(sandbox, self.bare(name), base.commit)
                for number, line in enumerate(setup):
                    work.tell(0.2 + 0.4 * number / len(setup), one_line(line, 80))
                    await self._step(work, sandbox, shell(line, seconds=_STEP_SECONDS), line)
                checks = await find_checks(sandbox)

                def show(check: str, stream: Stream, data: bytes) -> None:
                    work.note(decode(data).rstrip("\n"))

                work.tell(0.6, f"running {len(checks)} checks")
                baseline = await run_on_base(sandbox, checks, "warm", show)
                await workspace.disown(sandbox)
                work.tell(0.9, "keeping the files")
                await keep(sandbox, work.rootfs)
            return msgspec.structs.replace(
                below.about,
                kind="repository",
                commit=base.commit,
                base=below.home.name,
                checks=checks,
                baseline=baseline,
            )

        await self.templates.build(name, make, report, again=again)

    async def _devcontainer(self, name: str, recipe: Devcontainer, report: Report, *, again: bool) -> None:
        base = await self.fetch(name, recipe)
        wanted = await self._wanted(name, base)
        image = f"{name}{IMAGE}"
        context = self.repositories / f"{name}.context"
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(context, ignore_errors=True))
        if wanted.dockerfile is not None:
            await read.export(self.bare(name), base.commit, context)
        try:
            made = _image_recipe(recipe, wanted, context)
            self._check_credentials(made)
            self.templates.keep_recipe(image, made)
            await self._image(image, made, report, again=again, trusted=False)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(context, ignore_errors=True))
        below = self.templates.built(image)
        if below is None:
            raise UserError("unknown_template", f"The template {image} was removed just now.")
        env = {**below.about.env, **wanted.env_over(below.about.env)}

        async def make(work: Build) -> About:
            async with self._opened(image, env) as sandbox:
                if below.about.git:
                    work.tell(0.1, f"cloning {base.commit[:7]}")
                    await workspace.put(sandbox, self.bare(name), base.commit)
                elif wanted.steps or wanted.features:
                    raise UserError(
                        "no_git", "The image has no git, so the repository cannot be cloned into it."
                    )
                for feature in wanted.features:
                    work.tell(0.3, f"feature {feature.directory}")
                    await self._step(work, sandbox, _install(feature, below.about.home), feature.directory)
                for step in wanted.steps:
                    work.tell(0.5, step.name)
                    await self._step(work, sandbox, _step_command(step, bash=below.about.bash), step.name)
                if below.about.git:
                    await workspace.disown(sandbox)
                work.tell(0.9, "keeping the files")
                await keep(sandbox, work.rootfs)
            return msgspec.structs.replace(
                below.about, kind="devcontainer", env=env, commit=base.commit, base=below.home.name
            )

        await self.templates.build(name, make, report, again=again)

    async def _step(self, work: Build, sandbox: Sandbox, command: Command, name: str) -> None:
        """As `run_step`; the error names what the proxy denied meanwhile."""
        began = time.monotonic()
        try:
            await run_step(work, sandbox, command, name)
        except UserError as error:
            mine = [one.what for one in self.refused if one.sandbox == sandbox.info.id and one.at >= began]
            if told := explain(command.argv[-1], mine, place="in a policy file of this machine with"):
                raise UserError(error.code, f"{error.message}. {told}") from None
            raise

    async def _snapshot(self, name: str, recipe: Snapshot, report: Report, *, again: bool) -> None:
        async def make(work: Build) -> About:
            work.tell(0.1, f"opening the snapshot {one_line(recipe.snapshot, 60)}")
            kept = which(recipe.snapshot, await self.host.snapshots())
            async with self._opened(f"{SNAPSHOT_PREFIX}{kept.id}") as sandbox:
                work.tell(0.3, f"keeping the files, {kept.size_bytes / 1e6:,.0f} MB over {kept.template}")
                await keep(sandbox, work.rootfs)
            about = self._about(kept.template)
            git, bash = (root.has(work.rootfs, program) for program in ("git", "bash"))
            return About(
                kind="snapshot",
                env={**about.env, **with_stand_ins(recipe).env},
                home=about.home,
                git=git,
                bash=bash,
                base=kept.id,
            )

        await self.templates.build(name, make, report, again=again)

    def _about(self, template: str) -> About:
        """The description of a template, which may have been removed."""
        try:
            below = self.templates.built(template)
        except UserError:
            below = None
        return below.about if below else About()

    async def _wanted(self, name: str, base: Base) -> Wanted:
        for place in PLACES:
            data = await read.read_file(self.bare(name), base.commit, place)
            if data is not None:
                return parse_devcontainer(decode(data), place)
        raise UserError("no_devcontainer", f"The repository has no {' and no '.join(PLACES)}.")

    def _opened(
        self, template: str, env: dict[str, str] | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        spec = SandboxSpec(template=template, quota=self.quota, ttl_seconds=_TTL_SECONDS, env=env or {})
        return self.host.open(spec, self.door)


async def _closed(_sandbox: SandboxId, _stream: ByteStream) -> None:
    """A `Door` that leads nowhere."""


async def forget(templates: Templates, repositories: Path, name: str) -> int:
    """Remove a template and its fetched repository; return the number of builds. Raises as `remove`."""
    recipe = templates.recipe(name)
    count = await templates.remove(name)
    if isinstance(recipe, Devcontainer) and f"{name}{IMAGE}" in templates.names():
        count += await templates.remove(f"{name}{IMAGE}")
    bare = repositories / f"{name}.git"
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(bare, ignore_errors=True))
    return count


def _image_recipe(recipe: Devcontainer, wanted: Wanted, context: Path) -> Oci | Dockerfile:
    if wanted.dockerfile is None:
        return Oci(registry_name(wanted.image or ""), user=wanted.user, tls=recipe.tls)
    inside = context / wanted.context
    dockerfile = posixpath.relpath(wanted.dockerfile, wanted.context)
    # SAFETY: a link in the repository must not make a directory of this machine the build context.
    if not inside.resolve().is_relative_to(context.resolve()) or dockerfile.startswith("../"):
        raise UserError("bad_devcontainer", "The devcontainer's Dockerfile must be inside its context.")
    return Dockerfile(
        context=str(inside),
        dockerfile=dockerfile,
        target=wanted.target,
        args=wanted.args,
        network=recipe.network,
        user=wanted.user,
        tls=recipe.tls,
    )


async def setup_lines(bare: Path, commit: str) -> tuple[str, ...]:
    """`setup` of the repository's own settings. Raises `UserError` (`bad_setup`)."""
    texts = {name: decode(await read.read_file(bare, commit, name) or b"") for name in FILES}
    own = read_settings(texts)
    if own.problems:
        raise UserError("bad_setup", f"The settings of the repository cannot be used: {own.problems[0]}.")
    return own.setup if isinstance(own.setup, tuple) else ()


def _install(feature: Feature, home: str) -> Command:
    env = {"_REMOTE_USER": "agent", "_REMOTE_USER_HOME": home, **feature.env}
    directory = f"{WORKSPACE}/{feature.directory}"
    return Command(("/bin/sh", "./install.sh"), cwd=directory, env=env, user="root", seconds=_STEP_SECONDS)


def _step_command(step: Step, *, bash: bool) -> Command:
    if isinstance(step.command, tuple):
        return Command(step.command, seconds=_STEP_SECONDS)
    return Command(("/bin/bash" if bash else "/bin/sh", "-c", step.command), seconds=_STEP_SECONDS)


async def run_step(work: Build, computer: Computer, command: Command, name: str) -> None:
    """Run a command with its output in the build's log. Raises `UserError` (`setup_failed`) if it fails."""
    if why := await work.run_inside(computer, command):
        log = f"`cloister template log {work.name}`"
        raise UserError("setup_failed", f"`{one_line(name, 80)}` failed {why} ({log})")


# Warmed templates.

_LOOK_SECONDS = 60.0
"""How often to look for new commits."""


def same_repository(one: str, other: str) -> bool:
    """True if two addresses name one repository. Blocks briefly."""
    if one == other:
        return True
    try:
        if is_url(one) or is_url(other):
            return is_url(one) and is_url(other) and canonical_repository(one) == canonical_repository(other)
        return find_checkout(one).top == find_checkout(other).top
    except UserError:
        return False


def known_baseline(
    built: Built, commit: str, checks: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Diagnosis, ...]] | None:
    """The checks and their result on `commit`, if the template was warmed with exactly these."""
    about = built.about
    if about.kind not in ("repository", "environment") or about.commit != commit or not about.baseline:
        return None
    if checks and checks != about.checks:
        return None
    return about.checks, about.baseline


@dataclass(slots=True)
class Warming:
    """The warmed templates of one data directory."""

    workshop: Workshop
    look_seconds: float = _LOOK_SECONDS
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    """Template → time and commit of its last failed build."""

    async def choose(self, request: NewRun) -> str:
        """The template of a run: a warmed one of its repository if one is ready, else the one it names."""

        def find() -> str:
            for name, recipe in self._recipes():
                if recipe.base != request.template or not same_repository(recipe.repo, request.repo):
                    continue
                if self.workshop.templates.current(name) is not None:
                    return name
            return request.template

        return await anyio.to_thread.run_sync(find)

    async def keep_warm(self) -> None:
        """Never returns: build templates that are missing, too old, or behind their repository."""
        while True:
            for name, recipe in self._recipes():
                try:
                    await self.refresh(name, recipe)
                except CloisterError as error:
                    logger.warning("the template %s was not warmed: %s", name, error.message)
                except Exception:
                    logger.exception("the template %s was not warmed", name)
            await anyio.sleep(self.look_seconds)

    async def refresh(self, name: str, recipe: Repository) -> bool:
        """Build the template again if it is due; return True if it was."""
        base = await self.workshop.fetch(name, recipe)
        tried = self._failed.get(name)
        if tried and tried[1] == base.commit and time.time() - tried[0] < 60 * recipe.minutes:
            return False
        if not self._is_due(name, recipe, base.commit):
            return False
        try:
            await self.workshop.prepare(name, _log_progress, again=True)
        except Exception:
            self._failed[name] = (time.time(), base.commit)
            raise
        self._failed.pop(name, None)
        return True

    def _is_due(self, name: str, recipe: Repository, commit: str) -> bool:
        built = self.workshop.templates.current(name)
        if built is None or built.about.commit != commit:
            return True
        below = self.workshop.templates.built(recipe.base)
        if below is not None and built.about.base != below.home.name:
            return True
        return time.time() - built.about.built_at > 60 * recipe.minutes

    def _recipes(self) -> tuple[tuple[str, Repository], ...]:
        found = [(info.name, info.recipe) for info in self.workshop.templates.all()]
        return tuple((name, recipe) for name, recipe in found if isinstance(recipe, Repository))


def repositories(data_dir: Path) -> Path:
    """The directory of the templates' repositories."""
    return data_dir / "template-repositories"


def _log_progress(fraction: float | None, note: str) -> None:
    logger.info("Warming a template: %s %s", note, "" if fraction is None else f"{fraction:.0%}")


# Parse devcontainer.json: the image it names and the commands to run in it once. Pure.


PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""Where it may be in a repository, in this order."""

WORKSPACE = "/work"
_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""Run once, in this order. Commands for each start, or for the host, are not run."""

_REFUSED = {
    "dockerComposeFile": "a template is one container",
    "mounts": "a sandbox gets no directories of this machine",
    "runArgs": "they are options of another runtime",
    "privileged": "a sandbox has no privileges",
    "capAdd": "a sandbox has no privileges",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z]+)(?::([^{}:]*))?(?::([^{}]*))?\}")
_OPTION = re.compile(r"[^A-Za-z0-9]+")
_ENV_CHARS = 262_144
_NUL = re.compile(r"(?<!\\)(?:\\\\)*+\\u0000|\0")

StepCommand = str | tuple[str, ...]
"""A line for a shell, or the words of a program."""


class _Build(msgspec.Struct, frozen=True):
    dockerfile: str | None = None
    context: str = "."
    target: str | None = None
    args: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """The fields in use; `object` where the shape varies."""

    image: str | None = None
    build: _Build | None = None
    docker_file: str | None = None
    context: str | None = None
    container_env: dict[str, str] = {}
    remote_env: dict[str, str | None] = {}
    remote_user: str | None = None
    container_user: str | None = None
    features: dict[str, object] = {}


class Feature(msgspec.Struct, frozen=True):
    """A script of the repository, run as root."""

    directory: str
    """Inside the repository."""
    env: dict[str, str]


class Step(msgspec.Struct, frozen=True):
    """One command of the file, run as the agent."""

    name: str
    command: StepCommand


class Wanted(msgspec.Struct, frozen=True):
    """The contents of a devcontainer.json."""

    image: str | None
    dockerfile: str | None
    """Inside the repository, as `context`."""
    context: str
    target: str | None
    args: dict[str, str]
    env: dict[str, str]
    user: str | None
    features: tuple[Feature, ...]
    steps: tuple[Step, ...]

    def env_over(self, image: Mapping[str, str]) -> dict[str, str]:
        """The environment, once the image's own is known."""
        made: dict[str, str] = {}
        left = _ENV_CHARS
        for name, value in self.env.items():
            made[name] = _expand(value, image, left)
            left -= len(made[name])
        return made


def parse_devcontainer(text: str, place: str) -> Wanted:
    """Raises `UserError` (`bad_devcontainer`) for an invalid file and for each field that is not supported."""
    try:
        raw = msgspec.json.decode(without_comments(text))
        file = msgspec.convert(raw, _File)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _devcontainer_bad(f"{place} cannot be read: {one_line(str(error), 160)}.") from None
    fields = cast("dict[str, object]", raw)
    if _NUL.search(text):
        raise _devcontainer_bad(f"{place} contains a NUL character, which no program takes.")
    for name, why in _REFUSED.items():
        if fields.get(name):
            raise _devcontainer_bad(f"{place} uses {name}, which is not supported: {why}.")
    folder = posixpath.dirname(place)
    build = file.build or _Build(file.docker_file, file.context or ".")
    dockerfile = None if build.dockerfile is None else _inside(folder, build.dockerfile)
    if (file.image is None) == (dockerfile is None):
        raise _devcontainer_bad(f"{place} must name either an image or a build.dockerfile.")
    for name in (*file.container_env, *file.remote_env, *build.args):
        if not name or "=" in name:
            raise _devcontainer_bad(f"{one_line(name, 60)!r} is not the name of a variable.")
    steps = [step for name in _COMMANDS for step in _steps(name, fields.get(name))]
    remote = {name: value for name, value in file.remote_env.items() if value is not None}
    return Wanted(
        image=file.image,
        dockerfile=dockerfile,
        context=_inside(folder, build.context),
        target=build.target,
        args={name: _expand(value, {}) for name, value in build.args.items()},
        env={**file.container_env, **remote},
        user=file.remote_user or file.container_user,
        features=tuple(_feature(folder, name, options) for name, options in file.features.items()),
        steps=tuple(steps),
    )


def _steps(name: str, value: object) -> list[Step]:
    match value:
        case None | "":
            return []
        case str():
            return [Step(name, _expand(value, None))]
        case list():
            words = cast("list[object]", value)
            if words and all(isinstance(word, str) for word in words):
                return [Step(name, tuple(_expand(str(word), None) for word in words))]
        case dict():
            named = cast("dict[str, object]", value).items()
            if not any(isinstance(inner, dict) for _, inner in named):
                return [step for key, inner in named for step in _steps(f"{name} {one_line(key, 40)}", inner)]
        case _:
            pass
    raise _devcontainer_bad(f"{name} must be a string, a list of strings, or an object of these.")


def _feature(folder: str, name: str, options: object) -> Feature:
    if not name.startswith("./"):
        raise _devcontainer_bad(
            f"The feature {one_line(name, 100)} is not a script of the repository and is not supported: "
            "install it in the image, or in postCreateCommand."
        )
    chosen: dict[str, object] = {}
    match options:
        case dict():
            chosen = cast("dict[str, object]", options)
        case str():
            chosen = {"version": options}
        case _:
            pass
    env = {_OPTION.sub("_", key).upper(): _plain(value) for key, value in chosen.items() if key}
    return Feature(_inside(folder, name), env)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inside(folder: str, path: str) -> str:
    """`path`, relative to the file, as a path of the repository. Raises when it leads out of it."""
    joined = posixpath.normpath(posixpath.join(folder, path))
    if joined.startswith(("/", "../")) or joined == "..":
        raise _devcontainer_bad(f"{one_line(path, 80)} leads out of the repository.")
    return joined


def _expand(text: str, image: Mapping[str, str] | None, left: int = _ENV_CHARS) -> str:
    """Replace `${…}`, by at most `left` characters. Variables of this machine's environment expand to their default."""

    def one(found: re.Match[str]) -> str:
        nonlocal left
        made = value(found)
        left -= len(made)
        if left < 0:
            raise _devcontainer_bad(f"Its variables expand to more than {_ENV_CHARS:,} characters.")
        return made

    def value(found: re.Match[str]) -> str:
        kind, name, default = found[1], found[2] or "", found[3] or ""
        match kind:
            case "localWorkspaceFolder" | "containerWorkspaceFolder":
                return WORKSPACE
            case "localWorkspaceFolderBasename" | "containerWorkspaceFolderBasename":
                return WORKSPACE.strip("/")
            case "localEnv" | "env":
                return default
            case "containerEnv":
                # In a command the variable is there by itself.
                return f"${{{name}}}" if image is None else image.get(name, default)
            case _:
                return found[0]

    return _VARIABLE.sub(one, text)


def _devcontainer_bad(message: str) -> UserError:
    return UserError("bad_devcontainer", message)


_JSON_EXTRA = re.compile(
    r"""
    (?P<string> "(?:\\.|[^"\\])*"? )
    | //[^\n]* | /\*.*?(?:\*/|\Z)                                  # a comment
    | (?P<comma> , (?= (?>\s+|//[^\n]*+|/\*.*?\*/)*+ [\]}] ) )       # a comma before a closing bracket
    """,
    re.DOTALL | re.VERBOSE,
)


def without_comments(text: str) -> str:
    """Strip comments and trailing commas, which devcontainer.json may have and JSON may not."""

    def plain(found: re.Match[str]) -> str:
        return found["string"] or ("" if found["comma"] else " ")

    return _JSON_EXTRA.sub(plain, text)
