"""`cloister say` on a finished run: another round of the same run, in a new sandbox."""

import json
from typing import Any

CALC = "def add(a, b):\n    return a - b\n"
TEST = "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
FIX = "sed -i 's/a - b/a + b/' calc.py"
CHECK = ("--check", "python3 -m unittest -q")


def repository(cloister: Any) -> Any:
    repo = cloister.cwd / "calc"
    repo.mkdir()
    (repo / "calc.py").write_text(CALC)
    (repo / "test_calc.py").write_text(TEST)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(repo, *args)
    return repo


def script(*replies: str) -> str:
    return "".join(f"[[reply]]\n{reply}\n" for reply in replies)


def bash(command: str, *more: str) -> str:
    return "\n".join((f'calls = [{{ tool = "bash", command = """{command}""" }}]', *more))


def finish(summary: str) -> str:
    return f'calls = [{{ tool = "finish", summary = "{summary}" }}]'


def bodies(cloister: Any, kind: str) -> list[dict[str, Any]]:
    return [event["body"] for event in cloister.events() if event["body"]["type"] == kind]


def test_a_green_run_continues_on_its_branch_until_it_is_removed(cloister: Any) -> None:
    repo = repository(cloister)
    model = cloister.script(
        script(
            bash(FIX),
            finish("Add adds."),
            'expect = "Message from"\n' + bash("test -f test_calc.py && echo '# sum' >> calc.py"),
            finish("A comment."),
        )
    )
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    (branch,) = cloister.git(repo, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    first = cloister.git(repo, "rev-parse", branch)
    assert "cloister watch r-" in cloister("say", "last", "Add a comment.").stdout
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    assert cloister.git(repo, "rev-parse", f"{branch}^") == first
    assert cloister.git(repo, "show", f"{branch}:calc.py").endswith("# sum")
    assert cloister.git(repo, "log", "--format=%s", branch).splitlines() == [
        "A comment.",
        "Add adds.",
        "base",
    ]
    run = cloister.json("ps", "--limit", "1")
    assert (run["state"], run["outcome"]) == ("finished", "proven")
    assert [end["outcome"] for end in bodies(cloister, "RunFinished")] == ["proven", "proven"]
    assert bodies(cloister, "RunContinued")[0]["origin"] == "user"
    assert cloister("audit", "verify").stdout.startswith("OK")
    receipt = cloister("receipt", "last").stdout
    assert "Add a comment." in receipt
    assert "# sum" in cloister("diff", "last").stdout
    fixed = cloister("why", "calc.py:2").stdout
    assert "return a + b" in fixed and "asked  Fix add" in fixed and "sed -i" in fixed
    added = cloister.json("why", "calc.py:3", "last")
    assert (added["text"], added["prompt"], added["base"]) == ("# sum", "Add a comment.", False)
    assert "before the run" in cloister("why", "calc.py:1").stdout
    assert "no line 99" in cloister("why", "calc.py:99", code=2).stderr
    assert "FILE:LINE" in cloister("why", "calc.py", code=2).stderr
    assert "The proof holds" in cloister("verify", "last").stdout
    again = cloister.json("verify", branch, "--repo", str(repo))
    assert (again["claimed"], again["found"], again["holds"]) == ("proven", "proven", True)
    assert (again["red_before"], again["red_now"]) == (1, 0)
    assert "no change of a run" in cloister("verify", "main", "--repo", str(repo), code=2).stderr
    file = cloister.cwd / "proof.json"
    file.write_text(cloister("receipt", "last", "--json").stdout)
    assert cloister.json("verify", str(file), "--repo", str(repo))["holds"]
    file.write_text(file.read_text().replace("unittest -q", "unittest -q; true"))
    lied = cloister("verify", str(file), "--repo", str(repo), code=2).stderr
    assert "contradicts the commit" in lied and len(lied.strip().splitlines()) == 1
    cloister.git(repo, "switch", "-q", branch)
    (repo / "calc.py").write_text(CALC)
    cloister.git(repo, "commit", "-qa", "--amend", "--no-edit")
    assert "does not hold" in cloister("verify", branch, "--repo", str(repo), code=1).stdout
    cloister("rm", "last")
    late = cloister("say", "last", "And more.", code=2)
    assert "removed" in late.stderr and len(late.stderr.strip().splitlines()) == 1
    assert len(bodies(cloister, "RunContinued")) == 1


def test_a_red_run_is_put_right_by_a_message_and_others_commits_stay(cloister: Any) -> None:
    repo = repository(cloister)
    rest = f'{bash(FIX)}\nname = "fix"'
    on = 'name = "on"\nbranch = [{ when = "the sign", goto = "fix" }, { goto = "on" }]'
    model = cloister.script(script(bash("echo kept > kept.txt"), bash("true", on), rest, finish("Fixed.")))
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK, "--steps", "3", code=1)
    assert cloister.git(repo, "branch", "--list", "cloister/*") == ""
    cloister("apply", "last", "--repo", str(repo), "--checkout")
    (branch,) = cloister.git(repo, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    (repo / "mine.txt").write_text("mine\n")
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "Mine")
    mine = cloister.git(repo, "rev-parse", "HEAD")
    cloister("say", "last", "It is the sign.")
    cloister("watch", "last")
    assert [end["outcome"] for end in bodies(cloister, "RunFinished")] == ["budget", "proven"]
    assert cloister.git(repo, "rev-parse", branch) == mine
    assert cloister.git(repo, "status", "--porcelain") == ""
    assert "a + b" in cloister.git(repo, "show", f"{branch}-2:calc.py")
    assert cloister.git(repo, "show", f"{branch}-2:kept.txt") == "kept"


def test_a_branch_that_missed_a_round_moves_on_when_the_next_one_is_applied(cloister: Any) -> None:
    repo = repository(cloister)
    rounds = [("echo '# one' >> calc.py", "One."), ("echo '# two' >> calc.py", "Two.")]
    more = [part for do, said in rounds for part in ('expect = "Message from"\n' + bash(do), finish(said))]
    model = cloister.script(script(bash(FIX), finish("Add adds."), *more))
    clone = cloister.cwd / "clone"
    cloister.git(cloister.cwd, "clone", "-q", str(repo), str(clone))
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    cloister("apply", "last", "--repo", str(clone))
    for text in ("Add one.", "Add two."):
        cloister("say", "last", text)
        cloister("watch", "last")
    cloister("apply", "last", "--repo", str(clone))
    (branch,) = cloister.git(clone, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    assert cloister.git(clone, "log", "--format=%s", branch).splitlines() == [
        "Two.",
        "One.",
        "Add adds.",
        "base",
    ]


def test_a_stopped_run_continues_after_a_crash_with_both_messages(cloister: Any, outside: int) -> None:
    repo = repository(cloister)
    wait = f"until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done"
    model = cloister.script(
        script(
            bash(
                "echo kept > kept.txt",
                'branch = [{ when = "Message from", goto = "fix" }, { goto = "wait" }]',
            ),
            bash("sleep 600", 'name = "wait"'),
            bash(f"{wait}; {FIX}", 'name = "fix"'),
            finish("Fixed."),
        )
    )
    cloister("serve", "--background", "--port", "0")
    allow = ("--allow-host", f"localhost:{outside}", "--detach")
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK, *allow)
    cloister.until(lambda: cloister.kinds().count("ActionDecided") == 2)
    cloister("stop", "last")
    cloister.until(lambda: cloister.has("RunFinished"))
    says = [cloister.start("say", "last", text) for text in ("Go on.", "And hurry.")]
    for say in says:
        say.communicate(timeout=120)
    assert [say.returncode for say in says] == [0, 0]
    assert len(bodies(cloister, "RunContinued")) == 1
    cloister.until(
        lambda: len(bodies(cloister, "AttemptForked")) == 1 and len(bodies(cloister, "ModelReplied")) > 2
    )
    cloister.kill_server()
    assert json.loads(cloister("ps", "--json").stdout)["state"] == "running"
    cloister.let_go()
    cloister("serve", "--background", "--port", "0")
    cloister("watch", "last")
    assert [end["outcome"] for end in bodies(cloister, "RunFinished")] == ["stopped", "proven"]
    assert sorted(body["text"] for body in bodies(cloister, "PromptReceived")) == ["And hurry.", "Go on."]
    assert len(bodies(cloister, "AttemptForked")) == 1
    (branch,) = cloister.git(repo, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    assert cloister.git(repo, "show", f"{branch}:kept.txt") == "kept"
    assert cloister("audit", "verify").stdout.startswith("OK")


def test_a_server_removes_old_save_points_and_the_result_can_still_be_used(cloister: Any) -> None:
    repo = repository(cloister)
    model = cloister.script(
        script(
            bash("echo one > first.txt"),
            bash(f"rm first.txt; {FIX}"),
            finish("Add adds."),
            'expect = "Message from"\n' + bash("echo '# sum' >> calc.py"),
            finish("A comment."),
        )
    )
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    turns = [event for event in cloister.events() if event["body"]["type"] == "TurnEnded"]
    first, diff = turns[0], cloister("diff", "last").stdout
    (bare,) = cloister.data_dir.glob("runs/*/repo.git")
    cloister.git(bare, "cat-file", "-e", first["body"]["commit"])
    config = cloister.data_dir / "config.toml"
    config.write_text(config.read_text() + "[save_points]\ndays = 0\n")
    cloister("serve", "--background", "--port", "0")
    cloister.until(lambda: "SavePointsRemoved" in cloister("audit", "show").stdout)
    assert first["body"]["commit"] not in cloister.git(
        bare, "cat-file", "--batch-check", "--batch-all-objects"
    )
    assert cloister("diff", "last").stdout == diff
    late = cloister("fork", "last", "--at", str(first["seq"]), code=2)
    assert "were removed after the end of its run" in late.stderr
    cloister("say", "last", "Add a comment.")
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    (branch,) = cloister.git(repo, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    assert cloister.git(repo, "show", f"{branch}:calc.py").endswith("# sum")
