"""The settings of a runner go back to the base, in every file where they can be, and all else stays."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.integrity.base_tests import PutBack, is_looked_into, put_back
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
    assert is_looked_into(path)
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
        ("[lib]\n", "[lib]\ntest = false\n"),
        ("[lib]\n", "[lib]\npath = 'src/fake.rs'\n"),
        ("[lib]\n", "[lib]\n'doctest' = false\n"),
        ('name = "calc"\n', 'name = "calc"\nautotests = false\n'),
        ("[dependencies]\n", "[[test]]\nname = 'outside'\npath = 'tests/calm.rs'\n\n[dependencies]\n"),
        ("[dependencies]\n", "[profile.test]\ndebug-assertions = false\n\n[dependencies]\n"),
        ("[workspace]\n", "[workspace]\ndefault-members = ['b']\n"),
    ],
)
def test_the_targets_and_profiles_of_cargo_go_back(old: str, new: str) -> None:
    honest = CARGO.replace('a = "1"', 'a = "1"\nb = "2"').replace('["b", "c"]', '["b", "c", "d"]')

    text = merged("Cargo.toml", CARGO, honest.replace(old, new))

    assert merged("Cargo.toml", CARGO, honest) == honest
    assert [*filter(None, text.split("\n"))] == [*filter(None, honest.split("\n"))]


def test_a_manifest_with_fewer_members_or_with_settings_in_one_line_comes_back_whole() -> None:
    for lie in (
        CARGO.replace(', "c"', ""),
        "lib = { test = false }\n" + CARGO.replace('[lib]\ncrate-type = ["lib"]\n', ""),
        CARGO + "exclude = [\n    'c',\n]\n",
    ):
        assert merged("Cargo.toml", CARGO, lie) == CARGO


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


POM = "<project>\n<dependencies>a</dependencies>\n<build>\n<plugins/>\n</build>\n</project>\n"
GRADLE = "plugins { id 'java' }\n\ndependencies {\n    implementation 'a'\n}\n\ntest {\n    useJUnitPlatform()\n}\n"


def test_builds_of_java_run_the_tests_as_on_the_base() -> None:
    honest = POM.replace(">a<", ">a b<")
    assert merged("pom.xml", POM, honest) == honest
    assert merged("pom.xml", POM, honest.replace("<plugins/>", "<plugins>surefire</plugins>")) == honest
    skipping = honest.replace("<build>", "<properties>\n<skipTests>true</skipTests>\n</properties>\n<build>")
    assert merged("pom.xml", POM, skipping) == POM
    assert merged("pom.xml", POM, honest.replace("<build>", "<build >")) == POM

    more = GRADLE.replace("'a'", "'a'\n    implementation 'b'")
    assert merged("build.gradle", GRADLE, more) == more
    for lie in (
        more.replace("useJUnitPlatform()", "useJUnitPlatform()\n    ignoreFailures = true"),
        more + "tasks.withType(Test) { enabled = false }\n",
    ):
        text = merged("build.gradle", GRADLE, lie)
        assert "'b'" in text
        assert "ignoreFailures" not in text
        assert "enabled" not in text


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
    assert weakenings([change], ["tests/**"]) == ()
    assert weakenings([change], ["docs/*"]) != ()


PATHS = [
    "pyproject.toml",
    "Cargo.toml",
    "setup.cfg",
    "package.json",
    "Makefile",
    "CMakeLists.txt",
    "pom.xml",
    "build.gradle",
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
