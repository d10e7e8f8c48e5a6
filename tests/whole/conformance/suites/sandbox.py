"""The promises of every sandbox and every provider, one function per promise.

Run each of `PROMISES` with a `Host` that can open its default template (with a shell, coreutils and Python in it), and
each of `PROVIDER_PROMISES` with a `Provider` of which at least one tier works.
"""

import time
from collections.abc import Awaitable, Callable

import anyio
import msgspec
from anyio.abc import ByteStream
from tests.whole.conformance.suites.base import expect, hold, promises, refused
from tests.whole.conformance.suites.sandbox_files import (
    MORE_PROMISES,
    WAIT_SECONDS,
    Promise,
    ample_seconds,
    first_output,
    rest,
    text,
)

from cloister.core import limits
from cloister.core.computer import Command, Pty, shell
from cloister.core.ids import SandboxId, new_snapshot_id
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import Host, Provider, SandboxSpec


async def a_command_gives_back_its_output_and_status(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        finished = await sandbox.run(shell("echo out; echo err >&2; exit 7"))
        expect((finished.out, finished.err), (b"out\n", b"err\n"))
        expect((finished.exited.code, finished.exited.signal, finished.exited.killed), (7, None, None))
        hold(not finished.ok, "status 7 is not ok")
        hold((await sandbox.run(Command(("true",)))).ok, "status 0 is ok")


async def stdin_arrives_whole_however_large(host: Host) -> None:
    data = bytes(range(256)) * 8_192
    async with host.open(SandboxSpec()) as sandbox:
        finished = await sandbox.run(Command(("cat",), limit_bytes=len(data)), stdin=data)
        hold(finished.out == data, "what went in came out")
        async with sandbox.start(Command(("cat",))) as process:
            await process.send(b"one")
            expect(await first_output(process), b"one")
            await process.send_eof()
            hold((await rest(process)).ok, "cat ends with its input")
            await process.send(b"after the end")


async def a_command_runs_as_the_agent_in_the_work_directory(host: Host) -> None:
    async with host.open(SandboxSpec(env={"COLOUR": "blue"})) as sandbox:
        expect(await text(sandbox, "id -un; pwd; echo $HOME $COLOUR"), "agent\n/work\n/home/agent blue")
        inside = await sandbox.run(
            Command(("sh", "-c", "id -u; pwd; echo $A"), cwd="/etc", env={"A": "b"}, user="root")
        )
        expect(inside.out, b"0\n/etc\nb\n")


async def a_command_that_ends_by_a_signal_says_which(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        exited = (await sandbox.run(shell("kill -SEGV $$"))).exited
        expect((exited.code, exited.signal, exited.killed), (None, 11, None))
        async with sandbox.start(
            shell("trap 'echo caught; exit 3' USR1; echo up; while :; do sleep 0.05; done")
        ) as process:
            await first_output(process)
            await process.signal(10)
            finished = await rest(process)
        expect((finished.out, finished.exited.code), (b"caught\n", 3))


async def a_command_that_takes_too_long_is_ended_with_its_whole_tree(host: Host) -> None:
    stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 987' &); sleep 987"
    async with host.open(SandboxSpec()) as sandbox:
        finished = await sandbox.run(shell(stubborn, seconds=0.5, grace_seconds=0.2))
        expect((finished.exited.killed, finished.exited.ok), ("time", False))
        expect(await text(sandbox, "pgrep -c -f 'sleep 98[7]' || true"), "0")
        line, seconds = "trap 'echo bye; exit 0' TERM; sleep 300 & wait", await ample_seconds(sandbox)
        gentle = await sandbox.run(shell(line, seconds=seconds, grace_seconds=WAIT_SECONDS))
        expect((gentle.out, gentle.exited.killed), (b"bye\n", "time"))


async def leaving_the_block_kills_the_command(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        async with sandbox.start(shell("(sleep 986 &); echo up; sleep 986", grace_seconds=0.1)) as process:
            await first_output(process)
        expect(await text(sandbox, "pgrep -c -f 'sleep 98[6]' || true"), "0")


async def too_much_output_ends_the_command_and_not_the_sandbox(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        finished = await sandbox.run(Command(("yes",), limit_bytes=1_000_000, grace_seconds=0.1))
        expect((len(finished.out), finished.exited.killed), (1_000_000, "output"))
        expect(await text(sandbox, "echo fine"), "fine")


async def unread_output_stops_the_command_and_not_the_sandbox(host: Host) -> None:
    async with (
        host.open(SandboxSpec()) as sandbox,
        sandbox.start(Command(("yes",), grace_seconds=0.1)) as process,
    ):
        await first_output(process)
        expect(await text(sandbox, "echo still here"), "still here")


async def a_terminal_is_a_terminal(host: Host) -> None:
    line = "test -t 0 && test -t 1 && stty size; read answer; stty size; echo got $answer"
    async with host.open(SandboxSpec()) as sandbox:
        async with sandbox.start(shell(line, pty=Pty(rows=33, columns=99))) as process:
            hold(b"33 99" in await first_output(process), "it has the size that was asked for")
            await process.resize(Pty(rows=12, columns=34))
            await process.send(b"this\n")
            finished = await rest(process)
        hold(
            b"12 34" in finished.out and b"got this" in finished.out,
            f"resize and input arrive: {finished.out!r}",
        )


async def many_commands_run_at_once_and_one_too_many_is_refused(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        numbers = range(limits.CONCURRENT_COMMANDS // 2)
        outputs: dict[int, bytes] = {}

        async def one(number: int) -> None:
            outputs[number] = (await sandbox.run(shell(f"sleep 0.2; echo {number}"))).out

        async with anyio.create_task_group() as tasks:
            for number in numbers:
                tasks.start_soon(one, number)
        expect(outputs, {number: f"{number}\n".encode() for number in numbers})
        async with anyio.create_task_group() as tasks:
            started: list[anyio.Event] = []

            async def idle(up: anyio.Event) -> None:
                async with sandbox.start(Command(("sleep", "985"), grace_seconds=0.1)):
                    up.set()
                    await anyio.sleep_forever()

            for _ in range(limits.CONCURRENT_COMMANDS):
                started.append(anyio.Event())
                tasks.start_soon(idle, started[-1])
            for event in started:
                await event.wait()
            with refused("too_many_commands"):
                await sandbox.run(Command(("true",)))
            tasks.cancel_scope.cancel()
        expect(await text(sandbox, "echo fine"), "fine")


async def a_command_that_cannot_start_raises_a_clear_error(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        with refused("not_found"):
            await sandbox.run(Command(("no-such-program",)))
        with refused("not_found", "not_a_directory"):
            await sandbox.run(Command(("true",), cwd="/nowhere"))
        expect(await text(sandbox, "echo fine"), "fine")


async def files_are_written_whole_and_read_in_parts(host: Host) -> None:
    data = bytes(range(256)) * 4_096
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("a/b/c.bin", data, mode=0o750)
        hold(await sandbox.read("/work/a/b/c.bin") == data, "a relative name is below /work")
        expect(await sandbox.read("a/b/c.bin", offset=255, limit_bytes=3), b"\xff\x00\x01")
        expect(await sandbox.read("a/b/c.bin", offset=len(data)), b"")
        expect(await text(sandbox, "stat -c '%a %U' a/b/c.bin; ls a/b"), "750 agent\nc.bin")
        await sandbox.write("a/b/c.bin", b"")
        expect(await sandbox.read("a/b/c.bin"), b"")


async def a_directory_is_listed_in_order(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await text(
            sandbox,
            "mkdir d d/sub && printf 12345 > d/file && ln -s nowhere d/link && mkfifo d/pipe && touch 'd/é \n'",
        )
        entries = await sandbox.list("d")
        expect(
            [(entry.name, entry.kind) for entry in entries],
            [("file", "file"), ("link", "link"), ("pipe", "other"), ("sub", "dir"), ("é \n", "file")],
        )
        expect((entries[0].size, entries[0].mode & 0o777), (5, 0o644))
        expect(await sandbox.list("d/sub"), ())


async def impossible_file_operations_raise_a_clear_error(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await text(sandbox, "mkfifo pipe; ln -s loop loop; touch file")
        for code, path in (
            ("not_found", "nothing"),
            ("denied", "/etc/shadow"),
            ("not_a_file", "/work"),
            ("not_a_file", "pipe"),
        ):
            with anyio.fail_after(WAIT_SECONDS), refused(code):
                await sandbox.read(path)
        with refused("file_failed", "denied", "not_found"):
            await sandbox.read("loop")
        with refused("denied"):
            await sandbox.write("/usr/bin/sh", b"evil")
        with refused("not_a_directory"):
            await sandbox.list("file")
        with refused("not_a_directory", "file_failed"):
            await sandbox.write("file/below", b"")
        with refused("not_found"):
            await sandbox.list("nothing")


async def a_fork_copies_the_files_and_with_memory_the_processes(host: Host) -> None:
    async with host.open(SandboxSpec(env={"A": "b"})) as parent:
        await parent.write("kept", b"before")
        await text(
            parent,
            "rm ~/.bashrc; mkdir deep && touch deep/x; echo hi > ~/note; echo ho > /tmp/note",
        )
        async with parent.start(shell("echo up; sleep 984")) as process:
            await first_output(process)
            async with parent.fork() as child:
                expect((child.info.parent, child.info.id == parent.info.id), (parent.info.id, False))
                expect(await child.read("kept"), b"before")
                expect(
                    await text(child, "ls deep; cat ~/note /tmp/note; ls -A /tmp; echo $A"),
                    "x\nhi\nho\nnote\nb",
                )
                expect(await text(child, "ls ~/.bashrc 2>/dev/null || echo gone"), "gone")
                going = "1" if child.info.fork == "memory" else "0"
                expect(await text(child, "pgrep -c -f 'sleep 98[4]' || true"), going)
                expect(await text(parent, "pgrep -c -f 'sleep 98[4]' || true"), "1")
                await child.write("kept", b"child")
                await parent.write("kept", b"parent")
                expect((await child.read("kept"), await parent.read("kept")), (b"child", b"parent"))
                async with child.fork() as grandchild:
                    expect(await grandchild.read("kept"), b"child")
        expect(await parent.read("kept"), b"parent")


async def many_forks_at_once_are_all_whole(host: Host) -> None:
    async with host.open(SandboxSpec()) as parent:
        await parent.write("number", b"0")
        found: list[bytes] = []

        async def one() -> None:
            async with parent.fork() as child:
                found.append(await child.read("number"))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(one)
        expect(found, [b"0"] * 4)
        expect(await text(parent, "echo it moves"), "it moves")


async def a_fork_says_when_its_files_are_copied(host: Host) -> None:
    """What is written after that is not in the fork, although it may not run yet."""
    async with host.open(SandboxSpec()) as parent, anyio.create_task_group() as tasks:
        copied = anyio.Event()

        async def write() -> None:
            await copied.wait()
            await parent.write("number", b"1")

        await parent.write("number", b"0")
        tasks.start_soon(write)
        async with parent.fork(copied.set) as child:
            expect(copied.is_set(), True)
            expect(await child.read("number"), b"0")


COUNTER = """
import os
a, b = (os.open(name, os.O_CREAT | os.O_RDWR) for name in ("/work/a", "/work/b"))
number = 0
while True:
    number += 1
    os.pwrite(a, b"%20d" % number, 0)
    os.pwrite(b, b"%20d" % number, 0)
    if number == 1000: print("up", flush=True)
"""


async def a_copy_under_write_load_is_consistent(host: Host) -> None:
    async with (
        host.open(SandboxSpec()) as parent,
        parent.start(Command(("python3", "-c", COUNTER))) as writer,
    ):
        await first_output(writer)
        for _ in range(2):
            async with parent.fork() as child:
                if child.info.fork == "memory":
                    await text(child, "pkill -STOP python3")
                first, second = int(await child.read("a")), int(await child.read("b"))
                hold(first - second in (0, 1), f"the first file says {first} and the second {second}")
        taken = await parent.snapshot()
        before = int(await parent.read("a"))
        with anyio.fail_after(WAIT_SECONDS):
            while int(await parent.read("a")) == before:  # noqa: ASYNC110  a file signals nothing
                await anyio.sleep(0.01)
    async with host.open(SandboxSpec(template=f"snapshot:{taken.id}")) as restored:
        first, second = int(await restored.read("a")), int(await restored.read("b"))
        hold(first - second in (0, 1), f"the first file says {first} and the second {second}")
    await host.delete_snapshot(taken.id)


async def a_snapshot_outlives_its_sandbox_and_opens_as_often_as_wanted(host: Host) -> None:
    name = f"kept-{new_snapshot_id()}"
    async with host.open(SandboxSpec()) as parent:
        await parent.write("file", b"then")
        await text(parent, "rm ~/.bashrc; head -c 2000000 /dev/urandom > large")
        first = await parent.snapshot(name)
        await parent.write("file", b"later")
        second = await parent.snapshot()
    expect((first.name, first.parent, first.template, first.sandbox), (name, None, "default", parent.info.id))
    expect((second.name, second.parent), (None, first.id))
    hold(2_000_000 <= first.size_bytes < 40_000_000, f"{first.size_bytes} bytes were written")
    expect([info for info in await host.snapshots() if info.sandbox == parent.info.id], [first, second])
    for reference in (name, first.id):
        async with host.open(SandboxSpec(template=f"snapshot:{reference}")) as restored:
            expect(await restored.read("file"), b"then")
            expect(await text(restored, "ls ~/.bashrc 2>/dev/null || echo gone"), "gone")
            await restored.write("file", b"changed")
            third = await restored.snapshot()
            expect((third.parent, third.template), (first.id, "default"))
            await host.delete_snapshot(third.id)
    await host.delete_snapshot(name)
    async with host.open(SandboxSpec(template=f"snapshot:{second.id}")) as restored:
        expect(await restored.read("file"), b"later")
    await host.delete_snapshot(second.id)
    expect([info for info in await host.snapshots() if info.sandbox == parent.info.id], [])


async def impossible_snapshots_are_refused(host: Host) -> None:
    name = f"taken-{new_snapshot_id()}"
    async with host.open(SandboxSpec()) as sandbox:
        taken = await sandbox.snapshot(name)
        with refused("name_taken"):
            await sandbox.snapshot(name)
        for bad in ("", "../x", "a b", "-x", "x" * 65, taken.id):
            with refused("bad_name"):
                await sandbox.snapshot(bad)
    await host.delete_snapshot(name)
    with refused("unknown_snapshot"):
        await host.delete_snapshot(name)
    for reference in (name, taken.id, "", "../../etc"):
        with refused("unknown_snapshot"):
            async with host.open(SandboxSpec(template=f"snapshot:{reference}")):
                pass
    with refused("sandbox_lost"):
        await sandbox.snapshot()


async def sandboxes_do_not_see_each_other(host: Host) -> None:
    async with host.open(SandboxSpec()) as one, host.open(SandboxSpec()) as two:
        await one.write("/home/agent/mine", b"1")
        with refused("not_found"):
            await two.read("/home/agent/mine")
        async with one.start(shell("echo up; sleep 983")) as process:
            await first_output(process)
            expect(await text(two, "pgrep -c -f 'sleep 98[3]' || true"), "0")
        expect(await text(two, "ls /work | wc -l"), "0")


async def connections_to_the_proxy_port_reach_the_door(host: Host) -> None:
    seen: list[SandboxId] = []

    async def door(sandbox: SandboxId, stream: ByteStream) -> None:
        seen.append(sandbox)
        head = await stream.receive()
        await stream.send(b"HTTP/1.1 418 No\r\nContent-Length: 4\r\n\r\n" + head[:3] + b"\n")
        await stream.send_eof()

    async with host.open(SandboxSpec(), door) as sandbox:
        expect(await text(sandbox, "curl -s http://somewhere.example/"), "GET")
        expect(seen, [sandbox.info.id])
    async with host.open(SandboxSpec()) as sandbox:
        finished = await sandbox.run(shell("curl -s --max-time 20 http://somewhere.example/"))
        hold(not finished.ok, "without a door there is no way out")


async def a_dead_sandbox_is_lost_at_once_for_every_caller(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        with anyio.fail_after(WAIT_SECONDS), refused("sandbox_lost"):
            await sandbox.run(shell("kill -TERM 1; sleep 981", user="root"))
        with anyio.fail_after(WAIT_SECONDS):
            hold((await sandbox.wait_lost()).endswith("."), "the reason is a sentence")
            for _ in range(2):
                with refused("sandbox_lost"):
                    await sandbox.read("x")
            with refused("sandbox_lost"):
                async with sandbox.fork():
                    pass


async def a_sandbox_ends_when_its_time_is_up(host: Host) -> None:
    async with host.open(SandboxSpec(ttl_seconds=1.0)) as sandbox:
        with anyio.fail_after(WAIT_SECONDS):
            reason = await sandbox.wait_lost()
        hold("time to live" in reason, reason)
        with refused("sandbox_lost"):
            await sandbox.run(Command(("true",)))
    expect(sandbox.info.expires_at - sandbox.info.created_at, 1.0)


async def a_new_time_to_live_counts_from_then_on(host: Host) -> None:
    async with host.open(SandboxSpec(ttl_seconds=2.0)) as sandbox, sandbox.fork() as other:
        await sandbox.set_ttl(300.0)
        for wrong in (0.0, 1e9):
            with refused("bad_sandbox"):
                await sandbox.set_ttl(wrong)
        hold(sandbox.info.expires_at - time.time() > 290, "the record says so")
        with anyio.fail_after(WAIT_SECONDS):
            # Made later with the same time: when it is over, that of the first would be as well.
            await other.wait_lost()
        expect(await text(sandbox, "echo here"), "here")
        await sandbox.set_ttl(1.0)
        with anyio.fail_after(WAIT_SECONDS):
            hold("time to live" in await sandbox.wait_lost(), "the shorter time ends it")


async def a_paused_sandbox_stands_still_and_goes_on(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox, anyio.create_task_group() as tasks:
        ended, left = anyio.Event(), anyio.Event()

        async def command() -> None:
            await sandbox.run(Command(("true",)))
            ended.set()

        async def caller_who_leaves() -> None:
            with anyio.move_on_after(0.2):
                await sandbox.run(Command(("sleep", "1000")))
            left.set()

        async with sandbox.paused():
            tasks.start_soon(command)
            tasks.start_soon(caller_who_leaves)
            with anyio.move_on_after(0.5):
                await ended.wait()
            hold(not ended.is_set(), "nothing runs in it")
            hold(left.is_set(), "a caller may leave")
        with anyio.fail_after(WAIT_SECONDS):
            await ended.wait()
        expect(await text(sandbox, "echo after"), "after")


async def what_a_sandbox_uses_is_counted(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        before = await sandbox.load()
        await text(sandbox, "head -c 30000000 /dev/urandom > /work/big; sync")
        after = await sandbox.load()
        hold(after.cpu_seconds > before.cpu_seconds, f"{before} {after}")
        hold(after.memory_bytes > 0, f"{after}")
        with anyio.fail_after(WAIT_SECONDS):
            while after.disk_bytes is not None and after.disk_bytes - (before.disk_bytes or 0) < 20_000_000:
                await anyio.lowlevel.checkpoint()
                after = await sandbox.load()


async def an_error_in_the_block_is_raised_unchanged(host: Host) -> None:
    class MyError(Exception):
        pass

    try:
        async with (
            host.open(SandboxSpec()) as sandbox,
            sandbox.fork(),
            sandbox.start(Command(("sleep", "982"))),
        ):
            raise MyError
    except MyError:
        return
    raise AssertionError("the error did not come out")


async def an_impossible_spec_is_refused(host: Host) -> None:
    for code, spec in (
        ("unknown_template", SandboxSpec(template="no-such-template")),
        ("bad_sandbox", SandboxSpec(quota=Quota(memory_bytes=1))),
        ("bad_sandbox", SandboxSpec(ttl_seconds=0.0)),
        ("bad_sandbox", SandboxSpec(quota=Quota(disk_bytes=1))),
    ):
        with refused(code):
            async with host.open(spec):
                pass


PROMISES: tuple[Promise, ...] = (*promises(__name__, Host), *MORE_PROMISES)


async def a_provider_has_a_name_and_offers_tiers_by_name(provider: Provider) -> None:
    hold(bool(provider.name), "it has a name")
    hold(bool(provider.tiers), "it offers a tier")
    expect(len(set(provider.tiers)), len(provider.tiers))
    hold("auto" not in provider.tiers, "`auto` is a choice among tiers, not a tier")
    for tier in provider.tiers:
        expect(msgspec.convert(tier, TierName), tier)


async def each_tier_has_a_report_that_names_it_and_its_provider(provider: Provider) -> None:
    for tier in provider.tiers:
        report = await provider.report(tier)
        expect((report.tier, report.provider), (tier, provider.name))
        hold(bool(report.found), "it says what makes the tier, or why it does not work")
        hold(report.works or not report.native, "a tier that does not work is not native")
        expect(await provider.report(tier), report)
        quick = await provider.report(tier, quick=True)
        expect((quick.tier, quick.provider), (tier, provider.name))


async def an_unknown_tier_is_refused_in_one_sentence(provider: Provider) -> None:
    with refused("unknown_tier"):
        async with provider.open(SandboxSpec(tier="no-such-tier")):
            pass


async def a_sandbox_names_its_provider_and_tier(provider: Provider) -> None:
    async with provider.open(SandboxSpec(tier=await _native(provider))) as sandbox:
        isolation = sandbox.info.isolation
        expect((isolation.provider, isolation.tier), (provider.name, await _native(provider)))


async def a_sweep_leaves_the_sandboxes_of_living_owners_alone(provider: Provider) -> None:
    async with provider.open(SandboxSpec(tier=await _native(provider))) as sandbox:
        await provider.sweep()
        hold((await sandbox.run(Command(("true",)))).ok, "it still runs")
    expect(await provider.sweep(), 0)


async def a_closed_provider_opens_again_when_it_is_used(provider: Provider) -> None:
    for _ in range(2):
        await provider.close()
    async with provider.open(SandboxSpec(tier=await _native(provider))) as sandbox:
        hold((await sandbox.run(Command(("true",)))).ok, "it runs")


async def a_provider_lists_only_its_own_snapshots(provider: Provider) -> None:
    hold(all(info.provider == provider.name for info in await provider.snapshots()), "each names it")
    with refused("unknown_snapshot"):
        await provider.delete_snapshot(new_snapshot_id())


async def _native(provider: Provider) -> TierName:
    for tier in provider.tiers:
        if (await provider.report(tier, quick=True)).native:
            return tier
    raise AssertionError("no tier works at native speed")


PROVIDER_PROMISES: tuple[Callable[[Provider], Awaitable[None]], ...] = promises(__name__, Provider)
