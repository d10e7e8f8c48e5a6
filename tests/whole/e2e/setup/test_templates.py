"""Templates as a person uses them: described, built and used from the command line."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloister.testing.samples import busybox, layer, layout

PROMPT = "The test suite fails. Find the cause and fix it."


@pytest.fixture
def data_dir(own_dir: Path) -> Path:
    return own_dir


def test_an_image_is_built_listed_used_and_removed(cloister: Any, tmp_path: Path) -> None:
    missing = [tool for tool in ("skopeo", "busybox") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/install dev)")
    layout(tmp_path / "image", layer(*busybox()), Env=["PATH=/bin", "SAYS=hello"])
    done = cloister("template", "build", "tiny", "--image", "image")
    assert "The template tiny is ready." in done.stdout
    assert "unpacking" in done.stderr and "no git" in done.stderr
    assert "tiny " in cloister("template", "ls").stdout
    assert f'image = "{tmp_path}/image"' in cloister("template", "show", "tiny").stdout
    assert cloister.json("template", "show", "tiny")["about"]["env"]["SAYS"] == "hello"
    assert "== ready" in cloister("template", "log", "tiny").stdout
    sandbox = cloister.json("sandbox", "create", "--template", "tiny")
    said = cloister("sandbox", "exec", sandbox["id"], "--", "sh", "-c", "echo $SAYS")
    assert said.stdout == "hello\n"
    assert "A sandbox uses the template" in cloister("template", "rm", "tiny", code=2).stderr
    cloister("sandbox", "rm", sandbox["id"])
    run = ("run", "p", "--repo", str(cloister.ledger()), "--template", "tiny", "--model", cloister.fix)
    refused = cloister(*run, code=None)
    assert "The template tiny has no git: install git in its image." in refused.stdout + refused.stderr
    assert "Removed tiny." in cloister("template", "rm", "tiny").stdout
    late = cloister(*run, code=2)
    assert "There is no template 'tiny'" in late.stderr
    assert (
        "Give one of" in cloister("template", "build", "x", "--image", "a", "--packages", "b", code=2).stderr
    )


def test_a_recipe_names_a_credential_of_the_settings(cloister: Any, tmp_path: Path) -> None:
    layout(tmp_path / "image", layer(*busybox()), Env=["PATH=/bin"])
    recipe = cloister.data_dir / "templates" / "tools.toml"
    text = f'kind = "oci"\nimage = {json.dumps(str(tmp_path / "image"))}\nenv = {{ "API_TOKEN" = "credential:forge" }}\n'
    recipe.write_text(text)
    refused = cloister("template", "build", "tools", code=2)
    assert "the credential forge" in refused.stderr and "[[credential]]" in refused.stderr
    (tmp_path / "token").write_text("ghp_0123456789abcdef")
    (cloister.data_dir / "config.toml").write_text(
        f'[[credential]]\nname = "forge"\nfrom = "file:{tmp_path}/token"\nhost = "api.example.org"\n'
    )
    cloister("template", "build", "tools")
    shown = cloister.json("template", "show", "tools")
    assert shown["recipe"]["env"] == {"API_TOKEN": "credential:forge"}
    assert shown["about"]["env"]["API_TOKEN"] == "{{secret:forge}}"


def test_a_run_in_a_warmed_repository_starts_from_it_and_knows_the_baseline(cloister: Any) -> None:
    ledger = cloister.ledger()
    cloister("template", "build", "warm", "--repository", "ledger", "--json")
    done = cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix, "--n", "2")
    assert "from warm" in done.stdout
    assert "this commit was checked when its template was warmed" in done.stdout
    assert "✓ proven" in done.stdout
    bodies = [event["body"] for event in cloister.events()]
    (baseline,) = [body for body in bodies if body["type"] == "BaselineTaken"]
    assert baseline["known"]
    branch = cloister.git(ledger, "branch", "--list", "cloister/*").strip()
    changed = cloister.git(ledger, "diff", "--name-only", "main", branch).splitlines()
    assert changed == ["src/ledger/settle.py", "src/ledger/split.py"]
    (ledger / "NEWS").write_text("x")
    cloister.git(ledger, "add", "-A")
    cloister.git(ledger, "commit", "-q", "-m", "moved")
    cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.fix)
    (baseline,) = [e["body"] for e in cloister.events() if e["body"]["type"] == "BaselineTaken"]
    assert not baseline["known"], "another commit is checked again"


def test_a_connection_that_is_refused_while_a_template_is_made_is_named_with_its_rule(cloister: Any) -> None:
    ledger = cloister.ledger()
    (ledger / ".cloister.toml").write_text('setup = ["pip install --retries 0 -q --target /tmp/x attrs"]\n')
    cloister.git(ledger, "add", "-A")
    cloister.git(ledger, "commit", "-q", "-m", "set-up that needs a registry")
    failed = cloister("template", "build", "warm", "--repository", "ledger", code=None)
    assert failed.returncode not in (0, 1), failed.stdout
    assert re.search(r"pip could not reach [\w.-]+:\d+(?: and \d+ more)?: the proxy denies it", failed.stderr)
    assert "Allow it in a policy file of this machine with 'allow connect:@pypi'." in failed.stderr


def test_a_server_warms_what_has_a_recipe(cloister: Any) -> None:
    ledger = cloister.ledger()
    recipe = cloister.data_dir / "templates" / "warm.toml"
    recipe.write_text(f'kind = "repository"\nrepo = {json.dumps(str(ledger))}\n')
    cloister("serve", "--background", "--port", "0")
    cloister.until(lambda: cloister.json("template", "show", "warm")["ready"])
    about = cloister.json("template", "show", "warm")["about"]
    assert about["commit"] == cloister.git(ledger, "rev-parse", "HEAD")
    assert about["checks"] == ["python3 -m pytest -q"]


def test_a_server_hands_out_warm_sandboxes_and_doctor_shows_them(cloister: Any) -> None:
    (cloister.data_dir / "config.toml").write_text("[[pool]]\nsize = 2\n")
    pool = {finding["name"]: finding for finding in cloister.json("doctor")["findings"]}["pool"]
    assert not pool["ok"] and "only a running server" in pool["found"]
    cloister("serve", "--background", "--port", "0")
    cloister.until(lambda: len(cloister.sandbox_processes()) >= 2)
    cloister.until(lambda: "default: 2 of 2 ready" in cloister("doctor").stdout)
    made = cloister.json("sandbox", "create")
    said = cloister("sandbox", "exec", made["id"], "--", "sh", "-c", "echo warm")
    assert said.stdout == "warm\n"
    assert [json.loads(line)["id"] for line in cloister("sandbox", "ls", "--json").stdout.splitlines()] == [
        made["id"]
    ]
    cloister.kill(cloister.server_pid())
    cloister("serve", "--background", "--port", "0")
    cloister("serve", "--stop")
    assert cloister.sandbox_processes() == []
    assert list((cloister.data_dir / "sandboxes").iterdir()) == []


def test_a_pool_that_cannot_be_is_refused_by_name(cloister: Any) -> None:
    (cloister.data_dir / "config.toml").write_text("[[pool]]\nsize = 0\n")
    assert "$.pool[0].size" in cloister("doctor", code=2).stderr
