"""The change of a run: committed and described on the host, in the run's own repository."""

import hashlib
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId
from cloister.core.requests import FileChange
from cloister.core.text import decode, inert
from cloister.forge._spawn import Result
from cloister.forge.api import Proposal
from cloister.forge.host import (
    NO_COMMIT,
    Checkout,
    complaint,
    copy_in,
    copy_out,
    in_bare,
    in_checkout,
    is_oid,
    must,
    oid,
)
from cloister.forge.modules import compared, moved

# The receipt of a change: a git note under `refs/notes/cloister`, which a delivery takes along.


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


class Author(NamedTuple):
    """Who made a commit, and the SSH key of this machine that signs it."""

    name: str = "Cloister <cloister@localhost>"
    key: Path | None = None


AUTHOR = Author()


_SLUG_CHARS = 40
_STATUS: dict[str, Literal["added", "modified", "deleted", "renamed"]] = {
    "A": "added",
    "C": "added",
    "D": "deleted",
    "R": "renamed",
}
_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", re.MULTILINE)
_DIFF = ("diff-tree", "-r", "--find-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")


def branch_name(prompt: str, run: RunId) -> str:
    """The branch of the change: a few words of the prompt and the end of the run's id."""
    words = re.findall(r"[a-z0-9]+", prompt.lower())
    slug = ""
    for word in words[:12]:
        longer = f"{slug}-{word}" if slug else word[:_SLUG_CHARS]
        if len(longer) > _SLUG_CHARS:
            break
        slug = longer
    tail = re.sub(r"[^a-z0-9]", "", run.lower())[-6:] or "run"
    return f"cloister/{slug or 'change'}-{tail}"


async def make_change(
    bare: Path, parent: str, saved: str, branch: str, message: str, author: Author = AUTHOR
) -> str:
    """Commit the files of `saved` on top of `parent` as `branch` of the run's repository; return the commit.

    A second call makes the same commit: its date is the save's. Repositories in the working tree that are no
    submodules are left out.
    """
    must(await in_bare(bare, "check-ref-format", f"refs/heads/{branch}"), f"name a branch {branch!r}")
    shown = await in_bare(bare, "show", "--no-patch", "--format=%T %ct", "--end-of-options", saved)
    tree, _, saved_at = decode(must(shown, f"find the save {saved[:12]}")).strip().partition(" ")
    tree = await _without_strays(bare, parent, tree)
    commit = await commit_tree(bare, tree, parent, message, author, at=int(saved_at))
    must(await in_bare(bare, "update-ref", f"refs/heads/{branch}", commit), f"make the branch {branch}")
    return commit


async def describe(proposal: Proposal) -> Proposal:
    """The proposal with the message and the receipt of its commit."""
    bare, commit = proposal.bare, proposal.commit
    shown = await in_bare(bare, "show", "--no-patch", "--format=%B", "--end-of-options", commit)
    message = decode(must(shown, f"read the commit {commit[:12]}")).strip()
    return msgspec.structs.replace(proposal, message=message, receipt=await read(bare, commit))


async def _without_strays(bare: Path, base: str, tree: str) -> str:
    """`tree` without links that a clone could not follow: new ones that no submodule names, and moved submodules."""
    fields = (await compared(bare, base, tree)).split(b"\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)
    links = {path for entry, path in pairs if entry.startswith(b":000000 160000 ")}
    back = await moved(bare, base, tree)
    if not links and not back:
        return tree
    named = await in_bare(
        bare, "config", "--null", f"--blob={tree}:.gitmodules", "--get-regexp", r"^submodule\..*\.path$"
    )
    strays = links - {entry.partition(b"\n")[2] for entry in named.out.split(b"\0")}
    lines = [b"0 " + b"0" * 40 + b"\t" + path + b"\0" for path in sorted(strays)]
    lines += [f"160000 {old}\t".encode() + path + b"\0" for path, old in back.items()]
    with tempfile.TemporaryDirectory(prefix="cloister-", dir=bare) as folder:
        env = {"GIT_INDEX_FILE": f"{folder}/index"}
        must(await in_bare(bare, "read-tree", tree, env=env), "read the change")
        update = ("update-index", "-z", "--index-info")
        must(await in_bare(bare, *update, stdin=b"".join(lines), env=env), "leave stray repositories out")
        return oid(must(await in_bare(bare, "write-tree", env=env), "write the change"))


async def commit_tree(
    bare: Path, tree: str, parents: str, message: str, author: Author = AUTHOR, at: int | None = None
) -> str:
    """A commit of `tree`; moves no ref. `parents` are separated by spaces. Raises `HostError` (`not_signed`)."""
    date = f"@{int(time.time()) if at is None else at} +0000"
    name, email = _person(author.name)
    env = {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_NAME": "Cloister",
        "GIT_COMMITTER_EMAIL": "cloister@localhost",
        "GIT_COMMITTER_DATE": date,
    }
    text = inert(message).strip() or "Change"
    stdin = f"{text}\n".encode(errors="replace")
    of, key = [part for parent in parents.split() for part in ("-p", parent)], author.key
    if key is None:
        made = await in_bare(bare, "commit-tree", tree, *of, stdin=stdin, env=env)
        return oid(must(made, "make a commit"))
    how = ("-c", "gpg.format=ssh", "-c", "gpg.ssh.program=ssh-keygen", "-c", f"user.signingKey={key}")
    made = await in_bare(bare, *how, "commit-tree", "-S", tree, *of, stdin=stdin, env=env)
    if not made.ok:
        raise HostError("not_signed", f"The commit cannot be signed with {key}: {complaint(made)}.")
    return oid(made.out)


def _person(author: str) -> tuple[str, str]:
    found = re.fullmatch(r"([^<>\x00-\x1f]+)<([^<>\s]+)>", author.strip())
    if found is None or not found[1].strip():
        raise UserError("bad_author", "Write an author as `Name <address>`.")
    return found[1].strip(), found[2]


async def files_of_save(bare: Path, base: str, saved: str) -> tuple[FileChange, ...]:
    """The files of the change that `make_change` would make of `saved`."""
    found = await in_bare(bare, "rev-parse", "--verify", "--end-of-options", f"{saved}^{{tree}}")
    tree = await _without_strays(bare, base, oid(must(found, f"find the save {saved[:12]}")))
    return await files(bare, base, tree)


async def files(bare: Path, base: str, commit: str) -> tuple[FileChange, ...]:
    """The files in which `commit` differs from `base`, sorted by path."""
    listed = (*_DIFF, "--raw", "--numstat", "-z", "--end-of-options", base, commit)
    raw = await in_bare(bare, *listed, limit_bytes=limits.CHANGE_BYTES)
    fields = must(raw, "compare the change with its base").split(b"\0")
    return tuple(sorted(_parse(fields), key=lambda change: change.path))


async def lines(bare: Path, base: str, commit: str) -> int:
    """The lines that `commit` adds and removes. Binary files count as text, so that a stray byte hides nothing."""
    counted = sum(file.added + file.removed for file in await files(bare, base, commit))
    made = await in_bare(
        bare,
        *(*_DIFF, "--patch", "--text", "--unified=0", "--end-of-options", base, commit),
        limit_bytes=limits.DIFF_BYTES,
    )
    if made.cut:
        return counted + limits.DIFF_BYTES
    hunks = _HUNK.finditer(must(made, "compare the change with its base"))
    return sum(int(number or b"1") for hunk in hunks for number in hunk.groups())


def _parse(fields: list[bytes]) -> list[FileChange]:
    """Parse `--raw --numstat -z`: the status of every file, then the counts of every file, in the same order."""
    statuses: list[str] = []
    counts: list[tuple[int, int, bytes]] = []
    position = 0
    while position < len(fields) and fields[position]:
        field = fields[position]
        if field.startswith(b":"):
            letter = chr(field.rsplit(b" ", 1)[1][0])
            statuses.append(letter)
            position += 3 if letter in "RC" else 2
            continue
        added, removed, path = field.split(b"\t", 2)
        if not path:  # a rename: the old and the new name follow
            path = fields[position + 2]
            position += 2
        counts.append((_lines(added), _lines(removed), path))
        position += 1
    return [
        FileChange(_shown(path), added, removed, _STATUS.get(status, "modified"))
        for status, (added, removed, path) in zip(statuses, counts, strict=True)
    ]


def _lines(count: bytes) -> int:
    return 0 if count == b"-" else int(count)


def _shown(path: bytes) -> str:
    return inert(decode(path)).replace("\n", "\\n").replace("\t", "\\t")


async def contents(bare: Path, base: str, commit: str) -> dict[str, str]:
    """Path → the name of its content in `commit`, of each file that differs from `base`; only zeros if it is gone."""
    fields = (await compared(bare, base, commit)).split(b"\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return {decode(path): decode(entry.split()[3]) for entry, path in pairs}


async def patch(bare: Path, base: str, commit: str) -> bytes:
    """The change as a patch that `git apply` takes, binary files included. Raises `UserError` (`change_too_large`)."""
    made = await in_bare(
        bare,
        *_DIFF,
        *("--patch", "--binary", "--full-index", "--end-of-options", base, commit),
        limit_bytes=limits.DIFF_BYTES,
    )
    if made.cut:
        raise UserError("change_too_large", "The change is too large to apply it as a patch.")
    return must(made, "compare the change with its base")


async def diff(
    bare: Path,
    base: str,
    commit: str,
    *,
    paths: Sequence[str] = (),
    limit_bytes: int = limits.DIFF_BYTES,
) -> str:
    """The change, or its part in `paths`, as a unified diff: untrusted text, cut off with a note at `limit_bytes`."""
    part = ("--", *(f":(literal){path}" for path in paths)) if paths else ()
    made = await in_bare(
        bare, *_DIFF, "--patch", "--end-of-options", base, commit, *part, limit_bytes=limit_bytes
    )
    if made.cut:
        return decode(made.out) + "\n[… the rest of the diff is cut off …]\n"
    return decode(must(made, "compare the change with its base"))
