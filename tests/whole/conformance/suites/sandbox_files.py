"""The promises of every sandbox about files, ports and ending commands; `conformance.sandbox.PROMISES` has them too."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
from tests.whole.conformance.suites.base import expect, hold, promises, refused

from cloister.core import limits
from cloister.core.computer import Command, Exited, Finished, Output, Process, shell
from cloister.sandbox.api import Host, Sandbox, SandboxSpec

WAIT_SECONDS = 30.0
"""How long a promise may take to be seen; only a broken one takes so long."""

Promise = Callable[[Host], Awaitable[None]]


async def first_output(process: Process) -> bytes:
    async for item in process:
        if isinstance(item, Output):
            return item.data
    raise AssertionError("the command ended without output")


async def rest(process: Process) -> Finished:
    """Everything up to the end."""
    out, err = bytearray(), bytearray()
    async for item in process:
        match item:
            case Output("out", data):
                out += data
            case Output(_, data):
                err += data
            case Exited():
                return Finished(item, bytes(out), bytes(err))
    raise AssertionError("there was no end")


async def ample_seconds(sandbox: Sandbox) -> float:
    """A time in which a shell has long begun, however slow this sandbox is on this machine now."""
    began = anyio.current_time()
    await sandbox.run(shell("true"))
    return 0.3 + 10 * (anyio.current_time() - began)


async def text(sandbox: Sandbox, line: str) -> str:
    """What a shell line prints; it must succeed."""
    finished = await sandbox.run(shell(line))
    hold(finished.ok, f"{line!r} ended with {finished.exited}: {finished.err!r}")
    return finished.out.decode().strip()


async def names_are_looked_at_moved_made_and_removed(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.mkdir("a/b", mode=0o750)
        await sandbox.mkdir("a/b")
        await sandbox.write("a/b/file", b"12345")
        await text(sandbox, "ln -s /etc a/link; mkfifo a/pipe")
        entry = await sandbox.stat("a/b/file")
        expect((entry.name, entry.kind, entry.size), ("file", "file", 5))
        kinds = [(await sandbox.stat(f"a/{name}")).kind for name in ("b", "link", "pipe")]
        expect(kinds, ["dir", "link", "other"])
        await sandbox.move("a/b/file", "new/place")
        expect(await sandbox.read("new/place"), b"12345")
        await sandbox.move("new", "/tmp/elsewhere")
        expect(await sandbox.read("/tmp/elsewhere/place"), b"12345")
        with refused("file_failed"):
            await sandbox.remove("a")
        await sandbox.remove("a", recursive=True)
        expect(await sandbox.list("."), ())
        hold(await text(sandbox, "test -d /etc/apt && echo still") == "still", "no link was followed")
        for code, path in (("not_found", "a"), ("denied", "/etc/passwd"), ("denied", "/usr")):
            with refused(code):
                await sandbox.remove(path, recursive=True)


async def a_mark_is_another_one_after_any_change(host: Host) -> None:
    changes = (
        *("echo 1 > a/file", "echo 2 > a/file", "chmod 600 a/file", "mv a/file a/other", "touch a/b/.hidden"),
        *("ln -s b a/link", "ln -sfn c a/link", "rm a/b/.hidden", "printf 3 1<> a/other", "rm -r a"),
    )
    async with host.open(SandboxSpec()) as sandbox:

        async def mark(line: str) -> int | None:
            await text(sandbox, f"{line}; echo x >> .git/index; ls -R > /dev/null")
            with anyio.fail_after(WAIT_SECONDS):
                while (found := await sandbox.mark(".", without=".git")) == 0:
                    await anyio.lowlevel.checkpoint()  # it was only just changed
            expect(await sandbox.mark(".", without=".git"), found)
            return found

        marks = [await mark("mkdir -p a/b .git"), *[await mark(change) for change in changes]]
        expect(len({*marks, None}), len(marks) + 1)
        hold(await sandbox.mark(".") != marks[-1], "nothing is ignored unless the caller asks for it")
        await text(sandbox, "seq 3000 | xargs touch; ln -s / out; mkfifo pipe")
        expect(await sandbox.mark("."), None)
        for code, path in (("not_found", "none"), ("not_a_directory", "pipe")):
            with refused(code):
                await sandbox.mark(path)


async def streams_have_any_size_and_are_whole_or_not_there(host: Host) -> None:
    piece, pieces = bytes(range(256)) * 4_096, 40
    async with host.open(SandboxSpec()) as sandbox:
        async with sandbox.write_stream("big", mode=0o600) as sink:
            for _ in range(pieces):
                await sink.send(piece)
        expect(await text(sandbox, "stat -c '%s %a' big"), f"{len(piece) * pieces} 600")
        size = 0
        async with sandbox.read_stream("big") as read:
            async for data in read:
                hold(data == (piece * 2)[size % len(piece) :][: len(data)], "what went in comes out")
                size += len(data)
        expect(size, len(piece) * pieces)
        try:
            async with sandbox.write_stream("big") as sink:
                await sink.send(b"half")
                raise KeyError
        except KeyError:
            expect(await text(sandbox, "ls -A | tr '\\n' ' '; stat -c %s big"), f"big {len(piece) * pieces}")
        with refused("denied"):
            async with sandbox.write_stream("/etc/passwd") as sink:
                await sink.send(b"evil")
        await text(sandbox, "mkfifo pipe; ln -s /dev/zero zero")
        for path in ("pipe", "zero", "."):
            with anyio.fail_after(WAIT_SECONDS), refused("not_a_file"):
                async with sandbox.read_stream(path):
                    pass


async def changes_are_told_as_they_happen(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.mkdir("watched/below")
        async with sandbox.watch("watched") as changes:
            await sandbox.write("watched/below/file", b"x")
            with anyio.fail_after(WAIT_SECONDS):
                while (await anext(changes)).path != "below/file":
                    pass
            await text(sandbox, "rm -r watched")
            with anyio.fail_after(WAIT_SECONDS):
                kinds = [change.kind async for change in changes]
            hold("removed" in kinds, f"the removal is reported: {kinds}")
        with refused("not_found"):
            async with sandbox.watch("watched"):
                pass


async def a_tree_goes_from_one_sandbox_to_another_as_it_is(host: Host) -> None:
    async with host.open(SandboxSpec()) as one, host.open(SandboxSpec()) as two:
        await text(
            one, "mkdir -p t/below; head -c 3000000 /dev/urandom > t/below/file; chmod 751 t/below/file"
        )
        await text(one, "ln -s /etc/shadow t/link")
        async with one.download("t") as pieces, two.upload("copy") as sink:
            async for data in pieces:
                await sink.send(data)
        sums = "cd {} && sha256sum below/file; stat -c '%a %U' below/file; readlink link"
        expect(await text(two, sums.format("copy")), await text(one, sums.format("t")))
        with refused("bad_archive"):
            async with two.upload("bad") as sink:
                await sink.send(b"this is no archive" * 100)


async def a_server_inside_is_reached_through_its_port(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("page", b"hello")
        line = "python3 -u -m http.server --bind 127.0.0.1 8080 2>&1"
        async with sandbox.start(shell(line)) as server:
            await first_output(server)
            for _ in range(2):
                async with await sandbox.dial(8080) as stream:
                    await stream.send(b"GET /page HTTP/1.0\r\n\r\n")
                    with anyio.fail_after(WAIT_SECONDS):
                        reply = b"".join([data async for data in stream])
                hold(reply.endswith(b"hello"), f"the page came: {reply!r}")
        with refused("no_such_port"):
            await sandbox.dial(8080)
        with refused("bad_port"):
            await sandbox.dial(0)


async def killing_a_command_ends_its_tree_and_says_so(host: Host) -> None:
    stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 980' &); echo up; sleep 980"
    async with host.open(SandboxSpec()) as sandbox:
        async with sandbox.start(shell(stubborn, grace_seconds=0.2)) as process:
            await first_output(process)
            await process.kill()
            exited = (await rest(process)).exited
            expect((exited.killed, exited.ok), ("cancelled", False))
            await process.kill()
        expect(await text(sandbox, "pgrep -c -f 'sleep 98[0]' || true"), "0")


async def a_command_keeps_the_limits_it_was_given(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        both = [Command(("yes",), limit_bytes=size, grace_seconds=0.1) for size in (0, 1, 100_000)]
        for command in both:
            finished = await sandbox.run(command)
            expect((len(finished.out), finished.exited.killed), (command.limit_bytes, "output"))
        slow = await sandbox.run(Command(("sleep", "979"), seconds=0.2, grace_seconds=0.1))
        expect(slow.exited.killed, "time")
        quick = await sandbox.run(shell("echo -n 12345", limit_bytes=5))
        expect((quick.out, quick.exited.killed), (b"12345", None))


class _Waiters:
    """People who wait for all kinds of things in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.waiting = anyio.Semaphore(0)
        self.all = (self.command, self.stdin, self.reading, self.writing, self.watching)

    async def command(self) -> None:
        async with self._sandbox.start(shell("echo up; sleep 978")) as process:
            await first_output(process)
            self.waiting.release()
            await rest(process)

    async def stdin(self) -> None:
        async with self._sandbox.start(Command(("sleep", "978"))) as process:
            self.waiting.release()
            await process.send(bytes(10 * limits.WINDOW_BYTES))

    async def reading(self) -> None:
        async with self._sandbox.read_stream("big") as pieces:
            self.waiting.release()
            await self._sandbox.wait_lost()
            async for _ in pieces:
                pass

    async def writing(self) -> None:
        async with self._sandbox.write_stream("new"):
            self.waiting.release()
            await self._sandbox.wait_lost()

    async def watching(self) -> None:
        async with self._sandbox.watch("/work") as changes:
            self.waiting.release()
            while True:
                await anext(changes)


async def everyone_who_waits_on_a_lost_sandbox_is_told(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("big", bytes(4_000_000))
        waiters, told = _Waiters(sandbox), list[str]()

        async def wait(what: Callable[[], Awaitable[None]]) -> None:
            with anyio.fail_after(WAIT_SECONDS), refused("sandbox_lost"):
                await what()
            told.append(what.__name__)

        async with anyio.create_task_group() as tasks:
            for what in waiters.all:
                tasks.start_soon(wait, what)
            with anyio.fail_after(WAIT_SECONDS):
                for _ in waiters.all:
                    await waiters.waiting.acquire()
                with refused("sandbox_lost"):
                    await sandbox.run(shell("kill -TERM 1; sleep 977", user="root"))
        expect(sorted(told), sorted(what.__name__ for what in waiters.all))


MORE_PROMISES: tuple[Promise, ...] = promises(__name__, Host)
