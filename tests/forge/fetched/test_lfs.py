"""LFS: pointers unless the settings ask for content; content that is checked, bounded, and no part of a change."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.forge.git_http import answer

from cloister.forge import Forges, workspace
from cloister.forge.cache import ObjectCache
from cloister.forge.change import files
from cloister.forge.host import in_bare
from cloister.forge.pulls.hosted import ForgePlace
from cloister.forge.read import copy_commit
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

REF = "refs/cloister/r-1/1"
KEY = "Basic b2F1dGgyOnNlY3JldA=="
DATA = os.urandom(70_000)
OID = hashlib.sha256(DATA).hexdigest()
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize {len(DATA)}\n"


class Server(ThreadingHTTPServer):
    """Repositories below `root` and a server of LFS, both for those who send the key."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.asked, self.objects = root, list[str](), {OID: DATA}
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.href = f"{self.url}/objects/"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        at = self.server
        assert isinstance(at, Server)
        at.asked.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != KEY:
            self._send(401, b"{}")
        elif self.path.endswith("/info/lfs/objects/batch"):
            self._send(
                200, json.dumps({"objects": [self._one(one) for one in json.loads(body)["objects"]]}).encode()
            )
        elif self.path.startswith("/objects/"):
            self._send(200, at.objects[self.path.rpartition("/")[2]])
        else:
            answer(self, at.root, body)

    do_POST = do_GET  # noqa: N815

    def _one(self, wish: dict[str, Any]) -> dict[str, Any]:
        at = self.server
        assert isinstance(at, Server)
        if wish["oid"] not in at.objects:
            return {**wish, "error": {"code": 404, "message": "Object does not exist"}}
        return {**wish, "actions": {"download": {"href": at.href + wish["oid"]}}}

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(repo: SampleRepo, tmp_path: Path) -> Iterator[Server]:
    repo.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    repo.write(".lfsconfig", "[lfs]\n\turl = http://127.0.0.1:1/stolen\n")
    repo.write("assets/a.bin", POINTER)
    repo.write("plain.txt", POINTER)
    repo.write(".cloister/config.toml", "lfs = true\n")
    repo.commit("Content")
    repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "team" / "app.git"))
    with Server(tmp_path) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def forges(server: Server, cache: ObjectCache | None = None, key: str = "secret") -> Forges:
    async def token(_path: str) -> str:
        return key

    where = server.url.removeprefix("http://")
    return Forges(places=(ForgePlace(where, "gitlab", token, git=server.url),), cache=cache)


async def fetched(server: Server, tmp_path: Path) -> tuple[Path, str, str | None]:
    bare = tmp_path / "run" / "bare"
    bare.parent.mkdir(exist_ok=True)
    base = await forges(server).bring(f"{server.url}/team/app.git", None, bare)
    return bare, base.commit, base.note


async def test_content_is_fetched_with_the_token_and_is_no_change(server: Server, tmp_path: Path) -> None:
    bare, base, note = await fetched(server, tmp_path)
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base)
    assert (note, (computer.work / "assets/a.bin").read_bytes()) == (None, DATA)
    assert (computer.work / "plain.txt").read_text() == POINTER
    assert SampleRepo(computer.work).git("status", "--porcelain") == ""
    os.utime(computer.work / "assets/a.bin")
    assert await workspace.save(computer, bare, base, REF) == base
    (computer.work / "assets/a.bin").rename(computer.work / "assets/b.bin")
    saved = await workspace.save(computer, bare, base, REF)
    assert [(one.path, one.status) for one in await files(bare, base, saved)] == [("assets/b.bin", "renamed")]
    assert (await in_bare(bare, "cat-file", "blob", f"{saved}:assets/b.bin")).out.decode() == POINTER
    fork = tmp_path / "fork"
    await copy_commit(bare, saved, base, fork)
    again = LocalComputer(tmp_path / "again")
    await workspace.restore(again, fork, base, saved)
    assert (again.work / "assets/b.bin").read_bytes() == DATA


async def test_other_content_is_in_the_change_as_it_is(server: Server, tmp_path: Path) -> None:
    bare, base, _ = await fetched(server, tmp_path)
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base)
    (computer.work / "assets/a.bin").write_bytes(b"new\0content")
    saved = await workspace.save(computer, bare, base, REF)
    assert (await in_bare(bare, "cat-file", "blob", f"{saved}:assets/a.bin")).out == b"new\0content"


async def test_a_damaged_repository_inside_keeps_the_pointers(server: Server, tmp_path: Path) -> None:
    bare, base, _ = await fetched(server, tmp_path)
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base)
    (computer.work / ".git").rename(tmp_path / "gone")
    assert await workspace.save(computer, bare, base, REF) == base


async def test_without_the_setting_only_pointers_are_there(
    server: Server, repo: SampleRepo, tmp_path: Path
) -> None:
    repo.write(".cloister/config.toml", 'lfs = ["other/**"]\n')
    repo.commit("Other")
    repo.git("push", "--quiet", str(tmp_path / "team/app.git"), "main")
    bare, base, note = await fetched(server, tmp_path)
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base)
    assert (note, (computer.work / "assets/a.bin").read_text()) == (None, POINTER)
    assert not [path for path in server.asked if "lfs" in path]


@pytest.mark.parametrize(
    ("objects", "href", "why"),
    [
        ({OID: b"x" * len(DATA)}, "", "other content than the pointer names"),
        ({OID: DATA + b"x"}, "", "sends more than it said"),
        (dict[str, bytes](), "", "Object does not exist"),
        ({OID: DATA}, "http://169.254.169.254/", "not of https"),
        ({OID: DATA}, "file:///etc/", "not of https"),
        ({OID: DATA}, "https://[x/", "cannot be read"),
    ],
)
async def test_a_server_that_lies_leaves_a_pointer_and_a_sentence(
    objects: dict[str, bytes], href: str, why: str, server: Server, tmp_path: Path
) -> None:
    server.objects, server.href = objects, href or server.href
    bare, base, note = await fetched(server, tmp_path)
    assert note is not None and why in note
    assert list((bare / "lfs").iterdir()) == []
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base)
    assert (computer.work / "assets/a.bin").read_text() == POINTER


async def test_content_is_sent_once_for_all_runs_and_only_to_those_who_may_read_it(
    server: Server, tmp_path: Path
) -> None:
    cache, url = ObjectCache(tmp_path / "objects", 2**20), f"{server.url}/team/app.git"

    async def bring(name: str, cache: ObjectCache = cache) -> tuple[str | None, bool, bool]:
        """The note, whether the content is there, and whether it was sent."""
        server.asked.clear()
        base = await forges(server, cache).bring(url, None, tmp_path / name)
        there = tmp_path / name / "lfs" / OID
        sent = any(path.startswith("/objects/") for path in server.asked)
        return base.note, there.exists() and there.read_bytes() == DATA, sent

    assert await bring("one") == (None, True, True)
    assert await bring("two") == (None, True, False)
    assert any(path.endswith("/objects/batch") for path in server.asked), "the server says who may read it"
    objects, server.objects = server.objects, {}  # it no longer gives this host the object
    note, there, _ = await bring("three")
    assert note is not None and "Object does not exist" in note and not there
    server.objects = objects
    (kept,) = (tmp_path / "objects/lfs").iterdir()
    kept.unlink()
    kept.write_bytes(b"x" * len(DATA))  # damaged
    assert await bring("four") == (None, True, True)
    small = ObjectCache(tmp_path / "small", 1_000)
    assert await bring("five", small) == (None, True, True)
    assert await bring("six", small) == (None, True, True)
    assert list((tmp_path / "small/lfs").iterdir()) == []


async def test_a_directory_gives_the_content_that_it_has(
    server: Server, repo: SampleRepo, tmp_path: Path
) -> None:
    store = repo.path / ".git/lfs/objects" / OID[:2] / OID[2:4]
    store.mkdir(parents=True)
    (store / OID).symlink_to("/etc/passwd")
    missing = await Forges().bring(str(repo.path), None, tmp_path / "one")
    assert missing.note is not None and "left as pointers" in missing.note
    (store / OID).unlink()
    (store / OID).write_bytes(DATA)
    assert (await Forges().bring(str(repo.path), None, tmp_path / "two")).note is None
    assert (tmp_path / "two/lfs" / OID).read_bytes() == DATA
    assert not server.asked


async def test_too_much_content_is_left_out(server: Server, repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("assets/a.bin", POINTER.replace(f"size {len(DATA)}", "size 99999999999"))
    repo.commit("Large")
    note = (await Forges().bring(str(repo.path), None, tmp_path / "one")).note
    assert note is not None and "256 MiB" in note
