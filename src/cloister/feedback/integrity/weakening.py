"""Finds what a change does to tests: made easier, skipped, deleted, or kept from running.

Adding to a test is fine; removing or replacing part of it is a weakening. `weigh` decides which weakenings count.
"""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Weakening
from cloister.feedback.integrity import python_tests, rustdoc_tests, text_tests
from cloister.feedback.integrity.deception import deceiving
from cloister.feedback.integrity.silencing import may_silence, silencing
from cloister.feedback.integrity.test_config import configuration, stands_in
from cloister.feedback.integrity.versions import Version

KEPT = 400
_TEST_PLACE = re.compile(
    r"(?:^|/)(?:tests?|__tests__|__mocks__|spec|specs|testdata|__snapshots__|fixtures|golden)/", re.IGNORECASE
)
_TEST_FILE = re.compile(
    r"(?:^|/)(?:(?:run)?tests?|test[_-][^/]*|[^/]*_tests?|[^/]*Tests?|[^/]*Spec|[^/]*[._-](?:tests?|spec))(?:\.[A-Za-z]{1,4})?$|"
    r"(?:^|/)conftest\.py$"
)
_CODE = re.compile(
    r"\.(?:py|pyi|js|jsx|ts|tsx|mjs|cjs|mts|cts|go|rs|java|kt|scala|c|cc|cpp|cxx|h|hpp|rb|php|swift|sh)$"
)


def weakenings(changed: Sequence[Version]) -> tuple[Weakening, ...]:
    """Every weakening in the changed files. If there are too many, name only the files, so that none is dropped."""
    found: list[Weakening] = []
    for version in changed:
        found.extend(configuration(version))
        found.extend(_tests(version))
        found.extend(silencing(version))
        if not is_test_place(version.path) and not is_test_file(version.path):
            found.extend(deceiving(version))
    once = tuple(dict.fromkeys(found))
    if len(once) > KEPT:
        once = tuple(dict.fromkeys(_whole(one) for one in once))
    if len(once) > KEPT:
        return (Weakening(".", "deceived", detail="more tests were changed than can be checked"),)
    return once


def _whole(one: Weakening) -> Weakening:
    return one if one.test is None else Weakening(one.file, "changed")


def may_matter(path: str) -> bool:
    """True if a changed file of this name must be compared."""
    return is_test_file(path) or is_test_place(path) or path.endswith(".rs") or matters_when_new(path)


def matters_when_new(path: str) -> bool:
    """True if a new file of this name must be compared. A new test weakens nothing."""
    if path.rpartition("/")[2] in CONFIGURATION or may_silence(path) or stands_in(path):
        return True
    return is_test_code(path) and not is_test_file(path) and not is_test_place(path)


CONFIGURATION = frozenset(
    [
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        ".coveragerc",
        ".nycrc",
        ".nycrc.json",
        "pyproject.toml",
        "setup.cfg",
        "tox.ini",
        "noxfile.py",
        "conftest.py",
        "package.json",
        "Makefile",
        "makefile",
        "GNUmakefile",
        "CMakeLists.txt",
        "Cargo.toml",
        "go.mod",
        "go.work",
        ".mocharc.json",
        ".mocharc.yml",
        ".mocharc.js",
        "jest.config.js",
        "jest.config.ts",
        "jest.config.mjs",
        "jest.config.json",
        "vitest.config.js",
        "vitest.config.ts",
        "vitest.config.mjs",
        "vite.config.js",
        "vite.config.ts",
        "pom.xml",
        "build.gradle",
        "build.gradle.kts",
        "sitecustomize.py",
        "usercustomize.py",
    ]
)


def is_test_place(path: str) -> bool:
    """True if the file is in a directory of tests or test data."""
    return _TEST_PLACE.search(path) is not None


def is_test_file(path: str) -> bool:
    """True if the file is named like a test file."""
    return _TEST_FILE.search(path) is not None


def is_test_code(path: str) -> bool:
    """True if the file is source code, not data."""
    return _CODE.search(path) is not None


def _tests(version: Version) -> Iterator[Weakening]:
    path, before, after = version.path, version.before, version.after
    if before is None:
        return  # a new file can only weaken as configuration
    is_test = bool(_TEST_FILE.search(path) or _TEST_PLACE.search(path)) or path.endswith(".rs")
    if not is_test:
        return
    if not _CODE.search(path):
        if before.strip():
            yield Weakening(path, "data")
        return
    if path.endswith((".py", ".pyi")):
        found = python_tests.weakened(before, after)
        if found is not None:
            yield from (Weakening(path, how, name) for name, how in found)
            return
    yield from (Weakening(path, how, name) for name, how in text_tests.weakened(path, before, after))
    if path.endswith(".rs"):
        yield from (Weakening(path, how, name) for name, how in rustdoc_tests.weakened(path, before, after))
