"""Reads files and commits from bare repositories of ours. Never acts on their content."""

import tempfile
from pathlib import Path

from anyio import to_thread

from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.text import decode
from cloister.forge._spawn import Result
from cloister.forge.host import Checkout, copy_in, ensure_bare, in_bare, in_checkout, must, oid
from cloister.forge.plain_git import BASE_REF, find_checkout

FILE_BYTES = 1_048_576
"""The largest file that is read this way."""


async def read_file(bare: Path, commit: str, path: str) -> bytes | None:
    """The file at `path`; None if the commit has none. Raises `UserError` (`file_too_large`)."""
    listed = await in_bare(bare, "ls-tree", "-z", "--full-tree", commit, "--", path)
    if (blob := _file_in(listed)) is None:
        return None
    found = await in_bare(bare, "cat-file", "blob", blob, limit_bytes=FILE_BYTES)
    if found.cut:
        raise UserError("file_too_large", f"{path} is larger than {FILE_BYTES >> 20} MiB: make it smaller.")
    return must(found, f"read {path}")


async def read_head_file(repo: str, path: str) -> tuple[str, bytes | None] | None:
    """HEAD of the repository at the path `repo` and its file at `path`; None if it has no commit.

    Raises `UserError` (`no_repository`).
    """
    checkout = await to_thread.run_sync(find_checkout, repo)
    head = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head.ok:
        return None
    commit = oid(head.out)
    listed = await in_checkout(checkout, "ls-tree", "-z", "--full-tree", commit, "--", path)
    if (blob := _file_in(listed)) is None:
        return commit, None
    return commit, must(await in_checkout(checkout, "cat-file", "blob", blob), f"read {path}")


def _file_in(listed: Result) -> str | None:
    """The object of the one regular file that `git ls-tree -z` lists."""
    about = must(listed, "look into the repository").partition(b"\t")[0].split()
    return about[2].decode() if len(about) == 3 and about[1] == b"blob" and about[0] != b"120000" else None


async def export(bare: Path, commit: str, at: Path) -> None:
    """Write every file of `commit` into the new directory `at`, links as links."""
    await to_thread.run_sync(lambda: at.mkdir(mode=0o700))
    env = {"GIT_INDEX_FILE": str(at.with_name(f"{at.name}.index"))}
    must(await in_bare(bare, "read-tree", commit, env=env), "read the commit")
    # Git rejects names that lead out, and does not write through links.
    written = await in_bare(bare, f"--work-tree={at}", "checkout-index", "--all", "--quiet", env=env)
    must(written, "write the files of the commit")
    await to_thread.run_sync(lambda: at.with_name(f"{at.name}.index").unlink(missing_ok=True))


INHERITED_REF = "refs/cloister/inherited"


async def copy_commit(source: Path, commit: str, base: str, into: Path) -> None:
    """Copy `commit` and its history from one run's repository into another's, created if missing."""
    await ensure_bare(into)
    for name, ref in ((base, BASE_REF), (commit, INHERITED_REF)):
        copied = await copy_in(Checkout(source, bare=True, who=None), name, into, ref)
        must(copied, "copy the save point")


async def diff_of_diffs(bare: Path, one: str, other: str, names: tuple[str, str]) -> str:
    """The unified diff of two unified diffs; empty if they are the same. Leaves `bare` unchanged."""
    with tempfile.TemporaryDirectory(prefix="cloister-", dir=bare) as folder:
        env = {"GIT_OBJECT_DIRECTORY": folder}
        blobs: list[str] = []
        for text in (one, other):
            stored = await in_bare(
                bare, "hash-object", "-w", "--stdin", stdin=_comparable(text).encode(), env=env
            )
            blobs.append(oid(must(stored, "compare the changes")))
        made = await in_bare(
            bare,
            *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--text", *blobs),
            env=env,
            limit_bytes=limits.DIFF_BYTES,
        )
    text = decode(made.out) if made.cut else decode(must(made, "compare the changes"))
    start = text.find("\n@@")
    if start < 0:
        return ""
    ending = "\n[… the rest of the diff is cut off …]\n" if made.cut else ""
    return f"--- {names[0]}\n+++ {names[1]}{text[start:]}{ending}"


def _comparable(diff: str) -> str:
    """The diff without object names and hunk positions, which differ for equal changes."""
    kept: list[str] = []
    for line in diff.splitlines():
        if line.startswith("index "):
            continue
        kept.append(
            "@@" + line.split("@@", 2)[-1] if line.startswith("@@ ") and line.count("@@") >= 2 else line
        )
    return "".join(f"{line}\n" for line in kept)
