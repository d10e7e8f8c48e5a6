"""What was typed after `cloister template build`, as a recipe: relative names mean files of the caller."""

from pathlib import Path
from typing import NamedTuple

from cloister.cli.request import repository
from cloister.core.errors import UserError
from cloister.sandbox.api import SNAPSHOT_PREFIX
from cloister.sandbox.templates.recipes import (
    Devcontainer,
    Dockerfile,
    Oci,
    Packages,
    Recipe,
    Repository,
    Snapshot,
)


class Asked(NamedTuple):
    """The options that describe a template."""

    packages: str | None = None
    image: str | None = None
    dockerfile: str | None = None
    devcontainer: str | None = None
    repository: str | None = None
    snapshot: str | None = None
    base: str = "default"
    ref: str | None = None
    minutes: float = 30.0
    user: str | None = None
    network: bool = False
    tls: bool = True


def recipe_of(asked: Asked) -> Recipe | None:
    """The recipe; None when no kind was given. Raises `UserError` (`bad_options`, `no_repository`)."""
    kinds = (
        *(asked.packages, asked.image, asked.dockerfile),
        *(asked.devcontainer, asked.repository, asked.snapshot),
    )
    if sum(kind is not None for kind in kinds) > 1:
        raise UserError(
            "bad_options",
            "Give one of --packages, --image, --dockerfile, --devcontainer, --repository and --snapshot.",
        )
    match kinds:
        case (str(packages), *_):
            return Packages(tuple(packages.replace(",", " ").split()))
        case (_, str(image), *_):
            return Oci(_image(image), user=asked.user, tls=asked.tls)
        case (_, _, str(path), *_):
            return _dockerfile(Path(path).expanduser().absolute(), asked)
        case (_, _, _, str(repo), *_):
            return Devcontainer(repository(repo), ref=asked.ref, network=asked.network, tls=asked.tls)
        case (*_, str(reference)):
            return Snapshot(reference.removeprefix(SNAPSHOT_PREFIX))
        case (*_, str(repo), _):
            return Repository(repository(repo), ref=asked.ref, base=asked.base, minutes=asked.minutes)
        case _:
            return None


def _image(name: str) -> str:
    """A file or directory of the caller by its whole path; anything else as it is."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _dockerfile(path: Path, asked: Asked) -> Dockerfile:
    folder, name = (path, "Dockerfile") if path.is_dir() else (path.parent, path.name)
    return Dockerfile(str(folder), name, network=asked.network, user=asked.user, tls=asked.tls)


def source(recipe: Recipe) -> tuple[str, str]:
    """Kind and origin, for a list."""
    match recipe:
        case Packages():
            return "packages", " ".join(recipe.packages)
        case Oci():
            return "oci", recipe.image
        case Dockerfile():
            return "dockerfile", str(Path(recipe.context) / recipe.dockerfile)
        case Devcontainer():
            return "devcontainer", recipe.repo
        case Repository():
            return "repository", f"{recipe.repo} on {recipe.base}"
        case Snapshot():
            return "snapshot", recipe.snapshot
