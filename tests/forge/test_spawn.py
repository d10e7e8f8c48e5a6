"""Host processes for git end in time, print no more than allowed, and leave nothing behind."""

import os
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import to_thread
from tests.core.system.cancelled import left_behind

from cloister.core.errors import HostError, OutsideError
from cloister.forge._spawn import Result, Spec, converse, run
from cloister.forge.host import own_env, person_env

pytestmark = pytest.mark.anyio


def _sh(line: str, *, seconds: float = 20.0, limit_bytes: int = 1_000) -> Spec:
    return Spec(("sh", "-c", line), own_env(), seconds, limit_bytes)


async def test_output_and_errors_are_collected() -> None:
    assert await run(_sh("cat; echo bad >&2; exit 3"), b"in") == Result(3, b"in", b"bad\n")


async def test_a_process_that_prints_too_much_is_cut_off() -> None:
    result = await run(_sh("yes"))
    assert (result.cut, result.ok, len(result.out)) == (True, False, 1_000)


@pytest.mark.parametrize("line", ["yes >&2", "yes >&2 & wait", "(trap '' TERM; yes >&2)"])
async def test_errors_and_progress_without_end_are_cut_off(line: str) -> None:
    result = await run(_sh(line, seconds=3_600.0))
    assert (result.ok, result.out) == (False, b"")
    assert result.err.startswith(b"y\n") or result.err.startswith(b"\ny")
    assert result.err.endswith(b"fatal: it sent more than 16 MiB of messages\n") and len(result.err) < 66_000


async def test_much_progress_is_no_error_and_its_end_is_kept() -> None:
    result = await run(_sh("head -c 8000000 /dev/zero | tr '\\0' . >&2; echo the reason >&2; echo done"))
    assert result.ok and result.out == b"done\n" and result.err.endswith(b"...the reason\n")


async def test_a_process_that_takes_too_long_is_ended() -> None:
    with pytest.raises(OutsideError) as caught:
        await run(_sh("sleep 1000", seconds=0.05))
    assert (caught.value.code, caught.value.retryable) == ("git_timeout", True)


async def test_unread_input_is_not_an_error() -> None:
    assert (await run(_sh("exec <&-; exit 0"), b"x" * 1_000_000)).ok


async def test_a_descendant_that_holds_the_pipe_does_not_hold_us() -> None:
    with anyio.fail_after(60):
        assert (await run(_sh("sleep 1000 >&2 & exit 0"))).ok


async def test_cancelling_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    alive: list[int] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, _sh(f"sleep 1000 & echo $! $$ > {pids}; wait"))
            text = await to_thread.run_sync(pids.read_text)
            alive = [os.pidfd_open(int(pid)) for pid in text.split()]
            tasks.cancel_scope.cancel()
        for fd in alive:
            await anyio.wait_readable(fd)  # that is: it has ended
            os.close(fd)
    assert len(alive) == 2


async def test_a_process_that_begins_in_the_moment_of_a_cancellation_is_ended_and_waited_for() -> None:
    assert await left_behind(partial(run, _sh("sleep 1000 & wait"))) == {}


def test_nothing_but_the_path_is_inherited_by_git_on_our_repositories() -> None:
    env = own_env({"PATH": "/some/bin", "GIT_DIR": "/elsewhere", "SECRET": "x"})
    assert env["PATH"] == "/some/bin"
    assert own_env()["PATH"] == os.environ["PATH"]
    assert {"GIT_DIR", "SECRET"}.isdisjoint(env)
    assert env["GIT_CONFIG_NOSYSTEM"] == "1" and env["GIT_CONFIG_GLOBAL"] == "/dev/null"


def test_a_persons_environment_is_kept_but_for_what_names_another_repository() -> None:
    known = {"GIT_DIR": "/elsewhere", "GIT_SSH_COMMAND": "ssh -i key", "SSH_AUTH_SOCK": "/agent"}
    env = person_env(known)
    assert person_env()["PATH"] == os.environ["PATH"]
    assert "GIT_DIR" not in env
    assert (env["GIT_SSH_COMMAND"], env["SSH_AUTH_SOCK"]) == ("ssh -i key", "/agent")
    assert env["GIT_TERMINAL_PROMPT"] == "0"


@pytest.mark.parametrize(
    "dies",
    ["kill -9 $$", "echo 'error: index-pack died of signal 9' >&2; exit 128", "sh -c 'kill -9 $$'; exit $?"],
    ids=["itself", "its child", "a child of a shell"],
)
async def test_a_git_that_is_killed_runs_again_and_is_named_if_it_never_ends_well(
    tmp_path: Path, dies: str
) -> None:
    killed = tmp_path / "killed"
    once = _sh(f"test -e {killed} && exec cat; : > {killed}; {dies}")
    assert await run(once, b"in") == Result(0, b"in", b"")
    with pytest.raises(HostError) as caught:
        await run(_sh(dies))
    assert caught.value.code == "git_killed"
    assert "was killed by signal 9" in caught.value.message


async def test_an_ordinary_failure_of_git_is_not_repeated(tmp_path: Path) -> None:
    count = tmp_path / "count"
    for code in (1, 2, 128, 129):
        count.write_text("")
        assert (await run(_sh(f"echo >> {count}; exit {code}"))).code == code
        assert count.read_text() == "\n"


async def test_a_conversation_is_repeated_when_either_side_is_killed(tmp_path: Path) -> None:
    for side in ("server", "client"):
        killed = tmp_path / side
        dies = f"test -e {killed} || {{ : > {killed}; kill -9 $$; }}"
        server = _sh((dies if side == "server" else ":") + "; echo hello")
        client = _sh((dies if side == "client" else ":") + '; read word <&"${0#fd::}" && echo "$word"')
        client = msgspec.structs.replace(client, argv=("bash", *client.argv[1:], "fd::"))
        assert (await converse(server, client, 3)).out == b"hello\n"
