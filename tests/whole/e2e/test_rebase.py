"""`cloister rebase`: the change on the newest commit of its base, proven again; conflicts are work for the agent."""

from typing import Any

from tests.whole.e2e.test_continue import CHECK, FIX, bash, bodies, finish, repository, script

RESOLVE = "printf 'def add(a, b):\\\\n    return (a + b)\\\\n' > calc.py"


def branch_of(cloister: Any, repo: Any) -> str:
    (branch,) = cloister.git(repo, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    return branch


def move(cloister: Any, repo: Any, *files: tuple[str, str]) -> str:
    for name, text in files:
        (repo / name).write_text(text)
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "upstream")
    return cloister.git(repo, "rev-parse", "HEAD")


def since_base(cloister: Any) -> list[str]:
    kinds = cloister.kinds()
    return kinds[len(kinds) - 1 - kinds[::-1].index("BaseFixed") :]


def test_a_change_without_conflicts_is_proven_on_the_new_base_without_a_model(cloister: Any) -> None:
    repo = repository(cloister)
    model = cloister.script(script(bash(FIX), finish("Add adds.")))
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    branch = branch_of(cloister, repo)
    still = cloister("rebase", "last", code=2).stderr
    assert "main is still at" in still
    new = move(cloister, repo, ("other.py", "x = 1\n"))
    assert "cloister watch r-" in cloister("rebase", "last").stdout
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    assert cloister.git(repo, "rev-parse", f"{branch}^") == new
    assert cloister.git(repo, "diff", "--name-only", "main", branch).split() == ["calc.py"]
    assert [body["commit"] for body in bodies(cloister, "BaseFixed")][1] == new
    assert len(bodies(cloister, "ModelReplied")) == 2
    message = cloister.git(repo, "log", "-1", "--format=%B", branch)
    assert "Add adds." in message
    assert message.count("Check: ") == 1
    assert cloister("diff", "last").stdout.count("diff --git") == 1
    assert FIX.partition("'")[0].strip() in cloister("why", "calc.py:2").stdout
    assert "It was in the repository before the run." in cloister("why", "other.py:1").stdout
    cloister.git(repo, "checkout", "-q", "--detach")
    cloister.git(repo, "branch", "-q", "-m", "main", "gone")
    assert "has no branch, tag or commit called main" in cloister("rebase", "last", code=2).stderr


def test_a_rebase_whose_server_is_killed_resumes_on_the_new_base(cloister: Any, outside: int) -> None:
    repo = repository(cloister)
    wait = f"until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done"
    slow = bash(f"grep -q '<<<<<<<' calc.py && touch turn && {wait}").replace(" }]", ", seconds = 600 }]")
    model = cloister.script(
        script(
            bash(FIX),
            finish("Add adds."),
            'expect = "Both sides changed these files"\n' + bash("touch first"),
            slow,
            bash(f"test -e first && {RESOLVE} && rm -f first turn"),
            finish("Both."),
        )
    )
    allow = ("--allow-host", f"localhost:{outside}")
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK, *allow)
    branch = branch_of(cloister, repo)
    new = move(cloister, repo, ("calc.py", "def add(a, b):\n    return (a - b)\n"))
    cloister("serve", "--background", "--port", "0")
    cloister("rebase", "last")
    cloister.until(lambda: since_base(cloister).count("ActionDecided") == 2)
    cloister.kill_server()
    cloister.let_go()
    cloister("serve", "--background", "--port", "0")
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    assert cloister.has("RunResumed")
    assert [body["commit"] for body in bodies(cloister, "BaseFixed")][1:] == [new]
    assert cloister.git(repo, "rev-parse", f"{branch}^") == new
    assert cloister.git(repo, "diff", "--name-only", "main", branch).split() == ["calc.py"]
    assert cloister("audit", "verify").stdout.startswith("OK")


def test_conflicts_go_back_to_the_agent_of_the_same_run(cloister: Any) -> None:
    repo = repository(cloister)
    model = cloister.script(
        script(
            bash(FIX),
            finish("Add adds."),
            'expect = "Both sides changed these files"\n' + bash(f"grep -q '<<<<<<<' calc.py && {RESOLVE}"),
            finish("Both."),
        )
    )
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    branch = branch_of(cloister, repo)
    # The old base is in no branch any more.
    cloister.git(repo, "checkout", "-q", "--orphan", "other")
    new = move(cloister, repo, ("calc.py", "def add(a, b):\n    return (a - b)\n"))
    cloister.git(repo, "branch", "-q", "-f", "main", "other")
    cloister("rebase", "last")
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    assert cloister.git(repo, "rev-parse", f"{branch}^") == new
    assert cloister.git(repo, "show", f"{branch}:calc.py") == "def add(a, b):\n    return (a + b)"
    said = [body["text"] for body in bodies(cloister, "PromptReceived")]
    assert "- calc.py" in said[1]
