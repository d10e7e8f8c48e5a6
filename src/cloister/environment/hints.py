"""What files beside the manifests say: version managers, CI workflows, Dockerfiles, compose files, devcontainers."""

import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from cloister.core.text import one_line
from cloister.environment.api import AptPackage, Line, Note, Service, Used
from cloister.environment.listing import Files, Table, string, strings, table
from cloister.feedback.discover import WORKFLOWS

_NAMES = {
    "nodejs": "node",
    "golang": "go",
    **{
        name: name
        for name in (
            *("python", "node", "go", "java", "ruby", "rust", "php", "elixir", "pnpm", "yarn", "bun"),
        )
    },
}
_MISE = ("mise.toml", ".mise.toml", ".config/mise.toml")
COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
DOCKERFILES = (
    "Dockerfile",
    ".devcontainer/Dockerfile",
    ".devcontainer/devcontainer.json",
    ".devcontainer.json",
)
SERVICES = {
    "postgres": ("postgresql", 5_432),
    "postgresql": ("postgresql", 5_432),
    "postgis": ("postgresql", 5_432),
    "pgvector": ("postgresql", 5_432),
    "mysql": ("mysql", 3_306),
    "mariadb": ("mysql", 3_306),
    "redis": ("redis", 6_379),
    "valkey": ("redis", 6_379),
    "redis-stack": ("redis", 6_379),
    "memcached": ("memcached", 11_211),
    "rabbitmq": ("rabbitmq", 5_672),
}
"""The last part of an image's name → the service that is started here, and its usual port."""
_ELSEWHERE = {"mongo": 27_017, "elasticsearch": 9_200, "opensearch": 9_200, "nats": 4_222, "minio": 9_000}
_CLIENTS = {
    "postgresql": re.compile(
        r"(?i)psycopg|asyncpg|pg8000|[\"']pg[\"']|postgres|lib/pq|pgx|knex|prisma|typeorm|sqlx|diesel"
    ),
    "mysql": re.compile(r"(?i)mysql|mariadb|knex|prisma|typeorm|sqlx|diesel"),
    "redis": re.compile(r"(?i)redis|valkey|celery|bull|sidekiq|huey|\brq\b"),
    "memcached": re.compile(r"(?i)memcache|pylibmc|dalli"),
    "rabbitmq": re.compile(r"(?i)amqp|rabbit|\bpika\b|celery|kombu|\bbunny\b|sneakers|lapin"),
}
_SETUP = re.compile(r"(?m)^[ -]{0,20}(python|node|go|java|ruby|php|elixir)-version:[ ]{0,4}([^\n#]{1,200})")
_MATRIX = re.compile(
    r"(?m)^[ ]{0,20}(?:python|node(?:js)?|go|java|ruby|php)(?:[-_]?versions?)?:[ ]{0,4}\[([^\]\n]{1,300})\]"
)
_VERSION = re.compile(r"\d{1,3}(?:\.(?:\d{1,3}|x)){0,2}")
_INSTALL = re.compile(r"\bapt(?:-get)?[ ](?:-[-\w=:.]{1,40}[ ]){0,6}install\b([^\n;&|]{0,2000})")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}[a-z0-9+]")
_TIED = re.compile(
    r"-\d|\d-dev$|^(?:python|nodejs|npm|llvm|docker|mingw|qemu|wine|crossbuild|linux-)|-(?:arm|aarch64|linux-gnu|multilib)|\.\d"
)
"""Names with a release of Ubuntu or a compiler in them, and what builds for other machines."""
_USUAL = {
    *(
        "git",
        "curl",
        "wget",
        "sudo",
        "ca-certificates",
        "build-essential",
        "gcc",
        "g++",
        "make",
        "clang",
        "lld",
    ),
    *("gdb", "valgrind", "lcov", "unzip", "pip"),
}
"""What a sandbox has, or no test needs."""
_EXPRESSION = re.compile(r"\$\{\{[^$}\n]{0,200}\}\}")
_FROM = re.compile(
    r"(?im)^FROM[ ]{1,4}(?:--\S{1,60} )?(?:[\w.:-]{1,80}/){0,4}(python|node|golang|ruby|php|rust|elixir):v?(\d{1,3}(?:\.\d{1,3}){0,2})"
)
_FEATURE = re.compile(
    r"features/(python|node|go|java|ruby|php|rust)(?::[\w.]{1,20})?\"\s{0,8}:\s{0,8}\{[^{}]{0,300}?\"version\"\s{0,4}:\s{0,4}\"([\w.*]{1,20})\""
)
_IMAGE = re.compile(
    r"devcontainers/(?:[a-z-]{1,20}/)?(python|javascript-node|typescript-node|go|java|ruby|php|rust):(?:\d{1,2}-)?(\d{1,3}(?:\.\d{1,3}){0,2})"
)
_SIDE = re.compile(
    r"(?i)doc|release|publish|deploy|lint|bench|fuzz|coverage|nightly|windows|macos|stale|label|codeql"
)
_MOST = 12
_SERVICES = 20


class Named(NamedTuple):
    """A version, and the file that names it."""

    text: str = ""
    file: str = ""

    @property
    def firm(self) -> bool:
        """False for what CI tries: that is no demand."""
        return not self.file.startswith(WORKFLOWS)


class Unstarted(Note, frozen=True):
    """A service that is named and not started. It says nothing once the repository's settings name services."""


class Hints:
    """The versions that a repository names for tools as a whole; the first file that names one decides."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._versions: dict[str, Named] = {}
        sources = (_tool_versions, _mise, _sdkman, _images, _workflow_versions)
        for tool, version, file in (found for source in sources for found in source(files)):
            if version and tool in _NAMES:
                self._versions.setdefault(_NAMES[tool], Named(version, file))

    def version(self, tool: str) -> Named:
        """The version that is named for a tool, or an empty one."""
        return self._versions.get(tool, Named())

    def lines(self) -> Iterator[Line]:
        """Debian packages and services that CI, Dockerfiles and compose files name."""
        yield from _packages(self._files)
        yield from _workflow_services(self._files)
        yield from _compose(self._files)


def _tool_versions(files: Files) -> Iterator[tuple[str, str, str]]:
    for line in files.text(".tool-versions").splitlines():
        words = line.split("#")[0].split()
        if len(words) > 1:
            yield words[0], words[1], ".tool-versions"


def _mise(files: Files) -> Iterator[tuple[str, str, str]]:
    for name in _MISE:
        for tool, value in table(files.toml(name), "tools").items():
            given = string(value) or string(table(value).get("version")) or next(iter(strings(value)), "")
            yield re.sub(r"^core:", "", tool), given, name


def _sdkman(files: Files) -> Iterator[tuple[str, str, str]]:
    for line in files.text(".sdkmanrc").splitlines():
        tool, _, version = line.split("#")[0].partition("=")
        yield tool.strip(), version.strip(), ".sdkmanrc"


def _images(files: Files) -> Iterator[tuple[str, str, str]]:
    for name in DOCKERFILES:
        text = files.text(name)
        for pattern in (_FROM, _FEATURE, _IMAGE):
            for tool, version in pattern.findall(text):
                yield tool.lower().replace("javascript-", "").replace("typescript-", ""), version, name


def _workflows(files: Files) -> list[str]:
    """The workflows that run tests, by their names; the others last."""
    names = [name for name in files.listing.texts if name.startswith(WORKFLOWS)]
    return sorted(names, key=lambda name: (bool(_SIDE.search(name)), name))[:_MOST]


def _workflow_versions(files: Files) -> Iterator[tuple[str, str, str]]:
    for name in _workflows(files):
        text = files.text(name)
        for tool, value in _SETUP.findall(text):
            found = _VERSION.findall("" if "{{" in value else value)
            if "{{" in value:
                lists = [one for one in _MATRIX.finditer(text) if one[0].lstrip().startswith(tool)]
                found = [version for one in lists[:1] for version in _VERSION.findall(one[1])]
            yield tool, " || ".join(dict.fromkeys(found)), name


def _packages(files: Files) -> Iterator[Line]:
    """Packages that a workflow or a Dockerfile installs. Names of other releases are left out by the builder."""
    for name in (*_workflows(files), *DOCKERFILES[:2]):
        if _SIDE.search(name):
            continue
        text = files.text(name).replace("\\\n", " ")
        for found in _INSTALL.findall(text):
            for word in _EXPRESSION.sub(" ", found).split()[:60]:
                if _PACKAGE.fullmatch(word) and word not in _USUAL and not _TIED.search(word):
                    yield Used(name)
                    yield AptPackage(word, f"{name} installs it", optional=True)


def _workflow_services(files: Files) -> Iterator[Line]:
    for name in _workflows(files):
        if "services:" not in files.text(name) or _SIDE.search(name):
            continue
        for job in table(files.yaml(name), "jobs").values():
            yield from _services(table(job, "services"), name, files)


def _compose(files: Files) -> Iterator[Line]:
    """The services of a compose file that are started here, if a manifest names a client of them."""
    for name in COMPOSE:
        if name not in files.listing.texts:
            continue
        manifests = "\n".join(
            text
            for file, text in files.listing.texts.items()
            if not file.startswith(WORKFLOWS) and file not in COMPOSE
        )
        for line in _services(table(files.yaml(name), "services"), name, files):
            if not isinstance(line, Service) or _CLIENTS[line.name].search(manifests):
                yield line
            else:
                add = f'services = ["{line.name}"]'
                yield Unstarted(f"{line.why} is not started: no manifest names a client; {add} starts it")
        return


def _services(described: Table, name: str, files: Files) -> Iterator[Line]:
    for key, one in list(described.items())[:_SERVICES]:
        image, _, tag = string(table(one).get("image") or (one if isinstance(one, str) else "")).partition(
            ":"
        )
        last = image.rpartition("/")[2]
        known = SERVICES.get(last)
        if known is None:
            if "build" not in table(one):  # that is the repository itself
                yield _unknown(key if "{" in image or not last else last, name)
            continue
        service, port = known
        yield Used(name)
        version = re.match(r"[\w.-]{0,40}", tag)
        env = _environment(table(one).get("env") or table(one).get("environment"))
        published = _port(table(one).get("ports"), port)
        yield Service(service, f"{last} in {name}", version[0] if version else "", published, env)
        if any(str(value).startswith("${{") for value in env.values()):
            yield Note(f"{name} sets {service} with expressions, which are not evaluated")


def _unknown(image: str, name: str) -> Unstarted:
    shown = one_line(image, 40)
    entry = f'{{ name = "{shown}", command = "…", port = {_ELSEWHERE.get(image, "…")} }}'
    return Unstarted(f"{shown} in {name} is not started: if checks need it, add services = [{entry}]")


def _environment(value: object) -> dict[str, str]:
    if isinstance(value, list):
        pairs = [one.partition("=") for one in strings(cast("object", value))]
        return {pair[0]: pair[2] for pair in pairs[:40]}
    return {key: text for key, text in list(table(value).items())[:40] if isinstance(text, str)}


def _port(value: object, usual: int) -> int:
    """The port that programs outside the service's container use."""
    for one in strings(value):
        found = re.fullmatch(r"(?:[\d.]{1,20}:)?(\d{1,5}):(\d{1,5})(?:/tcp)?", one)
        if found and int(found[2]) == usual:
            return int(found[1])
    return usual
