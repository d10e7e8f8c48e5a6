import os
import shutil
import stat
import subprocess
import sys
from collections import deque
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import HostError, UserError
from cloister.sandbox.templates import debian
from cloister.sandbox.templates.building import MARKER, DiskReserve, told_errors
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.debian import BuildProgress, read_sources, useful_lines

pytestmark = pytest.mark.anyio

SOURCES = """\
# the main archive
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://user:secret@inside.example/security
Suites:
 trixie-security
 forky
Components: main
Architectures: amd64 arm64

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://inline.example/debian
Suites: trixie
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: http://tool.example/apt
Suites: nodistro
Components: main
"""
LIST = """\
deb http://mirror.example/debian trixie main # the same archive
deb-src http://mirror.example/debian trixie main
deb [arch=amd64 signed-by=/k.gpg lang=de] http://mirror.example/extra trixie-backports main non-free
deb cdrom:[Debian]/ trixie main
deb http://old.example/debian bookworm main
nonsense
"""


def test_the_sources_of_this_release_are_found_in_both_styles() -> None:
    found = debian.parse_sources({"debian.sources": SOURCES, "extra.list": LIST}, "trixie")
    assert [source.line() for source in found] == [
        *(
            f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian {suite} main contrib"
            for suite in ("trixie", "trixie-updates")
        ),
        "deb [arch=amd64,arm64] https://user:secret@inside.example/security trixie-security main",
        "deb http://mirror.example/debian trixie main",
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/extra trixie-backports main non-free",
    ]


def test_the_sources_in_a_template_have_no_password_and_no_host_path() -> None:
    (source,) = debian.parse_sources(
        {"x.list": "deb [signed-by=/k] https://u:p@m.example/d trixie main"}, "trixie"
    )
    assert source.public_line() == "deb https://m.example/d trixie main"


@given(st.text(), st.text())
def test_no_configuration_file_breaks_the_reader(one: str, two: str) -> None:
    debian.parse_sources({"a.list": one, "b.sources": two}, "trixie")
    debian.codename(one)


def test_the_release_is_the_codename_of_the_host() -> None:
    assert debian.codename('NAME="x"\nVERSION_CODENAME=trixie\n') == "trixie"
    assert debian.codename('VERSION_CODENAME="noble"') == "noble"
    assert debian.codename("VERSION_CODENAME=\nID=other") is None


def test_a_host_without_sources_for_its_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://m.example/d bookworm main\n")
    (tmp_path / "sources.list.d" / "off.list.disabled").write_text("deb http://m.example/d trixie main\n")
    with pytest.raises(HostError) as refused:
        read_sources("trixie", tmp_path)
    assert refused.value.code == "no_sources"
    assert [source.suite for source in read_sources("bookworm", tmp_path)] == ["bookworm"]


def test_progress_never_falls_and_names_the_package() -> None:
    progress = BuildProgress()
    lines = [
        "Get:1 http://m.example/debian trixie InRelease [151 kB]",
        "0 upgraded, 2 newly installed, 0 to remove",
    ]
    for package in ("libc6", "bash"):
        lines += [f"Get:3 http://m.example/debian trixie/main amd64 {package} amd64 1.0 [9 kB]"]
    for package in ("libc6", "bash"):
        lines += [f"Unpacking {package}:amd64 (1.0) ...", f"Setting up {package} (1.0) ..."]
    lines += ["0 upgraded, 30 newly installed, 0 to remove", "Unpacking git (1:2.0) ...", "\x00garbage"]
    news = [found for line in lines if (found := progress.feed(line))]
    fractions = [fraction for fraction, _ in news]
    assert fractions == sorted(fractions)
    assert fractions[0] > 0 and fractions[-1] < 1
    assert news[0][1] == "fetching libc6"
    assert [note for _, note in news[-2:]] == ["setting up bash", "unpacking git"]


def test_what_maven_adds_to_every_error_is_left_out() -> None:
    said = told_errors(
        [
            "[ERROR] [ERROR] Some problems were encountered while processing the POMs:",
            "[ERROR]     Non-resolvable parent POM for a:b:1: Could not transfer artifact c:d:pom:104 from central",
            "[ERROR] ",
            "[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.",
            "[ERROR] For more information about the errors and possible solutions, please read the following articles:",
            "[ERROR] [Help 1] http://cwiki.apache.org/confluence/display/MAVEN/ProjectBuildingException",
        ]
    )
    assert said == (
        "[ERROR] Non-resolvable parent POM for a:b:1: Could not transfer artifact c:d:pom:104 from central"
    )


def test_a_failed_build_is_explained_by_its_errors_only() -> None:
    tail = deque(["Get:1 x", "Err:2 http://m.example trixie", "more", "E: Unable to fetch", "I: cleaning"])
    assert useful_lines(tail) == "Err:2 http://m.example trixie E: Unable to fetch"
    assert useful_lines(deque(["one", "two"])) == "one two"
    assert useful_lines(deque()) == "mmdebstrap printed nothing"


MOUNTS = "mount -t tmpfs none $root/home"
"""As the real tool does for the packages' own scripts."""


def quiet(fraction: float | None, note: str) -> None:
    del fraction, note


def fake_tool(directory: Path, body: str) -> str:
    """A `PATH` whose `mmdebstrap` is the shell script `body`; `$root` is the directory it must make."""
    directory.mkdir()
    tool = directory / "mmdebstrap"
    made = "mkdir -p $root/etc/apt/sources.list.d $root/etc/skel $root/home; touch $root/etc/passwd"
    tool.write_text(
        f'#!/bin/sh\nfor word in "$@"; do case $word in */rootfs) root=$word;; esac; done\nmake() {{ {made}; }}\n{body}\n'
    )
    tool.chmod(0o755)
    return f"{directory}:/usr/sbin:/usr/bin:/sbin:/bin"


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("building a template needs root")


async def test_a_template_appears_whole_and_is_built_once(tmp_path: Path) -> None:
    needs_root()
    path = fake_tool(
        tmp_path / "bin", f"echo built >> {tmp_path}/log; make; echo secret > $root/etc/resolv.conf"
    )
    templates = Templates(tmp_path / "templates", path)
    assert templates.find("default") is None
    await templates.prepare("default", quiet)
    await templates.prepare("default", quiet)
    assert (tmp_path / "log").read_text() == "built\n"
    rootfs = templates.find("default")
    assert rootfs is not None
    assert "agent:x:1000:1000" in (rootfs / "etc/passwd").read_text()
    assert (rootfs / "work").stat().st_uid == 1000
    assert (rootfs / "etc/resolv.conf").read_text() == "", "nothing of the host's network is left in it"
    assert stat.S_IMODE((rootfs / "etc/resolv.conf").stat().st_mode) == 0o644
    assert (rootfs.parent / MARKER).is_file()


async def test_two_who_build_at_the_same_time_build_once(tmp_path: Path) -> None:
    needs_root()
    path = fake_tool(tmp_path / "bin", f"echo built >> {tmp_path}/log; make; sleep 0.5")
    notes: list[str] = []

    def note_down(fraction: float | None, note: str) -> None:
        notes.append(note)

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            templates = Templates(tmp_path / "templates", path)
            tasks.start_soon(templates.prepare, "default", note_down)
    assert (tmp_path / "log").read_text() == "built\n"
    assert "another process is building the template" in notes


async def test_a_build_that_was_cancelled_leaves_nothing(tmp_path: Path) -> None:
    needs_root()
    path = fake_tool(
        tmp_path / "bin", f"make; {MOUNTS}; echo '1 newly installed' >&2; echo 'Unpacking x' >&2; sleep 1000"
    )
    templates = Templates(tmp_path / "templates", path)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:

            def cancel_when_it_works(fraction: float | None, note: str) -> None:
                if note == "unpacking x":
                    tasks.cancel_scope.cancel()

            tasks.start_soon(templates.prepare, "default", cancel_when_it_works)
    assert [p.name for p in (tmp_path / "templates").iterdir() if not p.name.startswith(".lock-")] == [
        "default.log"
    ], "only what it said is kept"


BUILDER = """
import sys
from pathlib import Path
import anyio
from cloister.sandbox.templates.catalog import Templates

def show(fraction, note):
    print(note, flush=True)

anyio.run(Templates(Path(sys.argv[1]), sys.argv[2]).prepare, "default", show)
"""


def mounted() -> str:
    return Path("/proc/self/mountinfo").read_text()


def build_until_killed(directory: Path, path: str) -> None:
    argv = [sys.executable, "-c", BUILDER, str(directory), path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as builder:
        assert builder.stdout is not None
        assert any(line == b"unpacking x\n" for line in builder.stdout)
        builder.kill()


async def test_a_builder_that_was_killed_is_repaired_by_the_next(tmp_path: Path) -> None:
    needs_root()
    gate, directory = tmp_path / "gate", tmp_path / "templates"
    os.mkfifo(gate)
    body = f"make; {MOUNTS}; echo '1 newly installed' >&2; echo 'Unpacking x' >&2; read line < {gate}"
    build_until_killed(directory, fake_tool(tmp_path / "stuck", body))
    assert str(directory) not in mounted(), "what it mounted was its own"
    gate.write_text("the tool may end\n")
    assert any(p.name.startswith(".building-") for p in directory.iterdir())
    templates = Templates(directory, fake_tool(tmp_path / "good", "make"))
    assert templates.find("default") is None, "a half-built template is never used"
    await templates.prepare("default", quiet)
    assert templates.find("default") is not None
    assert not any(p.name.startswith(".building-") for p in directory.iterdir())


async def test_a_build_that_fails_says_why_and_can_be_tried_again(tmp_path: Path) -> None:
    needs_root()
    path = fake_tool(tmp_path / "bin", "make; echo 'E: no such mirror' >&2; exit 25")
    with pytest.raises(HostError) as failed:
        await Templates(tmp_path / "templates", path).prepare("default", quiet)
    assert failed.value.code == "template_failed"
    assert "no such mirror" in failed.value.message
    good = Templates(tmp_path / "templates", fake_tool(tmp_path / "good", "make"))
    await good.prepare("default", quiet)
    assert good.find("default") is not None


async def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    needs_root()
    (tmp_path / "empty").mkdir()
    with pytest.raises(HostError) as refused:
        await Templates(tmp_path / "templates", str(tmp_path / "empty")).prepare("default", quiet)
    assert refused.value.code == "no_mmdebstrap"
    disk = DiskReserve(needed_bytes=shutil.disk_usage(tmp_path).total * 2)
    tools = fake_tool(tmp_path / "bin", "make")
    with pytest.raises(HostError) as refused:
        await Templates(tmp_path / "templates", tools, disk).prepare("default", quiet)
    assert refused.value.code == "no_disk"


async def test_an_unknown_template_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        await Templates(tmp_path, "/usr/bin:/bin").prepare("../../etc", quiet)
    assert refused.value.code == "unknown_template"
