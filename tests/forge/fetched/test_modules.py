"""Submodules: what is fetched by whose rules, and what a change of one means."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.forge.git_http import answer

from cloister.core.computer import shell
from cloister.core.errors import UserError
from cloister.forge import Forges, workspace
from cloister.forge.change import files, make_change
from cloister.forge.host import in_bare
from cloister.forge.modules import check_moved, modules_of
from cloister.forge.modules_fetch import Outside, address_of
from cloister.forge.read import copy_commit
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

REF = "refs/cloister/r-1/1"


class Server(ThreadingHTTPServer):
    """Serves every repository below `root`."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.asked = root, list[str]()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        at = self.server
        assert isinstance(at, Server)
        at.asked.append(self.path)
        answer(self, at.root, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def lib(tmp_path: Path) -> SampleRepo:
    lib = SampleRepo(tmp_path / "lib")
    lib.write("lib.py", "one = 1\n")
    lib.commit("One")
    lib.write("lib.py", "one = 2\n")
    lib.commit("Two")
    return lib


def link(repo: SampleRepo, url: str, commit: str, path: str = "vendor/lib", name: str = "lib") -> None:
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    repo.write(".gitmodules", f'[submodule "{name}"]\n\tpath = {path}\n\turl = {url}\n')
    repo.git("add", ".gitmodules")
    repo.git("commit", "--quiet", "--message", "Link")


async def inside(tmp_path: Path, bare: Path, commit: str) -> LocalComputer:
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, commit)
    return computer


async def test_a_relative_submodule_is_fetched_and_checked_out_with_its_history(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    link(repo, "../../lib/.git", lib.head)
    base = await Forges().bring(f"{server.url}/repo/.git", None, tmp_path / "bare")
    computer = await inside(tmp_path, tmp_path / "bare", base.commit)
    at = SampleRepo(computer.work / "vendor/lib")
    assert (base.note, at.head, at.git("log", "--format=%s").split()) == (None, lib.head, ["Two", "One"])
    assert SampleRepo(computer.work).git("status", "--porcelain") == ""
    assert await workspace.save(computer, tmp_path / "bare", base.commit, REF) == base.commit


async def test_git_inside_finds_the_submodule_in_place_and_asks_no_server(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    link(repo, "../../lib/.git", lib.head)
    base = await Forges().bring(f"{server.url}/repo/.git", None, tmp_path / "bare")
    computer = await inside(tmp_path, tmp_path / "bare", base.commit)
    server.asked.clear()
    done = await computer.run(shell("git submodule update --init --recursive && cat vendor/lib/lib.py"))
    assert (done.ok, done.out, server.asked) == (True, b"one = 2\n", []), done.err


async def test_a_submodule_of_a_submodule_is_fetched_to_a_depth(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    inner = lib
    for number in range(6):
        outer = SampleRepo(tmp_path / f"mid{number}")
        outer.write("name", str(number))
        outer.commit("Begin")
        link(outer, f"{server.url}/{inner.path.name}/.git", inner.head, "sub")
        inner = outer
    link(repo, f"{server.url}/{inner.path.name}/.git", inner.head, "sub")
    base = await Forges().bring(f"{server.url}/repo/.git", None, tmp_path / "bare")
    computer = await inside(tmp_path, tmp_path / "bare", base.commit)
    there = [
        path.relative_to(computer.work) for path in computer.work.rglob("name") if ".git" not in path.parts
    ]
    assert sorted(len(path.parts) - 1 for path in there) == [1, 2, 3, 4]


async def test_a_directory_gives_the_submodule_that_it_has(
    repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    allow = ("-c", "protocol.file.allow=always")
    repo.git(*allow, "submodule", "--quiet", "add", str(lib.path), "vendor/lib")
    repo.git("commit", "--quiet", "--message", "Link")
    base = await Forges().bring(str(repo.path), None, tmp_path / "bare")
    computer = await inside(tmp_path, tmp_path / "bare", base.commit)
    assert (computer.work / "vendor/lib/lib.py").read_text() == "one = 2\n"
    forked = tmp_path / "fork"
    await copy_commit(tmp_path / "bare", base.commit, base.commit, forked)
    again = LocalComputer(tmp_path / "again")
    await workspace.restore(again, forked, base.commit, base.commit)
    assert (again.work / "vendor/lib/lib.py").read_text() == "one = 2\n"


async def test_another_directory_of_this_machine_is_never_a_submodule(
    repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    for number, url in enumerate((str(lib.path), f"file://{lib.path}", "../lib", "../../lib")):
        link(repo, url, lib.head)
        base = await Forges().bring(str(repo.path), None, tmp_path / f"bare{number}")
        assert base.note is not None and "The submodule vendor/lib is not fetched" in base.note
        missing = await in_bare(tmp_path / f"bare{number}", "cat-file", "-e", lib.head)
        assert not missing.ok, url


async def test_a_link_in_the_work_tree_leads_to_no_other_repository(
    repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    link(repo, "../nothing", lib.head)
    (repo.path / "vendor").mkdir(exist_ok=True)
    (repo.path / "vendor/lib").symlink_to(lib.path)
    base = await Forges().bring(str(repo.path), None, tmp_path / "bare")
    assert base.note is not None
    assert not (await in_bare(tmp_path / "bare", "cat-file", "-e", lib.head)).ok


async def test_another_host_is_asked_only_if_the_rules_allow_it(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    asked: list[tuple[str, int]] = []

    def deny(host: str, port: int) -> bool:
        asked.append((host, port))
        return False

    link(repo, "https://lib.example.org:8443/lib", lib.head)
    base = await Forges().bring(f"{server.url}/repo/.git", None, tmp_path / "bare", deny)
    assert asked == [("lib.example.org", 8443)]
    assert base.note is not None and "--allow-host lib.example.org" in base.note


async def test_a_commit_that_its_repository_lacks_is_named(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    link(repo, "../../lib/.git", "1" * 40)
    base = await Forges().bring(f"{server.url}/repo/.git", None, tmp_path / "bare")
    assert base.note is not None and "The submodule vendor/lib is not fetched" in base.note
    await inside(tmp_path, tmp_path / "bare", base.commit)


HERE = "https://forge.example.org/team/app.git"


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c 'touch pwned'",
        "ext::sh",
        "fd::7",
        "file:///etc",
        "/srv/lib",
        "lib",
        "-u./payload:x",
        "ssh://-oProxyCommand=x/lib",
        "ssh://host/-x",
        "git@-oProxyCommand=x:lib",
        "https://user:word@host/lib",
        "https://host/lib?x=1",
        "https://host/li\nb",
        "http://host/lib",
        "git://host/lib",
        "../../../lib",
        "../x/../../../y",
        "./..",
        "../",
        "",
        "https://",
        "https:///lib",
        "x" * 3_000,
    ],
)
def test_hostile_addresses_are_not_used(url: str) -> None:
    with pytest.raises(Outside):
        address_of(url, HERE)


@pytest.mark.parametrize(
    ("url", "parent", "expected"),
    [
        ("../lib.git", HERE, "https://forge.example.org/team/lib.git"),
        ("./lib", HERE, "https://forge.example.org/team/app.git/lib"),
        ("../../other/lib", HERE, "https://forge.example.org/other/lib"),
        ("../lib.git", "git@host:team/app.git", "git@host:team/lib.git"),
        ("../lib.git", "git@host:/srv/app.git", "git@host:/srv/lib.git"),
        ("git@host:lib.git", HERE, "git@host:lib.git"),
        ("ssh://git@host:22/a/lib", HERE, "ssh://git@host:22/a/lib"),
        ("http://h:8080/lib", "http://h:8080/app", "http://h:8080/lib"),
    ],
)
def test_plain_addresses_are_read_as_git_reads_them(url: str, parent: str, expected: str) -> None:
    assert address_of(url, parent) == expected


async def test_hostile_names_and_paths_name_nothing(
    repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    text = "".join(
        f'[submodule "{name}"]\n\tpath = {path}\n\turl = https://forge.example.org/x\n'
        for name, path in (
            ("../../hooks", "a"),
            ("x", "../up"),
            ("y", "/etc"),
            ("z", ".git/modules"),
            ("w", "src/.GIT/x"),
            ("v", ":(glob)**"),
            ("u", "src"),
        )
    )
    repo.write(".gitmodules", text + "[include]\n\tpath = /etc/passwd\n")
    repo.git("add", ".gitmodules")
    repo.git("commit", "--quiet", "--message", "Hostile")
    bare = repo.path / ".git"
    assert await modules_of(bare, repo.head) == ()
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{lib.head},a")
    repo.git("commit", "--quiet", "--message", "One")
    assert [module.path for module in await modules_of(bare, repo.head)] == ["a"]
    (repo.path / ".gitmodules").unlink()
    (repo.path / ".gitmodules").symlink_to("/etc/passwd")
    repo.git("add", ".gitmodules")
    repo.git("commit", "--quiet", "--message", "Link")
    assert await modules_of(bare, repo.head) == ()


async def test_an_older_commit_of_a_submodule_is_a_change_and_an_own_one_is_not(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    link(repo, "../../lib/.git", lib.head)
    bare = tmp_path / "bare"
    base = (await Forges().bring(f"{server.url}/repo/.git", None, bare)).commit
    computer = await inside(tmp_path, bare, base)
    at = SampleRepo(computer.work / "vendor/lib")
    at.git("checkout", "--quiet", "HEAD~1")
    saved = await workspace.save(computer, bare, base, REF)
    assert [one.path for one in await files(bare, base, saved)] == ["vendor/lib"]
    await check_moved(bare, base, saved)
    proof = LocalComputer(tmp_path / "proof")
    await workspace.restore(proof, bare, base, saved)
    assert (proof.work / "vendor/lib/lib.py").read_text() == "one = 1\n"

    at.write("lib.py", "one = 3\n")
    at.commit("Own")
    (computer.work / "README.md").write_text("changed\n")
    saved = await workspace.save(computer, bare, base, REF)
    with pytest.raises(UserError) as caught:
        await check_moved(bare, base, saved)
    assert caught.value.code == "submodule_moved"
    made = await make_change(bare, base, saved, "cloister/x", "Change")
    assert [one.path for one in await files(bare, base, made)] == ["README.md"]
    again = LocalComputer(tmp_path / "again")
    await workspace.restore(again, bare, base, saved)
    assert (again.work / "vendor/lib/lib.py").read_text() == "one = 2\n"


async def test_edits_inside_a_submodule_are_named_before_the_end(
    server: Server, repo: SampleRepo, lib: SampleRepo, tmp_path: Path
) -> None:
    link(repo, "../../lib/.git", lib.head)
    bare = tmp_path / "bare"
    base = (await Forges().bring(f"{server.url}/repo/.git", None, bare)).commit
    computer = await inside(tmp_path, bare, base)
    (computer.work / "vendor/lib/built.o").write_text("x")
    await workspace.check_modules(computer, bare, base, base)
    (computer.work / "vendor/lib/lib.py").write_text("one = 9\n")
    with pytest.raises(UserError) as caught:
        await workspace.check_modules(computer, bare, base, base)
    assert caught.value.code == "submodule_edited"
