"""Pictures of the pages that a repository's settings name: before and after the change, without the model's help."""

import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.runs.arena import FIX, Arena, of

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.baseline import BaselineLog
from cloister.core.diagnosis import Comparison
from cloister.core.events import AttemptEnded, PagesPictured
from cloister.core.log import pictures_of
from cloister.core.repository import read_settings
from cloister.core.requests import Outcome
from cloister.forge.plain_git import PlainGit
from cloister.log.attachments import Attachments
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.runs.attempts.context import RunSetup
from cloister.runs.environments.pictures import picture_pages
from cloister.testing.local import LocalHost
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

CONFIG = ".cloister/config.toml"


def page_of(colour: str) -> str:
    return f"<!DOCTYPE html><body style='background:{colour}'>shop\n"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@asynccontextmanager
async def changed(root: Path, settings: str) -> AsyncGenerator[tuple[Arena, RunSetup, MemoryJournal, str]]:
    """A run whose change turns a red page blue and brings other settings; the base has `settings`."""
    repo = SampleRepo(root / "repo")
    repo.write("page.html", page_of("red"))
    repo.write(CONFIG, settings)
    base = repo.commit("base")
    repo.write("page.html", page_of("blue"))
    repo.write(CONFIG, 'pages = ["other.html"]\n')
    change = repo.commit("change")
    bare = root / "run.git"
    await PlainGit().fetch(str(repo.path), None, bare)
    arena = Arena(root, repo, LocalHost(root / "sandboxes"), bare, base, ())
    request = arena.request(FIX)
    journal, services = arena.journal(request), arena.services()
    async with open_models(Access(), Job(request.repo, request.model)) as unpaid:
        models = BudgetedModels(unpaid, services.purse(request, journal))
        results = BaselineLog(journal, request)
        run = journal.events[0].run
        yield arena, RunSetup(run, request, base, bare, models, arena.inside, results), journal, change


def ended(commit: str, outcome: Outcome = "proven") -> AttemptEnded:
    return AttemptEnded(0, outcome, "Done.", commit, Comparison())


async def test_pages_of_the_base_are_pictured_before_and_after_and_what_fails_is_said(tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed: run scripts/install dev")
    port = free_port()
    at = f"http://localhost:{port}/page.html"
    settings = f"""
[[pages]]
page = "{at}"
serve = "exec python3 -m http.server --bind 127.0.0.1 {port}"
width = 320
height = 240
[[pages]]
page = "http://localhost:{port}/"
serve = "echo there is no such program; exit 3"
"""
    async with changed(tmp_path, settings) as (arena, setup, journal, commit):
        for _ in range(2):  # a run that is resumed has its pictures
            await picture_pages(arena.services(), journal, setup, ended(commit))
        (taken,) = of(journal, PagesPictured)
        name = f"localhost-{port}-page-html-320x240.png"
        assert [one.name for one in (*taken.before, *taken.after)] == [name, name]
        store = Attachments(arena.root)
        before, after = (store.read(setup.run, one.sha256) for one in pictures_of(journal.events, 0)[name])
        assert before and after and before != after
        assert before.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(taken.problems) == 2
        assert "there is no such program" in taken.problems[0] and taken.problems[0].endswith("(on the base)")
        with pytest.raises(OSError, match="All connection attempts failed"):
            await anyio.connect_tcp("127.0.0.1", port)  # the servers have ended


@pytest.mark.parametrize("outcome", ["red", "budget", "failed"])
async def test_a_change_cannot_name_pages_and_one_that_is_not_delivered_has_none(
    outcome: Outcome, tmp_path: Path
) -> None:
    async with changed(tmp_path, 'checks = ["make test"]\n') as (arena, setup, journal, commit):
        await picture_pages(arena.services(), journal, setup, ended(commit))
        assert of(journal, PagesPictured) == []
    async with changed(tmp_path / "2", 'pages = ["page.html"]\n') as (arena, setup, journal, commit):
        await picture_pages(arena.services(), journal, setup, ended(commit, outcome))
        await picture_pages(arena.services(), journal, setup, ended(setup.base))
        assert of(journal, PagesPictured) == []


def test_wrong_pages_are_named_and_the_others_stay() -> None:
    found = read_settings({CONFIG: 'pages = ["a.html", " ", {page = "http://localhost:1/", serve = "make"}]'})
    assert [(one.page, one.serve, one.width) for one in found.pages] == [
        ("a.html", "", 1_280),
        ("http://localhost:1/", "make", 1_280),
    ]
    assert len(read_settings({CONFIG: f"pages = {['x.html'] * 50}"}).pages) == 6
    for wrong in (
        'pages = "a.html"',
        "pages = [1]",
        'pages = [{page = "a", width = 9}]',
        "pages = [{serve = ''}]",
    ):
        settings = read_settings({CONFIG: wrong})
        assert settings.pages == ()
        assert "`pages`" in settings.problems[0]
