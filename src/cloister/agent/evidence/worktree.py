"""Inspect the working tree in a sandbox: changed tests, problem matchers, source lines.

In the agent's own sandbox the findings are advice. Only the proof counts: it inspects a fresh sandbox before any code of
the change has run there.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread

from cloister.core.computer import Command, Computer
from cloister.core.diagnosis import Diagnosis, Weakening
from cloister.core.errors import UserError
from cloister.core.text import decode
from cloister.feedback.report import around

if TYPE_CHECKING:
    from cloister.feedback.integrity.versions import Version

_BASE = "refs/cloister/base"
_SECONDS = 30.0
_BATCH = 100
"""Files whose versions are read with one command."""
_DIFF_BYTES = 8_388_608
_FILE_BYTES = 524_288
_PLACES = 16
_MATCHER_DIRECTORIES = (".github", ".cloister")
_MATCHER_FILES = 16


def _git(*args: str) -> Command:
    quiet = ("-c", "core.quotePath=false", "-c", "core.fsmonitor=false", "-c", "safe.directory=*")
    return Command(("git", *quiet, *args), seconds=_SECONDS, limit_bytes=_DIFF_BYTES)


async def changed_between(computer: Computer, old: str, new: str) -> tuple[str, ...] | None:
    """Files that differ between two trees of the sandbox's repository; None if git fails."""
    if not old or not new:
        return None
    done = await computer.run(_git("diff-tree", "-r", "-z", "--name-only", old, new))
    return _names(done.out) if done.ok else None


@dataclass(frozen=True, slots=True)
class Changes:
    """Files that differ from the base."""

    changed: tuple[str, ...]
    """Changed or deleted."""
    new: tuple[str, ...]


async def changed_since_base(computer: Computer) -> Changes | None:
    """The files that the working tree changes; None if git fails."""
    listed = await computer.run(
        _git("diff", "--name-status", "--no-ext-diff", "--no-renames", "-z", _BASE, "--")
    )
    others = await computer.run(_git("ls-files", "-z", "--others", "--exclude-standard"))
    if not listed.ok or not others.ok:
        return None
    parts = decode(listed.out).split("\0")
    told = list(zip(parts[::2], parts[1::2], strict=False))
    new = dict.fromkeys((*(name for letter, name in told if letter == "A"), *_names(others.out)))
    return Changes(tuple(name for letter, name in told if letter != "A"), tuple(new))


async def base_files(computer: Computer) -> tuple[str, ...]:
    """All files of the base."""
    return _names((await computer.run(_git("ls-tree", "-r", "-z", "--name-only", _BASE))).out)


async def restore_from_base(computer: Computer, names: Sequence[str]) -> bool:
    """Restore these files from the base. True on success."""
    where = ("checkout", "--quiet", "--force", _BASE, "--pathspec-from-file=-", "--pathspec-file-nul")
    return (await computer.run(_git("--literal-pathspecs", *where), "\0".join(names).encode())).ok


async def put_base(computer: Computer, changes: Changes) -> bool:
    """Restore all files of the base, and remove new ones and what was built of them. True on success."""
    await computer.run(_script(_UNBUILD))
    if changes.changed and not await restore_from_base(computer, changes.changed):
        return False
    if not changes.new:
        return True
    return (await computer.run(Command(("rm", "-f", "--", *changes.new), seconds=_SECONDS))).ok


# `cp -p`: git reads a file again whose date is not older than the index. A newer date of the copy would hide that.
_KEEP = """
set -e
[ -e .git/cloister-begin ] || touch .git/cloister-begin
export GIT_INDEX_FILE=.git/cloister-tree-index
rm -f "$GIT_INDEX_FILE"
[ ! -f .git/cloister-index ] || cp -p .git/cloister-index "$GIT_INDEX_FILE"
git add --all --ignore-errors . > /dev/null || true
git write-tree
"""
_UNBUILD = """
git ls-files -z --others --ignored --exclude-standard | xargs -0 -r /bin/bash -c \
    'for one; do [ ! "$one" -nt .git/cloister-begin ] || rm -f -- "$one"; done' bash
"""
# A new index has no file dates, so that git compares contents.
_REWRITTEN = """
set -e
export GIT_INDEX_FILE=.git/cloister-tree-index
rm -f "$GIT_INDEX_FILE"
git read-tree "$1"
git update-index -q --really-refresh > /dev/null || true
git diff-files -z --name-only
"""
_BACK = (
    _REWRITTEN.replace("--name-only", "--name-only | git checkout-index -f -z --stdin")
    + "git ls-files -z --others --exclude-standard | xargs -0 -r rm -f --\n"
)


async def tree_now(computer: Computer) -> str | None:
    """The tree of all current files; None if git fails."""
    done = await computer.run(_script(_KEEP))
    return decode(done.out).strip() if done.ok else None


async def rewritten_since(computer: Computer, tree: str) -> tuple[str, ...] | None:
    """Files of `tree` that were changed or deleted since."""
    done = await computer.run(_script(_REWRITTEN, tree))
    return _names(done.out) if done.ok else None


async def back_to(computer: Computer, tree: str) -> bool:
    """Restore all files of `tree`. True on success."""
    return (await computer.run(_script(_BACK, tree))).ok


def _script(text: str, *args: str) -> Command:
    return Command(("/bin/bash", "-c", text, "bash", *args), seconds=_SECONDS, limit_bytes=_DIFF_BYTES)


async def weakened_tests(computer: Computer) -> tuple[Weakening, ...]:
    """How the working tree weakens checks, compared with the base. The proof refuses a file that is too large to inspect."""
    from cloister.feedback.integrity.weakening import (  # noqa: PLC0415  (slow to load, and first needed after the first request)
        matters_when_new,
        may_matter,
        weakenings,
    )

    if not (await computer.run(_git("rev-parse", "--verify", "--quiet", _BASE))).ok:
        return ()
    changes = await changed_since_base(computer)
    if changes is None:
        unseen = "the change is too large to inspect the tests"
        return (Weakening(".", "configuration", detail=unseen),)
    # A new file weakens nothing, unless tools look for its name.
    wanted = [name for name in changes.changed if may_matter(name)]
    wanted += [name for name in changes.new if matters_when_new(name)]
    new = frozenset(changes.new)
    found: list[Version] = []
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        seen = await _versions(computer, batch, new)
        if seen is None:
            for name in batch:
                found.extend(await _versions(computer, [name], new) or ())
        else:
            found.extend(seen)
    return await to_thread.run_sync(weakenings, found)


async def _versions(
    computer: Computer, names: Sequence[str], new: Collection[str]
) -> "tuple[Version, ...] | None":
    """The files on the base and now; None if they exceed the output limit."""
    from cloister.feedback.integrity.versions import WHOLE, Version, versions  # noqa: PLC0415

    # `--text`: git would hide the content of a file that it takes for binary.
    options = ("--text", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", WHOLE)
    shown = await computer.run(_git("--literal-pathspecs", "diff", *options, _BASE, "--", *names))
    if not shown.ok:
        return None
    found = await to_thread.run_sync(lambda: versions(decode(shown.out)))
    tracked = {version.path for version in found}
    texts = [(name, await _text(computer, name)) for name in names if name in new and name not in tracked]
    # What cannot be read, as a large binary file, counts by its name.
    return (*found, *(Version(name, None, text or "") for name, text in texts))


async def both_versions(
    computer: Computer, changed: Sequence[str], new: Sequence[str]
) -> "tuple[Version, ...] | None":
    """The files on the base and now; None if a batch exceeds the output limit."""
    found: list[Version] = []
    names = (*changed, *new)
    for start in range(0, len(names), _BATCH):
        seen = await _versions(computer, names[start : start + _BATCH], frozenset(new))
        if seen is None:
            return None
        found.extend(seen)
    return tuple(found)


async def problem_matchers(computer: Computer) -> tuple[bytes, ...]:
    """The problem-matcher files of the repository."""
    found: list[bytes] = []
    for directory in _MATCHER_DIRECTORIES:
        try:
            entries = await computer.list(directory)
        except UserError:
            continue
        for entry in entries:
            is_one = entry.name.endswith(".json") and "matcher" in entry.name.lower()
            if entry.kind == "file" and is_one and len(found) < _MATCHER_FILES:
                try:
                    found.append(await computer.read(f"{directory}/{entry.name}", limit_bytes=_FILE_BYTES))
                except UserError:
                    continue
    return tuple(found)


@dataclass(slots=True)
class Sources:
    """Reads source lines around the places in a diagnosis, each file once."""

    computer: Computer
    _texts: dict[str, str | None] = field(default_factory=dict[str, "str | None"])

    async def add(self, diagnosis: Diagnosis) -> Diagnosis:
        """`diagnosis` with source lines for its first failures and errors."""
        if diagnosis.green:
            return diagnosis
        left = _PLACES
        tests = list(diagnosis.tests)
        for index, test in enumerate(tests):
            if (
                left
                and test.status in ("failed", "error")
                and (lines := await self._lines(test.file, test.line))
            ):
                tests[index] = msgspec.structs.replace(test, source=lines)
                left -= 1
        complaints = list(diagnosis.diagnostics)
        for index, one in enumerate(complaints):
            if left and one.severity == "error" and (lines := await self._lines(one.file, one.line)):
                complaints[index] = msgspec.structs.replace(one, source=lines)
                left -= 1
        return msgspec.structs.replace(diagnosis, tests=tuple(tests), diagnostics=tuple(complaints))

    async def _lines(self, file: str | None, line: int | None) -> str | None:
        if not file or line is None or file.startswith("<"):
            return None
        if file not in self._texts:
            self._texts[file] = await _text(self.computer, file) or await self._by_name(file)
        text = self._texts[file]
        return around(text, line) if text else None

    async def _by_name(self, file: str) -> str | None:
        """Find a file that a tool named without its directory, if the name is unique."""
        if "/" in file:
            return None
        listed = await self.computer.run(_git("ls-files", "-z", "--", f":(glob)**/{file}"))
        names: Sequence[str] = _names(listed.out)
        return await _text(self.computer, names[0]) if len(names) == 1 else None


async def files_with(computer: Computer, words: Collection[str]) -> tuple[str, ...]:
    """The files of the repository that contain one of `words`."""
    wanted = [part for word in sorted(words) for part in ("-e", word)]
    if not wanted:
        return ()
    done = await computer.run(_git("grep", "--untracked", "--text", "-l", "-z", "-F", *wanted))
    return _names(done.out)


async def read_text(computer: Computer, path: str) -> str | None:
    """The text of a file; None if it cannot be read or is too large."""
    return await _text(computer, path)


async def _text(computer: Computer, path: str) -> str | None:
    try:
        return decode(await computer.read(path, limit_bytes=_FILE_BYTES))
    except UserError:
        return None


def _names(data: bytes) -> tuple[str, ...]:
    return tuple(name for name in decode(data).split("\0") if name)
