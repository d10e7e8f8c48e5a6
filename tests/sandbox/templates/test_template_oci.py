"""Images become templates; what is hostile in them stays harmless and reaches nothing of this machine."""

import os
import pwd
import re
import shutil
import stat
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cloister.core.computer import Command
from cloister.core.errors import HostError, UserError
from cloister.core.requests import Quota
from cloister.forge import Forges
from cloister.runs.templates import Workshop
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.templates.building import Build, DiskReserve
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.oci import fetch, read_layout, source_of
from cloister.sandbox.templates.recipes import Oci
from cloister.testing.samples import busybox, folder, layer, layout, link, member, push

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
def shop(own_host: ContainerHost, own_dir: Path) -> Workshop:
    needs("skopeo", "busybox")
    return Workshop(own_host.templates, own_host, Forges(), None, Quota(), own_dir / "repositories")


async def unpacked(shop: Workshop, image: Path, user: str | None = None) -> Path:
    shop.templates.keep_recipe("image", Oci(str(image), user=user))
    return (await shop.prepare("image", quiet)).rootfs


async def test_a_sandbox_made_from_an_image_has_its_environment_and_its_files(
    shop: Workshop, own_host: ContainerHost, tmp_path: Path
) -> None:
    base = layer(*busybox(), member("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"), member("gone", b"old"))
    top = layer(member(".wh.gone"), member("opt", b"new"))
    image = layout(
        tmp_path / "image", base, top, Env=["PATH=/bin:/opt/tools", "GREETING=good day", "HOME=/evil"]
    )
    own_host.templates.keep_recipe("tiny", Oci(str(image)))
    await shop.prepare("tiny", quiet)
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


async def test_nothing_in_an_image_reaches_a_file_of_this_machine(shop: Workshop, tmp_path: Path) -> None:
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
        await unpacked(shop, image)
    except HostError as error:
        assert error.code == "template_failed", "refusing the whole image is as good"
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "untouched"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE])
async def test_a_root_that_is_no_directory_is_refused(shop: Workshop, tmp_path: Path, kind: bytes) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    first = layer(member(".", type=kind, linkname=str(outside) if kind == tarfile.SYMTYPE else ""))
    image = layout(tmp_path / "image", first, layer(member("made", b"evil")))
    try:
        rootfs = await unpacked(shop, image)
    except (HostError, UserError) as error:
        assert error.code in ("template_failed", "bad_image")
    else:
        assert stat.S_ISDIR(rootfs.lstat().st_mode)
    assert list(outside.iterdir()) == []


async def test_links_where_we_write_are_not_followed(shop: Workshop, tmp_path: Path) -> None:
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
    rootfs = await unpacked(shop, layout(tmp_path / "image", evil))
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        ("passwd", "hosts", "shadow"), "untouched"
    )
    assert (rootfs / "etc/passwd").read_text().startswith("agent:x:1000:1000::/home/agent:/bin/sh\n")
    assert (rootfs / "work").stat().st_uid == 1000
    assert stat.S_ISDIR((rootfs / "home/agent").lstat().st_mode)


async def test_an_etc_that_is_a_link_is_refused(shop: Workshop, tmp_path: Path) -> None:
    image = layout(tmp_path / "image", layer(folder("bin"), link("etc", "/etc")))
    with pytest.raises(UserError) as refused:
        await unpacked(shop, image)
    assert refused.value.code == "bad_image"
    assert shop.templates.find("image") is None
    assert "agent" not in {user.pw_name for user in pwd.getpwall()}


async def test_devices_setuid_bits_and_privileged_attributes_do_not_survive(
    shop: Workshop, tmp_path: Path
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
    rootfs = await unpacked(shop, layout(tmp_path / "image", evil))
    names = {path.name for path in rootfs.iterdir()}
    assert names & {"disk", "mem"} == set()
    assert stat.S_IMODE((rootfs / "root-shell").stat().st_mode) == 0o755
    assert os.listxattr(rootfs / "odd") == []
    assert os.listxattr(rootfs / "capable") == ["user.kept"]
    assert stat.S_IMODE(rootfs.parent.stat().st_mode) == 0o700, "no other user of this machine looks in"


PASSWD = b"root:x:0:0::/root:/bin/sh\ndev:x:1234:1234::/home/dev:/bin/sh\nagent:x:77:77::/:/bin/false\n"


async def test_the_agent_is_the_user_that_the_recipe_names(shop: Workshop, tmp_path: Path) -> None:
    tree = layer(
        *busybox(),
        member("etc/passwd", PASSWD),
        folder("home"),
        folder("home/dev", uid=1234, gid=1234),
        member("home/dev/tool", b"", uid=1234, gid=1234),
        link("home/dev/way", "/etc/passwd"),
        member("home/dev/foreign", b"", uid=5),
    )
    rootfs = await unpacked(shop, layout(tmp_path / "image", tree), user="dev")
    about = shop.templates.info("image").about
    assert about is not None and about.home == "/home/dev"
    assert (rootfs / "etc/passwd").read_text().splitlines() == [
        "agent:x:1000:1000::/home/dev:/bin/sh",
        "root:x:0:0::/root:/bin/sh",
        "dev:x:1000:1000::/home/dev:/bin/sh",
    ]
    assert (rootfs / "home/dev/tool").stat().st_uid == 1000
    assert (rootfs / "home/dev/foreign").stat().st_uid == 5
    assert os.stat("/etc/passwd").st_uid == 0  # noqa: PTH116


async def test_a_user_whom_the_image_lacks_is_named_in_the_refusal(shop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no user nobody-here"):
        await unpacked(shop, layout(tmp_path / "image", layer(*busybox())), user="nobody-here")
    assert "no user nobody-here" in shop.templates.log("image")


ODD_SETTINGS: tuple[dict[str, object], ...] = (
    {"User": "\u00b2"},
    {"User": "9" * 5_000, "WorkingDir": "a\0b"},
    {"Env": ["A=\0", "=x", "B", "\u00b2=1", *(f"A{number}={'x' * 20_000}" for number in range(150))]},
)


async def test_the_settings_of_a_hostile_image_are_harmless(shop: Workshop, tmp_path: Path) -> None:
    users = "a:x:1:\u00b2::/:/bin/sh\nb:x:{0}:{0}::/:/x\n".format("1" * 5_000)
    files = layer(*busybox(), member("etc/passwd", users.encode()))
    for number, config in enumerate(ODD_SETTINGS):
        shop.templates.keep_recipe("odd", Oci(str(layout(tmp_path / str(number), files, **config))))
        about = (await shop.prepare("odd", quiet)).about
        assert sum(map(len, about.env.values())) <= 32_768
        async with shop.host.open(SandboxSpec(template="odd")) as sandbox:
            assert (await sandbox.run(Command(("/bin/busybox", "echo", "runs")))).out == b"runs\n"


async def test_an_image_that_would_fill_the_disk_is_given_up(
    shop: Workshop, own_dir: Path, tmp_path: Path
) -> None:
    image = layout(tmp_path / "image", layer(*busybox()))
    disk = DiskReserve(reserve_bytes=shutil.disk_usage(tmp_path).total * 2)
    full = replace(shop, templates=Templates(own_dir / "templates", PATH, disk))
    with pytest.raises(HostError) as refused:
        await unpacked(full, image)
    assert refused.value.code == "no_disk"
    assert [path.name for path in (own_dir / "templates").glob(".building-*")] == []


async def test_an_image_comes_from_a_registry_a_layout_and_a_tar_file_alike(
    shop: Workshop, registry: str, tmp_path: Path
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
        shop.templates.keep_recipe(name, Oci(source, tls=False))
        await shop.prepare(name, quiet)
        built = shop.templates.built(name)
        assert built is not None
        assert (built.rootfs / "hello").read_text() == "there"
        assert built.about.env == {"A": "b"}


async def test_an_image_that_is_not_there_is_explained(shop: Workshop, registry: str, tmp_path: Path) -> None:
    shop.templates.keep_recipe("missing", Oci(f"{registry}/no/such:thing", tls=False))
    with pytest.raises(HostError) as failed:
        await shop.prepare("missing", quiet)
    assert failed.value.code == "template_failed"
    for image in (f"{tmp_path}/nowhere", "https://somewhere.example/x"):
        with pytest.raises(UserError) as refused:
            source_of(image)
        assert refused.value.code == "no_image"
    (tmp_path / "text").write_text("not a tar file")
    with pytest.raises(UserError, match="not a tar file"):
        source_of(f"{tmp_path}/text")


def put_script(path: Path, lines: tuple[str, ...]) -> None:
    """A program that every user may run."""
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    for each in (path, path.parent):
        each.chmod(0o755)


async def test_the_program_that_downloads_images_has_no_privileges_and_sees_no_file_of_ours(
    tmp_path: Path,
) -> None:
    """A program in place of skopeo tries all it could."""
    home, secret = tmp_path / "data" / "build", tmp_path / "data" / "token"
    home.mkdir(parents=True)
    secret.write_text("root only")
    secret.chmod(0o600)
    tries = (
        *("echo user $(id -u) groups $(id -G)", "grep CapEff /proc/self/status", "echo home $HOME"),
        *("echo logins $(cat logins.json)", f"cat {secret}", f"touch {home}/made", "exit 1"),
    )
    with tempfile.TemporaryDirectory() as tools:
        put_script(Path(tools, "skopeo"), tries)
        work = Build("image", home, f"{tools}:{PATH}", quiet, tmp_path / "log")
        with pytest.raises(HostError, match="could not be built"):
            await fetch(work, "docker://registry.example/image", home / "image", tls=True)
    heard = (tmp_path / "log").read_text()
    found = re.search(r"^user (\d+) groups (\d+)$", heard, re.MULTILINE)
    assert found and int(found[1]) > 65_535 and found[1] == found[2]
    assert re.search(r"^CapEff:\s*0{16}$", heard, re.MULTILINE)
    assert "logins {}\n" in heard and "home /nonexistent\n" in heard
    assert "root only" not in heard
    assert list(home.iterdir()) == []


async def test_a_link_in_a_downloaded_layout_is_not_followed(tmp_path: Path) -> None:
    image = layout(tmp_path / "image", layer(member("a", b"x")))
    index = image / "index.json"
    index.rename(tmp_path / "elsewhere.json")
    index.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_layout(image)
