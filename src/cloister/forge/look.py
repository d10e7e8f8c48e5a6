"""The name of a working tree, turn after turn: git is asked only when a file has changed."""

from contextlib import suppress
from pathlib import Path

from cloister.core.commands import WORK_DIR, Computer
from cloister.core.errors import UserError
from cloister.forge import workspace


class Look:
    """A working tree that is looked at again and again."""

    def __init__(self, computer: Computer, bare: Path, base: str) -> None:
        self._computer = computer
        self._bare = bare
        self._base = base
        self._name: str | None = None
        """The newest name of the tree."""
        self._mark: int | None = 0
        """The files from outside, before they were given that name; None when there are too many to look at."""

    async def tree(self) -> str:
        """As `workspace.tree`. What changes nothing but git's own files, such as what it ignores, counts later."""
        mark = await self._marked()
        if self._name is None or not mark or mark != self._mark:
            self._name = await workspace.tree(self._computer, self._bare, self._base, self._name)
            self._mark = mark  # from before git looked: what changed meanwhile is not in it
        return self._name

    async def _marked(self) -> int | None:
        if self._mark is None:
            return None
        with suppress(UserError):  # git says better what is wrong
            return await self._computer.mark(WORK_DIR, without=".git")
        return 0
