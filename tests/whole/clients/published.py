"""The published clients, each version in an environment of its own that is made once, and programs that use them."""

import fcntl
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from tests.conftest import CACHE
from tests.whole.clients.operations import Operation

VERSIONS = {
    "e2b": ("e2b==2.63.0", "e2b-code-interpreter==2.11.5"),
    "pandastack": ("pandastack==0.10.0",),
    "modbox": ("modbox-sdk==0.0.21",),
}

RUNNER = """
import json, sys, traceback
names, results = {}, {}
for name, code in json.load(sys.stdin):
    try:
        exec(compile(code, name, "exec"), names)
        results[name] = None
    except BaseException:
        results[name] = traceback.format_exc()[-3000:]
print("\\n" + json.dumps(results))
"""


def interpreter(client: str) -> Path:
    """The Python that has a published client; skips the test where no registry can be reached."""
    home = CACHE / "clients" / "-".join(VERSIONS[client]).replace("==", "-")
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = home / "venv" / "bin" / "python"
        if not (home / "made").exists():
            subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
            install = [python, "-m", "pip", "install", "-q", "--no-input", *VERSIONS[client]]
            done = subprocess.run(install, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"{client} cannot be fetched here: {done.stderr[-200:]}")
            (home / "made").touch()
    return python


def failures(client: str, operations: Iterable[Operation], env: Mapping[str, str]) -> dict[str, str]:
    """What went wrong, by operation."""
    code = json.dumps([(one.name, textwrap.dedent(one.code)) for one in operations])
    done = subprocess.run(
        [interpreter(client), "-c", RUNNER], input=code, env=dict(env), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return {name: problem for name, problem in told.items() if problem}
