# pyright: basic, reportMissingImports=false
"""CrewAI: tools for commands, Python and files, which share one sandbox.

`Agent(…, tools=cloister_tools(sandbox))`
"""

from __future__ import annotations

from typing import Any, Literal

from crewai.tools import BaseTool
from pydantic import BaseModel, Field

from cloister.client.synchronous import Sandbox
from cloister.core.errors import CloisterError
from cloister.core.text import bounded
from cloister.integrations.shared import run_sync

OUTPUT_BYTES = 262_144
TEXT_CHARS = 60_000
"""Most of a result that an agent is shown."""


class _Line(BaseModel):
    command: str = Field(description="A command line for bash.")
    timeout: int = Field(default=300, description="Seconds after which it is ended.")


class _Code(BaseModel):
    code: str = Field(description="Python code. Variables live until the next call.")


class _File(BaseModel):
    action: Literal["read", "write", "list", "remove"] = Field(description="What to do.")
    path: str = Field(description="Absolute, or relative to /work.")
    content: str = Field(default="", description="What to write.")


class _InSandbox(BaseTool):
    sandbox: Any = Field(exclude=True, description="The sandbox that the tool works in.")

    def _told(self, text: str) -> str:
        return bounded(text, TEXT_CHARS)


class CloisterExecTool(_InSandbox):
    name: str = "cloister_exec"
    description: str = "Run a command line in a sandbox. Files stay from call to call."
    args_schema: type[BaseModel] = _Line

    def _run(self, command: str, timeout: int = 300) -> str:
        try:
            ran = run_sync(self.sandbox, command, seconds=timeout, limit_bytes=OUTPUT_BYTES)
        except CloisterError as error:
            return error.message
        ended = f"ended after {timeout} seconds" if ran.timed_out else f"exit status {ran.exit_code}"
        return f"{self._told(ran.output)}\n({ended})"


class CloisterPythonTool(_InSandbox):
    name: str = "cloister_python"
    description: str = (
        "Run Python in a sandbox. Variables live from call to call; the last expression is the result."
    )
    args_schema: type[BaseModel] = _Code

    def _run(self, code: str) -> str:
        try:
            ran = self.sandbox.run_code(code, seconds=600)
        except CloisterError as error:
            return error.message
        shown = [one.data.get("text/plain", "") for one in ran.results]
        failed = "" if ran.error is None else ran.error.traceback
        return self._told("\n".join(part for part in (ran.stdout, ran.stderr, *shown, failed) if part))


class CloisterFileTool(_InSandbox):
    name: str = "cloister_file"
    description: str = "Read, write, list or remove files in a sandbox."
    args_schema: type[BaseModel] = _File

    def _run(self, action: str, path: str, content: str = "") -> str:
        files = self.sandbox.files
        try:
            match action:
                case "read":
                    return self._told(files.read_text(path))
                case "write":
                    files.write(path, content)
                    return f"{path} has {len(content)} characters."
                case "list":
                    return "\n".join(f"{one.kind} {one.size} {one.name}" for one in files.list(path))
                case _:
                    files.remove(path, recursive=True)
                    return f"{path} is removed."
        except CloisterError as error:
            return error.message


def cloister_tools(sandbox: Sandbox) -> list[BaseTool]:
    """All three, in `sandbox`, which its maker closes."""
    return [kind(sandbox=sandbox) for kind in (CloisterExecTool, CloisterPythonTool, CloisterFileTool)]
