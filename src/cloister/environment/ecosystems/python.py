"""Python: the interpreter, and one environment with the dependencies of the project and of its tests."""

import ast
import configparser
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cloister.environment.api import (
    HOME,
    TAG,
    TOOLS,
    VENV,
    AptPackage,
    Line,
    Manager,
    Note,
    Registry,
    Step,
    Toolchain,
    Used,
    Variable,
)
from cloister.environment.hints import Hints, Named
from cloister.environment.listing import Project, Table, string, strings, table
from cloister.environment.versions import nearest, satisfies

AVAILABLE = ("3.11", "3.13", "3.14")
"""Debian 12 has the first one; the others are those of later releases."""
_RELEASES = {"3.13": "trixie", "3.14": "forky"}
"""The release of Debian that has this Python. It brings its own C library, and runs beside the programs of Debian 12."""
_OLD = "'setuptools<81'"
"""The last one with `pkg_resources`."""
_LATER = """set -e
d={home}; test ! -x $d/usr/bin/python{version} || exit 0
w=$(mktemp -d) && cd $w && mkdir -p lists/partial archives/partial && touch status
echo "deb $(awk '$1 == "deb" {{ print $2; exit }}' /etc/apt/sources.list) {release} main" > list
set -- -q -o Dir::Etc::SourceList=$w/list -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists=$w/lists \
  -o Dir::State::status=$w/status -o Dir::Cache=$w -o APT::Sandbox::User=root -o Acquire::Retries=2
apt-get "$@" update
apt-get "$@" install -y --download-only --no-install-recommends python{version}
cd archives && apt-get "$@" download libpython{version}-dev
for one in *.deb; do dpkg-deb -x $one $d; done
cp -f $d/usr/include/*/python{version}/pyconfig.h $d/usr/include/python{version}/
libraries=$(echo $d/usr/lib/*-linux-gnu)
{tools}/bin/patchelf --set-interpreter $libraries/ld-linux-*.so.? --force-rpath --set-rpath $libraries $d/usr/bin/python{version}
$d/usr/bin/python{version} -c 'import ctypes, sqlite3, ssl'
rm -rf $w"""

_TEST = ("test", "tests", "testing", "pytest", "unittest")
_DEVELOP = ("dev", "develop", "development", "ci", "all")
_REQUIREMENTS = re.compile(
    r"(?:(?:dev|test|tests|testing|ci)[-_.])?requirements?(?:[-_.](?:dev|develop|development|test|tests|testing|ci|base|all))?\.txt"
    r"|requirements/(?:base|common|main|default|prod|requirements|dev|develop|development|test|tests|testing|pytest|ci)\.txt"
    r"|tests?/requirements?\.txt"
)
_SOURCE_CHARS = 65_536
"""Longest Python file that is parsed."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]{1,200}|[^/]{1,200}_test)\.py$")
_COMPILED = re.compile(r"(?i)cython|pybind11|meson-python|scikit-build|cffi|numpy|nanobind|\bext_modules\b")
_RUST = re.compile(r"maturin|setuptools-rust")
_LIBRARIES = {
    "psycopg2": ("libpq-dev",),
    "psycopg-c": ("libpq-dev",),
    "mysqlclient": ("default-libmysqlclient-dev", "pkg-config"),
    "python-ldap": ("libldap2-dev", "libsasl2-dev"),
    "pygraphviz": ("graphviz", "libgraphviz-dev", "pkg-config"),
    "pycairo": ("libcairo2-dev", "pkg-config"),
    "pygobject": ("libgirepository1.0-dev", "libcairo2-dev", "pkg-config"),
    "dbus-python": ("libdbus-1-dev", "libglib2.0-dev", "pkg-config"),
    "gdal": ("libgdal-dev",),
    "python-magic": ("libmagic1",),
    "weasyprint": ("libpango-1.0-0", "libpangoft2-1.0-0"),
}
"""Packages that need libraries of the system, because they have no wheels or load them when they run."""


@dataclass(slots=True)
class _Wants:
    """What a project installs."""

    lock: str = ""
    """The tool whose lock file decides."""
    files: list[str] = field(default_factory=list[str])
    """Requirement files, relative to the project."""
    extras: list[str] = field(default_factory=list[str])
    groups: list[str] = field(default_factory=list[str])
    packages: list[str] = field(default_factory=list[str])
    why: list[str] = field(default_factory=list[str])
    itself: bool = False
    """True if the project can be installed; else only its dependencies are."""


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with Python files needs; nothing if it has neither manifest nor tests."""
    manifests = [name for name in _MANIFESTS if project.has(name)]
    wants = _Wants()
    _read_project(project, wants)
    _read_requirements(project, wants)
    _read_runners(project, wants)
    tests = [name for name in project.below() if _TEST_FILE.search(name)]
    if not manifests and not wants.files and not (tests and not project.at):
        return
    shown = project.path(next(iter((*manifests, *wants.files, *tests))))
    yield from (Used(project.path(name)) for name in (*manifests, *wants.files))
    python = _toolchain(project, hints, shown)
    yield python
    listed = wants.lock or wants.files or wants.groups or wants.packages or _dependencies(project)
    # The tests of another project may import a nested one.
    own = wants.itself and (project.at or not _is_plain(project))
    if listed or own or python.version != AVAILABLE[0]:
        yield from _install(project, wants, python)
    yield from _libraries(project)
    yield from _version(project)


def is_installed(project: Project) -> bool:
    """True if the project itself can be installed."""
    wants = _Wants()
    _read_project(project, wants)
    return wants.itself


def covers(project: Project, tested: bool) -> bool:
    """True if one installation at this place is enough for the projects below; `tested`: a check runs in one of them."""
    wants = _Wants()
    _read_project(project, wants)
    if tested:
        return wants.lock == "uv" and bool(table(project.toml("pyproject.toml"), "tool", "uv", "workspace"))
    return bool(wants.lock or wants.itself or _dependencies(project))


_MANIFESTS = (
    *("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "Pipfile.lock", "poetry.lock"),
    *("uv.lock", "pdm.lock"),
    *("tox.ini", "tox.toml", "noxfile.py", "hatch.toml", "pytest.ini", ".python-version"),
)


# The interpreter


def _toolchain(project: Project, hints: Hints, shown: str) -> Toolchain:
    range_, source = _requires(project)
    preferred = [line.split("#")[0].strip() for line in project.text(".python-version").splitlines()]
    pinned = next((line for line in preferred if line), "")
    if not range_:
        named = hints.version("python")
        range_, source = (pinned, project.path(".python-version")) if pinned else (named.text, named.file)
    found = next((one for one in AVAILABLE if satisfies(one, range_)), None)
    why = f"{range_} in {source}" if range_ else shown
    if found is not None or not Named(range_, source).firm:
        found = found or AVAILABLE[0]
        return Toolchain("python", found, "debian", why, range_)
    have = nearest(range_, AVAILABLE)
    problem = (
        f"Python {range_} cannot be had (Debian has {', '.join(AVAILABLE)}): {have} is used, the nearest"
    )
    return Toolchain("python", have, "debian", why, range_, problem)


def _requires(project: Project) -> tuple[str, str]:
    """The range of interpreters, and the file that states it."""
    pyproject, setup = project.toml("pyproject.toml"), project.text("setup.py")
    found = (
        (string(table(pyproject, "project").get("requires-python")), "pyproject.toml"),
        (string(table(pyproject, "tool", "poetry", "dependencies").get("python")), "pyproject.toml"),
        (_config(project.text("setup.cfg")).get("options", "python_requires", fallback=""), "setup.cfg"),
        (string(_call_arguments(setup, "setup").get("python_requires")), "setup.py"),
        (string(table(project.toml("Pipfile"), "requires").get("python_version")), "Pipfile"),
    )
    return next(((range_.strip(), project.path(name)) for range_, name in found if range_.strip()), ("", ""))


# What to install


def _read_project(project: Project, wants: _Wants) -> None:
    pyproject = project.toml("pyproject.toml")
    named, poetry = table(pyproject, "project"), table(pyproject, "tool", "poetry")
    for tool in ("uv", "poetry", "pdm"):
        if project.has(f"{tool}.lock") and pyproject:
            wants.lock = wants.lock or tool
    if project.has("Pipfile.lock") and not wants.lock and not named:
        wants.lock = "pipenv"
    built = "build-system" in pyproject or project.has("setup.py") or project.has("setup.cfg")
    wants.itself = bool(named and built) or project.has("setup.py") or (bool(poetry) and "name" in poetry)
    wants.itself = wants.itself or _config(project.text("setup.cfg")).has_option("metadata", "name")
    if poetry.get("package-mode") is False or (wants.lock == "uv" and not built):
        wants.itself = False
    setup_py = _call_arguments(project.text("setup.py"), "setup").get("extras_require")
    config = _config(project.text("setup.cfg"))
    in_cfg = config.options("options.extras_require") if config.has_section("options.extras_require") else []
    extras = [*table(named, "optional-dependencies"), *table(poetry, "extras"), *table(setup_py), *in_cfg]
    groups = [
        *table(pyproject, "dependency-groups"),
        *table(poetry, "group"),
        *table(pyproject, "tool", "pdm", "dev-dependencies"),
    ]
    if table(poetry, "dev-dependencies"):
        groups.append("dev")
    wants.groups = _for_tests(groups)
    wants.extras = _for_tests(extras)
    if project.has("Pipfile") and not wants.lock and not named:
        pipfile = project.toml("Pipfile")
        for section in ("packages", "dev-packages"):
            wants.packages += [_pinned(name, range_) for name, range_ in table(pipfile, section).items()]
    wants.why += [project.path(name) for name in _MANIFESTS if project.has(name)][:1]


def _for_tests(names: Iterable[str]) -> list[str]:
    """The groups or extras for tests; without one, those for development."""
    found = list(dict.fromkeys(name for name in names if _NAME.fullmatch(name)))
    for usual in (_TEST, _DEVELOP):
        if chosen := [name for name in found if name.lower() in usual]:
            return chosen
    return []


def _pinned(name: str, range_: object) -> str:
    version = string(range_) or string(table(range_).get("version"))
    return f"{name}{version}" if re.match(r"[=<>~!]", version) else name


def _dependencies(project: Project) -> bool:
    pyproject = project.toml("pyproject.toml")
    return bool(strings(table(pyproject, "project").get("dependencies")))


def _is_plain(project: Project) -> bool:
    """True if the checks can use the source as it is: nothing is built, generated or registered by installing it."""
    pyproject = project.toml("pyproject.toml")
    named = table(pyproject, "project")
    dynamic = {"dynamic", "scripts", "gui-scripts", "entry-points", "optional-dependencies"}
    tools = table(pyproject, "tool")
    return bool(named) and dynamic.isdisjoint(named) and "poetry" not in tools and not project.has("setup.py")


def _read_requirements(project: Project, wants: _Wants) -> None:
    if wants.lock:
        return
    found = sorted(name for name in project.below() if name.count("/") < 2 and _REQUIREMENTS.fullmatch(name))
    if any(name.startswith("requirements/") for name in found) and "requirements.txt" not in found:
        narrower = [name for name in found if re.search(r"/(?:dev|test|tests|testing|ci)", name)]
        found = narrower or found
    wants.files += found[:6]


def _read_runners(project: Project, wants: _Wants) -> None:
    """What tox, nox and hatch install for tests, where the manifests name nothing."""
    if (
        wants.lock
        or wants.groups
        or wants.extras
        or any("test" in name or "dev" in name for name in wants.files)
    ):
        return
    for name, lines in (
        ("tox.ini", _tox(project)),
        ("noxfile.py", _nox(project.text("noxfile.py"))),
        ("pyproject.toml", _hatch(table(project.toml("pyproject.toml"), "tool", "hatch", "envs"))),
        ("hatch.toml", _hatch(table(project.toml("hatch.toml"), "envs"))),
    ):
        for line in lines:
            _take(project, wants, line, name)


def _take(project: Project, wants: _Wants, line: str, source: str) -> None:
    """Take one argument of an installer: a requirement, a file of them, or the project with extras."""
    file = re.match(r"(?:-r|--requirement)[ =]?\s{0,4}(\S{1,200})", line)
    if file:
        if project.has(file[1]) and file[1] not in wants.files:
            wants.files.append(file[1])
        return
    own = re.fullmatch(r"(?:-e\s{0,4})?\.\[([^\]]{1,200})\]", line)
    if own:
        wants.extras += [extra.strip() for extra in own[1].split(",") if _NAME.fullmatch(extra.strip())]
    elif _NAME.match(line) and len(line) < 200 and "://" not in line and line not in wants.packages:
        wants.packages.append(line)
        wants.why.append(project.path(source))


def _tox(project: Project) -> Iterator[str]:
    legacy = string(table(project.toml("pyproject.toml"), "tool", "tox").get("legacy_tox_ini"))
    config = _config(project.text("tox.ini") or legacy)
    for line in config.get("testenv", "deps", fallback="").splitlines():
        bare = line.split("#")[0].strip().replace("{toxinidir}/", "")
        if bare and "{" not in bare and not re.match(r"[\w,!{}-]{1,80}:\s", bare):
            yield bare
    for extra in re.split(r"[\s,]+", config.get("testenv", "extras", fallback="")):
        if _NAME.fullmatch(extra):
            yield f".[{extra}]"


def _nox(text: str) -> Iterator[str]:
    """The literal arguments of `session.install(…)` in sessions for tests."""
    for function in ast.walk(_parsed(text)):
        if isinstance(function, ast.FunctionDef) and re.search(r"test|unit", function.name):
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "install"
                ):
                    words = [
                        a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                    ]
                    yield from _arguments(words)


def _arguments(words: Sequence[str]) -> Iterator[str]:
    index = 0
    while index < len(words):
        if words[index] in ("-r", "-e", "--requirement", "--editable") and index + 1 < len(words):
            yield f"{words[index]} {words[index + 1]}"
            index += 1
        elif not words[index].startswith("-"):
            yield words[index]
        index += 1


def _hatch(envs: Table) -> Iterator[str]:
    for name in ("hatch-test", "test", "tests", "dev", "default"):
        env = table(envs, name)
        found = [*strings(env.get("dependencies")), *strings(env.get("extra-dependencies"))]
        found += [f".[{feature}]" for feature in strings(env.get("features"))]
        if found:
            yield from found
            return


# Steps


def tools(*packages: str, why: str) -> Iterator[Line]:
    """Install wheels that hold programs, beside Python's own environment."""
    yield Registry("@pypi", why)
    # A pip of its own would take longer to unpack than the packages to install.
    made = f"test -x {TOOLS}/bin/python3 || /usr/bin/python3 -m venv --without-pip {TOOLS}"
    yield Step(made, why, stage="tools")
    names = " ".join(shlex.quote(package) for package in packages)
    pip = f"/usr/bin/python3 -m pip --python {TOOLS}/bin/python3"
    yield Step(f"{pip} install -q --disable-pip-version-check {names}", why, stage="tools")
    yield Variable("PATH", f"{TOOLS}/bin:$PATH", why)


def linked(why: str, directory: str, **programs: str) -> Step:
    """Put programs of a wheel themselves into the PATH: its own starters run Python first."""
    links = " && ".join(
        f"chmod +x $d/{path} && ln -sf $d/{path} {TOOLS}/bin/{name}" for name, path in programs.items()
    )
    return Step(f"d=$(echo {TOOLS}/lib/python3*/site-packages/{directory}) && {links}", why, stage="tools")


def _interpreter(python: Toolchain) -> Iterator[Line]:
    """Unpack a Python of a later release of Debian, with its libraries."""
    why = f"Python {python.version}: {python.why}"
    yield from tools("patchelf", why=why)
    yield Registry("@debian", why)
    release, home = _RELEASES[python.version], f"{HOME}/python{python.version}"
    script = _LATER.format(home=home, version=python.version, release=release, tools=TOOLS)
    yield Step(script, why, stage="tools", user="root")


def _install(project: Project, wants: _Wants, python: Toolchain) -> Iterator[Line]:
    why = " and ".join(list(dict.fromkeys((*wants.why, *map(project.path, wants.files))))[:3]) or python.why
    program = "/usr/bin/python3"
    if python.version in _RELEASES:
        yield from _interpreter(python)
        program = f"{HOME}/python{python.version}/usr/bin/python{python.version}"
    yield from tools("uv", *_lock_tools(wants.lock), why=why)
    yield Manager("uv", "", "pypi", f"it installs what {why} lists")
    if wants.lock and wants.lock != "uv":
        yield Manager(
            wants.lock,
            "",
            "pypi",
            project.path(f"{wants.lock}.lock" if wants.lock != "pipenv" else "Pipfile.lock"),
        )
    yield Variable("VIRTUAL_ENV", VENV, why)
    yield Variable("PATH", f"{VENV}/bin:$PATH", why)
    # `--seed`: the agent may use pip inside.
    seed = f"uv venv -q --seed --python {program} {VENV} && uv pip install -q {_OLD}"
    yield Step(
        f"test -x {VENV}/bin/python3 || {{ {seed}; }}",
        why,
        stage="tools",
    )
    yield Step(_command(project, wants, admitted=python.problem is None), why, project.at)


def _lock_tools(lock: str) -> tuple[str, ...]:
    return {"poetry": ("poetry", "poetry-plugin-export"), "pdm": ("pdm",), "pipenv": ("pipenv",)}.get(
        lock, ()
    )


def _command(project: Project, wants: _Wants, *, admitted: bool) -> str:
    """`admitted`: the project allows this Python. Else uv refuses the project itself, and pip installs it."""
    arguments: list[str] = []
    listed, after = _exported(wants), ""
    if listed:
        arguments.append("-r -")
    arguments += [f"-r {shlex.quote(name)}" for name in wants.files]
    extras = f"[{','.join(wants.extras)}]" if wants.extras and not listed else ""
    own = wants.itself and wants.lock not in ("uv", "pdm")
    if own and not admitted and _dependencies(project):
        after = " && python3 -m pip install -q --no-deps --ignore-requires-python -e ."
    elif own:
        arguments.append(f"-e {shlex.quote(f'.{extras}')}")
    if (after or not own) and not listed and _dependencies(project):
        arguments.append("-r pyproject.toml" + "".join(f" --extra {extra}" for extra in wants.extras))
    if not listed and table(project.toml("pyproject.toml"), "dependency-groups"):
        arguments += [f"--group {group}" for group in wants.groups]
    arguments += [shlex.quote(package) for package in wants.packages]
    settings = (project.text(name) for name in ("pyproject.toml", "setup.cfg", "tox.ini", "setup.py"))
    if (
        any(project.has(name) for name in ("pytest.ini", "tests.py"))
        or any("pytest" in text for text in settings)
        or any(_TEST_FILE.search(name) for name in project.below())
        or not arguments
    ):
        arguments.append("pytest")
    before = listed
    if "pkg_resources" in project.text("setup.py"):  # newer releases of setuptools do not have it
        before = f"echo {_OLD} > /tmp/old-setuptools && {listed}"
        arguments.append(f"--build-constraint /tmp/old-setuptools {_OLD}")
    return f"{before}uv pip install -q {' '.join(dict.fromkeys(arguments))}{after}"


def _exported(wants: _Wants) -> str:
    """Print a lock file's exact versions; the installer then gets them from the index that this machine uses."""
    groups = "".join(f" --group {group}" for group in wants.groups)
    extras = "".join(f" --extra {extra}" for extra in wants.extras)
    match wants.lock:
        case "uv":
            return f"uv export -q --frozen --no-hashes --all-packages{groups}{extras} | "
        case "poetry":
            poetry = groups.replace("--group", "--with") + extras.replace("--extra", "--extras")
            return f"poetry export --without-hashes{poetry} | "  # with `-q` it prints nothing at all
        case "pdm":
            return (
                f"pdm export -f requirements --no-hashes{groups.replace('--group', '-G')} --editable-self | "
            )
        case "pipenv":
            return "pipenv requirements --dev | "
        case _:
            return ""


def _libraries(project: Project) -> Iterator[Line]:
    """Debian packages that building or loading the dependencies needs."""
    build = project.text("setup.py") + " ".join(
        strings(table(project.toml("pyproject.toml"), "build-system").get("requires"))
    )
    if found := _COMPILED.search(build):
        yield AptPackage("python3-dev", f"the project is compiled ({found[0]})")
    if found := _RUST.search(build):
        yield Note(f"{project.path('pyproject.toml')} builds Rust code with {found[0]}")
    texts = [project.text(name) for name in project.below() if _REQUIREMENTS.fullmatch(name)]
    texts += [
        project.text("pyproject.toml"),
        project.text("setup.py"),
        project.text("setup.cfg"),
        project.text("Pipfile"),
    ]
    names = {
        found.lower().replace("_", "-")
        for text in texts
        for found in re.findall(r"[A-Za-z][\w.-]{2,40}", text)
    }
    for package in sorted(names & _LIBRARIES.keys()):
        yield from (AptPackage(name, f"{package} needs it") for name in _LIBRARIES[package])


def _version(project: Project) -> Iterator[Line]:
    """The sandbox has neither tags nor history, from which some build backends take the version."""
    pyproject = project.toml("pyproject.toml")
    texts = "".join(project.text(name) for name in ("pyproject.toml", "setup.py", "setup.cfg"))
    if found := re.search(r"setuptools[-_]scm|hatch-vcs", texts):
        name = string(table(pyproject, "project").get("name")) if found[0] != "hatch-vcs" else ""
        own = f"_FOR_{re.sub(r'[-_.]+', '_', name).upper()}" if _NAME.fullmatch(name) else ""
        why = f"{found[0]} takes the version of {project.path('the project')} from a tag"
        yield Variable(f"SETUPTOOLS_SCM_PRETEND_VERSION{own}", TAG, why)


# Static reading


def _config(text: str) -> configparser.RawConfigParser:
    config = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        config.read_string(text)
    except configparser.Error:
        return configparser.RawConfigParser()
    return config


def _parsed(text: str) -> ast.AST:
    try:
        return ast.parse(text if len(text) <= _SOURCE_CHARS else "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _call_arguments(text: str, name: str) -> dict[str, object]:
    """The literal keyword arguments of the first call of `name`."""
    for node in ast.walk(_parsed(text)):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and (
            (isinstance(called, ast.Name) and called.id == name)
            or (isinstance(called, ast.Attribute) and called.attr == name)
        ):
            return {word.arg: _literal(word.value) for word in node.keywords if word.arg}
    return {}


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        if isinstance(node, ast.Dict):  # the keys of `extras_require` are enough
            return {key.value: () for key in node.keys if isinstance(key, ast.Constant)}
        return None
