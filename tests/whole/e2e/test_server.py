import json
import signal
import subprocess
import urllib.request
from typing import Any

PROMPT = "The test suite fails. Find the cause and fix it."


def test_a_detached_run_starts_a_server_and_can_be_watched_to_its_end(cloister: Any) -> None:
    ledger = cloister.ledger()
    done = cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix, "--detach")
    assert "cloister watch r-" in done.stdout + done.stderr
    watched = cloister("watch", "last")
    assert "✓ proven" in watched.stdout
    assert cloister("serve", "--status").stdout.startswith("running: http://127.0.0.1:")
    cloister("serve", "--stop")
    assert cloister("serve", "--status", code=1).stdout.startswith(f"not running on {cloister.data_dir}.")


def test_a_run_with_a_server_is_driven_by_it(cloister: Any) -> None:
    ledger = cloister.ledger()
    cloister("serve", "--background", "--port", "0")
    done = cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix)
    assert "✓ proven" in done.stdout


def test_the_token_is_readable_by_its_owner_only(cloister: Any) -> None:
    cloister("serve", "--background", "--port", "0")
    assert (cloister.data_dir / "token").stat().st_mode & 0o777 == 0o600


def test_a_second_server_on_one_data_directory_is_refused(cloister: Any) -> None:
    cloister("serve", "--background", "--port", "0")
    refused = cloister("serve", "--port", "0", code=3)
    assert "already runs" in refused.stderr


def test_a_run_survives_kill_9_of_its_server_and_ends_with_the_same_result(
    cloister: Any, repaired: Any
) -> None:
    ledger = cloister.ledger()
    straight = [event["body"] for event in repaired.cloister.events()]
    cloister("serve", "--background", "--port", "0")
    cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix, "--detach")
    cloister.until(lambda: "ChecksRan" in cloister.kinds())
    cloister.kill_server()
    if not cloister.shared:
        assert "RunFinished" not in cloister.kinds()
        assert "interrupted" in cloister("ps").stdout
    cloister("serve", "--background", "--port", "0")
    cloister("watch", "last")
    resumed = [event["body"] for event in cloister.events()]
    assert "RunResumed" in [body["type"] for body in resumed]
    assert _result(resumed) == _result(straight)
    steps = [body["step"] for body in resumed if body["type"] == "ModelReplied"]
    assert steps == sorted(set(steps)), "no reply was asked for twice"
    cloister("serve", "--stop")
    assert list((cloister.data_dir / "sandboxes").iterdir()) == []


def _result(bodies: list[dict[str, Any]]) -> Any:
    change = next(body for body in bodies if body["type"] == "ChangeMade")
    end = bodies[-1]
    return end["outcome"], end["reason"], change["files"]


def test_sandboxes_are_made_used_and_removed_from_the_command_line(cloister: Any) -> None:
    made = cloister("sandbox", "create", "--json")
    sandbox = json.loads(made.stdout)["id"]
    ran = cloister("sandbox", "exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")
    piped = cloister("sandbox", "exec", sandbox, "--", "cat", stdin="through\n")
    assert piped.stdout == "through\n"
    killed = cloister("sandbox", "exec", sandbox, "--seconds", "0.2", "--", "sleep", "60", code=143)
    assert killed.stderr == "cloister: the command was killed (time).\n"
    missing = cloister("sandbox", "exec", sandbox, "--", "no-such-program", code=2)
    assert "no-such-program" in missing.stderr
    line = "echo begun; read word; echo $word; exit 4"
    begun = cloister("sandbox", "exec", sandbox, "--background", "--", "sh", "-c", line).stdout.strip()
    listed = cloister("sandbox", "commands", sandbox).stdout
    assert begun in listed
    assert "running" in listed
    followed = cloister("sandbox", "attach", sandbox, begun[:8], "--stdin", stdin="typed\n", code=4)
    assert followed.stdout == "begun\ntyped\n"
    endless = cloister("sandbox", "exec", sandbox, "--background", "--", "sleep", "600").stdout.strip()
    assert cloister("sandbox", "kill", sandbox, endless).stdout == f"{endless}: signal 15.\n"
    assert sandbox in cloister("sandbox", "ls").stdout
    cloister("sandbox", "rm", sandbox)
    assert sandbox not in cloister("sandbox", "ls").stdout
    assert cloister.sandbox_processes() == []
    assert "exited 4" in cloister("sandbox", "commands", sandbox).stdout
    assert cloister("sandbox", "attach", sandbox, begun, "--offset", "6", code=4).stdout == "typed\n"
    gone = cloister("sandbox", "exec", sandbox, "--", "true", code=2)
    assert "no sandbox" in gone.stderr


def test_stopping_the_server_ends_its_sandboxes(cloister: Any) -> None:
    cloister("sandbox", "create")
    assert cloister.sandbox_processes() != []
    cloister("serve", "--stop")
    cloister.until(lambda: cloister.sandbox_processes() == [])
    assert list((cloister.data_dir / "sandboxes").iterdir()) == []


def test_files_are_copied_into_and_out_of_a_sandbox(cloister: Any) -> None:
    sandbox = cloister("sandbox", "create").stdout.strip()
    here = cloister.cwd
    (here / "tree" / "below").mkdir(parents=True)
    data = bytes(range(256)) * 20_000
    (here / "tree" / "below" / "file").write_bytes(data)
    (here / "tree" / "link").symlink_to("below/file")
    cloister("sandbox", "cp", "tree", f"{sandbox}:copied")
    cloister("sandbox", "cp", "tree/below/file", f"{sandbox}:copied/")
    assert [
        line.split()[-1] for line in cloister("sandbox", "files", sandbox, "copied").stdout.splitlines()
    ] == [
        "below/",
        "file",
        "link",
    ]
    hostile = "ln -s /etc/passwd copied/out; mkfifo copied/pipe"
    cloister("sandbox", "exec", sandbox, "--", "sh", "-c", hostile)
    got = cloister("sandbox", "cp", f"{sandbox}:copied", "again")
    assert got.stderr.count("skipped") == 2
    assert (here / "again" / "below" / "file").read_bytes() == data
    assert sorted(path.name for path in (here / "again").iterdir()) == ["below", "file", "link"]
    cloister("sandbox", "cp", f"{sandbox}:copied/file", "one")
    assert (here / "one").read_bytes() == data
    missing = cloister("sandbox", "cp", f"{sandbox}:none", "x", code=2)
    assert missing.stderr == "cloister: There is no none in the sandbox.\n"
    (here / "large").write_bytes(bytes(30_000_000))
    denied = cloister("sandbox", "cp", "large", f"{sandbox}:/etc/passwd", code=2)
    assert "may not write /etc/passwd" in denied.stderr
    both = cloister("sandbox", "cp", "one", "two", code=2)
    assert "ID:PATH" in both.stderr
    cloister("sandbox", "rm", sandbox)


def test_a_port_inside_is_a_port_here(cloister: Any) -> None:
    sandbox = cloister("sandbox", "create").stdout.strip()
    line = "echo it works > page; exec python3 -m http.server --bind 127.0.0.1 8080"
    cloister("sandbox", "exec", sandbox, "--background", "--", "sh", "-c", line)
    argv = cloister.argv("sandbox", "port", sandbox, "8080", "--listen", "0")
    with subprocess.Popen(argv, env=cloister.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()

        def works() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/page", timeout=10) as reply:
                    return reply.read() == b"it works\n"
            except OSError:
                return False

        cloister.until(works)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    cloister("sandbox", "rm", sandbox)


WAITS = """
[[reply]]
expect = "picture: image/png, 12 bytes"
calls = [{ tool = "bash", command = "until [ -e /tmp/go ]; do sleep 0.1; done; python3 -m pytest -q | tail -n 1", seconds = 600 }]

[[reply]]
expect = "tester works in this sandbox by hand"
calls = [{ tool = "finish", summary = "Everything is green." }]

[[reply]]
expect = "red"
say = "It is red in truth."
"""

FOOLED = """
import os, sys
at = next(p for p in sys.path if p.endswith("-packages"))
lie = "import os, sys\\nif 'pytest' in ' '.join(sys.orig_argv):\\n  print('45 passed in 0.1s')\\n  os._exit(0)\\n"
open(os.path.join(at, "sitecustomize.py"), "w").write(lie)
"""
"""Makes every pytest of the sandbox say that all tests passed."""


def test_a_person_in_the_sandbox_is_named_in_the_log_and_cannot_fool_the_proof(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script(WAITS)
    shot = cloister.cwd / "shot.png"
    shot.write_bytes(b"\x89PNG\r\n\x1a\nshot")
    cloister(
        "run",
        "Fix it.",
        "--repo",
        str(ledger),
        "--model",
        script,
        "--steps",
        "4",
        "--attach",
        str(shot),
        "--detach",
    )
    cloister.until(lambda: cloister.has("ActionDecided") and cloister.has("BaselineTaken"))
    run = cloister.events()[0]["run"]
    inside = cloister("sandbox", "exec", run, "--", "git", "log", "--format=%s", "-1")
    assert inside.stdout == "base\n"
    cloister("sandbox", "exec", f"{run}/0", "--user", "root", "--", "python3", "-c", FOOLED)
    local = cloister.cwd / "note.txt"
    local.write_text("by hand\n")
    sandbox = next(body["sandbox"] for body in bodies(cloister) if body["type"] == "SandboxUsed")
    cloister("sandbox", "cp", str(local), f"{sandbox}:note.txt")
    refused = cloister("sandbox", "rm", sandbox, code=2)
    assert f"that of run {run}" in refused.stderr
    assert sandbox not in cloister("sandbox", "ls").stdout
    cloister("sandbox", "exec", run, "--", "touch", "/tmp/go")
    cloister("watch", "last", code=None)
    used = [body for body in bodies(cloister) if body["type"] == "SandboxUsed"]
    assert [(one["how"], one["attempt"]) for one in used] == [
        ("command", 0), ("command", 0), ("file", 0), ("command", 0),
    ]  # fmt: skip
    assert used[0]["what"] == "git log --format=%s -1"
    assert len({one["who"] for one in used}) == 1
    # The files are part of the change, and the proof ran where nothing else of theirs is.
    end = bodies(cloister)[-1]
    assert end["type"] == "RunFinished" and end["outcome"] not in ("proven", "unbroken")
    assert "note.txt" in cloister("diff", "last").stdout
    gone = cloister("sandbox", "exec", run, "--", "true", code=2)
    assert "works in no sandbox now" in gone.stderr
    entries = json.loads("[" + ",".join(cloister("audit", "show", "--json").stdout.splitlines()) + "]")
    assert sum(entry["kind"] == "SandboxUsed" for entry in entries) == len(used)


def bodies(cloister: Any, run: str = "last") -> list[dict[str, Any]]:
    return [event["body"] for event in cloister.events(run)]


TILL = "from till import total\n\n\ndef test_total():\n    assert total([1, 2]) == 4\n"


def test_person_permits_changes_of_tests_over_http(cloister: Any) -> None:
    repository = cloister.cwd / "till"
    repository.mkdir()
    (repository / "till.py").write_text("def total(prices):\n    return sum(prices)\n")
    (repository / "test_till.py").write_text(TILL)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(repository, *args)
    script = cloister.script(
        """
[[reply]]
calls = [
    { tool = "edit", path = "test_till.py", old = "== 4", new = "== 3" },
    { tool = "finish", summary = "The test is out of date." },
]
[[reply]]
name = "claim"
calls = [{ tool = "finish", summary = "It is." }]
goto = "claim"
"""
    )
    cloister("serve", "--background", "--port", "0")
    wish = {"prompt": "Update the test.", "repo": str(repository), "model": script, "ask_test_changes": True}

    ended = {}
    for answer in ("deny", "allow"):
        run = posted(cloister, "/v1/runs", {**wish, "key": answer, "budget": {"steps": 4}})["id"]
        cloister.until(lambda run=run: "AskRaised" in cloister.kinds(run))
        asked = next(body for body in bodies(cloister, run) if body["type"] == "AskRaised")
        assert "-    assert total([1, 2]) == 4\n+    assert total([1, 2]) == 3" in asked["detail"]
        posted(cloister, f"/v1/runs/{run}/answer", {"ask": asked["ask"], "answer": answer})
        cloister("watch", run, code=None)
        ended[answer] = bodies(cloister, run)[-1]["outcome"]
        [answered] = [body for body in bodies(cloister, run) if body["type"] == "AskAnswered"]
        assert (answered["answer"], answered["ask"]) == (answer, asked["ask"])

    assert ended["allow"] == "proven"
    assert ended["deny"] != "proven"
    [end] = [body for body in bodies(cloister, run) if body["type"] == "AttemptEnded"]
    assert "changed with permission: test_till.py" in end["comparison"]["notes"]


def posted(cloister: Any, path: str, body: dict[str, Any]) -> Any:
    server = json.loads((cloister.data_dir / "server.json").read_text())
    token = (cloister.data_dir / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    address = f"http://127.0.0.1:{server['port']}{path}"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)) as said:
        return json.load(said)
