from typing import Any

POLICY = """\
[[rule]]
action = "bash:touch *"
effect = "deny"

[[rule]]
action = "push:*"
effect = "deny"

[limits]
steps = 7
"""


def test_a_run_is_bound_by_its_base_commits_rules_whatever_it_writes_over_them(cloister: Any) -> None:
    ledger = cloister.ledger()
    (ledger / ".cloister").mkdir()
    (ledger / ".cloister" / "policy.toml").write_text(POLICY)
    cloister.git(ledger, "add", "-A")
    cloister.git(ledger, "commit", "-q", "-m", "rules")
    script = cloister.script(
        """
[[reply]]
calls = [
    { tool = "write", path = ".cloister/policy.toml", content = "" },
    { tool = "bash", command = "git commit -qam 'no rules'; sh -c 't\\"o\\"uch freed'" },
    { tool = "bash", command = "test ! -e freed && echo still bound" },
    { tool = "finish", summary = "s" },
]
"""
    )
    cloister("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken")
    bodies = [event["body"] for event in cloister.events()]
    commit = cloister.git(ledger, "rev-parse", "HEAD")[:12]
    fixed = next(body for body in bodies if body["type"] == "PolicyFixed")
    assert fixed["layers"][-1] == f"repository (.cloister/policy.toml@{commit})"
    assert fixed["limited"] == [f"steps: 7 instead of 60 (limits.steps, .cloister/policy.toml@{commit}:10)"]
    assert " steps of 7 steps (" in cloister("budget", "last").stdout
    decided = [(b["effect"], b["rule"]) for b in bodies if b["type"] == "ActionDecided"]
    assert decided == [
        ("allow", "allow tool:write (built-in)"),
        ("deny", f"deny tool:bash:touch * (.cloister/policy.toml@{commit}:2)"),
        ("allow", "allow tool:bash (built-in)"),
        ("deny", f"deny push:* (.cloister/policy.toml@{commit}:6)"),
    ]
    texts = [body["text"] for body in bodies if body["type"] == "ToolReturned"]
    assert "still bound" in texts[2]
    assert "ChangeMade" in [body["type"] for body in bodies]
    assert "cloister/" not in cloister.git(ledger, "branch", "--list"), "the branch waits for a person"
    assert cloister("apply", "last", "--repo", str(ledger)).returncode == 0


def test_a_tier_or_a_model_that_is_not_allowed_is_refused_before_anything_starts(cloister: Any) -> None:
    ledger = cloister.ledger()
    organisation = cloister.data_dir / "organisation.toml"
    organisation.parent.mkdir(parents=True, exist_ok=True)
    organisation.write_text('only = ["tier:microvm", "model:acme:*"]\n')
    (cloister.data_dir / "config.toml").write_text('policy_file = "organisation.toml"\n')
    done = cloister("run", "p", "--repo", str(ledger), "--model", cloister.fix, code=2)
    assert f"only model:acme:* ({organisation}:1)" in done.stderr
    organisation.write_text('only = ["tier:microvm"]\n')
    done = cloister("run", "p", "--repo", str(ledger), "--model", cloister.fix, "--tier", "container", code=2)
    assert f"A run may not have the tier container: only tier:microvm ({organisation}:1)." in done.stderr


def test_denied_path_is_in_no_save_point_or_branch_whatever_program_changed_it(cloister: Any) -> None:
    ledger = cloister.ledger()
    (ledger / ".ci").mkdir()
    (ledger / ".ci" / "build.yml").write_text("steps: []\n")
    cloister.git(ledger, "add", "-A")
    cloister.git(ledger, "commit", "-q", "-m", "ci")
    base = cloister.git(ledger, "rev-parse", "HEAD")
    script = cloister.script(
        '''
[[reply]]
calls = [
    { tool = "bash", command = "echo x > free; ln -s .ci door" },
    { tool = "write", path = "door/build.yml", content = "x" },
    { tool = "write", path = "door/new/deep.yml", content = "x" },
]

[[reply]]
calls = [{ tool = "bash", command = """python3 -c "open('.ci/build.yml', 'a').write('x')" """ }]

[[reply]]
expect = "ci/build.yml .deny tool:write"
calls = [
    { tool = "bash", command = "git checkout -q refs/cloister/base -- .ci; echo x > door/new.yml" },
    { tool = "finish", summary = "s" },
]

[[reply]]
expect = "ci/new.yml .deny tool:write"
calls = [
    { tool = "bash", command = """rm .ci/new.yml; blob=$(git hash-object -w free)
      git update-index --add --cacheinfo 100644,$blob,.ci/z; git checkout-index .ci/z; git commit -qm x""" },
    { tool = "finish", summary = "s" },
]

[[reply]]
expect = "ci/z .deny tool:write"
calls = [
    { tool = "bash", command = "rm .ci/z door" },
    { tool = "finish", summary = "s" },
]
'''
    )
    rule = ("--rule", "deny write:.ci/**")
    cloister(
        "run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken", *rule
    )
    bodies = [event["body"] for event in cloister.events()]
    named = [b["rule"] for b in bodies if b["type"] == "ActionDecided" and b["action"].startswith("write")]
    assert all(rule.startswith("deny tool:write:.ci/**") for rule in named)
    assert len(named) == 2
    assert len([body for body in bodies if body["type"] == "SaveRefused"]) >= 3
    assert bodies[-1]["outcome"] == "unbroken"
    branch = next(body["branch"] for body in bodies if body["type"] == "ChangeDelivered")
    assert cloister.git(ledger, "diff", "--name-only", base, branch) == "free"
