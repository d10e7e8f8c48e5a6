"""The repository's own settings, `.cloister/config.toml`: what set-up and checks are, in place of what is detected."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cloister.core import limits
from cloister.core.diagnosis import CheckKind
from cloister.core.requests import McpServer
from cloister.core.text import one_line

FILES = (".cloister.toml", ".cloister/config.toml")
"""Where the settings may be; of a key in both files, the first counts."""

REPOSITORIES = ".cloister/repositories/"
"""In the work tree of a run on several repositories: a file for each, with the name of its folder."""

LINES = 16
"""Set-up commands that are kept."""
_ENTRIES = 60
_VALUE_CHARS = 8_192
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,100}[a-z0-9+]")
"""A name that ends in `-` would make apt remove the package."""
_PARTS = 500
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_SERVICE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_LISTED = re.compile(re.escape(REPOSITORIES) + r"[A-Za-z0-9_][A-Za-z0-9._-]{0,80}")
_TEMPLATE = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")


class OwnCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `checks`; a plain string is a command."""

    command: str
    kind: CheckKind | None = None
    timeout: float | None = None


class OwnService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `services`; a plain string is a name, `postgresql` or `redis:7`."""

    name: str
    version: str = ""
    port: int = 0
    env: dict[str, str] = {}
    command: str = ""
    """What starts it, for one that is not known; it listens on `port`."""


class OwnPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `pages`; a plain string is an address or a file."""

    page: Annotated[str, Meta(min_length=1, max_length=2_000)]
    serve: Annotated[str, Meta(max_length=2_000)] = ""
    """The command of a server that shows the page; empty for a file, or if it is shown elsewhere."""
    width: Annotated[int, Meta(ge=200, le=2_000)] = 1_280
    height: Annotated[int, Meta(ge=200, le=3_000)] = 800


class RepositorySettings(msgspec.Struct, frozen=True):
    """The settings of a repository. What is None or empty is detected."""

    setup: tuple[str, ...] | Literal["off"] | None = None
    """Commands in place of the detected ones; `off` for none."""
    checks: tuple[OwnCheck, ...] = ()
    packages: tuple[str, ...] | None = None
    """Debian packages in place of the detected ones."""
    services: tuple[OwnService, ...] | None = None
    env: dict[str, str] = {}
    """Added to the detected variables."""
    template: str | None = None
    keep: tuple[str, ...] = ()
    """Patterns of ignored files that save points keep."""
    lfs: tuple[str, ...] = ()
    """Patterns of the files whose content is fetched from LFS; the others stay pointers."""
    pages: tuple[OwnPage, ...] = ()
    """Pages of which a run takes pictures, before and after its change."""
    mcp: dict[str, McpServer] = {}
    """MCP servers that run in the sandbox, or at an address that the rules allow."""
    files: dict[str, str] = {}
    """Key → the file that sets it."""
    problems: tuple[str, ...] = ()
    """One sentence for each file or key that is not used."""

    def source(self, key: str) -> str:
        return self.files.get(key, FILES[1])


class _Written(msgspec.Struct, frozen=True):
    """The keys as a file has them."""

    setup: str | list[str] | None = None
    checks: list[str | OwnCheck] = []
    packages: list[str] | None = None
    services: list[str | OwnService] | None = None
    env: dict[str, str | int | float | bool] = {}
    template: str | None = None
    keep: list[str] = []
    lfs: bool | list[str] = False
    pages: list[str | OwnPage] = []
    mcp: dict[str, McpServer] = {}


_FORMS = {
    "setup": 'a list of commands, such as ["make deps"], or "off"',
    "checks": 'a list of commands or tables, such as ["make test", {command = "npm test", timeout = 60}]',
    "packages": 'a list of Debian packages, such as ["libpq-dev"]',
    "services": 'a list of names or tables, such as ["redis", {name = "postgresql", env = {POSTGRES_DB = "app"}}]',
    "env": 'a table, such as {DEBUG = "1"}',
    "template": 'a name, such as "default"',
    "keep": 'a list of patterns of ignored files, such as [".env.test", "build/cache/**"]',
    "mcp": 'tables, such as {docs = {command = ["docs-server"]}}',
    "lfs": 'true, or a list of patterns, such as ["assets/**"]',
    "pages": 'a list of pages or tables, such as ["index.html", {page = "http://localhost:8000/", serve = "make serve"}]',
}


def folders_of(files: Iterable[str]) -> tuple[str, ...]:
    """The folders of a work tree that hold a repository each, sorted; none for the work tree of one repository."""
    return tuple(sorted({name.removeprefix(REPOSITORIES) for name in files if _LISTED.fullmatch(name)}))


def below(folder: str, contents: Mapping[str, str]) -> dict[str, str]:
    """The files of one folder, by their names in it."""
    start = f"{folder}/"
    return {name.removeprefix(start): text for name, text in contents.items() if name.startswith(start)}


def read_settings(contents: Mapping[str, str]) -> RepositorySettings:
    """Read the settings from the files that the repository has. Never raises: see `problems`."""
    written = _Written()
    files: dict[str, str] = {}
    problems: list[str] = []
    for name in FILES:
        for key, value in _table(name, contents.get(name, ""), problems).items():
            if key not in _FORMS:
                problems.append(_unknown(name, key))
                continue
            one = None if key in files else _converted(name, key, value, problems)
            # An empty list in one file leaves the key to the other.
            if one and (_checks(one.checks) or _setup(one.setup) or key not in ("checks", "setup")):
                written = msgspec.structs.replace(written, **{key: getattr(one, key)})
                files[key] = name
    return _settings(written, files, problems)


def parse_toml(text: str) -> dict[str, object]:
    """Parse TOML from a stranger. Raises `ValueError`."""
    # The library takes quadratic time for a key of many parts: 18 s for 260 KB.
    for line in text.split("\n"):
        if line.count(".") > _PARTS and _STRING.sub("", line).count(".") > _PARTS:
            raise ValueError("a key has too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _table(name: str, text: str, problems: list[str]) -> dict[str, object]:
    try:
        return parse_toml(text)
    except ValueError as error:
        problems.append(f"{name} cannot be read: {one_line(str(error), 160)}")
        return {}


def _unknown(name: str, key: str) -> str:
    near = difflib.get_close_matches(key[:40], _FORMS, 1, 0.5)
    advice = f"did you mean `{near[0]}`?" if near else f"the keys are {', '.join(_FORMS)}"
    return f"{name} has the unknown key `{one_line(key, 40)}`: {advice}"


def _converted(name: str, key: str, value: object, problems: list[str]) -> _Written | None:
    try:
        return msgspec.convert({key: value}, _Written)
    except (msgspec.ValidationError, RecursionError) as error:
        why = one_line(str(error), 120)
        problems.append(f"`{key}` in {name} must be {_FORMS[key]} ({why})")
        return None


def _settings(written: _Written, files: dict[str, str], problems: list[str]) -> RepositorySettings:
    packages, template = written.packages, written.template
    env = {name: _plain(value) for name, value in written.env.items()}
    bad = [
        *(
            f"`{name}` is no name of a Debian package"
            for name in packages or ()
            if not _PACKAGE.fullmatch(name)
        ),
        *(f"`{name}` is no name of a variable" for name in env if not _ENV_NAME.fullmatch(name)),
    ]
    if template is not None and not _TEMPLATE.fullmatch(template):
        bad.append(f"`{template}` is no name of a template")
        template = None
    services = None
    if written.services is not None:
        named = [_service(one) if isinstance(one, str) else one for one in written.services]
        usable = [
            one
            for one in named
            if not one.command or (_SERVICE.fullmatch(one.name) and 0 < one.port < 65_536)
        ]
        bad += [
            f"the service `{one.name}` with a `command` needs a plain name and its `port`"
            for one in named
            if one not in usable
        ]
        services = tuple(one for one in usable if one.name)[:_ENTRIES]
    good = [(name, value[:_VALUE_CHARS]) for name, value in env.items() if _ENV_NAME.fullmatch(name)]
    return RepositorySettings(
        setup=_setup(written.setup),
        checks=_checks(written.checks),
        packages=None if packages is None else tuple(filter(_PACKAGE.fullmatch, packages))[:_ENTRIES],
        services=services,
        env=dict(good[:_ENTRIES]),
        template=template,
        keep=tuple([one for one in _patterns(written.keep) if _inside(one)]),
        lfs=_patterns(written.lfs),
        pages=_pages(written.pages),
        mcp=written.mcp,
        files=files,
        problems=tuple((*problems, *(one_line(one, 100) for one in bad))[:_ENTRIES]),
    )


def _patterns(value: bool | list[str]) -> tuple[str, ...]:
    given = ["**"] if value is True else value or []
    return tuple(one[:_VALUE_CHARS] for one in given if one.strip())[:_ENTRIES]


def _inside(pattern: str) -> bool:
    parts = pattern.split("/")
    return not pattern.startswith(("/", ":")) and not {"..", ".git"} & set(parts) and "\0" not in pattern


def _service(text: str) -> OwnService:
    name, _, version = text.partition(":")
    return OwnService(name, version)


def _plain(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setup(value: str | list[str] | None) -> tuple[str, ...] | Literal["off"] | None:
    lines = [value] if isinstance(value, str) else value or []
    kept = tuple(line.strip() for line in lines if line.strip())[:LINES]
    if kept == ("off",):
        return "off"
    return None if kept == ("auto",) else kept or None


def _pages(value: list[str | OwnPage]) -> tuple[OwnPage, ...]:
    found = [OwnPage(one.strip()[:2_000]) if isinstance(one, str) else one for one in value]
    return tuple([one for one in found if one.page][: limits.PAGES])


def _checks(value: list[str | OwnCheck]) -> tuple[OwnCheck, ...]:
    found = [OwnCheck(one) if isinstance(one, str) else one for one in value]
    stripped = (msgspec.structs.replace(one, command=one.command.strip()) for one in found)
    return tuple([one for one in stripped if one.command][: limits.CHECKS])
