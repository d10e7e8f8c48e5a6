"""`cloister run --repo A --repo B`: each repository in its folder, with a base, a branch and a pull request of its own."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.forge.pulls.wires import Forge
from tests.whole.e2e.forges.test_pull_request import forge as forge
from tests.whole.e2e.test_continue import bash, bodies, finish, script

APP = {
    "app.py": "import sys\n\nsys.path.insert(0, '../lib')\nimport ops\n\n\ndef total(a, b):\n    return -ops.add(a, b)\n",
    "test_app.py": "import unittest\nimport app\n\n\nclass T(unittest.TestCase):\n"
    "    def test_total(self):\n        self.assertEqual(app.total(1, 2), 3)\n",
}
LIB = {
    "ops.py": "def add(a, b):\n    return a - b\n",
    "test_ops.py": "import unittest\nimport ops\n\n\nclass T(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(ops.add(1, 2), 3)\n",
    ".cloister/policy.toml": '[[rule]]\naction = "write:vendored/**"\neffect = "deny"\n',
}
FIX_APP = "sed -i 's/-ops/ops/' app/app.py"
FIX_LIB = "sed -i 's/a - b/a + b/' lib/ops.py"


def made(cloister: Any, name: str, files: dict[str, str]) -> Path:
    repo = cloister.cwd / name
    for path, text in files.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", f"base of {name}")):
        cloister.git(repo, *args)
    return repo


def branch_of(cloister: Any, repo: Path) -> str:
    (branch,) = cloister.git(repo, "branch", "--list", "cloister/*", "--format=%(refname:short)").split()
    return branch


def test_each_repository_gets_its_own_change_with_one_proof_of_all(cloister: Any) -> None:
    app, lib = made(cloister, "app", APP), made(cloister, "lib", LIB)
    bases = [cloister.git(repo, "rev-parse", "HEAD") for repo in (app, lib)]
    model = cloister.script(
        script(
            'expect = "holds several repositories"\n'
            + bash(f"{FIX_APP}; {FIX_LIB}; mkdir lib/vendored; echo x > notes.txt; echo y > lib/vendored/x"),
            'expect = "lib/vendored/x"\n' + bash("rm -r lib/vendored"),
            finish("Adds."),
            'expect = "notes.txt is in none of the repositories app, lib"\n' + bash("rm notes.txt"),
            finish("Adds."),
        )
    )
    done = cloister("run", "Fix the sums", "--repo", str(app), "--repo", str(lib), "--model", model)
    assert "✓ proven" in done.stdout
    assert f"app: {branch_of(cloister, app)}, in {app}" in " ".join(done.stdout.split())
    (fixed,) = bodies(cloister, "BaseFixed")
    assert [(one["folder"], one["commit"]) for one in fixed["parts"]] == [
        ("app", bases[0]),
        ("lib", bases[1]),
    ]
    checks = bodies(cloister, "ChecksChosen")[0]["checks"]
    assert [check.split()[1] for check in checks] == ["app", "lib"]
    for repo, base, file in ((app, bases[0], "app.py"), (lib, bases[1], "ops.py")):
        branch = branch_of(cloister, repo)
        assert cloister.git(repo, "rev-parse", f"{branch}^") == base
        assert cloister.git(repo, "diff", "--name-only", "main", branch).split() == [file]
        message = cloister.git(repo, "log", "-1", "--format=%B", branch)
        assert f"Cloister-Repository: {repo.name}" in message
        assert "Outcome: proven" in message
        assert "one of several" in cloister("verify", branch, "--repo", str(repo), code=2).stderr
    diff = cloister("diff", "last").stdout
    assert "b/app/app.py" in diff and "b/lib/ops.py" in diff
    assert "The proof holds" in cloister("verify", "last").stdout
    assert "return a + b" in cloister("why", "lib/ops.py:2").stdout
    receipt = cloister("receipt", "last").stdout
    assert str(lib) in receipt and bases[1][:12] in receipt
    assert cloister("audit", "verify").stdout.startswith("OK")


@pytest.mark.long
def test_later_rounds_and_a_moved_base_go_to_the_branches_of_each_repository(cloister: Any) -> None:
    app, lib = made(cloister, "app", APP), made(cloister, "lib", LIB)
    model = cloister.script(
        script(
            bash(f"{FIX_APP}; {FIX_LIB}"),
            finish("Adds."),
            'expect = "Message from"\n' + bash("echo '# sum' >> lib/ops.py"),
            finish("A comment."),
        )
    )
    cloister("run", "Fix the sums", "--repo", str(app), "--repo", str(lib), "--model", model)
    cloister("say", "last", "Add a comment.")
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    assert cloister.git(lib, "log", "--format=%s", branch_of(cloister, lib)).splitlines()[:2] == [
        "A comment.",
        "Adds.",
    ]
    assert cloister.git(app, "log", "--format=%s", branch_of(cloister, app)).splitlines()[0] == "Adds."

    assert "is still at" in cloister("rebase", "last", code=2).stderr
    (lib / "more.py").write_text("x = 1\n")
    cloister.git(lib, "add", "-A")
    cloister.git(lib, "commit", "-q", "-m", "upstream")
    cloister("rebase", "last")
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit("round 3", 1)[1]
    assert cloister.git(lib, "rev-parse", f"{branch_of(cloister, lib)}^") == cloister.git(
        lib, "rev-parse", "main"
    )
    assert cloister.git(lib, "diff", "--name-only", "main", branch_of(cloister, lib)).split() == ["ops.py"]
    assert cloister("audit", "verify").stdout.startswith("OK")

    clone = cloister.cwd / "clone"
    cloister.git(cloister.cwd, "clone", "-q", str(lib), str(clone))
    assert "is in" in cloister("apply", "last", "--repo", str(clone)).stdout
    assert branch_of(cloister, clone)
    assert "name one: app, lib" in cloister("apply", "last", "--repo", str(cloister.ledger()), code=2).stderr


def test_a_killed_run_goes_on_and_a_refused_delivery_keeps_no_other_back(
    cloister: Any, forge: Forge, outside: int
) -> None:
    lib = made(cloister, "lib", LIB)
    wait = f"until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done"
    model = cloister.script(
        script(
            bash("sed -i 's/a - b/a + b/' shop/calc.py; touch lib/turn"),
            bash(f"{wait}; test -e lib/turn && {FIX_LIB}; rm lib/turn").replace(" }]", ", seconds = 600 }]"),
            finish("Both add."),
        )
    )
    forge.faults.append(
        lambda asked: (422, {"message": "no more of these"}) if asked.method == "POST" else None
    )
    process = cloister.start(
        *("run", "Fix both sums", "--repo", f"{forge.url}/team/shop", "--repo", str(lib), "--model", model),
        *("--allow-host", f"localhost:{outside}"),
    )
    cloister.until(lambda: cloister.has("RunAdmitted") and cloister.kinds().count("ActionDecided") == 2)
    cloister.kill(process.pid)
    process.communicate(timeout=60)
    cloister.let_go()
    server = cloister.start("serve")
    cloister.until(lambda: cloister.has("RunFinished"))
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=60)
    assert cloister.has("RunResumed")
    assert bodies(cloister, "RunFinished")[0]["outcome"] == "proven"
    (failed,), (sent,) = bodies(cloister, "DeliveryFailed"), bodies(cloister, "ChangeDelivered")
    assert (failed["folder"], sent["folder"]) == ("shop", "lib")
    assert "no more of these" in failed["reason"]
    assert cloister.git(lib, "diff", "--name-only", "main", branch_of(cloister, lib)).split() == ["ops.py"]
    forge.faults.clear()
    assert cloister.json("pr", "last")["folder"] == "shop"
    (pull,) = forge.pulls
    assert "One change of several" in pull.body
    assert str(lib) in pull.body
