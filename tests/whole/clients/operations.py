"""What is tried of each published client: one list makes the tests and the table in docs/reference/compat.md.

The code of an operation runs with the client that a registry has, unmodified, one after the other in one program.
"""

import sys
from typing import NamedTuple


class Operation(NamedTuple):
    """One thing that a client can do."""

    name: str
    code: str
    note: str = ""
    """What is different here."""


E2B = (
    Operation(
        "create",
        """
        from e2b import Sandbox, NotFoundException, CommandExitException, SandboxQuery, TimeoutException, InvalidArgumentException
        import io, time
        s = Sandbox.create(timeout=300, metadata={"user": "ada l"}, envs={"COLOUR": "red"})
        """,
        "the templates `base` and `code-interpreter-v1` are `default`; a network is decided by the policy",
    ),
    Operation("is_running", "assert s.is_running()"),
    Operation(
        "get_info",
        """
        info = s.get_info()
        assert info.sandbox_id == s.sandbox_id and info.metadata == {"user": "ada l"} and info.cpu_count >= 1
        """,
    ),
    Operation(
        "list",
        """
        assert [x.sandbox_id for x in Sandbox.list(query=SandboxQuery(metadata={"user": "ada l"})).next_items()] == [s.sandbox_id]
        assert Sandbox.list(query=SandboxQuery(metadata={"user": "eve"})).next_items() == []
        """,
    ),
    Operation(
        "set_timeout",
        """
        s.set_timeout(600)
        assert (s.get_info().end_at - s.get_info().started_at).total_seconds() > 500
        """,
    ),
    Operation("commands.run", 'assert s.commands.run("echo $COLOUR; pwd").stdout == "red\\n/home/user\\n"'),
    Operation(
        "commands.run, streamed",
        """
        seen = []
        r = s.commands.run("echo one; echo two >&2", on_stdout=seen.append, on_stderr=seen.append, cwd="/tmp", envs={"A": "b"})
        assert (r.stdout, r.stderr, sorted(seen)) == ("one\\n", "two\\n", ["one\\n", "two\\n"])
        """,
    ),
    Operation(
        "commands.run, failing",
        """
        try:
            s.commands.run("echo bad >&2; exit 3")
            raise AssertionError
        except CommandExitException as e:
            assert (e.exit_code, e.stderr) == (3, "bad\\n")
        """,
    ),
    Operation(
        "commands.run, timeout",
        """
        try:
            s.commands.run("sleep 60", timeout=1)
            raise AssertionError
        except TimeoutException:
            pass
        """,
    ),
    Operation(
        "commands.run as root",
        'assert s.commands.run("id -u", user="root").stdout == "0\\n" and s.commands.run("id -u").stdout != "0\\n"',
        "every user but `root` is the agent",
    ),
    Operation(
        "commands in the background",
        """
        h = s.commands.run("echo begun; read x; echo got $x", background=True, stdin=True)
        assert h.pid in [p.pid for p in s.commands.list()]
        s.commands.send_stdin(h.pid, "word\\n")
        assert h.wait().stdout == "begun\\ngot word\\n"
        """,
    ),
    Operation(
        "commands.connect, close_stdin, kill",
        """
        h = s.commands.run("cat; echo end", background=True, stdin=True)
        h.disconnect()
        again = s.commands.connect(h.pid)
        s.commands.close_stdin(h.pid)
        assert again.wait().stdout == "end\\n"
        h = s.commands.run("sleep 1000", background=True)
        assert s.commands.kill(h.pid) and not s.commands.kill(1)
        """,
    ),
    Operation(
        "pty",
        """
        from e2b import PtySize
        seen = []
        t = s.pty.create(PtySize(rows=33, cols=77), on_data=None) if False else s.pty.create(PtySize(rows=33, cols=77))
        s.pty.resize(t.pid, PtySize(rows=20, cols=60))
        s.pty.send_stdin(t.pid, b"stty size; exit 0\\n")
        t.wait(on_pty=lambda data: seen.append(data))
        assert b"20 60" in b"".join(seen), seen
        """,
    ),
    Operation(
        "files.write, read",
        """
        w = s.files.write("dir/hello.txt", "hello")
        assert (w.path, w.name) == ("/home/user/dir/hello.txt", "hello.txt")
        assert s.files.read("/home/user/dir/hello.txt") == "hello"
        assert bytes(s.files.read("dir/hello.txt", format="bytes")) == b"hello"
        assert s.commands.run("cat dir/hello.txt").stdout == "hello"
        s.files.write("blob", io.BytesIO(bytes(range(256)) * 4096))
        assert len(s.files.read("blob", format="bytes")) == 1048576
        """,
        "as the agent, whatever the user",
    ),
    Operation(
        "files.write_files, gzip, forms",
        """
        s.files.write_files([{"path": "a.txt", "data": "a"}, {"path": "b.txt", "data": b"b"}])
        assert s.files.read("a.txt") + s.files.read("b.txt") == "ab"
        s.files.write("packed", "x" * 100000, gzip=True)
        assert s.files.read("packed") == "x" * 100000
        s.files.write("formed", "form", use_octet_stream=False)
        assert s.files.read("formed") == "form"
        """,
    ),
    Operation(
        "files.list, get_info, exists",
        """
        assert [e.name for e in s.files.list("dir")] == ["hello.txt"]
        assert "/home/user/dir/hello.txt" in [e.path for e in s.files.list("/home/user", depth=2)]
        info = s.files.get_info("dir/hello.txt")
        assert (info.size, info.type.value, info.permissions) == (5, "file", "-rw-r--r--")
        assert s.files.exists("dir") and not s.files.exists("nothing")
        """,
        "the owner is always `user`",
    ),
    Operation(
        "files.make_dir, rename, remove",
        """
        assert s.files.make_dir("made/below") and not s.files.make_dir("made/below")
        assert s.files.rename("dir/hello.txt", "made/there.txt").path == "/home/user/made/there.txt"
        s.files.remove("made")
        assert not s.files.exists("made")
        try:
            s.files.read("made/there.txt")
            raise AssertionError
        except NotFoundException:
            pass
        """,
    ),
    Operation(
        "files.watch_dir",
        """
        s.files.make_dir("watched")
        w = s.files.watch_dir("watched", recursive=True)
        s.files.write("watched/x", "1")
        assert ("x", "create") in [(e.name, e.type.value) for e in w.get_new_events()]
        s.files.write("watched/x", "22")
        s.files.remove("watched/x")
        assert [(e.name, e.type.value) for e in w.get_new_events()] == [("x", "remove")]
        w.stop()
        """,
        "a watcher compares the tree each time it is asked: what came and went in between is not seen; the async client's watcher gets each change",
    ),
    Operation(
        "get_metrics",
        "m = s.get_metrics()[0]; assert m.mem_used > 0 and m.disk_total > 0 and m.cpu_count >= 1",
        "the last moment only; the processor's share is that since the start",
    ),
    Operation(
        "create_snapshot, list, delete",
        """
        s.files.write("kept.txt", "kept")
        snap = s.create_snapshot()
        assert snap.snapshot_id in [x.snapshot_id for x in Sandbox.list_snapshots().next_items()]
        other = Sandbox.create(snap.snapshot_id, timeout=60)
        assert other.files.read("kept.txt") == "kept"
        other.kill()
        assert Sandbox.delete_snapshot(snap.snapshot_id) and not Sandbox.delete_snapshot(snap.snapshot_id)
        """,
        "files only, not processes",
    ),
    Operation(
        "fork",
        """
        forks = s.fork(count=2, timeout=60)
        assert len({f.sandbox_id for f in forks} | {s.sandbox_id}) == 3
        assert [f.files.read("kept.txt") for f in forks] == ["kept", "kept"]
        assert all(f.kill() for f in forks)
        """,
    ),
    Operation(
        "connect",
        """
        same = Sandbox.connect(s.sandbox_id, timeout=300)
        assert same.files.read("kept.txt") == "kept"
        """,
    ),
    Operation(
        "an unknown template or sandbox",
        """
        for call in (lambda: Sandbox.connect("s-nothing"), lambda: Sandbox.create("no-such-template")):
            try:
                call()
                raise AssertionError
            except Exception as e:
                assert not isinstance(e, AssertionError), e
        """,
    ),
    Operation(
        "kill",
        """
        assert s.kill() and not s.kill() and not s.is_running()
        try:
            s.commands.run("true")
            raise AssertionError
        except Exception as e:
            assert "was not found" in str(e), e
        """,
    ),
)


TABLES = {
    "e2b 2.63.0, with e2b-code-interpreter 2.11.5": E2B,
}
"""Client with its version → what is tried of it."""


def table() -> str:
    """The tables of docs/reference/compat.md."""
    lines: list[str] = []
    for title, operations in TABLES.items():
        lines += [f"## {title}", "", "| operation | what is different |", "|---|---|"]
        lines += [f"| `{one.name}` | {one.note} |" for one in operations]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table())
