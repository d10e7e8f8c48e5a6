"""A sandbox made by hand whose programs have a model, which a budget of the sandbox pays."""

import json
from typing import Any

from tests.whole.e2e.models.test_model_inside import ASK

HERE = '[[reply]]\nname = "here"\nsay = "I am here."\ngoto = "here"\n'


def opened(cloister: Any, *more: str) -> str:
    return cloister("sandbox", "create", *more).stdout.strip()


def entered(cloister: Any, kind: str) -> list[dict[str, Any]]:
    lines = cloister("audit", "show", "--json").stdout.splitlines()
    return [json.loads(one["detail"]) for one in map(json.loads, lines) if one["kind"] == kind]


def asked(cloister: Any, sandbox: str, times: int) -> str:
    return cloister("sandbox", "exec", sandbox, "--", "python3", "-c", ASK, str(times)).stdout


def test_programs_ask_its_model_until_its_budget_is_spent_and_its_fork_has_none(cloister: Any) -> None:
    box = opened(cloister, "--model", cloister.script(HERE), "--model-tokens", "3000")
    assert asked(cloister, box, 1) == "IT SAID I am here.\n"
    (entry,) = entered(cloister, "SandboxModelAsked")
    assert entry["sandbox"] == box and entry["output_tokens"] > 0
    refused = asked(cloister, box, 1_000)
    assert refused.startswith("REFUSED 402") and "The sandbox's budget of 3,000 tokens is spent." in refused
    spent = entered(cloister, "SandboxModelAsked")
    assert entered(cloister, "SandboxModelRefused")[0]["limit"] == 3_000
    assert sum(one["input_tokens"] + one["output_tokens"] for one in spent) <= 3_000
    (fork,) = cloister("sandbox", "fork", box).stdout.split()
    assert asked(cloister, fork, 1).startswith("REFUSED 503")


def test_a_model_that_is_not_allowed_or_not_counted_is_refused_and_no_sandbox_is_left(cloister: Any) -> None:
    script = cloister.script(HERE)
    settings = cloister.data_dir / "config.toml"
    settings.write_text(f'{settings.read_text()}[[policy]]\naction = "model:script:*"\neffect = "deny"\n')
    model = ("--model", script, "--model-tokens", "3000")
    refused = cloister("sandbox", "create", *model, code=2)
    assert "may not have the model" in refused.stderr
    assert cloister("sandbox", "ls", "--json").stdout == ""
    cloister("serve", "--stop")
    settings.write_text("port = 0\n[budgets.organisation]\ndollars = 5\n")
    refused = cloister("sandbox", "create", *model, code=2)
    assert "cannot count the calls of a sandbox" in refused.stderr
    assert "Give --model-tokens" in cloister("sandbox", "create", "--model", script, code=2).stderr


def test_a_template_has_the_other_names_of_the_settings(cloister: Any) -> None:
    settings = cloister.data_dir / "config.toml"
    settings.write_text(f'{settings.read_text()}template_aliases = {{ tools = "default" }}\n')
    made = cloister.json("sandbox", "create", "--template", "tools")
    assert made["template"] == "default"
    assert cloister.json("sandbox", "create", "--template", "base")["template"] == "default", "as before"
