# pyright: basic, reportMissingImports=false
"""mini-SWE-agent: an environment class, by its import path.

`mini -c mini.yaml -c environment.environment_class=cloister.integrations.minisweagent.CloisterEnvironment`
"""

from __future__ import annotations

import weakref
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from cloister.client.synchronous import Sandbox
from cloister.core.errors import CloisterError
from cloister.integrations.shared import WORK_DIR, end, run_sync

DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of a command that ends the agent's work."""
_UNAME = {"system": "s", "node": "n", "release": "r", "version": "v", "machine": "m"}


class CloisterEnvironmentConfig(BaseModel):
    template: str = "default"
    """A template, or `snapshot:NAME`."""
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    timeout: int = 30
    """Seconds for one command."""
    ttl_seconds: float = 7_200
    """When the sandbox ends, whatever becomes of this process."""
    output_bytes: int = 1_048_576
    """How much of a command's output is kept."""


class CloisterEnvironment:
    """One sandbox; it is destroyed with this object, or by `cleanup`."""

    def __init__(self, *, config_class: type = CloisterEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        self.sandbox = Sandbox.create(
            self.config.template, ttl_seconds=self.config.ttl_seconds, env=self.config.env
        )
        self.cleanup = weakref.finalize(self, end, self.sandbox)

    def execute(self, action: dict, cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run `action["command"]`; raises `Submitted` if it says that the work is done."""
        seconds = timeout or self.config.timeout
        try:
            ran = run_sync(
                self.sandbox,
                action.get("command", ""),
                cwd=cwd or self.config.cwd,
                seconds=seconds,
                limit_bytes=self.config.output_bytes,
            )
        except CloisterError as error:
            return _failed("", error.message, type(error).__name__)
        if ran.timed_out:
            return _failed(ran.output, f"The command took longer than {seconds} seconds.", "TimeoutExpired")
        output = {"output": ran.output, "returncode": ran.exit_code, "exception_info": ""}
        first, _, rest = ran.output.lstrip().partition("\n")
        if first.strip() == DONE and ran.exit_code == 0:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        line = "; ".join(f"uname -{letter}" for letter in _UNAME.values())
        told = run_sync(self.sandbox, line).stdout.splitlines()
        return recursive_merge(self.config.model_dump(), dict(zip(_UNAME, told, strict=False)), kwargs)

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        about = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": about}}


def _failed(output: str, message: str, kind: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {message}",
        "extra": {"exception_type": kind, "exception": message},
    }
