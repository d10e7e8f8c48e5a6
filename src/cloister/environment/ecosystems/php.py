"""PHP: Debian's interpreter with the extensions that `composer.json` names, and Composer."""

import re
from collections.abc import Iterator

from cloister.environment.api import AptPackage, Line, Manager, Registry, Step, Toolchain, Used
from cloister.environment.hints import Hints
from cloister.environment.listing import Project, string, table
from cloister.environment.versions import satisfies

VERSION = "8.2"
_EXTENSIONS = {
    **{
        name: f"php-{name}"
        for name in ("mbstring", "curl", "zip", "intl", "gd", "bcmath", "redis", "imagick", "gmp", "soap")
    },
    **dict.fromkeys(("dom", "xml", "simplexml", "xmlwriter", "xmlreader", "xsl"), "php-xml"),
    **{
        "pdo_sqlite": "php-sqlite3",
        "sqlite3": "php-sqlite3",
        "pdo_mysql": "php-mysql",
        "mysqli": "php-mysql",
        "pdo_pgsql": "php-pgsql",
    },
}
_TEST = re.compile(r"tests/(?:[^/]{1,200}/){0,3}[^/]{1,200}Test\.php")
_USUAL = ("php-cli", "php-xml", "php-mbstring", "php-curl", "php-zip", "composer", "unzip")


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with `composer.json` needs."""
    if not project.has("composer.json"):
        yield from _plain(project)
        return
    manifest, lock = project.path("composer.json"), project.first("composer.lock")
    yield from (Used(name) for name in (manifest, lock) if name)
    required = table(project.json("composer.json"), "require")
    wanted = string(required.get("php")) or hints.version("php").text
    range_ = re.sub(r"(?<!\|)\|(?!\|)", "||", wanted)
    why = f"{wanted} in {manifest}" if wanted else manifest
    problem = None
    if not satisfies(VERSION, range_):
        problem = (
            f"PHP {wanted} cannot be had (Debian 12 has {VERSION}, no registry has others): {VERSION} is used"
        )
    yield Toolchain("php", VERSION, "debian", why, wanted, problem)
    yield from (AptPackage(name, f"PHP {VERSION}: {why}") for name in _USUAL)
    every = {**required, **table(project.json("composer.json"), "require-dev")}
    for name in every:
        if package := _EXTENSIONS.get(name.removeprefix("ext-")) if name.startswith("ext-") else None:
            yield AptPackage(package, f"{name} in {manifest}")
    yield Manager("composer", "2.5", "debian", manifest)
    if any("/" in name for name in every):
        yield Registry("@composer", lock or manifest)
        yield Step("composer install --no-interaction --no-progress --quiet", lock or manifest, project.at)


def _plain(project: Project) -> Iterator[Line]:
    """PHP without Composer: the interpreter, and Debian's PHPUnit."""
    settings = project.first("phpunit.xml", "phpunit.xml.dist")
    tests = [name for name in project.below() if _TEST.fullmatch(name)]
    if settings is None and (not tests or project.at):
        return
    shown = settings or project.path(tests[0])
    yield Toolchain("php", VERSION, "debian", shown)
    names = ("php-cli", "php-xml", "php-mbstring", "phpunit")
    yield from (AptPackage(name, f"PHP {VERSION}: {shown}") for name in names)
