from typing import Any


def _connections(events: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    found = [e["body"] for e in events if e["body"]["type"] == "ConnectionDecided"]
    return [(body["host"], body["port"], body["effect"]) for body in found]


def test_a_program_inside_reaches_what_a_rule_allows_and_nothing_else(cloister: Any, outside: int) -> None:
    ledger = cloister.ledger()
    (cloister.data_dir / "config.toml").write_text(
        f'[[policy]]\naction = "connect:localhost:{outside}"\neffect = "allow"\n'
    )
    script = cloister.script(
        f"""
[[reply]]
calls = [
    {{ tool = "bash", command = "curl -sS --noproxy '' http://localhost:{outside}/" }},
    {{ tool = "bash", command = "curl -sS --noproxy '' http://localhost:{outside + 1}/" }},
    {{ tool = "bash", command = "curl -sS --noproxy '*' --max-time 5 http://127.0.0.1:{outside}/" }},
    {{ tool = "bash", command = "curl -sS http://example.org/" }},
    {{ tool = "finish", summary = "s" }},
]
"""
    )
    cloister.let_go()
    cloister("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken")
    events = cloister.events()
    texts = [e["body"]["text"] for e in events if e["body"]["type"] == "ToolReturned"]
    assert "a page from outside" in texts[0]
    assert "a page from outside" not in "".join(texts[1:])
    assert "no rule allows it" in texts[3]
    assert _connections(events) == [
        ("localhost", outside, "allow"),
        ("localhost", outside + 1, "deny"),
        ("example.org", 80, "deny"),
    ]


def test_a_run_may_name_a_host_and_a_deny_of_this_machine_still_wins(cloister: Any, outside: int) -> None:
    ledger = cloister.ledger()
    script = cloister.script(
        f"""
[[reply]]
calls = [
    {{ tool = "bash", command = "curl -sS --noproxy '' http://localhost:{outside}/" }},
    {{ tool = "finish", summary = "s" }},
]
"""
    )
    run = ("run", "p", "--repo", str(ledger), "--model", script, "--check", "true", "--accept", "unbroken")
    cloister(*run, "--allow-host", f"localhost:{outside}")
    assert _connections(cloister.events()) == [("localhost", outside, "allow")]
    (cloister.data_dir / "config.toml").write_text(
        '[[policy]]\naction = "connect:localhost"\neffect = "deny"\n'
    )
    cloister(*run, "--allow-host", f"localhost:{outside}")
    assert _connections(cloister.events()) == [("localhost", outside, "deny")]
