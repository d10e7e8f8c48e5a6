"""The plan of an environment, line by line, each with its reason."""

from typing import Literal

import msgspec

from cloister.core.computer import User

Source = Literal["debian", "pypi", "npm", "repository", "none"]
"""Where a tool comes from. `repository`: a wrapper or a file that is committed; `none`: it cannot be had here."""

RegistrySet = Literal["@pypi", "@npm", "@debian", "@crates", "@go", "@maven", "@gems", "@composer", "@hex"]
"""A named set of the policy; see `egress/packages.py`."""

Stage = Literal["tools", "dependencies"]
"""`tools` steps read no file of the repository, so repositories can share their result."""

HOME = "/opt/cloister"
"""Directory of the sandbox that holds what set-up installs outside of the repository; the agent owns it."""

TOOLS = f"{HOME}/tools"
"""A Python environment with the tools that Debian lacks, and the prefix of npm's global packages."""

PROGRAMS = f"{HOME}/programs"
"""Programs that are no tools of the repository, with a Node of their own. It is not in the PATH of checks."""

VENV = f"{HOME}/venv"
"""The Python environment of the repository's dependencies."""


TAG = "$TAG"
"""Value of a variable: the version that the nearest tag names. Without a tag the variable is not set."""


class Toolchain(msgspec.Struct, frozen=True):
    """A compiler, an interpreter or a build tool."""

    name: str
    """`python`, `node`, `go`, `rust`, `java`, `cmake`, …"""
    version: str
    """The version that set-up provides, such as `3.11` or `22`; empty if any."""
    source: Source
    why: str
    wanted: str = ""
    """What the repository asks for, as written."""
    problem: str | None = None
    """Why the wanted version cannot be had, and what is used instead."""


class Manager(msgspec.Struct, frozen=True):
    """A package manager."""

    name: str
    version: str
    source: Source
    why: str


class AptPackage(msgspec.Struct, frozen=True):
    """A Debian package that the sandbox needs beyond the template."""

    name: str
    why: str
    optional: bool = False
    """True for a hint of CI or a Dockerfile, which may name another release's package: skip it if Debian lacks it."""


class Registry(msgspec.Struct, frozen=True):
    """A set that the proxy opens during set-up and closes before the run."""

    set: RegistrySet
    why: str


class Step(msgspec.Struct, frozen=True):
    """A command of the set-up. Steps run in order, in bash, with the plan's `env`; the first failure ends set-up."""

    command: str
    why: str
    cwd: str = ""
    """Relative to the repository's root; empty for the root itself."""
    stage: Stage = "dependencies"
    user: User = "agent"


class Service(msgspec.Struct, frozen=True):
    """A server that the checks need, on loopback inside the sandbox."""

    name: str
    """`postgresql`, `mysql`, `redis`, …; the name of the image where it is none of the known ones."""
    why: str
    version: str = ""
    """The tag of the image; empty if any."""
    port: int = 0
    """The usual port of a known service, or the published one; 0 if unknown."""
    env: dict[str, str] = {}
    """The image's environment: user, password, database."""
    command: str = ""
    """What starts it in the repository, if the repository says so itself; it listens on `port`."""


class PlannedCheck(msgspec.Struct, frozen=True):
    """A command that must pass. The sandbox decides in the end: it knows which tools it has."""

    command: str
    why: str


class Variable(msgspec.Struct, frozen=True):
    """A variable of the environment of set-up, checks and the agent. `$PATH` in the value is the template's."""

    name: str
    value: str
    why: str


class Note(msgspec.Struct, frozen=True):
    """A sentence for a person: a file that cannot be read, a version that cannot be had."""

    text: str


class Used(msgspec.Struct, frozen=True):
    """A file whose contents the plan depends on; the environment is rebuilt if it changes."""

    file: str


Line = Toolchain | Manager | AptPackage | Registry | Step | Service | PlannedCheck | Variable | Note | Used
"""What an ecosystem says about a repository."""


class Plan(msgspec.Struct, frozen=True):
    """The environment of a repository."""

    toolchains: tuple[Toolchain, ...] = ()
    managers: tuple[Manager, ...] = ()
    apt: tuple[AptPackage, ...] = ()
    registries: tuple[Registry, ...] = ()
    steps: tuple[Step, ...] = ()
    services: tuple[Service, ...] = ()
    checks: tuple[PlannedCheck, ...] = ()
    env: tuple[Variable, ...] = ()
    files: tuple[str, ...] = ()
    """Every file that the plan depends on, sorted: the environment's content address covers their contents."""
    template: str | None = None
    """The template that the repository's settings name."""
    notes: tuple[str, ...] = ()

    @property
    def needs_setup(self) -> bool:
        """False if the template is enough as it is."""
        return bool(self.apt or self.steps or self.services)
