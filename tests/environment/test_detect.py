"""Detection of the environment: the plan of a repository from its file names and manifests."""

from collections.abc import Mapping

from cloister.environment.api import Plan
from cloister.environment.detect import detect
from cloister.environment.listing import collect


def plan_of(files: Mapping[str, str]) -> Plan:
    return detect(collect(files, files.get))


def commands(plan: Plan) -> list[str]:
    return [step.command for step in plan.steps if step.stage == "dependencies"]


def test_a_repository_without_manifests_needs_no_set_up() -> None:
    plan = plan_of({"README.md": "", "tests/test_a.py": ""})
    assert not plan.needs_setup
    assert [tool.name for tool in plan.toolchains] == ["python"]
    assert [check.command for check in plan.checks] == ["python3 -m pytest -q"]


def test_requirements_are_installed_into_an_environment_of_their_own() -> None:
    plan = plan_of({"requirements.txt": "flask\n", "tests/test_a.py": ""})
    assert commands(plan) == ["uv pip install -q -r requirements.txt pytest"]
    assert [registry.set for registry in plan.registries] == ["@pypi"]
    assert plan.files == ("requirements.txt",)


def test_node_is_explained_by_engines_and_npm_by_its_lock_file() -> None:
    plan = plan_of(
        {
            "package.json": '{"engines": {"node": ">=20"}, "scripts": {"test": "mocha"}, "devDependencies": {"mocha": "1"}}',
            "package-lock.json": "{}",
        }
    )
    [node] = plan.toolchains
    assert (node.name, node.version, node.why) == ("node", "22", ">=20 in engines of package.json")
    [npm] = plan.managers
    assert (npm.name, npm.why) == ("npm", "package-lock.json")
    assert commands(plan) == ["npm ci --no-audit --no-fund"]
    assert {registry.set for registry in plan.registries} == {"@pypi", "@npm"}
    assert [check.command for check in plan.checks] == ["npm test"]


def test_a_python_that_cannot_be_had_is_named() -> None:
    plan = plan_of({"pyproject.toml": '[project]\nname = "a"\nrequires-python = ">=3.13"\n'})
    [python] = plan.toolchains
    assert python.problem is not None
    assert python.problem in plan.notes
