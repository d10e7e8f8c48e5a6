"""A flattened root is what the sandbox saw: every change, and nothing that was deleted."""

import os
from pathlib import Path

import pytest

from cloister.core.computer import Command, shell
from cloister.sandbox.api import Keepable, SandboxSpec
from cloister.sandbox.container.host import ContainerHost

pytestmark = pytest.mark.anyio

CHANGES = """
set -e
mkdir -p new/deep; echo one > new/deep/file; ln new/deep/file new/hard; ln -s /etc/passwd new/link
mkfifo new/pipe; chmod 4755 new/deep/file
rm /etc/hostname; rm -rf /usr/share/perl5; rm -rf /etc/skel; mkdir /etc/skel; echo fresh > /etc/skel/only
echo changed > /etc/issue; chmod 700 /opt; rm -rf /srv; ln -s /etc /srv; rm /etc/debian_version; mkdir /etc/debian_version
"""
LIST = "find / -xdev -path /proc -prune -o -path /.cloister -prune -o -path /dev -prune -o -print | sort"


async def test_the_kept_files_equal_those_of_the_sandbox(host: ContainerHost, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    async with host.open(SandboxSpec()) as sandbox:
        done = await sandbox.run(Command(("/bin/sh", "-c", CHANGES), user="root"))
        assert done.ok, done.err
        seen = (await sandbox.run(shell(LIST, user="root"))).out
        assert isinstance(sandbox, Keepable)
        await sandbox.keep(tmp_path / "root")
    kept = tmp_path / "root"
    assert (kept / "work/new/deep/file").read_text() == "one\n"
    assert (kept / "work/new/hard").stat().st_nlink == 2
    assert (kept / "work/new/deep/file").stat().st_mode & 0o7777 == 0o755, "no setuid bit comes out"
    assert [path.name for path in (kept / "etc/skel").iterdir()] == ["only"]
    assert not (kept / "etc/hostname").exists()
    assert str((kept / "srv").readlink()) == "/etc"
    assert (kept / "etc/issue").read_text() == "changed\n"
    template = host.templates.find("default")
    assert template is not None
    assert (template / "etc/hostname").is_file(), "the template is as it was"
    assert (template / "etc/issue").read_text() != "changed\n"
    assert not (tmp_path / "root-upper").exists()
    ours = set(seen.decode().splitlines())
    there = {"/" + str(path.relative_to(kept)) for path in kept.rglob("*")} | {"/"}
    assert {name for name in there ^ ours if not name.startswith(("/.cloister", "/proc", "/dev"))} == set()
