"""Ids: short enough to type, random enough not to be guessed. And the lease that tells whether an owner lives."""

import os
import re
from contextlib import AbstractContextManager
from typing import NewType, Protocol

RunId = NewType("RunId", str)
SandboxId = NewType("SandboxId", str)
SnapshotId = NewType("SnapshotId", str)
CommandId = NewType("CommandId", str)
OwnerId = NewType("OwnerId", str)
"""One living process that drives runs and holds sandboxes."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_SHAPE = re.compile(r"^[a-z]{1,3}-[0-9a-z]{4,32}$")


def _mint(prefix: str) -> str:
    return prefix + "-" + "".join(_ALPHABET[byte % 32] for byte in os.urandom(12))


def new_run_id() -> RunId:
    return RunId(_mint("r"))


def new_sandbox_id() -> SandboxId:
    return SandboxId(_mint("s"))


def new_snapshot_id() -> SnapshotId:
    return SnapshotId(_mint("sn"))


def new_command_id() -> CommandId:
    return CommandId(_mint("c"))


def new_owner_id() -> OwnerId:
    return OwnerId(_mint("o"))


def is_id(text: str) -> bool:
    """Return whether `text` has the shape of an id. Ids become file names, so every id from outside is checked."""
    return _SHAPE.match(text) is not None


class Lease(Protocol):
    """Who is alive among the processes that drive runs and hold sandboxes. A lease ends with its process."""

    def hold(self, owner: OwnerId) -> AbstractContextManager[None]:
        """Be `owner` until the block ends or this process dies. Raises `HostError` (`owner_taken`)."""
        ...

    def lives(self, owner: OwnerId) -> bool:
        """Return whether any process, this one included, holds `owner` now. Called in threads."""
        ...

    def remove_dead(self) -> tuple[OwnerId, ...]:
        """Forget the owners that no longer live, and return them."""
        ...
