"""What is tried of each integration: a program for the framework's real package, in an environment of its own."""

from typing import NamedTuple

OURS = ("anyio", "h11", "msgspec", "websockets")
"""All that the Python client needs."""


class Framework(NamedTuple):
    """One framework, as a registry has it."""

    packages: tuple[str, ...]
    program: str
    python: str = ">=3.11"


MINI_SWE_AGENT = """
import gc
from cloister import Client
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted

env = get_environment({"environment_class": "cloister.integrations.minisweagent.CloisterEnvironment", "env": {"A": "b"}})
assert env.execute({"command": "echo $A; pwd; echo bad >&2; exit 3"}) == {
    "output": "b\\n/work\\nbad\\n", "returncode": 3, "exception_info": ""}
late = env.execute({"command": "echo begun; sleep 1000"}, timeout=1)
assert late["returncode"] == -1 and late["output"].startswith("begun") and "1 seconds" in late["exception_info"], late
try:
    env.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo the patch"})
    raise AssertionError
except Submitted as done:
    assert done.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "the patch\\n"}
assert env.get_template_vars(task="t")["system"] == "Linux"
assert env.serialize()["info"]["config"]["environment"]["cwd"] == "/work"
(one,) = Client().sandboxes()
env.cleanup()
assert Client().sandboxes() == [] and "ended" in env.execute({"command": "true"})["exception_info"]
"""

SMOLAGENTS = """
from cloister import Client
from smolagents import CodeAgent
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.utils import AgentError
from cloister.integrations.smolagents import CloisterExecutor


class Scripted(Model):
    steps = ["x = 41\\nprint('set')", "import os\\nx += 1\\nprint(os.getcwd())", "final_answer({'x': x})"]

    def generate(self, messages, **more):
        code = self.steps.pop(0)
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next\\n<code>\\n{code}\\n</code>")


executor = CloisterExecutor(ttl_seconds=300)
agent = CodeAgent(tools=[], model=Scripted(), executor=executor, verbosity_level=0, additional_authorized_imports=["os"])
assert agent.run("Answer.") == {"x": 42}
assert any("/work" in str(step.observations) for step in agent.memory.steps if hasattr(step, "observations"))
try:
    executor("1 / 0")
    raise AssertionError
except AgentError as error:
    assert "ZeroDivisionError" in str(error)
assert executor("[1, 2]").output == "[1, 2]"
agent.cleanup()
assert Client().sandboxes() == []
"""

DEEPAGENTS = """
import asyncio
from cloister import Client
from cloister.integrations.deepagents import CloisterSandbox
from deepagents.backends.protocol import SandboxBackendProtocol

box = CloisterSandbox.create(ttl_seconds=300)
assert isinstance(box, SandboxBackendProtocol) and box.id == box.sandbox.id
ran = box.execute("echo out; echo err >&2; exit 3")
assert (ran.output, ran.exit_code, ran.truncated) == ("out\\nerr\\n", 3, False)
assert box.execute("sleep 1000", timeout=1).exit_code == 124
up = box.upload_files([("/work/a/b.txt", b"hello\\n"), ("relative", b""), ("/etc/shadow", b"x"), ("/work", b"x")])
assert [one.error for one in up] == [None, "invalid_path", "permission_denied", "is_directory"], up
down = box.download_files(["/work/a/b.txt", "/work/none", "/work", "/etc/shadow"])
assert [one.error for one in down] == [None, "file_not_found", "is_directory", "permission_denied"], down
assert down[0].content == b"hello\\n"
assert box.write("/work/c.py", "x = 1\\n").error is None
assert box.edit("/work/c.py", "x = 1", "x = 2").error is None
assert "x = 2" in box.read("/work/c.py").file_data["content"]
assert [match["path"] for match in box.grep("x = 2", "/work").matches] == ["/work/c.py"]
assert [info["path"] for info in box.glob("**/*.txt", "/work").matches] == ["/work/a/b.txt"]
assert {info["path"].rstrip("/") for info in box.ls("/work").entries} == {"/work/a", "/work/c.py"}
assert asyncio.run(box.aexecute("cat /work/a/b.txt")).output == "hello\\n"
big = box.execute_with_offload("seq 100000", "/tmp/all", max_inline_bytes=1000)
assert big.offloaded and box.download_files(["/tmp/all"])[0].content.endswith(b"100000\\n")
box.sandbox.close()
assert "ended" in box.execute("true").output and Client().sandboxes() == []
"""

INSPECT = """
from cloister import Client
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, solver
from inspect_ai.util import sandbox


@solver
def tried():
    async def solve(state, generate):
        box = sandbox()
        await box.write_file("dir/x.txt", "hello\\r\\n")
        assert await box.read_file("dir/x.txt") == "hello\\r\\n"
        ran = await box.exec(["sh", "-c", "cat; echo $A; pwd; exit 3"], input=b"in\\n", env={"A": "b"}, cwd="dir")
        assert (ran.success, ran.returncode, ran.stdout) == (False, 3, "in\\nb\\n/work/dir\\n"), ran
        assert (await box.exec(["whoami"], user="root")).stdout == "root\\n"
        assert "cloister sandbox shell" in (await box.connection()).command
        for kind, call in (
            (TimeoutError, lambda: box.exec(["sleep", "1000"], timeout=1)),
            (FileNotFoundError, lambda: box.read_file("none")),
            (IsADirectoryError, lambda: box.read_file("/work/dir")),
            (IsADirectoryError, lambda: box.write_file("/work/dir", "x")),
            (PermissionError, lambda: box.exec(["/etc/passwd"])),
        ):
            try:
                await call()
                raise AssertionError(kind)
            except kind:
                pass
        assert (await box.exec(["no-such-program"])).returncode == 127
        assert (await box.exec(["printf", "%s", *["$x'" * 9_000] * 9], input="in")).stdout == "$x'" * 81_000
        state.output.completion = "done"
        return state
    return solve


(log,) = eval(
    Task(dataset=[Sample(input="x", target="done")], solver=tried(), scorer=includes(), sandbox="cloister"),
    model="mockllm/model", display="none", log_dir="logs",
)
assert log.status == "success" and log.results.scores[0].metrics["accuracy"].value == 1, log.error
assert Client().sandboxes() == []
"""

OPENAI_AGENTS = """
import asyncio, io
from pathlib import Path
from agents import Agent, RunConfig, Runner
from agents.editor import ApplyPatchOperation
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.tool import ShellActionRequest, ShellCallData, ShellCommandRequest
from cloister import AsyncClient
from cloister.integrations.openai_agents import CloisterSandboxClient, CloisterSandboxClientOptions, Editor, shell


async def main():
    client = CloisterSandboxClient()
    made = await client.create(
        snapshot=LocalSnapshotSpec(base_path=Path("kept").absolute()),
        manifest=Manifest(entries={"given.txt": File(content=b"given")}),
        options=CloisterSandboxClientOptions(env={"A": "b"}),
    )
    async with made as session:
        ran = await session.exec("cat given.txt; echo $A; pwd; exit 3")
        assert (ran.stdout, ran.exit_code) == (b"givenb\\n/work\\n", 3), ran
        await session.write(Path("dir/x.bin"), io.BytesIO(b"\\0\\xff"))
        assert (await session.read(Path("dir/x.bin"))).read() == b"\\0\\xff"
        for kind, call in (
            (WorkspaceReadNotFoundError, lambda: session.read(Path("none"))),
            (ExecTimeoutError, lambda: session.exec("sleep 1000", timeout=1)),
        ):
            try:
                await call()
                raise AssertionError(kind)
            except kind:
                pass
        assert await session.running()
        payload = client.serialize_session_state(session.state)
        same = await client.resume(client.deserialize_session_state(dict(payload)))
        assert (await same.exec("cat dir/x.bin")).stdout == b"\\0\\xff"
    assert await AsyncClient().sandboxes() == []
    payload = client.serialize_session_state(made.state)
    async with await client.resume(client.deserialize_session_state(payload)) as again:
        assert (await again.read(Path("dir/x.bin"))).read() == b"\\0\\xff", "the workspace of the snapshot"
    async with await AsyncClient().create() as sandbox:
        def call(*lines, **more):
            return ShellCommandRequest(None, ShellCallData("c", ShellActionRequest([*lines], **more)))
        told = await shell(sandbox)(call("echo one; exit 2", "sleep 1000", timeout_ms=1000))
        assert [(one.stdout, one.status, one.exit_code) for one in told.output] == [
            ("one\\n", "completed", 2), ("", "timeout", None)]
        editor = Editor(sandbox)
        await editor.create_file(ApplyPatchOperation("create_file", "a.py", "+x = 1\\n+y = 2\\n"))
        done = await editor.update_file(ApplyPatchOperation("update_file", "a.py", "@@\\n-x = 1\\n+x = 3\\n y = 2\\n"))
        assert done.status == "completed" and (await sandbox.files.read_text("a.py")).splitlines() == ["x = 3", "y = 2"]
        await editor.delete_file(ApplyPatchOperation("delete_file", "a.py"))
        assert (await editor.update_file(ApplyPatchOperation("update_file", "a.py", ""))).status == "failed"
    assert await AsyncClient().sandboxes() == []


asyncio.run(main())
"""

DEEPAGENTS_CODE = """
from cloister import Client
from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError
from deepagents_code.integrations.sandbox_registry import SandboxRegistry

registry = SandboxRegistry.load()
assert "cloister" in registry.available_providers()
assert registry.get_metadata("cloister").working_dir == "/work"
provider = registry.create_provider("cloister")
box = provider.get_or_create(ttl_seconds=300)
box.write("/work/x", "kept")
assert provider.get_or_create(sandbox_id=box.id).execute("cat x").output == "kept"
kept = box.sandbox.snapshot("kept")
again = provider.get_or_create(snapshot="kept")
assert again.execute("cat x").output == "kept"
for one in (box, again):
    provider.delete(sandbox_id=one.id)
    provider.delete(sandbox_id=one.id)
Client().remove_snapshot(kept.id)
try:
    provider.get_or_create(sandbox_id=box.id)
    raise AssertionError
except SandboxNotFoundError:
    pass
"""

CREWAI = """
import os
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
from cloister import Sandbox
from cloister.integrations.crewai import cloister_tools

with Sandbox.create() as sandbox:
    line, python, file = cloister_tools(sandbox)
    assert line.run(command="echo out; exit 3") == "out\\n\\n(exit status 3)"
    assert "ended after 1 seconds" in line.run(command="sleep 1000", timeout=1)
    python.run(code="x = 41")
    assert python.run(code="x + 1") == "42" and "ZeroDivisionError" in python.run(code="1/0")
    assert file.run(action="write", path="a/b.txt", content="hello") == "a/b.txt has 5 characters."
    assert (file.run(action="read", path="a/b.txt"), file.run(action="list", path="a")) == ("hello", "file 5 b.txt")
    file.run(action="remove", path="a")
    assert "There is no" in file.run(action="read", path="a/b.txt")
"""

LANGGRAPH = """
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class model(GenericFakeChatModel):
    def bind_tools(self, tools, **more):
        return self


call = {"name": "bash", "args": {"command": "echo $((6*7))"}, "id": "1"}
model = model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("It is 42.")]))
# The page's example:
EXAMPLE
assert [type(one).__name__ for one in done["messages"]] == ["HumanMessage", "AIMessage", "ToolMessage", "AIMessage"]
assert done["messages"][2].content == "42\\n" and done["messages"][3].content == "It is 42."
"""

FRAMEWORKS = {
    "mini-swe-agent": Framework(("mini-swe-agent==2.4.6",), MINI_SWE_AGENT),
    "smolagents": Framework(("smolagents==1.26.0",), SMOLAGENTS),
    "deepagents": Framework(("deepagents==0.7.32",), DEEPAGENTS),
    "langgraph": Framework(("deepagents==0.7.32",), LANGGRAPH),
    "inspect-ai": Framework(("inspect-ai==0.3.285",), INSPECT),
    "openai-agents": Framework(("openai-agents==0.24.0",), OPENAI_AGENTS),
    "deepagents-code": Framework(("deepagents-code==0.1.57",), DEEPAGENTS_CODE),
    "crewai": Framework(("crewai==1.15.30",), CREWAI),
}
"""Framework → what is tried of it."""
