import subprocess
from pathlib import Path
from typing import Any

SECRETS = {
    "ANTHROPIC_API_KEY": "sk-ant-canary-1f6b",
    "OPENAI_API_KEY": "sk-canary-93ad",
    "GEMINI_API_KEY": "canary-77e0",
    "SOME_TOKEN": "canary-token-41",
}
LOOK = """
[[reply]]
calls = [
    { tool = "bash", command = "env; cat /proc/*/environ 2>/dev/null | tr '\\\\0' '\\\\n'; grep -rs canary /home /etc /run /tmp /work" },
    { tool = "finish", summary = "s" },
]
"""


def test_no_key_of_the_host_is_found_in_the_sandbox_the_log_or_the_data_directory(cloister: Any) -> None:
    ledger = cloister.ledger()
    subprocess.run(
        cloister.argv(
            "run",
            "p",
            "--repo",
            str(ledger),
            "--model",
            cloister.script(LOOK),
            "--check",
            "true",
            "--accept",
            "unbroken",
        ),
        env={**cloister.env, **SECRETS},
        check=True,
        capture_output=True,
    )
    observed = next(e["body"]["text"] for e in cloister.events() if e["body"]["type"] == "ToolReturned")
    assert "HTTP_PROXY=" in observed
    assert "canary" not in observed
    for path in Path(cloister.data_dir).rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            assert not any(secret.encode() in data for secret in SECRETS.values()), path
