"""Files of a commit, straight from a bare repository of ours: nothing that they say is acted on."""

from pathlib import Path

from anyio import to_thread

from cloister.core.errors import UserError
from cloister.forge.host_git import in_bare, in_checkout, must, oid
from cloister.forge.plain import find_checkout

FILE_BYTES = 1_048_576
"""Largest file that is read this way."""


async def read_file(bare: Path, commit: str, path: str) -> bytes | None:
    """The file at `path`, None when the commit has none. Raises `UserError` (`file_too_large`)."""
    listed = await in_bare(bare, "ls-tree", "-z", "--full-tree", commit, "--", path)
    about = must(listed, "look into the repository").partition(b"\t")[0].split()
    if len(about) != 3 or about[1] != b"blob" or about[0] == b"120000":
        return None
    found = await in_bare(bare, "cat-file", "blob", about[2].decode(), limit_bytes=FILE_BYTES)
    if found.cut:
        raise UserError("file_too_large", f"{path} has more than {FILE_BYTES >> 20} MiB, which nobody reads.")
    return must(found, f"read {path}")


async def read_head_file(repo: str, path: str) -> tuple[str, bytes | None] | None:
    """HEAD of the repository on this machine at `repo` and its file at `path`; None when it has no commit.

    Raises `UserError` (`no_repository`).
    """
    checkout = await to_thread.run_sync(find_checkout, repo)
    head = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head.ok:
        return None
    commit = oid(head.out)
    listed = await in_checkout(checkout, "ls-tree", "-z", "--full-tree", commit, "--", path)
    about = must(listed, "look into the repository").partition(b"\t")[0].split()
    if len(about) != 3 or about[1] != b"blob" or about[0] == b"120000":
        return commit, None
    return commit, must(await in_checkout(checkout, "cat-file", "blob", about[2].decode()), f"read {path}")


async def export(bare: Path, commit: str, at: Path) -> None:
    """Every file of `commit` in the new directory `at`, with its links as links."""
    await to_thread.run_sync(lambda: at.mkdir(mode=0o700))
    env = {"GIT_INDEX_FILE": str(at.with_name(f"{at.name}.index"))}
    must(await in_bare(bare, "read-tree", commit, env=env), "read the commit")
    # git refuses names that lead out, and does not write through links.
    written = await in_bare(bare, f"--work-tree={at}", "checkout-index", "--all", "--quiet", env=env)
    must(written, "write the files of the commit")
    await to_thread.run_sync(lambda: at.with_name(f"{at.name}.index").unlink(missing_ok=True))
