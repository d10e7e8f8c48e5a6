"""A real Pagure, from clone to merged pull request: the promises of pull requests, and a change with two rounds."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.forge.pulls.pagure_server import Pagure, build, served
from tests.whole.conformance.suites.pulls import PROMISES, PullRig

from cloister.core.errors import OutsideError
from cloister.core.ids import RunId
from cloister.forge.api import Proposal
from cloister.forge.change import Author, commit_tree, describe
from cloister.forge.host import in_bare, oid
from cloister.forge.pulls.hosted import ForgePlace, Hosted, client
from cloister.testing.samples import SampleRepo

pytestmark = [pytest.mark.anyio, pytest.mark.long(only=True)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pagure]:
    with served(build(), tmp_path_factory.mktemp("pagure")) as made:
        yield made


@pytest.fixture
def project(server: Pagure, tmp_path: Path) -> str:
    work = SampleRepo(tmp_path / "work")
    work.write("cart.py", "total = 1\n")
    work.commit("First")
    work.git("branch", "-M", "main")
    work.git("checkout", "-q", "-b", "fix")
    work.write("shop/cart.py", "total = 2\n" * 9)
    work.commit("Second")
    work.git("checkout", "-q", "main")
    return server.project(tmp_path / "work")


def _hosted(server: Pagure, token: str = "") -> Hosted:
    async def read(_path: str) -> str:
        return token or server.tokens["cloister"]

    return Hosted(
        ForgePlace(
            host=server.url.removeprefix("http://"),
            kind="pagure",
            token=read,
            api=f"{server.url}/api/0",
            git=server.url,
            user="cloister",
            labels=("agent",),
            reviewers=("ann",),
            pauses=(),
        )
    )


@pytest.fixture
async def rig(server: Pagure, project: str) -> AsyncIterator[PullRig]:
    async def say(number: int, who: str, text: str, path: str, line: int) -> None:
        at = {"filename": path, "row": line, "commit": "x", "tree_id": "y"} if path else {}
        server.ask("POST", f"{project}/pull-request/{number}/comment", who, comment=text, **at)

    async def report(name: str, state: str) -> None:
        status = {"passed": "success", "failed": "failure", "running": "pending"}[state]
        flag = {
            "username": name,
            "comment": state,
            "url": "http://ci.example.org/",
            "status": status,
            "uid": name,
        }
        server.ask("POST", f"{project}/pull-request/1/flag", **flag)

    async def merge(number: int) -> None:
        server.ask("POST", f"{project}/pull-request/{number}/merge", wait="true")

    async def text(number: int) -> tuple[str, str, str]:
        pull = server.pull(project, number)
        return pull.title, pull.body, pull.onto

    async def issue(title: str, text: str, label: str) -> int:
        tags = {"tag": label} if label else {}
        made = server.ask("POST", f"{project}/new_issue", "ann", title=title, issue_content=text, **tags)
        return made["issue"]["id"]

    async def talk(number: int, who: str, text: str) -> None:
        server.ask("POST", f"{project}/issue/{number}/comment", who, comment=text)

    async with client() as http:
        pulls = _hosted(server).pulls(http, f"{server.url}/{project}")
        yield PullRig(pulls, say, report, merge, text, logs=False, issue=issue, talk=talk)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_pagure_keeps_the_promise(promise: Callable[[PullRig], Awaitable[None]], rig: PullRig) -> None:
    await promise(rig)


async def test_a_change_goes_from_clone_to_merged(server: Pagure, project: str, tmp_path: Path) -> None:
    hosted, bare, repo = _hosted(server), tmp_path / "run.git", f"{server.url}/{project}"
    base = await hosted.fetch(repo, None, bare)
    assert base.branch == "main"
    tree = oid((await in_bare(bare, "rev-parse", f"{base.commit}^{{tree}}")).out)
    commit, previous = base.commit, None
    for message in ("Fix the total\n\nBecause.", "Fix it again"):
        commit = await commit_tree(bare, tree, commit, message, Author("Ann <ann@example.org>"))
        wish = Proposal(
            RunId("r-1"), repo, base.commit, commit, "cloister/fix", bare, previous=previous, onto="main"
        )
        sent = await hosted.deliver(await describe(wish))
        assert sent is not None
        assert (sent.branch, sent.number, sent.url) == ("cloister/fix", 1, f"{repo}/pull-request/1")
        previous = commit
    assert server.pull(project, 1).title == "Fix it again"
    server.ask("POST", f"{project}/pull-request/1/merge", "ann", wait="true")
    async with client() as http:
        found = await hosted.pulls(http, repo).read(1)
    assert (found.pull.state, found.pull.commit) == ("merged", commit)
    assert (await hosted.fetch(repo, None, tmp_path / "after.git")).commit == commit


async def test_a_wrong_token_and_a_missing_project_are_named(
    server: Pagure, project: str, tmp_path: Path
) -> None:
    async with client() as http:
        for address, token, code in (
            (project, "wrong", "forge_denied"),
            ("team/none", "", "forge_missing"),
        ):
            with pytest.raises(OutsideError) as caught:
                await _hosted(server, token).pulls(http, f"{server.url}/{address}").comment(1, "x")
            assert caught.value.code == code
