"""The time to the first command through the published clients of other services, beside our own Python client."""

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from parts.place import WARM, Bench
from parts.starts import served
from parts.table import Goal, Line

AT_ONCE = 50
PACKAGES = {
    "ours": (),
    "e2b": ("e2b==2.63.0", "e2b-code-interpreter==2.11.5"),
    "pandastack": ("pandastack==0.10.0",),
}
FIRST = {
    "ours": "from cloister import Client\nclient = Client()\ndef first():\n    s = client.create(ttl_seconds=600)\n"
    "    assert s.exec('echo here').stdout == 'here\\n'\n    return s.close",
    "e2b": "from e2b import Sandbox\ndef first():\n    s = Sandbox.create(timeout=600)\n"
    "    assert s.commands.run('echo here').stdout == 'here\\n'\n    return s.kill",
    "pandastack": "from pandastack import Sandbox\ndef first():\n    s = Sandbox.create(ttl_seconds=600)\n"
    "    assert s.exec('echo here').stdout == 'here\\n'\n    return s.kill",
}
LOOP = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
def timed(_=None):
    began = time.perf_counter()
    end = first()
    return time.perf_counter() - began, end
with ThreadPoolExecutor(64) as pool:
    for line in sys.stdin:
        taken = list(pool.map(timed, range(int(line)))) if int(line) > 1 else [timed()]
        list(pool.map(lambda one: one[1](), taken))
        print(max(seconds for seconds, _ in taken), flush=True)
"""


def through_clients(bench: Bench) -> None:
    """Create → first command, each client in turn; then many sandboxes at once through e2b's."""
    with served(bench) as (port, token), ExitStack() as stack:
        url = f"http://127.0.0.1:{port}"
        ask = {name: stack.enter_context(_client(name, url, token)) for name in PACKAGES}
        for each in ask.values():
            each(1)  # the template is built, the modules are imported
        taken: dict[str, list[float]] = {name: [] for name in ask}
        for _ in range(bench.rounds):
            for name, each in ask.items():
                taken[name].append(each(1))
        for name in ("e2b", "pandastack"):
            line = Line(
                f"{name}'s client: create → first command",
                _ms(taken[name]),
                goal=Goal(1.3, "ratio"),
                beside="our own client",
                theirs=_ms(taken["ours"]),
            )
            bench.table.add(line)
        slowest = [ask["e2b"](AT_ONCE) for _ in range(3)]
        what = f"e2b's client: the slowest of {AT_ONCE} at once, to its first command"
        bench.table.add(Line(what, _ms(slowest)))


def _ms(seconds: list[float]) -> tuple[float, ...]:
    return tuple(one * 1000 for one in seconds)


@contextmanager
def _client(name: str, url: str, token: str) -> Generator["_Ask"]:
    env = {
        "PATH": "/usr/bin:/bin",
        "CLOISTER_SERVER": url,
        "CLOISTER_TOKEN": token,
        "E2B_API_KEY": token,
        "E2B_API_URL": f"{url}/compat/e2b",
        "E2B_SANDBOX_URL": f"{url}/compat/e2b",
        "PANDASTACK_API_KEY": token,
        "PANDASTACK_API": f"{url}/compat/pandastack",
    }
    program = f"{FIRST[name]}\n{LOOP}"
    with subprocess.Popen(
        [_python(PACKAGES[name]), "-c", program],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _Ask(process)
        finally:
            process.terminate()


class _Ask:
    """One client's process: asks for so many sandboxes at once."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, count: int) -> float:
        """Seconds until the last of them had run its first command."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def _python(packages: tuple[str, ...]) -> Path:
    """The Python that has these packages, in an environment that is made once."""
    if not packages:
        return Path(sys.executable)
    home = WARM / "clients" / "-".join(packages).replace("==", "-")
    python, made = home / "venv" / "bin" / "python", home / "made"
    if not made.exists():
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        made.touch()
        print(f"installed {' '.join(packages)} in {time.monotonic() - began:.0f} s")
    return python
