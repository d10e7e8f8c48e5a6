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
        from e2b import Sandbox, NotFoundException, CommandExitException, SandboxQuery, SandboxState, TimeoutException, InvalidArgumentException
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
        "get_host",
        """
        import urllib.request
        s.files.write("site/index.html", "hello")
        s.commands.run("python3 -m http.server 8123 -d site", background=True)
        asked = urllib.request.Request("http://127.0.0.1:" + s.get_host(8123).rpartition(":")[2] + "/index.html")
        asked.add_header("Host", s.get_host(8123))
        asked.add_header("e2b-traffic-access-token", s.traffic_access_token)
        while True:
            try:
                assert urllib.request.urlopen(asked).read() == b"hello"
                break
            except urllib.error.HTTPError as error:
                assert error.code == 404, error.read()
        try:
            asked.remove_header("E2b-traffic-access-token")
            urllib.request.urlopen(asked)
            raise AssertionError
        except urllib.error.HTTPError as error:
            assert error.code == 401
        """,
        "by http, on the server's machine, with the traffic access token",
    ),
    Operation(
        "get_metrics",
        "m = s.get_metrics()[0]; assert m.mem_used > 0 and m.disk_total > 0 and m.cpu_count >= 1",
        "the last moment only; the processor's share is that since the start",
    ),
    Operation(
        "logs, by the generated client",
        """
        from e2b.api.client.api.sandboxes import get_v_2_sandboxes_sandbox_id_logs
        from e2b.api.client_sync import get_api_client
        from e2b.connection_config import ConnectionConfig
        s.commands.run("echo to be logged")
        told = get_v_2_sandboxes_sandbox_id_logs.sync(s.sandbox_id, client=get_api_client(ConnectionConfig()))
        assert "to be logged" in [entry.message for entry in told.logs]
        """,
        "what commands print, without levels, and all with the time of the question",
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
        "Template.build, from a Dockerfile",
        """
        import pathlib, tempfile
        from e2b import Template
        context = pathlib.Path(tempfile.mkdtemp())
        (context / "app" / "sub").mkdir(parents=True)
        (context / "app" / "sub" / "x.txt").write_text("x")
        (context / "one.sh").write_text("echo one $COLOUR")
        wanted = Template(file_context_path=context).from_dockerfile(
            "FROM e2bdev/base\\nENV COLOUR=red\\nENV WHERE=/srv/$COLOUR\\nWORKDIR /srv\\nRUN id -un > who && mkdir $WHERE\\n"
            "COPY app /srv/app\\nCOPY --chmod=755 one.sh bin/\\nUSER user\\nRUN id -un > /home/user/who")
        told = []
        made = Template.build(wanted, "painted", on_build_logs=lambda entry: told.append(entry.message))
        assert Template.exists("painted") and not Template.exists("not-painted")
        assert any(line.startswith("[") and "COPY" in line for line in told), told
        t = Sandbox.create("painted", timeout=60)
        line = "cat /srv/who who /srv/app/sub/x.txt; sh /srv/bin/one.sh; stat -c %a /srv/bin/one.sh; ls -d /srv/red"
        assert t.commands.run(line).stdout == "root\\nagent\\nxone red\\n755\\n/srv/red\\n", t.commands.run(line).stdout
        t.kill()
        try:
            Template.build(Template().from_base_image().run_cmd("echo why; exit 7"), "broken")
            raise AssertionError
        except Exception as e:
            assert "exit status 7" in str(e), e
        assert Sandbox.delete_snapshot("painted") and not Template.exists("painted")
        """,
        "the base is a template of ours; files only, so no start command; no tags, and each build starts from scratch",
    ),
    Operation(
        "logs of a build, by the generated client",
        """
        from e2b.api.client.api.templates import get_templates_template_id_builds_build_id_logs as logs
        told = logs.sync(made.template_id, made.build_id, client=get_api_client(ConnectionConfig())).logs
        assert any("COPY" in entry.message for entry in told), told
        """,
        "its first 100 lines, all with the time of the question",
    ),
    Operation(
        "pause, connect to resume",
        """
        h = s.commands.run("i=0; while :; do i=$((i+1)); echo $i > ticks; sleep 0.01; done", background=True)
        while not s.files.exists("ticks"):
            pass
        assert s.pause() is not False and s.get_info().state.value == "paused" and not s.is_running()
        assert [x.sandbox_id for x in Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()] == [s.sandbox_id]
        assert Sandbox.connect(s.sandbox_id, timeout=300).commands.kill(h.pid), "the process went on"
        assert s.is_running() and s.get_info().state.value == "running" and s.files.read("kept.txt") == "kept"
        """,
        "with its memory, for a day at most; `lifecycle` is ignored: a sandbox whose time is over ends",
    ),
    Operation(
        "AsyncSandbox, many at a time",
        """
        import asyncio
        from e2b import AsyncSandbox
        async def together():
            made = await asyncio.gather(*(AsyncSandbox.create(timeout=120) for _ in range(5)))
            ran = await asyncio.gather(*(one.commands.run(f"echo {n}") for n, one in enumerate(made)))
            assert [r.stdout for r in ran] == [f"{n}\\n" for n in range(5)]
            events = asyncio.Queue()
            await made[0].files.make_dir("watched")
            watcher = await made[0].files.watch_dir("watched", on_event=lambda e: events.put_nowait((e.name, e.type.value)))
            await made[0].commands.run("mkdir watched/here")
            assert await asyncio.wait_for(events.get(), 60) == ("here", "create")
            await watcher.stop()
            forks = [fork for some in await asyncio.gather(*(made[0].fork(count=2) for _ in range(3))) for fork in some]
            assert len({fork.sandbox_id for fork in forks}) == 6
            assert all(await asyncio.gather(*(one.kill() for one in [*made, *forks])))
        asyncio.run(together())
        """,
        "the watcher tells each change as it comes",
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


INTERPRETER = (
    Operation(
        "code interpreter: run_code",
        """
        from e2b_code_interpreter import Sandbox as Interpreter
        c = Interpreter.create(timeout=300)
        assert c.run_code("x = 41; print('set')").logs.stdout == ["set\\n"]
        ran = c.run_code("x += 1; x")
        assert ran.text == "42" and ran.results[0].is_main_result and ran.execution_count == 2
        """,
        "the interpreter is a program of ours, not IPython",
    ),
    Operation(
        "code interpreter: run_code, streamed",
        """
        waits = "import os, time; print('ready')\\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)\\nprint('gone on')"
        seen = []
        def answer(message):
            seen.append(message.line)
            c.files.write("/tmp/go", "")
        ran = c.run_code(waits, on_stdout=answer, timeout=60)
        assert "".join(seen) == "ready\\ngone on\\n" == "".join(ran.logs.stdout) and ran.error is None
        """,
    ),
    Operation(
        "code interpreter: errors, results, callbacks",
        """
        ran = c.run_code("1/0")
        assert ran.error.name == "ZeroDivisionError" and "1/0" in ran.error.traceback
        seen = []
        c.run_code("import sys; print('out'); print('err', file=sys.stderr)", on_stdout=lambda m: seen.append(m.line), on_stderr=lambda m: seen.append(m.line))
        assert sorted(seen) == ["err\\n", "out\\n"]
        code = "class H:\\n    def _repr_html_(self): return '<b>h</b>'\\nH()"
        assert c.run_code(code).results[0].html == "<b>h</b>"
        assert c.run_code("import os; os.environ['A']", envs={"A": "b"}).text == "'b'"
        """,
    ),
    Operation(
        "code interpreter: contexts",
        """
        one = c.create_code_context(cwd="/tmp")
        assert c.run_code("import os; os.getcwd()", context=one).text == "'/tmp'"
        assert c.run_code("x", context=one).error.name == "NameError"
        assert one.id in [context.id for context in c.list_code_contexts()]
        c.restart_code_context(one)
        assert c.run_code("os", context=one).error.name == "NameError"
        c.remove_code_context(one)
        """,
    ),
    Operation(
        "code interpreter: bash",
        'assert c.run_code("echo $((6*7))", language="bash").logs.stdout == ["42\\n"]; c.kill()',
        "each time a new shell; other languages are refused",
    ),
)

PANDASTACK = (
    Operation(
        "Sandbox.create, as a context",
        """
        from pandastack import Sandbox, Client
        s = Sandbox.create(template="code-interpreter", ttl_seconds=300, metadata={"user": "ada"})
        assert s.metadata == {"user": "ada"} and s.status == "running"
        with Sandbox.create() as other:
            gone = other.id
        """,
        "`code-interpreter` and `base` are `default`",
    ),
    Operation(
        "list, get, refresh",
        "assert [x.id for x in Sandbox.list()] == [s.id] and Sandbox.get(s.id).refresh().id == s.id",
    ),
    Operation(
        "exec, commands.run",
        """
        ran = s.exec("echo out; echo err >&2; exit 3")
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\\n", "err\\n", 3)
        assert s.commands.run("cd /workspace && pwd").exit_code == 0
        """,
    ),
    Operation(
        "exec, timeout and check",
        """
        from pandastack.exceptions import SandboxTimeout, CommandFailed
        for kind, call in ((SandboxTimeout, lambda: s.exec("sleep 60", timeout_seconds=1)), (CommandFailed, lambda: s.exec("false", check=True))):
            try:
                call()
                raise AssertionError
            except kind:
                pass
        """,
    ),
    Operation(
        "exec_stream",
        """
        seen = []
        assert s.exec_stream("echo one; echo two >&2; exit 4", on_stdout=seen.append, on_stderr=seen.append) == 4
        assert sorted(seen) == ["one\\n", "two\\n"]
        """,
    ),
    Operation(
        "run_code",
        'assert s.run_code("print(6*7)").stdout == "42\\n" and s.run_code("echo hi", "bash").stdout == "hi\\n"',
    ),
    Operation(
        "create_code_context",
        """
        with s.create_code_context() as ctx:
            ctx.run_code("x = 41")
            assert ctx.run_code("x + 1").text == "42"
            assert "ZeroDivisionError" in ctx.run_code("1/0").error
        """,
        "Python only; the interpreter is a program of ours, not IPython",
    ),
    Operation(
        "filesystem: write, read, upload, download",
        """
        import tempfile, pathlib
        s.filesystem.write("/workspace/a/b.txt", "hello")
        assert s.filesystem.read("/workspace/a/b.txt") == b"hello" and s.exec("cat a/b.txt").stdout == "hello"
        local = pathlib.Path(tempfile.mkdtemp()) / "x"
        local.write_bytes(bytes(range(256)))
        s.filesystem.upload(local, "/workspace/blob")
        s.filesystem.download("/workspace/blob", local)
        assert local.read_bytes() == bytes(range(256))
        """,
    ),
    Operation(
        "filesystem: listdir, stat, exists, walk",
        """
        assert sorted(e.name for e in s.filesystem.listdir("/workspace")) == ["a", "blob"]
        assert s.filesystem.stat("/workspace/a").is_dir and s.filesystem.stat("/workspace/blob").size == 256
        assert s.filesystem.exists("/workspace/blob") and not s.filesystem.exists("/workspace/nothing")
        assert len(list(s.filesystem.walk("/workspace"))) == 2
        """,
    ),
    Operation(
        "fork",
        'f = s.fork(metadata={"branch": "x"}); assert f.exec("cat a/b.txt").stdout == "hello" and f.metadata["branch"] == "x"; f.kill()',
    ),
    Operation(
        "fork_tree, in parallel, promote",
        """
        from concurrent.futures import ThreadPoolExecutor
        tree = s.fork_tree(5)
        with ThreadPoolExecutor(5) as pool:
            outs = list(pool.map(lambda pair: pair[1].exec(f"echo {pair[0]} > n; cat n a/b.txt").stdout, enumerate(tree)))
        assert outs == [f"{n}\\nhello" for n in range(5)]
        done = tree[0].promote(cleanup_siblings=True)
        assert done["winner"] == tree[0].id and set(done["deleted"]) == {x.id for x in tree[1:]}
        tree[0].kill()
        """,
    ),
    Operation(
        "snapshot, client.snapshots, from_snapshot",
        """
        client = Client()
        snap = s.snapshot()
        assert snap in [x["id"] for x in client.snapshots.list(sandbox_id=s.id)] and client.snapshots.get(snap)["id"] == snap
        again = Sandbox.create(from_snapshot=snap, ttl_seconds=60)
        assert again.exec("cat /workspace/a/b.txt").stdout == "hello"
        again.kill()
        client.snapshots.delete(snap)
        """,
        "files only, not processes",
    ),
    Operation(
        "set_ttl, lifecycle, set_persistent",
        """
        s.set_ttl(600)
        assert s.lifecycle()["ttl_seconds"] >= 600
        s.set_persistent(True)
        assert s.lifecycle()["ttl_seconds"] > 80_000
        s.set_persistent(False)
        assert s.lifecycle()["ttl_seconds"] < 80_000
        """,
        "persistent is the longest time to live, a day",
    ),
    Operation(
        "pause, resume, hibernate, wake",
        """
        s.exec("touch /tmp/here")
        for stop, go in ((s.pause, s.resume), (s.hibernate, s.wake)):
            stop()
            assert Sandbox.get(s.id).status == "paused"
            go()
            assert s.exec("cat /tmp/here").exit_code == 0 and Sandbox.get(s.id).status == "running"
        """,
        "with its memory, for a day at most; one that hibernates waits for `wake`",
    ),
    Operation(
        "preview_urls",
        """
        import time
        s._client.preview_host = "localhost"
        s.exec("nohup python3 -m http.server 8123 >/dev/null 2>&1 &")
        while 8123 not in s.preview_urls():
            time.sleep(0.05)
        """,
        "the ports are right; the addresses have no port of our server, and need its token",
    ),
    Operation(
        "logs, also followed",
        """
        import threading, urllib.request, json, os
        def background(line):
            # This client starts none itself: by our own API.
            url = os.environ["PANDASTACK_API"].removesuffix("/compat/pandastack") + f"/v1/sandboxes/{s.id}/commands"
            head = {"Authorization": "Bearer " + os.environ["PANDASTACK_API_KEY"], "Content-Type": "application/json"}
            urllib.request.urlopen(urllib.request.Request(url, json.dumps({"command": line}).encode(), head)).read()
        background("echo one; echo two >&2")
        while sorted(s.logs()) != ["one", "two"]:
            pass
        assert list(s.logs(stream="stdout")) == ["one"]
        followed = s.logs(follow=True)
        assert sorted([next(followed), next(followed)]) == ["one", "two"]
        background("echo three")
        assert next(followed) == "three"
        """,
        "what background commands print",
    ),
    Operation(
        "explore",
        """
        tried = s.explore(["false", "echo PASS > won"], score_fn=lambda sb, outcome: 1.0 if outcome.ok else 0.0)
        assert tried.winner.exec("cat won").stdout == "PASS\\n"
        tried.winner.kill()
        """,
    ),
    Operation(
        "client.templates.list, get",
        'assert "default" in [t.name for t in client.templates.list()] and client.templates.get("default").name == "default"',
    ),
    Operation(
        "refused: volumes, templates.build, register",
        """
        from pandastack.exceptions import PandastackError
        for call in (
            lambda: Sandbox.create(volumes=[{"name": "data", "mount_path": "/data"}]),
            lambda: client.templates.build_from_dockerfile("mine", "FROM debian:12\\nRUN true"),
            lambda: client.templates.register("mine", "registry.example/mine:1"),
            lambda: client.templates.get_build("b-1"),
        ):
            try:
                call()
                raise AssertionError
            except PandastackError as e:
                assert str(e), e
        assert client.templates.builds() == []
        """,
        "keep files in a snapshot; templates are built with `cloister template build`",
    ),
    Operation(
        "kill, and a sandbox that is gone",
        """
        from pandastack.exceptions import NotFoundError
        s.kill()
        try:
            s.exec("true")
            raise AssertionError
        except NotFoundError:
            pass
        """,
    ),
)

MODBOX = (
    Operation(
        "provision_sandbox",
        """
        import os, json, urllib.request
        from modbox import ModboxApi
        client = ModboxApi(base_url=os.environ["MODBOX_BASE_URL"], token=os.environ["MODBOX_TOKEN"])
        made = client.sandboxes.provision_sandbox(task_id="task-1", ttl_seconds=300, env_vars={"COLOUR": "red"})
        assert made.success and made.status == "running"
        again = client.sandboxes.provision_sandbox(task_id="task-1", ttl_seconds=300, env_vars={"COLOUR": "red"})
        assert again.sandbox_id == made.sandbox_id
        """,
        "the image is a template of ours",
    ),
    Operation(
        "wait_for_sandbox", 'assert client.sandboxes.wait_for_sandbox(task_id="task-1", timeout=60).ready'
    ),
    Operation(
        "get_sandbox, by id and by task",
        """
        for name in (made.sandbox_id, "task-1"):
            found = client.sandboxes.get_sandbox(name)
            assert found.id == made.sandbox_id and found.name == "task-1" and found.sandbox_url == made.sandbox_url
        assert client.sandboxes.get_sandbox_status("task-1").status == "running"
        """,
    ),
    Operation(
        "list_sandboxes",
        "assert [x.id for x in client.sandboxes.list_sandboxes().sandboxes] == [made.sandbox_id]",
    ),
    Operation(
        "POST {sandbox_url}/execute",
        """
        def execute(**body):
            asked = urllib.request.Request(made.sandbox_url + "/execute", json.dumps(body).encode(), {"Content-Type": "application/json"})
            return json.load(urllib.request.urlopen(asked))
        assert execute(language="python", code="import os\\nx = 41\\nprint(os.environ['COLOUR'])")["stdout"] == "red\\n"
        assert execute(code="x += 1\\nx")["result"] == "42"
        failed = execute(code="1/0")
        assert not failed["success"] and failed["error"] == "ZeroDivisionError: division by zero"
        assert execute(language="bash", code="echo $((6*7)); exit 3")["exit_code"] == 3
        """,
        "without a token: the address is one. The state of Python is kept; bash is a new shell each time",
    ),
    Operation(
        "create_sandbox, get_sandbox_canonical, delete_sandbox",
        """
        other = client.sandboxes.create_sandbox(task_id="task-2")
        assert client.sandboxes.get_sandbox_canonical(other.sandbox_id).name == "task-2"
        assert client.sandboxes.wait_for_sandbox_canonical(other.sandbox_id).ready
        client.sandboxes.delete_sandbox(other.sandbox_id)
        """,
    ),
    Operation(
        "list_sandbox_images, get_sandbox_image",
        """
        images = client.images.list_sandbox_images()
        assert images.total == len(images.images) and [x.name for x in images.images if x.is_default] == ["default"]
        assert client.images.get_sandbox_image("default").id == "default"
        """,
        "the templates of the server",
    ),
    Operation(
        "refused: create_sandbox_image, update_sandbox_image, delete_sandbox_image",
        """
        from modbox.core.api_error import ApiError
        for call in (
            lambda: client.images.create_sandbox_image(image="debian", name="mine"),
            lambda: client.images.update_sandbox_image("default", name="mine"),
            lambda: client.images.delete_sandbox_image("default"),
        ):
            try:
                call()
                raise AssertionError
            except ApiError as e:
                assert e.status_code == 400, e
        """,
        "images are templates, built with `cloister template build`",
    ),
    Operation(
        "destroy_sandbox, and one that is gone",
        """
        from modbox.errors import NotFoundError
        assert client.sandboxes.destroy_sandbox(task_id="task-1").success
        try:
            client.sandboxes.get_sandbox("task-1")
            raise AssertionError
        except NotFoundError:
            pass
        try:
            execute(code="1")
            raise AssertionError
        except urllib.error.HTTPError as error:
            assert error.code == 401
        """,
    ),
)


TABLES = {
    "e2b 2.63.0, with e2b-code-interpreter 2.11.5": (*E2B, *INTERPRETER),
    "pandastack 0.10.0": PANDASTACK,
    "modbox-sdk 0.0.21": MODBOX,
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
