"""Ignored files that the settings name are kept with each save point, bounded, and never part of a change."""

from pathlib import Path

import pytest

from cloister.core import limits
from cloister.core.repository import read_settings
from cloister.forge import workspace
from cloister.forge.change import files, make_change
from cloister.forge.host import in_bare
from cloister.forge.plain_git import PlainGit
from cloister.forge.read import copy_commit
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

REF = "refs/cloister/r-1/1"
PATTERNS = (".env.test", "build/cache/**", "*.log")


async def _inside(repo: SampleRepo, tmp_path: Path) -> tuple[Path, str, LocalComputer]:
    repo.write(".gitignore", "*.log\nbuild/\n.env*\n")
    repo.commit("Ignore")
    bare, computer = tmp_path / "bare", LocalComputer(tmp_path / "guest")
    base = (await PlainGit().fetch(str(repo.path), None, bare)).commit
    await workspace.put(computer, bare, base)
    return bare, base, computer


async def _save(computer: LocalComputer, bare: Path, base: str) -> str:
    kept = await workspace.list_kept(computer, PATTERNS)
    return await workspace.save(computer, bare, base, REF, kept=kept)


async def _again(tmp_path: Path, bare: Path, base: str, saved: str) -> Path:
    computer = LocalComputer(tmp_path / saved)
    await workspace.restore(computer, bare, base, saved)
    assert not (computer.work / ".env.test").exists()  # a proof has only the change
    await workspace.restore_kept(computer, bare, saved)
    assert await workspace.tree(computer, bare, base) == (
        (await in_bare(bare, "rev-parse", f"{saved}^{{tree}}")).out.decode().strip()
    )
    return computer.work


async def test_ignored_files_come_back_with_their_save_point_and_are_no_change(
    repo: SampleRepo, tmp_path: Path
) -> None:
    bare, base, computer = await _inside(repo, tmp_path)
    inside = SampleRepo(computer.work)
    inside.write(".env.test", "A=1\n")
    inside.write(".env", "SECRET=1\n")
    inside.write("build/cache/deep/one", "1").chmod(0o755)
    inside.write("build/other", "no")
    first = await _save(computer, bare, base)
    inside.write("new.txt", "new\n")
    inside.write(".env.test", "A=2\n")
    (computer.work / "build/cache/deep/one").unlink()
    second = await _save(computer, bare, base)
    assert [one.path for one in await files(bare, base, first)] == []
    assert [one.path for one in await files(bare, base, second)] == ["new.txt"]

    early, late = await _again(tmp_path, bare, base, first), await _again(tmp_path, bare, base, second)
    assert ((early / ".env.test").read_text(), (late / ".env.test").read_text()) == ("A=1\n", "A=2\n")
    assert (early / "build/cache/deep/one").stat().st_mode & 0o111
    assert not (late / "build/cache").exists()
    assert not (early / ".env").exists()
    assert not (early / "build/other").exists()
    assert (early / "kept.log").read_text() == "tracked although ignored\n"

    made = await make_change(bare, base, second, "cloister/x", "Change")
    reached = await in_bare(bare, "rev-list", "--objects", made)
    assert b".env.test" not in reached.out
    await copy_commit(bare, first, base, tmp_path / "fork")
    assert ((await _again(tmp_path / "f", tmp_path / "fork", base, first)) / ".env.test").exists()


async def test_nothing_kept_is_no_save_point(repo: SampleRepo, tmp_path: Path) -> None:
    bare, base, computer = await _inside(repo, tmp_path)
    assert await _save(computer, bare, base) == base
    SampleRepo(computer.work).write(".env.test", "A=1\n")
    assert await workspace.list_kept(computer, ()) == ""


async def test_too_many_and_too_large_files_are_not_kept_and_the_save_is_made(
    repo: SampleRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, base, computer = await _inside(repo, tmp_path)
    inside = SampleRepo(computer.work)
    inside.write("new.txt", "new\n")
    with (inside.path / "large.log").open("wb") as file:
        file.truncate(limits.KEPT_BYTES + 1)
    saved = await _save(computer, bare, base)
    assert [one.path for one in await files(bare, base, saved)] == ["new.txt"]
    assert await workspace.kept_of(bare, saved) is None
    monkeypatch.setattr(limits, "KEPT_FILES", 1)
    (inside.path / "large.log").write_text("small")
    assert await workspace.list_kept(computer, PATTERNS) != ""
    inside.write("other.log")
    assert await workspace.list_kept(computer, PATTERNS) == ""


def test_patterns_that_lead_out_or_into_git_are_not_used() -> None:
    text = 'keep = ["ok/**", "/etc/passwd", "../x", ":(exclude)a", ".git/config", "a/../b", ""]'
    assert read_settings({".cloister/config.toml": text}).keep == ("ok/**",)
