"""A change on a moved base: what both sides did, also after a push by force; conflicts are named."""

from pathlib import Path

import pytest

from cloister.forge.change import files
from cloister.forge.host import in_bare
from cloister.forge.plain_git import PlainGit
from cloister.runs.attempts.rebase import replay
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio


async def _bases(repo: SampleRepo, bare: Path) -> tuple[str, str]:
    """The base, and a commit on it that stands for the change."""
    base = repo.head
    repo.git("checkout", "--quiet", "-b", "side")
    repo.write("src/app.py", "print('two')\n")
    repo.write("new.txt", "new\n")
    saved = repo.commit("Change")
    await PlainGit().fetch(str(repo.path), "side", bare)
    repo.git("checkout", "--quiet", "main")
    return base, saved


async def test_what_both_sides_did_is_in_the_replayed_change(repo: SampleRepo, tmp_path: Path) -> None:
    base, saved = await _bases(repo, tmp_path / "bare")
    repo.write("README.md", "# Moved\n")
    new = repo.commit("Upstream")
    await PlainGit().fetch(str(repo.path), "main", tmp_path / "bare")
    done = await replay(tmp_path / "bare", base, saved, new)
    assert done.conflicts == ()
    assert [one.path for one in await files(tmp_path / "bare", new, done.commit)] == ["new.txt", "src/app.py"]


async def test_a_base_that_was_pushed_by_force_takes_nothing_of_the_old_one_along(
    repo: SampleRepo, tmp_path: Path
) -> None:
    base, saved = await _bases(repo, tmp_path / "bare")
    repo.git("reset", "--quiet", "--hard", "HEAD~1")  # the commit with .gitignore and kept.log is dropped
    repo.write("README.md", "# Other\n")
    new = repo.commit("Forced")
    await PlainGit().fetch(str(repo.path), "main", tmp_path / "bare")
    done = await replay(tmp_path / "bare", base, saved, new)
    assert [one.path for one in await files(tmp_path / "bare", new, done.commit)] == ["new.txt", "src/app.py"]


async def test_conflicts_are_named_and_marked(repo: SampleRepo, tmp_path: Path) -> None:
    base, saved = await _bases(repo, tmp_path / "bare")
    repo.write("src/app.py", "print('three')\n")
    new = repo.commit("Upstream")
    await PlainGit().fetch(str(repo.path), "main", tmp_path / "bare")
    done = await replay(tmp_path / "bare", base, saved, new)
    assert done.conflicts == ("src/app.py",)
    text = (await in_bare(tmp_path / "bare", "cat-file", "blob", f"{done.commit}:src/app.py")).out
    assert b"<<<<<<<" in text
    assert b"three" in text
    assert b"two" in text
