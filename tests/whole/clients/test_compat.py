from pathlib import Path

import pytest
from tests.whole.clients.operations import E2B, INTERPRETER, MODBOX, PANDASTACK, Operation, table
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


CLIENTS = {"e2b": (*E2B, *INTERPRETER), "pandastack": PANDASTACK, "modbox": MODBOX}


@pytest.mark.parametrize("service", CLIENTS)
def test_the_published_client_runs_unmodified(service: str, command: Cloister) -> None:
    env = command.env | command.json("compat", "env", service)
    assert failures(service, CLIENTS[service], env) == {}


LOOPS = {
    "e2b": "from e2b import Sandbox\nfor n in range(100):\n    s = Sandbox.create(timeout=60)\n"
    "    assert s.commands.run(f'echo {n}').stdout == f'{n}\\n'\n    assert s.kill()\nassert Sandbox.list().next_items() == []",
    "pandastack": "from pandastack import Sandbox\nfor n in range(100):\n    with Sandbox.create(ttl_seconds=60) as s:\n"
    "        assert s.exec(f'echo {n}').stdout == f'{n}\\n'\nassert Sandbox.list() == []",
}


@pytest.mark.long(only=True)
@pytest.mark.parametrize("service", LOOPS)
def test_a_hundred_sandboxes_one_after_the_other_leave_nothing(service: str, command: Cloister) -> None:
    env = command.env | command.json("compat", "env", service)
    assert failures(service, [Operation("loop", LOOPS[service])], env) == {}
