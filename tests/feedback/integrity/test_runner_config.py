"""The settings of a runner go back to the base, in every file where they can be, and all else stays."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.integrity.base_tests import PutBack, configures_tests, put_back
from cloister.feedback.integrity.runner_config import with_base_settings
from cloister.feedback.integrity.versions import Version
from cloister.feedback.integrity.weakening import weakenings

PYPROJECT = """\
[project]
name = "shop"
dependencies = ["a"]

# How the tests run.
[tool.pytest.ini_options]
pythonpath = ["."]  # the package

[tool.ruff]
line-length = 100
"""
PLUGIN = '\n[project.entry-points.pytest11]\nlie = "shop.lie"\n'


def merged(path: str, before: str | None, after: str) -> str:
    assert configures_tests(path)
    return with_base_settings(Version(path, before, after)) or after


@pytest.mark.parametrize(
    "lie",
    [
        ('pythonpath = ["."]  # the package', 'pythonpath = ["."]\naddopts = ["--setup-plan"]'),
        ("[tool.pytest.ini_options]", "[ tool . 'pytest' . ini_options ]\naddopts = '-k x'"),
        ('[tool.pytest.ini_options]\npythonpath = ["."]  # the package\n', ""),
        ("[tool.ruff]\n", "[tool.coverage.report]\nfail_under = 1\n\n[tool.ruff]\n"),
        ("[tool.ruff]\n", f"{PLUGIN}\n[tool.ruff]\n"),
    ],
)
def test_settings_of_pytest_go_back_and_a_dependency_and_comments_stay(lie: tuple[str, str]) -> None:
    honest = PYPROJECT.replace('["a"]', '["a", "b"]').replace("100", "110  # wider")
    after = honest.replace(*lie)
    assert after != honest

    text = merged("pyproject.toml", PYPROJECT, after)

    assert merged("pyproject.toml", PYPROJECT, honest) == honest
    assert sorted(filter(None, text.split("\n"))) == sorted(filter(None, honest.split("\n")))


@pytest.mark.parametrize(
    "lie",
    [
        "tool.pytest.ini_options.addopts = '--co'\n" + PYPROJECT,
        PYPROJECT.replace(
            "[tool.pytest.ini_options]", "[tool]\npytest.ini_options.addopts = '--co'\n[tool.x]"
        ),
        PYPROJECT.replace('name = "shop"', 'name = "shop"\nentry-points.pytest11.lie = "shop.lie"'),
        "[tool.poetry.plugins]\npytest11 = {lie = 'shop.lie'}\n" + PYPROJECT,
        PYPROJECT + '[tool.x]\ny = """\n[tool.pytest.ini_options]\n',
    ],
)
def test_settings_in_an_unusual_form_bring_the_whole_file_back(lie: str) -> None:
    assert merged("pyproject.toml", PYPROJECT, lie) == PYPROJECT


def test_sections_of_ini_files_go_back() -> None:
    before = "[metadata]\nname = shop\n\n[options.entry_points]\nconsole_scripts =\n    shop = shop:main\n"
    after = before.replace("name = shop", "name = shop2") + "\n[tool:pytest]\naddopts = --setup-only\n"
    lying = after.replace("    shop = shop:main\n", "    shop = shop:main\npytest11 =\n    x = shop.lie\n")

    assert merged("setup.cfg", before, after).strip() == before.replace("name = shop", "name = shop2").strip()
    assert "pytest" not in merged("setup.cfg", before, lying)
    assert (
        merged("tox.ini", None, "[tox]\nenvlist = a\n\n[pytest]\naddopts = -x\n\n[flake8]\n") == "[flake8]\n"
    )
    assert "-v" in merged("tox.ini", "[pytest]\naddopts = -v\n", "[flake8]\nmax = 1\n")


CARGO = """\
[package]
name = "calc"

[lib]
crate-type = ["lib"]

[dependencies]
a = "1"  # why

[workspace]
members = ["b", "c"]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[dependencies]\n", "[[test]]\nname = 'outside'\npath = 'tests/calm.rs'\n\n[dependencies]\n"),
        ("[dependencies]\n", "[profile.test]\ndebug-assertions = false\n\n[dependencies]\n"),
    ],
)
def test_the_targets_and_profiles_of_cargo_go_back(old: str, new: str) -> None:
    honest = CARGO.replace('a = "1"', 'a = "1"\nb = "2"').replace('["b", "c"]', '["b", "c", "d"]')

    text = merged("Cargo.toml", CARGO, honest.replace(old, new))

    assert merged("Cargo.toml", CARGO, honest) == honest
    assert [*filter(None, text.split("\n"))] == [*filter(None, honest.split("\n"))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[lib]\n", "[lib]\ntest = false\n"),
        ("[lib]\n", "[lib]\npath = 'src/fake.rs'\n"),
        ("[lib]\n", "[lib]\n'doctest' = false\n"),
        ('name = "calc"\n', 'name = "calc"\nautotests = false\n'),
        ("[workspace]\n", "[workspace]\ndefault-members = ['b']\n"),
        ("[workspace]\n", "[workspace]\nexclude = [\n    'c',\n]\n"),
        (', "c"', ""),
        ("[package]\n", "lib = { test = false }\n\n[package]\n"),
    ],
)
def test_a_manifest_with_other_settings_for_its_tests_comes_back_whole(old: str, new: str) -> None:
    assert old in CARGO
    assert merged("Cargo.toml", CARGO, CARGO.replace(old, new)) == CARGO


def package(**more: object) -> str:
    return json.dumps({"name": "calc", "scripts": {"test": "mocha", "build": "tsc"}, **more})


@pytest.mark.parametrize(
    "after",
    [
        package(scripts={"pretest": "sed -i s/-/+/ calc.js", "test": "mocha", "build": "tsc -b"}),
        package(scripts={"test": "mocha -r ./lie.js", "build": "tsc -b"}),
        package(scripts={"test": "mocha", "build": "tsc -b"}, mocha={"require": ["./lie.js"]}),
        package(scripts={"test": "mocha", "build": "tsc -b"}, jest={"globals": {"LIE": 1}}),
    ],
)
def test_how_tests_are_started_is_as_on_the_base_and_all_else_as_now(after: str) -> None:
    text = with_base_settings(Version("package.json", package(), after))

    assert text is not None
    assert json.loads(text) == {"name": "calc", "scripts": {"test": "mocha", "build": "tsc -b"}}


@pytest.mark.parametrize(
    "after",
    [package(version="2", dependencies={"a": "1"}), package(scripts={"test": "mocha", "x": "y"}), "{"],
)
def test_a_package_that_starts_its_tests_as_before_stays_as_it_is(after: str) -> None:
    assert with_base_settings(Version("package.json", package(), after)) is None


def test_scripts_that_a_test_script_starts_go_back_with_it() -> None:
    before = package(scripts={"test": "npm run unit && npm run build", "unit": "mocha", "build": "tsc"})
    after = package(scripts={"test": "npm run unit && npm run build", "unit": "true", "build": "tsc"})

    assert json.loads(merged("package.json", before, after)) == json.loads(before)
    assert "jest" not in merged("package.json", None, package(jest={"testMatch": []}))


MAKE = """\
SRCS = shop.c \\
       cart.c
CFLAGS = -Wall

all: shop

shop_tests: tests/shop_tests.c $(SRCS)
\t$(CC) $(CFLAGS) -o $@ $^

test: shop_tests
\t./shop_tests --all
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--all", "--all || true"),
        ("--all", "--none"),
        ("\t./shop", "\t-./shop"),
        ("\t./shop", "\t@echo ./shop"),
        ("test: shop_tests\n", "test:\n"),
        ("-Wall", "-Wall -DNDEBUG"),
        ("all: shop", ".IGNORE:\n\nall: shop"),
        ("all: shop", "SHELL = /bin/true\n\nall: shop"),
        ("all: shop", "MAKEFLAGS += -ki\n\nall: shop"),
        ("all: shop", "include lie.mk\n\nall: shop"),
        ("all: shop", "CC = lie.c\n\nall: shop"),
        ("tests/shop_tests.c", "lie.c"),
        ("test: shop_tests\n\t./shop_tests --all\n", "test:\n\t@true\n"),
    ],
)
def test_a_makefile_keeps_new_sources_and_loses_what_hides_a_failure(old: str, new: str) -> None:
    honest = MAKE.replace("cart.c", "cart.c price.c").replace("-Wall", "-Wall -std=c11")
    honest = honest.replace("test: ", "price.o: price.c price.h\n\t$(CC) -c price.c\n\ntest: ")
    lying = honest.replace(old, new)
    assert lying != honest

    text = merged("Makefile", MAKE, lying)

    assert merged("Makefile", MAKE, honest) == honest
    kept = MAKE if new.startswith("-Wall") else honest
    for line in kept.split("\n"):
        assert line in text
    assert new.strip() not in text or new.strip() in honest


CMAKE = """\
enable_testing()
add_library(shop shop.c)  # the shop
add_executable(shop_tests
    tests/shop_tests.c)
target_link_libraries(shop_tests shop)
add_test(NAME shop COMMAND shop_tests)
"""
HONEST_CMAKE = CMAKE.replace("shop.c)", "shop.c price.c)").replace(
    "add_test(", "find_package(Threads)\ntarget_link_libraries(shop Threads::Threads)\nadd_test("
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("COMMAND shop_tests", "COMMAND true"),
        ("tests/shop_tests.c", "lie.c"),
        ("enable_testing()\n", ""),
        ("add_library(shop ", "add_definitions(-DNDEBUG)\nadd_library(shop "),
        ("add_library(shop ", "macro(add_test)\nendmacro()\nadd_library(shop "),
        ("add_library(shop ", "set(CMAKE_CROSSCOMPILING_EMULATOR true)\nadd_library(shop "),
        ("shop_tests)\n", "shop_tests)\nset_tests_properties(shop PROPERTIES WILL_FAIL TRUE)\n"),
        ("shop_tests)\n", "shop_tests)\nset_property(TEST shop PROPERTY DISABLED TRUE)\n"),
    ],
)
def test_cmake_keeps_new_sources_and_libraries_and_runs_the_tests_of_the_base(old: str, new: str) -> None:
    lying = HONEST_CMAKE.replace(old, new)
    assert lying != HONEST_CMAKE

    text = merged("CMakeLists.txt", CMAKE, lying)

    assert merged("CMakeLists.txt", CMAKE, HONEST_CMAKE) == HONEST_CMAKE
    assert sorted(filter(None, text.split("\n"))) == sorted(filter(None, HONEST_CMAKE.split("\n")))


def test_new_tests_are_not_built_and_deleted_sources_not_asked_for() -> None:
    more = (
        "add_executable(price_tests tests/price_tests.c)\ntarget_link_libraries(price_tests shop)\n"
        "add_test(NAME price COMMAND price_tests)\n"
    )
    change = Version("CMakeLists.txt", CMAKE, HONEST_CMAKE + more)
    assert with_base_settings(change, ["tests/price_tests.c"]) == HONEST_CMAKE

    fewer = MAKE.replace("shop.c \\\n       cart.c", "shop.c")
    assert with_base_settings(Version("Makefile", MAKE, fewer), (), ["cart.c"]) is None
    assert with_base_settings(Version("Makefile", MAKE, fewer)) == MAKE


SMALL_MAKE = "all:\n\tcc a.c\n\ntest: all\n\t./run-tests --all\n"

VARIABLES = "RUN = ./run-tests\n\ntest: unit\n\nunit: all\n\t$(RUN) --all\n\nall:\n\tcc a.c\n"
SMALL_CMAKE = (
    "enable_testing()\nadd_executable(shop_tests tests/shop_tests.c shop.c)\n"
    "add_test(NAME shop\n    COMMAND shop_tests)\n"
)


def scripts(**named: str) -> str:
    return json.dumps({"scripts": named})


FEWER = (
    ("go test ./...", "go test -run TestZero ./..."),
    ("go test ./...", "go test -skip 'TestAdd' ./..."),
    ("go test ./...", "go test -tags fake ./..."),
    ("go test ./...", "go test -exec true ./..."),
    ("go test ./...", "go test ./... -overlay=o.json"),
    ("go test ./...", "GOFLAGS=-run=TestZero go test ./..."),
    ("cargo test --quiet", "cargo test --quiet zero"),
    ("cargo test", "cargo test --lib"),
    ("cargo test", "cargo test -- --skip adds"),
    ("cargo test", "cargo test --no-run"),
    ("cargo test", "RUSTFLAGS=--cfg=lie cargo test"),
    ("jest", "jest -t zero"),
    ("jest --ci", "jest --ci zero.test.js"),
    ("npx jest", "npx jest -u"),
    ("vitest run", "vitest run --exclude calc.test.js"),
    ("mocha", "mocha -f zero"),
    ("mocha", "mocha -r ./lie.js"),
    ("node --test", "node --test zero.test.js"),
    ("node --test", "node --test --test-name-pattern zero"),
)
SMALL_CARGO = "[package]\nname = 'calc'\nversion = '0.1.0'\n"


BASE = [Diagnosis("pytest", 1, 1.0, tests=(Result("tests/test_shop.py::test_a", "failed"),))]


@pytest.mark.parametrize(
    "name",
    [
        "shop_x-1.dist-info/entry_points.txt",
        "src/shop.egg-info/PKG-INFO",
        "lie.pth",
        "sitecustomize.py",
        "noxfile.py",
        ".coveragerc",
        ".nycrc.json",
        "web/jest.config.cjs",
        ".mocharc.yaml",
        "karma.conf.js",
        ".config/nextest.toml",
        "CTestCustom.cmake",
    ],
)
def test_files_of_runners_are_restored_or_removed_whole(name: str) -> None:
    assert put_back([name, "shop.py"], [], (name,), BASE) == (PutBack((name,)),)
    assert put_back(["shop.py"], [name, "cart.py"], (), BASE) == (PutBack((), (name,)),)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("conftest.py", None, "def pytest_collection_modifyitems(items):\n    items.clear()\n"),
        ("tests/conftest.py", "import os\n", "import os\ncollect_ignore = ['test_a.py']\n"),
        ("conftest.py", "", "import pytest\n@pytest.fixture(autouse=True)\ndef f():\n    pytest.skip()\n"),
        ("pytest.ini", None, "[pytest]\naddopts = --deselect tests/test_a.py::test_b\n"),
        (
            "pyproject.toml",
            "[tool.pytest.ini_options]\n",
            "[tool.pytest.ini_options]\naddopts = '-k not_total'\n",
        ),
        ("setup.cfg", "", "[tool:pytest]\naddopts = --ignore=tests\n"),
        ("package.json", scripts(test="jest"), scripts(test="true")),
        ("package.json", scripts(test="jest"), scripts(test="jest || true")),
        (
            "package.json",
            scripts(test="jest"),
            scripts(test="jest --passWithNoTests --testPathIgnorePatterns a"),
        ),
        ("package.json", scripts(test="jest"), scripts()),
        (
            "jest.config.js",
            "module.exports = {};\n",
            "module.exports = {\n  testPathIgnorePatterns: ['a'],\n};\n",
        ),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("./run-tests --all", "true")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("./run-tests --all", "-./run-tests --all")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("--all", "--all || true")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("test: all", "tests: all")),
        (
            "CMakeLists.txt",
            "add_test(a a)\n",
            "add_test(a a)\nset_tests_properties(a PROPERTIES DISABLED TRUE)\n",
        ),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("./run-tests --all", "echo ./run-tests --all")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("--all", "--all | cat")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("--all", "--all; echo done")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE.replace("--all", "--none")),
        ("Makefile", SMALL_MAKE, SMALL_MAKE + "\ntest:\n\t@true\n"),
        ("Makefile", SMALL_MAKE, ".IGNORE:\n" + SMALL_MAKE),
        ("Makefile", SMALL_MAKE, "SHELL = /bin/true\n" + SMALL_MAKE),
        ("Makefile", SMALL_MAKE, "MAKEFLAGS += -i\n" + SMALL_MAKE),
        ("Makefile", SMALL_MAKE, "CFLAGS += -DNDEBUG\n" + SMALL_MAKE),
        ("Makefile", VARIABLES, VARIABLES.replace("./run-tests", "true")),
        ("Makefile", VARIABLES, VARIABLES.replace("unit: all", "unit: none")),
        ("package.json", scripts(test="node run.js"), scripts(test="node --require ./lie.js run.js")),
        ("package.json", scripts(test="jest"), scripts(test="echo jest")),
        ("CMakeLists.txt", SMALL_CMAKE, SMALL_CMAKE.replace("COMMAND shop_tests", "COMMAND true")),
        ("CMakeLists.txt", SMALL_CMAKE, SMALL_CMAKE.replace("tests/shop_tests.c", "lie.c")),
        ("CMakeLists.txt", SMALL_CMAKE, SMALL_CMAKE.replace("enable_testing()\n", "")),
        (
            "CMakeLists.txt",
            SMALL_CMAKE,
            SMALL_CMAKE + 'set_tests_properties(shop PROPERTIES PASS_REGULAR_EXPRESSION ".")\n',
        ),
        *(("Makefile", f"test:\n\t{old}\n", f"test:\n\t{new}\n") for old, new in FEWER),
        *(("package.json", scripts(test=old), scripts(test=new)) for old, new in FEWER),
        ("Makefile", "test:\n\tgo test ./...\n", "export GOFLAGS = -run=X\ntest:\n\tgo test ./...\n"),
        ("Cargo.toml", SMALL_CARGO, SMALL_CARGO + "[lib]\ntest = false\n"),
        ("Cargo.toml", SMALL_CARGO, SMALL_CARGO + "[lib]\npath = 'src/fake.rs'\n"),
        ("Cargo.toml", SMALL_CARGO, SMALL_CARGO + "autotests = false\n"),
        ("Cargo.toml", SMALL_CARGO, SMALL_CARGO + "[[test]]\nname = 'outside'\npath = 'tests/calm.rs'\n"),
        (
            "Cargo.toml",
            SMALL_CARGO,
            SMALL_CARGO + "[[test]]\nname = 'outside'\nrequired-features = ['never']\n",
        ),
        ("Cargo.toml", SMALL_CARGO, SMALL_CARGO + "[workspace]\nmembers = ['b']\ndefault-members = ['b']\n"),
        (".coveragerc", "[report]\nfail_under = 90\n", "[report]\nfail_under = 10\n"),
        (
            "pyproject.toml",
            "[tool.pytest.ini_options]\naddopts = '--cov-fail-under=90'\n",
            "[tool.pytest.ini_options]\n",
        ),
        ("sitecustomize.py", None, "import os\nos._exit(0)\n"),
        ("node_modules/.bin/jest", None, "#!/bin/sh\nexit 0\n"),
    ],
)
def test_configuration_by_which_fewer_tests_run_is_undone(path: str, before: str | None, after: str) -> None:
    changed, new = ([path], []) if before is not None else ([], [path])

    (back,) = put_back(changed, new, changed, BASE, {path: Version(path, before, after)})

    assert configures_tests(path)
    assert (
        path in (*back.restore, *back.remove)
        or dict(back.write)[path].split() == (before or "").split()
        or (json.loads(dict(back.write)[path]) == json.loads(before or ""))
    )


def test_a_makefile_that_comes_before_that_of_the_base_is_removed() -> None:
    known = ("Makefile", "lib/shop.py")

    assert put_back([], ["GNUmakefile"], known, BASE) == (PutBack((), ("GNUmakefile",)),)
    assert put_back([], ["lib/Makefile"], known, BASE) == ()


def test_shared_files_are_written_with_the_settings_of_the_base() -> None:
    texts = {
        "pyproject.toml": Version("pyproject.toml", PYPROJECT, PYPROJECT + PLUGIN),
        "tox.ini": Version("tox.ini", None, "[pytest]\naddopts = --setup-plan\n"),
        "setup.cfg": Version("setup.cfg", "[pytest]\n", None),
    }

    (back,) = put_back(["pyproject.toml", "setup.cfg"], ["tox.ini"], (), BASE, texts)

    assert (back.restore, back.remove) == ((), ())
    assert [(name, text.strip()) for name, text in back.write] == [
        ("pyproject.toml", PYPROJECT.strip()),
        ("tox.ini", ""),
        ("setup.cfg", "[pytest]"),
    ]


def test_files_that_the_task_is_about_stay_as_they_are_and_are_not_called_weakened() -> None:
    change = Version(
        "tests/test_shop.py", "def test_a():\n    assert f() == 1\n", "def test_a():\n    assert f() == 2\n"
    )
    settings = Version("pyproject.toml", PYPROJECT, PYPROJECT + PLUGIN)
    texts = {one.path: one for one in (change, settings)}

    assert put_back([*texts], [], (), BASE, texts, ["tests/test_s*.py", "pyproject.toml"]) == ()
    assert put_back([*texts], [], (), BASE, texts, ["tests/*"])[0].restore == ()
    assert put_back([*texts], [], (), BASE, texts, ["tests"])[0].restore == ()
    assert put_back([*texts], [], (), BASE, texts, ["test_shop.py"])[0].restore == ("tests/test_shop.py",)
    silenced = Version("pyproject.toml", "[tool.ruff]\n", "[tool.ruff]\nignore = ['F']\n")
    assert weakenings([silenced], ["*.toml"]) == ()
    assert weakenings([silenced], ["docs/*"]) != ()


PATHS = [
    "pyproject.toml",
    "Cargo.toml",
    "setup.cfg",
    "package.json",
    "Makefile",
    "CMakeLists.txt",
]


@given(st.text(), st.text(), st.sampled_from(PATHS))
def test_merging_never_raises(before: str, after: str, path: str) -> None:
    with_base_settings(Version(path, before, after), {"tests/a.c"}, {"b.c"})


@pytest.mark.parametrize("path", PATHS)
def test_a_file_made_to_hurt_is_merged_in_seconds(path: str) -> None:
    started = time.process_time()
    for line in ("[lib]\n", "add_test(\n", "a: b\n\tc\n", "<build>", "test {\n", "A = b.c \\\n", "x\n"):
        hostile = line * (100_000 // len(line))
        with_base_settings(Version(path, hostile + "a\n", "b\n" + hostile))
        with_base_settings(Version(path, hostile, hostile.replace("b", "d").replace("x", "y")))
    assert time.process_time() - started < 20, "what is quadratic takes minutes"
