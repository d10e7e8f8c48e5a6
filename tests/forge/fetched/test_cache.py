"""The object cache: the second fetch is sent nothing, needs the same right, and outlives eviction."""

import base64
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest
from tests.forge.git_http import answer

from cloister.core.errors import OutsideError
from cloister.forge import packs
from cloister.forge.cache import ObjectCache
from cloister.forge.host import in_bare
from cloister.forge.plain_git import PlainGit
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

KEY = "Basic " + base64.b64encode(b"ann:secret").decode()
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


class PrivateServer(ThreadingHTTPServer):
    """Serves the repositories below `root` to those who send the key."""

    daemon_threads = True
    sent = 0
    """Bytes of the bodies of all answers."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        at = self.server
        assert isinstance(at, PrivateServer)
        if self.headers.get("Authorization") != KEY:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        at.sent += answer(self, at.root, body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(repo: SampleRepo, tmp_path: Path) -> Iterator[PrivateServer]:
    (repo.path / "large.bin").write_bytes(os.urandom(300_000))
    repo.commit("Large")
    with PrivateServer(tmp_path) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects", 2**30, least_bytes=0)


def git(server: PrivateServer, cache: ObjectCache, key: str = KEY) -> PlainGit:
    return PlainGit(ENV, settings={f"http.{server.url}/.extraHeader": f"Authorization: {key}"}, cache=cache)


async def test_the_second_fetch_is_sent_only_what_is_new(
    server: PrivateServer, cache: ObjectCache, repo: SampleRepo, tmp_path: Path
) -> None:
    url = f"{server.url}/repo/.git"
    await git(server, cache).fetch(url, None, tmp_path / "a")
    first = server.sent
    repo.write("new.txt", "new\n")
    head = repo.commit("New")
    base = await git(server, cache).fetch(url, None, tmp_path / "b")
    assert base.commit == head
    assert first > 300_000 > 10_000 > server.sent - first
    assert (await in_bare(tmp_path / "b", "fsck", "--strict", "--connectivity-only")).ok
    refs = await in_bare(tmp_path / "b", "for-each-ref", "--format=%(refname)")
    assert refs.out == b"refs/cloister/base\n"


async def test_a_cached_repository_is_not_served_without_the_right_to_fetch_it(
    server: PrivateServer, cache: ObjectCache, tmp_path: Path
) -> None:
    url = f"{server.url}/repo/.git"
    base = await git(server, cache).fetch(url, None, tmp_path / "a")
    for ref in (None, "main", base.commit):
        with pytest.raises(OutsideError) as refused:
            await git(server, cache, "Basic wrong").fetch(url, ref, tmp_path / "b")
        assert refused.value.code == "fetch_failed"
    assert not list((tmp_path / "b" / "objects" / "pack").glob("*.pack"))


async def test_a_run_stays_whole_when_the_cache_evicts_and_the_least_recently_used_goes_first(
    server: PrivateServer, repo: SampleRepo, tmp_path: Path
) -> None:
    cache = ObjectCache(tmp_path / "objects", 700_000, least_bytes=0)
    for number in range(3):
        (tmp_path / f"r{number}").symlink_to(repo.path)
    urls = [f"{server.url}/r{number}/.git" for number in range(3)]
    runs = [tmp_path / f"run{turn}" for turn in range(4)]
    for number, bare in zip((0, 1, 0, 2), runs, strict=True):
        await git(server, cache).fetch(urls[number], None, bare)
    assert [entry.address for entry in cache.entries()] == [urls[0], urls[2]]
    for bare in runs:
        assert (await in_bare(bare, "fsck", "--strict")).ok


async def test_concurrent_fetches_and_evictions_leave_every_run_whole(
    server: PrivateServer, repo: SampleRepo, tmp_path: Path
) -> None:
    cache, url = ObjectCache(tmp_path / "objects", 2**30, least_bytes=0), f"{server.url}/repo/.git"

    async def fetch(number: int) -> None:
        await git(server, cache).fetch(url, None, tmp_path / f"run{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(fetch, number)
        for _ in range(3):
            tasks.start_soon(cache.drop, url)
    for number in range(6):
        assert (await in_bare(tmp_path / f"run{number}", "fsck", "--strict")).ok


async def test_many_small_fetches_are_joined_and_stay_complete(
    cache: ObjectCache, repo: SampleRepo, tmp_path: Path
) -> None:
    for number in range(20):
        repo.write("file.txt", f"{number}\n")
        repo.commit(f"Change {number}")
        await PlainGit(ENV, cache=cache).fetch(str(repo.path), None, tmp_path / f"run{number}")
    (entry,) = cache.entries()
    assert len(entry.packs) < 17
    assert entry.tips[0] == repo.git("rev-parse", "HEAD").strip()
    assert (await in_bare(tmp_path / "run19", "fsck", "--strict", "--connectivity-only")).ok


@pytest.mark.parametrize("damage", ["truncated", "missing", "unreadable"])
async def test_a_damaged_entry_is_fetched_again(
    damage: str, cache: ObjectCache, server: PrivateServer, tmp_path: Path
) -> None:
    url = f"{server.url}/repo/.git"
    await git(server, cache).fetch(url, None, tmp_path / "a")
    (about,) = (tmp_path / "objects").glob("*/entry.json")
    for pack in about.parent.glob("objects/pack/*.pack"):
        pack.unlink()
        if damage == "truncated":
            pack.write_bytes(b"PACK")
    if damage == "unreadable":
        about.write_text("{")
    await git(server, cache).fetch(url, None, tmp_path / "b")
    assert (await in_bare(tmp_path / "b", "fsck", "--strict")).ok
    assert len(cache.entries()) == 1


async def test_a_corrupt_pack_of_the_right_size_is_noticed_and_replaced(
    cache: ObjectCache, server: PrivateServer, tmp_path: Path
) -> None:
    url = f"{server.url}/repo/.git"
    await git(server, cache).fetch(url, None, tmp_path / "a")
    for index in (tmp_path / "objects").glob("*/objects/pack/*.idx"):
        data = index.read_bytes()
        index.unlink()
        index.write_bytes(b"\0" * len(data))
    await git(server, cache).fetch(url, None, tmp_path / "b")
    assert (await in_bare(tmp_path / "b", "fsck", "--strict")).ok


async def test_joining_save_points_leaves_cached_packs_alone(
    cache: ObjectCache, repo: SampleRepo, tmp_path: Path
) -> None:
    bare = tmp_path / "run"
    await PlainGit(ENV, cache=cache).fetch(str(repo.path), None, bare)
    kept = sorted(path.name for path in (bare / "objects/pack").glob("*.pack"))
    assert kept
    for number in range(40):
        made = await in_bare(bare, "hash-object", "-w", "--stdin", stdin=f"{number}".encode())
        prefix = str(bare / "objects/pack/pack")
        await in_bare(bare, "pack-objects", "--quiet", prefix, stdin=made.out)
    await packs.collect(bare)
    after = sorted(path.name for path in (bare / "objects/pack").glob("*.pack"))
    assert set(kept) < set(after) and len(after) <= len(kept) + 2
