"""What every kind of sandbox promises of its files and its ports; `sandbox_conformance.PROMISES` has these, too."""

import anyio
import anyio.lowlevel

from cloister.core.commands import shell
from cloister.sandbox.api import Host, SandboxSpec
from cloister.testing.expecting import WAIT_SECONDS, Promise, expect, first_output, hold, refused, text


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
        await sandbox.move("new", "/tmp/elsewhere")  # noqa: S108 (the sandbox's)
        expect(await sandbox.read("/tmp/elsewhere/place"), b"12345")  # noqa: S108
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
        hold(await sandbox.mark(".") != marks[-1], "nothing is left aside unless that is asked for")
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
            hold("removed" in kinds, f"the removal is told: {kinds}")
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


FILE_PROMISES: tuple[Promise, ...] = (
    names_are_looked_at_moved_made_and_removed,
    a_mark_is_another_one_after_any_change,
    streams_have_any_size_and_are_whole_or_not_there,
    changes_are_told_as_they_happen,
    a_tree_goes_from_one_sandbox_to_another_as_it_is,
    a_server_inside_is_reached_through_its_port,
)
