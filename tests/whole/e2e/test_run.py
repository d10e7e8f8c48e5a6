import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

PROMPT = "The test suite fails. Find the cause and fix it."

SLOW = """
[[reply]]
say = "Waiting."
calls = [{ tool = "bash", command = "touch started; sleep 600", seconds = 600 }]
"""


def test_a_prompt_becomes_a_green_branch_with_proof(repaired: Any) -> None:
    cloister, ledger = repaired.cloister, repaired.repo
    assert "✗ 5 failing → 2 failing (3 fixed)" in repaired.shown
    assert "✓ proven" in repaired.shown
    assert "scripted model: replies come from" in repaired.shown
    (run,) = [json.loads(line) for line in cloister("ps", "--json").stdout.splitlines()]
    assert run["outcome"] == "proven"
    branch = cloister.git(ledger, "branch", "--list", "cloister/*").strip()
    assert cloister.git(ledger, "status", "--porcelain") == ""
    assert cloister.git(ledger, "branch", "--show-current") == "main"
    message = cloister.git(ledger, "log", "-1", "--format=%B", branch)
    assert "Before: 5 red" in message
    assert "Now: 0 red, 40 passed" in message
    changed = cloister.git(ledger, "diff", "--name-only", "main", branch).splitlines()
    assert changed == ["src/ledger/settle.py", "src/ledger/split.py"]
    assert cloister.sandbox_processes() == []


def test_the_log_is_numbered_without_gaps_and_diff_shows_the_change(repaired: Any) -> None:
    cloister = repaired.cloister
    events = cloister.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["body"]["type"], events[-1]["body"]["type"]) == ("RunAdmitted", "RunFinished")
    assert "+    shares = {name: total * weight // whole" in cloister("diff", "last").stdout


def test_json_output_is_one_event_per_line(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script('[[reply]]\ncalls = [{ tool = "finish", summary = "Nothing to do." }]')
    done = cloister(
        "run",
        "p",
        "--repo",
        str(ledger),
        "--model",
        script,
        "--check",
        "true",
        "--accept",
        "unbroken",
        "--json",
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events == cloister.events()


def test_three_attempts_run_in_forks_and_one_of_them_is_the_change(cloister: Any) -> None:
    ledger = cloister.ledger()
    cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix, "--n", "3")
    events = cloister.events()
    ended = [e["body"] for e in events if e["body"]["type"] == "AttemptEnded"]
    assert sorted((body["attempt"], body["outcome"]) for body in ended) == [(n, "proven") for n in range(3)]
    (ranked,) = [e["body"] for e in events if e["body"]["type"] == "AttemptsRanked"]
    assert events[-1]["body"]["attempt"] == ranked["scores"][0]["attempt"]
    assert len(cloister.git(ledger, "branch", "--list", "cloister/*").splitlines()) == 1


def test_a_named_check_decides(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script('[[reply]]\ncalls = [{ tool = "finish", summary = "Nothing to do." }]')
    cloister("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken")
    assert cloister.events()[-1]["body"]["outcome"] == "unbroken"
    script = cloister.script(
        '[[reply]]\nname = "a"\ncalls = [{ tool = "finish", summary = "s" }]\ngoto = "a"'
    )
    done = cloister(
        "run", "p", "--repo", str(ledger), "--model", script, "--check", "false", "--steps", "2", code=1
    )
    assert "2 steps" in done.stdout


def test_exit_code_tells_unbroken_and_unproven_from_proven(cloister: Any) -> None:
    bare = cloister.cwd / "bare"
    bare.mkdir()
    (bare / "README").write_text("No checks.\n")
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(bare, *args)
    script = cloister.script('[[reply]]\ncalls = [{ tool = "finish", summary = "Nothing to do." }]')
    unbroken = ("run", "p", "--repo", str(cloister.ledger()), "--model", script, "--check", "true")
    unproven = ("run", "p", "--repo", str(bare), "--model", script)

    said = cloister(*unbroken, code=10).stdout
    assert "· unbroken" in said and "no test shows the requested change" in said
    said = cloister(*unproven, code=11).stdout
    assert "· unproven" in said and "no checks: the change cannot be proven" in said
    cloister(*unproven, "--accept", "unbroken", code=11)
    cloister(*unproven, "--accept", "unproven", code=0)
    cloister(*unbroken, "--accept", "unproven", code=0)


def test_a_person_excludes_red_tests_and_the_commit_lists_them(cloister: Any) -> None:
    repo = cloister.cwd / "two"
    repo.mkdir()
    (repo / "calc.py").write_text("def half(x):\n    return x // 3\n\n\ndef twice(x):\n    return x\n")
    for name, eight in (("half", 4), ("twice", 16)):
        test = f"from calc import {name}\n\n\ndef test_{name}():\n    assert {name}(8) == {eight}\n"
        (repo / f"test_{name}.py").write_text(test)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(repo, *args)
    script = cloister.script(
        """
[[reply]]
calls = [{ tool = "bash", command = "sed -i 's,// 3,// 2,; s,return x$,return 3 * x,' calc.py" }]
[[reply]]
name = "claim"
calls = [{ tool = "finish", summary = "Half is right." }]
goto = "claim"
"""
    )
    run = ("run", "Repair half.", "--repo", str(repo), "--model", script, "--steps", "4")

    assert "test_twice" in cloister(*run, code=1).stdout
    cloister(*run, "--exclude-test", "test_tw*")

    branch = cloister.git(repo, "branch", "--list", "cloister/*").strip()
    message = cloister.git(repo, "log", "-1", "--format=%B", branch)
    assert "left red, excluded by --exclude-test test_tw*: test_twice.py::test_twice" in message


def test_a_check_that_deletes_tests_is_not_green(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script(
        """
[[reply]]
calls = [{ tool = "bash", command = "rm tests/test_settle.py tests/test_split.py tests/test_book.py" }]
[[reply]]
name = "claim"
calls = [{ tool = "finish", summary = "All green!" }]
goto = "claim"
"""
    )
    done = cloister("run", PROMPT, "--repo", str(ledger), "--model", script, "--steps", "3", code=1)
    assert "missing" in done.stdout
    assert cloister.git(ledger, "branch", "--list", "cloister/*") == ""


def test_ctrl_c_stops_an_in_process_run_cleanly_and_keeps_its_work(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script(
        '[[reply]]\ncalls = [{ tool = "bash", command = "echo kept > kept.txt" }]\n' + SLOW
    )
    process = cloister.start("run", "p", "--repo", str(ledger), "--model", script)
    cloister.until(lambda: cloister.has("RunAdmitted") and cloister.kinds().count("ActionDecided") == 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert cloister.events()[-1]["body"]["outcome"] == "stopped"
    assert "kept.txt" in cloister("diff", "last").stdout
    assert ".env.test" not in cloister("diff", "last").stdout
    assert cloister.sandbox_processes() == []


def test_stop_and_say_reach_a_run_that_another_process_drives(cloister: Any) -> None:
    ledger = cloister.ledger()
    process = cloister.start("run", "p", "--repo", str(ledger), "--model", cloister.script(SLOW))
    cloister.until(lambda: cloister.has("ActionDecided"))
    cloister("say", "last", "Hurry up.")
    cloister("stop", "last")
    process.communicate(timeout=60)
    events = cloister.events()
    assert events[-1]["body"]["outcome"] == "stopped"
    assert [e["body"]["text"] for e in events if e["body"]["type"] == "PromptReceived"] == ["Hurry up."]
    late = cloister("stop", "last", code=2)
    assert "finished" in late.stderr


def test_apply_makes_a_branch_in_another_checkout_and_never_touches_a_dirty_tree(repaired: Any) -> None:
    cloister, ledger = repaired.cloister, repaired.repo
    other = cloister.cwd / "other"
    cloister.git(cloister.cwd, "clone", "-q", str(ledger), str(other))
    (other / "README.md").write_text("mine")
    refused = cloister("apply", "last", "--repo", str(other), "--checkout", code=2)
    assert "uncommitted" in refused.stderr
    cloister("apply", "last", "--repo", str(other))
    assert (other / "README.md").read_text() == "mine"
    assert cloister.git(other, "branch", "--list", "cloister/*") != ""
    cloister.git(other, "checkout", "-q", "README.md")
    cloister("apply", "last", "--repo", str(other), "--checkout")
    assert cloister.git(other, "branch", "--show-current").startswith("cloister/")


def test_a_dirty_tree_is_said_and_its_files_are_not_part_of_the_run(cloister: Any) -> None:
    ledger = cloister.ledger()
    (ledger / "notes.txt").write_text("mine")
    script = cloister.script(
        '[[reply]]\ncalls = [{ tool = "bash", command = "ls notes.txt" }, { tool = "finish", summary = "s" }]'
    )
    done = cloister(
        "run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken"
    )
    assert "1 uncommitted file is not part of this run" in done.stdout.replace("\n", " ")
    assert "No such file" in json.dumps(cloister.events())
    assert (ledger / "notes.txt").read_text() == "mine"


def test_a_detached_head_is_a_fine_place_to_start(cloister: Any) -> None:
    ledger = cloister.ledger()
    cloister.git(ledger, "checkout", "-q", "--detach")
    script = cloister.script('[[reply]]\ncalls = [{ tool = "finish", summary = "s" }]')
    base = cloister.git(ledger, "rev-parse", "HEAD")
    cloister("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken")
    assert cloister.events()[-1]["body"]["outcome"] == "unbroken"
    assert cloister.git(ledger, "rev-parse", "HEAD") == base
    assert cloister.git(ledger, "branch", "--show-current") == ""


def test_bad_input_is_one_sentence_with_its_exit_code_and_leaves_no_run_behind(
    cloister: Any, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cloister.git(empty, "init", "-q")
    plain = tmp_path / "plain"
    plain.mkdir()
    ledger = cloister.ledger()
    model = ("--model", cloister.fix)
    for args, text in (
        (("p", "--repo", str(ledger), "--model", "anthropic"), "Anthropic needs a key"),
        (("p", "--repo", str(ledger), "--harness", "other"), "There is no harness 'other'"),
        (("p", "--repo", str(ledger), *model, "--harness", "repair"), "The repair harness calls no model"),
        (("p", "--repo", str(ledger), "--harness", "native"), "No model is configured"),
        (("p", "--repo", str(ledger), "--harness", "repair", "--seed", "-1"), "A seed is a whole number"),
        ((" ", "--repo", str(ledger), *model), "The prompt is empty"),
        (("p", "--repo", str(tmp_path / "nowhere"), *model), "does not exist"),
        (("p", "--repo", str(ledger), *model, "--seconds", "inf"), "A budget needs"),
        (("p", "--repo", str(ledger), *model, "--seconds", "nan"), "A budget needs"),
        (("p", "--repo", str(ledger), *model, "--allow-host", "*"), "connect:*"),
        (("p", "--repo", "https://me:secret@localhost/x.git", *model), "password or token"),
        (("p", "--repo", "https://secret@localhost/x.git", *model), "password or token"),
    ):
        done = cloister("run", *args, code=2)
        assert text in done.stderr, (args, done.stdout, done.stderr)
        assert done.stderr.count("\n") == 1
    assert cloister("ps", "--json").stdout == ""
    for where, text in ((plain, "is not a git repository"), (empty, "no commits")):
        done = cloister("run", "p", "--repo", str(where), *model, code=2)
        assert text in done.stdout + done.stderr, (where, done.stdout, done.stderr)
    done = cloister("run", "p", "--repo", str(ledger), "--model", "script:none.toml", code=2)
    assert "none.toml" in done.stderr


def test_a_prompt_of_ten_megabytes_is_refused(cloister: Any) -> None:
    done = cloister("run", "-", "--repo", ".", "--model", cloister.fix, stdin="x" * 10_000_000, code=2)
    assert "262,144" in done.stderr


def test_a_check_that_never_ends_is_killed_when_the_budget_is_spent(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script('[[reply]]\ncalls = [{ tool = "bash", command = "touch changed" }]')
    done = cloister(
        "run",
        "p",
        "--repo",
        str(ledger),
        "--model",
        script,
        "--check",
        "test ! -e changed || sleep 1000",
        "--seconds",
        "3",
        code=1,
    )
    assert "3 seconds" in done.stdout
    assert cloister.sandbox_processes() == []


def test_output_that_floods_and_is_no_text_is_bounded_and_the_run_goes_on(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script(
        """
[[reply]]
calls = [{ tool = "bash", command = "head -c 3000 /dev/urandom; yes" }]
[[reply]]
expect = "too much output"
calls = [{ tool = "finish", summary = "s" }]
"""
    )
    cloister("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken")
    returned = next(e["body"] for e in cloister.events() if e["body"]["type"] == "ToolReturned")
    assert len(returned["text"]) < 14_000


def test_a_guest_that_dies_is_rebuilt_from_the_last_save_point(cloister: Any, outside: int) -> None:
    """The second turn waits until the world outside lets it: the first time in a sandbox that is killed."""
    ledger = cloister.ledger()
    (ledger / ".cloister").mkdir(exist_ok=True)
    (ledger / ".cloister/config.toml").write_text('keep = [".env.test"]\n')
    (ledger / ".gitignore").write_text(".env*\n")
    cloister.git(ledger, "add", "-A")
    cloister.git(ledger, "commit", "-q", "-m", "Settings")
    script = cloister.script(
        f"""
[[reply]]
calls = [{{ tool = "bash", command = "echo kept > kept.txt" }}]
[[reply]]
calls = [{{ tool = "bash", command = "echo ignored > .env.test" }}]
[[reply]]
calls = [{{ tool = "bash", command = "until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done; cat kept.txt .env.test", seconds = 600 }}]
[[reply]]
expect = "ignored"
calls = [{{ tool = "finish", summary = "s" }}]
"""
    )
    process = cloister.start(
        *("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken"),
        *("--allow-host", f"localhost:{outside}"),
    )
    cloister.until(lambda: cloister.has("RunAdmitted") and cloister.kinds().count("ActionDecided") == 3)
    for pid in cloister.sandbox_processes():
        cloister.kill(pid)
    cloister.until(lambda: cloister.has("RunResumed"))
    cloister.let_go()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert "SandboxOpened" in cloister.kinds()[cloister.kinds().index("RunResumed") :]
    assert cloister.events()[-1]["body"]["outcome"] == "unbroken"
    assert "kept.txt" in cloister("diff", "last").stdout


def test_the_model_begins_before_the_baseline_and_a_fork_that_dies_is_replaced(
    cloister: Any, outside: int
) -> None:
    ledger = cloister.ledger()
    check = f"until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done"
    process = cloister.start(
        *("run", "p", "--repo", str(ledger), "--check", check, "--allow-host", f"localhost:{outside}"),
        *("--model", cloister.script('[[reply]]\ncalls = [{ tool = "finish", summary = "s" }]')),
    )
    cloister.until(
        lambda: (
            cloister.has("ModelReplied") and '"phase":"baseline"' in cloister("log", "last", "--json").stdout
        )
    )
    for pid in cloister.sandbox_processes():
        cloister.kill(pid)
    cloister.let_go()
    process.communicate(timeout=60)
    assert cloister.events()[-1]["body"]["outcome"] == "unbroken"
    kinds = cloister.kinds()
    assert kinds.index("ModelReplied") < kinds.index("BaselineTaken")


def test_a_run_killed_while_the_base_is_checked_is_resumed_with_its_turns(
    cloister: Any, outside: int
) -> None:
    """kill -9 with turns in the log and no baseline: the next owner takes it on the base, not on the changed files."""
    ledger = cloister.ledger()
    wait = f"until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done"
    script = cloister.script(
        """
[[reply]]
calls = [{ tool = "read", path = "README.md" }]
[[reply]]
calls = [{ tool = "bash", command = "touch mine" }]
[[reply]]
calls = [{ tool = "finish", summary = "s" }]
"""
    )
    process = cloister.start(
        *("run", "p", "--repo", str(ledger), "--check", f"{wait}; test ! -e mine", "--model", script),
        *("--allow-host", f"localhost:{outside}"),
    )
    cloister.until(lambda: cloister.has("ModelReplied") and cloister.kinds().count("ToolReturned") == 2)
    cloister.kill(process.pid)
    process.communicate(timeout=60)
    assert "BaselineTaken" not in cloister.kinds()
    cloister.let_go()
    server = cloister.start("serve")
    cloister.until(lambda: cloister.has("RunFinished"))  # the script has no reply to the refusal
    assert cloister.has("RunResumed") and cloister.has("FinishRefused")
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=60)
    bodies = [event["body"] for event in cloister.events()]
    (taken,) = [body for body in bodies if body["type"] == "BaselineTaken"]
    assert [one["exit_code"] for one in taken["diagnoses"]] == [0]
    assert [body["step"] for body in bodies if body["type"] == "ModelReplied"][:3] == [1, 2, 3]


def test_a_branch_that_cannot_be_delivered_is_kept_and_can_be_applied(cloister: Any) -> None:
    ledger = cloister.ledger()
    elsewhere = cloister.cwd / "elsewhere"
    check = "python3 -m pytest -q; code=$?; exit $code"
    process = cloister.start("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix, "--check", check)
    cloister.until(lambda: cloister.has("BaselineTaken"))
    ledger.rename(elsewhere)
    process.communicate(timeout=120)
    assert process.returncode == 2
    assert "ChangeMade" in cloister.kinds()
    assert "ChangeDelivered" not in cloister.kinds()
    cloister("apply", "last", "--repo", str(elsewhere))
    branch = cloister.git(elsewhere, "branch", "--list", "cloister/*").strip()
    assert "Now: 0 red, 40 passed" in cloister.git(elsewhere, "log", "-1", "--format=%B", branch)


def test_a_reader_that_leaves_is_no_error_of_ours(cloister: Any) -> None:
    ledger = cloister.ledger()
    command = " ".join(
        map(shlex.quote, cloister.argv("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix))
    )
    done = subprocess.run(
        ["sh", "-c", f"{command} | head -1"], env=cloister.env, capture_output=True, text=True
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_json_cannot_act_on_a_terminal(cloister: Any) -> None:
    ledger = cloister.ledger()
    script = cloister.script(
        '[[reply]]\nsay = "a\\u009b31mb\\u202ec"\ncalls = [{ tool = "finish", summary = "s" }]'
    )
    done = cloister(
        "run",
        "p",
        "--repo",
        str(ledger),
        "--model",
        script,
        "--check",
        "true",
        "--accept",
        "unbroken",
        "--json",
    )
    assert "\\u009b31m" in done.stdout
    assert not set(done.stdout) & {"\x9b", "\u202e"}


def test_a_submodule_is_in_the_sandbox_and_its_proof_and_cannot_be_edited(cloister: Any) -> None:
    ledger, lib = cloister.ledger(), cloister.cwd / "lib"
    lib.mkdir()
    (lib / "rate.txt").write_text("7\n")
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "lib")):
        cloister.git(lib, *args)
    cloister.git(
        ledger, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(lib), "vendor/lib"
    )
    cloister.git(ledger, "commit", "-q", "-m", "lib")
    script = cloister.script(
        """
[[reply]]
calls = [{ tool = "bash", command = "cat vendor/lib/rate.txt > new.txt; echo 8 > vendor/lib/rate.txt" }]
[[reply]]
calls = [{ tool = "finish", summary = "s" }]
[[reply]]
expect = "submodule vendor/lib were edited"
calls = [{ tool = "bash", command = "git -C vendor/lib checkout ." }]
[[reply]]
calls = [{ tool = "finish", summary = "s" }]
"""
    )
    check = "test ! -e new.txt || cmp new.txt vendor/lib/rate.txt"
    run = ("run", "p", "--repo", str(ledger), "--model", script, "--accept", "unbroken")
    cloister(*run, "--check", check)
    changed = [line for line in cloister("diff", "last").stdout.splitlines() if line.startswith("diff ")]
    assert changed == ["diff --git a/new.txt b/new.txt"]
