"""Recipes: small TOML files that describe how to build a template."""

import hashlib
import json
import posixpath
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec

from cloister.core.errors import UserError
from cloister.core.text import one_line

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_VERSION = 1
"""Increased when `root.settle` changes the result of an image."""

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+(:[a-z0-9]+)?(/[a-z0-9.-]+|=[A-Za-z0-9.+:~-]+)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Packages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="packages"):
    """Debian packages of this host's release."""

    packages: tuple[str, ...]
    env: dict[str, str] = {}


class Oci(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="oci"):
    """A container image."""

    image: str
    """`registry/name:tag`, the directory of an OCI layout, or a tar file (`docker save`, OCI archive)."""
    user: str | None = None
    """The user of the image that the agent becomes."""
    tls: bool = True
    """False for a registry without TLS, e.g. one on loopback."""
    env: dict[str, str] = {}


class Dockerfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="dockerfile"):
    """A Dockerfile and the directory around it."""

    context: str
    dockerfile: str = "Dockerfile"
    """Relative to `context`; a link that leads out of it is refused."""
    target: str | None = None
    args: dict[str, str] = {}
    network: bool = False
    """Whether RUN steps reach the hosts that the policy allows, through the proxy; otherwise they have no network."""
    user: str | None = None
    tls: bool = True
    env: dict[str, str] = {}


class Devcontainer(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="devcontainer"
):
    """The devcontainer.json of a repository."""

    repo: str
    ref: str | None = None
    network: bool = False
    """As for a Dockerfile."""
    tls: bool = True


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="repository"):
    """A warmed template: `base` with a repository cloned, set up and checked once."""

    repo: str
    ref: str | None = None
    base: str = "default"
    minutes: float = 30.0
    """Age at which a running server rebuilds it."""


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="snapshot"):
    """The files of a snapshot."""

    snapshot: str
    """Its name or id."""
    env: dict[str, str] = {}
    """Added to the environment of commands."""


Recipe = Packages | Oci | Dockerfile | Devcontainer | Repository | Snapshot

BUILT_IN: dict[str, Recipe] = {
    "default": Packages(
        (
            *("python3", "python3-pytest", "python3-venv", "python3-pip", "python-is-python3", "git"),
            *("ripgrep", "build-essential", "ca-certificates", "curl", "less", "procps", "patch"),
        )
    )
}


class _Installed(msgspec.Struct, frozen=True):
    """The digest of a `packages` template covers these."""

    name: str
    release: str
    packages: tuple[str, ...]
    version: int = 1


def directory_of(name: str, recipe: Recipe, release: str | None) -> str:
    """The directory of a template: its name and a digest of everything that decides its content."""
    what: object = (name, recipe, _VERSION)
    if isinstance(recipe, Packages):
        what = _Installed(name, release or "", recipe.packages)
        if recipe.env:
            what = (what, recipe.env)
    return f"{name}-{hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:12]}"


def check_name(name: str) -> None:
    """Raises `UserError` (`bad_template`)."""
    if not NAME.fullmatch(name):
        raise UserError(
            "bad_template",
            f"{one_line(name, 60)!r} cannot name a template: use up to 48 of a-z, 0-9, - and _.",
        )


def check(recipe: Recipe) -> None:
    """Raises `UserError` (`bad_template`) for a recipe that cannot be built."""
    match recipe:
        case Packages(packages):
            wrong = next((name for name in packages if not _PACKAGE.fullmatch(name)), None)
            if wrong is not None or not packages:
                raise _bad(f"{wrong!r} is not the name of a package." if packages else "it names no package.")
        case Oci(image):
            _check_word("image", image)
        case Dockerfile():
            _check_word("context", recipe.context)
            if Path(recipe.dockerfile).is_absolute() or ".." in Path(recipe.dockerfile).parts:
                raise _bad("`dockerfile` is a path inside `context`.")
        case Devcontainer() | Repository():
            _check_word("repo", recipe.repo)
        case Snapshot():
            _check_word("snapshot", recipe.snapshot)
    if isinstance(recipe, Repository) and not 1 <= recipe.minutes <= 100_000:
        raise _bad("`minutes` is between 1 and 100,000.")
    if not isinstance(recipe, Devcontainer | Repository):
        check_env(recipe.env)


def check_env(env: dict[str, str]) -> None:
    """Raises `UserError` (`bad_template`)."""
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise _bad(f"{one_line(name, 40)!r} cannot be the name of an environment variable.")


def _check_word(what: str, text: str) -> None:
    if not text.strip() or text.startswith("-") or re.search(r"[\x00-\x1f]", text):
        raise _bad(f"`{what}` is empty, starts with a dash or has control characters.")


def _bad(why: str) -> UserError:
    return UserError("bad_template", f"The recipe cannot be used: {why}")


def read_recipe(path: Path) -> Recipe | None:
    """The recipe in a TOML file; None when there is no file. Raises `UserError` (`bad_template`)."""
    try:
        recipe = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Recipe)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UserError("bad_template", f"{path} is not a recipe: {one_line(str(error), 200)}.") from None
    check(recipe)
    return recipe


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe atomically."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    draft.write_text(to_toml(recipe), encoding="utf-8")
    draft.replace(path)


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML, without fields that have their default value."""
    usual = {field.name: field.default for field in msgspec.structs.fields(recipe)}
    made = cast("dict[str, object]", msgspec.to_builtins(recipe))
    return "".join(
        f"{key} = {_value(value)}\n"
        for key, value in made.items()
        if value is not None and (key not in usual or value != usual[key]) and value != {}
    )


def _value(value: object) -> str:
    match value:
        case dict():
            pairs = cast("dict[str, object]", value).items()
            return "{ " + ", ".join(f"{_text(key)} = {_value(inner)}" for key, inner in pairs) + " }"
        case list() | tuple():
            return "[" + ", ".join(_value(inner) for inner in cast("list[object]", value)) + "]"
        case str():
            return _text(value)
        case _:
            return json.dumps(value)


def _text(text: str) -> str:
    # A JSON string is a TOML string, except for one character that TOML requires to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# Parse devcontainer.json: the image it names and the commands to run in it once. Pure.


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
        raise _devcontainer_bad(f"{place} cannot be read: {one_line(str(error), 160)}.") from None
    fields = cast("dict[str, object]", raw)
    for name, why in _REFUSED.items():
        if fields.get(name):
            raise _devcontainer_bad(f"{place} uses {name}, which is not supported: {why}.")
    folder = posixpath.dirname(place)
    build = file.build or _Build(file.docker_file, file.context or ".")
    dockerfile = None if build.dockerfile is None else _inside(folder, build.dockerfile)
    if (file.image is None) == (dockerfile is None):
        raise _devcontainer_bad(f"{place} must name either an image or a build.dockerfile.")
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
    raise _devcontainer_bad(f"{name} must be a string, a list of strings, or an object of these.")


def _feature(folder: str, name: str, options: object) -> Feature:
    if not name.startswith("./"):
        raise _devcontainer_bad(
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
        raise _devcontainer_bad(f"{one_line(path, 80)} leads out of the repository.")
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


def _devcontainer_bad(message: str) -> UserError:
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
