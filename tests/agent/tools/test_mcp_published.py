"""Published MCP servers, as their registries have them: files, git, web pages, and one that shows every feature."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.loop_bench import LoopBench, open_bench
from tests.agent.tools.test_mcp import no_way, place_of
from tests.conftest import CACHE
from tests.egress.world import listening, web

from cloister.agent.tools.api import Observation
from cloister.agent.tools.mcp.servers import McpTools
from cloister.agent.tools.toolset import ToolSet, open_tools
from cloister.core.events import ToolsOffered
from cloister.core.requests import McpServer

pytestmark = [pytest.mark.anyio, pytest.mark.long(only=True)]

NPM = ("@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-everything")
PYTHON = ("mcp-server-git", "mcp-server-fetch")


def installed() -> tuple[Path, Path]:
    """The folders of the programs of npm and Python, fetched once on this machine."""
    at = CACHE / "mcp-servers"
    npm, python = at / "npm", at / "python"
    if not (at / "complete").exists():
        at.mkdir(parents=True, exist_ok=True)
        venv = (sys.executable, "-m", "venv", str(python))
        pip = (str(python / "bin" / "pip"), "install", "-q", *PYTHON)
        for argv in (("npm", "install", "--no-audit", "--no-fund", "--prefix", str(npm), *NPM), venv, pip):
            done = subprocess.run(argv, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"the servers cannot be fetched here: {done.stderr.strip()[-300:]}")
        (at / "complete").touch()
    return npm / "node_modules" / ".bin", python / "bin"


def servers(bench: LoopBench) -> dict[str, McpServer]:
    npm, python = installed()
    work = str(bench.computer.work)
    env = {"PATH": os.environ["PATH"], "HOME": work}
    return {
        "files": McpServer(command=(str(npm / "mcp-server-filesystem"), work), env=env),
        "all": McpServer(command=(str(npm / "mcp-server-everything"), "stdio"), env=env),
        "git": McpServer(command=(str(python / "mcp-server-git"), "--repository", work), env=env),
        "web": McpServer(
            command=(str(python / "mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"), env=env
        ),
    }


@asynccontextmanager
async def opened(bench: LoopBench) -> AsyncGenerator[ToolSet]:
    source = McpTools(servers(bench), "config.toml", no_way)
    async with open_tools((source,), place_of(bench)) as tools:
        yield tools


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path, {"calc.py": "def add(a, b):\n    return a - b\n", "check.py": ""})


async def call(bench: LoopBench, tools: ToolSet, name: str, **arguments: Any) -> Observation:
    return await tools.added[name].run(bench.computer, arguments, lambda stream, data: None)


async def test_their_tools_are_listed_and_called(bench: LoopBench) -> None:
    work = bench.computer.work
    async with opened(bench) as tools, listening(web([])) as port:
        (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
        assert event.problems == ()
        assert {"files_read_text_file", "all_echo", "git_git_status", "web_fetch"} <= set(tools.added)
        read = await call(bench, tools, "files_read_text_file", path=f"{work}/calc.py")
        assert "return a - b" in read.text
        outside = await call(bench, tools, "files_read_text_file", path="/etc/passwd")
        assert not outside.ok, outside.text
        assert "hello" in (await call(bench, tools, "all_echo", message="hello")).text
        status = await call(bench, tools, "git_git_status", repo_path=str(work))
        assert status.ok, status.text
        page = await call(bench, tools, "web_fetch", url=f"http://127.0.0.1:{port}/", raw=True)
        assert "ok" in page.text, page.text
        everything = [tool for name, tool in tools.added.items() if name.startswith("all_")]
        assert {tool.origin for tool in everything} == {"server"}


async def test_more_tools_than_the_number_are_searched_by_name(bench: LoopBench) -> None:
    async with opened(bench) as tools:
        assert len(tools.added) > 30, sorted(tools.added)
        assert "find_tool" in {spec.name for spec in tools.specs}
        assert not set(tools.added) & {spec.name for spec in tools.specs}
        found = await tools["find_tool"].run(
            bench.computer, tools["find_tool"].args(query="show the working tree status"), lambda s, d: None
        )
        assert found.text.split(":")[0].startswith("git_"), found.text
        arguments = found.text.split("arguments: ")[1].split("\n")[0]
        assert "repo_path" in json.loads(arguments)["properties"]
