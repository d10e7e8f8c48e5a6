"""Warmed templates: which of them a run starts from, and keeping them fresh while a server runs."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, UserError
from cloister.core.records import NewRun
from cloister.forge.plain import find_checkout, is_url
from cloister.runs.workshop import Workshop
from cloister.sandbox.templates.about import Built
from cloister.sandbox.templates.recipes import Repository

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
"""How often repositories are asked whether they moved."""


def same_repository(one: str, other: str) -> bool:
    """Whether two names mean one repository. Blocks a little."""
    if one == other:
        return True
    try:
        if is_url(one) or is_url(other):
            return is_url(one) and is_url(other) and _bare_url(one) == _bare_url(other)
        return find_checkout(one).top == find_checkout(other).top
    except UserError:
        return False


def _bare_url(url: str) -> str:
    return url.rstrip("/").removesuffix(".git")


def known_baseline(
    built: Built, commit: str, checks: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Diagnosis, ...]] | None:
    """The checks and their result on `commit`, when the template saw just that; `checks` are those asked for."""
    about = built.about
    if about.kind != "repository" or about.commit != commit or not about.baseline:
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
    """Template → when it could not be built, and on which commit."""

    async def choose(self, request: NewRun) -> str:
        """The template that a run starts from: a warmed one of its repository that is ready, else the one it names."""

        def find() -> str:
            for name, recipe in self._recipes():
                if recipe.base != request.template or not same_repository(recipe.repo, request.repo):
                    continue
                if self.workshop.templates.built(name) is not None:
                    return name
            return request.template

        return await anyio.to_thread.run_sync(find)

    async def keep_warm(self) -> None:
        """Never returns: builds what is missing, too old, or of another commit than its repository's."""
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
        """Build it again if it is time; returns whether it was."""
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
        built = self.workshop.templates.built(name)
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
    """Where the repositories of templates are."""
    return data_dir / "template-repositories"


def _log_progress(fraction: float | None, note: str) -> None:
    logger.info("Warming a template: %s %s", note, "" if fraction is None else f"{fraction:.0%}")
