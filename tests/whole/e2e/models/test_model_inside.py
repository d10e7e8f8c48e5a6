"""A program inside a sandbox speaks to the run's model, and the run's budget pays."""

import json
from typing import Any

ASK = """
import json, os, sys, urllib.error, urllib.request
body = {"model": "any", "messages": [{"role": "user", "content": "Who are you?"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
try:
    for _ in range(int(sys.argv[1])):
        answer = json.load(urllib.request.urlopen(request, timeout=30))
    print("IT SAID", answer["choices"][0]["message"]["content"])
except urllib.error.HTTPError as error:
    print("REFUSED", error.code, error.read().decode())
"""


def script(cloister: Any, times: int, expect: str) -> str:
    return cloister.script(
        f"""
[[reply]]
say = "I am the model of this run."
calls = [
    {{ tool = "write", path = "/tmp/ask.py", content = {json.dumps(ASK)} }},
    {{ tool = "bash", command = "python3 /tmp/ask.py {times}" }},
]

[[reply]]
expect = {json.dumps(expect)}
calls = [{{ tool = "finish", summary = "Asked." }}]
"""
    )


def test_a_program_inside_speaks_to_the_runs_model_without_a_key(cloister: Any) -> None:
    model = script(cloister, 1, "IT SAID I am the model of this run")
    cloister(
        "run",
        "Ask.",
        "--repo",
        str(cloister.ledger()),
        "--model",
        model,
        "--check",
        "true",
        "--accept",
        "unbroken",
    )
    spent = [e["body"] for e in cloister.events() if e["body"]["type"] == "ModelSpent"]
    assert [body["purpose"] for body in spent] == ["inside"]
    assert spent[0]["usage"]["output_tokens"] > 0


def test_a_program_inside_is_refused_when_the_budget_is_spent(cloister: Any) -> None:
    """It asks until it may not, so that it does not matter how much a step of the run itself takes."""
    tokens = 12_000
    model = script(cloister, 500, "REFUSED 402")
    done = cloister(
        *(
            "run",
            "Ask.",
            "--repo",
            str(cloister.ledger()),
            "--model",
            model,
            "--check",
            "true",
            "--accept",
            "unbroken",
        ),
        *("--tokens", str(tokens)),
        code=None,
    )
    bodies = [event["body"] for event in cloister.events()]
    outputs = [body["text"] for body in bodies if body["type"] == "ToolReturned"]
    assert any("REFUSED 402" in text and "budget" in text for text in outputs), done.stdout
    usages = [body["usage"] for body in bodies if body["type"] in ("ModelSpent", "ModelReplied")]
    assert 1 < len(usages) < 500
    assert sum(usage["input_tokens"] + usage["output_tokens"] for usage in usages) <= tokens
    receipt = cloister("receipt", "last").stdout
    assert "Programs inside asked `script:" in receipt


def test_in_a_tournament_each_attempt_pays_for_the_programs_in_its_own_sandbox(cloister: Any) -> None:
    tokens = 60_000
    greedy, modest = script(cloister, 500, "REFUSED 402"), script(cloister, 3, "IT SAID")
    cloister(
        *(
            "run",
            "Ask.",
            "--repo",
            str(cloister.ledger()),
            "--check",
            "true",
            "--accept",
            "unbroken",
            "--tokens",
            str(tokens),
        ),
        *("--attempt", f"model={greedy}", "--attempt", f"model={modest}"),
    )
    bodies = [event["body"] for event in cloister.events()]
    calls = [(body["purpose"], body["attempt"]) for body in bodies if body["type"] == "ModelSpent"]
    assert calls.count(("inside", 1)) == 3
    assert 3 < calls.count(("inside", 0)) < 500
    spent = {
        attempt: sum(
            body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
            for body in bodies
            if body["type"] in ("ModelSpent", "ModelReplied") and body["attempt"] == attempt
        )
        for attempt in (0, 1)
    }
    assert spent[1] < spent[0] <= tokens / 2
    ended = {body["attempt"]: body["outcome"] for body in bodies if body["type"] == "AttemptEnded"}
    assert ended == {0: "budget", 1: "unbroken"}
    accounts = [json.loads(line) for line in cloister("budget", "last", "--json").stdout.splitlines()]
    shown = {
        account["name"]: account["spent"]["tokens"] for account in accounts if account["level"] == "attempt"
    }
    assert shown == {"0": spent[0], "1": spent[1]}
