"""The receipt of a change: a git note under `refs/notes/cloister`, which a delivery takes along."""

import hashlib
from pathlib import Path

from cloister.core.text import decode
from cloister.forge._spawn import Result
from cloister.forge.host import (
    NO_COMMIT,
    Checkout,
    copy_in,
    copy_out,
    in_bare,
    in_checkout,
    is_oid,
    must,
    oid,
)

NOTES_REF = "refs/notes/cloister"
TRAILER = "Cloister-Receipt"

_THEIRS = "refs/notes/cloister-theirs"
"""In the run's own repository: the notes of the repository that receives the change."""

_TRIES = 10
"""Attempts to write the notes while other writers move them."""

_NAMES = {
    "GIT_AUTHOR_NAME": "Cloister",
    "GIT_AUTHOR_EMAIL": "cloister@localhost",
    "GIT_COMMITTER_NAME": "Cloister",
    "GIT_COMMITTER_EMAIL": "cloister@localhost",
}


def trailer(text: str) -> str:
    """The line of a commit message that binds the note `text` to the commit."""
    return f"{TRAILER}: sha256:{hashlib.sha256(text.encode()).hexdigest()}"


async def attach(bare: Path, commit: str, text: str) -> None:
    """Make `text` the note of `commit` in the run's own repository, byte for byte."""
    blob = oid(
        must(await in_bare(bare, "hash-object", "-w", "--stdin", stdin=text.encode()), "keep a receipt")
    )
    must(await _add(bare, NOTES_REF, blob, commit), "attach a receipt")


async def read(bare: Path, commit: str) -> str | None:
    """The note of `commit` in the run's own repository; None without one."""
    shown = await in_bare(bare, "notes", f"--ref={NOTES_REF}", "show", commit)
    return decode(shown.out) if shown.ok else None


async def carry(bare: Path, commit: str, checkout: Checkout) -> bool:
    """Add the note of `commit` to the notes of a person's repository.

    Returns False if there is none or it cannot be written: the change is delivered without it.
    """
    kept = await in_bare(bare, "notes", f"--ref={NOTES_REF}", "list", commit)
    if not kept.ok:
        return False
    note = oid(kept.out)
    for _ in range(_TRIES):
        there = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", NOTES_REF)
        before = decode(there.out).strip() or NO_COMMIT
        together = await _beside(bare, commit, note, checkout, before)
        if together is None:
            return False
        # `git notes` itself would overwrite notes that another writer added meanwhile.
        moved = await in_checkout(
            checkout, "update-ref", "-m", "cloister: receipt", NOTES_REF, together, before
        )
        if moved.ok:
            return True
    return False


async def _beside(bare: Path, commit: str, note: str, checkout: Checkout, before: str) -> str | None:
    """A commit in both repositories with the notes of `before` and the one of `commit`; moves no ref of theirs."""
    if before == NO_COMMIT:
        await in_bare(bare, "update-ref", "-d", _THEIRS)
    elif not is_oid(before) or not (await copy_in(checkout, before, bare, _THEIRS)).ok:
        return None
    if not (await _add(bare, _THEIRS, note, commit)).ok:
        return None
    together = oid(must(await in_bare(bare, "rev-parse", _THEIRS), "find the notes"))
    return together if (await copy_out(bare, together, checkout)).ok else None


async def _add(bare: Path, ref: str, blob: str, commit: str) -> Result:
    return await in_bare(bare, "notes", f"--ref={ref}", "add", "--force", "-C", blob, commit, env=_NAMES)
