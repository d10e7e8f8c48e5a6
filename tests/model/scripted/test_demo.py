"""The demo says in one line which model it uses, and why."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def which(tmp_path: Path, text: str = "", **variables: str) -> tuple[int, str]:
    """Exit code and output of the demo's choice on a machine that reaches no hub; `text` is its configuration."""
    config = tmp_path / "config.toml"
    config.write_text(f'model_hub = "http://127.0.0.1:9"\n{text}')
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    settings = {"CLOISTER_DATA_DIR": str(tmp_path / "data"), "CLOISTER_CONFIG": str(config)}
    done = subprocess.run(
        [ROOT / "scripts" / "demo", "--which"],
        env=kept | settings | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def test_demo_without_a_key_searches_without_a_model_and_says_why(tmp_path: Path) -> None:
    assert which(tmp_path) == (
        0,
        "No model: the repair harness searches by rules and tests, because no key and no CLOISTER_MODEL_URL is set.\n",
    )


def test_demo_uses_the_model_of_the_configuration_file(tmp_path: Path) -> None:
    config = 'model = "local:qwen2.5-coder-1.5b"\n'
    assert "the configuration names local:qwen2.5-coder-1.5b" in which(tmp_path, config)[1]


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "CLOISTER_MODEL_URL", "CLOISTER_MODEL"])
def test_demo_with_a_configured_model_says_what_configures_it(tmp_path: Path, variable: str) -> None:
    assert which(tmp_path, **{variable: "x"}) == (
        0,
        f"Model: the configured one, because {variable} is set.\n",
    )


def test_demo_takes_the_model_that_is_asked_for_and_no_unknown_one(tmp_path: Path) -> None:
    code, said = which(tmp_path, DEMO_MODEL="script", ANTHROPIC_API_KEY="x")
    assert (code, said.rstrip().endswith("because DEMO_MODEL=script.")) == (0, True)
    assert which(tmp_path, DEMO_MODEL="other") == (2, "")
