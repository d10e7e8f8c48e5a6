import os
import secrets
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from cloister.core import limits
from cloister.core.computer import Command, Exited, Output, Pty
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol.link import Link, RunningCommand

pytestmark = pytest.mark.anyio

OpenGuest = Callable[..., AbstractAsyncContextManager[tuple[Link, Process]]]
SELF = "--no-user-switch"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="switching users needs root")


def sh(line: str, **more: object) -> Command:
    fields: dict[str, object] = {"cwd": "/", "seconds": 20.0, **more}
    return Command(("/bin/sh", "-c", line), **fields)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    """What has ended may still wait for whoever inherited it to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def read_until(process: RunningCommand, wanted: bytes) -> bytes:
    seen = b""
    async for item in process:
        assert isinstance(item, Output), item
        seen += item.data
        if wanted in seen:
            return seen
    raise AssertionError(seen)


async def last(process: RunningCommand) -> Exited:
    async for item in process:
        if isinstance(item, Exited):
            return item
    raise AssertionError("it never ended")


async def test_the_two_streams_and_the_status_arrive_apart(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        done = await link.run(sh("echo out; echo err >&2; exit 7"))
    assert (done.out, done.err) == (b"out\n", b"err\n")
    assert (done.exited.code, done.exited.signal, done.exited.killed) == (7, None, None)


async def test_a_signal_that_ends_a_program_is_reported(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        done = await link.run(sh("kill -SEGV $$"))
    assert (done.exited.code, done.exited.signal, done.exited.killed) == (None, signal.SIGSEGV, None)


async def test_environment_directory_and_input_are_the_commands_own(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    async with open_guest(SELF) as (link, _):
        done = await link.run(sh('pwd; echo "$A $LANG"; cat', cwd=str(tmp_path), env={"A": "ü"}), b"in")
    assert done.out.decode() == f"{tmp_path}\nü C.UTF-8\nin"


async def test_a_program_that_does_not_exist_is_a_user_error(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with pytest.raises(UserError) as missing:
            await link.run(Command(("no-such-program",), cwd="/"))
        with pytest.raises(UserError) as nowhere:
            await link.run(sh("true", cwd="/no/such/place"))
        with pytest.raises(UserError) as no_directory:
            await link.run(sh("true", cwd="/etc/passwd"))
        with pytest.raises(UserError) as denied:
            await link.run(Command(("/etc/passwd",), cwd="/"))
    codes = [caught.value.code for caught in (missing, nowhere, no_directory, denied)]
    assert codes == ["not_found", "not_found", "not_a_directory", "denied"]


async def test_output_that_is_not_utf8_passes_unchanged(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        done = await link.run(sh(r"printf '\377\000\376a'"))
    assert done.out == b"\xff\x00\xfea"


async def test_megabytes_go_in_and_come_out_unchanged(open_guest: OpenGuest) -> None:
    data = os.urandom(3_000_000)
    async with open_guest(SELF) as (link, _):
        done = await link.run(Command(("cat",), cwd="/"), data)
    assert done.out == data


async def test_no_input_is_an_end_of_input(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(60):
            assert (await link.run(Command(("cat",), cwd="/"))).ok


async def test_unread_input_is_not_an_error(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        done = await link.run(sh("exec <&-; echo ok"), b"x" * 2_000_000)
        assert (done.out, done.ok) == (b"ok\n", True)


async def test_sending_waits_while_the_command_does_not_read(open_guest: OpenGuest, tmp_path: Path) -> None:
    size = 4 * limits.WINDOW_BYTES
    go = tmp_path / "go"
    os.mkfifo(go)
    async with open_guest(SELF) as (link, _), link.start(sh(f"read x < {go}; cat | wc -c")) as process:
        with anyio.fail_after(20):
            sent = anyio.Event()

            async def send() -> None:
                await process.send(b"x" * size)
                await process.send_eof()
                sent.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                # The loop is free for others meanwhile, and the guest too.
                assert (await link.run(sh("echo hi"))).out == b"hi\n"
                await anyio.wait_all_tasks_blocked()
                assert not sent.is_set()
                await anyio.Path(go).write_text("go\n")
                await read_until(process, f"{size}\n".encode())


async def test_a_command_over_its_time_is_ended(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            done = await link.run(sh("exec sleep 1000", seconds=0.2))
    assert (done.exited.code, done.exited.signal, done.exited.killed) == (None, signal.SIGTERM, "time")
    assert done.exited.seconds >= 0.2


async def test_a_command_may_use_its_grace(open_guest: OpenGuest, tmp_path: Path) -> None:
    line = "trap 'echo saved > proof; exit 3' TERM; echo begun; while :; do sleep 0.05; done"
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            async with link.start(sh(line, cwd=str(tmp_path), grace_seconds=15)) as process:
                await read_until(process, b"begun\n")
            assert await link.read(f"{tmp_path}/proof") == b"saved\n"


async def test_a_command_that_ignores_the_request_to_end_is_killed(open_guest: OpenGuest) -> None:
    line = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(30):
            done = await link.run(sh(line, seconds=2, grace_seconds=0.1))
    assert done.out == b"deaf\n"
    assert (done.exited.signal, done.exited.killed) == (signal.SIGKILL, "time")


async def test_a_stopped_command_can_still_be_ended(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            done = await link.run(sh("kill -STOP $$", seconds=0.2, grace_seconds=15))
    assert (done.exited.signal, done.exited.killed) == (signal.SIGTERM, "time")


async def test_ending_a_command_ends_daemons_that_left_its_session(open_guest: OpenGuest) -> None:
    # Two forks and two sessions away, deaf to signals, and no pipe in common with us.
    mine = f"{1_000_000 + secrets.randbelow(1_000_000)}"
    line = (
        f'(setsid sh -c \'trap "" TERM; (setsid sleep {mine}1 </dev/null >/dev/null 2>&1 &) ; echo $$; '
        f"exec sleep {mine}2' </dev/null 2>/dev/null &) ; exec sleep {mine}3"
    )
    count = sh(f"ps -e -o args | grep -c '^[s]leep {mine}'")
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            async with link.start(sh(line, grace_seconds=0.2)) as process:
                daemon = int(await read_until(process, b"\n"))
                assert alive(daemon)
            assert not alive(daemon)
            assert (await link.run(count)).out == b"0\n"


async def test_a_background_child_that_holds_the_pipe_does_not_delay_the_end(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            done = await link.run(sh("sleep 1000 & echo $!"))
            assert done.ok
            assert alive(int(done.out))


async def test_a_background_server_survives_its_first_line_of_log(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    go, proof = tmp_path / "go", tmp_path / "proof"
    os.mkfifo(go)
    os.mkfifo(proof)
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            done = await link.run(
                sh(f"(cat {go} >/dev/null; echo log; echo log; echo alive > {proof}) & true")
            )
            assert done.ok
            await anyio.Path(go).write_text("go")
            assert await anyio.Path(proof).read_text() == "alive\n"


async def test_a_flood_is_cut_at_the_limit_and_killed(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            done = await link.run(Command(("yes",), cwd="/", limit_bytes=1_000_000))
            assert len(done.out) == 1_000_000
            assert done.exited.killed == "output"
            assert (await link.run(sh("echo still here"))).out == b"still here\n"


async def test_an_unread_flood_stops_at_the_window(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, process), link.start(Command(("yes",), cwd="/")) as flood:
        with anyio.fail_after(20):
            for _ in range(20):
                assert (await link.run(sh("echo hi"))).out == b"hi\n"
            seen = 0
            async for item in flood:
                assert isinstance(item, Output)
                seen += len(item.data)
                break
            assert 0 < seen <= limits.WINDOW_BYTES
            status = await anyio.Path(f"/proc/{process.pid}/status").read_text()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            assert resident < 20_000  # kB


async def test_signals_reach_the_whole_group(open_guest: OpenGuest) -> None:
    line = "trap 'echo caught' USR1; echo ready; while :; do sleep 0.05; done"
    async with open_guest(SELF) as (link, _), link.start(sh(line)) as process:
        with anyio.fail_after(20):
            await read_until(process, b"ready\n")
            await process.signal(signal.SIGUSR1)
            await read_until(process, b"caught\n")
            await process.signal(signal.SIGKILL)
            exited = await last(process)
            assert (exited.signal, exited.killed) == (signal.SIGKILL, "signal")
            await process.send(b"ignored")
            await process.signal(signal.SIGTERM)
        with pytest.raises(UserError):
            await process.signal(0)


async def test_a_terminal_has_a_size_that_can_change(open_guest: OpenGuest) -> None:
    line = "stty size; trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    async with open_guest(SELF) as (link, _), link.start(sh(line, pty=Pty(30, 100))) as process:
        with anyio.fail_after(20):
            assert b"30 100\r\n" in await read_until(process, b"ready\r\n")
            await process.resize(Pty(40, 120))
            await read_until(process, b"40 120\r\n")


async def test_a_terminal_is_a_terminal(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            done = await link.run(
                sh("test -t 0 && test -t 1 && test -t 2 && echo yes > /dev/tty; cat", pty=Pty()), b"x\n"
            )
            assert done.exited.ok
            # The terminal's echo, the command's word and cat's copy, in whichever order.
            assert sorted(done.out.splitlines()) == [b"x", b"x", b"yes"]
            assert done.err == b""
            done = await link.run(sh("seq 20000", pty=Pty()))
            assert done.out.endswith(b"\r\n20000\r\n")


async def test_a_hundred_commands_at_once_each_get_their_own_answer(open_guest: OpenGuest) -> None:
    answers: dict[int, bytes] = {}
    places = anyio.CapacityLimiter(limits.CONCURRENT_COMMANDS)

    async def one(link: Link, number: int) -> None:
        async with places:
            done = await link.run(sh(f"echo {number}; cat; echo {number} >&2"), str(number).encode())
        answers[number] = done.out + done.err

    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(one, link, number)
    assert answers == {n: f"{n}\n{n}{n}\n".encode() for n in range(100)}


async def test_one_command_too_many_is_refused_and_the_others_go_on(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _), anyio.create_task_group() as tasks:
        for _ in range(limits.CONCURRENT_COMMANDS):
            tasks.start_soon(link.run, sh("exec sleep 1000"))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UserError) as caught:
            await link.run(sh("true"))
        assert caught.value.code == "too_many_commands"
        tasks.cancel_scope.cancel()


async def test_leaving_early_kills_the_command(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with anyio.fail_after(20):
            async with link.start(sh("trap '' TERM; echo $$; yes", grace_seconds=0.1)) as process:
                pid = int((await read_until(process, b"\n")).split()[0])
            assert not alive(pid)


async def test_when_the_guest_dies_every_waiter_raises_at_once(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, process):
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    with pytest.raises(SandboxLost):
                        await link.run(sh("exec sleep 1000"))

                tasks.start_soon(wait)
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                process.kill()
            with pytest.raises(SandboxLost):
                await link.run(sh("true"))
            with pytest.raises(SandboxLost):
                await link.read("/etc/passwd")
        assert link.lost.is_set()
        assert link.reason == "The guest has ended."


async def test_the_time_to_live_ends_the_guest_and_its_commands(open_guest: OpenGuest) -> None:
    async with open_guest(SELF, ttl_seconds=1) as (link, process):
        with anyio.fail_after(20), pytest.raises(SandboxLost):
            await link.run(sh("exec sleep 1000", seconds=60))
        with anyio.fail_after(20):
            await process.wait()


async def test_closing_the_link_ends_running_commands(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, process):
        done = await link.run(sh("setsid sleep 1000 >/dev/null 2>&1 & echo $!"))
        assert done.ok
        await link.fail("enough")
        with anyio.fail_after(20):
            assert await process.wait() == 0
    assert not alive(int(done.out))


@pytest.mark.parametrize(
    "command",
    [
        Command(()),
        Command(("",)),
        Command(("a\0b",)),
        Command(("\ud800",)),
        Command(("true",), env={"A=B": "c"}),
        Command(("true",), env={"": "c"}),
        Command(("true",), seconds=float("inf")),
        Command(("true",), seconds=-1),
        Command(("true",), seconds=5_000_000),
        Command(("true",), grace_seconds=float("nan")),
        Command(("true",), pty=Pty(0, 80)),
        Command(("true",), pty=Pty(24, 70_000)),
    ],
    ids=repr,
)
async def test_a_command_that_cannot_be_is_a_user_error(open_guest: OpenGuest, command: Command) -> None:
    async with open_guest(SELF) as (link, _):
        with pytest.raises(UserError) as caught:
            await link.run(command)
        assert caught.value.code == "bad_command"
        assert (await link.run(sh("echo on"))).out == b"on\n"


async def test_a_command_line_that_is_too_long_names_the_fix(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        with pytest.raises(UserError) as caught:
            await link.run(Command(("echo", "x" * 70_000), cwd="/"))
        assert caught.value.code == "command_too_long"
        assert "stdin" in caught.value.message


@needs_root
async def test_commands_run_as_the_agent_without_any_capability(open_guest: OpenGuest) -> None:
    async with open_guest() as (link, _):
        done = await link.run(sh("id -u; id -g; id -G; grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status"))
        rooted = await link.run(sh("id -u; ulimit -c; ls /proc/self/fd | wc -l", user="root"))
    lines = done.out.decode().split("\n")
    assert lines[:3] == ["1000", "1000", "1000"]
    status = dict(line.split(":\t") for line in lines[3:] if line)
    assert {value for name, value in status.items() if name.startswith("Cap")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert rooted.out.decode().split() == ["0", "0", "4"]


@needs_root
async def test_the_agent_can_neither_signal_nor_look_into_its_supervisor(open_guest: OpenGuest) -> None:
    async with open_guest() as (link, _):
        done = await link.run(sh("kill -9 $PPID; ls -l /proc/$PPID/fd; echo $?"))
    assert done.ok
    assert b"ermission denied" in done.err
    assert b"not permitted" in done.err
