"""Parse devcontainer.json: the image it names and the commands to run in it once. Pure."""

import posixpath
import re
from collections.abc import Mapping
from typing import cast

import msgspec

from cloister.core.errors import UserError
from cloister.core.text import one_line

PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""Where it may be in a repository, in this order."""

WORKSPACE = "/work"
_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""Run once, in this order. Commands for each start, or for the host, are not run."""

_REFUSED = {
    "dockerComposeFile": "a template is one container",
    "mounts": "a sandbox gets no directories of this machine",
    "runArgs": "they are options of another runtime",
    "privileged": "a sandbox has no privileges",
    "capAdd": "a sandbox has no privileges",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z]+)(?::([^}:]*))?(?::([^}]*))?\}")
_OPTION = re.compile(r"[^A-Za-z0-9]+")

StepCommand = str | tuple[str, ...]
"""A line for a shell, or the words of a program."""


class _Build(msgspec.Struct, frozen=True):
    dockerfile: str | None = None
    context: str = "."
    target: str | None = None
    args: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """The fields in use; `object` where the shape varies."""

    image: str | None = None
    build: _Build | None = None
    docker_file: str | None = None
    context: str | None = None
    container_env: dict[str, str] = {}
    remote_env: dict[str, str | None] = {}
    remote_user: str | None = None
    container_user: str | None = None
    features: dict[str, object] = {}


class Feature(msgspec.Struct, frozen=True):
    """A script of the repository, run as root."""

    directory: str
    """Inside the repository."""
    env: dict[str, str]


class Step(msgspec.Struct, frozen=True):
    """One command of the file, run as the agent."""

    name: str
    command: StepCommand


class Wanted(msgspec.Struct, frozen=True):
    """The contents of a devcontainer.json."""

    image: str | None
    dockerfile: str | None
    """Inside the repository, as `context`."""
    context: str
    target: str | None
    args: dict[str, str]
    env: dict[str, str]
    user: str | None
    features: tuple[Feature, ...]
    steps: tuple[Step, ...]

    def env_over(self, image: Mapping[str, str]) -> dict[str, str]:
        """The environment, once the image's own is known."""
        return {name: _expand(value, image) for name, value in self.env.items()}


def parse(text: str, place: str) -> Wanted:
    """Raises `UserError` (`bad_devcontainer`) for an invalid file and for each field that is not supported."""
    try:
        raw = msgspec.json.decode(without_comments(text))
        file = msgspec.convert(raw, _File)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _bad(f"{place} cannot be read: {one_line(str(error), 160)}.") from None
    fields = cast("dict[str, object]", raw)
    for name, why in _REFUSED.items():
        if fields.get(name):
            raise _bad(f"{place} uses {name}, which is not supported: {why}.")
    folder = posixpath.dirname(place)
    build = file.build or _Build(file.docker_file, file.context or ".")
    dockerfile = None if build.dockerfile is None else _inside(folder, build.dockerfile)
    if (file.image is None) == (dockerfile is None):
        raise _bad(f"{place} must name either an image or a build.dockerfile.")
    steps = [step for name in _COMMANDS for step in _steps(name, fields.get(name))]
    remote = {name: value for name, value in file.remote_env.items() if value is not None}
    return Wanted(
        image=file.image,
        dockerfile=dockerfile,
        context=_inside(folder, build.context),
        target=build.target,
        args={name: _expand(value, {}) for name, value in build.args.items()},
        env={**file.container_env, **remote},
        user=file.remote_user or file.container_user,
        features=tuple(_feature(folder, name, options) for name, options in file.features.items()),
        steps=tuple(steps),
    )


def _steps(name: str, value: object) -> list[Step]:
    match value:
        case None | "":
            return []
        case str():
            return [Step(name, _expand(value, None))]
        case list():
            words = cast("list[object]", value)
            if words and all(isinstance(word, str) for word in words):
                return [Step(name, tuple(_expand(str(word), None) for word in words))]
        case dict():
            named = cast("dict[str, object]", value).items()
            return [step for key, inner in named for step in _steps(f"{name} {one_line(key, 40)}", inner)]
        case _:
            pass
    raise _bad(f"{name} must be a string, a list of strings, or an object of these.")


def _feature(folder: str, name: str, options: object) -> Feature:
    if not name.startswith("./"):
        raise _bad(
            f"The feature {one_line(name, 100)} is not a script of the repository and is not supported: "
            "install it in the image, or in postCreateCommand."
        )
    chosen: dict[str, object] = {}
    match options:
        case dict():
            chosen = cast("dict[str, object]", options)
        case str():
            chosen = {"version": options}
        case _:
            pass
    env = {_OPTION.sub("_", key).upper(): _plain(value) for key, value in chosen.items()}
    return Feature(_inside(folder, name), env)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inside(folder: str, path: str) -> str:
    """`path`, relative to the file, as a path of the repository. Raises when it leads out of it."""
    joined = posixpath.normpath(posixpath.join(folder, path))
    if joined.startswith(("/", "../")) or joined == "..":
        raise _bad(f"{one_line(path, 80)} leads out of the repository.")
    return joined


def _expand(text: str, image: Mapping[str, str] | None) -> str:
    """Replace `${…}`. Variables of this machine's environment expand to their default."""

    def one(found: "re.Match[str]") -> str:
        kind, name, default = found[1], found[2] or "", found[3] or ""
        match kind:
            case "localWorkspaceFolder" | "containerWorkspaceFolder":
                return WORKSPACE
            case "localWorkspaceFolderBasename" | "containerWorkspaceFolderBasename":
                return WORKSPACE.strip("/")
            case "localEnv" | "env":
                return default
            case "containerEnv":
                # In a command the variable is there by itself.
                return f"${{{name}}}" if image is None else image.get(name, default)
            case _:
                return found[0]

    return _VARIABLE.sub(one, text)


def _bad(message: str) -> UserError:
    return UserError("bad_devcontainer", message)


_JSON_EXTRA = re.compile(
    r"""
    (?P<string> "(?:\\.|[^"\\])*"? )
    | //[^\n]* | /\*.*?(?:\*/|\Z)                                  # a comment
    | (?P<comma> , (?= (?>\s+|//[^\n]*+|/\*.*?\*/)*+ [\]}] ) )       # a comma before a closing bracket
    """,
    re.DOTALL | re.VERBOSE,
)


def without_comments(text: str) -> str:
    """Strip comments and trailing commas, which devcontainer.json may have and JSON may not."""

    def plain(found: "re.Match[str]") -> str:
        return found["string"] or ("" if found["comma"] else " ")

    return _JSON_EXTRA.sub(plain, text)
