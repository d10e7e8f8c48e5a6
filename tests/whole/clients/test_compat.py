import json
from pathlib import Path

from tests.whole.clients.operations import E2B, table
from tests.whole.clients.published import failures
from tests.whole.e2e.conftest import Cloister

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "compat.md"


def test_the_page_lists_what_is_tried() -> None:
    """`python -m tests.whole.clients.operations` prints the tables."""
    assert table().strip() in PAGE.read_text()


def test_the_variables_are_printed_for_a_shell_and_as_json(command: Cloister) -> None:
    told = command.json("compat", "env", "e2b")
    assert told["E2B_API_URL"].startswith("http://127.0.0.1:") and told["E2B_API_URL"].endswith("/compat/e2b")
    assert f"export E2B_API_KEY={told['E2B_API_KEY']}" in command("compat", "env", "e2b").stdout


def _env(command: Cloister, **more: str) -> dict[str, str]:
    token = (command.data_dir / "token").read_text().strip()
    url = json.loads((command.data_dir / "server.json").read_text())["url"]
    return command.env | {name: value.format(url=url, token=token) for name, value in more.items()}


def test_the_client_of_e2b_runs_unmodified(command: Cloister) -> None:
    base = "{url}/compat/e2b"
    env = _env(command, E2B_API_KEY="{token}", E2B_API_URL=base, E2B_SANDBOX_URL=base)
    assert failures("e2b", E2B, env) == {}
