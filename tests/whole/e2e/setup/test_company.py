"""The sample company: one run needs its index, service, database, MCP server and skill, and no token gets inside."""

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.whole.e2e.setup.test_environments import bodies, registry

EXAMPLE = Path(__file__).parents[4] / "examples" / "company"
PROMPT = "The totals of invoices are wrong: correct the tax"
LOOK = (
    "(env; cat /proc/[0-9]*/environ | tr '\\\\0' '\\\\n'; "
    "grep -rsaohE 'acme-[0-9a-f]{40}' / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev) "
    "| grep -aoE 'RATES_TOKEN=.*|acme-[0-9a-f]{40}' | sort -u; echo looked"
)
"""Prints what looks like a token in variables and files, and the stand-in."""


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
    look = f'[[reply]]\ncalls = [{{ tool = "bash", command = "{LOOK}", seconds = 120 }}]\n'
    model = cloister.script(f"{before}{look}[[reply]]{finish}")
    repos = [part for name in ("shop", "billing") for part in ("--repo", str(company / name))]
    done = cloister("run", PROMPT, *repos, "--model", model, seconds=900)
    assert "✓ proven" in done.stdout, done.stdout
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


def _is_nowhere(cloister: Any, company: Path) -> None:
    """No token is in the sandbox, in its template, in the log or in the data directory."""
    tokens = {name: (company / "tokens" / name).read_text() for name in ("index", "rates")}
    (looked,) = [body["text"] for body in bodies(cloister, "ToolReturned") if "looked" in body["text"]]
    assert re.search("RATES_TOKEN=.{45}", looked), "a program inside has something to send"
    known = [*tokens.values(), base64.b64encode(f"agent:{tokens['index']}".encode()).decode()]
    assert not any(one in looked for one in known)
    for path in Path(cloister.data_dir).rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            assert not any(one.encode() in data for one in known), path
