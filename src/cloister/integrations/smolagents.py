# pyright: basic, reportMissingImports=false
"""smolagents: an executor for `CodeAgent`, whose variables live in a sandbox.

`CodeAgent(tools=[], model=model, executor=CloisterExecutor())`
"""

from __future__ import annotations

import base64
import weakref
from io import BytesIO
from typing import TYPE_CHECKING, Any

import PIL.Image
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from cloister.client.synchronous import Sandbox
from cloister.integrations.shared import end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STAND_INS = """
import importlib.util, sys, types
def stand_in(name):
    def lacking(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise ModuleNotFoundError(f"No module named {name!r}: the template needs it, or additional_imports")
    made = sys.modules[name] = types.ModuleType(name)
    made.__getattr__ = lacking
    return made
if importlib.util.find_spec("numpy") is None:
    stand_in("numpy")
if importlib.util.find_spec("PIL") is None:
    stand_in("PIL").Image = stand_in("PIL.Image")
    sys.modules["PIL.Image"].Image = type("Image", (), {})
del stand_in
"""
"""The code of the tool for the final answer imports these, used or not; a template need not have them."""
_TEXTS = ("text/html", "application/json", "text/latex", "text/markdown", "image/svg+xml", "text/plain")


class CloisterExecutor(RemotePythonExecutor):
    """One interpreter in one sandbox; both end with `cleanup`, or with this object.

    `additional_imports` are installed by pip, which needs a rule for the registry.
    """

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: Any = None,
        allow_pickle: bool = False,
        *,
        sandbox: Sandbox | None = None,
        seconds: float = 600,
        **wishes: Any,
    ) -> None:
        super().__init__(list(additional_imports), logger or AgentLogger(level=LogLevel.ERROR), allow_pickle)
        self.sandbox = sandbox or Sandbox.create(**wishes)
        self._seconds = seconds
        self._end = weakref.finalize(self, end, self.sandbox)
        self.installed_packages = self.install_packages(list(additional_imports)) or []
        self.run_code_raise_errors(_STAND_INS)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code; the last expression is its output. Raises `AgentError` with the traceback."""
        ran = self.sandbox.run_code(code, seconds=self._seconds)
        logs = ran.stdout
        if ran.error is not None:
            if ran.error.name == RemotePythonExecutor.FINAL_ANSWER_EXCEPTION:
                answer = self._deserialize_final_answer(ran.error.value, self.allow_pickle)
                return CodeOutput(output=answer, logs=logs, is_final_answer=True)
            told = f"{ran.error.name}: {ran.error.value}\n{ran.error.traceback}"
            raise AgentError(f"{logs}{ran.stderr}\nExecuting code yielded an error:\n{told}", self.logger)
        main = next((one.data for one in ran.results if one.main), {})
        return CodeOutput(output=_output(main), logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Destroy the sandbox."""
        self._end()


def _output(data: Mapping[str, str]) -> Any:
    for mime in ("image/jpeg", "image/png"):
        if mime in data:
            return PIL.Image.open(BytesIO(base64.b64decode(data[mime])))
    return next((data[mime] for mime in _TEXTS if mime in data), None)
