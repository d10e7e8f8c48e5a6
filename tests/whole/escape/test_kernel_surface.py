"""What programs inside may ask of the kernel, as the agent and as root inside."""

import re
from pathlib import Path
from typing import Literal

import pytest

from cloister.core.computer import Command, shell
from cloister.core.requests import TierName
from cloister.sandbox.api import Sandbox

pytestmark = pytest.mark.anyio

CLONE_NEWUSER, CLONE_NEWNS = "0x10000000", "0x00020000"

FORBIDDEN: dict[str, tuple[str, ...]] = {
    "mount": ("165", "@none", "@/tmp", "@tmpfs", "0", "0"),
    "umount2": ("166", "@/proc", "0"),
    "fsopen": ("430", "@tmpfs", "0"),
    "open_tree": ("428", "-100", "@/", "1"),
    "move_mount": ("429", "-100", "@/tmp", "-100", "@/mnt", "0"),
    "mount_setattr": ("442", "-100", "@/", "0", "buffer", "32"),
    "pivot_root": ("155", "@/tmp", "@/tmp"),
    "unshare a user namespace": ("272", CLONE_NEWUSER),
    "unshare a mount namespace": ("272", CLONE_NEWNS),
    "setns": ("308", "0", "0"),
    "clone3": ("435", "buffer", "64"),
    "bpf": ("321", "0", "buffer", "64"),
    "perf_event_open": ("298", "buffer", "0", "-1", "-1", "0"),
    "keyctl": ("250", "0", "-3", "0"),
    "add_key": ("248", "@user", "@name", "@value", "5", "-3"),
    "request_key": ("249", "@user", "@name", "0", "0"),
    "userfaultfd": ("323", "0"),
    "io_uring_setup": ("425", "8", "buffer"),
    "ptrace of the first process": ("101", "16", "1", "0", "0"),
    "process_vm_readv": ("310", "1", "buffer", "0", "buffer", "0", "0"),
    "kexec_load": ("246", "0", "0", "0", "0"),
    "init_module": ("175", "buffer", "64", "@"),
    "finit_module": ("313", "0", "@", "0"),
    "reboot": ("169", "0xfee1dead", "672274793", "0", "0"),
    "swapon": ("167", "@/tmp", "0"),
    "acct": ("163", "@/tmp/acct"),
    "settimeofday": ("164", "buffer", "0"),
    "clock_settime": ("227", "0", "buffer"),
    "sethostname": ("170", "@evil", "4"),
    "iopl": ("172", "3"),
    "ioperm": ("173", "0", "8", "1"),
    "quotactl": ("179", "0", "0", "0", "0"),
    "syslog": ("103", "3", "buffer", "4096"),
    "open_by_handle_at": ("304", "-100", "buffer", "0"),
    "AF_PACKET": ("41", "17", "3", "0"),
    "AF_VSOCK": ("41", "40", "1", "0"),
    "AF_ALG": ("41", "38", "5", "0"),
    "AF_NETLINK audit": ("41", "16", "3", "9"),
    "a raw socket": ("41", "2", "3", "255"),
    "mknod of a disk": ("133", "@/tmp/disk", "0o60600", "0xfe00"),
    "chroot": ("161", "@/tmp"),
    "personality read-implies-exec": ("135", "0x0400000"),
}


REFUSALS = ("EPERM", "ENOSYS", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "signal 31")


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_the_kernel_refuses_what_no_program_inside_needs(
    prober: Sandbox, user: Literal["agent", "root"]
) -> None:
    accepted: dict[str, str] = {}
    for call, words in FORBIDDEN.items():
        arguments = [str(int(word, 8)) if word.startswith("0o") else word for word in words]
        finished = await prober.run(Command(("/work/probe", *arguments), user=user))
        said = finished.out.decode().strip() or f"signal {finished.exited.signal}"
        if said not in REFUSALS:
            accepted[call] = said
    assert accepted == {}


async def test_the_old_32_bit_way_into_the_kernel_is_shut(shared: Sandbox) -> None:
    # socket(AF_VSOCK) through `int 0x80`, which an x86-64 filter does not see unless it refuses the whole ABI.
    code = r"""
    #include <stdio.h>
    int main(void) {
        int result;
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(359), "b"(40), "c"(1), "d"(0) : "memory");
        printf("%d\n", result);
    }"""
    await shared.write("old.c", code.encode())
    finished = await shared.run(shell("cc -o old old.c && ./old"))
    assert finished.exited.signal is not None or finished.out.strip().startswith(b"-"), finished
    assert not finished.ok or int(finished.out) in (-1, -38)


async def test_the_x32_abi_is_shut(prober: Sandbox) -> None:
    finished = await prober.run(Command(("/work/probe", str(0x40000000 + 41), "40", "1", "0")))
    assert finished.exited.signal == 31 or finished.out.strip() in (b"ENOSYS", b"EPERM")


async def test_no_user_inside_can_gain_a_capability(shared: Sandbox, tier: TierName) -> None:
    read = "grep -E '^(Cap(Prm|Eff|Bnd|Amb|Inh)|NoNewPrivs|Seccomp):' /proc/self/status"
    agent = await shared.run(shell(read))
    fields = dict(line.split(":\t") for line in agent.out.decode().splitlines())
    # gVisor shows neither ambient capabilities, for it has none, nor `no_new_privs`, which it cannot unset.
    hidden = {"CapAmb", "NoNewPrivs"} - set(fields) if tier == "gvisor" else set[str]()
    fields |= dict.fromkeys(hidden, "0" * 16)
    assert {fields[name] for name in ("CapPrm", "CapEff", "CapAmb", "CapInh")} == {"0" * 16}
    assert fields["Seccomp"] == "2"
    assert "NoNewPrivs" in hidden or fields["NoNewPrivs"] == "1"
    root = await shared.run(shell(read, user="root"))
    fields = dict(line.split(":\t") for line in root.out.decode().splitlines())
    documented = sum(1 << CAPABILITIES.index(name) for name in documented_capabilities())
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == documented


CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL"),
    *("CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"),
)
"""The first of Linux's capabilities, in the order of their bits."""


def documented_capabilities() -> set[str]:
    """The capabilities of root inside, as the page about tiers lists them."""
    page = (Path(__file__).parents[3] / "docs/guide/tiers.md").read_text()
    section = page.partition("\n## Capabilities\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`(CAP_[A-Z_]+)`", section))


async def test_root_inside_can_do_what_package_managers_do(shared: Sandbox) -> None:
    line = """set -e
    d=$(mktemp -d); cd $d; echo x > f; chown 1234:4321 f; chmod 2755 f; test "$(stat -c %u:%g:%a f)" = 1234:4321:2755
    mkdir own; chown 1000 own; chmod 700 own; touch own/file; rm -r own
    tar cf a.tar f; tar xpf a.tar; test "$(stat -c %u f)" = 1234
    dpkg --version >/dev/null; apt-get --version >/dev/null
    setpriv --reuid 42 --regid 42 --clear-groups true
    """
    done = await shared.run(shell(line, user="root"))
    assert done.ok, done.err


async def test_set_user_id_programs_give_nothing(shared: Sandbox) -> None:
    made = await shared.run(
        shell(
            "cp /usr/bin/id /usr/local/bin/suid && chmod 6755 /usr/local/bin/suid && ls -l /usr/local/bin/suid",
            user="root",
        )
    )
    assert b"-rwsr-sr-x" in made.out
    finished = await shared.run(Command(("suid", "-u")))
    assert finished.out == b"1000\n"
    assert not (await shared.run(shell("su root -c id < /dev/null"))).ok


async def test_the_agent_cannot_touch_the_first_process(shared: Sandbox, tier: TierName) -> None:
    looks = ("cat /proc/1/environ", "ls -l /proc/1/fd/")
    for line in ("kill -9 1", "cat /proc/1/mem", "cat /proc/1/fd/0", "echo x > /proc/1/fd/1"):
        assert not (await shared.run(shell(line))).ok, line
    for line in looks if tier == "container" else ():
        assert not (await shared.run(shell(line))).ok, line
    # gVisor lets everybody look, but not touch; there is nothing to see.
    environ = await shared.run(shell(looks[0]))
    assert {entry.split(b"=")[0] for entry in environ.out.split(b"\0")} <= {b"", b"HOME", b"PATH"}
    assert (await shared.run(Command(("true",)))).ok


async def test_kernel_settings_can_be_neither_written_nor_triggered(shared: Sandbox, tier: TierName) -> None:
    before = {path: _setting(path) for path in SETTINGS}
    for user in ("agent", "root"):
        for path in SETTINGS:
            finished = await shared.run(shell(f"echo -1000 > {path}", user=user))
            # gVisor's own kernel has settings of its own, which root inside may have.
            own = tier == "gvisor" and user == "root"
            assert own or not finished.ok, f"{user} wrote {path}"
    assert {path: _setting(path) for path in SETTINGS} == before
    masked = await shared.run(
        shell("cat /proc/kcore /proc/keys /proc/timer_list /proc/kmsg | wc -c", user="root")
    )
    assert masked.out.strip() == b"0"


SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
)


def _setting(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        return str(error.errno)


@pytest.mark.usefixtures("containers_only")
async def test_nothing_is_mounted_that_was_not_meant_to_be(shared: Sandbox, tier: TierName) -> None:
    finished = await shared.run(shell("cut -d' ' -f2,3,4 /proc/mounts"))
    mounts = {line.split()[0]: line.split()[1:] for line in finished.out.decode().splitlines()}
    assert "ro" in mounts["/.cloister/guest"][1].split(",")
    if tier == "container":
        assert mounts["/"][0] in ("btrfs", "overlay")
        for at in ("/", "/dev", "/dev/pts", "/dev/shm", "/proc", "/.cloister/guest"):
            assert "nosuid" in mounts[at][1].split(","), at
        assert "nodev" in mounts["/"][1].split(",")
    else:
        # gVisor serves files itself, shows no such flags, and has an empty /sys of its own kernel.
        assert mounts["/"][0] == "9p"
        assert mounts.pop("/sys")[0] == "sysfs"
        assert mounts.pop("/.cloister/preload", ["9p", "ro"])[1].startswith("ro")
    unexpected = [at for at in mounts if not at.startswith(("/proc/", "/dev/")) and at not in EXPECTED]
    assert unexpected == []


EXPECTED = ("/", "/proc", "/dev", "/.cloister/guest")
