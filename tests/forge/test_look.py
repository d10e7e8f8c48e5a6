"""A working tree that is looked at turn after turn: named anew when something changed, and only then."""

from pathlib import Path

import anyio.lowlevel
import pytest

from cloister.core.computer import WORK_DIR, Command, Finished
from cloister.core.errors import UserError
from cloister.forge import workspace
from cloister.forge.plain_git import PlainGit
from cloister.forge.workspace import TreeWatch
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio


class Counting(LocalComputer):
    """Counts the commands that are run in it."""

    commands = 0

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        self.commands += 1
        return await super().run(command, stdin)


async def _room(tmp_path: Path) -> tuple[Counting, TreeWatch]:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a.txt", "a\n")
    repo.commit("base")
    bare = tmp_path / "bare"
    base = await PlainGit().fetch(str(repo.path), None, bare)
    computer = Counting(tmp_path / "guest")
    await workspace.put(computer, bare, base.commit)
    return computer, TreeWatch(computer, bare, base.commit)


async def _settle(computer: LocalComputer) -> None:
    """Until the last change is long enough ago to be told from the next."""
    while not await computer.mark(WORK_DIR, without=".git"):
        await anyio.lowlevel.checkpoint()


async def test_git_is_asked_only_when_something_changed(tmp_path: Path) -> None:
    computer, look = await _room(tmp_path)
    await _settle(computer)
    first = await look.tree()
    asked = computer.commands
    assert [await look.tree() for _ in range(3)] == [first] * 3
    assert computer.commands == asked

    (computer.work / "a.txt").write_text("b\n")
    second = await look.tree()
    assert second != first, "also when it was changed this very moment"
    (computer.work / "a.txt").write_text("c\n")
    third = await look.tree()
    assert third not in (first, second), "of the same size, and within the step of a clock"
    await _settle(computer)
    assert await look.tree() == third
    asked = computer.commands
    assert await look.tree() == third
    assert computer.commands == asked


async def test_a_look_that_failed_is_not_remembered(tmp_path: Path) -> None:
    computer, look = await _room(tmp_path)
    await _settle(computer)
    await look.tree()
    (computer.work / "b.txt").write_text("new\n")
    locked = computer.work / ".git" / "objects"
    locked.rename(locked.with_name("away"))
    locked.write_text("no directory\n")
    await _settle(computer)
    for _ in range(2):
        with pytest.raises(UserError):
            await look.tree()
