import shutil
from pathlib import Path

import anyio
import pytest

from cloister.core.errors import HostError
from cloister.sandbox._spawn import capture
from cloister.sandbox.local.guest_build import FLAGS, build, source_dir

pytestmark = pytest.mark.anyio


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_the_guest_is_built_once_and_found_again(tmp_path: Path) -> None:
    cache = tmp_path / "not" / "there yet"
    first = await build("guest", cache)
    made = first.stat()
    assert first.name.startswith("guest-")
    assert len(first.name) == len("guest-") + 16
    assert await build("guest", cache) == first
    assert first.stat() == made
    assert names(cache) == [first.name]


async def test_builds_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    found: list[Path] = []

    async def one() -> None:
        found.append(await build("launch", tmp_path))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one)
    assert len(set(found)) == 1
    assert names(tmp_path) == [found[0].name]


async def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    with anyio.move_on_after(0.05):
        await build("guest", tmp_path)
    left = [name for name in names(tmp_path) if not name.startswith("guest-")]
    assert left == []


async def test_without_a_compiler_the_error_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        await build("guest", tmp_path / "cache", search=str(tmp_path))
    assert caught.value.code == "no_compiler"
    assert "libc6-dev" in caught.value.message


async def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho cannot find -lc >&2; exit 1\n")
    fake.chmod(0o755)
    with pytest.raises(HostError) as caught:
        await build("guest", tmp_path / "cache", search=f"{tmp_path}:/usr/bin:/bin")
    assert caught.value.code == "no_compiler"
    assert "cannot find -lc" in caught.value.message
    assert names(tmp_path / "cache") == []


async def test_the_sources_have_no_warning_and_stay_small(tmp_path: Path) -> None:
    shutil.copytree(source_dir(), tmp_path / "guest")
    done = await capture(["make", "-C", str(tmp_path / "guest")], seconds=120)
    assert done.ok, done.err.decode()
    assert "-Werror" not in FLAGS
    sizes = {path: path.read_text().count("\n") for path in source_dir().rglob("*.[ch]")}
    assert [path.name for path, size in sizes.items() if size > 300 and path.parent.name != "fuzz"] == []


async def test_the_library_for_old_gvisors_leaves_out_the_flag_and_changes_nothing_else(
    tmp_path: Path,
) -> None:
    library = await build("automount", tmp_path)
    # Not when it was last read, which somebody else may do in between.
    stat = ["stat", "--format=%n %F %A %u %g %s %i %Y"]
    for line in (["ls", "-la", "/usr"], [*stat, "/etc/passwd"], [*stat, "/no/such/file"]):
        plain = await capture(line, env={"PATH": "/usr/bin:/bin"}, seconds=20)
        loaded = await capture(line, env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(library)}, seconds=20)
        assert loaded == plain
