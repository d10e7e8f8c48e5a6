"""Environments: what a repository needs, installed once in a sandbox and kept as templates in layers.

    base template  →  tools, which repositories share  →  dependencies, of one repository

The name of a layer is a digest of everything that decides its content. Of the repository that is only the files that
the plan names, so a changed source file finds the same environment, and git brings it to the run's commit.
"""

import hashlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import ByteStream

from cloister.agent.evidence.run_checks import find_checks, run_on_base
from cloister.core.addresses import canonical_repository
from cloister.core.attempts import wishes
from cloister.core.computer import WORK_DIR, Command, Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.events import ConnectionClosed, ConnectionDecided, EnvironmentPrepared
from cloister.core.ids import SandboxId
from cloister.core.log import Journal
from cloister.core.repository import FILES as SETTINGS
from cloister.core.repository import folders_of
from cloister.core.requests import NewRun, Quota
from cloister.core.text import decode, one_line
from cloister.egress.factory import Outfit
from cloister.egress.rules import DoorEvent, Record
from cloister.environment.api import HOME, TAG, Plan, Step
from cloister.environment.detect import detect, with_version
from cloister.environment.installers import TRIALS, Refusal, explain
from cloister.environment.listing import Listing, collect, wanted
from cloister.forge import read, workspace
from cloister.forge.plain_git import find_checkout, is_url, tagged_version
from cloister.harnesses.acp.programs import installed
from cloister.policy.api import Layer, Policy, Rule
from cloister.runs.environments import services as setup_services
from cloister.runs.services import RunServices
from cloister.runs.templates import Workshop, run_step
from cloister.sandbox.api import Host, Report, Sandbox, SandboxSpec, keep
from cloister.sandbox.local.spec import SEARCH_PATH
from cloister.sandbox.store.api import is_kept
from cloister.sandbox.templates.building import MARKER, About, Build, Built
from cloister.sandbox.templates.recipes import Environment

logger = logging.getLogger(__name__)

_VERSION = 1
"""Increased when the same plan makes other files."""
TOOLS_PREFIX, PREFIX = "tools-", "env-"
SETUP_SECONDS = 2_400.0
"""Limit of one layer's build."""
_STEP_SECONDS = 1_800.0
WARM_SECONDS, RUN_WARM_SECONDS = 900.0, 180.0
"""Limits of the checks that fill caches; the second where a run waits for them before its first request."""
_KEEP_SECONDS = 300.0
"""Of a layer's time, for keeping its files."""
_TRIAL_SECONDS = 60.0
_ROUNDS = 3
_TTL_SECONDS = 7_200.0
_KEPT_SECONDS = 14 * 86_400.0
_KEPT = 24
"""Environments that are kept: the newest, if they were used within `_KEPT_SECONDS`."""

_TOLD = 40
_HOSTS = 50

_BASH = ("/bin/bash", "-c")
_APT = """set -e
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq -o Acquire::Retries=1
names=
for name in "$@"; do
  case $name in
    \\?*) apt-cache show "${name#?}" > /dev/null 2>&1 && names="$names ${name#?}" || echo "Debian has no ${name#?}" ;;
    *) names="$names $name" ;;
  esac
done
apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 -o Acquire::Retries=2 $names
apt-get clean
rm -rf /var/lib/apt/lists/*
"""
"""`policy-rc.d` keeps packages from starting their services: nothing is there to supervise them. A name after `?` is a
hint: it is skipped if Debian has no such package."""


class Site(NamedTuple):
    """A commit of a repository, which `bare` holds."""

    repo: str
    bare: Path
    commit: str

    @property
    def identity(self) -> str:
        """One name for one repository. Blocks briefly."""
        with suppress(UserError):
            return canonical_repository(self.repo) if is_url(self.repo) else str(find_checkout(self.repo).top)
        return self.repo


class Prepared(NamedTuple):
    """The template of a run after set-up."""

    template: Built
    plan: Plan
    built: bool
    """False if every layer was there."""
    seconds: float
    problem: str = ""
    """Why set-up failed and what would help; then `template` is the base."""

    @property
    def told(self) -> tuple[str, ...]:
        return told(self.plan)


async def listing(
    site: Site, settings_of: str = "", settings: str = ""
) -> tuple[Listing, Mapping[str, read.Blob]]:
    """The files of the commit as detection sees them, and their objects.

    Its settings are those of the commit `settings_of`, or the text `settings`, which is not committed yet.
    """
    files = await read.blobs(site.bare, site.commit)
    if settings_of or settings:
        files = {name: blob for name, blob in files.items() if name not in _settings_in(files)}
    if settings_of:
        those = await read.blobs(site.bare, settings_of)
        files |= {name: those[name] for name in _settings_in(those) if name in those}
    texts = await read.texts(site.bare, {name: files[name] for name in wanted(files)})
    if settings:
        data = settings.encode()
        # The name that git gives to it: the environment is found again when it is committed.
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        files |= {SETTINGS[1]: read.Blob(oid, len(data))}
        texts = {**texts, SETTINGS[1]: settings}
    return await anyio.to_thread.run_sync(collect, files, texts.get), files


def _settings_in(files: Iterable[str]) -> frozenset[str]:
    """The names of settings, also those of each of several repositories."""
    return frozenset((*SETTINGS, *(f"{folder}/{name}" for folder in folders_of(files) for name in SETTINGS)))


async def planned(
    site: Site, setup: str = "auto", settings_of: str = "", settings: str = ""
) -> tuple[Plan, Mapping[str, read.Blob]]:
    """The plan of the commit. A `setup` other than `auto` and `off` is a command in place of the detected ones.

    A proof takes the settings of the base: a change must not decide the environment in which it is judged.
    """
    listed, files = await listing(site, settings_of, settings)
    plan = await anyio.to_thread.run_sync(detect, listed)
    if any(one.value == TAG for one in plan.env):
        plan = with_version(plan, await tagged_version(site.repo, settings_of or site.commit))
    if setup not in ("auto", "off"):
        tools = tuple(step for step in plan.steps if step.stage == "tools")
        plan = msgspec.structs.replace(plan, steps=(*tools, Step(setup, "--setup names it")))
    return plan, files


# Names of layers


class Layers(NamedTuple):
    """The recipes of one environment, in the order in which they are built."""

    tools: tuple[str, Environment] | None
    own: tuple[str, Environment] | None


def layers(plan: Plan, files: Mapping[str, read.Blob], below: Built, identity: str) -> Layers:
    """The names and recipes of the layers over `below`; None for a layer that would add nothing."""
    packages = tuple(sorted({*(one.name for one in plan.apt), *setup_services.packages(plan.services)}))
    first = tuple(step for step in plan.steps if step.stage == "tools")
    rest = tuple(step for step in plan.steps if step.stage != "tools")
    env = tuple(sorted((one.name, one.value) for one in plan.env))
    tools = own = None
    if packages or first:
        lines = tuple(step.command for step in first)
        name = _named(TOOLS_PREFIX, below.version, packages, first, env)
        tools = name, Environment(below.name, packages, lines)
    # Also without a command of its own it is worth a layer: its checks fill the caches of compilers.
    if rest or plan.services or tools:
        used = {name: files[name].oid for name in plan.files if name in files}
        over = tools[0] if tools else below.version
        name = _named(PREFIX, over, rest, env, used, plan.services, identity)
        services = tuple(one.name for one in plan.services)
        recipe = Environment(
            tools[0] if tools else below.name,
            steps=tuple(step.command for step in rest),
            repo=identity,
            files=used,
            services=services,
        )
        own = name, recipe
    return Layers(tools, own)


def _named(prefix: str, *what: object) -> str:
    return prefix + hashlib.sha256(msgspec.json.encode((_VERSION, what))).hexdigest()[:16]


# Building


@dataclass(slots=True)
class Outlet:
    """The way out of the sandboxes of one set-up: open for the plan's registries, later only for the run's rules."""

    host: Host
    outfit: Callable[[Policy, Record], Outfit]
    policy: Policy
    """All layers of the run."""
    record: Record
    quota: Quota
    denied: list[ConnectionDecided] = field(default_factory=list[ConnectionDecided])
    allowed: list[ConnectionDecided] = field(default_factory=list[ConnectionDecided])
    answered: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    @asynccontextmanager
    async def opened(
        self, template: str, env: Mapping[str, str], sets: frozenset[str]
    ) -> "AsyncGenerator[Inside]":
        """A sandbox whose proxy allows `sets` until `shut`; every deny of the run's rules holds."""

        def make(hosts: Iterable[str]) -> Outfit:
            source = "set-up: the plan of the repository"
            named = (*(f"@{name}" for name in sorted(sets)), *hosts)
            rules = tuple(Rule(f"connect:{one}", "allow", source) for one in named)
            # Next to the built-in rules: no layer has to delegate it, and every layer can deny it.
            policy = (*self.policy[:1], Layer("set-up", rules, may_widen=True), *self.policy[1:])
            return self.outfit(policy, self._heard)

        wide = make(())
        inside = Inside(wide, make, self.outfit(self.policy, self._heard))
        spec = SandboxSpec(template, quota=self.quota, ttl_seconds=_TTL_SECONDS, kept=True)
        spec = msgspec.structs.replace(spec, env={**await wide.env(), **env})
        async with self.host.open(spec, inside.serve) as sandbox:
            await wide.put_on(sandbox)
            inside.sandbox = sandbox
            yield inside

    async def _heard(self, sandbox: SandboxId, body: DoorEvent) -> None:
        if isinstance(body, ConnectionDecided):
            (self.denied if body.effect == "deny" else self.allowed).append(body)
        elif isinstance(body, ConnectionClosed) and body.received_bytes:
            self.answered.add((body.host, body.port))
        await self.record(sandbox, body)

    def silent(self, since: int) -> str:
        """The first host that was allowed since then and never answered; empty if all did."""
        hosts = ((one.host, one.port) for one in self.allowed[since:])
        found = next((one for one in hosts if one not in self.answered), None)
        return f"{one_line(found[0], 100)}:{found[1]} cannot be reached from this machine" if found else ""


class Inside:
    """A sandbox of set-up. `shut` closes the registries."""

    def __init__(self, wide: Outfit, make: Callable[[Iterable[str]], Outfit], narrow: Outfit) -> None:
        self._now, self._make, self._narrow = wide, make, narrow
        self.sandbox: Sandbox

    def shut(self) -> None:
        self._now = self._narrow

    @property
    def unknown(self) -> frozenset[str]:
        """Registries whose hosts no client of this machine tells."""
        return self._now.empty_sets

    async def widen(self, hosts: Iterable[str]) -> None:
        """Also allow these hosts, given as `HOST:PORT`."""
        now = self._make(hosts)
        await now.env()
        await now.put_on(self.sandbox)
        self._now = now

    async def serve(self, sandbox: SandboxId, stream: ByteStream) -> None:
        await self._now.serve(sandbox, stream)


@dataclass(frozen=True, slots=True)
class Environments:
    """Builds environments with the templates of a workshop."""

    workshop: Workshop
    outlet: Outlet
    checks: tuple[str, ...] = ()
    """The run's own checks; empty: they are found."""
    proof: str = ""
    """The commit whose proof it is for: another run must not start from what an unfinished change installed."""
    settings: str = ""
    """Settings that are not committed yet."""
    again: bool = False
    """Build every layer, also one that is there."""
    warm_seconds: float = WARM_SECONDS

    async def prepare(
        self, site: Site, below: Built, plan: Plan, files: Mapping[str, read.Blob], report: Report
    ) -> Prepared:
        """The environment of the commit, built if it is missing. A set-up that fails returns `below` and why."""
        started = anyio.current_time()
        identity = await anyio.to_thread.run_sync(lambda: site.identity)
        wish = layers(plan, files, below, f"{identity} {self.proof}".strip())
        built, template = False, below
        try:
            for name, recipe in filter(None, wish):
                found, new = await self._layer(name, recipe, template, plan, site, report)
                template, built = found, built or new
        except (UserError, HostError) as error:
            if isinstance(error, HostError) and error.code == "no_disk":
                raise
            why = error.message.rstrip(".")
            # The tools alone help, unless their Python hides the base's with its packages.
            usable = below if any(one.name == "VIRTUAL_ENV" for one in plan.env) else template
            return Prepared(usable, plan, built, anyio.current_time() - started, f"{why}.")
        if built:
            await prune(self.workshop)
        return Prepared(template, plan, built, anyio.current_time() - started)

    async def _layer(
        self, name: str, recipe: Environment, below: Built, plan: Plan, site: Site, report: Report
    ) -> tuple[Built, bool]:
        templates = self.workshop.templates
        templates.keep_recipe(name, recipe)
        found = templates.current(name)
        new = self.again or found is None or not await self._is_whole(found, report)
        if found is None or new:
            logger.info("Setting up %s for %s", name, one_line(site.repo, 200))
            warm = 0.0 if self.proof else self.warm_seconds
            maker = _Maker(self.outlet, recipe, below, plan, site, self.checks, warm, self.settings)
            found = await templates.build(name, maker.make, report, again=new)
            await self.workshop.host.prepare(name, report)
        with suppress(OSError):
            os.utime(found.home / MARKER)
        return found, new

    async def _is_whole(self, found: Built, report: Report) -> bool:
        """False if its files were in a store that is gone, or that is no longer used."""
        try:
            if is_kept(found.rootfs):
                await self.workshop.host.prepare(found.name, report)
        except HostError as error:
            if error.code != "no_template":
                raise
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes one layer in a sandbox from the layer below."""

    outlet: Outlet
    recipe: Environment
    below: Built
    plan: Plan
    site: Site
    checks: tuple[str, ...]
    warm_seconds: float = WARM_SECONDS
    """0: the checks are not run."""
    settings: str = ""

    async def make(self, work: Build) -> About:
        env = self._env()
        sets = frozenset(one.set.removeprefix("@") for one in self.plan.registries)
        if self.recipe.packages:
            sets |= {"debian"}
        allowed = self.outlet.allowed
        before = len(allowed)
        try:
            with anyio.fail_after(SETUP_SECONDS):
                async with work.watching_disk(), self.outlet.opened(self.below.name, env, sets) as inside:
                    about = await (self._own if self.recipe.repo else self._tools)(work, inside)
                    work.tell(0.9, "keeping the files")
                    await keep(inside.sandbox, work.rootfs, shared=True)
        except TimeoutError:
            raise HostError("template_failed", f"Set-up took more than {SETUP_SECONDS:g} s.") from None
        here = (f"{one_line(one.host, 100)}:{one.port}" for one in allowed[before:])
        return msgspec.structs.replace(
            about,
            kind="environment",
            env={**self.below.about.env, **env},
            base=self.below.version,
            reached=tuple(dict.fromkeys((*self.below.about.reached, *here)))[:_HOSTS],
        )

    def _env(self) -> dict[str, str]:
        path = self.below.about.env.get("PATH", SEARCH_PATH)
        return {one.name: one.value.replace("$PATH", path) for one in self.plan.env}

    async def _tools(self, work: Build, inside: Inside) -> About:
        sandbox = inside.sandbox
        if self.recipe.packages:
            named = one_line(" ".join(self.recipe.packages), 60)
            hints = {one.name for one in self.plan.apt if one.optional}
            names = (f"?{name}" if name in hints else name for name in self.recipe.packages)
            argv = ("/bin/sh", "-c", _APT, "apt", *names)
            await self._run(
                work, sandbox, Command(argv, cwd="/", user="root"), f"apt-get install {named}", 0.1
            )
        first = [step for step in self.plan.steps if step.stage == "tools"]
        await self._steps(work, sandbox, first, 0.4)
        return self.below.about

    async def _own(self, work: Build, inside: Inside) -> About:
        sandbox, commit = inside.sandbox, self.site.commit
        await self._find_registries(work, inside)
        work.tell(0.05, f"cloning {commit[:7]}")
        await workspace.put(sandbox, self.site.bare, commit)
        own = setup_services.own(services := self.plan.services)
        start = setup_services.start(services) if services else ""
        if packaged := tuple(one for one in services if one not in own):
            named = " and ".join(one.name for one in packaged)
            first = _root(setup_services.initialise(packaged))
            await self._run(work, sandbox, first, f"preparing {named}", 0.1)
            await self._run(work, sandbox, _root(setup_services.start(packaged)), f"starting {named}", 0.15)
        rest = [step for step in self.plan.steps if step.stage != "tools"]
        await self._steps(work, sandbox, rest, 0.2)
        for one in own:
            await self._run(work, sandbox, _root(setup_services.start((one,))), f"starting {one.name}", 0.6)
        inside.shut()
        async with placed(sandbox, self.settings):
            checks, baseline = await self._warm(work, sandbox) if self.warm_seconds else ((), ())
        if services:
            await self._run(work, sandbox, _root(setup_services.stop(services)), "stopping services", 0.88)
        await workspace.disown(sandbox)
        late = "the checks took too long in set-up and were stopped: the environment has no baseline"
        notes = () if baseline or not checks else (late,)
        about = msgspec.structs.replace(self.below.about, commit=commit, start=start, notes=notes)
        return msgspec.structs.replace(about, checks=checks if baseline else (), baseline=baseline)

    async def _find_registries(self, work: Build, inside: Inside) -> None:
        """Open the registries that no client of this machine knows, as the clients in the sandbox know them.

        Nothing of the repository is there yet, so it cannot choose the hosts.
        """
        hosts: dict[str, None] = {}
        for name in sorted(inside.unknown & TRIALS.keys()):
            script = f"cd $(mktemp -d) && {TRIALS[name][1]}"
            for _ in range(_ROUNDS):  # a registry may keep its files elsewhere
                work.tell(0.02, f"looking for the registry of {TRIALS[name][0]}")
                before = len(self.outlet.denied)
                command = Command(("/bin/sh", "-c", script), cwd="/", seconds=_TRIAL_SECONDS)
                done = await inside.sandbox.run(command)
                asked = dict.fromkeys(f"{one.host}:{one.port}" for one in self.outlet.denied[before:])
                if done.ok or asked.keys() <= hosts.keys():
                    break
                hosts |= asked
                await inside.widen(hosts)

    async def _steps(self, work: Build, sandbox: Sandbox, steps: list[Step], at: float) -> None:
        if steps:
            argv = (
                "/bin/sh",
                "-c",
                f"mkdir -p {HOME} && chown agent: {HOME} 2>/dev/null || chown 1000 {HOME}",
            )
            await run_step(work, sandbox, Command(argv, cwd="/", user="root"), f"mkdir {HOME}")
        for number, step in enumerate(steps):
            command = Command(
                (*_BASH, f"set -o pipefail\n{step.command}"),
                cwd=f"{WORK_DIR}/{step.cwd}" if step.cwd else WORK_DIR,
                user=step.user,
            )
            await self._run(work, sandbox, command, step.command, at + 0.4 * number / len(steps))

    async def _run(self, work: Build, sandbox: Sandbox, command: Command, name: str, at: float) -> None:
        """Run a command with its last line as progress. Raises `UserError` (`setup_failed`)."""
        shown = one_line(name, 60)
        work.tell(at, shown)
        refused, allowed = len(self.outlet.denied), len(self.outlet.allowed)
        command = msgspec.structs.replace(command, seconds=_STEP_SECONDS)
        why = await work.run_inside(
            sandbox, command, lambda line: work.report(at, f"{shown}: {one_line(line, 80)}")
        )
        for body in self.outlet.denied[refused:][:20]:
            work.note(f"== the proxy refused {body.host}:{body.port}: {body.rule}")
        if why:
            refusals = (Refusal(one.host, one.port, one.rule) for one in self.outlet.denied[refused:])
            line = command.argv[-1] if command.argv[:2] == _BASH else name
            opened = {one.set.removeprefix("@") for one in self.plan.registries}
            told = explain(line, refusals, opened) or self.outlet.silent(allowed)
            log = f"`cloister template log {work.name}`"
            raise UserError("setup_failed", f"`{shown}` failed {why} ({log}){told and '. ' + told}")

    async def _warm(self, work: Build, sandbox: Sandbox) -> tuple[tuple[str, ...], tuple[Diagnosis, ...]]:
        """Run the checks once: they fill caches, and their result is the baseline of this commit.

        Without a result they took too long; then the environment is kept as it is.
        """
        checks = self.checks or await find_checks(sandbox)
        if not checks:
            return (), ()

        def show(check: str, stream: Stream, data: bytes) -> None:
            text = decode(data).rstrip("\n")
            work.note(text)
            work.report(0.7, f"running the checks: {one_line(text.rpartition(chr(10))[2], 80)}")

        work.tell(0.65, f"running {len(checks)} checks once")
        left = anyio.current_effective_deadline() - anyio.current_time() - _KEEP_SECONDS
        with anyio.move_on_after(max(0.0, min(self.warm_seconds, left))):
            cpus = self.outlet.quota.cpus
            return checks, await run_on_base(sandbox, checks, "warm", show, cpus=cpus)
        work.tell(0.85, "the checks take too long here: the environment is kept without their result")
        return checks, ()


@asynccontextmanager
async def placed(sandbox: Sandbox, settings: str) -> AsyncGenerator[None]:
    """Put settings that are not committed yet where the checks are looked for."""
    path = f"{WORK_DIR}/{SETTINGS[1]}"
    if settings:
        await sandbox.write(path, settings.encode())
    yield
    if settings:
        await sandbox.run(Command(("rm", "-f", "--", path), cwd=WORK_DIR))


def _root(script: str) -> Command:
    return Command(("/bin/sh", "-c", script), cwd="/", user="root")


async def set_up(
    services: RunServices, journal: Journal, request: NewRun, site: Site, below: Built, report: Report
) -> Built:
    """The template of a run: with the environment of its base, or `below` if none is needed or set-up fails."""
    if not applies(request, below):
        return below
    return await SetUp(services, journal, request).prepare(site, below, report)


def applies(request: NewRun, below: Built) -> bool:
    """False if a person has prepared the template, or wants no set-up."""
    if request.setup == "off" or below.about.kind in ("repository", "devcontainer", "snapshot"):
        return False
    return request.template == "default" or request.setup != "auto"


@dataclass(frozen=True, slots=True)
class SetUp:
    """Set-up on behalf of one run: its rules hold, and its log gets the connections and the result."""

    services: RunServices
    journal: Journal
    request: NewRun

    async def prepare(self, site: Site, below: Built, report: Report, base: str = "") -> Built:
        """The template with the environment of the commit; `base` is the run's base if it is for a proof."""
        request, services = self.request, self.services
        plan, files = await planned(site, request.setup, base)
        plan = installed(plan, tuple(services.harness(request, wish) for wish in wishes(request)))
        proof = site.commit if base else ""
        workshop = services.warming.workshop
        if plan.template is not None and request.template == "default":
            below = await workshop.prepare(plan.template, report)
        if not plan.needs_setup:
            return below
        outfit: Callable[[Policy, Record], Outfit] = services.doorway.outfit
        policy = services.run_policy(request)
        outlet = Outlet(services.host, outfit, policy, self._record, services.quota)
        environments = Environments(workshop, outlet, request.checks, proof, warm_seconds=RUN_WARM_SECONDS)
        made = await environments.prepare(site, below, plan, files, report)
        why = one_line(made.problem, 2_000)
        name = made.template.name
        kept = made.template.about
        about = ((*kept.notes, *told(plan)), why, proof, kept.built_at, kept.reached)
        await self.journal.append(EnvironmentPrepared(name, made.built, made.seconds, *about))
        return made.template

    @asynccontextmanager
    async def proving(self, base: str, site: Site, now: str, report: Report) -> AsyncGenerator[str]:
        """The template for a proof: `now`, or one of its own if the change touches what `now` was made from."""
        if not await self.is_touched(base, site, now):
            yield now
            return
        warming = self.services.warming
        below = await warming.workshop.prepare(await warming.choose(self.request), report)
        made = await self.prepare(site, below, report, base)
        own = made.name.startswith(PREFIX) and made.name != now
        try:
            yield made.name if made.name.startswith(PREFIX) else now
        finally:
            if own:
                with anyio.CancelScope(shield=True), suppress(CloisterError):
                    await warming.workshop.templates.remove(made.name)

    async def is_touched(self, base: str, site: Site, now: str) -> bool:
        """True if the change from `base` touches what the environment `now` was made from."""
        templates = self.services.warming.workshop.templates
        template = templates.built(now)
        if template is None or not applies(self.request, template):
            return False
        recipe = templates.recipe(now)
        used = recipe.files if isinstance(recipe, Environment) else {}
        changed = {one.path for one in await read.touched(site.bare, base, site.commit)}
        return not changed.isdisjoint(used) or bool(wanted(changed))

    async def _record(self, _: SandboxId, body: DoorEvent) -> None:
        await self.journal.append(body)


def told(plan: Plan) -> tuple[str, ...]:
    """What was detected, one line each, with its reason."""
    tools = [f"{one.name} {one.version}".strip() + f" because {one.why}" for one in plan.toolchains]
    managers = [f"{one.name} because {one.why}" for one in plan.managers]
    packages = [f"the package {one.name} because {one.why}" for one in plan.apt]
    services = [f"{one.name} because {one.why}" for one in plan.services]
    lines = (*tools, *managers, *services, *packages, *plan.notes)
    return tuple(one_line(line, 200) for line in lines[:_TOLD])


async def prune(workshop: Workshop, now: float | None = None) -> None:
    """Remove environments that were not used for long, and the oldest beyond a number. Those in use stay."""
    templates = workshop.templates
    found: list[tuple[float, str]] = []
    for info in templates.all():
        if isinstance(info.recipe, Environment):
            with suppress(OSError, UserError):  # another process may remove it meanwhile
                built = templates.current(info.name)
                place = built.home / MARKER if built else templates.directory / f"{info.name}.toml"
                found.append((place.stat().st_mtime, info.name))
    oldest = (time.time() if now is None else now) - _KEPT_SECONDS
    for number, (used, name) in enumerate(sorted(found, reverse=True)):
        if number >= _KEPT or used < oldest:
            with suppress(CloisterError):
                await templates.remove(name)


__all__ = ["Environments", "Outlet", "Prepared", "Site", "layers", "listing", "planned", "prune", "set_up"]
