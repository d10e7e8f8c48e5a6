"""Plain git on this machine: what is fetched, what is refused, and what a delivery leaves alone."""

import os
import shutil
from pathlib import Path

import pytest
from tests.core.system.own_process import own_process
from tests.forge.delivering import deliver

from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.ids import RunId
from cloister.forge.api import Base, Delivered, Proposal
from cloister.forge.change import describe, make_change
from cloister.forge.host import in_bare
from cloister.forge.plain_git import BASE_REF, PlainGit
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act on another user's repository")


async def _refused(repo: str, ref: str | None, bare: Path) -> CloisterError:
    with pytest.raises(CloisterError) as caught:
        await PlainGit().fetch(repo, ref, bare)
    return caught.value


async def test_a_subdirectory_stands_for_its_repository(repo: SampleRepo, tmp_path: Path) -> None:
    base = await PlainGit().fetch(str(repo.path / "src"), None, tmp_path / "bare")
    assert base == Base(repo.head, "main", None)


async def test_a_file_url_is_a_path(repo: SampleRepo, tmp_path: Path) -> None:
    base = await PlainGit().fetch(f"file://{repo.path}", "HEAD~1", tmp_path / "bare")
    assert base == Base(repo.git("rev-parse", "HEAD~1"), None, None)


async def test_a_detached_head_has_no_branch(repo: SampleRepo, tmp_path: Path) -> None:
    repo.git("checkout", "--quiet", "--detach", "HEAD~1")
    assert await PlainGit().fetch(str(repo.path), None, tmp_path / "bare") == Base(repo.head, None, None)


async def test_a_bare_repository_and_a_linked_worktree_are_repositories(
    repo: SampleRepo, tmp_path: Path
) -> None:
    repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "other.git"))
    repo.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"), "HEAD~1")
    bare = await PlainGit().fetch(str(tmp_path / "other.git"), None, tmp_path / "one")
    side = await PlainGit().fetch(str(tmp_path / "side"), None, tmp_path / "two")
    assert (bare, side) == (Base(repo.head, "main"), Base(repo.git("rev-parse", "side"), "side"))


async def test_a_shallow_clone_is_fetched_and_delivered_to(repo: SampleRepo, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--depth=1", f"file://{repo.path}", str(tmp_path / "shallow"))
    shallow = SampleRepo(tmp_path / "shallow")
    base = await PlainGit().fetch(str(shallow.path), None, tmp_path / "bare")
    delivered = await deliver(tmp_path / "bare", base.commit, "cloister/x", str(shallow.path))
    assert base.commit == repo.head
    assert delivered == Delivered(str(shallow.path), "cloister/x", commit=base.commit)


def _cloned(repo: SampleRepo, at: Path, *how: str) -> SampleRepo:
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("clone", "--quiet", *how, f"file://{repo.path}", str(at))
    return SampleRepo(at)


async def test_a_partial_clone_is_fetched_without_its_history_and_delivered_to(
    repo: SampleRepo, tmp_path: Path
) -> None:
    repo.write("README.md", "# Another\n")
    repo.commit("Third")
    partial = _cloned(repo, tmp_path / "partial", "--filter=blob:none")
    shutil.rmtree(repo.path)  # its remote cannot be asked
    base = await PlainGit().fetch(str(partial.path), None, tmp_path / "bare")
    assert base.note is not None and "partial clone" in base.note
    made = await make_change(tmp_path / "bare", base.commit, base.commit, "cloister/x", "Change")
    delivered = await deliver(tmp_path / "bare", made, "cloister/x", str(partial.path))
    assert delivered == Delivered(str(partial.path), "cloister/x", commit=made)
    assert not (partial.path / ".git/shallow").exists()
    assert partial.git("rev-list", "--count", "cloister/x") == "4"


async def test_a_partial_clone_that_lacks_files_of_the_commit_is_named(
    repo: SampleRepo, tmp_path: Path
) -> None:
    partial = _cloned(repo, tmp_path / "partial", "--filter=blob:none", "--no-checkout")
    packs = set((partial.path / ".git/objects/pack").iterdir())
    error = await _refused(str(partial.path), None, tmp_path / "bare")
    assert (error.code, "--refetch" in error.message) == ("partial_clone", True)
    assert set((partial.path / ".git/objects/pack").iterdir()) == packs


async def test_a_sparse_checkout_gives_the_whole_tree_and_stays_as_it_is(
    repo: SampleRepo, tmp_path: Path
) -> None:
    repo.git("sparse-checkout", "set", "--no-cone", "/README.md")
    before = {path.name for path in repo.path.iterdir()}
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    assert base == Base(repo.head, "main", None)
    listed = await in_bare(tmp_path / "bare", "ls-tree", "-r", "--name-only", base.commit)
    assert listed.out.decode().split() == [".gitignore", "README.md", "kept.log", "src/app.py"]
    made = await make_change(tmp_path / "bare", base.commit, base.commit, "cloister/x", "Change")
    await deliver(tmp_path / "bare", made, "cloister/x", str(repo.path))
    assert {path.name for path in repo.path.iterdir()} == before == {".git", "README.md"}
    assert repo.git("sparse-checkout", "list") == "/README.md"


async def test_uncommitted_files_are_counted_in_the_note(repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("README.md", "changed")
    start = f"it starts from commit {repo.head[:7]}."
    one = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    assert one.note == f"1 uncommitted file is not part of this run; {start}"

    repo.git("mv", "src/app.py", "src/main.py")
    repo.write("new/a.txt")
    repo.write("new/b.txt")
    repo.write("ignored.log")
    four = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    assert four.note == f"4 uncommitted files are not part of this run; {start}"


async def test_what_is_not_a_repository_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "plain", "file", "loop", "x" * 300, "-x"):
        error = await _refused(str(tmp_path / name), None, tmp_path / "bare")
        assert (type(error), error.code) == (UserError, "no_repository"), name
    error = await _refused(str(tmp_path / "plain"), None, tmp_path / "bare")
    assert error.message == (
        f"{tmp_path / 'plain'} is not a git repository: run `git init` and commit first, or give a git URL."
    )
    assert (await _refused("a\0b", None, tmp_path / "bare")).code == "bad_name"


async def test_a_damaged_repository_is_refused(repo: SampleRepo, tmp_path: Path) -> None:
    shutil.rmtree(repo.path / ".git" / "objects")
    error = await _refused(str(repo.path), None, tmp_path / "bare")
    assert error.code in ("no_repository", "broken_repository")


@pytest.mark.parametrize("url", ["ext::sh -c 'touch marker'", "fd::7", "gopher://host/x"])
async def test_odd_kinds_of_url_are_refused(url: str, tmp_path: Path) -> None:
    error = await _refused(url, None, tmp_path / "bare")
    assert (type(error), error.code) == (UserError, "no_repository")


TELL_APART = "import sys; from cloister.forge.plain_git import is_url; print(*map(is_url, sys.argv[1:]))"
FETCH = """
import sys, anyio, pathlib
from cloister.core.errors import CloisterError
from cloister.forge.plain_git import PlainGit
try:
    anyio.run(PlainGit().fetch, sys.argv[1], None, pathlib.Path(sys.argv[2]))
except CloisterError as error:
    print(type(error).__name__, error.code)
"""


def test_urls_and_paths_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "odd:name").mkdir()
    urls = ["https://host/a.git", "ssh://git@host/a", "git@host:a/b.git", "host:a"]
    paths = ["/a/b", ".", "a/b:c", "odd:name", "file:///a", "~/a"]
    told = own_process(TELL_APART, *urls, *paths, cwd=tmp_path)
    assert told.stdout.split() == [*["True"] * len(urls), *["False"] * len(paths)], told.stderr


async def test_an_unreachable_url_is_reported_without_its_password(
    tmp_path: Path,
) -> None:
    git = PlainGit({**os.environ, "no_proxy": "127.0.0.1"})
    with pytest.raises(OutsideError) as caught:
        await git.fetch("http://ada:p@ss@127.0.0.1:1/x.git", None, tmp_path / "bare")
    assert caught.value.code == "fetch_failed"
    assert caught.value.retryable
    assert caught.value.message.startswith("http://127.0.0.1:1/x.git cannot be fetched: ")
    assert "ss@" not in caught.value.message and "ada" not in caught.value.message


def test_without_git_the_host_is_to_blame(repo: SampleRepo, tmp_path: Path) -> None:
    told = own_process(FETCH, str(repo.path), str(tmp_path / "bare"), env={"PATH": str(tmp_path)})
    assert told.stdout == "HostError no_git\n", told.stderr


async def test_a_delivery_touches_neither_head_nor_index_nor_tree(repo: SampleRepo, tmp_path: Path) -> None:
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    repo.write("README.md", "staged")
    repo.git("add", "README.md")
    repo.write("README.md", "and changed again")
    repo.write("untracked.txt")
    before = repo.state()
    delivered = await deliver(tmp_path / "bare", base.commit, "cloister/fix", str(repo.path / "src"))
    assert delivered == Delivered(str(repo.path), "cloister/fix", commit=base.commit)
    assert repo.state() == before
    assert repo.git("for-each-ref", "--format=%(refname)") == "refs/heads/cloister/fix\nrefs/heads/main"
    assert not (repo.path / ".git" / "FETCH_HEAD").exists()


async def test_a_branch_in_the_way_changes_the_name(repo: SampleRepo, tmp_path: Path) -> None:
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    for taken in ("fix", "fix-2", "cloister"):
        repo.git("branch", taken, "HEAD~1")
    names: list[str] = []
    for wanted in ("fix", "cloister/fix"):
        delivered = await deliver(tmp_path / "bare", base.commit, wanted, str(repo.path))
        assert delivered is not None
        names.append(delivered.branch)
    assert names == ["fix-3", "cloister-fix"]
    assert repo.branches()["fix"] == repo.git("rev-parse", "HEAD~1")


async def test_a_later_round_fast_forwards_only_its_own_branch(repo: SampleRepo, tmp_path: Path) -> None:
    first, bare, here = repo.git("rev-parse", "HEAD~1"), tmp_path / "bare", str(repo.path)
    second = (await PlainGit().fetch(here, None, bare)).commit
    for name in ("cloister/mine", "cloister/theirs", "cloister/open"):
        await deliver(bare, first, name, here)
    repo.git("switch", "--quiet", "cloister/theirs")
    repo.write("theirs.txt")
    theirs = repo.commit("Theirs")
    repo.git("switch", "--quiet", "cloister/open")
    names: list[str] = []
    for name in ("cloister/mine", "cloister/theirs", "cloister/open"):
        delivered = await deliver(bare, second, name, here, previous=first)
        names.append(delivered.branch if delivered else "")
    assert names == ["cloister/mine", "cloister/theirs-2", "cloister/open-2"]
    branches = repo.branches()
    assert branches["cloister/mine"] == branches["cloister/theirs-2"] == branches["cloister/open-2"] == second
    assert (branches["cloister/theirs"], branches["cloister/open"]) == (theirs, first)
    assert repo.git("status", "--porcelain") == ""


async def test_a_proposal_carries_the_words_of_its_commit(repo: SampleRepo, tmp_path: Path) -> None:
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    bare, here = tmp_path / "bare", str(repo.path)
    made = await make_change(bare, base.commit, base.commit, "cloister/x", "Fix it\n\nBecause.\n")
    proposal = await describe(Proposal(RunId("r-1"), here, base.commit, made, "cloister/x", bare))
    assert (proposal.title, proposal.body, proposal.receipt) == ("Fix it", "Because.", None)


async def test_no_hook_of_the_repository_runs(repo: SampleRepo, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hooks = repo.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "pre-auto-gc", "fsmonitor"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> {marker}\n")
        (hooks / name).chmod(0o755)
    repo.git("config", "core.fsmonitor", ".git/hooks/fsmonitor")
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    await deliver(tmp_path / "bare", base.commit, "cloister/fix", str(repo.path))
    assert not marker.exists()


@needs_root
async def test_another_users_repository_is_used_with_that_users_rights(
    repo: SampleRepo, tmp_path: Path
) -> None:
    _reachable(tmp_path)
    marker = repo.path / "marker"
    repo.git("config", "filter.evil.clean", f"sh -c 'id -u >> {marker}; cat'")
    repo.write(".gitattributes", "*.md filter=evil\n")
    repo.write("new.md", "new\n")  # one that git must look into, so that the filter is seen to run
    commit = repo.commit("Hostile")
    repo.write("README.md", "# Simple\n")  # of the same length, so that git must look inside
    marker.unlink()
    for folder, _, names in os.walk(repo.path):
        for name in (".", *names):
            os.lchown(Path(folder) / name, 12_345, 12_345)
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    delivered = await deliver(tmp_path / "bare", commit, "cloister/fix", str(repo.path))
    assert (base.commit, delivered) == (commit, Delivered(str(repo.path), "cloister/fix", commit=commit))
    owners = {path.lstat().st_uid for path in (repo.path / ".git").rglob("*")}
    assert owners == {12_345}
    assert not marker.exists(), "the repository's own configuration ran"


async def test_nothing_that_a_repository_configures_runs_on_the_host(
    repo: SampleRepo, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    other = SampleRepo(tmp_path / "other")
    other.write("file")
    other.commit("Elsewhere")
    (repo.path / ".git/objects/info").mkdir(exist_ok=True)
    (repo.path / ".git/objects/info/alternates").write_text(f"{other.path / '.git/objects'}\n")
    repo.write(".gitattributes", "*.md filter=evil diff=evil\n")
    commit = repo.commit("Hostile")
    repo.write("README.md", "# Simple\n")
    trap = f"sh -c 'echo ran >> {marker}; cat'"
    for name in ("filter.evil.clean", "filter.evil.process", "core.alternateRefsCommand", "diff.external"):
        repo.git("config", name, trap)
    repo.git("config", "filter.evil.required", "true")
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    assert base.note is not None
    await deliver(tmp_path / "bare", commit, "cloister/fix", str(repo.path))
    assert not marker.exists()


def _reachable(folder: Path) -> None:
    """Let other users walk to `folder`."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)


async def test_the_base_is_kept_by_a_ref_of_its_own(repo: SampleRepo, tmp_path: Path) -> None:
    base = await PlainGit().fetch(str(repo.path), None, tmp_path / "bare")
    assert (tmp_path / "bare" / BASE_REF).read_text().strip() == base.commit
    assert not (tmp_path / "bare" / "hooks").exists()
