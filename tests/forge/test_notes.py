"""The receipt goes along with the change as a git note, to the byte, and nobody else's notes are lost."""

import hashlib
from pathlib import Path

import anyio
import pytest
from tests.forge.delivering import deliver

from cloister.core.ids import RunId
from cloister.forge import change
from cloister.forge.plain_git import PlainGit
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

TEXT = "# Receipt\n\n\n  two blank lines and spaces  \n- `ü` \n"


async def changed(repo: SampleRepo, bare: Path, name: str = "new.txt", text: str = TEXT) -> tuple[str, str]:
    """A change of ours with its note; commit and branch."""
    base = await PlainGit().fetch(str(repo.path), None, bare)
    other = SampleRepo(bare.parent / f"{bare.name}-work")
    other.git("fetch", "--quiet", str(bare), "refs/cloister/base")
    other.git("reset", "--quiet", "--hard", "FETCH_HEAD")
    other.write(name, "new\n")
    saved = other.commit("saved")
    await PlainGit().fetch(str(other.path), None, bare)
    branch = change.branch_name("p", RunId("r-" + name))
    commit = await change.make_change(
        bare, base.commit, saved, branch, f"Subject\n\n{change.trailer(text)}\n"
    )
    await change.attach(bare, commit, text)
    return commit, branch


@pytest.fixture
def repo(tmp_path: Path) -> SampleRepo:
    made = SampleRepo(tmp_path / "repo")
    made.write("a.txt", "a\n")
    made.commit()
    return made


async def test_a_delivery_brings_the_note_and_the_commit_names_its_hash(
    repo: SampleRepo, tmp_path: Path
) -> None:
    commit, branch = await changed(repo, tmp_path / "run.git")
    before = repo.state()
    delivered = await deliver(tmp_path / "run.git", commit, branch, str(repo.path))
    assert delivered is not None
    assert delivered.receipt
    shown = repo.git("notes", "--ref=cloister", "show", branch) + "\n"
    assert shown == TEXT
    digest = hashlib.sha256(shown.encode()).hexdigest()
    trailer = repo.git("log", "-1", "--format=%(trailers:key=Cloister-Receipt,valueonly)", branch).strip()
    assert trailer == f"sha256:{digest}"
    assert repo.state() == before
    assert list(repo.branches()) == [branch, "main"]


async def test_notes_of_others_stay_and_changes_at_the_same_time_both_get_theirs(
    repo: SampleRepo, tmp_path: Path
) -> None:
    repo.git("notes", "--ref=cloister", "add", "-m", "mine", "HEAD")
    made = [await changed(repo, tmp_path / f"run{n}.git", f"{n}.txt", f"receipt {n}\n") for n in range(6)]

    async def put(n: int) -> None:
        done = await deliver(tmp_path / f"run{n}.git", *made[n], str(repo.path))
        assert done is not None

    async with anyio.create_task_group() as tasks:
        for n in range(6):
            tasks.start_soon(put, n)
    for n, (commit, _) in enumerate(made):
        assert repo.git("notes", "--ref=cloister", "show", commit) == f"receipt {n}"
    assert repo.git("notes", "--ref=cloister", "show", "main") == "mine"


async def test_a_repository_that_takes_no_notes_gets_the_change_without(
    repo: SampleRepo, tmp_path: Path
) -> None:
    commit, branch = await changed(repo, tmp_path / "run.git")
    repo.git("update-ref", "refs/notes", "HEAD")  # a ref where the directory of the notes should be
    delivered = await deliver(tmp_path / "run.git", commit, branch, str(repo.path))
    assert delivered is not None
    assert (delivered.branch, delivered.receipt) == (branch, False)
    assert repo.branches()[branch] == commit


async def test_no_hook_of_the_repository_runs_for_a_note(repo: SampleRepo, tmp_path: Path) -> None:
    commit, branch = await changed(repo, tmp_path / "run.git")
    hook = repo.write(".git/hooks/reference-transaction", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    await deliver(tmp_path / "run.git", commit, branch, str(repo.path))
    assert not (tmp_path / "ran").exists()


async def test_a_change_without_a_receipt_brings_no_note(repo: SampleRepo, tmp_path: Path) -> None:
    bare = tmp_path / "run.git"
    base = await PlainGit().fetch(str(repo.path), None, bare)
    delivered = await deliver(bare, base.commit, "cloister/x", str(repo.path))
    assert delivered is not None
    assert not delivered.receipt
    assert repo.git("for-each-ref", "refs/notes") == ""
