"""The receipt beside the change: a git note under `refs/notes/cloister`, which a delivery brings along."""

import hashlib
from pathlib import Path

from cloister.core import limits
from cloister.core.text import decode
from cloister.forge.host_git import Checkout, in_bare, in_checkout, is_oid, must, oid

NOTES_REF = "refs/notes/cloister"
TRAILER = "Cloister-Receipt"

_TRIES = 5
"""How often another writer of the notes may come first."""

_NAMES = {
    "GIT_AUTHOR_NAME": "Cloister",
    "GIT_AUTHOR_EMAIL": "cloister@localhost",
    "GIT_COMMITTER_NAME": "Cloister",
    "GIT_COMMITTER_EMAIL": "cloister@localhost",
}
_ADD = ("notes", f"--ref={NOTES_REF}", "add", "--force")


def trailer(text: str) -> str:
    """The line in a commit's message that holds the note `text` to it."""
    return f"{TRAILER}: sha256:{hashlib.sha256(text.encode()).hexdigest()}"


async def attach(bare: Path, commit: str, text: str) -> None:
    """Make `text` the note of `commit` in the run's own repository, to the byte."""
    blob = oid(
        must(await in_bare(bare, "hash-object", "-w", "--stdin", stdin=text.encode()), "keep a receipt")
    )
    must(await in_bare(bare, *_ADD, "-C", blob, commit, env=_NAMES), "attach a receipt")


async def carry(bare: Path, commit: str, checkout: Checkout) -> bool:
    """Copy the note of `commit` into a person's repository, beside the notes that are there.

    False when there is none or it could not be written: a change without its note is still delivered.
    """
    shown = await in_bare(
        bare, "notes", f"--ref={NOTES_REF}", "show", commit, limit_bytes=limits.OUTPUT_BYTES
    )
    if not shown.ok or shown.cut:
        return False
    made = await in_checkout(checkout, "hash-object", "-w", "--stdin", "--no-filters", stdin=shown.out)
    blob = decode(made.out).strip()
    if not made.ok or not is_oid(blob):
        return False
    for _ in range(_TRIES):
        if (await in_checkout(checkout, *_ADD, "-C", blob, commit, env=_NAMES)).ok:
            return True
    return False
