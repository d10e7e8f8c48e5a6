"""The repository in the sandbox: put, named, saved outside and restored, whatever the agent does to it."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.core import limits
from cloister.core.computer import Command, shell
from cloister.core.errors import HostError, UserError
from cloister.forge import packs, workspace
from cloister.forge.change import files
from cloister.forge.host import in_bare
from cloister.forge.plain_git import PlainGit
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

REF = "refs/cloister/r-1/1"


class Room:
    """A run's repository, a computer with it inside, and the base commit."""

    def __init__(self, bare: Path, computer: LocalComputer, base: str) -> None:
        self.bare = bare
        self.computer = computer
        self.base = base
        self.inside = SampleRepo(computer.work)

    async def save(self) -> str:
        return await workspace.save(self.computer, self.bare, self.base, REF)

    async def paths(self) -> list[str]:
        return [change.path for change in await files(self.bare, self.base, await self.save())]


async def _room(repo: SampleRepo, tmp_path: Path, history_bytes: int = limits.HISTORY_BYTES) -> Room:
    bare = tmp_path / "bare"
    base = await PlainGit().fetch(str(repo.path), None, bare)
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base.commit, "work", history_bytes=history_bytes)
    return Room(bare, computer, base.commit)


async def test_put_makes_a_clean_checkout_with_history_and_an_identity(
    repo: SampleRepo, tmp_path: Path
) -> None:
    room = await _room(repo, tmp_path)
    inside = room.inside
    assert (inside.head, inside.git("symbolic-ref", "--short", "HEAD")) == (repo.head, "work")
    assert inside.git("log", "--format=%s").split() == ["Second", "First"]
    assert inside.git("status", "--porcelain") == ""
    assert inside.git("ls-files") == repo.git("ls-files")
    assert inside.git("config", "user.name") == "Cloister"
    assert inside.git("remote") == ""
    assert {p.name for p in room.computer.work.iterdir()} == {p.name for p in repo.path.iterdir()}


async def test_a_tree_is_named_by_its_files_alone(repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    untouched = await workspace.tree(room.computer, room.bare, room.base)
    assert untouched == repo.git("rev-parse", "HEAD^{tree}")
    index = room.inside.git("ls-files", "--stage")

    room.inside.write("new.txt", "untracked")
    changed = await workspace.tree(room.computer, room.bare, room.base)
    room.inside.write("ignored.log", "ignored")
    assert changed == await workspace.tree(room.computer, room.bare, room.base) != untouched
    assert room.inside.git("ls-files", "--stage") == index

    (room.inside.path / "new.txt").unlink()
    assert await workspace.tree(room.computer, room.bare, room.base) == untouched


async def test_nothing_changed_saves_the_base(repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    assert await room.save() == room.base


async def test_every_kind_of_file_is_saved_as_it_is(repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    work = room.computer.work
    (work / "link").symlink_to("/etc/passwd")
    room.inside.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    room.inside.write("odd\n\t\"'$(id) name", "x")
    (work / os.fsdecode(b"\xff\xfe")).write_bytes(b"\x00\xff")
    room.inside.write("kept.log", "changed")
    (work / "README.md").unlink()
    os.mkfifo(work / "fifo")
    saved = await room.save()
    listed = await in_bare(room.bare, "ls-tree", "-r", "-z", saved)
    entries = [entry.split(b"\t", 1) for entry in listed.out.split(b"\0")[:-1]]
    assert {path: mode[:6] for mode, path in entries} == {
        b".gitignore": b"100644",
        b"kept.log": b"100644",
        b"link": b"120000",
        b"odd\n\t\"'$(id) name": b"100644",
        b"run.sh": b"100755",
        b"src/app.py": b"100644",
        b"\xff\xfe": b"100644",
    }
    parent = await in_bare(room.bare, "rev-parse", f"{saved}^", REF)
    assert parent.out.decode().split() == [room.base, saved]


async def test_a_submodule_keeps_its_commit(repo: SampleRepo, tmp_path: Path) -> None:
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    repo.write(".gitmodules", '[submodule "lib"]\n\tpath = lib\n\turl = https://example.org/lib\n')
    repo.git("add", ".gitmodules")
    repo.git("commit", "--quiet", "--message", "Submodule")
    room = await _room(repo, tmp_path)
    room.inside.write("new.txt")
    assert await room.paths() == ["new.txt"]


async def test_what_the_agent_commits_stages_or_configures_does_not_matter(
    repo: SampleRepo, tmp_path: Path
) -> None:
    room = await _room(repo, tmp_path)
    inside = room.inside
    inside.write("one.txt", "1")
    inside.commit("By the agent")
    inside.git("checkout", "--quiet", "-b", "elsewhere")
    inside.write("two.txt", "2\r\n")
    inside.git("add", "two.txt")
    for setting in ("core.autocrlf", "core.sparseCheckout", "core.splitIndex"):
        inside.git("config", setting, "true")
    inside.write("three.txt", "3")
    assert await room.paths() == ["one.txt", "three.txt", "two.txt"]
    blob = await in_bare(room.bare, "cat-file", "blob", f"{REF}:two.txt")
    assert blob.out == b"2\r\n"


@pytest.mark.parametrize(
    "damage",
    [
        "rm -rf .git",
        "rm -rf .git && git init -q .",
        "rm -rf .git/cloister-index .git/refs/cloister",
        "touch .git/cloister-index.lock",
        "echo garbage > .git/cloister-index",
        "git gc --quiet --prune=now",
    ],
)
async def test_a_damaged_repository_inside_still_saves(damage: str, repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    room.inside.write("new.txt", "before")
    await workspace.tree(room.computer, room.bare, room.base)
    assert (await room.computer.run(shell(damage))).ok
    assert await room.paths() == ["new.txt"]
    room.inside.write("README.md", "after")
    assert await room.paths() == ["README.md", "new.txt"]


async def test_a_repository_that_the_agent_made_inside_does_not_stop_a_save(
    repo: SampleRepo, tmp_path: Path
) -> None:
    room = await _room(repo, tmp_path)
    SampleRepo(room.computer.work / "nested").write("file.txt")
    room.inside.write("new.txt")
    assert "new.txt" in await room.paths()


async def test_a_change_that_is_too_large_is_refused(repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    (room.computer.work / "big").write_bytes(os.urandom(2 << 20))
    with pytest.raises(UserError) as caught:
        await workspace.save(room.computer, room.bare, room.base, REF, limit_bytes=1 << 20)
    assert caught.value.code == "change_too_large"
    assert await room.paths() == ["big"]


async def test_restore_makes_the_files_what_they_were_and_leaves_head_at_the_base(
    repo: SampleRepo, tmp_path: Path
) -> None:
    room = await _room(repo, tmp_path)
    room.inside.write("src/app.py", "print('two')\n")
    room.inside.write("new/run.sh", "x").chmod(0o755)
    (room.computer.work / "kept.log").unlink()
    saved = await room.save()

    other = LocalComputer(tmp_path / "other")
    await workspace.restore(other, room.bare, room.base, saved)
    again = SampleRepo(other.work)
    assert again.head == room.base
    assert again.git("status", "--porcelain") == " D kept.log\n M src/app.py\n?? new/"
    assert stat.S_IMODE((other.work / "new" / "run.sh").stat().st_mode) & 0o111
    assert await workspace.tree(other, room.bare, room.base) == await workspace.tree(
        room.computer, room.bare, room.base
    )
    again_saved = await workspace.save(other, room.bare, room.base, "refs/cloister/r-1/2")
    assert await packs.tree_of(room.bare, again_saved) == await packs.tree_of(room.bare, saved)


async def test_a_history_that_is_too_large_is_cut_off(repo: SampleRepo, tmp_path: Path) -> None:
    for number in range(4):
        repo.write("noise", os.urandom(3_000).hex())
        repo.commit(f"Noise {number}")
    room = await _room(repo, tmp_path, history_bytes=6_000)
    assert room.inside.git("log", "--format=%s") == "Noise 3"
    assert room.inside.git("status", "--porcelain") == ""
    room.inside.write("new.txt")
    assert await room.paths() == ["new.txt"]


async def test_a_shallow_base_is_put_saved_and_restored(repo: SampleRepo, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--depth=1", f"file://{repo.path}", str(tmp_path / "shallow"))
    room = await _room(SampleRepo(tmp_path / "shallow"), tmp_path)
    assert room.inside.git("log", "--format=%s") == "Second"
    room.inside.write("new.txt")
    saved = await room.save()
    other = LocalComputer(tmp_path / "other")
    await workspace.restore(other, room.bare, room.base, saved)
    assert SampleRepo(other.work).git("status", "--porcelain") == "?? new.txt"


async def test_a_place_without_git_says_so(repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    shutil.rmtree(room.computer.work)
    room.computer.work.write_text("a file, not a directory")
    with pytest.raises(UserError):
        await workspace.put(room.computer, room.bare, room.base)
    with pytest.raises(UserError):
        await workspace.tree(room.computer, room.bare, room.base)


async def test_one_command_names_a_tree(repo: SampleRepo, tmp_path: Path) -> None:
    room = await _room(repo, tmp_path)
    seen: list[Command] = []

    class Counting(LocalComputer):
        async def run(self, command: Command, stdin: bytes = b""):
            seen.append(command)
            return await super().run(command, stdin)

    await workspace.tree(Counting(tmp_path / "guest"), room.bare, room.base)
    assert len(seen) == 1


async def test_what_checks_leave_behind_is_no_part_of_a_change(tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a.py", "x = 1\n")
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "base")
    bare = tmp_path / "bare.git"
    base = (await PlainGit().fetch(str(repo.path), None, bare)).commit
    computer = LocalComputer(tmp_path / "computer")
    await workspace.put(computer, bare, base)
    before = await workspace.tree(computer, bare, base)
    for litter in ("__pycache__/a.pyc", ".pytest_cache/x", "sub/node_modules/y"):
        await computer.write(litter, b"z")
    assert await workspace.tree(computer, bare, base) == before


@pytest.mark.parametrize(
    "change",
    [
        "true",
        "cp -p file.txt other; echo more > other; mv other file.txt",
        "printf x > file.txt; printf y > file.txt",
        "chmod +x file.txt",
        "rm file.txt",
        "ln -sf nowhere file.txt",
        "mkdir new; touch new/file",
        "mkdir new; cd new; git init -q; touch file; git add .; git -c user.name=a -c user.email=b@c commit -qm x",
        "rm .git/cloister-index",
        "git rm -q --cached file.txt",
        "git mv file.txt renamed.txt; git commit -qm moved",
        "echo x > ignored.log",
    ],
)
async def test_change_detection_agrees_with_hashing_the_tree_again(change: str, tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write(".gitignore", "*.log\n")
    repo.write("file.txt", "one line\n")
    repo.commit("First")
    room = await _room(repo, tmp_path)
    last = await workspace.tree(room.computer, room.bare, room.base)
    for line in (change, "true", "echo again >> again.txt"):
        await room.computer.run(shell(line))
        looked = await workspace.tree(room.computer, room.bare, room.base, last)
        assert looked == await workspace.tree(room.computer, room.bare, room.base)
        last = looked


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(small)], check=True)
    yield small
    subprocess.run(["umount", str(small)], check=True)


async def test_a_save_point_leaves_room_on_the_disk_and_works_again_when_there_is_some(
    repo: SampleRepo, tmp_path: Path, small_disk: Path
) -> None:
    computer = LocalComputer(tmp_path / "guest")
    base = (await PlainGit().fetch(str(repo.path), None, small_disk / "bare")).commit
    await workspace.put(computer, small_disk / "bare", base, "work")
    computer.work.joinpath("new.bin").write_bytes(os.urandom(1_000_000))
    filler = small_disk / "filler"
    # Enough for the save point itself, but less than what stays free.
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 3_500_000))
    with pytest.raises(HostError) as caught:
        await workspace.save(computer, small_disk / "bare", base, REF)
    assert caught.value.code == "no_disk"
    assert caught.value.message.startswith("There is no room for a save point (")
    assert not (await in_bare(small_disk / "bare", "rev-parse", "--verify", "--quiet", REF)).ok
    filler.unlink()
    saved = await workspace.save(computer, small_disk / "bare", base, REF)
    assert [change.path for change in await files(small_disk / "bare", base, saved)] == ["new.bin"]


async def test_many_save_points_are_packed_together_and_each_can_be_restored(
    repo: SampleRepo, tmp_path: Path
) -> None:
    room = await _room(repo, tmp_path)
    text = "".join(f"line {number}\n" for number in range(20_000))
    saved: dict[str, str] = {}
    for turn in range(limits.SAVE_PACKS + 3):
        room.inside.write("large.txt", f"{text}turn {turn}\n")
        commit = await workspace.save(room.computer, room.bare, room.base, f"refs/cloister/r-1/{turn}")
        saved[commit] = f"turn {turn}"
    packed = list((room.bare / "objects" / "pack").glob("*.pack"))
    assert len(packed) <= 5
    assert sum(path.stat().st_size for path in packed) < 10 * len(text)
    for commit, line in saved.items():
        shown = await in_bare(room.bare, "show", f"{commit}:large.txt")
        assert shown.out.decode().splitlines()[-1] == line
    await workspace.restore(room.computer, room.bare, room.base, next(iter(saved)))
    assert (room.computer.work / "large.txt").read_text().endswith("turn 0\n")
