"""Recipes are small files that people write; templates are found, replaced and removed by them."""

import os
import tomllib
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import UserError
from cloister.sandbox.templates.building import About, Build
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.recipes import (
    Devcontainer,
    Dockerfile,
    Oci,
    Packages,
    Recipe,
    Repository,
    Snapshot,
    check,
    credentials_of,
    read_recipe,
    to_toml,
    with_stand_ins,
    write_recipe,
)

pytestmark = pytest.mark.anyio

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
RECIPES = st.one_of(
    st.builds(Packages, st.lists(TEXT).map(tuple), st.dictionaries(TEXT, TEXT)),
    st.builds(Oci, TEXT, st.none() | TEXT, st.booleans(), st.dictionaries(TEXT, TEXT)),
    st.builds(Dockerfile, TEXT, TEXT, st.none() | TEXT, st.dictionaries(TEXT, TEXT), st.booleans()),
    st.builds(Devcontainer, TEXT, st.none() | TEXT),
    st.builds(Repository, TEXT, st.none() | TEXT, TEXT, st.floats(1, 1e5)),
)


@given(RECIPES)
def test_a_recipe_written_is_the_recipe_read(recipe: Recipe) -> None:
    assert msgspec.convert(tomllib.loads(to_toml(recipe)), Recipe) == recipe


def test_a_recipe_reads_as_a_person_would_write_it() -> None:
    assert to_toml(Oci("example.org/tool:1")) == 'kind = "oci"\nimage = "example.org/tool:1"\n'


@pytest.mark.parametrize(
    "recipe",
    [
        Packages(()),
        Packages(("git", "--option")),
        Packages(("git,evil",)),
        Oci("-v"),
        Oci("a\nb"),
        Oci("x", env={"A B": "c"}),
        Dockerfile("/c", "../outside"),
        Dockerfile("/c", "/etc/passwd"),
        Repository("/r", minutes=0),
        Devcontainer(" "),
    ],
)
def test_an_unusable_recipe_is_refused(recipe: Recipe) -> None:
    with pytest.raises(UserError) as refused:
        check(recipe)
    assert refused.value.code == "bad_template"


@pytest.mark.parametrize(
    "recipe",
    [
        Packages(("git",), env={"API_TOKEN": "credential:a.b-c_1"}),
        Oci("x", env={"API_TOKEN": "credential:a.b-c_1"}),
        Snapshot("x", env={"API_TOKEN": "{{secret:a.b-c_1}}"}),
        Dockerfile("/c", env={"API_TOKEN": "credential:a.b-c_1"}),
        Dockerfile("/c", args={"API_TOKEN": "credential:a.b-c_1"}, network=True),
    ],
)
def test_every_kind_of_recipe_refers_to_credentials_by_name(
    recipe: Packages | Oci | Snapshot | Dockerfile,
) -> None:
    check(recipe)
    assert credentials_of(recipe) == {"a.b-c_1"}
    made = with_stand_ins(recipe)
    assert "{{secret:a.b-c_1}}" in to_toml(made) and "credential:" not in to_toml(made)


def test_a_file_that_is_no_recipe_is_named(tmp_path: Path) -> None:
    for text in ("kind = 'oci'\n", "kind = 'other'\n", "not toml", "kind='oci'\nimage='x'\nmore=1\n", "\xff"):
        (tmp_path / "odd.toml").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match=r"odd\.toml is not a recipe"):
            read_recipe(tmp_path / "odd.toml")
    templates = Templates(tmp_path, "/usr/bin:/bin")
    assert templates.names() == ("browser", "default", "odd")
    assert [info.name for info in templates.all()] == ["browser", "default"]


def test_names_that_are_no_names_are_unknown_and_cannot_be_kept(tmp_path: Path) -> None:
    templates = Templates(tmp_path / "templates", "/usr/bin:/bin")
    write_recipe(tmp_path / "outside.toml", Oci("x"))
    for name in ("../outside", "", "A", ".hidden", "a" * 49, "a/b", "a\n"):
        with pytest.raises(UserError) as unknown:
            templates.recipe(name)
        assert unknown.value.code == "unknown_template"
        with pytest.raises(UserError) as bad:
            templates.keep_recipe(name, Oci("x"))
        assert bad.value.code == "bad_template"


def test_the_default_is_a_recipe_that_a_file_replaces_when_that_is_asked_for(tmp_path: Path) -> None:
    templates = Templates(tmp_path, "/usr/bin:/bin")
    assert isinstance(templates.recipe("default"), Packages)
    mine = Oci(f"example.org/mine:3@sha256:{'0' * 64}")
    with pytest.raises(UserError) as refused:
        templates.keep_recipe("default", mine)
    assert refused.value.code == "built_in_template"
    assert isinstance(templates.recipe("default"), Packages)
    templates.keep_recipe("default", mine, replace_built_in=True)
    assert templates.recipe("default") == mine
    templates.keep_recipe("default", mine)


def quiet(fraction: float | None, note: str) -> None:
    del fraction, note


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    if os.geteuid() != 0:
        pytest.skip("building a template needs root")
    made = Templates(tmp_path / "templates", "/usr/bin:/bin")
    made.keep_recipe("mine", Oci("example.org/mine"))
    return made


async def make(work: Build) -> About:
    work.rootfs.mkdir()
    (work.rootfs / "file").write_text("x")
    work.note("hello \x1b[31mred")
    return About(kind="oci")


async def test_built_again_it_replaces_the_old_one_which_goes_when_unused(templates: Templates) -> None:
    first = await templates.build("mine", make, quiet)
    assert await templates.build("mine", make, quiet) == first
    with templates.using(first):
        second = await templates.build("mine", make, quiet, again=True)
        assert second.home != first.home
        assert templates.find("mine") == second.rootfs
        assert (first.rootfs / "file").is_file(), "somebody uses it"
        await templates.sweep()
        assert (first.rootfs / "file").is_file()
    await templates.sweep()
    assert not first.home.exists()
    third = await templates.build("mine", make, quiet, again=True)
    assert not second.home.exists()
    assert templates.built("mine") == third


async def test_one_that_is_used_elsewhere_is_not_removed(templates: Templates, tmp_path: Path) -> None:
    built = await templates.build("mine", make, quiet)
    others = Templates(tmp_path / "templates", "/usr/bin:/bin")
    with templates.using(built):
        for remover in (templates, others):
            with pytest.raises(UserError) as refused:
                await remover.remove("mine")
            assert refused.value.code == "template_in_use"
    assert await others.remove("mine") == 1
    assert [
        path.name for path in (tmp_path / "templates").iterdir() if not path.name.startswith(".lock-")
    ] == []
    with pytest.raises(UserError):
        templates.recipe("mine")


async def test_one_that_is_being_removed_cannot_be_used(templates: Templates) -> None:
    built = await templates.build("mine", make, quiet)
    await templates.remove("mine")
    with pytest.raises(Exception, match="removed"), templates.using(built):
        pass


async def test_two_who_want_it_again_get_one_build(templates: Templates) -> None:
    await templates.build("mine", make, quiet)
    other_waits, built = anyio.Event(), 0

    def hear(fraction: float | None, note: str) -> None:
        if note == "another process is building the template":
            other_waits.set()

    async def slowly(work: Build) -> About:
        nonlocal built
        built += 1
        with anyio.fail_after(30):
            await other_waits.wait()
        return await make(work)

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(lambda: templates.build("mine", slowly, hear, again=True))
    assert built == 1


async def test_the_log_of_a_build_is_kept_and_harmless(templates: Templates) -> None:
    with pytest.raises(UserError) as refused:
        templates.log("mine")
    assert refused.value.code == "no_such_log"
    await templates.build("mine", make, quiet)
    assert templates.log("mine") == "hello red\n== ready\n"


async def test_a_sweep_removes_the_leftovers_of_dead_builders_only(
    templates: Templates, tmp_path: Path
) -> None:
    directory = tmp_path / "templates"
    (directory / ".building-gone-0123456789ab-00000000" / "rootfs").mkdir(parents=True)
    seen: list[list[str]] = []

    async def while_another_sweeps(work: Build) -> About:
        await Templates(directory, "/usr/bin:/bin").sweep()
        seen.append([path.name for path in directory.glob(".building-*")])
        return await make(work)

    built = await templates.build("mine", while_another_sweeps, quiet)
    assert [name.startswith(".building-mine-") for (name,) in seen] == [True]
    assert built.rootfs.is_dir()


async def test_one_that_is_being_built_is_not_removed(templates: Templates, tmp_path: Path) -> None:
    async def while_another_removes(work: Build) -> About:
        with pytest.raises(UserError) as refused:
            await Templates(tmp_path / "templates", "/usr/bin:/bin").remove("mine")
        assert refused.value.code == "template_in_use"
        return await make(work)

    assert (await templates.build("mine", while_another_removes, quiet)).rootfs.is_dir()
