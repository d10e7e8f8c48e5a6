import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.whole.e2e.conftest import Cloister

from cloister import AsyncClient, AsyncSandbox, Client, CloisterError, Sandbox


def test_a_sandbox_of_a_with_block_is_used_forked_kept_and_gone_after_it(client: Client) -> None:
    with Sandbox.create(client=client, ttl_seconds=300, metadata={"for": "client"}) as sandbox:
        sandbox.files.write("src/hello.py", "print('hello')\n")
        ran = sandbox.exec("python3 src/hello.py; echo bad >&2; exit 3")
        assert (ran.exit_code, ran.stdout, ran.stderr, ran.ok) == (3, "hello\n", "bad\n", False)
        assert sandbox.exec(["cat"], stdin="through").stdout == "through"
        assert sandbox.files.read("src/hello.py") == b"print('hello')\n"
        assert [entry.name for entry in sandbox.files.list("src")] == ["hello.py"]
        assert sandbox.files.exists("src") and not sandbox.files.exists("nothing")
        (fork,) = sandbox.fork()
        with fork:
            fork.files.move("src/hello.py", "there.py")
            assert sandbox.files.exists("src/hello.py")
        kept = sandbox.snapshot()
        with client.create(f"snapshot:{kept.id}") as again:
            assert again.exec("cat src/hello.py").stdout == "print('hello')\n"
        client.remove_snapshot(kept.id)
        sandbox.set_ttl(600)
        assert sandbox.refresh().expires_at > sandbox.info.created_at + 500
        assert [one.id for one in client.sandboxes({"for": "client"})] == [sandbox.id]
        assert client.sandbox(sandbox.id[:12]).metrics().memory_bytes > 0
        sandbox.pause()
        with pytest.raises(CloisterError, match="--resume"):
            sandbox.exec("true")
        sandbox.resume()
        assert sandbox.exec("true").ok
        assert f"//8000-{sandbox.id}-" in sandbox.address(8000)
    with pytest.raises(CloisterError) as gone:
        client.sandbox(sandbox.id)
    assert gone.value.code == "no_such_sandbox"


def test_output_arrives_while_a_command_runs_and_characters_are_whole(client: Client) -> None:
    seen: list[str] = []
    with client.create() as sandbox:

        def answer(text: str) -> None:
            seen.append(text)
            if "ready" in text:
                sandbox.files.write("/tmp/go", "")

        line = "echo ready; until [ -e /tmp/go ]; do sleep 0.02; done; printf '\\303'; sleep 0.1; printf '\\251\\n'; exit 4"
        ran = sandbox.exec(line, on_stdout=answer, seconds=60)
        assert (ran.exit_code, ran.stdout, "".join(seen)) == (4, "ready\né\n", "ready\né\n")
        late = sandbox.exec("echo begun; sleep 60", on_stdout=seen.append, seconds=0.3)
        assert late.killed == "time"
        for _ in sandbox.stream("echo $$ > /tmp/pid; echo on; exec sleep 1000"):
            break  # leaving it ends it
        assert sandbox.exec("while kill -0 $(cat /tmp/pid) 2>/dev/null; do sleep 0.02; done").ok


def test_a_background_command_is_started_read_and_ended(client: Client) -> None:
    with client.create() as sandbox:
        command = sandbox.start("echo begun; exec sleep 1000")
        assert [one.id for one in sandbox.commands()] == [command.id]
        while not (told := sandbox.output(command.id)):
            pass
        assert told == b"begun\n"
        assert sandbox.kill(command.id).state == "exited"


def test_every_error_is_one_class_with_a_code(
    client: Client, command: Cloister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.create() as sandbox:
        for code, call in {
            "not_found": lambda: sandbox.files.read("nothing"),
            "bad_command": lambda: sandbox.exec([]),
            "bad_request": lambda: client.create(ttl_seconds=-1),
            "unknown_template": lambda: client.create("nothing-like-it"),
        }.items():
            with pytest.raises(CloisterError) as error:
                call()
            assert error.value.code == code, error.value
    url = json.loads((command.data_dir / "server.json").read_text())["url"]
    with pytest.raises(CloisterError) as error:
        Client(url, "not-the-token").sandboxes()
    assert error.value.code == "unauthorized"
    with pytest.raises(CloisterError) as error:
        Client(data_dir=tmp_path / "empty").sandboxes()
    assert error.value.code == "no_server"
    with pytest.raises(CloisterError) as error:
        Client("http://example.org", "token").sandboxes()
    assert error.value.code == "bad_server"


def test_the_address_and_the_token_come_from_the_environment(command: Cloister) -> None:
    at = json.loads((command.data_dir / "server.json").read_text())["url"]
    token = (command.data_dir / "token").read_text().strip()
    program = "from cloister import Client; print(Client().sandboxes())"
    env = command.env | {"CLOISTER_SERVER": at, "CLOISTER_TOKEN": token}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_import_brings_no_part_of_the_server() -> None:
    program = "import sys; from cloister import Client, AsyncClient, Sandbox; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True
    )
    loaded = {name.partition(".")[0] for name in set(done.stdout.split()) - set(bare.stdout.split())}
    assert loaded - sys.stdlib_module_names <= {"cloister", "msgspec", "typing_extensions"}
    ours = {name.split(".")[1] for name in done.stdout.split() if name.startswith("cloister.")}
    assert ours == {"client", "core"}


@pytest.mark.anyio
async def test_async_code_has_the_same_sandbox(command: Cloister) -> None:
    client = AsyncClient(data_dir=command.data_dir)
    async with await AsyncSandbox.create(client=client) as sandbox:
        seen: list[str] = []
        ran = await sandbox.exec("echo one; echo two >&2", on_stdout=seen.append, on_stderr=seen.append)
        assert (ran.stdout, ran.stderr, sorted(seen)) == ("one\n", "two\n", ["one\n", "two\n"])
        await sandbox.files.write("x", b"\0\xff")
        assert await sandbox.files.read("x") == b"\0\xff"


def test_a_run_is_followed_over_the_death_of_its_server(command: Cloister) -> None:
    ledger = command.ledger()
    client = Client(data_dir=command.data_dir)
    run = client.run("The test suite fails. Find the cause and fix it.", repo=ledger, model=command.fix)
    seen: list[int] = []
    kinds: list[str] = []
    for event in run:
        seen.append(event.seq)
        kinds.append(type(event.body).__name__)
        if kinds[-1] == "ChecksRan" and "RunResumed" not in kinds and kinds.count("ChecksRan") == 1:
            command.kill_server()
            command("serve", "--background")
    assert seen == list(range(1, len(seen) + 1)), "each event once, in order"
    assert kinds[0] == "RunAdmitted" and kinds[-1] == "RunFinished" and "RunResumed" in kinds
    view = run.wait()
    assert view.outcome == "proven"
    assert "ledger" in run.diff()
    assert client.attach("last").id == run.id
