"""What the base commit of a run has for its models: instructions for agents."""

from pathlib import Path

import anyio

from cloister.agent.knowledge.instructions import MOST_FILES, Instruction, instructions, is_instruction
from cloister.core.text import decode
from cloister.forge.read import chosen_files


class Instructions:
    """The instructions of one commit, read once."""

    def __init__(self, bare: Path, commit: str, *, wanted: bool = True) -> None:
        self._bare = bare
        self._commit = commit
        self._found: tuple[Instruction, ...] | None = None if wanted else ()
        self._reading = anyio.Lock()

    async def load(self) -> tuple[Instruction, ...]:
        """Raises as git does: a repository that cannot be read ends the attempt anyway."""
        async with self._reading:
            if self._found is None:
                files = await chosen_files(self._bare, self._commit, is_instruction, most=MOST_FILES)
                self._found = instructions(
                    {path: (blob.oid, decode(data)) for path, (blob, data) in files.items()}
                )
        return self._found
