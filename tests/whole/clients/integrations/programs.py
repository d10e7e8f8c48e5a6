"""What is tried of each integration: a program for the framework's real package, in an environment of its own."""

from typing import NamedTuple

OURS = ("anyio", "h11", "msgspec", "websockets")
"""All that the Python client needs."""


class Framework(NamedTuple):
    """One framework, as a registry has it."""

    packages: tuple[str, ...]
    program: str
    python: str = ">=3.11"
    overrides: tuple[str, ...] = ()
    """Requirements in place of the package's own, where a mirror of the registry is behind."""


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
import asyncio, io, json
from pathlib import Path
from agents import ModelResponse, RunConfig, Runner, Usage
from agents.editor import ApplyPatchOperation
from agents.models.interface import Model
from agents.sandbox import SandboxAgent
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.tool import ShellActionRequest, ShellCallData, ShellCommandRequest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from cloister import AsyncClient
from cloister.integrations.openai_agents import CloisterSandboxClient, CloisterSandboxClientOptions, Editor, shell


class Scripted(Model):
    def __init__(self):
        self.told = []

    async def get_response(self, *, input, tools, **others):
        self.told.append(input)
        if len(self.told) == 1:
            assert "exec_command" in [tool.name for tool in tools]
            line = json.dumps({"cmd": "cat given.txt; pwd"})
            said = ResponseFunctionToolCall(type="function_call", call_id="c", name="exec_command", arguments=line)
        else:
            text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
            said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse([said], Usage(), None)

    def stream_response(self, *given, **more):
        raise NotImplementedError


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
    model = Scripted()
    agent = SandboxAgent("worker", model=model, capabilities=[Shell()])
    agent.default_manifest = Manifest(entries={"given.txt": File(content=b"given")})
    where = SandboxRunConfig(client=client, options=CloisterSandboxClientOptions())
    ran = await Runner.run(agent, "Look.", run_config=RunConfig(sandbox=where, tracing_disabled=True))
    assert ran.final_output == "Done." and "given/work" in str(model.told[1]), model.told
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

HARBOR = """
import asyncio, json, logging, subprocess, sys
from pathlib import Path
from cloister import Client
from cloister.testing.samples import busybox, folder, layer, link
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

task = Path("task")
for name in ("environment", "solution", "tests"):
    (task / name).mkdir(parents=True)
(task / "task.toml").write_text('[environment]\\ncpus = 1\\nmemory_mb = 512\\n')
(task / "instruction.md").write_text("Write 42 into answer.txt.")
more = [link(f"bin/{name}", "busybox") for name in ("tar", "chmod", "find", "dirname")]
(task / "environment" / "root.tar").write_bytes(layer(*busybox(), *more, folder("tmp", mode=0o1777)))
dockerfile = "FROM scratch\\nADD root.tar /\\nENV COLOUR=red\\nWORKDIR /srv/task\\nRUN echo $COLOUR > colour\\n"
(task / "environment" / "Dockerfile").write_text(dockerfile)
(task / "solution" / "solve.sh").write_text("#!/bin/sh\\nset -e\\ntest \\"$(cat colour)\\" = red\\npwd > where.txt\\necho 42 > answer.txt\\n")
(task / "tests" / "test.sh").write_text("#!/bin/sh\\nif [ \\"$(cat answer.txt)\\" = 42 ] && [ \\"$(cat where.txt)\\" = /srv/task ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\\n")

# The real command, with the reference solution as the agent.
command = [Path(sys.executable).with_name("harbor"), "run", "-p", task, "-a", "oracle", "-o", "jobs", "-y",
           "--env", "cloister.integrations.harbor:CloisterEnvironment"]
done = subprocess.run(command, capture_output=True, text=True)
results = [json.loads(path.read_text()) for path in Path("jobs").glob("*/*/result.json")]
assert len(results) == 1 and results[0]["exception_info"] is None, (done.stdout, done.stderr, results)
assert results[0]["verifier_result"]["rewards"] == {"reward": 1.0}, results
assert Client().sandboxes() == []


def environment(name, network=NetworkMode.PUBLIC, **kwargs):
    paths = TrialPaths(Path(name).absolute())
    paths.mkdir()
    return CloisterEnvironment(
        environment_dir=(task / "environment").absolute(), environment_name="task", session_id=name,
        trial_paths=paths, task_env_config=EnvironmentConfig(env={"TASK": "task"}), logger=logging.getLogger(),
        network_policy=NetworkPolicy(network_mode=network), **kwargs,
    )


async def main():
    env = environment("one", template="default", persistent_env={"A": "b"})
    await env.start(False)
    ran = await env.exec("echo $A $TASK; pwd; id -un; echo bad >&2; exit 3")
    assert (ran.stdout, ran.stderr, ran.return_code) == ("b task\\n/srv/task\\nroot\\n", "bad\\n", 3), ran
    assert (await env.exec("id -un", user="agent", cwd="/tmp")).stdout == "agent\\n"
    assert (await env.exec("id -un; id -u", user="nobody")).stdout == "nobody\\n65534\\n"
    assert (await env.exec("id -u", user=4711)).stdout == "4711\\n"
    assert (await env.exec("echo " + "x" * 100_000)).stdout == "x" * 100_000 + "\\n"
    try:
        await env.exec("sleep 1000", timeout_sec=1)
        raise AssertionError
    except RuntimeError as error:
        assert "timed out after 1 seconds" in str(error)
    given = Path("given")
    (given / "empty").mkdir(parents=True)
    (given / "run.sh").write_text("echo ran")
    (given / "run.sh").chmod(0o755)
    (given / "link").symlink_to("run.sh")
    await env.upload_dir(given, "/root/deep/there")
    assert (await env.exec("cd /root/deep/there && ./run.sh && ./link && ls -d empty")).stdout == "ran\\nran\\nempty\\n"
    await env.upload_file(given / "run.sh", "/opt/new/name.sh")
    assert (await env.exec("/opt/new/name.sh")).stdout == "ran\\n"
    await env.download_dir("/root/deep", "back")
    assert Path("back/there/run.sh").stat().st_mode & 0o111 and Path("back/there/link").is_symlink()
    await env.exec("printf '\\\\0\\\\377' > /root/bytes && chmod 600 /root/bytes")
    await env.download_file("/root/bytes", "got/bytes")
    assert Path("got/bytes").read_bytes() == b"\\0\\xff"
    assert await env.is_dir("/root/deep") and await env.is_file("/root/bytes")
    for call in (lambda: env.download_file("/none", "x"), lambda: env.download_dir("/none", "x")):
        try:
            await call()
            raise AssertionError
        except RuntimeError as error:
            assert "/none" in str(error)
    await env.stop(delete=True)
    closed = environment("two", NetworkMode.NO_NETWORK, template="default")
    await closed.start(False)
    assert (await closed.exec("curl -sSf -m 5 http://example.org")).return_code != 0
    await closed.stop(delete=True)
    try:
        environment("three", NetworkMode.ALLOWLIST)
        raise AssertionError
    except ValueError as error:
        assert "allowlist" in str(error)


asyncio.run(main())
assert Client().sandboxes() == []
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
    "harbor": Framework(("harbor==0.25.0",), HARBOR, ">=3.12", ("certifi>=2026.1",)),
}
"""Framework → what is tried of it."""
