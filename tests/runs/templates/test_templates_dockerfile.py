"""Dockerfiles are built inside sandboxes: what a hostile one tries reaches nothing, and an honest one works."""

import gzip
import os
import secrets
import shutil
import socket
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import anyio
import pytest
from anyio.abc import ByteStream

from cloister.core.computer import Command
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.ids import SandboxId, new_owner_id
from cloister.core.requests import Quota
from cloister.forge import Forges
from cloister.runs.images.image_build import BuildLimits
from cloister.runs.images.registries import check_registry
from cloister.runs.templates import Workshop
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.guest_build import guest_sources, source_dir
from cloister.sandbox.templates.building import Built
from cloister.sandbox.templates.recipes import Devcontainer, Dockerfile, Oci
from cloister.testing.samples import SampleRepo, busybox, folder, layer, layout, link, member, push

pytestmark = pytest.mark.anyio

PATH = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


def quiet(fraction: float | None, note: str) -> None:
    del fraction, note


@pytest.fixture
def shop(own_host: ContainerHost, own_dir: Path) -> Workshop:
    if shutil.which("skopeo") is None or shutil.which("busybox") is None:
        pytest.skip("not installed: skopeo, busybox (scripts/install dev)")
    return Workshop(own_host.templates, own_host, Forges(), None, Quota(), own_dir / "repositories")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context whose first lines no other build has, so that nothing of an earlier test is reused."""
    at = tmp_path / "context"
    at.mkdir()
    (at / "root.tar").write_bytes(layer(*busybox(), folder("tmp", mode=0o1777)))
    (at / "token").write_text(secrets.token_hex(8))
    return at


HEAD = "FROM scratch\nADD root.tar /\nCOPY token /token\n"


async def build(shop: Workshop, context: Path, text: str, **more: object) -> Built:
    (context / "Dockerfile").write_text(text)
    shop.templates.keep_recipe("built", Dockerfile(str(context), **more))  # type: ignore[arg-type]
    return await shop.prepare("built", quiet, again=True)


def building(shop: Workshop) -> list[str]:
    return [path.name for path in shop.templates.directory.glob(".building-*")]


async def refusal(shop: Workshop, context: Path, text: str, **more: object) -> str:
    """Why the build was refused; nothing is left of it."""
    with pytest.raises(CloisterError) as refused:
        await build(shop, context, text, **more)
    assert refused.value.code in ("bad_dockerfile", "template_failed", "no_image", "no_dockerfile")
    assert building(shop) == []
    return refused.value.message


# The ways to the host that a repository had.


async def test_a_dockerfile_with_an_include_takes_in_no_file_of_this_machine(
    shop: Workshop, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ENV STOLEN=token\n")
    repo = SampleRepo(tmp_path / "repo")
    repo.write(".devcontainer/devcontainer.json", '{"build": {"dockerfile": "Dockerfile.in"}}')
    repo.write(".devcontainer/Dockerfile.in", f'FROM scratch\n#include "{secret}"\nADD root.tar /\n')
    (repo.path / ".devcontainer/root.tar").write_bytes(layer(*busybox()))
    repo.commit()
    shop.templates.keep_recipe("dev", Devcontainer(str(repo.path)))
    built = await shop.prepare("dev", quiet)
    assert "STOLEN" not in built.about.env
    assert "token" not in shop.templates.log("dev-image")


async def test_a_bind_mount_of_a_link_to_the_root_shows_the_context_and_nothing_else(
    shop: Workshop, context: Path, tmp_path: Path
) -> None:
    evil = tmp_path / "evil"
    (context / "link").symlink_to("/")
    (context / "far").symlink_to(tmp_path)
    line = f"ls /mnt > /seen; mkdir -p /mnt{tmp_path}; echo x > /mnt{evil}"
    built = await build(
        shop, context, f"{HEAD}RUN --mount=type=bind,source=link,target=/mnt,rw {line}\nRUN ls / > /after\n"
    )
    assert set((built.rootfs / "seen").read_text().split()) == {
        "Dockerfile",
        "far",
        "link",
        "root.tar",
        "token",
    }
    assert not evil.exists()
    assert "mnt" not in (built.rootfs / "after").read_text().split(), "a mount is no part of the image"
    why = await refusal(shop, context, f"{HEAD}RUN --mount=source=far,target=/mnt true\n")
    assert "leads out of it" in why


async def test_an_address_is_not_fetched_by_add(shop: Workshop, context: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        for source in (f"http://127.0.0.1:{port}/x", f"https://127.0.0.1:{port}/x", f"$WHERE:{port}/x.git"):
            why = await refusal(
                shop, context, f"FROM scratch\nARG WHERE=git://127.0.0.1\nADD {source} /x\n", network=True
            )
            assert "RUN" in why
        for source in ("git@127.0.0.1:a/b.git", "example.org/a/b.git#main", "ssh://git@127.0.0.1/x"):
            assert "RUN" in await refusal(shop, context, f"FROM scratch\nADD {source} /x\n")
        with pytest.raises(BlockingIOError):
            server.accept()


LAYOUTS = ("{at}", "{at}:latest", "oci:{at}:latest", "oci:{at}", "dir:{at}", "docker-archive:{at}/x.tar", "./image",
           "containers-storage:x", "docker-daemon:x:latest", "oci-archive:{at}", "ostree:x@{at}", "../image", "~/image",
           "docker://{at}", "docker:///{at}", "file://{at}", "sif:{at}", "tarball:{at}", "-x", "user:pass@host/x")  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
async def test_a_repository_names_images_of_registries_only(
    shop: Workshop, tmp_path: Path, name: str
) -> None:
    at = layout(tmp_path / "image", layer(*busybox()))
    image = name.format(at=at)
    repo = SampleRepo(tmp_path / "repo")
    for text, dockerfile in (
        (f'{{"image": "{image}"}}', ""),
        ('{"build": {"dockerfile": "Dockerfile"}}', f"FROM {image}\n"),
        ('{"build": {"dockerfile": "Dockerfile"}}', f"ARG X={image}\nFROM $X\n"),
        ('{"build": {"dockerfile": "Dockerfile"}}', f"FROM scratch\nCOPY --from={image} / /\n"),
        (
            '{"build": {"dockerfile": "Dockerfile"}}',
            f"FROM scratch\nRUN --mount=from={image},target=/x true\n",
        ),
    ):
        repo.write(".devcontainer/devcontainer.json", text)
        repo.write(".devcontainer/Dockerfile", dockerfile)
        repo.commit()
        shop.templates.keep_recipe("dev", Devcontainer(str(repo.path)))
        with pytest.raises(UserError) as refused:
            await shop.prepare("dev", quiet)
        assert refused.value.code in ("no_image", "bad_dockerfile")
        assert shop.templates.find("dev") is None


@pytest.mark.parametrize(
    "host", ["127.0.0.1:5000", "localhost:5000", "[::1]:5000", "169.254.169.254", "0.0.0.0:80"]
)
async def test_a_repository_does_not_choose_a_registry_on_this_machine(host: str) -> None:
    with pytest.raises(UserError) as refused:
        await check_registry(f"docker://{host}/some/tool:v1")
    assert refused.value.code == "no_image"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN --mount=type=secret,id=x cat /run/secrets/x", "no secrets"),
        ("RUN --mount=type=ssh true", "no secrets"),
        ("RUN --mount=type=other,target=/x true", "not supported"),
        ("RUN --mount=type=bind,source=token true", "target"),
        ("RUN --security=insecure true", "sandbox"),
        ("RUN --network=host true", "sandbox"),
        ("RUN --device=/dev/kvm true", "not supported"),
        ("ONBUILD RUN true", "not supported"),
        ("COPY --parents a /", "not supported"),
        ("INCLUDE x", "not an instruction"),
    ],
)
async def test_options_that_would_reach_out_are_refused_in_one_sentence(
    shop: Workshop, context: Path, line: str, why: str
) -> None:
    said = await refusal(shop, context, f"FROM scratch\n{line}\n")
    assert why in said and "\n" not in said


async def test_a_copy_of_very_many_sources_keeps_no_other_task_waiting(shop: Workshop, context: Path) -> None:
    """Comparing each source with each archive took minutes of the event loop."""
    names = [f"{number}.tar" for number in range(1_001)]
    assert "at most 1,000 sources" in await refusal(shop, context, f"{HEAD}ADD {' '.join(names)} /x/\n")
    again = " ".join(["token"] * 900)
    built = await build(shop, context, f"{HEAD}COPY {again} /x/\n")
    assert [path.name for path in (built.rootfs / "x").iterdir()] == ["token"]


UNTAKEN = (
    'RUN ["echo", "\\ud800"]',
    'RUN ["echo", "a\\u0000b"]',
    "RUN echo a\0b",
    'COPY ["token", "/\\ud800"]',
    'COPY ["token", "/a\\u0000b"]',
    "USER \u00b2\nRUN true",
    f"USER {'9' * 5_000}\nRUN true",
    "COPY --chown=1:\u00b2 token /x",
    "ENV A=\0\nRUN true",
    "WORKDIR /a\0b",
    "RUN echo a:x:1:\u00b2::/:/bin/sh > /etc/passwd\nUSER a\nRUN true",
    f"RUN echo g:x:{'1' * 5_000}: > /etc/group\nUSER 0:g\nRUN true",
)


async def test_text_that_no_program_takes_is_refused_in_one_sentence(shop: Workshop, context: Path) -> None:
    for lines in UNTAKEN:
        assert await refusal(shop, context, f"{HEAD}{lines}\n"), lines


async def test_variables_in_a_text_do_not_multiply_it(shop: Workshop, context: Path) -> None:
    text = f"FROM scratch\nENV A={'x' * 60_000}\nCOPY <<E /a\n{'$A' * 400_000}\nE\n"
    assert "expand to more than" in await refusal(shop, context, text)


async def test_many_copies_of_a_large_context_are_not_held_in_memory(shop: Workshop, context: Path) -> None:
    """All steps are planned before the first one runs. The last cannot be, so none does."""
    for number in range(500):
        (context / f"a-file-of-the-context-{number}").touch()
    lines = "".join(f"COPY . /copy-{number}/\n" for number in range(120))
    tracemalloc.start()
    try:
        assert "there is no missing" in await refusal(shop, context, f"FROM scratch\n{lines}COPY missing /\n")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 12_000_000


async def test_files_that_an_operators_login_fetched_are_not_a_repositorys(
    shop: Workshop, registry: str, context: Path, tmp_path: Path
) -> None:
    image = layout(tmp_path / "image", layer(*busybox(), member("private", os.urandom(8))), Env=["PATH=/bin"])
    push(image, "--dest-tls-verify=false", f"docker://{registry}/team/private:v1")
    built = await build(shop, context, f"FROM {registry}/team/private:v1\n", tls=False)
    private = (built.rootfs / "private").read_bytes()
    source = f"{registry}/team/private@{built.about.digest}"
    shutil.rmtree(tmp_path / "registry")  # the registry no longer serves the image
    again = await build(shop, context, f"FROM {source}\nENV A=1\n", tls=False)
    assert (again.rootfs / "private").read_bytes() == private
    repo = SampleRepo(tmp_path / "repo")
    repo.write(".devcontainer/devcontainer.json", '{"build": {"dockerfile": "Dockerfile"}}')
    repo.write(".devcontainer/Dockerfile", f"FROM {source}\nENV A=1\n")
    repo.commit()
    shop.templates.keep_recipe("dev", Devcontainer(str(repo.path), tls=False))
    with pytest.raises(HostError, match="could not be built"):
        await shop.prepare("dev", quiet)


async def test_copies_do_not_follow_links_out_of_the_context(
    shop: Workshop, context: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("hidden words")
    (context / "out").symlink_to(tmp_path / "secret")
    (context / "up").symlink_to("../secret")
    (context / "around").symlink_to(tmp_path)
    (context / "deep").mkdir()
    (context / "deep/out").symlink_to(tmp_path / "secret")
    (context / "near").symlink_to("token")
    for source in (
        "out",
        "up",
        "around",
        "around/secret",
        "../secret",
        str(tmp_path / "secret"),
        "o*t",
        "around/s*",
    ):
        for verb in ("COPY", "ADD"):
            assert "hidden" not in await refusal(shop, context, f"FROM scratch\n{verb} {source} /x\n")
    built = await build(shop, context, f"{HEAD}COPY deep /deep\nCOPY near /near\n")
    assert (built.rootfs / "deep/out").is_symlink(), "in a directory a link stays a link"
    assert (built.rootfs / "near").read_text() == (context / "token").read_text()


async def test_a_link_as_dockerfile_or_context_leads_nowhere(
    shop: Workshop, context: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("FROM scratch\nENV A=hidden\n")
    (context / "Other").symlink_to(tmp_path / "secret")
    shop.templates.keep_recipe("built", Dockerfile(str(context), dockerfile="Other"))
    with pytest.raises(UserError) as refused:
        await shop.prepare("built", quiet)
    assert refused.value.code == "no_dockerfile"
    assert "hidden" not in refused.value.message


# Limits.


async def test_steps_have_the_limits_of_a_sandbox(shop: Workshop, context: Path) -> None:
    small = replace(shop, quota=Quota(processes=32, memory_bytes=128 * 2**20, disk_bytes=64 * 2**20))
    why = await refusal(small, context, f"{HEAD}RUN busybox dd if=/dev/zero of=/big bs=1048576 count=200\n")
    assert "RUN" in why
    bomb = "b() { b | b & }; b; b; b; for i in 1 2 3; do busybox usleep 200000; done; true"
    try:
        await build(small, context, f"{HEAD}RUN {bomb}\n")
    except CloisterError as error:
        assert error.code in ("template_failed", "sandbox_lost")
    built = await build(shop, context, f"{HEAD}RUN cat /proc/self/uid_map > /map; cat /proc/net/dev > /net\n")
    inside, outside, _ = (built.rootfs / "map").read_text().split()
    assert inside == "0" and int(outside) >= 65_536, "root inside is no user of this machine"
    cards = [line.partition(":")[0].strip() for line in (built.rootfs / "net").read_text().splitlines()[2:]]
    assert cards == ["lo"]


async def test_a_build_that_never_ends_is_ended_and_leaves_nothing(shop: Workshop, context: Path) -> None:
    hasty = replace(shop, bounds=BuildLimits(seconds=4.0))
    assert "4 s" in await refusal(hasty, context, f"{HEAD}RUN while :; do :; done\n")


async def test_a_build_can_be_cancelled(shop: Workshop, context: Path) -> None:
    (context / "Dockerfile").write_text(f"{HEAD}RUN while :; do :; done\n")
    shop.templates.keep_recipe("built", Dockerfile(str(context)))
    async with anyio.create_task_group() as tasks:

        def watch(fraction: float | None, note: str) -> None:
            if note.startswith("RUN"):
                tasks.cancel_scope.cancel()

        tasks.start_soon(shop.prepare, "built", watch)
    assert building(shop) == []
    assert shop.templates.find("built") is None


def zeros(name: str, size: int) -> bytes:
    """An archive with one file of zeros, compressed a thousandfold."""
    info = tarfile.TarInfo(name)
    info.size = size
    return gzip.compress(info.tobuf() + bytes(size) + bytes(-size % 512 + 1024))


LARGE = 64 * 2**20


@pytest.mark.parametrize("how", ["layer", "add"])
async def test_an_archive_that_grows_beyond_the_limit_is_refused(
    shop: Workshop, context: Path, tmp_path: Path, how: str
) -> None:
    small = replace(shop, bounds=BuildLimits(image_bytes=16 * 2**20))
    if how == "add":
        (context / "bomb.tar.gz").write_bytes(zeros("zeros", LARGE))
        assert "larger than the limit" in await refusal(small, context, f"{HEAD}ADD bomb.tar.gz /\n")
        return
    small.templates.keep_recipe("large", Oci(str(layout(tmp_path / "image", zeros("zeros", LARGE)))))
    with pytest.raises(HostError, match="larger than the limit"):
        await small.prepare("large", quiet)
    assert building(small) == []


def extended(size: int, times: int) -> bytes:
    """Headers that describe no file: `times` of `size` bytes."""
    text = b"comment=" + b"x" * size + b"\n"
    record = f"{len(text) + 8} ".encode().rjust(8, b"0") + text
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    return (info.tobuf() + record + bytes(-len(record) % 512)) * times + bytes(1024)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: extended(2 * 2**20, 1), "too large"),
        (lambda: extended(500_000, 40), "larger than the limit"),
        (lambda: extended(10, 300), "more entries"),
        (lambda: layer(*(member(f"f{n}") for n in range(300))), "more entries"),
        (lambda: layer(member("a/" * 3_000 + "b")), "too long"),
        (lambda: layer(link("way", "/nowhere/victim", tarfile.LNKTYPE)), "No such file"),
        (lambda: b"not an archive" * 100, "not a tar"),
        (lambda: layer(*busybox())[:5_000], "too early"),
    ],
)
async def test_hostile_archives_are_refused_with_a_reason(
    shop: Workshop, tmp_path: Path, made: Callable[[], bytes], why: str
) -> None:
    small = replace(shop, bounds=BuildLimits(image_bytes=16 * 2**20, entries=200))
    small.templates.keep_recipe("hostile", Oci(str(layout(tmp_path / "image", made()))))
    with pytest.raises(CloisterError) as refused:
        await small.prepare("hostile", quiet)
    assert why in refused.value.message
    assert shop.templates.find("hostile") is None


# What an honest Dockerfile needs.


async def test_the_language_of_dockerfiles(shop: Workshop, context: Path) -> None:
    for name in ("src/a.txt", "src/b.txt", "src/skip.log", "src/sub/c.txt"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name)
    (context / ".dockerignore").write_text("# not these\n**/*.log\n")
    text = (
        "# syntax=some/frontend\n# escape=`\nARG BASE=scratch\nFROM ${BASE} AS tools\nADD root.tar /\nCOPY token /\n"
        "ENV PATH=/bin GREETING=\"good `\n day\" EMPTY=''\nARG WHO=nobody\nARG UNSET\n"
        "LABEL a=b\nEXPOSE 80\nVOLUME /v\nCMD [\"x\"]\nHEALTHCHECK --interval=3s CMD x\nSTOPSIGNAL 9\n"
        "RUN echo 'user:x:1234:99::/home/user:/bin/sh' > /etc/passwd && echo 'staff:x:77:' > /etc/group\n"
        "WORKDIR /app\nWORKDIR sub\nRUN [\"/bin/sh\", \"-c\", \"echo $GREETING $WHO ${UNSET:-none} > said\"]\n"
        "COPY src /copied/\nCOPY src/*.txt flat/\nCOPY --chown=user:staff --chmod=750 token owned\nCOPY token /bin\n"
        "COPY <<EOF <<'RAW' texts/\nwho $WHO\nEOF\nwho $WHO\nRAW\n"
        "RUN <<EOF\necho one > /heredoc\necho two >> /heredoc\nEOF\n"
        "RUN cat <<EOF > /heredoc2\n$WHO\nEOF\n"
        "USER user\nRUN --mount=type=cache,target=/cache --mount=type=tmpfs,target=/scratch id > /tmp/id; echo $HOME >> /tmp/id\n"
        "SHELL [\"/bin/sh\", \"-ec\"]\nUSER 0:7\nRUN id >> /tmp/id\n"
        "FROM scratch AS unused\nRUN [\"/nothing\"]\n"
        "FROM tools\nCOPY --from=tools /app/sub/said /said\nCOPY --from=0 /copied /again\n"
    )  # fmt: skip
    built = await build(shop, context, text, args={"WHO": "me"})
    rootfs = built.rootfs
    assert (rootfs / "said").read_text() == "good day me none\n"
    assert built.about.env == {"PATH": "/bin", "GREETING": "good  day", "EMPTY": ""}
    copied = sorted(str(path.relative_to(rootfs)) for path in (rootfs / "copied").rglob("*"))
    assert copied == ["copied/a.txt", "copied/b.txt", "copied/sub", "copied/sub/c.txt"]
    assert sorted(path.name for path in (rootfs / "app/sub/flat").iterdir()) == ["a.txt", "b.txt"]
    assert (rootfs / "bin/token").is_file(), "into a directory that is there"
    owned = (rootfs / "app/sub/owned").stat()
    assert (owned.st_uid, owned.st_gid, owned.st_mode & 0o777) == (1234, 77, 0o750)
    assert (rootfs / "app/sub/texts/EOF").read_text() == "who me\n"
    assert (rootfs / "app/sub/texts/RAW").read_text() == "who $WHO\n"
    assert (rootfs / "heredoc").read_text() == "one\ntwo\n"
    assert (rootfs / "heredoc2").read_text() == "me\n"
    assert (rootfs / "tmp/id").read_text().split()[:3] == ["uid=1234(user)", "gid=99", "/home/user"]
    assert not (rootfs / "cache").exists() and not (rootfs / "scratch").exists()
    assert (rootfs / "again/sub/c.txt").read_text() == "src/sub/c.txt"
    log = shop.templates.log("built")
    assert "STEP 2/" in log and "unused" not in log
    assert {path.name for path in built.home.iterdir()} == {"rootfs", "about.json", "complete"}


async def test_a_target_stage_is_built_and_an_unknown_one_refused(shop: Workshop, context: Path) -> None:
    text = f"{HEAD.replace('scratch', 'scratch AS first')}FROM first AS second\nRUN exit 1\n"
    built = await build(shop, context, text, target="first")
    assert (built.rootfs / "token").is_file()
    shop.templates.keep_recipe("other", Dockerfile(str(context), target="third"))
    with pytest.raises(UserError, match="third"):
        await shop.prepare("other", quiet)


async def test_an_image_without_a_shell_is_refused_by_name(shop: Workshop, context: Path) -> None:
    with pytest.raises(UserError, match=r"has no shell \(`sh`\).* `FROM scratch` alone has none"):
        await build(shop, context, "FROM scratch\nCOPY token /token\n")
    assert building(shop) == []


async def test_a_failing_step_is_named_with_what_it_printed(shop: Workshop, context: Path) -> None:
    assert "status 3): it broke" in await refusal(shop, context, f"{HEAD}RUN echo it broke; exit 3\n")
    assert "nothing" in await refusal(shop, context, "FROM scratch\nCOPY nothing /\n")
    assert "/bin/sh" in await refusal(shop, context, "FROM scratch\nCOPY token /\nRUN true\n")


async def test_an_unchanged_prefix_is_not_run_again(shop: Workshop, context: Path) -> None:
    stamp = "RUN cat /proc/sys/kernel/random/uuid > /stamp\n"
    (context / "late").write_text("one")
    first = await build(shop, context, f"{HEAD}{stamp}COPY late /\nRUN echo 1 > /last\n")
    kept = (first.rootfs / "stamp").read_text()
    (context / "late").write_text("two")
    shop.templates.keep_recipe("again", Dockerfile(str(context)))
    second = await shop.prepare("again", quiet)
    assert (second.rootfs / "stamp").read_text() == kept
    assert (second.rootfs / "late").read_text() == "two"
    log = shop.templates.log("again")
    assert "cached: RUN cat" in log and "cached: COPY late" not in log and "cached: RUN echo" not in log
    (context / "token").write_text(secrets.token_hex(8))
    third = await shop.prepare("again", quiet, again=True)
    assert (third.rootfs / "stamp").read_text() != kept


async def test_cached_steps_are_bounded_also_on_a_store_that_copies(
    warm_dir: Path, context: Path, tmp_path: Path
) -> None:
    data = tmp_path / "plain"
    data.mkdir(mode=0o700)
    for name in ("programs", "runtimes.json"):
        (data / name).symlink_to(warm_dir / name)
    owner = new_owner_id()
    with Owners(data / "owners").hold(owner):
        host = ContainerHost(data, owner, None, PATH, store="overlay")
        shop = Workshop(host.templates, host, Forges(), None, Quota(), data / "r", BuildLimits(steps=2))
        built = await build(
            shop, context, f"{HEAD}RUN echo 1 > /a\nRUN rm /token; echo 2 > /b\nRUN echo 3 > /c\n"
        )
        assert (built.rootfs / "c").read_text() == "3\n" and not (built.rootfs / "token").exists()
        assert len(await host.snapshots()) == 2
        async with host.open(SandboxSpec(template="built")) as sandbox:
            assert await sandbox.read("/b") == b"2\n"
        await host.close()


async def test_a_base_image_comes_by_digest_and_its_settings_hold(
    shop: Workshop, registry: str, context: Path, tmp_path: Path
) -> None:
    for number in ("1", "2"):
        made = layer(*busybox(), folder("srv"), member("which", number.encode()), member("t", os.urandom(8)))
        image = layout(
            tmp_path / number, made, Env=["PATH=/bin", "FROM_IMAGE=yes"], WorkingDir="/srv", User="5:6"
        )
        push(image, "--dest-tls-verify=false", f"docker://{registry}/base:v1")
        text = f"FROM {registry}/base:v1\nRUN id; pwd; echo $FROM_IMAGE\nFROM scratch\nCOPY --from={registry}/base:v1 / /\n"
        (context / "Dockerfile").write_text(text)
        shop.templates.keep_recipe("based", Dockerfile(str(context), target="0", tls=False))
        built = await shop.prepare("based", quiet, again=True)
        assert (built.rootfs / "which").read_text() == number, "a tag that moved is another image"
        assert "uid=5 gid=6\n/srv\nyes" in shop.templates.log("based")
        assert built.about.digest is not None
    shop.templates.keep_recipe("copied", Dockerfile(str(context), tls=False))
    assert ((await shop.prepare("copied", quiet)).rootfs / "which").read_text() == "2"
    assert "cached" not in shop.templates.log("based")


async def test_steps_reach_the_proxy_only_when_the_recipe_allows_a_network(
    shop: Workshop, context: Path
) -> None:
    callers: list[SandboxId] = []

    async def door(sandbox: SandboxId, stream: ByteStream) -> None:
        callers.append(sandbox)
        await stream.send(b"hello from the proxy\n")

    open_shop = replace(shop, door=door)
    line = "RUN busybox nc 127.0.0.1 3128 < /dev/null > /said; true\n"
    built = await build(open_shop, context, HEAD + line)
    assert callers == [] and (built.rootfs / "said").read_text() == ""
    built = await build(open_shop, context, HEAD + line, network=True)
    assert len(callers) == 1 and (built.rootfs / "said").read_text() == "hello from the proxy\n"


KILLED = """
import os, sys
from pathlib import Path
import anyio
from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota
from cloister.forge import Forges
from cloister.runs.templates import Workshop
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.guest_build import guest_sources, source_dir
from cloister.sandbox.templates.recipes import Dockerfile

async def main(data: Path, context: str) -> None:
    owner = new_owner_id()
    with Owners(data / "owners").hold(owner):
        host = ContainerHost(data, owner, None, os.environ["PATH"])
        host.templates.keep_recipe("killed", Dockerfile(context))
        shop = Workshop(host.templates, host, Forges(), None, Quota(), data / "repositories")
        await shop.prepare("killed", lambda _, note: print(note, flush=True))

anyio.run(main, Path(sys.argv[1]), sys.argv[2])
"""


def processes(mark: str) -> list[Path]:
    found: list[Path] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path)
    return found


async def test_a_killed_build_leaves_no_process_and_no_mount(
    own_host: ContainerHost, own_dir: Path, context: Path
) -> None:
    mark = secrets.token_hex(8)
    (context / "Dockerfile").write_text(f"{HEAD}RUN while test {mark}; do :; done\n")
    argv = [sys.executable, "-c", KILLED, str(own_dir), str(context)]
    async with await anyio.open_process(argv, stderr=None) as builder:
        assert builder.stdout is not None
        said = b""
        while b"RUN" not in said:
            said += await builder.stdout.receive()
        with anyio.fail_after(60):
            while not processes(f"test {mark}"):
                await anyio.lowlevel.checkpoint()
        builder.kill()
    with anyio.fail_after(60):
        while processes(mark):
            await anyio.lowlevel.checkpoint()
    assert str(own_dir) not in await anyio.Path("/proc/self/mountinfo").read_text()
    assert await own_host.sweep() == 1
    await own_host.templates.sweep()
    assert list(own_host.templates.directory.glob(".building-*")) == []
    assert own_host.templates.find("killed") is None


async def test_hostile_archives_do_not_confuse_the_memory_of_the_program_that_reads_them(
    own_host: ContainerHost, tmp_path: Path
) -> None:
    program = tmp_path / "guest"
    sources = [str(path) for path in guest_sources(source_dir()) if path.suffix == ".c"]
    flags = ("-g", "-O1", "-std=c11", "-fsanitize=address,undefined", "-static-libasan", "-static-libubsan")
    await anyio.run_process(["cc", *flags, "-fno-sanitize-recover=all", "-o", str(program), *sources])
    seed = layer(
        *(member("a", b"x"), folder("d"), member("d/" + "n" * 150, b"yy" * 400), link("l", "d")),
        *(link("h", "a", tarfile.LNKTYPE), member("l/.wh.x"), member("d/.wh..wh..opq")),
        *(member("p", type=tarfile.FIFOTYPE), member("é" * 60, uid=70_000)),
        member("x", b"z", pax_headers={"SCHILY.xattr.user.k": "v", "mtime": "1.5"}),
    )
    chance = Random(12)
    # Inside a sandbox: as root, a link in such an archive could lead anywhere.
    async with own_host.open(SandboxSpec()) as sandbox:
        await sandbox.write("/work/guest", program.read_bytes(), mode=0o755)
        codes: set[int | None] = set()
        for number in range(150):
            flags = chance.choice(("w", "k", "wk", "-"))
            argv = ("/work/guest", "--unpack", f"/work/{number}", "5000000", "1000", flags)
            command = Command(argv, env={"ASAN_OPTIONS": "detect_leaks=0"}, user="root")
            done = await sandbox.run(command, mutated(seed, chance))
            assert done.exited.code in (0, 1) and b"Sanitizer" not in done.err, done.err.decode()
            codes.add(done.exited.code)
        assert codes == {0, 1}


def mutated(seed: bytes, chance: Random) -> bytes:
    made = bytearray(seed)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(made))
        match chance.randrange(4):
            case 0:
                made[at] = chance.choice(b"\0\1\xff\x80xL/.9g")
            case 1:
                del made[at : at + chance.randint(1, 600)]
            case 2:
                made[at:at] = made[chance.randrange(len(made)) :][:512]
            case _:
                made[min(at // 512 * 512 + 156, len(made) - 1)] = chance.choice(b"0123456LKxgS7\0")
    for at in range(0, len(made) - 511, 512):
        if made.startswith(b"ustar", at + 257):
            made[at + 148 : at + 156] = b" " * 8
            made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])
    return bytes(made)
