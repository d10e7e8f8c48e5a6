"""Every forge behind the seam keeps the seam's promises: plain git on a path, and over HTTP."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.forge.git_http import answer
from tests.whole.conformance.suites.forge import (
    Place,
    check_bad_input,
    check_delivering,
    check_delivering_again,
    check_fetching_head,
    check_fetching_refs,
)

from cloister.forge import Forges
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio


class GitOverHttp(BaseHTTPRequestHandler):
    """Serves the repositories under `root` with git's own CGI program."""

    root: Path

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def _serve(self, body: bytes) -> None:
        answer(self, self.root, body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the tests read answers, not logs."""


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A directory with a repository `full` and an empty one."""
    full = SampleRepo(tmp_path / "places" / "full")
    full.write("a.txt", "one\n")
    tagged = full.commit("First")
    full.git("tag", "--annotate", "v1", "--message", "First", tagged)
    full.write("b/c.txt", "two\n")
    full.commit("Second")
    SampleRepo(tmp_path / "places" / "empty")
    return tmp_path / "places"


def _place(root: str, folder: Path, suffix: str = "") -> Place:
    full = SampleRepo(folder / "full")

    async def branches() -> dict[str, str]:
        return full.branches()

    return Place(
        forge=Forges({**os.environ, "no_proxy": "127.0.0.1"}).at(f"{root}/full{suffix}"),
        repo=f"{root}/full{suffix}",
        branch="main",
        commit=full.head,
        tag="v1",
        tagged=full.git("rev-parse", "v1^{commit}"),
        empty=f"{root}/empty{suffix}",
        missing=f"{root}/missing{suffix}",
        branches=branches,
    )


@pytest.fixture(params=["path", "http"])
def place(request: pytest.FixtureRequest, places: Path) -> Iterator[Place]:
    if request.param == "path":
        yield _place(str(places), places)
        return
    handler = type("Handler", (GitOverHttp,), {"root": places})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield _place(f"http://ada:secret@127.0.0.1:{server.server_address[1]}", places, "/.git")
        server.shutdown()
        thread.join()


async def test_head_is_fetched_whole(place: Place, tmp_path: Path) -> None:
    await check_fetching_head(place, tmp_path)


async def test_refs_can_be_named(place: Place, tmp_path: Path) -> None:
    await check_fetching_refs(place, tmp_path)


async def test_bad_input_is_refused(place: Place, tmp_path: Path) -> None:
    await check_bad_input(place, tmp_path)


async def test_changes_are_delivered(place: Place, tmp_path: Path) -> None:
    await check_delivering(place, tmp_path)


async def test_later_rounds_move_the_branch_forward_only(place: Place, tmp_path: Path) -> None:
    await check_delivering_again(place, tmp_path)
