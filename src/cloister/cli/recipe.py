"""Build a template's recipe from the options of `cloister template build`. Relative paths are the caller's."""

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


class TemplateOptions(NamedTuple):
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


def recipe_of(options: TemplateOptions) -> Recipe | None:
    """The recipe; None when no kind was given. Raises `UserError` (`bad_options`, `no_repository`)."""
    kinds = (
        *(options.packages, options.image, options.dockerfile),
        *(options.devcontainer, options.repository, options.snapshot),
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
            return Oci(_image(image), user=options.user, tls=options.tls)
        case (_, _, str(path), *_):
            return _dockerfile(Path(path).expanduser().absolute(), options)
        case (_, _, _, str(repo), *_):
            return Devcontainer(repository(repo), ref=options.ref, network=options.network, tls=options.tls)
        case (*_, str(reference)):
            return Snapshot(reference.removeprefix(SNAPSHOT_PREFIX))
        case (*_, str(repo), _):
            return Repository(repository(repo), ref=options.ref, base=options.base, minutes=options.minutes)
        case _:
            return None


def _image(name: str) -> str:
    """Make the path of an existing file absolute; return any other name unchanged."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _dockerfile(path: Path, options: TemplateOptions) -> Dockerfile:
    folder, name = (path, "Dockerfile") if path.is_dir() else (path.parent, path.name)
    return Dockerfile(str(folder), name, network=options.network, user=options.user, tls=options.tls)


def source(recipe: Recipe) -> tuple[str, str]:
    """Kind and origin, for `template ls`."""
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


def paths(recipe: Recipe) -> tuple[str, ...]:
    """The paths in a recipe that the machine of the build must have."""
    match recipe:
        case Oci():
            return (recipe.image,)
        case Dockerfile():
            return (recipe.context,)
        case Devcontainer() | Repository():
            return (recipe.repo,)
        case Packages() | Snapshot():
            return ()
