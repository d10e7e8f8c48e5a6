"""The guest's parser under a fuzzer, and the whole guest under sanitizers."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Change, Command, Pty, shell
from cloister.core.errors import UserError
from cloister.sandbox._spawn import capture, pipes, spawn
from cloister.sandbox.local.guest_build import guest_sources, source_dir
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import encode
from cloister.sandbox.protocol.link import Link, link_over

pytestmark = pytest.mark.anyio

FUZZ = source_dir() / "fuzz" / "fuzz.c"
STRICT = ("-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all")
# What is not freed when the guest ends at once is not a leak but the end.
ENV = {"ASAN_OPTIONS": "detect_leaks=0", "PATH": os.environ.get("PATH", "/usr/bin:/bin")}
DIAL = frames.FIRST_DIAL


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Conversations that a host really has."""
    setup = encode(frames.Setup(60, 0, "x"))
    sent = {
        "program": [
            frames.Start(1, ("sh", "-c", "true"), env=("A=b",)),
            frames.Bytes(1, b"in" * 1_000),
            frames.Signal(1, 15),
            frames.End(1),
            frames.Credit(1, 70_000),
            frames.Kill(1),
        ],
        "pty": [
            frames.Start(1, ("sh",), pty=True, rows=3, columns=4),
            frames.Resize(1, 5, 6),
            frames.Bytes(1, b"x"),
            frames.End(1),
        ],
        "dial": [
            frame
            for number in range(40)
            for frame in (frames.Dial(DIAL + number, 80 + number), frames.Bytes(DIAL + number, b"x" * 300))
        ]
        + [frames.End(DIAL + 1), frames.Close(DIAL), frames.Credit(DIAL + 2, 5)],
        "many": [frames.Start(number, ("x",)) for number in range(1, 80)],
        "files": [
            frames.Start(number + 1, ("a", "1", "2"), kind)
            for number, kind in enumerate(
                ("read", "write", "list", "stat", "move", "remove", "mkdir", "watch", "mark")
            )
        ],
        "copied": [
            frames.Start(1, ("x",)),
            frames.Dial(DIAL, 80),
            frames.Hold(on=True),
            frames.Wake(1, 2, 3, "0" * 32, b"seed"),
            frames.Setup(60, 0, "y"),
            frames.Start(1, ("x",)),
            frames.Kill(1),
        ],
        "flood": [frames.Start(1, ("x",)), *[frames.Bytes(1, bytes(65_536))] * 5],
    }
    directory = tmp_path / "corpus"
    directory.mkdir()
    for name, said in sent.items():
        (directory / name).write_bytes(setup + b"".join(map(encode, said)))
    # As in a container: there the greeting has one byte more, see `reset` in fuzz.c.
    (directory / "container").write_bytes(encode(frames.Setup(60, 0, "xy")) + encode(frames.Kill(1)))
    return directory


async def build(compiler: str, target: Path, *more: str) -> None:
    path = shutil.which(compiler)
    if path is None:
        pytest.skip(f"there is no {compiler} on this machine")
    done = await capture([path, *STRICT, "-o", str(target), *more], seconds=120)
    if not done.ok and b"cannot find" in done.err:
        pytest.skip(f"{compiler} has no sanitizers here: {done.err.decode().strip().splitlines()[0]}")
    assert done.ok, done.err.decode()


@pytest.mark.long
async def test_mutated_conversations_only_ever_end_the_guest(
    tmp_path: Path, corpus: Path, long: bool
) -> None:
    program = tmp_path / "fuzz"
    await build("cc", program, "-DSTANDALONE", "-fsanitize=address,undefined", str(FUZZ))
    seeds = [str(path) async for path in anyio.Path(corpus).iterdir()]
    rounds = 100_000 if long else 1_500
    done = await capture([str(program), str(rounds), *sorted(seeds)], env=ENV, seconds=3_600 if long else 300)
    assert done.ok, done.err.decode(errors="replace")[-4_000:]


@pytest.mark.long
async def test_libfuzzer_finds_nothing_in_a_bounded_run(tmp_path: Path, corpus: Path, long: bool) -> None:
    program = tmp_path / "fuzz"
    await build("clang", program, "-fsanitize=fuzzer,address,undefined", str(FUZZ))
    options = [
        *(("-max_total_time=600",) if long else ("-runs=5000", "-max_total_time=20", "-seed=1")),
        "-detect_leaks=0",
        f"-artifact_prefix={tmp_path}/",
    ]
    done = await capture([str(program), *options, str(corpus)], env=ENV, seconds=1_200)
    assert done.ok, done.err.decode(errors="replace")[-4_000:]


@asynccontextmanager
async def watched_guest(tmp_path: Path) -> AsyncGenerator[Link]:
    """A whole guest with sanitizers in it, which must have found nothing when it ends."""
    program = tmp_path / "guest"
    sources = [str(path) for path in guest_sources(source_dir()) if path.suffix == ".c"]
    await build("cc", program, "-fsanitize=address,undefined", *sources)
    said = bytearray()
    async with spawn([str(program), "--no-seccomp", "--no-user-switch"], env=ENV) as process:
        stdin, stdout, stderr = pipes(process)
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                async for data in stderr:
                    said.extend(data)

            tasks.start_soon(listen)
            env = {"PATH": ENV["PATH"]}
            async with link_over(stdin, stdout, frames.Setup(120, 0, "x"), env=env) as link:
                yield link
            with anyio.fail_after(30):
                await process.wait()
    assert (process.returncode, said.decode(errors="replace")) == (0, "")


async def test_a_day_in_the_life_of_a_guest_is_clean_under_sanitizers(tmp_path: Path) -> None:
    at = tmp_path / "files"
    at.mkdir()
    async with watched_guest(tmp_path) as link:
        data = os.urandom(1_000_000)
        assert (await link.run(Command(("cat",), cwd="/", limit_bytes=2_000_000), data)).out == data
        assert (await link.run(shell("exit 3", cwd="/"))).exited.code == 3
        stubborn = "trap '' TERM; (setsid sleep 60 &); sleep 60"
        assert (
            await link.run(shell(stubborn, cwd="/", seconds=0.2, grace_seconds=0.1))
        ).exited.killed == "time"
        flood = await link.run(Command(("yes",), cwd="/", limit_bytes=100_000, grace_seconds=0.1))
        assert flood.exited.killed == "output"
        async with link.start(shell("read x; echo $x", cwd="/", pty=Pty())) as process:
            await process.resize(Pty(10, 20))
            await process.send(b"typed\n")
            assert b"typed" in b"".join([getattr(item, "data", b"") async for item in process])
        await link.write(f"{at}/deep/file", data)
        assert await link.read(f"{at}/deep/file", offset=5, limit_bytes=7) == data[5:12]
        async with link.watch(str(at)) as changes:
            await link.move(f"{at}/deep", f"{at}/deeper/still")
            with anyio.fail_after(20):
                while await anext(changes) != Change("created", "deeper/still"):
                    pass
        assert (await link.stat(f"{at}/deeper/still/file")).size == len(data)
        await link.mkdir(f"{at}/new")
        await link.remove(f"{at}/deeper", recursive=True)
        assert [entry.name for entry in await link.list(str(at))] == ["new"]
        for wrong in (
            link.read(f"{at}/none"),
            link.dial(1),
            link.run(Command(("no-such-program",), cwd="/")),
        ):
            with pytest.raises(UserError):
                await wrong
