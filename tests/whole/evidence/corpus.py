"""The examination of the judge: small projects with a bug, honest changes, and ways to pass the check without a fix.

`cases/*/*.toml` hold the data, a file per project:

- `check`, `prompt`: the command, and the request that the change answers; `red` false if no test fails on the base.
- `npm`: packages that are installed in the project, for runners that the distribution does not have.
- `[base]`: the files by path. `[fix]`: the change that fixes the bug.
- `[[cheat]]`, `[[honest]]`, `[[other]]`: the changes. Each has a `name`, and `kind` groups the cheats.

A change is made in this order: the fix (honest changes only, unless `fixed` says otherwise), `files` (whole texts),
`edits` (each old text must be there), `top` and `add` (text before and after), `gone` (deleted files).
`may` lists the outcomes that are right; `reported` is a word of the report that a `proven` change must carry.
`limit` says why the judge may still be fooled; the bench counts such a change as wrong, the tests do not.
`fast` marks the changes that `make test` judges, too.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

Sort = Literal["cheat", "honest", "other"]
ROOT = Path(__file__).with_name("cases")


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done to the files of the base."""

    files: dict[str, str] = {}
    edits: dict[str, list[tuple[str, str]]] = {}
    top: dict[str, str] = {}
    add: dict[str, str] = {}
    gone: tuple[str, ...] = ()

    def to(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The files after the change."""
        found = {**texts, **self.files}
        for path, edits in self.edits.items():
            for old, new in edits:
                assert old in found[path], f"{path} does not contain {old!r}"
                found[path] = found[path].replace(old, new)
        for path, text in self.top.items():
            found[path] = text + found[path]
        for path, text in self.add.items():
            found[path] += text
        for path in self.gone:
            del found[path]
        return found


class Case(Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One change and the outcomes that are right for it."""

    name: str
    kind: str = ""
    fixed: bool | None = None
    may: tuple[str, ...] = ()
    reported: str = ""
    limit: str = ""
    fast: bool = False
    prompt: str = ""
    must_pass: tuple[str, ...] = ()
    allow_test_changes: tuple[str, ...] = ()
    exclude_tests: tuple[str, ...] = ()


class Project(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A small project and the changes to it."""

    check: str
    prompt: str
    base: dict[str, str]
    fix: Change = Change()
    red: bool = True
    npm: tuple[str, ...] = ()
    cheat: tuple[Case, ...] = ()
    honest: tuple[Case, ...] = ()
    other: tuple[Case, ...] = ()


_RIGHT: dict[Sort, tuple[str, ...]] = {
    "cheat": ("red", "unproven"),
    "honest": ("proven",),
    "other": ("red", "unproven", "unbroken"),
}


@dataclass(frozen=True)
class Trial:
    """A change to a project, with its files put together."""

    project: str
    sort: Sort
    case: Case
    prompt: str
    files: Mapping[str, str | None]
    """What differs from the base; None is a file that goes away."""

    @property
    def may(self) -> tuple[str, ...]:
        return self.case.may or _RIGHT[self.sort]


def projects() -> dict[str, Project]:
    """All projects by name."""
    paths = sorted(ROOT.glob("*/*.toml"))
    return {path.stem: msgspec.convert(tomllib.loads(path.read_text("utf-8")), Project) for path in paths}


_SLOW = {
    "pytest": (
        "tests/test_slow_{}.py",
        "import time\n\n\n{}\n",
        "def test_slow_{}():\n    time.sleep(0.1)\n    assert {} + 1 > 0\n\n\n",
    ),
    "jest": (
        "__tests__/slow_{}.test.js",
        "{}",
        "test('slow {}', async () => {{\n  await new Promise((done) => setTimeout(done, 100));\n  expect({}).toBeGreaterThan(-1);\n}});\n",
    ),
    "go": (
        "slow_{}_test.go",
        'package bag\n\nimport (\n\t"testing"\n\t"time"\n)\n\n{}',
        "func TestSlow{}(t *testing.T) {{\n\ttime.Sleep(100 * time.Millisecond)\n\tif {} < 0 {{\n\t\tt.Fatal()\n\t}}\n}}\n",
    ),
}
"""Path, file and test of a suite that takes its time: every test waits for a tenth of a second."""


def slow_projects() -> dict[str, Project]:
    """Projects whose suites take ten seconds on a quiet machine, with the fix alone and with a test."""
    known, found = projects(), dict[str, Project]()
    for name, (path, file, test) in _SLOW.items():
        more = {
            path.format(number): file.format("".join(test.format(f"{number}{one}", one) for one in range(10)))
            for number in range(10)
        }
        base = {**known[name].base, **more}
        found[name] = msgspec.structs.replace(
            known[name], base=base, cheat=(), other=(), honest=known[name].honest[:2]
        )
    return found


def trials(name: str, project: Project) -> Iterator[Trial]:
    """The changes of a project, the honest ones first."""
    sorts: dict[Sort, tuple[Case, ...]] = {
        "honest": project.honest,
        "cheat": project.cheat,
        "other": project.other,
    }
    for sort, cases in sorts.items():
        for case in cases:
            fixed = sort == "honest" if case.fixed is None else case.fixed
            after = case.to(project.fix.to(project.base) if fixed else project.base)
            changed: dict[str, str | None] = {
                path: text for path, text in after.items() if project.base.get(path) != text
            }
            changed.update({path: None for path in project.base if path not in after})
            yield Trial(name, sort, case, case.prompt or project.prompt, changed)
