"""What programs inside can reach: no file, no process, no network and no id of the host."""

import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command, Output, shell
from cloister.core.errors import HostError
from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import Host, Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.names import IDS, SLOTS

pytestmark = pytest.mark.anyio


PidsOf = Callable[[Sandbox], list[int]]


async def test_no_file_of_the_host_can_be_reached_by_any_name(shared: Sandbox, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.write_text("the host was read")
    flag.chmod(0o644)
    names = [
        str(flag),
        f"/..{flag}",
        f"/proc/1/root{flag}",
        f"/proc/self/root/../..{flag}",
        f"/proc/1/cwd{flag}",
        f"/.cloister/../..{flag}",
        f"/proc/1/task/1/root{flag}",
    ]
    for user in ("agent", "root"):
        for name in names:
            finished = await shared.run(Command(("cat", name), user=user))
            assert not finished.ok and b"the host was read" not in finished.out, name
    await shared.run(shell(f"ln -s {flag} here; ln -s / root", user="root"))
    for name in ("here", f"root{flag}"):
        finished = await shared.run(Command(("cat", name)))
        assert b"the host was read" not in finished.out


async def test_the_file_operations_stay_inside_too(shared: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    await shared.run(shell(f"mkdir -p {tmp_path} && ln -s {tmp_path} way", user="root"))
    await shared.run(shell(f"chown -R 1000 {tmp_path}", user="root"))
    await shared.write("way/outside", b"inside")
    assert await shared.read(str(outside)) == b"inside"
    assert not outside.exists()
    await shared.write("../../../../../../../work/up", b"top")
    assert await shared.read("up") == b"top"


SHOWN = """
cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats /proc/self/cgroup /proc/self/maps
cat /proc/1/mountinfo /proc/1/cmdline /proc/1/maps /proc/swaps
readlink /proc/1/exe /proc/1/cwd /proc/1/root
df -a
env
"""


async def check_no_path_shown(sandbox: Sandbox, *paths: Path) -> None:
    shown = await sandbox.run(shell(SHOWN, user="root"))
    assert b"/proc" in shown.out
    for path in (*paths, *map(Path.resolve, paths), Path(sys.prefix), Path.cwd()):
        assert str(path).encode() not in shown.out, path
    assert b"/sandboxes/" not in shown.out
    assert sandbox.info.id.encode() not in shown.out


async def test_no_path_of_the_host_is_shown_inside(shared: Sandbox, shared_dir: Path, warm_dir: Path) -> None:
    await check_no_path_shown(shared, shared_dir, warm_dir)


async def test_no_path_of_the_host_is_shown_on_an_overlay(data_dir: Path, warm_dir: Path) -> None:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, None, os.environ["PATH"], store="overlay")
        async with host.open(SandboxSpec()) as sandbox:
            await check_no_path_shown(sandbox, data_dir, warm_dir)
        await host.close()


async def test_there_is_no_network_but_loopback(shared: Sandbox) -> None:
    cards = await shared.run(
        shell("tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route; cat /proc/net/ipv6_route")
    )
    lines = cards.out.decode().split("\n")
    assert lines[0].strip() == "lo"
    assert all(line.endswith("lo") for line in lines if line.strip())


async def test_a_service_of_the_host_cannot_be_reached(shared: Sandbox, tmp_path: Path) -> None:
    arrived = threading.Event()
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0cloister-test-{os.getpid()}")
        unix.listen()

        def wait(server: socket.socket) -> None:
            try:
                server.accept()
                arrived.set()
            except OSError:
                return

        for server in (tcp, unix):
            threading.Thread(target=wait, args=(server,), daemon=True).start()
        port = tcp.getsockname()[1]
        script = f"""
import socket
results = []
def attempt(family, address):
    s = socket.socket(family)
    s.settimeout(3)
    try:
        s.connect(address)
        results.append(address)
    except OSError:
        pass
for ip in ("127.0.0.1", "{_own_address()}", "169.254.169.254", "10.0.0.1", "8.8.8.8"):
    attempt(socket.AF_INET, (ip, {port}))
attempt(socket.AF_INET6, ("::1", {port}))
attempt(socket.AF_UNIX, "\\0cloister-test-{os.getpid()}")
print(results)
"""
        finished = await shared.run(Command(("python3", "-c", script)))
        assert finished.out == b"[]\n", finished
        names = await shared.run(shell("getent hosts example.com || echo unknown"))
        assert names.out == b"unknown\n"
        assert not arrived.is_set()
        tcp.shutdown(socket.SHUT_RDWR)
        unix.shutdown(socket.SHUT_RDWR)


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


@pytest.mark.usefixtures("containers_only")
async def test_root_inside_is_unprivileged_on_the_host_and_no_two_sandboxes_share_ids(
    host: Host, pids_of: PidsOf, tier: TierName
) -> None:
    async with host.open(SandboxSpec()) as one, host.open(SandboxSpec()) as two:
        bases: set[int] = set()
        for sandbox in (one, two):
            async with sandbox.start(shell("echo up; sleep 980", user="root")) as process:
                async for item in process:
                    assert isinstance(item, Output)
                    break
                inside = pids_of(sandbox)
                assert len(inside) >= 3
                for pid in inside:
                    first, base, size = _id_map(pid)
                    if tier == "gvisor" and base == NOBODY:
                        # gVisor's kernel and the programs in it: `nobody`, who can be no one else.
                        assert (size, set(_ids(pid))) == (1, {NOBODY})
                        continue
                    assert (first, size) == (0, IDS)
                    assert base // IDS in SLOTS
                    assert min(_ids(pid)) >= base
                    bases.add(base)
        assert len(bases) == 2


NOBODY = 65_534


def _id_map(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/uid_map").read_text().split()]


def _ids(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [int(word) for line in status if line.startswith(("Uid:", "Gid:")) for word in line.split()[1:]]


@pytest.mark.usefixtures("containers_only")
async def test_every_namespace_of_the_guest_is_its_own(
    shared: Sandbox, pids_of: PidsOf, tier: TierName
) -> None:
    # What gVisor serves to programs inside are names and numbers of its own; its processes stay where they can be
    # traced, and no file of the host is there through which they could look around.
    kept = {"pid", "cgroup"} if tier == "gvisor" else set[str]()
    for inside in pids_of(shared):
        common = {kind for kind in NAMESPACES if _namespace(inside, kind) == _namespace(os.getpid(), kind)}
        assert common <= kept


NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


def _namespace(pid: int, kind: str) -> Path:
    return Path(f"/proc/{pid}/ns/{kind}").readlink()


async def test_no_file_of_the_host_process_is_open_inside(
    host: Host, tmp_path: Path, pids_of: PidsOf, tier: TierName
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    high = os.dup2(descriptor, 251, inheritable=True)
    try:
        async with host.open(SandboxSpec()) as sandbox:
            for pid in pids_of(sandbox):
                opened = _open_files(pid)
                if tier == "gvisor":
                    # Its file server has the sandbox's own files open, its kernel some memory and its configuration.
                    opened = {name for name in opened if not OWN.match(name)}
                assert opened <= {"pipe", "socket", "anon_inode", "/dev/null"}
            own = await sandbox.run(shell("for f in /proc/self/fd/*; do readlink $f; done"))
            assert {line.split(":")[0] for line in own.out.decode().splitlines()} <= {"pipe", "/dev/null"}
    finally:
        os.close(high)
        os.close(descriptor)


OWN = re.compile(r"/root|/memfd|/proc|/sys|.*/sandboxes/[^/]*/config\.json$")


def _open_files(pid: int) -> set[str]:
    found: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It was closed while we looked.
            # The root of some other mount is called `/` too.
            if (name := str(link.readlink())) != "/" or link.samefile("/"):
                found.add(name.split(":")[0])
    return found


async def test_hostile_writes_change_neither_the_template_nor_the_next_sandbox(
    host: Host, tier: str, data_dir: Path
) -> None:
    (rootfs,) = (data_dir / "templates").glob("default-*/rootfs")
    before = _fingerprint(rootfs)
    async with host.open(SandboxSpec()) as sandbox:
        line = "echo evil >> /etc/passwd; rm -rf /usr/share /home/*; chown 1000 /bin/sh; chmod 777 /etc; echo x > /.cloister/x"
        await sandbox.run(shell(line, user="root"))
        touched = await sandbox.run(shell("echo evil > /.cloister/guest; rm /.cloister/guest", user="root"))
        assert not touched.ok or tier == "microvm", "a virtual machine's guest is not in its file system"
        assert b"evil" in (await sandbox.run(shell("tail -1 /etc/passwd"))).out
    assert _fingerprint(rootfs) == before
    async with host.open(SandboxSpec()) as sandbox:
        assert b"evil" not in (await sandbox.run(shell("cat /etc/passwd; ls -ld /home/agent /usr/share"))).out


def _fingerprint(rootfs: Path) -> list[tuple[str, int, int, int, int]]:
    found: list[tuple[str, int, int, int, int]] = []
    for at, _, files in os.walk(rootfs):
        for path in (at, *(f"{at}/{name}" for name in files)):
            stat = os.lstat(path)
            found.append((path, stat.st_mode, stat.st_uid, stat.st_size, stat.st_ctime_ns))
    return sorted(found)


async def test_a_sandbox_cannot_hold_more_open_files_than_it_was_given(host: Host) -> None:
    async with host.open(SandboxSpec(quota=Quota(open_files=128))) as sandbox:
        finished = await sandbox.run(
            Command(("python3", "-c", "[open('/dev/null') for _ in range(200)]\nx = 1 / 0"))
        )
        assert b"Too many open files" in finished.err
        raised = await sandbox.run(shell("ulimit -n 4096", user="root"))
        assert not raised.ok


@pytest.mark.usefixtures("containers_only")
async def test_closing_while_everything_is_busy_ends_everything(
    host: Host, pids_of: PidsOf, tier: TierName
) -> None:
    busy = 40 if tier == "container" else 12
    with anyio.fail_after(60):
        async with host.open(SandboxSpec()) as sandbox:
            line = f"for i in $(seq {busy}); do (trap '' TERM HUP; setsid sh -c 'while :; do :; done' &) ; done; echo up; wait"
            async with sandbox.start(shell(line, grace_seconds=0.1)) as process:
                async for item in process:
                    assert isinstance(item, Output)
                    break
                assert len(pids_of(sandbox)) > busy
    assert pids_of(sandbox) == []


@pytest.mark.parametrize("name", ["/tmp", "/.cloister"])
async def test_a_directory_that_leads_out_leads_a_fork_nowhere(host: Host, tmp_path: Path, name: str) -> None:
    aim = tmp_path / "aim"
    aim.mkdir(mode=0o777)
    (tmp_path / "flag").touch()
    async with host.open(SandboxSpec()) as sandbox:
        led = await sandbox.run(shell(f"mv {name} /was && ln -s {aim} {name}", user="root"))
        assert led.ok or b"busy" in led.err, "what is mounted there may keep it where it is"
        try:
            async with sandbox.fork() as child:
                assert (await child.run(Command(("true",), cwd="/"))).ok
                beside = await child.run(shell(f"ls -a {aim} {aim}/..", user="root"))
                assert b"flag" not in beside.out
        except HostError as error:
            # A runtime may also refuse such a root.
            assert error.code == "start_failed"
    assert list(aim.iterdir()) == []
