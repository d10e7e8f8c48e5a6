"""What decides which tests run: the configuration of the runners, and the scripts that start them."""

import re
from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import Weakening
from cloister.feedback.cmake import cmake_lists
from cloister.feedback.documents import decoded
from cloister.feedback.manifests import cargo_manifest, go_module
from cloister.feedback.recipes import is_less, recipes
from cloister.feedback.versions import Version

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
"""How much of the code tests have to reach."""
_SLIPS_IN = re.compile(r"\b(?:setupFiles(?:AfterEnv)?|moduleNameMapper|testRunner|globalSetup|resolver)\b")
"""Where modules of one's own get between a test and what it tests."""


_STANDS_IN = re.compile(
    r"^(?:src/|lib/|tests?/)?(unittest|doctest|pytest|_pytest|py|pluggy|iniconfig|packaging|exceptiongroup|tomli|pygments|nose2?|"
    r"tox|nox|coverage|xdist|hypothesis|ward|mypy|ruff|flake8|pylint|pyright|isort|black|sitecustomize|usercustomize|importlib|"
    r"argparse|ast|copy|dataclasses|difflib|dis|gettext|heapq|inspect|linecache|locale|opcode|pprint|runpy|signal|textwrap|"
    r"token|tokenize|traceback)(?:/__(?:init|main)__)?\.(?:py|pyc|(?:[\w.-]+\.)?so)$"
)
"""Where Python finds a module before the one of that name that runs the tests, or that this one needs to begin."""
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
    """The runner of tests, or the part of one, in whose place a file of this name would work."""
    found = _STANDS_IN.search(path) or _PACKAGED.search(path)
    return next(filter(None, found.groups()), None) if found else None


def configuration(version: Version) -> Iterator[Weakening]:
    """Whether fewer tests run, or less comes of them, for what was changed in this file."""
    other = stands_in(version.path)
    if (
        other is not None
        and version.after is not None
        and (version.before is None or _PACKAGED.search(version.path))
    ):
        yield Weakening(version.path, "configuration", detail=f"it takes the place of {other}")
        return
    name = version.path.rpartition("/")[2]
    before, after = version.before or "", version.after or ""
    yield from _thresholds(version, before, after)
    if name in ("conftest.py", "sitecustomize.py", "usercustomize.py"):
        yield from _more(version, _HOOKS, before, after)
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
        yield from _more(version, _LEAVES_OUT, before, after)


_RUNNERS = (
    "pytest.ini",
    ".pytest.ini",
    "pyproject.toml",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
)


def _more(version: Version, words: re.Pattern[str], before: str, after: str) -> Iterator[Weakening]:
    """Lines that are new and hold a word by which tests are left out."""
    known = {" ".join(line.split()) for line in before.split("\n")}
    for line in after.split("\n"):
        bare = " ".join(line[:2_000].split())
        if bare not in known and not bare.startswith("#") and (word := words.search(bare)):
            yield Weakening(version.path, "configuration", detail=word.group().strip())
            return


def _scripts(version: Version, before: str, after: str) -> Iterator[Weakening]:
    old, new = decoded(before.encode(), _Package), decoded(after.encode(), _Package)
    if old is None:
        return
    if new is None:
        yield Weakening(version.path, "configuration", detail="it cannot be read any more")
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
    for one, two in (
        (old.jest, new.jest),
        (old.mocha, new.mocha),
        (old.vitest, new.vitest),
        (old.ava, new.ava),
    ):
        settings = bytes(two).decode("utf-8", errors="replace")
        slip = _SLIPS_IN.search(settings)
        if slip and slip.group().encode() not in bytes(one):
            yield Weakening(version.path, "deceived", detail=f"{slip.group()} is new")
        if bytes(one) != bytes(two) and _LEAVES_OUT.search(settings):
            yield Weakening(version.path, "configuration", detail="the runner's settings were changed")
            return


def _leaves_out_more(old: str, new: str) -> bool:
    return bool(_LEAVES_OUT.search(new) and not _LEAVES_OUT.search(old))


def _thresholds(version: Version, before: str, after: str) -> Iterator[Weakening]:
    """A bar that was lowered or taken away."""
    old, new = _bars(before), _bars(after)
    if old and (len(new) < len(old) or any(now < was for was, now in zip(old, new, strict=False))):
        yield Weakening(version.path, "configuration", detail="less of the code has to be tested")


def _bars(text: str) -> list[int]:
    return [int(one or other) for one, other in _THRESHOLD.findall(text)]
