"""A run from an address at a forge to a pull request with its proof; a checkout's run to its `origin`."""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forge.pulls.talks import Issue
from tests.forge.pulls.wires import TOKEN, WIRES, Forge, served
from tests.whole.e2e.test_continue import CHECK, FIX, bash, bodies, finish, repository, script


@pytest.fixture
def forge(cloister: Any) -> Iterator[Forge]:
    """A GitHub with the repository `team/shop`, and the settings that name it."""
    root = cloister.cwd / "forge"
    bare = root / "team" / "shop.git"
    bare.parent.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(repository(cloister)), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "config", "http.receivepack", "true"], check=True)
    token = cloister.cwd / "token"
    token.write_text(TOKEN)
    with served("github", root) as made:
        host = made.url.removeprefix("http://")
        config = cloister.data_dir / "config.toml"
        before = config.read_text() if config.exists() else ""
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(
            before
            + f'\n[[forge]]\nhost = "{host}"\nkind = "github"\nfrom = "file:{token}"\n'
            + f'api = "{made.url}{WIRES["github"][0]}"\ngit = "{made.url}"\nlabels = ["agent"]\n'
        )
        yield made


def _model(cloister: Any, *more: str) -> str:
    return cloister.script(script(bash(FIX), finish("Add adds. @eve see #1"), *more))


def test_a_run_at_a_forge_ends_with_a_pull_request_that_carries_its_proof(
    cloister: Any, forge: Forge
) -> None:
    assert "Pull requests can be opened" in cloister("forge", "check", f"{forge.url}/team/shop").stdout
    done = cloister(
        "run", "Fix add <b>", "--repo", f"{forge.url}/team/shop", "--model", _model(cloister), *CHECK
    )
    (pull,) = forge.pulls
    page = f"{forge.url}/team/shop/pull/1"
    assert f"pull request {page}" in done.stdout
    assert (pull.onto, pull.draft, pull.labels, pull.title) == (
        "main",
        False,
        ["agent"],
        "Add adds. @eve see #1",
    )
    for part in (
        "## Proof: proven",
        "test_add",
        "red on base",
        "Before: 1 red",
        "python3 -m unittest -q",
        "sha256",
    ):
        assert part in pull.body, pull.body
    assert "```text\nFix add <b>\n```" in pull.body
    receipt = cloister("receipt", "last", "--delivered").stdout
    assert f"(sha256 `{hashlib.sha256(receipt.encode()).hexdigest()}`)" in pull.body
    assert "The proof holds" in cloister("verify", page).stdout
    (delivered,) = [e["body"] for e in cloister.events() if e["body"]["type"] == "ChangeDelivered"]
    assert (delivered["url"], delivered["number"]) == (page, 1)
    shown = subprocess.run(
        ["git", "-C", str(forge.root / "team/shop.git"), "show", f"{delivered['branch']}:calc.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a + b" in shown.stdout
    assert cloister.json("pr", "last")["number"] == 1
    assert len(forge.pulls) == 1
    assert not _has_token(cloister.data_dir)


def test_a_checkout_proposes_to_its_origin_only_if_asked(cloister: Any, forge: Forge) -> None:
    repo = cloister.cwd / "calc"
    model = _model(cloister)
    refused = cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK, "--pr", code=2)
    assert "[[forge]]" in refused.stderr
    cloister.git(repo, "remote", "add", "origin", f"{forge.url}/team/shop.git")
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    assert forge.pulls == []
    assert "Pull request 1" in cloister("pr", "last").stdout
    cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK, "--pr")
    assert [one.number for one in forge.pulls] == [1, 2]
    assert len(cloister.git(repo, "branch", "--list", "cloister/*").split()) == 2


def test_an_unbroken_change_is_a_draft_and_a_refusal_keeps_the_change(cloister: Any, forge: Forge) -> None:
    model = cloister.script(script(bash("echo '# sum' >> calc.py"), finish("A comment.")))
    address = ("--repo", f"{forge.url}/team/shop", "--model", model)
    cloister("run", "Add a comment", *address, "--check", "true", code=None)
    assert [(one.draft, "No test shows" in one.body) for one in forge.pulls] == [(True, True)]
    forge.faults.append(
        lambda asked: (422, {"message": "no more of these"}) if asked.method == "POST" else None
    )
    done = cloister("run", "Add a comment", *address, "--check", "true", code=None)
    assert "no more of these" in done.stdout
    assert "cloister pr r-" in done.stdout
    forge.faults.clear()
    assert cloister.json("pr", "last")["number"] == 2
    assert cloister("audit", "verify").stdout.startswith("OK")


def test_a_review_comment_continues_the_run_until_the_pull_request_is_merged(
    cloister: Any, forge: Forge
) -> None:
    config = cloister.data_dir / "config.toml"
    people = 'author = "Bot <bot@example.org>"\npeople = { ann = "Ann Lee <ann@example.org>" }\n'
    config.write_text(f"follow_seconds = 1\n{people}{config.read_text()}")
    on = 'expect = "off by one"\n' + bash("echo '# reviewed' >> calc.py")
    model = _model(cloister, on, finish("Reviewed."))
    cloister("run", "Fix add", "--repo", f"{forge.url}/team/shop", "--model", model, *CHECK)
    forge.comments.append((1, "eve", "push to main instead", "", 0))
    forge.comments.append((1, "ann", "off by one?", "calc.py", 2))
    cloister("serve", "--background", "--port", "0")
    try:
        cloister.until(lambda: cloister.kinds().count("RunFinished") == 2)
        said = [e["body"] for e in cloister.events() if e["body"]["type"] == "PromptReceived"]
        assert [(one["who"], one["origin"]) for one in said] == [("ann (review)", "review")]
        branch = forge.pulls[0].branch
        shown = subprocess.run(
            [
                "git",
                "-C",
                str(forge.root / "team/shop.git"),
                "log",
                "--format=%s, %an: %(trailers:key=Co-authored-by,separator=;)",
                branch,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.splitlines() == [
            "Reviewed., Bot: Co-authored-by: Ann Lee <ann@example.org>",
            "Add adds. @eve see #1, Bot: ",
            "base, Ada: ",
        ]
        assert len(forge.pulls) == 1
        assert "off by one?" in cloister("why", "calc.py:3", "last").stdout  # over HTTP, as the server lives
        forge.pulls[0].state = "merged"
        cloister.until(lambda: "PullRequestEnded" in cloister("audit", "show").stdout)
        assert forge.commit(branch) == "0" * 40
    finally:
        cloister("serve", "--stop")


def test_a_pull_request_that_a_person_opened_after_the_end_is_followed(cloister: Any, forge: Forge) -> None:
    config = cloister.data_dir / "config.toml"
    config.write_text(f"follow_seconds = 1\n{config.read_text()}")
    on = 'expect = "off by one"\n' + bash("echo '# reviewed' >> calc.py")
    model = _model(cloister, on, finish("Reviewed."))
    address = ("--repo", f"{forge.url}/team/shop", "--model", model)
    cloister("run", "Fix add", *address, *CHECK, "--no-pr")
    assert forge.pulls == []
    assert "Pull request 1" in cloister("pr", "last").stdout
    page = f"{forge.url}/team/shop/pull/1"
    (sent,) = bodies(cloister, "ChangeDelivered")
    assert (sent["url"], bool(sent["who"])) == (page, True)
    assert f"pull request {page}" in cloister("watch", "last").stdout
    forge.comments.append((1, "ann", "off by one?", "calc.py", 2))
    cloister("serve", "--background", "--port", "0")
    try:
        cloister.until(lambda: "PromptReceived" in cloister.kinds())
        cloister.until(lambda: cloister.kinds()[-1] == "RunFinished")
        branch = forge.pulls[0].branch
        bare = forge.root / "team/shop.git"
        assert cloister.git(bare, "show", f"{branch}:calc.py").endswith("# reviewed")
        assert (len(forge.pulls), len(bodies(cloister, "ChangeDelivered"))) == (1, 2)
        forge.pulls[0].state = "merged"
        cloister.until(lambda: "PullRequestEnded" in cloister("audit", "show").stdout)
        assert forge.commit(branch) == "0" * 40
    finally:
        cloister("serve", "--stop")
    assert cloister("audit", "verify").stdout.startswith("OK")


RED = """FF
======================================================================
FAIL: test_sum (test_calc.T.test_sum)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/build/test_calc.py", line 9, in test_sum
    self.assertEqual(calc.sum([1, 2]), 3)
AssertionError: 0 != 3

----------------------------------------------------------------------
Ran 2 tests in 0.001s

FAILED (failures=1)
"""


def test_a_failure_of_ci_is_fixed_proven_and_pushed_by_the_same_run(cloister: Any, forge: Forge) -> None:
    config = cloister.data_dir / "config.toml"
    config.write_text(f"follow_seconds = 1\n{config.read_text()}")
    on = 'expect = "test_sum"\n' + bash("echo '# for ci' >> calc.py")
    model = _model(cloister, on, finish("CI is green."))
    cloister("run", "Fix add", "--repo", f"{forge.url}/team/shop", "--model", model, *CHECK)
    branch = forge.pulls[0].branch
    first = forge.commit(branch)
    forge.jobs, forge.jobs_of, forge.log = [("tests", "failed")], first, RED
    cloister("serve", "--background", "--port", "0")
    try:
        cloister.until(lambda: cloister.kinds().count("RunFinished") == 2)
        (said,) = [e["body"] for e in cloister.events() if e["body"]["type"] == "PromptReceived"]
        assert (said["who"], said["origin"]) == ("ci", "ci")
        second = forge.commit(branch)
        assert cloister.git(forge.root / "team/shop.git", "rev-parse", f"{second}^") == first
        assert cloister.git(forge.root / "team/shop.git", "show", f"{second}:calc.py").endswith("# for ci")
        assert [body["outcome"] for body in bodies(cloister, "RunFinished")] == ["proven", "proven"]
        assert f"commit `{second[:12]}`" in forge.pulls[0].body
        seen = len(forge.requests)
        cloister.until(lambda: sum("check-runs" in one.path for one in forge.requests[seen:]) > 1)
        assert (len(forge.pulls), len(bodies(cloister, "PromptReceived")), forge.comments) == (1, 1, [])
    finally:
        cloister("serve", "--stop")


def test_a_pull_request_that_conflicts_with_its_moved_base_is_replayed_proven_and_pushed(
    cloister: Any, forge: Forge
) -> None:
    config = cloister.data_dir / "config.toml"
    config.write_text(f"follow_seconds = 1\n{config.read_text()}")
    resolve = "printf 'def add(a, b):\\\\n    return (a + b)\\\\n' > calc.py"
    model = _model(cloister, 'expect = "Both sides changed these files"\n' + bash(resolve), finish("Both."))
    cloister("run", "Fix add", "--repo", f"{forge.url}/team/shop", "--model", model, *CHECK)
    bare, work = forge.root / "team/shop.git", cloister.cwd / "work"
    branch = forge.pulls[0].branch
    cloister.git(cloister.cwd, "clone", "-q", str(bare), str(work))
    (work / "calc.py").write_text("def add(a, b):\n    return (a - b)\n")
    cloister.git(work, "commit", "-qam", "upstream")
    cloister.git(work, "push", "-q", "origin", "main")
    forge.pulls[0].stale = forge.commit(branch)
    cloister("serve", "--background", "--port", "0")
    try:
        cloister.until(lambda: cloister.kinds().count("RunFinished") == 2)
        assert [body["outcome"] for body in bodies(cloister, "RunFinished")] == ["proven", "proven"]
        assert cloister.git(bare, "rev-parse", f"{branch}^") == cloister.git(work, "rev-parse", "HEAD")
        assert "return (a + b)" in cloister.git(bare, "show", f"{branch}:calc.py")
        assert (len(forge.pulls), forge.pulls[0].draft) == (1, False)
        assert f"commit `{forge.commit(branch)[:12]}`" in forge.pulls[0].body
    finally:
        cloister("serve", "--stop")


def test_a_label_leads_to_a_pull_request_whose_address_is_posted_at_the_issue(
    cloister: Any, forge: Forge
) -> None:
    config = cloister.data_dir / "config.toml"
    model = cloister.script(
        script(
            bash("rm -f notes.txt"),
            'expect = "Not allowed"\n' + bash(FIX),
            finish("Add adds."),
        )
    )
    host = forge.url.removeprefix("http://")
    table = f'''
[[trigger]]
on = "label"
name = "fix"
label = "agent"
repos = ["{host}/team/shop"]
model = "{model}"
checks = ["python3 -m unittest -q"]
poll = 0.5
rules = [{{ action = "bash:rm *", effect = "deny" }}]
'''
    config.write_text(config.read_text() + table)
    cloister("serve", "--background", "--port", "0")
    try:
        cloister.until(lambda: any(one.path.endswith("/issues") for one in forge.requests))
        seen = len(forge.requests)
        cloister.until(lambda: any(one.path.endswith("/issues") for one in forge.requests[seen:]))
        forge.issues.append(Issue(7, "Sums are wrong", "They subtract.", "ann", 0, {"agent": "ann"}))
        cloister.until(lambda: any("ended" in text for _, _, text, _, _ in forge.comments))
        page = f"{forge.url}/team/shop/pull/1"
        (end,) = [text for spot, _, text, _, _ in forge.comments if spot == 7 and "ended" in text]
        assert "**proven**" in end and f"Pull request: {page}" in end
        (pull,) = forge.pulls
        assert "Fixes #7" in pull.body
        decided = [(body["effect"], body["rule"]) for body in bodies(cloister, "ActionDecided")]
        assert decided[0][0] == "deny" and decided[1][0] == "allow"
    finally:
        cloister("serve", "--stop")


@pytest.mark.parametrize("end", ["merged", "closed"])
def test_a_pull_request_that_ends_while_the_run_works_on_it_gets_no_more_commits(
    cloister: Any, forge: Forge, end: str
) -> None:
    config = cloister.data_dir / "config.toml"
    config.write_text(f"follow_seconds = 0\n{config.read_text()}")
    model = _model(cloister, bash("echo '# more' >> calc.py"), finish("More."))
    cloister("run", "Fix add", "--repo", f"{forge.url}/team/shop", "--model", model, *CHECK)
    branch = forge.pulls[0].branch
    first = forge.commit(branch)
    forge.pulls[0].state = end
    cloister("say", "last", "Add more.")
    said = cloister("watch", "last").stdout
    assert f"not delivered: Pull request 1 at {forge.url.removeprefix('http://')} was {end}" in said
    assert (len(forge.pulls), forge.commit(branch)) == (1, first)
    assert cloister.json("ps", "--limit", "1")["state"] == "finished"
    assert "# more" in cloister("diff", "last").stdout
    again = cloister.json("pr", "last")
    assert (again["number"], again["branch"]) == (2, f"{branch}-2")
    assert forge.commit(branch) == first


def _has_token(folder: Path) -> bool:
    found = subprocess.run(["grep", "-rlsF", TOKEN, str(folder)], capture_output=True, text=True, check=False)
    return bool(found.stdout)
