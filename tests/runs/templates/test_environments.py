"""The names of layers: what is shared, what is reused, and what is built again."""

import os
import shlex
import subprocess
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from cloister.core.computer import shell
from cloister.core.errors import HostError
from cloister.core.ids import SandboxId
from cloister.core.requests import Quota
from cloister.egress.factory import Doorway
from cloister.egress.rules import DoorEvent
from cloister.environment.api import AptPackage, Plan, Service, Step, Variable
from cloister.environment.hints import SERVICES
from cloister.environment.listing import wanted
from cloister.forge import Forges
from cloister.forge.read import Blob, working_files
from cloister.policy.layers import BUILT_IN
from cloister.runs.environments import services as setup_services
from cloister.runs.environments.layers import Environments, Layers, Outlet, Site, layers, planned, prune
from cloister.runs.templates import Workshop
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.templates.building import MARKER, About, Build, Built
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.recipes import Environment
from cloister.testing.samples import SampleRepo

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
        "RABBITMQ_DEFAULT_USER",
        "RABBITMQ_DEFAULT_PASS",
        "RABBITMQ_DEFAULT_VHOST",
    )
    hostile = Service(name, "compose.yml", env=dict.fromkeys(keys, "x'; touch /owned #$(id)`id`"), port=80)
    for make in (setup_services.initialise, setup_services.start, setup_services.stop):
        script = make((hostile,))
        assert "owned" not in script and "$(id)" not in script
        checked = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True)
        assert checked.returncode == 0, (checked.stderr, shlex.quote(script))


@pytest.mark.parametrize(("name", "told"), [("redis", "Redis"), ("mysql", "MariaDB")])
def test_a_service_that_never_becomes_ready_ends_with_its_name_and_the_end_of_its_log(
    tmp_path: Path, name: str, told: str
) -> None:
    """The program ends at once, its client never reaches it, and no time passes."""
    for program in ("redis-server", "mariadbd", "setsid", "mkdir", "chown", "sleep"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 0\n")
    for program in ("redis-cli", "mariadb-admin"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "tail").write_text("#!/bin/sh\necho the address is taken\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    script = setup_services.start((Service(name, "compose.yml", port=7_777),)).replace(
        "/var/lib/cloister-services", str(tmp_path)
    )
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 1
    assert (
        f"error: {told} did not answer on port 7777 within 30 s; its log ends: the address is taken"
        in done.stderr
    )


def test_the_services_that_detection_offers_are_those_that_can_be_started() -> None:
    assert {name for name, _ in SERVICES.values()} == set(setup_services.KINDS)


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


@pytest.mark.anyio
async def test_a_version_that_only_a_tag_knows_comes_from_the_nearest_tag(tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    manifest = (
        '[build-system]\nrequires = ["setuptools-scm"]\n[project]\nname = "my.app"\ndynamic = ["version"]\n'
    )
    repo.write("pyproject.toml", manifest)
    repo.commit("base")

    async def versions() -> list[str]:
        site = Site(str(repo.path), repo.path / ".git", repo.git("rev-parse", "HEAD").strip())
        plan, _ = await planned(site)
        return [one.value for one in plan.env if one.name == "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MY_APP"]

    assert await versions() == []
    repo.git("tag", "my-app-v1.20.0rc1")
    repo.write("app.py", "x = 1\n")
    repo.commit("after the release")
    assert await versions() == ["1.20.0rc1"]
    repo.git("tag", "nightly")
    assert await versions() == ["1.20.0rc1"]


def quiet(fraction: float | None, note: str) -> None:
    del fraction, note


async def empty(work: Build) -> About:
    work.rootfs.mkdir()
    return About(kind="environment")


DAY = 86_400.0


@pytest.mark.anyio
async def test_unused_environments_are_removed_and_those_in_use_stay(own_host: ContainerHost) -> None:
    templates = own_host.templates
    shop = Workshop(templates, own_host, Forges(), None, Quota(), templates.directory)
    now = time.time()
    homes: dict[str, Path] = {}
    for number in range(27):
        name = f"env-{number:016x}"
        templates.keep_recipe(name, Environment("default", steps=(f"step {number}",)))
        built = await templates.build(name, empty, quiet)
        homes[name] = built.home
        used = now - (20 * DAY if number in (0, 1) else 27 - number)  # later ones were used later
        os.utime(built.home / MARKER, (used, used))
    names = list(homes)
    in_use = templates.current(names[0])
    assert in_use is not None
    with templates.using(in_use):
        await prune(shop, now)
        assert homes[names[0]].exists(), "a sandbox runs from it"
    assert not homes[names[1]].exists(), "unused for twenty days"
    assert not homes[names[2]].exists() and homes[names[3]].exists(), "the newest 24 stay"
    assert "default" in templates.names()


@pytest.mark.anyio
async def test_checks_that_take_too_long_in_set_up_leave_the_environment_without_their_result(
    own_host: ContainerHost, tmp_path: Path
) -> None:
    async def record(_: SandboxId, body: DoorEvent) -> None:
        raise AssertionError(body)

    repo = SampleRepo(tmp_path / "repo")
    site = Site(str(repo.path), repo.path / ".git", repo.commit())
    shop = Workshop(own_host.templates, own_host, Forges(), None, Quota(), tmp_path)
    outlet = Outlet(own_host, Doorway().outfit, (BUILT_IN,), record, Quota())
    below = await shop.prepare("default", quiet)
    plan = Plan(steps=(Step("touch /opt/cloister/installed", "it"),))
    environments = Environments(shop, outlet, checks=("sleep 600",), warm_seconds=1.0)
    made = await environments.prepare(site, below, plan, {}, quiet)
    about = made.template.about
    assert (made.problem, made.built, about.checks, about.baseline) == ("", True, (), ())
    assert about.notes == (
        "the checks took too long in set-up and were stopped: the environment has no baseline",
    )
    async with own_host.open(SandboxSpec(made.template.name)) as sandbox:
        assert (await sandbox.run(shell("test -e /opt/cloister/installed && ! pgrep sleep"))).ok


@pytest.mark.anyio
async def test_two_that_need_the_same_environment_build_it_once(tmp_path: Path) -> None:
    made: list[str] = []

    async def build(shop: Templates) -> None:
        async def make(work: Build) -> About:
            made.append(work.name)
            await anyio.lowlevel.checkpoint()  # the other one looks meanwhile
            return await empty(work)

        shop.keep_recipe("env-1", Environment("default", steps=("step",)))
        assert (await shop.build("env-1", make, quiet)).home.is_dir()

    async with anyio.create_task_group() as tasks:
        for _ in range(2):  # as two processes, each with a catalogue of its own
            tasks.start_soon(build, Templates(tmp_path / "templates", os.environ["PATH"]))
    assert made == ["env-1"]


@pytest.mark.anyio
async def test_a_template_whose_build_failed_says_so_until_it_is_built(tmp_path: Path) -> None:
    shop = Templates(tmp_path, os.environ["PATH"])
    shop.keep_recipe("env-1", Environment("default", steps=("step",)))
    assert not shop.info("env-1").failed, "it was never built"

    async def fails(work: Build) -> About:
        raise HostError("template_failed", f"{work.name} has no such package")

    with pytest.raises(HostError, match="no such package"):
        await shop.build("env-1", fails, quiet)
    assert shop.info("env-1").failed
    await shop.build("env-1", empty, quiet)
    assert shop.info("env-1").ready and not shop.info("env-1").failed


@pytest.mark.anyio
async def test_a_link_in_a_checkout_never_brings_a_file_of_this_machine(tmp_path: Path) -> None:
    outside, repo = tmp_path / "outside", tmp_path / "repo"
    outside.mkdir()
    for name in ("requirements.txt", "package.json", "secret"):
        (outside / name).write_text("SECRET")
    repo.mkdir()
    (repo / "requirements.txt").symlink_to(outside / "secret")
    (repo / "nested").symlink_to(outside)
    (repo / "package.json").symlink_to("../outside/package.json")
    os.mkfifo(repo / "tox.ini")
    (repo / "setup.cfg").write_text("[metadata]\nname = own\n")
    for args in (("init", "-q"), ("add", "requirements.txt", "nested", "package.json", "setup.cfg")):
        await anyio.run_process(["git", *args], cwd=repo)
    with anyio.fail_after(30):
        names, texts = await working_files(
            str(repo), lambda listed: [*wanted(listed), "nested/requirements.txt", "tox.ini"]
        )
    assert "requirements.txt" in names and "SECRET" not in str(texts)
    assert texts == {"setup.cfg": "[metadata]\nname = own\n"}
