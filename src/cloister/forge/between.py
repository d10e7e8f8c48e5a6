"""Between runs: files that one hands to another, and how two changes differ."""

import tempfile
from pathlib import Path

from cloister.core import limits
from cloister.core.text import decode
from cloister.forge.host_git import Checkout, copy_in, ensure_bare, in_bare, must, oid
from cloister.forge.plain import BASE_REF

INHERITED_REF = "refs/cloister/inherited"


async def copy_commit(source: Path, commit: str, base: str, into: Path) -> None:
    """Bring `commit` and its history from one run's repository into another's, made if missing."""
    await ensure_bare(into)
    for name, ref in ((base, BASE_REF), (commit, INHERITED_REF)):
        copied = await copy_in(Checkout(source, bare=True, who=None), name, into, ref)
        must(copied, "copy the save point")


async def diff_of_diffs(bare: Path, one: str, other: str, names: tuple[str, str]) -> str:
    """How two unified diffs differ, itself as a unified diff; empty when they say the same. `bare` stays as it is."""
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
    ending = "\n[… the diff goes on …]\n" if made.cut else ""
    return f"--- {names[0]}\n+++ {names[1]}{text[start:]}{ending}"


def _comparable(diff: str) -> str:
    """Without names of objects and places of hunks, which differ though the change is the same."""
    kept: list[str] = []
    for line in diff.splitlines():
        if line.startswith("index "):
            continue
        kept.append(
            "@@" + line.split("@@", 2)[-1] if line.startswith("@@ ") and line.count("@@") >= 2 else line
        )
    return "".join(f"{line}\n" for line in kept)
