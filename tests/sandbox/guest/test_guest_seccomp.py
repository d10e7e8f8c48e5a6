import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from cloister.core.computer import Command
from cloister.sandbox._spawn import capture
from cloister.sandbox.protocol.link import Link

pytestmark = pytest.mark.anyio

OpenGuest = Callable[..., AbstractAsyncContextManager[tuple[Link, Process]]]
SELF = "--no-user-switch"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")

NEW_USER, NEW_NET, SIGCHLD = 0x10000000, 0x40000000, 17
# Name → number on x86-64, arguments (all harmless if the kernel did see them), what the program must get.
FORBIDDEN: dict[str, tuple[int, tuple[int, ...], int]] = {
    "clone into a user namespace": (56, (NEW_USER | SIGCHLD, 0, 0, 0, 0), errno.EPERM),
    "clone into a network namespace": (56, (NEW_NET | SIGCHLD, 0, 0, 0, 0), errno.EPERM),
    "clone3": (435, (0, 0), errno.ENOSYS),
    "unshare": (272, (0,), errno.EPERM),
    "setns": (308, (-1, 0), errno.EPERM),
    "mount": (165, (0, 0, 0, 0, 0), errno.EPERM),
    "umount2": (166, (0, 0), errno.EPERM),
    "pivot_root": (155, (0, 0), errno.EPERM),
    "open_tree": (428, (-1, 0, 0), errno.EPERM),
    "move_mount": (429, (-1, 0, -1, 0, 0), errno.EPERM),
    "fsopen": (430, (0, 0), errno.EPERM),
    "fsmount": (432, (-1, 0, 0), errno.EPERM),
    "mount_setattr": (442, (-1, 0, 0, 0, 0), errno.EPERM),
    "open_by_handle_at": (304, (-1, 0, 0), errno.EPERM),
    "add_key": (248, (0, 0, 0, 0, 0), errno.EPERM),
    "request_key": (249, (0, 0, 0, 0), errno.EPERM),
    "keyctl": (250, (99, 0, 0, 0, 0), errno.EPERM),
    "bpf": (321, (99, 0, 0), errno.EPERM),
    "perf_event_open": (298, (0, 0, 0, 0, 0), errno.EPERM),
    "userfaultfd": (323, (0xFFFF,), errno.EPERM),
    "io_uring_setup": (425, (0, 0), errno.EPERM),
    "io_uring_enter": (426, (-1, 0, 0, 0, 0, 0), errno.EPERM),
    "io_uring_register": (427, (-1, 0, 0, 0), errno.EPERM),
    "ptrace": (101, (99, 0, 0, 0), errno.EPERM),
    "process_vm_readv": (310, (0, 0, 0, 0, 0, 0), errno.EPERM),
    "process_vm_writev": (311, (0, 0, 0, 0, 0, 0), errno.EPERM),
    "pidfd_getfd": (438, (-1, 0, 0), errno.EPERM),
    "kcmp": (312, (0, 0, 99, 0, 0), errno.EPERM),
    "kexec_load": (246, (0, 0, 0, 0xFFFF), errno.EPERM),
    "init_module": (175, (0, 0, 0), errno.EPERM),
    "finit_module": (313, (-1, 0, 0), errno.EPERM),
    "delete_module": (176, (0, 0), errno.EPERM),
    "reboot": (169, (0, 0, 0, 0), errno.EPERM),
    "swapon": (167, (0, 0), errno.EPERM),
    "syslog": (103, (99, 0, 0), errno.EPERM),
    "quotactl": (179, (0, 0, 0, 0), errno.EPERM),
    "sethostname": (170, (0, 999), errno.EPERM),
    "iopl": (172, (99,), errno.EPERM),
    "modify_ldt": (154, (99, 0, 0), errno.EPERM),
    "clock_settime": (227, (99, 0), errno.EPERM),
    "settimeofday": (164, (1, 1), errno.EPERM),
    "adjtimex": (159, (0,), errno.EPERM),
    "clock_adjtime": (305, (99, 0), errno.EPERM),
    "sched_setscheduler": (144, (0, 99, 0), errno.EPERM),
    "personality without address randomisation": (135, (0x0040000,), errno.EPERM),
    "fanotify_init": (300, (0xFFFF, 0), errno.EPERM),
    "a listener of seccomp": (317, (1, 8, 0), errno.EPERM),
    "typing into a terminal": (16, (-1, 0x5412, 0), errno.EPERM),
    "typing into a terminal, with a high half": (16, (-1, 0x7700005412, 0), errno.EPERM),
    "pasting into a terminal": (16, (-1, 0x541C, 0), errno.EPERM),
    "a line discipline for a terminal": (16, (-1, 0x5423, 0), errno.EPERM),
    "a line discipline, with a high half": (16, (-1, 0x7700005423, 0), errno.EPERM),
    "io_setup": (206, (1, 0), errno.ENOSYS),
    "io_destroy": (207, (0,), errno.ENOSYS),
    "io_getevents": (208, (0, 0, 0, 0, 0), errno.ENOSYS),
    "io_submit": (209, (0, 0, 0), errno.ENOSYS),
    "io_cancel": (210, (0, 0, 0), errno.ENOSYS),
    "io_pgetevents": (333, (0, 0, 0, 0, 0, 0), errno.ENOSYS),
    "a socket to the hypervisor": (41, (40, 1, 0), errno.EAFNOSUPPORT),
    "a socket to the kernel's ciphers": (41, (38, 5, 0), errno.EAFNOSUPPORT),
    "a socket for whole packets": (41, (17, 3, 0), errno.EAFNOSUPPORT),
    "a socket for raw packets": (41, (2, 3, 6), errno.EPERM),
    "a socket for raw packets of IPv6": (41, (10, 3 | 0o2000000, 58), errno.EPERM),
    "a socket for another protocol": (41, (2, 1, 132), errno.EPROTONOSUPPORT),
    "a netlink socket to the firewall": (41, (16, 3, 12), errno.EPROTONOSUPPORT),
    "a pair of sockets of another family": (53, (40, 1, 0, 0), errno.EAFNOSUPPORT),
    "an x32 call": (0x40000000 | 39, (), errno.ENOSYS),
    "a call that is newer than the list": (460, (), errno.ENOSYS),
}
ALLOWED: dict[str, tuple[int, tuple[int, ...]]] = {
    "a socket of IPv4": (41, (2, 1, 0)),
    "a socket of IPv6, close on exec": (41, (10, 2 | 0o2000000, 17)),
    "a socket on this machine": (41, (1, 1, 0)),
    "a netlink socket to the routes": (41, (16, 3, 0)),
    "personality as it is": (135, (0xFFFFFFFF,)),
    "personality as it should be": (135, (0,)),
    "getpid": (39, ()),
    "getrandom of nothing": (318, (0, 0, 0)),
    "close_range of nothing": (436, (100_000, 100_001, 0)),
}
TRY = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number, arguments in json.load(sys.stdin):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    found[name] = ctypes.get_errno() if result == -1 else 0
print(json.dumps(found))
"""


async def attempt(link: Link, calls: list[tuple[str, int, tuple[int, ...]]]) -> dict[str, str]:
    command = Command(("python3", "-c", TRY), cwd="/", seconds=30, user="root")
    done = await link.run(command, json.dumps(calls).encode())
    assert done.ok, (done.exited, done.err)
    return {name: errno.errorcode.get(found, str(found)) for name, found in json.loads(done.out).items()}


async def test_each_forbidden_call_fails_even_for_root(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        found = await attempt(link, [(name, number, args) for name, (number, args, _) in FORBIDDEN.items()])
    assert found == {name: errno.errorcode[expected] for name, (_, _, expected) in FORBIDDEN.items()}


async def test_system_calls_that_programs_need_are_allowed(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        found = await attempt(link, [(name, number, args) for name, (number, args) in ALLOWED.items()])
    assert found == dict.fromkeys(ALLOWED, "0")


async def test_calls_of_the_32_bit_kind_end_the_program(open_guest: OpenGuest, tmp_path: Path) -> None:
    source, program = tmp_path / "old.c", tmp_path / "old"
    source.write_text('int main(void) { long r; __asm__("int $0x80" : "=a"(r) : "a"(20)); return r < 0; }')
    assert (await capture(["cc", "-o", str(program), str(source)], seconds=60)).ok
    async with open_guest(SELF) as (link, _):
        done = await link.run(Command((str(program),), cwd="/"))
        assert (await link.run(Command(("true",), cwd="/"))).ok
    assert done.exited.signal == signal.SIGSYS


WORK = {
    "python3": (
        "python3 -c 'import asyncio, concurrent.futures as f, multiprocessing as m, sqlite3, subprocess, tempfile\n"
        "p = f.ThreadPoolExecutor(8); assert list(p.map(abs, range(-99, 0)))[0] == 99\n"
        'q = m.get_context("fork").SimpleQueue(); w = m.get_context("fork").Process(target=q.put, args=(7,))\n'
        "w.start(); assert q.get() == 7; w.join()\n"
        'async def a(): return (await (await asyncio.create_subprocess_exec("true")).wait())\n'
        'assert asyncio.run(a()) == 0; assert subprocess.run(["true"]).returncode == 0\n'
        'sqlite3.connect("x.db").execute("create table t(a)")\''
    ),
    "git": (
        "git init -q r && cd r && git config user.email a@b.c && git config user.name n && echo x > f && "
        "git add f && git commit -qm m && git clone -q . ../c && git gc -q && git log --oneline | grep -q m"
    ),
    "gcc": "echo 'int main(){return 0;}' > a.c && gcc -O1 -o a a.c && ./a",
    "node": 'node -e \'require("fs").promises.readFile("/etc/passwd").then(() => process.exit(0))\'',
    "java": "java -version",
    "perl": "perl -e 'exit system(\"true\")'",
    "tar": "mkdir d && echo x > d/f && tar czf d.tgz d && tar xzf d.tgz -C /tmp --to-stdout | grep -q x",
    "rustc": "echo 'fn main() { std::thread::spawn(|| 1).join().unwrap(); }' > m.rs && rustc m.rs && ./m",
    "go": "printf 'package main\\nfunc main() { go func() {}() }\\n' > m.go && go run m.go",
    "make": "printf 'all: a b\\na b:\\n\\ttouch $@\\n' > Makefile && make -s -j4 all",
}


NEEDED = ("python3", "git", "gcc", "perl", "tar", "make")
HOME = str(Path("~").expanduser())  # where some tools keep themselves


@pytest.mark.parametrize("tool", [tool for tool in WORK if tool in NEEDED or shutil.which(tool)])
async def test_ordinary_tools_work(open_guest: OpenGuest, tmp_path: Path, tool: str) -> None:
    path = os.pathsep.join({str(Path(found).parent): 0 for t in WORK if (found := shutil.which(t))})
    env = {"HOME": HOME, "PATH": f"{path}:/usr/bin:/bin", "GOCACHE": f"{tmp_path}/.cache"}
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(90):
            done = await link.run(
                Command(("/bin/bash", "-ec", WORK[tool]), cwd=str(tmp_path), env=env, seconds=80)
            )
    assert done.ok, (done.exited, done.err)


@needs_root
async def test_as_the_first_process_it_reaps_orphans_and_takes_everyone_along(open_guest: OpenGuest) -> None:
    async with open_guest(within=("unshare", "-pfnum", "--mount-proc"), proxy_port=3128) as (link, _):
        with anyio.fail_after(30):
            first = await link.run(Command(("sh", "-c", "cat /proc/1/cmdline; hostname"), cwd="/"))
            assert b"guest-" in first.out
            assert first.out.endswith(b"test\n")
            # A hundred orphans, each of which ends only after its parent has.
            orphans = "for i in $(seq 100); do (sleep 0.05 &) ; done; exec setsid sleep 1000 &"
            assert (await link.run(Command(("sh", "-c", orphans), cwd="/"))).ok
            line = "while ps -e -o stat,comm | grep -qE '^Z|sleep 0'; do sleep 0.02; done"
            assert (await link.run(Command(("sh", "-c", line), cwd="/", seconds=20))).ok
            dial = "import socket; print(socket.create_connection(('127.0.0.1', 3128)).recv(1))"
            assert (await link.run(Command(("python3", "-c", dial), cwd="/"))).out == b"b''\n"
