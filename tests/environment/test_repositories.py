"""The plans of well-known public repositories, from their file names and the facts of their manifests."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from cloister.environment.api import Plan
from cloister.environment.detect import detect
from cloister.environment.listing import collect


class Expected(msgspec.Struct, forbid_unknown_fields=True):
    tools: list[str]
    managers: list[str]
    apt: list[str]
    sets: list[str]
    steps: list[str]
    services: list[str]
    checks: list[str]


class Repository(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    files: list[str]
    facts: dict[str, str]
    plan: Expected


FILE = Path(__file__).with_name("repositories.toml")
REPOSITORIES = msgspec.convert(tomllib.loads(FILE.read_text("utf-8"))["repository"], list[Repository])
_LINTERS = re.compile(r"lint|tsc|type-check")


def told(plan: Plan) -> Expected:
    return Expected(
        tools=[f"{one.name} {one.version}".strip() for one in plan.toolchains],
        managers=[f"{one.name} {one.version}".strip() for one in plan.managers],
        apt=sorted(one.name + ("?" if one.optional else "") for one in plan.apt),
        sets=[one.set for one in plan.registries],
        steps=[
            (f"[{one.cwd}] " if one.cwd else "") + one.command
            for one in plan.steps
            if one.stage == "dependencies"
        ],
        services=[f"{one.name} {one.version}".strip() for one in plan.services],
        checks=[one.command for one in plan.checks if not _LINTERS.search(one.command)],
    )


@pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda one: one.name)
def test_the_plan_of_a_well_known_repository(repository: Repository) -> None:
    files = {**dict.fromkeys(repository.files, ""), **repository.facts}
    plan = detect(collect(files, files.get))
    assert told(plan) == repository.plan
    assert all(
        one.why
        for part in (plan.toolchains, plan.managers, plan.apt, plan.steps, plan.checks)
        for one in part
    )
    assert set(plan.files) <= set(files)


def test_there_are_enough_of_them() -> None:
    assert len({one.name for one in REPOSITORIES}) >= 40
