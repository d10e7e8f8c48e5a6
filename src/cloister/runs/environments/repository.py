"""Repositories without a run: their environment is set up and checked by hand, or looked at before a run is asked for."""

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec

from cloister.agent.evidence.run_checks import find_checks, run_on_base
from cloister.core.computer import Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import UserError
from cloister.core.requests import NewRun
from cloister.core.system.locks import lock_within
from cloister.egress.factory import Outfit
from cloister.egress.rules import Record
from cloister.forge import workspace
from cloister.forge.api import Base
from cloister.policy.api import Policy
from cloister.runs.environments.layers import (
    SETUP_SECONDS,
    Environments,
    Outlet,
    Prepared,
    Site,
    applies,
    layers,
    placed,
    planned,
    told,
)
from cloister.runs.run_rules import Governed, govern, reachable, run_layer
from cloister.runs.services import RunServices
from cloister.sandbox.api import Report, SandboxSpec
from cloister.sandbox.templates.building import Built
from cloister.sandbox.templates.catalog import Templates

_LOOK_SECONDS = 60.0


class RepositorySetUp(NamedTuple):
    """A repository whose environment is there."""

    made: Prepared
    base: Base
    governed: Governed
    """Its policy has the request's own layer."""
    outlet: Outlet
    bare: Path


@asynccontextmanager
async def prepared(
    services: RunServices,
    record: Record,
    request: NewRun,
    report: Report,
    settings: str = "",
    again: bool = False,
) -> "AsyncGenerator[RepositorySetUp]":
    """Set up a repository without a run. `settings` take the place of the committed ones."""
    workshop = services.warming.workshop
    async with _brought(services, request, SETUP_SECONDS) as (bare, base, governed):
        governed = replace(governed, policy=(*governed.policy, run_layer(request)))
        outfit: Callable[[Policy, Record], Outfit] = services.doorway.outfit
        outlet = Outlet(services.host, outfit, governed.policy, record, governed.quota)
        site = Site(request.repo, bare, base.commit)
        below = await workshop.prepare(request.template, report)
        plan, files = await planned(site, request.setup, settings=settings)
        if plan.template is not None:
            below = await workshop.prepare(plan.template, report)
        environments = Environments(workshop, outlet, settings=settings, again=again)
        made = await environments.prepare(site, below, plan, files, report)
        yield RepositorySetUp(made, base, governed, outlet, bare)


async def set_up_repository(
    services: RunServices, record: Record, request: NewRun, report: Report, settings: str = ""
) -> tuple[Prepared, tuple[Diagnosis, ...]]:
    """Set up a repository without a run, and run its checks on the newest commit in a sandbox of the result.

    `settings` take the place of the committed ones.
    """
    async with prepared(services, record, request, report, settings) as there:
        made, base, governed, outlet, bare = there
        known = made.template.about
        if known.commit == base.commit and known.baseline and not request.checks:
            return made, known.baseline
        report(None, "running the checks")
        async with outlet.opened(made.template.name, {}, frozenset()) as inside:
            inside.shut()
            await workspace.sync(inside.sandbox, bare, known.commit, base.commit)
            cpus = governed.quota.cpus
            async with placed(inside.sandbox, settings):
                checks = request.checks or await find_checks(inside.sandbox)
                if problem := inside.sandbox.info.problem:
                    made = made._replace(problem=f"a service did not start: {problem}")
                return made, await run_on_base(inside.sandbox, checks, "warm", _quiet, cpus=cpus)


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    del check, stream, data


class Outlook(msgspec.Struct, frozen=True):
    """What a run on a repository would find there."""

    commit: str = ""
    branch: str | None = None
    checks: tuple[str, ...] = ()
    """The commands that would have to pass."""
    plan: tuple[str, ...] = ()
    """What its environment has, one line each with the reason."""
    template: str = ""
    ready: bool = False
    """Whether the environment is there; else the run makes it first."""
    note: str | None = None
    """What could not be fetched, such as a submodule."""
    problem: str = ""
    """Why a run would find nothing; then the rest is empty."""


@asynccontextmanager
async def _brought(
    services: RunServices, request: NewRun, seconds: float
) -> AsyncGenerator[tuple[Path, Base, Governed]]:
    """The repository, fetched into a directory that is held for the block, and the rules that its own add to."""
    workshop = services.warming.workshop
    workshop.repositories.mkdir(parents=True, exist_ok=True, mode=0o700)
    bare = workshop.bare(f"environment-{hashlib.sha256(request.repo.encode()).hexdigest()[:16]}")
    async with lock_within(bare.with_suffix(".lock"), seconds):
        above = await anyio.to_thread.run_sync(services.rules.above, request.repo)
        reach = reachable((*above, run_layer(request)))
        base = await services.forges.bring(request.repo, request.ref, bare, reach)
        yield bare, base, await govern(services.rules, request, services.quota, bare, base.commit)


async def look(services: RunServices, request: NewRun) -> tuple[Outlook, SandboxSpec]:
    """What a run would find in its repository, and the sandbox that it would start in. Nothing is built or run."""
    try:
        async with _brought(services, request, _LOOK_SECONDS) as (bare, base, governed):
            site = Site(request.repo, bare, base.commit)
            plan, files = await planned(site, request.setup)
    except TimeoutError:
        raise UserError(
            "set_up_running", "This repository is being set up: look again when that is done."
        ) from None
    warming = services.warming
    name = await warming.choose(request)
    if plan.template is not None and name == "default":
        name = plan.template

    def start() -> tuple[str, bool]:
        return _start(warming.workshop.templates, name, layers_over)

    def layers_over(below: Built) -> Sequence[tuple[str, object] | None]:
        wanted = applies(request, below) and plan.needs_setup
        return layers(plan, files, below, site.identity) if wanted else ()

    template, ready = await anyio.to_thread.run_sync(start)
    checks = tuple(one.command for one in plan.checks)
    found = Outlook(base.commit, base.branch, checks, told(plan), template, ready, base.note)
    return found, replace(services, quota=governed.quota).sandbox_spec(governed.request, template)


def _start(
    templates: Templates, name: str, layers_over: Callable[[Built], Sequence[tuple[str, object] | None]]
) -> tuple[str, bool]:
    """The template that a run would start from, and whether it is there. Blocks."""
    made = None
    with suppress(UserError):  # no one has described it yet
        made = below = templates.current(name)
        for layer in layers_over(below) if below is not None else ():
            made = templates.current(layer[0]) if layer is not None and made is not None else made
        return (name, False) if made is None else (made.name, True)
    return name, False
