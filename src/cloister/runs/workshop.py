"""Builds templates of every kind; those of a repository or a snapshot are made inside a sandbox and then kept.

Nothing of a repository runs on this machine: what it asks for runs in a sandbox made from another template, with the
same rules for the network as any sandbox made by hand.
"""

import posixpath
import shutil
import tomllib
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec

from cloister.agent.checks import find_checks, run_on_base
from cloister.core import limits
from cloister.core.commands import Command, Computer, Output, Stream, shell
from cloister.core.errors import HostError, UserError
from cloister.core.records import Quota
from cloister.core.text import decode, one_line
from cloister.forge import tree, workspace
from cloister.forge.api import Base, Forge
from cloister.sandbox.api import SNAPSHOT_PREFIX, Door, Host, Keepable, Report, Sandbox, SandboxSpec
from cloister.sandbox.templates import devcontainer, root
from cloister.sandbox.templates.about import About, Built
from cloister.sandbox.templates.building import Build
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.devcontainer import Feature, Step, Wanted
from cloister.sandbox.templates.recipes import Devcontainer, Dockerfile, Oci, Repository, Snapshot
from cloister.sandbox.tiers import which

_TTL_SECONDS = 7_200.0
_STEP_SECONDS = 1_800.0
_SETUP_KEPT = 16
IMAGE = "-image"
"""Ending of the name of the template that a devcontainer's image becomes."""


class _Own(msgspec.Struct):
    """The part of `.cloister.toml` that matters here."""

    setup: list[str] = []


@dataclass(frozen=True, slots=True)
class Workshop:
    """Everything a build needs."""

    templates: Templates
    host: Host
    forge: Forge
    door: Door | None
    quota: Quota
    repositories: Path
    """Where the repositories that templates hold are fetched to."""

    async def prepare(self, name: str, report: Report, *, again: bool = False) -> Built:
        """Build `name` if it is missing, or `again`. Raises as `Templates.prepare` and as the forge."""
        recipe = self.templates.recipe(name)
        if again or self.templates.built(name) is None:
            match recipe:
                case Repository():
                    await self._repository(name, recipe, report, again=again)
                case Devcontainer():
                    await self._devcontainer(name, recipe, report, again=again)
                case Snapshot():
                    await self._snapshot(name, recipe, report, again=again)
                case _:
                    await self.templates.prepare(name, report, again=again)
        await self.host.prepare(name, report)  # whatever else it wants to do before the first sandbox
        built = self.templates.built(name)
        if built is None:
            raise UserError("unknown_template", f"The template {name} was removed just now.")
        return built

    async def fetch(self, name: str, recipe: Repository | Devcontainer) -> Base:
        """Bring the repository of a template up to date here."""
        self.repositories.mkdir(parents=True, exist_ok=True, mode=0o700)
        return await self.forge.fetch(recipe.repo, recipe.ref, self.bare(name))

    def bare(self, name: str) -> Path:
        return self.repositories / f"{name}.git"

    async def _repository(self, name: str, recipe: Repository, report: Report, *, again: bool) -> None:
        if isinstance(self.templates.recipe(recipe.base), Repository):
            raise UserError("bad_template", f"{recipe.base} holds a repository: choose another base.")
        await self.prepare(recipe.base, report)

        async def make(work: Build) -> About:
            base = await self.fetch(name, recipe)
            below = self.templates.built(recipe.base)
            if below is None or not below.about.git:
                raise UserError("no_git", f"The template {recipe.base} has no git: choose another base.")
            setup = _setup(await tree.read_file(self.bare(name), base.commit, ".cloister.toml"))
            async with self._opened(recipe.base) as sandbox:
                work.tell(0.1, f"cloning {base.commit[:7]}")
                await workspace.put(sandbox, self.bare(name), base.commit)
                for number, line in enumerate(setup):
                    work.tell(0.2 + 0.4 * number / len(setup), one_line(line, 80))
                    await run_step(work, sandbox, shell(line, seconds=_STEP_SECONDS), line)
                checks = await find_checks(sandbox)

                def show(check: str, stream: Stream, data: bytes) -> None:
                    work.note(decode(data).rstrip("\n"))

                work.tell(0.6, f"running {len(checks)} checks")
                baseline = await run_on_base(sandbox, checks, "warm", show)
                await workspace.disown(sandbox)
                work.tell(0.9, "keeping the files")
                await _keep(sandbox, work.rootfs)
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
            await tree.export(self.bare(name), base.commit, context)
        try:
            self.templates.keep_recipe(image, _image_recipe(recipe, wanted, context))
            await self.templates.prepare(image, report, again=again)
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
                        "no_git", "The image has no git, so the repository cannot be put into it."
                    )
                for feature in wanted.features:
                    work.tell(0.3, f"feature {feature.directory}")
                    await run_step(work, sandbox, _install(feature, below.about.home), feature.directory)
                for step in wanted.steps:
                    work.tell(0.5, step.name)
                    await run_step(work, sandbox, _step_command(step, bash=below.about.bash), step.name)
                if below.about.git:
                    await workspace.disown(sandbox)
                work.tell(0.9, "keeping the files")
                await _keep(sandbox, work.rootfs)
            return msgspec.structs.replace(
                below.about, kind="devcontainer", env=env, commit=base.commit, base=below.home.name
            )

        await self.templates.build(name, make, report, again=again)

    async def _snapshot(self, name: str, recipe: Snapshot, report: Report, *, again: bool) -> None:
        async def make(work: Build) -> About:
            work.tell(0.1, f"opening the snapshot {one_line(recipe.snapshot, 60)}")
            kept = which(recipe.snapshot, await self.host.snapshots())
            async with self._opened(f"{SNAPSHOT_PREFIX}{kept.id}") as sandbox:
                work.tell(0.3, f"keeping the files, {kept.size_bytes / 1e6:,.0f} MB over {kept.template}")
                await _keep(sandbox, work.rootfs)
            about = self._about(kept.template)
            git, bash = (root.has(work.rootfs, program) for program in ("git", "bash"))
            return About(
                kind="snapshot",
                env={**about.env, **recipe.env},
                home=about.home,
                git=git,
                bash=bash,
                base=kept.id,
            )

        await self.templates.build(name, make, report, again=again)

    def _about(self, template: str) -> About:
        """What is known of a template, which may be gone by now."""
        try:
            below = self.templates.built(template)
        except UserError:
            below = None
        return below.about if below else About()

    async def _wanted(self, name: str, base: Base) -> Wanted:
        for place in devcontainer.PLACES:
            data = await tree.read_file(self.bare(name), base.commit, place)
            if data is not None:
                return devcontainer.parse(decode(data), place)
        raise UserError("no_devcontainer", f"The repository has no {' and no '.join(devcontainer.PLACES)}.")

    def _opened(
        self, template: str, env: dict[str, str] | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        spec = SandboxSpec(template=template, quota=self.quota, ttl_seconds=_TTL_SECONDS, env=env or {})
        return self.host.open(spec, self.door)


async def _keep(sandbox: Sandbox, at: Path) -> None:
    if not isinstance(sandbox, Keepable):
        tier = sandbox.info.isolation.tier
        raise HostError("cannot_keep", f"The files of a sandbox of the tier {tier} cannot become a template.")
    await sandbox.keep(at)


async def forget(templates: Templates, repositories: Path, name: str) -> int:
    """Remove a template with everything that was fetched for it; returns how many builds. Raises as `remove`."""
    recipe = templates.recipe(name)
    count = await templates.remove(name)
    if isinstance(recipe, Devcontainer) and f"{name}{IMAGE}" in templates.names():
        count += await templates.remove(f"{name}{IMAGE}")
    bare = repositories / f"{name}.git"
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(bare, ignore_errors=True))
    return count


def _image_recipe(recipe: Devcontainer, wanted: Wanted, context: Path) -> Oci | Dockerfile:
    if wanted.dockerfile is None:
        return Oci(wanted.image or "", user=wanted.user, tls=recipe.tls)
    inside = context / wanted.context
    dockerfile = posixpath.relpath(wanted.dockerfile, wanted.context)
    # SAFETY: a link of the repository's must not make a directory of this machine its context.
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


def _setup(text: bytes | None) -> tuple[str, ...]:
    """`setup` of `.cloister.toml`. Raises `UserError` (`bad_setup`)."""
    if text is None:
        return ()
    try:
        own = msgspec.convert(tomllib.loads(decode(text)), _Own)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        message = f".cloister.toml cannot be read: {one_line(str(error), 160)}."
        raise UserError("bad_setup", message) from None
    return tuple(line.strip() for line in own.setup if line.strip())[:_SETUP_KEPT]


def _install(feature: Feature, home: str) -> Command:
    env = {"_REMOTE_USER": "agent", "_REMOTE_USER_HOME": home, **feature.env}
    directory = f"{devcontainer.WORKSPACE}/{feature.directory}"
    return Command(("/bin/sh", "./install.sh"), cwd=directory, env=env, user="root", seconds=_STEP_SECONDS)


def _step_command(step: Step, *, bash: bool) -> Command:
    if isinstance(step.command, tuple):
        return Command(step.command, seconds=_STEP_SECONDS)
    return Command(("/bin/bash" if bash else "/bin/sh", "-c", step.command), seconds=_STEP_SECONDS)


async def run_step(work: Build, computer: Computer, command: Command, name: str) -> None:
    """Run it with its output in the build's log. Raises `UserError` (`setup_failed`) unless it succeeds."""
    roomy = msgspec.structs.replace(command, limit_bytes=limits.FILE_BYTES)
    last = ""
    async with computer.start(roomy) as process:
        await process.send_eof()
        async for item in process:
            if isinstance(item, Output):
                text = decode(item.data).rstrip("\n")
                work.note(text)
                last = text.rpartition("\n")[2] or last
            elif not item.ok:
                why = item.killed or f"status {item.code}"
                message = f"`{one_line(name, 80)}` failed ({why}): {one_line(last, 160)}"
                raise UserError("setup_failed", message)
