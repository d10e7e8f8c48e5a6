"""Python in a process of its own, for what is about the directory or the environment that a process is in."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def own_process(
    program: str, *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `program` with `args` after it; `env` is added to what we have."""
    paths = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        cwd=cwd,
        env={**os.environ, **(env or {}), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
