"""A run that an editor starts over MCP on stdio, whose model uses tools of the repository in its sandbox."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.agent.tools.mcp_server import INJECTION
from tests.whole.e2e.setup.ordinary import clean, project, registry
from tests.whole.e2e.setup.test_environments import bodies as bodies_of

SERVER = Path(__file__).parents[3] / "agent" / "tools" / "mcp_server.py"
COUNT = """\
description = "Count the lines of a file."
command = ["wc", "-l", "--", "{path}"]

[arguments]
required = ["path"]
properties = { path = { type = "string" } }
"""
USE = """\
[[reply]]
calls = [
    { tool = "count", path = "calc.py" },
    { tool = "own_echo", text = "hello from inside" },
    { tool = "own_die" },
    { tool = "own_env" },
    { tool = "own_reach" },
    { tool = "own_inject" },
    { tool = "bash", command = "git push https://forge.example/x.git HEAD:main" },
    { tool = "note", text = "Adding is tested." },
]

[[reply]]
expect = "ended"
calls = [{ tool = "edit", path = "calc.py", old = "a - b", new = "a + b" }]

[[reply]]
calls = [{ tool = "finish", summary = "Add adds." }]
"""


def repository(cloister: Any) -> Path:
    """A repository with a bug, a test, a declared tool and an MCP server."""
    at = cloister.cwd / "sums"
    files = {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        ".cloister/tools/count.toml": COUNT,
        ".cloister/config.toml": 'setup = "off"\n[mcp.own]\ncommand = ["python3", "/work/server.py"]\n',
        "server.py": SERVER.read_text(),
        ".cloister/notes.md": "# Ours\n\n- A line\u2028of a kind.\n",
    }
    for name, text in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return at


def text_of(result: types.CallToolResult) -> str:
    (part,) = result.content
    assert isinstance(part, types.TextContent)
    assert not result.is_error, part.text
    return part.text


async def work(cloister: Any, repo: Path, script: str) -> tuple[list[str], dict[str, str]]:
    """What an editor hears of a run until its end, and what tools return."""
    _, *argv = cloister.argv("mcp")
    command = StdioServerParameters(command=sys.executable, args=argv, env=cloister.env, cwd=cloister.cwd)
    heard: list[str] = []

    async def told(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    with anyio.fail_after(300):
        async with stdio_client(command) as streams, ClientSession(*streams) as session:
            await session.initialize()

            async def call(name: str, **arguments: object) -> str:
                return text_of(await session.call_tool(name, arguments, progress_callback=told))

            found: dict[str, str] = {}
            start = partial(call, "run_start", prompt="Make add work.", repo=str(repo), model=script)
            found["run"] = await start(wait_seconds=250)
            found["diff"] = await call("run_diff", run="last")
            found["proof"] = await call("run_verify", ref="last")
            made = await call("sandbox_create")
            name = made.split()[2]
            await call("sandbox_write", sandbox=name, path="a/b.txt", content="äöü\n")
            found["exec"] = await call("sandbox_exec", sandbox=name, command="cat a/b.txt; exit 3")
            found["read"] = await call("sandbox_read", sandbox=name, path="/work/a/b.txt")
            await call("sandbox_destroy", sandbox=name)
            found["left"] = await call("sandbox_list")
            return heard, found


def test_an_editor_starts_a_run_that_uses_the_repositorys_tools_and_sees_it_proven(cloister: Any) -> None:
    repo = repository(cloister)
    heard, found = anyio.run(work, cloister, repo, cloister.script(USE))
    assert ": proven" in found["run"], found["run"]
    assert "+    return a + b" in found["diff"]
    assert found["proof"].startswith("The proof holds."), found["proof"]
    notes = cloister("diff", "last", "--notes").stdout
    subprocess.run(["git", "apply", "-"], cwd=repo, check=True, input=notes.encode())
    assert (repo / ".cloister/notes.md").read_text().endswith("kind.\n- Adding is tested.\n")
    assert len(heard) > 5, heard
    assert found["exec"] == "äöü\n[exit status 3]"
    assert (found["read"], found["left"]) == ("äöü\n", "There are none.")
    bodies = [event["body"] for event in cloister.events()]
    (offered,) = [body for body in bodies if body["type"] == "ToolsOffered"]
    assert offered["problems"] == []
    assert {"count", "own_echo"} <= {tool["name"] for tool in offered["tools"]}
    returned = [body["text"] for body in bodies if body["type"] == "ToolReturned"]
    count, echo, died, env, reach, injected, pushed, *_ = returned
    assert count.startswith("2 calc.py\n")
    assert echo == "hello from inside"
    assert died.startswith("The MCP server own ended. It printed: ")
    assert "HOME" in env
    assert "CLOISTER_DATA_DIR" not in env
    assert "answered" not in reach, "a server on stdio has the sandbox's way out only"
    assert "HTTP/1.1 403 Forbidden" in reach, reach
    decided = [body for body in bodies if body["type"] == "ConnectionDecided"]
    assert [(one["host"], one["effect"]) for one in decided] == [
        ("secrets.example", "deny"),
        ("forge.example", "deny"),
    ]
    assert injected == INJECTION
    assert "forge.example" in pushed and "403" in pushed, "no rule is needed to keep a push from leaving"
    entered = [entry for entry in cloister("audit", "show").stdout.splitlines() if "ToolsOffered" in entry]
    assert len(entered) == 1, entered


def test_a_tool_is_listed_and_tried_from_the_command_line(cloister: Any) -> None:
    repo = repository(cloister)
    with (cloister.data_dir / "config.toml").open("a") as file:
        file.write('[tool.now]\ndescription = "The time."\ncommand = ["/bin/date"]\nwhere = "host"\n')
    there = ("--repo", str(repo))
    listed = {one["name"]: one for one in cloister.json("tools", "list", *there)["tools"]}
    assert {name: one["effect"] for name, one in listed.items()} == {
        "now": "deny",
        "count": "allow",
        "own": "allow",
    }
    assert listed["count"]["source"].startswith(".cloister/tools/count.toml@")
    tried = cloister("tools", "try", "count", '{"path": "calc.py"}', *there)
    assert tried.stdout == "2 calc.py\n[exit status 0]\n"
    echo = cloister.json("tools", "try", "own.echo", '{"text": "hi"}', *there)
    assert (echo["ok"], echo["text"]) == (True, "hi")
    for name, arguments, code, told in (
        ("now", "{}", 2, "tool:now is not allowed"),
        ("count", "{}", 2, "path is missing"),
        ("none", "{}", 2, "There is no added tool 'none'. There are: count"),
        ("count", "[1]", 2, "The arguments are a JSON object"),
        ("own.refuse", "{}", 1, ""),
    ):
        refused = cloister("tools", "try", name, arguments, *there, code=None)
        assert told in refused.stderr, refused.stderr
        assert refused.returncode == code, (name, refused.stdout, refused.stderr)
    assert cloister("audit", "show").stdout.count("ToolTried") == 3


PUBLISHED = """\
[[reply]]
calls = [
    { tool = "published_git_log", repo_path = "/work" },
    { tool = "published_git_diff_unstaged", repo_path = "/work" },
    { tool = "edit", path = "calc.py", old = "a - b", new = "a + b" },
]

[[reply]]
calls = [{ tool = "finish", summary = "Add adds." }]
"""


def test_a_published_server_runs_in_the_sandbox(cloister: Any) -> None:
    """`mcp-server-git`, which set-up installs from the registry like any package of the repository."""
    registry("pypi")
    repo = project(
        "published-mcp",
        **{
            "requirements.txt": "mcp-server-git\n",
            ".cloister/config.toml": '[mcp.published]\ncommand = ["mcp-server-git", "--repository", "/work"]\n',
            "calc.py": "def add(a, b):\n    return a - b\n",
            "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        },
    )
    done = cloister(
        "run", "Make add work.", "--repo", str(repo), "--model", cloister.script(PUBLISHED), seconds=900
    )
    assert "✓ proven" in done.stdout, done.stdout
    (offered,) = bodies_of(cloister, "ToolsOffered")
    assert offered["problems"] == []
    log, diff, *_ = bodies_of(cloister, "ToolReturned")
    assert log["ok"] and "base" in log["text"], log["text"]
    assert diff["ok"] and diff["origin"] == "server", diff["text"]
    clean(repo)
