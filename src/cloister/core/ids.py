"""Names of things: short enough to type, random enough not to be guessed."""

import re
import secrets
from typing import NewType

RunId = NewType("RunId", str)
SandboxId = NewType("SandboxId", str)
SnapshotId = NewType("SnapshotId", str)
CommandId = NewType("CommandId", str)
OwnerId = NewType("OwnerId", str)
"""One living process that drives runs and holds sandboxes."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_SHAPE = re.compile(r"^[a-z]{1,3}-[0-9a-z]{4,32}$")


def _mint(prefix: str) -> str:
    return prefix + "-" + "".join(secrets.choice(_ALPHABET) for _ in range(12))


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
    """Whether `text` has the shape of an id of ours; ids become file names, so nothing else may."""
    return _SHAPE.match(text) is not None
