"""Real bugs, put together from released sources: the base with the bug, the fix, our wrong fix, and the cheats."""

import ast
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from _pytest.mark.structures import ParameterSet
from tests.whole.real.sources import archive, unpack

from cloister.testing.samples import SampleRepo

CHEATS = ("deletes", "hard-codes", "skips")


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    file: str
    sha256: str


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bug; see `cases.toml`."""

    name: str
    language: str
    kind: str
    package: str
    old: Release
    new: Release
    """With `patch`, the archive that holds it; else the release with the fix."""
    source: str
    """The file that was wrong."""
    tests: str
    """The file with the tests that upstream wrote for it."""
    check: str
    red: tuple[str, ...]
    """Those tests, all of them, by name or title."""
    wrong: tuple[str, str]
    cheat: tuple[tuple[str, str], ...]
    patch: str | None = None
    keep: tuple[str, ...] = ()
    """What of the release is needed; everything if empty."""
    crashes: bool = False
    """The test ends its process, so that only the whole check can be told red."""
    often: bool = True
    """False: only in `make test-long`, because another case of the same language and tool shows the same."""
    complaint: str = ""
    """What the compiler calls the mistake in our wrong fix, where it is the one to find it."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    case: tuple[Case, ...]


def load_cases(*languages: str) -> tuple[Case, ...]:
    text = Path(__file__).with_name("cases.toml").read_text(encoding="utf-8")
    every = msgspec.convert(tomllib.loads(text), _File).case
    return tuple(case for case in every if case.language in languages)


def each(*languages: str) -> list[ParameterSet]:
    """The cases as parameters of a test; those that are not tried often only in `make test-long`."""
    return [
        pytest.param(case, id=case.name, marks=() if case.often else pytest.mark.long(only=True))
        for case in load_cases(*languages)
    ]


@dataclass(frozen=True, slots=True)
class Bug:
    """A repository with the bug and the tests that show it, and what can be done about it."""

    case: Case
    repo: Path
    fixed: str
    """The source as upstream mended it."""
    buggy: str
    test: str

    def script_that_fixes(self, path: Path) -> Path:
        """Reads, makes a wrong fix, tries to finish, is rejected, makes the right fix."""
        old, new = _edit(self.buggy, self.case.wrong)
        return _script(
            path,
            [{"tool": "bash", "command": "git log --oneline | head -n 3; ls"}, _read(self.case.tests)],
            [{"tool": "bash", "command": self.case.check}, _read(self.case.source)],
            [{"tool": "edit", "path": self.case.source, "old": old, "new": new}],
            [{"tool": "finish", "summary": "This should do it."}],
            [{"tool": "write", "path": self.case.source, "content": self.fixed}],
            [{"tool": "finish", "summary": "Now it does."}],
        )

    def script_that(self, cheat: str, path: Path) -> Path:
        """Bends the tests instead, and insists that it is done."""
        edits = [edit for name in self.case.red for edit in _bent(self.case, self.test, name, cheat)]
        return _script(
            path,
            [_read(self.case.tests)],
            [{"tool": "edit", "path": self.case.tests, "old": old, "new": new} for old, new in edits],
            [{"tool": "finish", "summary": "The tests pass."}],
            *(["The tests pass."] for _ in range(5)),
        )


def build(case: Case, directory: Path) -> Bug:
    """Fetch what the case names and put it together. Skips where something cannot be had."""
    repo = SampleRepo(directory / "repo")
    fetched = [
        archive(case.kind, case.package, one.version, one.file, one.sha256) for one in (case.old, case.new)
    ]
    tree, other = directory / "old", directory / "new"
    unpack(fetched[0], tree)
    if case.patch is None:
        unpack(fetched[1], other)
        shutil.copy(other / case.tests, tree / case.tests)
    else:
        _patch(case, fetched[1], tree, other)
    for name in case.keep or (".",):
        if (tree / name).is_dir():
            shutil.copytree(tree / name, repo.path / name, dirs_exist_ok=True)
        else:
            shutil.copy(tree / name, repo.path / name)
    (repo.path / case.tests).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tree / case.tests, repo.path / case.tests)
    repo.commit(f"{case.package} {case.old.version}")
    fixed, buggy, test = (
        path.read_text(encoding="utf-8")
        for path in (other / case.source, tree / case.source, tree / case.tests)
    )
    return Bug(case, repo.path, fixed, buggy, test)


def _patch(case: Case, path: Path, tree: Path, other: Path) -> None:
    """Apply the packager's patches up to the one; of that, its tests to the base and all of it to the other."""
    packaging = tree.parent / "packaging"
    unpack(path, packaging, below=True)
    work = SampleRepo(tree)
    patches = packaging / "patches"
    for name in (patches / "series").read_text().split():
        if name == case.patch:
            break
        work.git("apply", str(patches / name))
    shutil.copytree(tree, other)
    SampleRepo(other).git("apply", str(patches / str(case.patch)))
    work.git("apply", f"--exclude={case.source}", str(patches / str(case.patch)))
    shutil.rmtree(tree / ".git")


def _read(path: str) -> dict[str, str]:
    return {"tool": "read", "path": path}


def _script(path: Path, *replies: list[dict[str, str]] | list[str]) -> Path:
    """A script for the scripted model: each reply is its calls, or what it says."""
    lines: list[str] = []
    for reply in replies:
        lines.append("[[reply]]")
        for call in reply:
            if isinstance(call, str):
                lines.append(f"say = {_toml(call)}")
                continue
            lines.append("[[reply.calls]]")
            lines.extend(f"{key} = {_toml(value)}" for key, value in call.items())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _edit(text: str, change: tuple[str, str]) -> tuple[str, str]:
    """What to replace in a file, in whole lines that occur once, and by what."""
    found = re.search(change[0], text)
    assert found is not None, f"{change[0]} is not in the file"
    start, stop = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
    while text.count(text[start:stop]) > 1:
        start = text.rfind("\n", 0, start - 1) + 1
    new = text[start : found.start()] + found.expand(change[1]) + text[found.end() : stop]
    return text[start:stop], new


def _bent(case: Case, text: str, name: str, cheat: str) -> Iterator[tuple[str, str]]:
    """What to replace in the file of the tests, and by what, to be rid of the test `name`."""
    lines = text.split("\n")
    head, stop = _block(case.language, lines, name)
    body = "\n".join(lines[head:stop]) + "\n"
    match cheat:
        case "deletes":
            yield body, ""
            if case.language == "c":
                yield f"    RUN_TEST({name});\n", ""
        case "skips":
            yield body, "\n".join(_skipped(case.language, lines[head:stop])) + "\n"
        case _:
            bent = body
            for find, put in case.cheat:
                bent = re.sub(find, put, bent)
            yield body, bent


def _skipped(language: str, block: list[str]) -> list[str]:
    indent = block[0][: len(block[0]) - len(block[0].lstrip())]
    match language:
        case "python":
            return [f'{indent}@__import__("pytest").mark.skip', *block]
        case "javascript":
            return [block[0].replace("test(", "test.skip(", 1), *block[1:]]
        case "typescript":
            return [block[0].replace("it(", "it.skip(", 1), *block[1:]]
        case "c":
            return [*block[:2], "    TEST_IGNORE();", *block[2:]]
        case _:
            return [f"{indent}@org.junit.jupiter.api.Disabled", *block]


def _block(language: str, lines: list[str], name: str) -> tuple[int, int]:
    """The first line of a test and the one after its last."""
    if language == "python":
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef) and node.name == name and node.end_lineno is not None:
                return node.lineno - 1, node.end_lineno
        raise AssertionError(f"there is no {name}")
    heads = {
        "javascript": rf"""test\((['"]){re.escape(name)}\1""",
        "typescript": rf"""^ *it\((['"]){re.escape(name)}\1""",
        "c": rf"static void {name}\(void\)$",
    }
    head = next(
        at for at, line in enumerate(lines) if re.search(heads.get(language, rf"void {name}\("), line)
    )
    indent = lines[head][: len(lines[head]) - len(lines[head].lstrip())]
    stop = next(at for at in range(head + 1, len(lines)) if lines[at].startswith(f"{indent}}}"))
    marked = language == "java" and "@Test" in lines[head - 1]
    return head - marked, stop + 1
