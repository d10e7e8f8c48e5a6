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
    "e2b": """
from e2b import Sandbox
for n in range(count):
    s = Sandbox.create(timeout=60)
    assert s.commands.run(f'echo {n}').stdout == f'{n}\\n'
    assert s.kill()
assert Sandbox.list().next_items() == []
""",
    "pandastack": """
from pandastack import Sandbox
for n in range(count):
    with Sandbox.create(ttl_seconds=60) as s:
        assert s.exec(f'echo {n}').stdout == f'{n}\\n'
assert Sandbox.list() == []
""",
    "modbox": """
import json, os, urllib.request
from modbox import ModboxApi
client = ModboxApi(base_url=os.environ["MODBOX_BASE_URL"], token=os.environ["MODBOX_TOKEN"])
for n in range(count):
    made = client.sandboxes.provision_sandbox(task_id=f"loop-{n}", ttl_seconds=60)
    asked = urllib.request.Request(made.sandbox_url + "/execute", json.dumps({"code": f"print({n})"}).encode())
    assert json.load(urllib.request.urlopen(asked))["stdout"] == f"{n}\\n"
    assert client.sandboxes.destroy_sandbox(task_id=f"loop-{n}").success
assert client.sandboxes.list_sandboxes().total == 0
""",
}


@pytest.mark.parametrize("service", LOOPS)
def test_many_sandboxes_one_after_the_other_leave_nothing(
    service: str, command: Cloister, long: bool
) -> None:
    env = command.env | command.json("compat", "env", service)
    count = 100 if long else 10
    assert failures(service, [Operation("loop", f"count = {count}\n{LOOPS[service]}")], env) == {}
