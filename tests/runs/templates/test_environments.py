"""The names of layers: what is shared, what is reused, and what is built again."""

import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest

from cloister.environment.api import AptPackage, Plan, Service, Step, Variable
from cloister.forge.read import Blob
from cloister.runs.environments import services as setup_services
from cloister.runs.environments.layers import Layers, Site, layers, planned
from cloister.sandbox.templates.building import About, Built

BELOW = Built("default", Path("/templates/default-0123456789ab"), About())
FILES = {"requirements.txt": Blob("a" * 40, 10), "app.py": Blob("b" * 40, 10)}
PLAN = Plan(
    apt=(AptPackage("libpq-dev", "psycopg2 needs it"),),
    steps=(Step("pip install uv", "it", stage="tools"), Step("uv pip install -r requirements.txt", "it")),
    env=(Variable("PATH", "/opt/cloister/venv/bin:$PATH", "it"),),
    files=("requirements.txt",),
)


def names(made: Layers) -> tuple[str, str]:
    assert made.tools is not None and made.own is not None
    return made.tools[0], made.own[0]


def test_a_changed_source_file_finds_the_same_environment() -> None:
    before = layers(PLAN, FILES, BELOW, "/repo")
    after = layers(PLAN, {**FILES, "app.py": Blob("c" * 40, 11)}, BELOW, "/repo")
    assert after == before
    assert before.own is not None and before.own[1].files == {"requirements.txt": "a" * 40}


def test_a_changed_manifest_is_set_up_again_over_the_same_tools() -> None:
    tools, own = names(layers(PLAN, FILES, BELOW, "/repo"))
    changed = layers(PLAN, {**FILES, "requirements.txt": Blob("c" * 40, 9)}, BELOW, "/repo")
    assert names(changed)[0] == tools and names(changed)[1] != own


def test_repositories_share_tools_and_never_dependencies() -> None:
    one, other = names(layers(PLAN, FILES, BELOW, "/one")), names(layers(PLAN, FILES, BELOW, "/other"))
    assert one[0] == other[0]
    assert one[1] != other[1], "code of one repository must not prepare the sandboxes of another"


def test_another_base_is_another_environment() -> None:
    newer = Built("default", Path("/templates/default-0123456789ab.1"), About())
    assert not {*names(layers(PLAN, FILES, BELOW, "/r"))} & {*names(layers(PLAN, FILES, newer, "/r"))}


def test_a_layer_that_adds_nothing_is_not_built() -> None:
    bare = msgspec.structs.replace(PLAN, apt=(), steps=PLAN.steps[1:])
    made = layers(bare, FILES, BELOW, "/repo")
    assert made.tools is None and made.own is not None and made.own[1].base == "default"
    assert layers(Plan(), FILES, BELOW, "/repo") == Layers(None, None)


@pytest.mark.parametrize("name", sorted(setup_services.KINDS))
def test_hostile_names_of_a_compose_file_never_reach_a_script(name: str) -> None:
    keys = (
        "POSTGRES_USER",
        "POSTGRES_PASSWORD",
        "POSTGRES_DB",
        "MYSQL_USER",
        "MYSQL_DATABASE",
        "REDIS_PASSWORD",
    )
    hostile = Service(name, "compose.yml", env=dict.fromkeys(keys, "x'; touch /owned #$(id)`id`"), port=80)
    for make in (setup_services.initialise, setup_services.start, setup_services.stop):
        script = make((hostile,))
        assert "owned" not in script and "$(id)" not in script
        checked = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True)
        assert checked.returncode == 0, (checked.stderr, shlex.quote(script))


def test_a_service_that_no_package_has_is_left_out() -> None:
    assert setup_services.known((Service("kafka", "compose.yml"), Service("redis", "compose.yml"))) == (
        Service("redis", "compose.yml"),
    )


@pytest.mark.anyio
async def test_a_change_does_not_decide_the_environment_of_its_own_proof(tmp_path: Path) -> None:
    """`PYTEST_ADDOPTS` or another `setup` in the changed settings would let the change choose its own judge."""

    def git(*args: str) -> str:
        named = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        done = subprocess.run(
            ["git", *named, *args], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    settings = tmp_path / ".cloister/config.toml"
    settings.parent.mkdir()
    git("init", "-q", "-b", "main")
    (tmp_path / "requirements.txt").write_text("iniconfig\n")
    settings.write_text('setup = "pip install iniconfig"\n')
    git("add", "-A")
    git("commit", "-qm", "base")
    base = git("rev-parse", "HEAD")
    (tmp_path / "requirements.txt").write_text("iniconfig\nattrs\n")
    settings.write_text('setup = "cp evil.py /opt"\n[env]\nPYTEST_ADDOPTS = "--setup-plan"\n')
    git("add", "-A")
    git("commit", "-qm", "change")
    site = Site(str(tmp_path), tmp_path / ".git", git("rev-parse", "HEAD"))
    own, _ = await planned(site)
    assert any(one.name == "PYTEST_ADDOPTS" for one in own.env), "the settings of a base are its own affair"
    judged, files = await planned(site, settings_of=base)
    assert not any(one.name == "PYTEST_ADDOPTS" for one in judged.env)
    assert [step.command for step in judged.steps if step.stage != "tools"] == ["pip install iniconfig"]
    assert files["requirements.txt"].size == len("iniconfig\nattrs\n"), "manifests are those of the change"
