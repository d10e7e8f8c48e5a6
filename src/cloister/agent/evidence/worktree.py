"""What the sandbox's working tree says about a check besides its output: tests that changed, matchers, source lines.

Inside the agent's own sandbox this is advice for the model. The proof asks the same in a fresh sandbox before anything
of the change has run there, and only that counts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from cloister.core.computer import Command, Computer
from cloister.core.diagnosis import Diagnosis, Weakening
from cloister.core.errors import UserError
from cloister.core.text import decode
from cloister.feedback.integrity.versions import WHOLE, Version, versions
from cloister.feedback.integrity.weakening import matters_when_new, may_matter, weakenings
from cloister.feedback.report import around

_BASE = "refs/cloister/base"
_SECONDS = 30.0
_BATCH = 100
"""Files whose two versions are read at once."""
_DIFF_BYTES = 8_388_608
_FILE_BYTES = 524_288
_PLACES = 16
_MATCHER_DIRECTORIES = (".github", ".cloister")
_MATCHER_FILES = 16


def _git(*args: str) -> Command:
    quiet = ("-c", "core.quotePath=false", "-c", "core.fsmonitor=false", "-c", "safe.directory=*")
    return Command(("git", *quiet, *args), seconds=_SECONDS, limit_bytes=_DIFF_BYTES)


async def changed_between(computer: Computer, old: str, new: str) -> tuple[str, ...] | None:
    """Names that differ between two trees of the sandbox's repository; None when git inside cannot say."""
    if not old or not new:
        return None
    done = await computer.run(_git("diff-tree", "-r", "-z", "--name-only", old, new))
    return _names(done.out) if done.ok else None


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of files, against the base."""

    changed: tuple[str, ...]
    """Other than on the base, or gone."""
    new: tuple[str, ...]


async def changed_since_base(computer: Computer) -> Changes | None:
    """Which files the working tree changes; None when git inside cannot say."""
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
    """Every file that the base has."""
    return _names((await computer.run(_git("ls-tree", "-r", "-z", "--name-only", _BASE))).out)


async def restore_from_base(computer: Computer, names: Sequence[str]) -> bool:
    """Make these files what they were on the base; whether that went well."""
    where = ("checkout", "--quiet", "--force", _BASE, "--pathspec-from-file=-", "--pathspec-file-nul")
    return (await computer.run(_git("--literal-pathspecs", *where), "\0".join(names).encode())).ok


_KEEP = """
set -e
export GIT_INDEX_FILE=.git/cloister-tree-index
rm -f "$GIT_INDEX_FILE"
[ ! -f .git/cloister-index ] || cp .git/cloister-index "$GIT_INDEX_FILE"
git add --all --ignore-errors . > /dev/null || true
git write-tree
"""
# An index that knows nothing of the files' dates: what is in them is compared, whatever was done to those.
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
    """The name of all files as they are; None when git inside cannot say."""
    done = await computer.run(_script(_KEEP))
    return decode(done.out).strip() if done.ok else None


async def rewritten_since(computer: Computer, tree: str) -> tuple[str, ...] | None:
    """Files of `tree` that are other now, or gone."""
    done = await computer.run(_script(_REWRITTEN, tree))
    return _names(done.out) if done.ok else None


async def back_to(computer: Computer, tree: str) -> bool:
    """Make the files those of `tree` again, whatever ran since; whether that went well."""
    return (await computer.run(_script(_BACK, tree))).ok


def _script(text: str, *args: str) -> Command:
    return Command(("/bin/bash", "-c", text, "bash", *args), seconds=_SECONDS, limit_bytes=_DIFF_BYTES)


async def weakened_tests(computer: Computer) -> tuple[Weakening, ...]:
    """What the working tree does to tests and their configuration, against the base.

    What could not be looked at counts as changed: a change may not be too large to be seen through.
    """
    if not (await computer.run(_git("rev-parse", "--verify", "--quiet", _BASE))).ok:
        return ()
    changes = await changed_since_base(computer)
    if changes is None:
        unseen = "too much was changed to see what became of the tests"
        return (Weakening(".", "configuration", detail=unseen),)
    # What is new weakens nothing, unless by a name that tools look for.
    wanted = [name for name in changes.changed if may_matter(name)]
    wanted += [name for name in changes.new if matters_when_new(name)]
    new = frozenset(changes.new)
    found: list[Version] = []
    hidden: list[Weakening] = []
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        seen = await _versions(computer, batch, new)
        if seen is None:
            for name in batch:
                one = await _versions(computer, [name], new)
                found.extend(one or ())
                hidden.extend(() if one is not None else (Weakening(name, "changed"),))
        else:
            found.extend(seen)
    return (*hidden, *weakenings(found))


async def _versions(
    computer: Computer, names: Sequence[str], new: Collection[str]
) -> tuple[Version, ...] | None:
    """The files on the base and now; None when they are more than can be read at once."""
    # As text whatever the files or their attributes say: what git takes for binary it would not show.
    options = ("--text", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", WHOLE)
    shown = await computer.run(_git("--literal-pathspecs", "diff", *options, _BASE, "--", *names))
    if not shown.ok:
        return None
    found = versions(decode(shown.out))
    tracked = {version.path for version in found}
    texts = [(name, await _text(computer, name)) for name in names if name in new and name not in tracked]
    return (*found, *(Version(name, None, text) for name, text in texts if text is not None))


async def both_versions(computer: Computer, names: Sequence[str]) -> tuple[Version, ...] | None:
    """Files on the base and now; None when they are more than can be looked through."""
    found: list[Version] = []
    for start in range(0, len(names), _BATCH):
        seen = await _versions(computer, names[start : start + _BATCH], frozenset())
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
    """Reads the lines around places that a diagnosis names, each file once."""

    computer: Computer
    _texts: dict[str, str | None] = field(default_factory=dict[str, "str | None"])

    async def add(self, diagnosis: Diagnosis) -> Diagnosis:
        """`diagnosis` with source lines for what matters most."""
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
        """Some tools name a file without its directory: it is found when only one has that name."""
        if "/" in file:
            return None
        listed = await self.computer.run(_git("ls-files", "-z", "--", f":(glob)**/{file}"))
        names: Sequence[str] = _names(listed.out)
        return await _text(self.computer, names[0]) if len(names) == 1 else None


async def _text(computer: Computer, path: str) -> str | None:
    try:
        return decode(await computer.read(path, limit_bytes=_FILE_BYTES))
    except UserError:
        return None


def _names(data: bytes) -> tuple[str, ...]:
    return tuple(name for name in decode(data).split("\0") if name)
