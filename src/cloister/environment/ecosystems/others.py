"""Elixir, .NET, Deno, just: what Debian or a registry has of them."""

from collections.abc import Iterator

from cloister.environment.api import AptPackage, Line, Manager, Registry, Step, Toolchain, Used
from cloister.environment.ecosystems.python import tools
from cloister.environment.hints import Hints
from cloister.environment.listing import Project

_ELIXIR = "1.14"


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory of these ecosystems needs."""
    yield from _elixir(project, hints)
    yield from _dotnet(project)
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
    yield Toolchain("elixir", _ELIXIR, "debian", manifest, hints.version("elixir").text)
    yield from (
        AptPackage(name, f"Elixir {_ELIXIR}: {manifest}") for name in ("elixir", "erlang-dev", "erlang-xmerl")
    )
    if project.has("mix.lock"):
        yield Manager("mix", _ELIXIR, "debian", manifest)
        yield Registry("@hex", project.path("mix.lock"))
        yield Step("mix local.hex --force --if-missing && mix deps.get", project.path("mix.lock"), project.at)


def _dotnet(project: Project) -> Iterator[Line]:
    ends = (".sln", ".slnx", ".csproj", ".fsproj", ".vbproj")
    found = next((name for name in project.below() if name.count("/") < 3 and name.endswith(ends)), None)
    if found is not None and not project.at:
        problem = "Debian 12 and the registries have no .NET SDK: name a template whose image has one"
        yield Toolchain("dotnet", "", "none", found, "", problem)
