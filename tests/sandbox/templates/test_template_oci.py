"""Images become templates; what is hostile in them stays harmless and reaches nothing of this machine."""

import os
import pwd
import shutil
import socket
import stat
import subprocess
import tarfile
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from cloister.core.computer import Command
from cloister.core.errors import HostError, UserError
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.templates.building import DiskReserve
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.oci import source_of
from cloister.sandbox.templates.recipes import Dockerfile, Oci
from cloister.testing.samples import busybox, folder, layer, layout, link, member

pytestmark = pytest.mark.anyio

PATH = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


def needs(*tools: str) -> None:
    """Skip, by name, where a tool is missing."""
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/install dev)")


def quiet(fraction: float | None, note: str) -> None:
    del fraction, note


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    if os.geteuid() != 0:
        pytest.skip("building a template needs root")
    needs("skopeo", "umoci", "busybox")
    return Templates(tmp_path / "templates", PATH)


async def unpacked(templates: Templates, image: Path, user: str | None = None) -> Path:
    templates.keep_recipe("image", Oci(str(image), user=user))
    await templates.prepare("image", quiet)
    rootfs = templates.find("image")
    assert rootfs is not None
    return rootfs


async def test_a_sandbox_made_from_an_image_has_its_environment_and_its_files(
    own_host: ContainerHost, tmp_path: Path
) -> None:
    needs("skopeo", "umoci", "busybox")
    base = layer(*busybox(), member("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"), member("gone", b"old"))
    top = layer(member(".wh.gone"), member("opt", b"new"))
    image = layout(
        tmp_path / "image", base, top, Env=["PATH=/bin:/opt/tools", "GREETING=good day", "HOME=/evil"]
    )
    own_host.templates.keep_recipe("tiny", Oci(str(image)))
    await own_host.prepare("tiny", quiet)
    about = own_host.templates.info("tiny").about
    assert about is not None
    assert (about.kind, about.git, about.bash) == ("oci", False, False)
    assert about.digest is not None and about.digest.startswith("sha256:")
    async with own_host.open(SandboxSpec(template="tiny", env={"MINE": "1"})) as sandbox:
        done = await sandbox.run(Command(("/bin/sh", "-c", "echo $PATH $GREETING $HOME $MINE; id -u; ls /")))
        lines = done.out.decode().split("\n")
        assert lines[:2] == ["/bin:/opt/tools good day /home/agent 1", "1000"]
        assert "opt" in lines and "gone" not in lines
        await sandbox.write("mine", b"x")
        assert (await sandbox.run(Command(("/bin/stat", "-c", "%u", "/work/mine")))).out == b"1000\n"
        assert sandbox.info.template == "tiny"


async def test_nothing_in_an_image_reaches_a_file_of_this_machine(
    templates: Templates, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    up = "../" * 12
    evil = layer(
        *busybox(),
        link("way", str(outside)),
        member("way/made", b"evil"),
        link("hard", str(outside / "victim"), tarfile.LNKTYPE),
        link("climb", f"{up}{str(outside)[1:]}"),
        member("climb/climbed", b"evil"),
        member(f"{up}{str(outside)[1:]}/dotted", b"evil"),
        member(str(outside / "absolute"), b"evil"),
    )
    whiteouts = layer(member("way/.wh.victim"), member(f"{up}{str(outside)[1:]}/.wh.victim"))
    image = layout(tmp_path / "image", evil, whiteouts)
    try:
        await unpacked(templates, image)
    except HostError as error:
        assert error.code == "template_failed", "refusing the whole image is as good"
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "untouched"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE])
async def test_a_root_that_is_no_directory_is_refused(
    templates: Templates, tmp_path: Path, kind: bytes
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    first = layer(member(".", type=kind, linkname=str(outside) if kind == tarfile.SYMTYPE else ""))
    image = layout(tmp_path / "image", first, layer(member("made", b"evil")))
    try:
        rootfs = await unpacked(templates, image)
    except (HostError, UserError) as error:
        assert error.code in ("template_failed", "bad_image")
    else:
        assert stat.S_ISDIR(rootfs.lstat().st_mode)
    assert list(outside.iterdir()) == []


async def test_links_where_we_write_are_not_followed(templates: Templates, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("passwd", "hosts", "shadow"):
        (outside / name).write_text("untouched")
    evil = layer(
        *busybox(),
        link("work", str(outside)),
        link("home", str(outside)),
        link("tmp", str(outside)),
        link(".cloister", str(outside)),
        *(link(f"etc/{name}", str(outside / name)) for name in ("passwd", "hosts", "shadow")),
        folder("etc/resolv.conf"),
        link("etc/skel", str(outside)),
    )
    rootfs = await unpacked(templates, layout(tmp_path / "image", evil))
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        ("passwd", "hosts", "shadow"), "untouched"
    )
    assert (rootfs / "etc/passwd").read_text().startswith("agent:x:1000:1000::/home/agent:/bin/sh\n")
    assert (rootfs / "work").stat().st_uid == 1000
    assert stat.S_ISDIR((rootfs / "home/agent").lstat().st_mode)


async def test_an_etc_that_is_a_link_is_refused(templates: Templates, tmp_path: Path) -> None:
    image = layout(tmp_path / "image", layer(folder("bin"), link("etc", "/etc")))
    with pytest.raises(UserError) as refused:
        await unpacked(templates, image)
    assert refused.value.code == "bad_image"
    assert templates.find("image") is None
    assert "agent" not in {user.pw_name for user in pwd.getpwall()}


async def test_devices_setuid_bits_and_privileged_attributes_do_not_survive(
    templates: Templates, tmp_path: Path
) -> None:
    evil = layer(
        *busybox(),
        member("disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0, mode=0o666),
        member("mem", type=tarfile.CHRTYPE, devmajor=1, devminor=1, mode=0o666),
        member("pipe", type=tarfile.FIFOTYPE, mode=0o666),
        member("root-shell", b"#!/bin/sh\n", mode=0o6755),
        member("odd", b"", pax_headers={"SCHILY.xattr.trusted.overlay.metacopy": "x"}),
        member("capable", b"", pax_headers={"SCHILY.xattr.user.kept": "y"}),
    )
    rootfs = await unpacked(templates, layout(tmp_path / "image", evil))
    names = {path.name for path in rootfs.iterdir()}
    assert names & {"disk", "mem"} == set()
    assert stat.S_IMODE((rootfs / "root-shell").stat().st_mode) == 0o755
    assert os.listxattr(rootfs / "odd") == []
    assert os.listxattr(rootfs / "capable") == ["user.kept"]
    assert stat.S_IMODE(rootfs.parent.stat().st_mode) == 0o700, "no other user of this machine looks in"


PASSWD = b"root:x:0:0::/root:/bin/sh\ndev:x:1234:1234::/home/dev:/bin/sh\nagent:x:77:77::/:/bin/false\n"


async def test_the_agent_is_the_user_that_the_recipe_names(templates: Templates, tmp_path: Path) -> None:
    tree = layer(
        *busybox(),
        member("etc/passwd", PASSWD),
        folder("home"),
        folder("home/dev", uid=1234, gid=1234),
        member("home/dev/tool", b"", uid=1234, gid=1234),
        link("home/dev/way", "/etc/passwd"),
        member("home/dev/foreign", b"", uid=5),
    )
    rootfs = await unpacked(templates, layout(tmp_path / "image", tree), user="dev")
    about = templates.info("image").about
    assert about is not None and about.home == "/home/dev"
    assert (rootfs / "etc/passwd").read_text().splitlines() == [
        "agent:x:1000:1000::/home/dev:/bin/sh",
        "root:x:0:0::/root:/bin/sh",
        "dev:x:1000:1000::/home/dev:/bin/sh",
    ]
    assert (rootfs / "home/dev/tool").stat().st_uid == 1000
    assert (rootfs / "home/dev/foreign").stat().st_uid == 5
    assert os.stat("/etc/passwd").st_uid == 0  # noqa: PTH116


async def test_a_user_whom_the_image_lacks_is_named_in_the_refusal(
    templates: Templates, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no user nobody-here"):
        await unpacked(templates, layout(tmp_path / "image", layer(*busybox())), user="nobody-here")
    assert "no user nobody-here" in templates.log("image")


async def test_an_image_that_would_fill_the_disk_is_given_up(templates: Templates, tmp_path: Path) -> None:
    image = layout(tmp_path / "image", layer(*busybox()))
    disk = DiskReserve(reserve_bytes=shutil.disk_usage(tmp_path).total * 2)
    with pytest.raises(HostError) as refused:
        await unpacked(Templates(tmp_path / "templates", PATH, disk), image)
    assert refused.value.code == "no_disk"
    assert [path.name for path in (tmp_path / "templates").glob(".building-*")] == []


@pytest.fixture
def registry(tmp_path: Path) -> Generator[str]:
    """A registry of our own on loopback; its `host:port`."""
    needs("docker-registry", "skopeo")
    # Bound here for as long as the registry listens there, so that nobody else is given the port.
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port: int = kept.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\nlog: {{level: error}}\n"
    )
    with (
        kept,
        subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/v2/", trust_env=False)
                    break
                except httpx.HTTPError:
                    assert process.poll() is None and time.monotonic() < deadline, (
                        "the registry did not start"
                    )
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def push(image: Path, *to: str) -> None:
    argv = ["skopeo", "--insecure-policy", "copy", "--quiet", f"oci:{image}:latest", *to]
    subprocess.run(argv, check=True)


async def test_an_image_comes_from_a_registry_a_layout_and_a_tar_file_alike(
    templates: Templates, registry: str, tmp_path: Path
) -> None:
    image = layout(tmp_path / "image", layer(*busybox(), member("hello", b"there")), Env=["A=b"])
    push(image, "--dest-tls-verify=false", f"docker://{registry}/some/tool:v1")
    push(image, f"docker-archive:{tmp_path}/saved.tar:some/tool:v1")
    push(image, f"oci-archive:{tmp_path}/oci.tar:v1")
    sources = {
        "registry": f"{registry}/some/tool:v1",
        "layout": str(image),
        "tagged": f"{image}:latest",
        "docker-save": f"{tmp_path}/saved.tar",
        "oci-archive": f"{tmp_path}/oci.tar",
    }
    for name, source in sources.items():
        templates.keep_recipe(name, Oci(source, tls=False))
        await templates.prepare(name, quiet)
        built = templates.built(name)
        assert built is not None
        assert (built.rootfs / "hello").read_text() == "there"
        assert built.about.env == {"A": "b"}


async def test_an_image_that_is_not_there_is_explained(
    templates: Templates, registry: str, tmp_path: Path
) -> None:
    templates.keep_recipe("missing", Oci(f"{registry}/no/such:thing", tls=False))
    with pytest.raises(HostError) as failed:
        await templates.prepare("missing", quiet)
    assert failed.value.code == "template_failed"
    for image in (f"{tmp_path}/nowhere", "https://somewhere.example/x"):
        with pytest.raises(UserError) as refused:
            source_of(image)
        assert refused.value.code == "no_image"
    (tmp_path / "text").write_text("not a tar file")
    with pytest.raises(UserError, match="not a tar file"):
        source_of(f"{tmp_path}/text")


async def test_a_dockerfile_runs_with_ids_of_its_own_and_without_a_network(
    templates: Templates, tmp_path: Path
) -> None:
    needs("buildah", "runc")
    context = tmp_path / "context"
    context.mkdir()
    (context / "root.tar").write_bytes(layer(*busybox()))
    (context / "Dockerfile").write_text(
        "FROM scratch\nARG WHO\nADD root.tar /\nENV MADE=here PATH=/bin\n"
        "RUN cat /proc/self/uid_map > /map; ls /sys/class/net > /net; echo $WHO > /who\n"
    )
    templates.keep_recipe("built", Dockerfile(str(context), args={"WHO": "me"}))
    notes: list[str] = []

    def note_down(fraction: float | None, note: str) -> None:
        notes.append(note)

    await templates.prepare("built", note_down)
    built = templates.built("built")
    assert built is not None
    assert (built.rootfs / "map").read_text().split()[:2] == ["0", str(0x6FFF0000)]
    assert (built.rootfs / "net").read_text() == "lo\n"
    assert (built.rootfs / "who").read_text() == "me\n"
    assert (built.rootfs / "bin/busybox").stat().st_uid == 0
    assert built.about.env == {"MADE": "here", "PATH": "/bin"}
    assert any(note.startswith("RUN cat") for note in notes)
    assert {path.name for path in built.home.iterdir()} == {"rootfs", "about.json", "complete"}


async def test_a_dockerfile_that_fails_says_why(templates: Templates, tmp_path: Path) -> None:
    needs("buildah", "runc")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY nothing /\n")
    templates.keep_recipe("broken", Dockerfile(str(tmp_path)))
    with pytest.raises(HostError, match="nothing"):
        await templates.prepare("broken", quiet)
    templates.keep_recipe("absent", Dockerfile(str(tmp_path / "elsewhere")))
    with pytest.raises(UserError) as refused:
        await templates.prepare("absent", quiet)
    assert refused.value.code == "no_dockerfile"
