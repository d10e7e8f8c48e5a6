"""The sample company: one run needs its index, service, database, MCP server and skill, and no token gets inside."""

import base64
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.whole.e2e.setup.test_environments import bodies, registry

EXAMPLE = Path(__file__).parents[4] / "examples" / "company"
PROMPT = "The totals of invoices are wrong: correct the tax"
MARK = f"planted-{token_hex(8)}"
WAIT = f"echo {MARK} > /tmp/{MARK}; chmod 0 /tmp/{MARK}; while [ -e /tmp/{MARK} ]; do sleep 0.1; done"
"""Plants a mark in a file that nobody inside may read, and waits until the sandbox was searched."""


@pytest.fixture
def company(cloister: Any) -> Iterator[Path]:
    """The directory of a company whose services answer, in the environment of `cloister`."""
    for name in ("pypi", "debian"):
        registry(name)
    at = cloister.cwd / "acme"
    argv = (sys.executable, str(EXAMPLE / "company.py"), str(at))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        lines = (at / "environment").read_text().splitlines()
        cloister.more_env = dict(line.removeprefix("export ").split("=", 1) for line in lines)
        with (cloister.data_dir / "config.toml").open("a") as config:
            config.write((at / "settings.toml").read_text())
        yield at
        process.communicate(timeout=60)


def test_a_run_that_needs_all_that_a_company_has_is_proven_and_sees_no_token(
    cloister: Any, company: Path
) -> None:
    text = (EXAMPLE / "company.script.toml").read_text()
    before, finish = text.rsplit("[[reply]]", 1)
    wait = f'[[reply]]\ncalls = [{{ tool = "bash", command = "{WAIT}", seconds = 600 }}]\n'
    model = cloister.script(f"{before}{wait}[[reply]]{finish}")
    repos = [part for name in ("shop", "billing") for part in ("--repo", str(company / name))]
    with cloister.start("run", PROMPT, *repos, "--model", model) as running:
        try:
            cloister.until(lambda: running.poll() is not None or _sandbox() is not None, 900)
            if sandbox := _sandbox():
                _is_not_inside(sandbox, _secrets(company))
                (sandbox / "tmp" / MARK).unlink()
            shown, _ = running.communicate(timeout=900)
        finally:
            running.terminate()
    assert "✓ proven" in shown, shown
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    try:
        _is_used(cloister, environment)
        _is_nowhere(cloister, company)
    finally:
        cloister("template", "rm", environment["template"], code=None)


def _is_used(cloister: Any, environment: dict[str, Any]) -> None:
    """Each part of the company was needed."""
    assert environment["problem"] == ""
    assert any("postgresql" in line for line in environment["plan"])
    requests = {(one["path"], one["credential"]) for one in bodies(cloister, "RequestDecided")}
    assert ("/files/acme_money-1.0-py3-none-any.whl", "index") in requests
    assert ("/rates/DE", "rates") in requests
    skill, order, rate, *_ = [body["text"] for body in bodies(cloister, "ToolReturned")]
    assert "Rates come from the tax service" in skill
    assert order == "order 7: 1000 cents net, to DE"
    assert rate.startswith("DE 19 percent")
    (offered,) = bodies(cloister, "ToolsOffered")
    assert offered["problems"] == []
    diff = cloister("diff", "last").stdout
    assert '+RATES = {"DE": 19, "FR": 20}' in diff
    assert "+    return shown(cents + tax(country, cents))" in diff


def _secrets(company: Path) -> list[bytes]:
    """The tokens of the company, in each form that one is sent in."""
    index, rates = ((company / "tokens" / name).read_bytes() for name in ("index", "rates"))
    return [index, rates, base64.b64encode(b"agent:" + index)]


def _sandbox() -> Path | None:
    """The root of the sandbox in which the model waits, as this machine sees it."""
    return next((process / "root" for process in _inside()), None)


def _inside() -> list[Path]:
    """The processes in that sandbox."""
    return [path.parents[2] for path in Path("/proc").glob(f"[0-9]*/root/tmp/{MARK}")]


def _is_not_inside(root: Path, secrets: list[bytes]) -> None:
    """Nothing in the sandbox has a token: no file, whoever may read it, no variable, and no memory of a process."""
    inside = _inside()
    variables = b"".join(_bytes(process / "environ") for process in inside)
    stand_in = re.search(rb"RATES_TOKEN=([!-~]{45})", variables)
    assert stand_in, "a program inside has something to send"
    assert not any(one in variables for one in secrets)
    assert _in_files(root, [MARK.encode()]), "the search reads what the agent may not"
    assert _in_files(root, secrets) == []
    memories = [_memory(process) for process in inside]
    assert any(stand_in[1] in memory for memory in memories), "the search reads memory"
    assert not any(one in memory for memory in memories for one in secrets)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a process that has ended
        return b""


def _memory(process: Path) -> bytes:
    """What can be read of the memory of a process."""
    found: list[bytes] = []
    with suppress(OSError), (process / "mem").open("rb", buffering=0) as memory:
        for line in _bytes(process / "maps").decode().splitlines():
            area, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(end, 16) for end in area.split("-"))
                with suppress(OSError):
                    memory.seek(first)
                    found.append(memory.read(last - first))
    return b"".join(found)


def _in_files(at: Path, wanted: list[bytes]) -> list[str]:
    """The files below a directory that have one of these."""
    patterns = [part for one in wanted for part in ("-e", one.decode())]
    outside = [part for name in ("proc", "sys") for part in ("-path", f"{at}/{name}", "-prune", "-o")]
    find = ["find", f"{at}/", *outside, "-type", "f", "-print0"]
    search = ["xargs", "-0", "-r", "grep", "-lF", "-D", "skip", *patterns, "--"]
    with subprocess.Popen(find, stdout=subprocess.PIPE) as listed:
        done = subprocess.run(
            search, stdin=listed.stdout, capture_output=True, env={**os.environ, "LC_ALL": "C"}
        )
    return done.stdout.decode(errors="replace").splitlines()


def _is_nowhere(cloister: Any, company: Path) -> None:
    """No token is in the log, in the data directory, or in what it shares with others: templates and the store."""
    secrets = _secrets(company)
    assert _in_files(company / "tokens", secrets), "the search finds them where they are"
    assert _in_files(cloister.data_dir, secrets) == []
    os.sync()  # the store is a disk in a file, which is read as it is, with what was removed
    for shared in ("templates", "store.btrfs"):
        assert _in_files((cloister.data_dir / shared).resolve(), secrets) == [], shared
