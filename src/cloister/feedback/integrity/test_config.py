"""Compares what decides which tests run: the settings of test runners, and the scripts that start them."""

import re
import tomllib
from collections.abc import Iterator
from typing import cast

import msgspec

from cloister.core.diagnosis import Weakening
from cloister.feedback.integrity.command_lines import is_less, recipes
from cloister.feedback.integrity.versions import Version
from cloister.feedback.parsers.json import decoded

# CMake

_COMMAND = re.compile(
    r"\b(add_test|add_executable|add_subdirectory|enable_testing|include)\s*\(([^()]{0,4000})\)"
)
_COMMANDS = 500
"""Commands that a changed one is compared with."""
_TESTLIKE = re.compile(r"test|spec|check", re.IGNORECASE)
_EXCUSES = re.compile(
    r"\b(?:PASS_REGULAR_EXPRESSION|SKIP_REGULAR_EXPRESSION|SKIP_RETURN_CODE|WILL_FAIL|DISABLED)\b|NDEBUG\b"
)


def cmake_lists(version: Version) -> Iterator[Weakening]:
    """Tests that were removed from a `CMakeLists.txt`, or are built or run differently."""
    before, after = version.before or "", version.after or ""
    found = len(_EXCUSES.findall(after)) - len(_EXCUSES.findall(before))
    if found > 0 and (excuse := _EXCUSES.search(after)):
        yield Weakening(version.path, "configuration", detail=excuse.group())
        return
    now = [(name, set(words.split())) for name, words in _COMMAND.findall(after)[:_COMMANDS]]
    unchanged = set(_COMMAND.findall(after))
    for name, words in _COMMAND.findall(before):
        if (name, words) in unchanged:
            continue
        wanted = set(words.split())
        if name in ("add_executable", "add_subdirectory", "include"):
            first = words.split()[:1]
            wanted = {*first, *filter(_TESTLIKE.search, wanted)} if _TESTLIKE.search(words) else set[str]()
        if (wanted or name == "enable_testing") and not any(
            other == name and wanted <= there for other, there in now
        ):
            said = " ".join(words.split())[:80]
            yield Weakening(version.path, "configuration", detail=f"{name}({said}) was changed")
            return


# Cargo and Go

_Table = dict[str, object]
_REPLACES = re.compile(r"^(?:replace\s+)?\S{1,300}(?: v\S{1,80})? => \.{0,2}/\S{1,300}", re.MULTILINE)


def cargo_manifest(version: Version) -> Iterator[Weakening]:
    """Test targets that no longer run or have another source, fewer members, replaced dependencies."""
    old, new = _read(version.before), _read(version.after)
    if old is None or new is None:
        return  # the check itself reports it
    for detail in (*_package(old, new), *_targets(old, new), *_members(old, new)):
        yield Weakening(version.path, "configuration", detail=detail)
        return
    for name in ("patch", "replace"):
        if old.get(name) != new.get(name):
            yield Weakening(version.path, "deceived", detail=f"[{name}] was changed")
            return


def go_module(version: Version) -> Iterator[Weakening]:
    """Modules that are now replaced by a directory of the working tree, perhaps an assertion library."""
    known = set(_REPLACES.findall(version.before or ""))
    for found in _REPLACES.findall(version.after or ""):
        if found not in known:
            yield Weakening(version.path, "deceived", detail=found)
            return


def _read(text: str | None) -> _Table | None:
    try:
        return tomllib.loads(text or "")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _table(value: object) -> _Table:
    return cast("_Table", value) if isinstance(value, dict) else {}


def _rows(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _words(value: object) -> set[str]:
    return {str(one) for one in _rows(value)}


def _package(old: _Table, new: _Table) -> Iterator[str]:
    was, now = _table(old.get("package")), _table(new.get("package"))
    for name in ("autotests", "autolib"):
        if now.get(name) is False and was.get(name) is not False:
            yield f"{name} = false"


def _targets(old: _Table, new: _Table) -> Iterator[str]:
    was, now = _table(old.get("lib")), _table(new.get("lib"))
    if was.get("path", "src/lib.rs") != now.get("path", "src/lib.rs"):
        yield "the library has another source file"
    if any(now.get(name) is False and was.get(name) is not False for name in ("test", "doctest", "harness")):
        yield "the library's tests do not run"
    before, after = _tests(old), _tests(new)
    for name, one in after.items():
        usual = (f"tests/{name}.rs", f"tests/{name}/main.rs", None)
        known = before.get(name, {})
        if one.get("path") != known.get("path") and one.get("path") not in usual:
            yield f"the tests {name} have another source file"
        for key in ("test", "harness", "required-features"):
            if one.get(key) != known.get(key) and one.get(key) not in (True, None):
                yield f"{key} of the tests {name}"
    for name, one in before.items():
        if name not in after and one.get("path") not in (f"tests/{name}.rs", f"tests/{name}/main.rs", None):
            yield f"the tests {name} were removed"


def _tests(document: _Table) -> dict[str, _Table]:
    return {str(one.get("name")): one for one in map(_table, _rows(document.get("test")))}


def _members(old: _Table, new: _Table) -> Iterator[str]:
    was, now = _table(old.get("workspace")), _table(new.get("workspace"))
    lost = _words(was.get("members")) - _words(now.get("members"))
    left = _words(now.get("exclude")) - _words(was.get("exclude"))
    fewer = "default-members" in now and was.get("default-members") != now["default-members"]
    if old.get("workspace") is not None and (lost or left):
        yield "the workspace has fewer members"
    elif fewer:
        yield "default-members was changed"


_HOOKS = re.compile(
    r"pytest_collection_modifyitems|pytest_ignore_collect|collect_ignore(?:_glob)?|pytest_collect_file|pytest_runtest_\w+|"
    r"pytest_pyfunc_call|pytest_report_\w+|pytest_cmdline_\w+|pytest_load_initial_conftests|pytest_pycollect_\w+|"
    r"pytest_fixture_setup|pytest_unconfigure|pytest_sessionfinish|pytest_itemcollected|pytest_deselected|"
    r"\bskip(?:if)?\b|\bxfail\b|importorskip|os\._exit|sys\.exit|pytest\.exit"
)
_LEAVES_OUT = re.compile(
    r"--deselect|--ignore(?:-glob)?\b|--co(?:llect-only)?\b|--last-failed|--lf\b|--exitfirst|--maxfail|addopts.{0,200}[ \"'=]-[kmx]\b|"
    r"(?:^|[\s\"'=\[,])-p[\s\"',=]+(?!no:)\w|(?:^|[\s\"'])-p(?!no:)[a-z_]\w*|^[\"']-p[\"'],?$|norecursedirs|collect_ignore|testpaths|python_(?:files|classes|functions)|--passWithNoTests|passWithNoTests|"
    r"testPathIgnorePatterns|modulePathIgnorePatterns|testMatch|testRegex|--grep|--invert|--bail|"
    r"skipTests|maven\.test\.skip|testFailureIgnore|ignoreFailures|<skip>|excludeTestsMatching|WILL_FAIL|DISABLED"
)
_THRESHOLD = re.compile(
    r"\b(?:cov-)?fail[_-]under\W{1,4}(\d{1,3})|[\"'](?:branches|functions|lines|statements)[\"']\s{0,4}:\s{0,4}(\d{1,3})"
)
"""Coverage thresholds."""
_SLIPS_IN = re.compile(r"\b(?:setupFiles(?:AfterEnv)?|moduleNameMapper|testRunner|globalSetup|resolver)\b")
"""Settings that inject modules between a test and the code under test."""


_STANDS_IN = re.compile(
    r"^(?:src/|lib/|tests?/)?(unittest|doctest|pytest|_pytest|py|pluggy|iniconfig|packaging|exceptiongroup|tomli|pygments|nose2?|"
    r"tox|nox|coverage|xdist|hypothesis|ward|mypy|ruff|flake8|pylint|pyright|isort|black|sitecustomize|usercustomize|importlib|"
    r"argparse|ast|copy|dataclasses|difflib|dis|gettext|heapq|inspect|linecache|locale|opcode|pprint|runpy|signal|textwrap|"
    r"token|tokenize|traceback)(?:/__(?:init|main)__)?\.(?:py|pyc|(?:[\w.-]+\.)?so)$|"
    r"^(?:[\w.-]{1,80}/){1,8}(?:src|lib)/(unittest|pytest|_pytest|pluggy|iniconfig|nose2|sitecustomize|usercustomize)"
    r"(?:/__(?:init|main)__)?\.(?:py|pyc|so)$"
)
"""Files that Python would import instead of a test runner, or of a module that the runner imports."""
_PACKAGED = re.compile(
    r"(?:^|/)node_modules/(\.bin|@jest|jest[\w-]*|vitest|@vitest|mocha|ava|tap|expect|chai|assert)/|"
    r"(?:^|/)vendor/(?:github\.com/(?:stretchr/(testify)|onsi/(gomega|ginkgo)|google/(go-cmp))|(gotest)\.tools)/"
)


class _Package(msgspec.Struct):
    scripts: dict[str, object] = {}
    jest: msgspec.Raw = msgspec.Raw(b"")
    mocha: msgspec.Raw = msgspec.Raw(b"")
    vitest: msgspec.Raw = msgspec.Raw(b"")
    ava: msgspec.Raw = msgspec.Raw(b"")


def stands_in(path: str) -> str | None:
    """The test runner, or its module, that a file of this name would replace."""
    found = _STANDS_IN.search(path) or _PACKAGED.search(path)
    return next(filter(None, found.groups()), None) if found else None


def configuration(version: Version) -> Iterator[Weakening]:
    """Find changes in this file that make fewer tests run, or their failures count less."""
    other = stands_in(version.path)
    if (
        other is not None
        and version.after is not None
        and (version.before is None or _PACKAGED.search(version.path))
    ):
        yield Weakening(version.path, "configuration", detail=f"it replaces {other}")
        return
    name = version.name
    before, after = version.before or "", version.after or ""
    yield from _thresholds(version, before, after)
    if name in ("conftest.py", "sitecustomize.py", "usercustomize.py"):
        yield from _more(version, _HOOKS)
    elif name == "package.json":
        yield from _scripts(version, before, after)
    elif name in ("Makefile", "makefile", "GNUmakefile"):
        yield from recipes(version)
    elif name == "CMakeLists.txt":
        yield from cmake_lists(version)
    elif name in ("go.mod", "go.work"):
        yield from go_module(version)
    elif name == "Cargo.toml":
        yield from cargo_manifest(version)
    elif name in _RUNNERS or name.startswith(("jest.config.", "vitest.config.", "vite.config.", ".mocharc")):
        yield from _more(version, _LEAVES_OUT)


_RUNNERS = (
    *("pytest.ini", ".pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini", "noxfile.py"),
    *("pom.xml", "build.gradle", "build.gradle.kts"),
)


def _more(version: Version, words: re.Pattern[str]) -> Iterator[Weakening]:
    """New lines with a word that leaves tests out."""
    for line in version.new_lines():
        bare = " ".join(line.split())
        if not bare.startswith("#") and (word := words.search(bare)):
            yield Weakening(version.path, "configuration", detail=word.group().strip())
            return


def _scripts(version: Version, before: str, after: str) -> Iterator[Weakening]:
    old, new = decoded(before.encode(), _Package), decoded(after.encode(), _Package)
    if old is None:
        return
    if new is None:
        yield Weakening(version.path, "configuration", detail="it can no longer be parsed")
        return
    for name, script in old.scripts.items():
        if not re.search(r"test|check|lint|types?\b", name):
            continue
        other = new.scripts.get(name)
        if other == script or not isinstance(script, str):
            continue
        if not isinstance(other, str) or is_less(script, other) or _leaves_out_more(script, other):
            yield Weakening(version.path, "configuration", detail=f"the script {name} was changed")
            return
    for runner in ("jest", "mocha", "vitest", "ava"):
        one, two = bytes(getattr(old, runner)), bytes(getattr(new, runner))
        settings = two.decode("utf-8", errors="replace")
        slip = _SLIPS_IN.search(settings)
        if slip and slip.group().encode() not in one:
            yield Weakening(version.path, "deceived", detail=f"{slip.group()} is new")
        if one != two and _LEAVES_OUT.search(settings):
            yield Weakening(version.path, "configuration", detail="the runner's settings were changed")
            return


def _leaves_out_more(old: str, new: str) -> bool:
    return bool(_LEAVES_OUT.search(new) and not _LEAVES_OUT.search(old))


def _thresholds(version: Version, before: str, after: str) -> Iterator[Weakening]:
    """A coverage threshold that was lowered or removed."""
    old, new = _bars(before), _bars(after)
    if old and (len(new) < len(old) or any(now < was for was, now in zip(old, new, strict=False))):
        yield Weakening(version.path, "configuration", detail="the coverage threshold was lowered")


def _bars(text: str) -> list[int]:
    return [int(one or other) for one, other in _THRESHOLD.findall(text)]
