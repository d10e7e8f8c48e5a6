"""Elixir, .NET, Deno, just: what Debian or a registry has of them."""

import re
from collections.abc import Iterator

from cloister.environment.api import AptPackage, Line, Manager, Note, Registry, Step, Toolchain, Used
from cloister.environment.ecosystems.python import tools
from cloister.environment.hints import Hints
from cloister.environment.listing import Project
from cloister.feedback.discover import MANIFESTS

_ELIXIR = "1.14"
_ELIXIR_NEEDS = re.compile(r'elixir:[ ]{0,9}"([~>=. \d]{1,40})"')
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_FOREIGN = {
    ".cabal": "Haskell",
    "stack.yaml": "Haskell",
    "Package.swift": "Swift",
    "pubspec.yaml": "Dart",
    "build.zig": "Zig",
    "build.sbt": "Scala",
    "project.clj": "Clojure",
    "deps.edn": "Clojure",
    "dune-project": "OCaml",
    "rebar.config": "Erlang",
    "shard.yml": "Crystal",
    ".nimble": "Nim",
    "Makefile.PL": "Perl",
    "cpanfile": "Perl",
}
"""Ending of a file in the root → the language that its project is written in."""


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory of these ecosystems needs."""
    yield from _elixir(project, hints)
    yield from _dotnet(project)
    yield from () if project.at else _foreign(project)
    if not project.has("package.json") and (manifest := project.first("deno.json", "deno.jsonc")):
        yield Used(manifest)
        yield Toolchain("deno", "2", "pypi", manifest)
        yield from tools("deno==2.*", why=manifest)
    if not project.at and (manifest := project.first("justfile", "Justfile", ".justfile")):
        yield Toolchain("just", "1", "pypi", manifest)
        yield from tools("rust-just==1.*", why=manifest)


def _elixir(project: Project, hints: Hints) -> Iterator[Line]:
    if not project.has("mix.exs"):
        return
    manifest = project.path("mix.exs")
    yield from (Used(project.path(name)) for name in ("mix.exs", "mix.lock") if project.has(name))
    yield Toolchain("elixir", _ELIXIR, "debian", manifest, *_elixir_wanted(project, hints))
    yield from (
        AptPackage(name, f"Elixir {_ELIXIR}: {manifest}") for name in ("elixir", "erlang-dev", "erlang-xmerl")
    )
    if project.has("mix.lock"):
        yield Manager("mix", _ELIXIR, "debian", manifest)
        yield Registry("@hex", project.path("mix.lock"))
        yield Step("mix local.hex --force --if-missing && mix deps.get", project.path("mix.lock"), project.at)


def _elixir_wanted(project: Project, hints: Hints) -> tuple[str, str | None]:
    """What the project asks for, and why it cannot have that."""
    named = _ELIXIR_NEEDS.search(project.text("mix.exs"))
    wanted = named[1] if named else hints.version("elixir").text
    least = _VERSION.search(wanted)
    if least is None or (int(least[1]), int(least[2])) <= tuple(map(int, _ELIXIR.split("."))):
        return wanted, None
    return (
        wanted,
        f"Elixir {wanted} cannot be had (Debian 12 has {_ELIXIR}, no registry has others): {_ELIXIR} is used",
    )


def _foreign(project: Project) -> Iterator[Line]:
    """Languages without a plan: better a sentence than silence."""
    if project.first(*MANIFESTS):
        return
    for name in sorted(name for name in project.below() if "/" not in name):
        if language := _FOREIGN.get(name) or _FOREIGN.get(f".{name.rpartition('.')[2]}"):
            yield Note(
                f"{name}: {language} is not detected; name its `setup` and `checks` in .cloister/config.toml, with "
                "`packages` or a `template` that has the toolchain"
            )
            return


def _dotnet(project: Project) -> Iterator[Line]:
    ends = (".sln", ".slnx", ".csproj", ".fsproj", ".vbproj")
    found = next((name for name in project.below() if name.count("/") < 3 and name.endswith(ends)), None)
    if found is not None and not project.at:
        problem = "Debian 12 and the registries have no .NET SDK: name a template whose image has one"
        yield Toolchain("dotnet", "", "none", found, "", problem)
