"""Finds the checks of a repository from its files, without running anything."""

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from cloister.core import limits
from cloister.core.computer import WORK_DIR
from cloister.core.diagnosis import Check
from cloister.core.repository import FILES, OwnCheck, folders_of, read_settings
from cloister.core.text import one_line
from cloister.feedback.check_commands import kind_of, tool_of, words

# CI workflows: the `run:` lines that start a known tool and change nothing

_RUN = re.compile(r"^(\s*)(?:- )?run:\s*(.*)$")
_JOB = re.compile(r"^( {1,8}|\t)([\w-]{1,100}):\s*(?:#.*)?$")
_BLOCK = re.compile(r"^[|>][+-]?\d?$")
_CHANGES = re.compile(r"(?:^| )(?:--fix|--write|-w|install|publish|deploy|push|upload|release|ci)(?: |$)")
_MAIN = re.compile(r"(?:^|[/_-])(?:test|tests|testing|unit|ci|main|build|check)(?:[._-]|$)", re.IGNORECASE)
_SIDE = re.compile(
    r"lint|format|style|docs?\b|cover|e2e|integration|bench|perf|fuzz|nightly|release|publish|deploy|compat|example|"
    r"smoke|size|windows|macos|browser|canary|experiment|downstream|ecosystem|regress|minimal|legacy|audit|security",
    re.IGNORECASE,
)
_LINES = 2_000
_HINTS = 4


def hinted(workflows: Mapping[str, str], contents: Mapping[str, str]) -> list[str]:
    """The tests of the main job of the workflows. Skips lines with expressions of the CI."""
    jobs: dict[tuple[int, str, str], dict[str, None]] = {}
    for name in sorted(workflows):
        for job, line in _commands(workflows[name].split("\n")[:_LINES]):
            if _checks(line, contents.get("Makefile", "")):
                # A job or a line with a side purpose comes last, one that is called after the tests first.
                file = name.removeprefix(WORKFLOWS)
                rank = 2 * bool(_SIDE.search(f"{file} {job} {line}"))
                rank += not (_MAIN.search(job) or _MAIN.search(file))
                jobs.setdefault((rank, name, job), {})[one_line(line, 300)] = None
    best = min(jobs, key=lambda place: place[0], default=None)
    return [] if best is None else list(jobs[best])[:_HINTS]


def _checks(line: str, makefile: str) -> bool:
    if not words(line) or _CHANGES.search(line) or "${{" in line:
        return False
    if line.startswith("make "):
        return kind_of(line) == "test" and f"{line[5:].strip()}:" in makefile
    return kind_of(line) == "test"


def _commands(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The job and the command of each `run:`, on its line or in the block below it."""
    index = 0
    job, depth_of_jobs = "", 0
    while index < len(lines):
        line = lines[index][:2_000]
        index += 1
        if (named := _JOB.match(line)) and depth_of_jobs in (0, _indent(line)):
            job, depth_of_jobs = named[2], _indent(line)
        if line.startswith("jobs:"):
            depth_of_jobs = 0
        if (run := _RUN.match(line)) is None:
            continue
        said = run[2].strip()
        if not _BLOCK.match(said):
            yield job, said.strip("'\"")
            continue
        depth = len(run[1]) + 1
        while index < len(lines) and (not lines[index].strip() or _indent(lines[index]) >= depth):
            yield job, lines[index].strip()
            index += 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def adjusted(check: Check, own: tuple[OwnCheck, ...]) -> Check:
    """Apply the kind and the time limit of the repository's list; ours is the maximum."""
    for one in own:
        if one.command == check.command:
            seconds = check.seconds
            if one.timeout is not None:
                seconds = max(1.0, min(one.timeout, limits.CHECK_SECONDS))
            return msgspec.structs.replace(check, kind=one.kind or check.kind, seconds=seconds)
    return check


WANTED: tuple[str, ...] = (
    *FILES,
    *("pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "manage.py", "noxfile.py"),
    *("pytest.ini", "mypy.ini", ".flake8"),
    *("pyrightconfig.json", "package.json", "Makefile", "makefile", "GNUmakefile", "justfile"),
    *("go.mod", "go.work"),
    *("Cargo.toml", "CMakeLists.txt", "meson.build", "pom.xml", "build.gradle", "build.gradle.kts"),
    *("Gemfile", "Rakefile"),
    *(".pre-commit-config.yaml",),
)
"""Files in the root whose contents `discover` needs; `wanted` adds workflows and nested manifests."""

WORKFLOWS = ".github/workflows/"
_WORKFLOWS = 10

TOOLS: tuple[str, ...] = (
    *("python3", "tox", "nox", "ruff", "flake8", "mypy", "pyright", "pre-commit"),
    *("node", "npm", "pnpm", "yarn", "bun", "deno", "cargo", "go", "cmake", "ctest", "make"),
    *("just", "mvn", "gradle"),
    *("bundle", "rspec", "rake", "ruby", "php", "phpunit", "dotnet", "mix"),
)
"""Programs that `discover` looks for in the sandbox. It also considers `pytest` if Python has it, `unittest` if the
repository's tests use it, the programs in `node_modules`, and `PYTHONPATH=…` if that variable is set."""

_DEPTH = 3
_SCRIPTS = re.compile(r"(?:^|/)(?:scripts?|tools?|contrib|hack)/")
"""Where a project of another language keeps programs in Python that other tests start."""
_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]+|[^/]+_test)\.py$")
_NODE_TEST = re.compile(
    r"(?:^|/)(?:test|tests|__tests__)/[^/]+\.[cm]?[jt]s$|[.-](?:test|spec)\.[cm]?[jt]sx?$"
)
_NO_TEST = "no test specified"
_MANAGERS = ("npm", "pnpm", "yarn", "bun")
_LOCKS = (
    *(("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun")),
    *(("package-lock.json", "npm"), ("npm-shrinkwrap.json", "npm")),
    *(("pnpm-workspace.yaml", "pnpm"), (".yarnrc.yml", "yarn")),
)
_STARTS_MANAGER = re.compile(r"\b(?:pnpm|yarn|bun|bunx|corepack)\b")


class Package(msgspec.Struct, frozen=True):
    """The relevant part of `package.json`."""

    scripts: dict[str, object] = {}
    dependencies: dict[str, object] = {}
    dev: dict[str, object] = msgspec.field(name="devDependencies", default_factory=dict[str, object])
    manager: object = msgspec.field(name="packageManager", default="")
    workspaces: object = None

    def has(self, name: str) -> bool:
        return name in self.dependencies or name in self.dev


def package_of(text: str) -> Package:
    """Parse `package.json`; empty if it is broken."""
    try:
        return msgspec.json.decode(text, type=Package)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Package()


def scripts_of(text: str) -> dict[str, str]:
    return {name: line for name, line in package_of(text).scripts.items() if isinstance(line, str)}


def _test_script(text: str) -> str:
    line = scripts_of(text).get("test", "")
    return "" if _NO_TEST in line else line.strip()


@dataclass(frozen=True, slots=True)
class _Project:
    """A directory with a project of its own: the repository, or a part of it."""

    files: frozenset[str]
    contents: Mapping[str, str]
    tools: Collection[str] | None
    """None: every tool counts as installed."""
    hidden: Collection[str] = ()
    """Import roots of the repository that Python does not search by itself; see `import_roots`."""
    at: str = ""
    """The directory of the project."""

    def has(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools

    def text(self, *names: str) -> str:
        return "\n".join(self.contents.get(name, "") for name in names)

    def inside(self, directory: str) -> "_Project":
        def below(names: Iterable[str]) -> Iterator[str]:
            return (name.removeprefix(f"{directory}/") for name in names if name.startswith(f"{directory}/"))

        contents = {name: self.contents[f"{directory}/{name}"] for name in below(self.contents)}
        at = f"{self.at}/{directory}" if self.at else directory
        return _Project(frozenset(below(self.files)), contents, self.tools, self.hidden, at)

    def first(self, *commands: tuple[str, str]) -> Iterator[str]:
        """The first command whose program is installed; else the first one, so that its absence is reported."""
        there = [line for program, line in commands if self.has(program)]
        yield from (there or [line for _, line in commands])[:1]


def discover(
    files: Collection[str],
    contents: Mapping[str, str],
    tools: Collection[str] | None = None,
    hidden: Collection[str] = (),
) -> tuple[str, ...]:
    """The commands that must pass, best first; empty if the repository has no checks.

    The repository's own list decides. Without one, each ecosystem adds its main suite, and the configured linters and
    type checkers that are in `tools`. A suite is added even if its program is not in `tools`: the check then says
    what is missing. If the root has no suite, use those of the nested projects, then the CI workflows, then make.
    With `tools` None, every tool counts as installed. Several repositories each have those of their folder.
    """
    root = _Project(frozenset(files), contents, tools, hidden)
    folders = folders_of(files)
    return _of_folders(root, folders) if folders else _of_repository(root)


def _of_repository(root: _Project) -> tuple[str, ...]:
    if own := read_settings(root.contents).checks:
        return tuple(one.command for one in own)
    contents = root.contents
    found = [*_checks_of(root)]
    if not _tests(found):
        found += _nested(root, _homes(root, MANIFESTS))
    else:
        found += _nested(root, _apart(root), tests_only=True)
    if not _tests(found):
        found += [line for _, line in _others(root)]
    if not _tests(found):
        workflows = {name: text for name, text in contents.items() if name.startswith(WORKFLOWS)}
        lines = hinted(workflows, contents)
        found += [line for line in lines if root.has(line.split()[0])] or lines[:1]
    if not _tests(found):
        found += _by_make(root)
    return tuple(dict.fromkeys(found))[: limits.CHECKS]


def _of_folders(root: _Project, folders: Sequence[str]) -> tuple[str, ...]:
    """The checks of several repositories, each in its folder. All have a share of the most that a run takes."""
    found = [
        [f"cd {shlex.quote(folder)} && {line}" for line in _of_repository(root.inside(folder))]
        for folder in folders
    ]
    rows = (line for row in zip_longest(*found) for line in row if line is not None)
    chosen = set([*dict.fromkeys(rows)][: limits.CHECKS])
    return tuple(line for lines in found for line in lines if line in chosen)


def _tests(found: Iterable[str]) -> list[str]:
    return [line for line in found if kind_of(line) == "test"]


def _checks_of(project: _Project) -> Iterator[str]:
    yield from _python(project)
    yield from _node(project)
    yield from _compiled(project)
    yield from (line for program, line in _others(project) if project.has(program))
    if ".pre-commit-config.yaml" in project.files and project.tools and project.has("pre-commit"):
        yield "pre-commit run --all-files"


# Projects in directories of the repository

_PYTHON_MANIFESTS = (
    *("pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini", "manage.py"),
    "requirements.txt",
)
MANIFESTS = (
    *_PYTHON_MANIFESTS,
    *("package.json", "go.mod", "Cargo.toml", "pom.xml", "build.gradle", "build.gradle.kts"),
    *("CMakeLists.txt",),
    *("Gemfile", "phpunit.xml", "phpunit.xml.dist", "mix.exs"),
)
_ASIDE = re.compile(
    r"(?i)(?:^|/)(?:[._][^/]*|node_modules|vendor|third[-_]?party|external|deps|examples?|samples?|demos?|playgrounds?|docs?|website|site|"
    r"tests?|testdata|fixtures?|spec|e2e|bench(?:mark)?s?|fuzz|scripts?|tools|templates?|build|dist)(?:/|$)"
)
_HOMES = 6
_READ = 60


def wanted(files: Iterable[str]) -> list[str]:
    """The files whose contents `discover` needs."""
    if folders := folders_of(files := list(files)):
        inside = [
            [name.removeprefix(f"{one}/") for name in files if name.startswith(f"{one}/")] for one in folders
        ]
        return [f"{one}/{name}" for one, names in zip(folders, inside, strict=True) for name in wanted(names)]
    names = sorted(files, key=lambda name: (name.count("/"), name))
    root = [name for name in names if name in WANTED]
    flows = [name for name in names if name.startswith(WORKFLOWS) and name.endswith((".yml", ".yaml"))]
    nested = [name for name in names if 0 < name.count("/") < _DEPTH and name.rpartition("/")[2] in WANTED]
    return [*root, *flows[:_WORKFLOWS], *[name for name in nested if not _ASIDE.search(_home(name))][:_READ]]


def _home(name: str) -> str:
    return name.rpartition("/")[0]


def nested_projects(files: Iterable[str]) -> list[str]:
    """The directories below the root that hold a project of their own."""
    return _homes(_Project(frozenset(files), {}, None), MANIFESTS)


def deep_projects(files: Iterable[str]) -> list[str]:
    """The directories with a project that are too deep to count, and in none that counts."""
    names = frozenset(files)
    near = set(nested_projects(names))
    found = _homes(_Project(names, {}, None), MANIFESTS, sys.maxsize)
    return [home for home in found if home not in near]


def _homes(root: _Project, manifests: Collection[str], depth: int = _DEPTH) -> list[str]:
    """The directories with a manifest, the outermost ones, without those that only accompany the product."""
    homes = {_home(name) for name in root.files if name.rpartition("/")[2] in manifests}
    homes = {home for home in homes if home and home.count("/") < depth - 1 and not _ASIDE.search(home)}
    outer = [home for home in homes if homes.isdisjoint(_parents(home))]
    return sorted(outer, key=lambda home: (home.count("/"), home))[:_READ]


def _parents(home: str) -> Iterator[str]:
    while home := _home(home):
        yield home


_FAMILIES = (
    _PYTHON_MANIFESTS,
    ("package.json",),
    ("Cargo.toml",),
    ("pom.xml", "build.gradle", "build.gradle.kts"),
    ("Gemfile",),
    ("phpunit.xml", "phpunit.xml.dist"),
    ("mix.exs",),
)
"""Manifests of one language; the suite of a root that has one covers the projects below."""
_WORK_USES = re.compile(r"(?m)^(?:use)?[ \t]{0,40}\"?\./([\w./-]{1,200}?)/?\"?[ \t]{0,40}(?://.{0,200})?$")


def _apart(root: _Project) -> list[str]:
    """The nested projects that the suite of the root does not run: those of other languages, and Go modules."""
    unknown = [family for family in _FAMILIES if root.files.isdisjoint(family)]
    homes = _homes(root, tuple(name for family in unknown for name in family))
    modules = _homes(root, ("go.mod",)) if "go.work" not in root.files else []
    tested = {name for name in root.files if name.endswith("_test.go") or "/src/test/" in name}

    def has_tests(home: str) -> bool:
        return any(name.startswith(f"{home}/") for name in tested)

    quiet = (*_FAMILIES[3], "go.mod")  # their commands succeed without a test
    kept = [
        one for one in homes if root.files.isdisjoint(f"{one}/{name}" for name in quiet) or has_tests(one)
    ]
    return kept + [one for one in modules if one not in homes and has_tests(one)]


def _go(project: _Project) -> Iterator[str]:
    """`./...` covers one module: name every other one of a workspace."""
    members = _WORK_USES.findall(project.text("go.work"))
    used = [one for one in dict.fromkeys(members) if f"{one}/go.mod" in project.files and ".." not in one]
    patterns = [f"./{one}/..." for one in used[:_READ]]
    if "go.mod" in project.files:
        patterns.insert(0, "./...")
    if patterns:
        yield f"go test {' '.join(map(shlex.quote, patterns))}"
        if project.tools is not None and project.has("go"):
            yield f"go vet {' '.join(map(shlex.quote, patterns))}"


def _nested(root: _Project, homes: Sequence[str], *, tests_only: bool = False) -> list[str]:
    """The checks of the only nested project with tests, or the tests of the few with the most files."""
    projects = {home: root.inside(home) for home in homes}
    found = [(home, [*_checks_of(project)]) for home, project in projects.items()]
    found = [(home, checks) for home, checks in found if _tests(checks)]
    if len(found) > 1 or tests_only:
        largest = sorted(found, key=lambda one: -len(projects[one[0]].files))[:_HOMES]
        found = [(home, _tests(checks)) for home, checks in found if (home, checks) in largest]
    return [f"cd {shlex.quote(home)} && {line}" for home, checks in found for line in checks]


# Python

_SEARCHED = "PYTHONPATH="
_STDLIB = frozenset(sys.stdlib_module_names)


IMPORTS = """
import importlib.util, os, subprocess, sys

def fails(name, **more):
    quiet = subprocess.DEVNULL
    done = subprocess.run([sys.executable, "-c", "import " + name], env={**os.environ, **more}, stdout=quiet, stderr=quiet)
    return done.returncode

def hidden(root, name):
    spec = importlib.util.find_spec(name)
    if spec is None:
        return True
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    if any(os.path.realpath(place).startswith(os.path.realpath(root) + os.sep) for place in places):
        return False
    return not fails(name, PYTHONPATH=root) or bool(fails(name))

top = os.getcwd()
for argument in sys.argv[1:]:
    root, *names = argument.split(":")
    os.chdir(os.path.join(top, os.path.dirname(root)))
    if any(hidden(os.path.join(top, root), name) for name in names):
        print(root)
"""
"""Prints the import roots that Python does not search. It prefers an installed package that it can import, for example a
compiled one, to the source that it cannot import."""


def import_roots(files: Collection[str], contents: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Directories, such as `src`, from which a project's packages are imported once it is installed → their modules.

    Without an installation, tests would not find the packages, or find others of the same name.
    """
    root = _Project(frozenset(files), contents, None)
    found: dict[str, tuple[str, ...]] = {}
    for folder in folders_of(files):
        part = root.inside(folder)
        roots = import_roots(part.files, part.contents)
        found |= {f"{folder}/{name}": modules for name, modules in roots.items()}
    if found:
        return found
    for home in ("", *_homes(root, _PYTHON_MANIFESTS)[:_HOMES]):
        project = root.inside(home) if home else root
        for name in ("src", "lib", "python"):
            modules = _modules(project, name)
            if modules and not _STDLIB.intersection(modules):
                found[f"{home}/{name}" if home else name] = modules
    return found


def _modules(project: _Project, directory: str) -> tuple[str, ...]:
    """The modules and packages right below an import root; none if it is a package itself, or pytest adds it."""
    if f"{directory}/__init__.py" in project.files:
        return ()
    settings = project.text("pyproject.toml", "setup.cfg", "setup.py", "pytest.ini", "tox.ini")
    if re.search(rf"(?m)^\s{{0,8}}pythonpath\s{{0,8}}=[^\]=]{{0,200}}\b{directory}\b", settings):
        return ()
    if directory != "src" and not re.search(rf"""["'=]\s?{directory}\b""", settings):
        return ()
    below = [name.split("/")[1:] for name in project.files if name.startswith(f"{directory}/")]
    modules = {parts[0] for parts in below if len(parts) == 2 and parts[1] == "__init__.py"}
    if _is_python(project):
        modules |= {parts[0][:-3] for parts in below if len(parts) == 1 and parts[0].endswith(".py")}
    return tuple(sorted(name for name in modules if name.isidentifier()))


def _is_python(project: _Project) -> bool:
    return not project.files.isdisjoint(_PYTHON_MANIFESTS)


def _python(project: _Project) -> Iterator[str]:
    yield from project.first(*_python_suites(project))
    if project.tools is not None:
        yield from _python_linters(project)


def _interpreter(project: _Project) -> str:
    """Python, with the import roots of the project in front of the paths that it searches anyway."""
    own = [f"{WORK_DIR}/{root}" for root in project.hidden if _home(root) == project.at]
    before = [one.removeprefix(_SEARCHED) for one in project.tools or () if one.startswith(_SEARCHED)]
    return f"{_SEARCHED}{shlex.quote(':'.join(own + before))} python3" if own else "python3"


def _python_suites(project: _Project) -> Iterator[tuple[str, str]]:
    setup, tox = project.text("setup.cfg"), project.text("tox.ini")
    settings = project.text("pyproject.toml")
    tests = [name for name in project.files if name.count("/") < _DEPTH and _TEST_FILE.search(name)]
    if not _is_python(project):
        apart = tuple(f"{home}/" for home in _homes(project, _PYTHON_MANIFESTS))
        tests = [name for name in tests if not name.startswith(apart) and not _SCRIPTS.search(name)]
    start = _interpreter(project)
    configured = "[tool.pytest" in settings or "[tool:pytest]" in setup or "[pytest]" in tox
    configured = configured or "pytest.ini" in project.files
    if not configured and "conftest.py" not in project.files:
        if "runtests.py" in project.files:  # of Django and of packages for it
            yield "python3", f"{start} runtests.py"
        if "DJANGO_SETTINGS_MODULE" in project.text("manage.py"):
            yield "python3", f"{start} manage.py test"
    if tests or configured:
        yield "pytest", f"{start} -m pytest -q"
    elif _is_python(project) and "tests.py" in project.files:  # not a name that pytest looks for by itself
        yield "pytest", f"{start} -m pytest -q tests.py"
    if tests and project.tools is not None and "unittest" in project.tools:
        top = _home(min(tests, key=lambda name: (name.count("/"), name)))
        as_package = " -t ." if f"{top}/__init__.py" in project.files else ""
        yield "unittest", f"{start} -m unittest discover -s {shlex.quote(top or '.')}{as_package}"
    if "[tox]" in tox or "[testenv" in tox or "[tool.tox" in settings or "tox.toml" in project.files:
        yield "tox", "tox"
    if "noxfile.py" in project.files:
        yield "nox", "nox"


def _python_linters(project: _Project) -> Iterator[str]:
    """Linters and type checkers, only if they are configured and installed."""
    settings, setup, files = project.text("pyproject.toml"), project.text("setup.cfg"), project.files
    mypy = project.text("pyproject.toml", "mypy.ini", "setup.cfg")
    ruff = "[tool.ruff" in settings or "ruff.toml" in files or ".ruff.toml" in files
    if ruff and project.has("ruff"):
        yield "ruff check"
        if "[tool.ruff.format]" in settings:
            yield "ruff format --check"
    flake8 = ".flake8" in files or "[flake8]" in setup or "[flake8]" in project.text("tox.ini")
    if flake8 and project.has("flake8"):
        yield "flake8"
    if ("[tool.mypy" in settings or "mypy.ini" in files or "[mypy]" in setup) and project.has("mypy"):
        yield "mypy" if "files" in mypy else "mypy ."
    if ("[tool.pyright" in settings or "pyrightconfig.json" in files) and project.has("pyright"):
        yield "pyright"


# JavaScript


def _node(project: _Project) -> Iterator[str]:
    text = project.contents.get("package.json")
    if text is None:
        return
    package = package_of(text)
    managers = package_managers(project.files, package)
    yield from project.first(*_node_suites(project, package, managers))
    manager = next(filter(project.has, managers), None)
    if manager is not None:
        yield from _node_linters(project, package, manager)


def package_managers(files: Collection[str], package: Package) -> list[str]:
    """The package managers that a project may mean, best first; `files` are relative to it."""
    named = package.manager.partition("@")[0] if isinstance(package.manager, str) else ""
    found = [named] if named in _MANAGERS else []
    found += [manager for file, manager in _LOCKS if file in files]
    return list(dict.fromkeys(found)) or ["npm"]


def _node_suites(project: _Project, package: Package, managers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The root's `test` script; else that of the workspaces; else the runner that is a dependency."""
    text = project.contents["package.json"]
    if script := _test_script(text):
        for manager in managers:  # `bun test` is a different runner
            yield manager, "bun run test" if manager == "bun" else f"{manager} test"
        if _runs_without_manager(project, script, scripts_of(text).get("pretest", "")):
            yield "npm", "npm test"
        return
    if _has_workspace_tests(project, package):
        runners = {"turbo": "npx turbo run test", "lerna": "npx lerna run test"}
        yield from ((name, line) for name, line in runners.items() if package.has(name) and project.has(name))
        for manager in managers:
            yield manager, _workspace_tests(project, package, manager)
        return
    runners = {"vitest": "npx vitest run", "jest": "npx jest", "mocha": "npx mocha", "ava": "npx ava"}
    known = [(name, line) for name, line in runners.items() if package.has(name)]
    yield from known
    if not known and any(_NODE_TEST.search(name) for name in project.files):
        yield "node", "node --test"


def _runs_without_manager(project: _Project, script: str, before: str) -> bool:
    """True if npm can run the script of a project for another package manager, which is not installed."""
    tool = tool_of(script)
    if tool is None or _STARTS_MANAGER.search(f"{before} {script}"):
        return False
    return project.tools is not None and tool.partition(" ")[0] in project.tools


def _has_workspace_tests(project: _Project, package: Package) -> bool:
    if not package.workspaces and "pnpm-workspace.yaml" not in project.files:
        return False
    return any(
        _test_script(text) for name, text in project.contents.items() if name.endswith("/package.json")
    )


def _workspace_tests(project: _Project, package: Package, manager: str) -> str:
    if manager == "yarn":
        old = isinstance(package.manager, str) and package.manager.startswith("yarn@1.")
        new = not old and (".yarnrc.yml" in project.files or bool(package.manager))
        return "yarn workspaces foreach --all run test" if new else "yarn workspaces run test"
    return {
        "npm": "npm test --workspaces --if-present",
        # One at a time, pnpm leaves the lines as the runner wrote them.
        "pnpm": "pnpm --recursive --workspace-concurrency=1 --no-bail test",
        "bun": "bun run --filter '*' test",
    }[manager]


def _node_linters(project: _Project, package: Package, manager: str) -> Iterator[str]:
    scripts = scripts_of(project.contents["package.json"])
    for name in ("lint", "typecheck", "type-check", "check-types"):
        if scripts.get(name, "").strip() and "--fix" not in scripts[name] and "--write" not in scripts[name]:
            yield f"{manager} run {name}"
    if "lint" not in scripts:
        linters = {"eslint": "npx eslint .", "@biomejs/biome": "npx biome lint", "oxlint": "npx oxlint"}
        there = [line for name, line in linters.items() if package.dev.get(name)]
        yield from [line for line in there if project.has(line.split()[1])][:1]
    checked = {"typecheck", "type-check", "check-types"} & set(scripts)
    if "tsconfig.json" in project.files and package.has("typescript") and project.has("tsc") and not checked:
        yield "npx tsc --noEmit --pretty false"


# Languages with one usual runner

_CTEST = re.compile(r"(?i)\benable_testing\s{0,8}\(|\binclude\s{0,8}\(\s{0,8}CTest\s{0,8}\)")


def _build_directory(project: _Project) -> str:
    # Inside the sandbox and outside the tree, which stays clean; each project needs a directory of its own.
    return shlex.quote("-".join(("/tmp/.cloister-build", *filter(None, project.at.split("/")))))  # noqa: S108


def _meson(project: _Project) -> str:
    build = _build_directory(project)
    return f"(test -d {build} || meson setup {build}) && meson test -C {build}"


def _autotools(project: _Project) -> str:
    build, source = _build_directory(project), shlex.quote(f"{WORK_DIR}/{project.at}".rstrip("/"))
    make = (
        "./autogen.sh"
        if "autogen.sh" in project.files and "configure" not in project.files
        else "autoreconf -fi"
    )
    return (
        f"(test -x configure || NOCONFIGURE=1 {make}) && mkdir -p {build} && cd {build} && "
        f"(test -f Makefile || {source}/configure -q) && make -s -j$(nproc) && make -s check"
    )


def _cmake(project: _Project) -> str:
    build = _build_directory(project)
    return " && ".join(
        (
            f"cmake -S . -B {build}",
            f"cmake --build {build} --parallel $(nproc)",  # without a number, make starts everything at once
            f"ctest --test-dir {build} --output-on-failure",  # tests may share files and ports
        )
    )


def _compiled(project: _Project) -> Iterator[str]:
    files = project.files
    if "Cargo.toml" in files:
        cargo = project.text("Cargo.toml")
        # A root package hides the other members of its workspace.
        every = "[workspace]" in cargo and "[package]" in cargo and "default-members" not in cargo
        yield "cargo test --workspace" if every else "cargo test"
    yield from _go(project)
    if _CTEST.search(project.text("CMakeLists.txt")):
        yield _cmake(project)
    elif "meson.build" in files and re.search(
        r"(?m)^\s{0,40}(?:test\s?\(|subdir\s?\()", project.text("meson.build")
    ):
        yield _meson(project)
    elif not files.isdisjoint(("configure.ac", "configure.in")):
        yield _autotools(project)
    if "pom.xml" in files:
        yield "./mvnw -B -q test" if "mvnw" in files else "mvn -B -q test"
    if not files.isdisjoint(("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts")):
        yield "./gradlew test" if "gradlew" in files else "gradle test"


_RUBY_TEST = re.compile(r"test/(?:[^/]{1,200}/){0,3}(?:test_[^/]{1,200}|[^/]{1,200}_test)\.rb")
_RUBY_ALL = 'Dir["./test/**/{test_*,*_test}.rb"].sort.each { |file| require file }'
_PHP_TEST = re.compile(r"tests/(?:[^/]{1,200}/){0,3}[^/]{1,200}Test\.php")


def _others(project: _Project) -> Iterator[tuple[str, str]]:
    """The program that each suite needs, and its command."""
    files = project.files
    start = "bundle exec " if "Gemfile" in files else ""
    if ".rspec" in files or any(name.startswith("spec/") and name.endswith("_spec.rb") for name in files):
        yield "bundle" if start else "rspec", f"{start}rspec"
    elif re.search(r"TestTask|\btask:? \(?:test\b", project.text("Rakefile")):
        yield "bundle" if start else "rake", f"{start}rake test"
    elif any(_RUBY_TEST.fullmatch(name) for name in files):
        yield "bundle" if start else "ruby", f"{start}ruby -Ilib -Itest -e '{_RUBY_ALL}' -- -v"
    phpunit = "vendor/bin/phpunit" if "composer.json" in files else "phpunit"
    if "phpunit.xml" in files or "phpunit.xml.dist" in files:
        yield "php", phpunit
    elif any(_PHP_TEST.fullmatch(name) for name in files):
        yield "php", f"{phpunit} tests"
    if "mix.exs" in files:
        yield "mix", "mix test"
    if any(name.endswith((".csproj", ".fsproj", ".vbproj")) and "test" in name.lower() for name in files):
        yield "dotnet", "dotnet test"
    if "package.json" not in files and ("deno.json" in files or "deno.jsonc" in files):
        yield "deno", "deno test"


def _by_make(project: _Project) -> Iterator[str]:
    """The test target of a Makefile, or of a justfile."""
    for program, names in (("make", ("GNUmakefile", "makefile", "Makefile")), ("just", ("justfile",))):
        text = next((project.contents[name] for name in names if name in project.contents), "")
        for target in ("test", "tests", "check"):
            if re.search(rf"(?m)^{target}(?:[ \t][^:=\n]{{0,200}})?::?(?!=)", text):
                yield f"{program} {target}"
                return
