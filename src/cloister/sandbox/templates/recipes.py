"""Recipes: small TOML files that describe how to build a template."""

import hashlib
import json
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from cloister.core.addresses import check_address
from cloister.core.errors import UserError
from cloister.core.requests import CREDENTIAL_NAME, placeholder
from cloister.core.text import one_line

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_VERSION = 1
"""Increased when `root.settle` changes the result of an image."""

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+(:[a-z0-9]+)?(/[a-z0-9.-]+|=[A-Za-z0-9.+:~-]+)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USERINFO = re.compile(r"(?:[a-z]+://)?[^/@:]*:[^/@]*@(?!sha256:)")
_REFERENCE = re.compile(rf"credential:({CREDENTIAL_NAME})|\{{\{{secret:({CREDENTIAL_NAME})\}}\}}")
"""Both forms name a credential; the second is `placeholder`."""
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE|SECRET)_?KEY)(?:_|$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\bgh[a-z]_[A-Za-z0-9]{20}|\bgithub_pat_|\bglpat-|\bxox[a-z]-|\bsk-[A-Za-z0-9_-]{20}|\bAKIA[0-9A-Z]{16}"
    r"|-----BEGIN |\beyJ[A-Za-z0-9_-]{20}|\bnpm_[A-Za-z0-9]{30}|\bpypi-[A-Za-z0-9_-]{30}|://[^/\s@]*@"
)


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


class Environment(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="environment"
):
    """What set-up added to `base`. Its name is the content address; `runs/environments.py` writes it.

    Without a `repo` it is a layer of tools that repositories share.
    """

    base: str
    packages: tuple[str, ...] = ()
    """Debian packages."""
    steps: tuple[str, ...] = ()
    """Command lines, in their order."""
    repo: str = ""
    """The repository whose dependencies are installed."""
    files: dict[str, str] = {}
    """The files of the repository that it was made from, with their git objects."""
    services: tuple[str, ...] = ()


Recipe = Packages | Oci | Dockerfile | Devcontainer | Repository | Snapshot | Environment
R = TypeVar("R", bound=Recipe)

_DEFAULT = (
    *("python3", "python3-pytest", "python3-venv", "python3-pip", "python-is-python3", "git"),
    *("ripgrep", "build-essential", "ca-certificates", "curl", "less", "procps", "patch"),
)
BUILT_IN: dict[str, Recipe] = {
    "default": Packages(_DEFAULT),
    "browser": Packages((*_DEFAULT, "chromium", "fonts-dejavu-core")),
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
            _check_image(image)
        case Dockerfile():
            _check_dockerfile(recipe)
        case Devcontainer() | Repository():
            _check_repo(recipe.repo)
        case Snapshot():
            _check_word("snapshot", recipe.snapshot)
        case Environment():
            _check_word("base", recipe.base)
    if isinstance(recipe, Repository) and not 1 <= recipe.minutes <= 100_000:
        raise _bad("`minutes` is between 1 and 100,000.")
    if not isinstance(recipe, Devcontainer | Repository | Environment):
        check_env(recipe.env)
        _check_secrets("env", recipe.env)


def _check_dockerfile(recipe: Dockerfile) -> None:
    _check_word("context", recipe.context)
    if Path(recipe.dockerfile).is_absolute() or ".." in Path(recipe.dockerfile).parts:
        raise _bad("`dockerfile` is a path inside `context`.")
    _check_secrets("args", recipe.args)
    if not recipe.network and any(map(_referred, recipe.args.values())):
        raise _bad("`args` refers to a credential, which steps use through the proxy: set `network = true`.")


def check_env(env: dict[str, str]) -> None:
    """Raises `UserError` (`bad_template`)."""
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise _bad(f"{one_line(name, 40)!r} cannot be the name of an environment variable.")


def _check_image(image: str) -> None:
    _check_word("image", image)
    if not image.startswith(("/", ".", "~")) and _USERINFO.match(image):
        raise _bad("`image` holds a user or password: put logins into `registries.json`.")


def _check_repo(repo: str) -> None:
    _check_word("repo", repo)
    if problem := check_address(repo):
        raise _bad(problem)


def _check_secrets(what: str, values: Mapping[str, str]) -> None:
    """A recipe is stored and shown, and an argument ends up in files and logs of the build."""
    for name, value in values.items():
        if _referred(value):
            continue
        shown = one_line(name, 40)
        if value.startswith("credential:"):
            raise _bad(
                f"the value of {shown} in `{what}` is not credential:NAME with the name of a credential."
            )
        if value and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)):
            raise _bad(
                f"`{what}` holds {shown}, which looks like a secret. Write `credential:NAME` instead, with the name of a "
                "[[credential]] of the settings: the proxy adds its value to requests."
            )


def _referred(value: str) -> str | None:
    """The name of the credential that a value refers to, if any."""
    found = _REFERENCE.fullmatch(value)
    return found and (found[1] or found[2])


def _values_of(recipe: Recipe) -> dict[str, dict[str, str]]:
    """`args` and `env`, where the recipe has them."""
    return {field: getattr(recipe, field) for field in ("args", "env") if hasattr(recipe, field)}


def without_values(recipe: Recipe) -> Recipe:
    """The recipe with the values of `args` and `env` left out, for readers who may not see them."""
    hidden = {field: dict.fromkeys(values, "…") for field, values in _values_of(recipe).items()}
    return msgspec.structs.replace(recipe, **hidden)


def credentials_of(recipe: Recipe) -> frozenset[str]:
    """The names of the credentials that the recipe refers to."""
    found = (_referred(value) for values in _values_of(recipe).values() for value in values.values())
    return frozenset(name for name in found if name is not None)


def with_stand_ins(recipe: R) -> R:
    """The recipe with placeholders for its credentials: the proxy replaces them, and no value is read here."""
    made = {
        field: {
            key: placeholder(name) if (name := _referred(value)) else value for key, value in values.items()
        }
        for field, values in _values_of(recipe).items()
    }
    return msgspec.structs.replace(recipe, **made)


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
