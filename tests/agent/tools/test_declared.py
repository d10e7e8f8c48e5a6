"""Tools by declaration: their files, their commands in the sandbox and on the host, and what is wrong with some."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.agent.loop_bench import FIX, LoopBench, open_bench

from cloister.agent.tools.declared import DeclaredTools, call_of, declared, read_tool
from cloister.agent.tools.toolset import ToolPlace, ToolSet, open_tools
from cloister.core.errors import UserError
from cloister.core.events import ToolReturned, ToolsOffered
from cloister.core.requests import DeclaredTool, NewRun
from cloister.policy.api import Layer, Policy, Rule
from cloister.policy.layers import BUILT_IN

pytestmark = pytest.mark.anyio

DEPLOY = """\
description = "Deploy the service."
command = ["python3", "deploy.py", "--to={to}", "--", "{note}"]

[arguments]
required = ["to"]

[arguments.properties.to]
type = "string"
enum = ["staging", "prod"]

[arguments.properties.note]
type = "string"
"""
SHOW = "import json, os, sys; print(sys.argv[1:], json.load(sys.stdin), os.environ['ARG_TO'])\n"
CODE = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "check.py": "import calc\nassert calc.add(1, 2) == 3\n",
}


def call(name: str, arguments: str = "") -> str:
    more = f", {arguments}" if arguments else ""
    return f'[[reply]]\ncalls = [{{ tool = "{name}"{more} }}]\n'


async def work(
    bench: LoopBench,
    script: str,
    settings: dict[str, DeclaredTool] | None = None,
    policy: Policy = (BUILT_IN,),
) -> list[ToolReturned]:
    """Run `script` with the tools that the settings and the base commit declare."""
    place = ToolPlace(0, bench.journal, bench.computer, NewRun("p", "r"), bench.bare, bench.base, policy)
    async with open_tools((DeclaredTools(settings or {}, "config.toml"),), place) as tools:
        bench.tools = tools
        await bench.work(script + FIX, policy=policy)
    return [body for body in bench.journal.bodies if isinstance(body, ToolReturned)]


def problems(bench: LoopBench) -> tuple[str, ...]:
    return next(body for body in bench.journal.bodies if isinstance(body, ToolsOffered)).problems


async def test_a_tool_of_the_repository_gets_its_arguments_as_words_as_json_and_as_variables(
    tmp_path: Path,
) -> None:
    files = {**CODE, ".cloister/tools/deploy.toml": DEPLOY, "deploy.py": SHOW}
    bench = await open_bench(tmp_path, files)
    script = call("deploy", 'to = "prod", note = "-x; touch escaped $(touch escaped)"')
    done, *_ = await work(bench, script + call("deploy", 'to = "mars"'))
    assert done.ok, done.text
    note = "-x; touch escaped $(touch escaped)"
    assert (
        done.text == f"['--to=prod', '--', '{note}'] {{'note': '{note}', 'to': 'prod'}} prod\n[exit status 0]"
    )
    assert not (bench.computer.work / "escaped").exists()
    assert (done.origin, done.exit_code) == ("tool", 0)
    (offered,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
    assert offered.tools[0].source == f".cloister/tools/deploy.toml@{bench.base[:12]}"
    refused = [body for body in bench.journal.bodies if isinstance(body, ToolReturned)][1]
    assert refused.text == 'Invalid arguments of `deploy`: to must be one of ["staging","prod"].'


async def test_what_the_agent_writes_below_the_folder_declares_nothing(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, CODE)
    own = r"description = \"Mine.\"\ncommand = [\"touch\", \"escaped\"]\n"
    script = call("write", f'path = ".cloister/tools/mine.toml", content = "{own}"') + call("mine", "a = 1")
    written, done, *_ = await work(bench, script)
    assert written.ok
    assert done.text.startswith("There is no tool `mine`.")
    async with open_tools((DeclaredTools({}, "c"),), place_of(bench)) as again:  # also after a crash
        assert list(again.added) == []


def place_of(bench: LoopBench) -> ToolPlace:
    return ToolPlace(0, bench.journal, bench.computer, NewRun("p", "r"), bench.bare, bench.base, (BUILT_IN,))


async def test_a_tool_that_hangs_floods_or_does_not_exist_costs_its_call(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, CODE)
    tools = {
        "hangs": DeclaredTool("Hang.", ("sleep", "600"), seconds=0.2),
        "floods": DeclaredTool("Flood.", ("sh", "-c", "yes"), output_bytes=10_000),
        "missing": DeclaredTool("Miss.", ("no-such-program",)),
        "hangs_here": DeclaredTool("Hang.", ("/bin/sleep", "600"), where="host", grant="allow", seconds=0.2),
        "floods_here": DeclaredTool(
            "Flood.", ("/usr/bin/yes",), where="host", grant="allow", output_bytes=10_000
        ),
        "missing_here": DeclaredTool("Miss.", ("/no/such/program",), where="host", grant="allow"),
    }
    done = await work(bench, "".join(map(call, tools)), tools)
    texts = [one.text for one in done[:6]]
    assert not any(one.ok for one in done[:6])
    assert [texts[0], texts[2]] == [
        "[killed: still running after 0.2 s]",
        "There is no program no-such-program.",
    ]
    assert texts[1].endswith("[killed: too much output]")
    assert texts[3] == "[killed: still running after 0.2 s]"
    assert texts[4].endswith("[killed: printed more than 10,000 bytes]")
    assert texts[5] == "missing_here cannot be started: No such file or directory."


async def test_a_tool_on_the_host_needs_the_organisation_a_grant_and_sees_no_environment(
    tmp_path: Path,
) -> None:
    files = {
        **CODE,
        ".cloister/tools/env.toml": 'description = "E."\ncommand = ["/usr/bin/env"]\nwhere = "host"\n',
    }
    bench = await open_bench(tmp_path, files)
    tools = {
        "granted": DeclaredTool("Print.", ("/usr/bin/env",), where="host", grant="allow"),
        "denied": DeclaredTool("Print.", ("/usr/bin/env",), where="host"),
        "ruled": DeclaredTool("Print.", ("/usr/bin/env",), where="host"),
    }
    policy = (BUILT_IN, Layer("host", (Rule("tool:ruled", "allow", "p:1"),), may_widen=True))
    script = "".join(map(call, tools))
    granted, denied, ruled, *_ = await work(bench, script, tools, policy)
    variables = sorted(line.partition("=")[0] for line in granted.text.splitlines()[:-1])
    assert variables == ["CLOISTER_TOOL", "HOME", "LANG", "PATH"]
    assert (granted.origin, ruled.ok) == ("server", True)
    assert denied.text == "Not allowed: no rule allows it."
    assert problems(bench) == (
        f".cloister/tools/env.toml@{bench.base[:12]}: only the organisation's settings may declare a tool of the host.",
    )


def with_link(repo: Path, name: str, bare: Path) -> str:
    """Commit a link to a file of this machine; returns the commit."""
    (repo / name).symlink_to("/etc/passwd")
    git = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for words in (
        ("add", "-A"),
        ("commit", "-qm", "link"),
        ("push", "-q", str(bare), "HEAD:refs/heads/link"),
    ):
        subprocess.run([*git, *words], cwd=repo, check=True)
    return subprocess.run(
        [*git, "rev-parse", "HEAD"], cwd=repo, check=True, capture_output=True, text=True
    ).stdout.strip()


async def test_files_that_are_no_declarations_are_named_and_the_others_work(tmp_path: Path) -> None:
    folder = ".cloister/tools"
    files = {
        f"{folder}/good.toml": 'description = "Good."\ncommand = ["true"]\n',
        f"{folder}/twice.toml": 'description = "Good."\ncommand = ["true"]\n',
        f"{folder}/bash.toml": 'description = "Mine."\ncommand = ["true"]\n',
        f"{folder}/large.toml": "#" * 10_000_000,
        f"{folder}/wrong.toml": 'description = "x"\ncommand = ["true"]\ncomand = 1\n',
        f"{folder}/no toml.toml": "=",
        f"{folder}/README.md": "No tool.",
        f"{folder}/below/deep.toml": 'description = "Deep."\ncommand = ["true"]\n',
    }
    bench = await open_bench(tmp_path, {**CODE, **files})
    bench.base = with_link(tmp_path / "repo", f"{folder}/link.toml", bench.bare)
    settings = {"twice": DeclaredTool("Good.", ("true",))}
    async with open_tools((DeclaredTools(settings, "config.toml"),), place_of(bench)) as tools:
        assert list(tools.added) == ["twice", "good"]
        assert tools["twice"].source == "config.toml [tool.twice]", "a repository takes no tool away"
    at = f"@{bench.base[:12]}"
    assert problems(bench) == (
        f"{folder}/large.toml is larger than 65,536 bytes.",
        f"{folder}/link.toml is a symbolic link, which is not followed.",
        f"{folder}/no toml.toml{at}: it is not valid TOML (Invalid statement (at line 1, column 1)).",
        f"{folder}/wrong.toml{at}: At $: unknown field 'comand'; did you mean 'command'?",
        f"The tool 'twice' of {folder}/twice.toml{at} is not used: config.toml [tool.twice] has this name; rename one.",
        f"The tool 'bash' of {folder}/bash.toml{at} has the name of a built-in tool: rename it.",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('description = "a"\ncommand = []\n', "At $.command: Expected `array` of length >= 1"),
        ('description = ""\ncommand = ["a"]\n', "At $.description: Expected `str` of length >= 1"),
        (
            'description = "a\\u001b[31m"\ncommand = ["a"]\n',
            "the description has control or invisible characters",
        ),
        (
            'description = "a\\u200bb"\ncommand = ["a"]\n',
            "the description has control or invisible characters",
        ),
        ('description = "a"\ncommand = ["a", "{b}"]\n', "`command` uses the argument 'b'"),
        (
            'description = "a"\ncommand = ["{b}"]\n[arguments.properties.b]\ntype = "string"\n',
            "the program itself",
        ),
        ('description = "a"\ncommand = ["a"]\nseconds = 1e9\n', "At $.seconds: Expected `float` <= 1800.0"),
        (
            'description = "a"\ncommand = ["a"]\n[arguments.b]\ntype = "string"\n',
            "`arguments` is a JSON Schema",
        ),
        (
            'description = "a"\ncommand = ["a"]\n[arguments.properties.b]\ntype = "int"\n',
            "arguments.b: 'int' is no type",
        ),
        (
            'description = "a"\ncommand = ["a"]\n[arguments.properties."two words"]\ntype = "string"\n',
            "'two words' is no name of an argument",
        ),
        ("a = " + "[" * 5_000, "it is not valid TOML"),
    ],
)
def test_wrong_declaration_is_named(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        read_tool(".cloister/tools/x.toml", text.encode())
    assert caught.value.message.startswith(f".cloister/tools/x.toml: {problem}")


def test_a_value_never_becomes_an_option_of_the_program() -> None:
    schema = {"properties": {"path": {"type": "string"}}}
    one = declared("x", DeclaredTool("X.", ("cat", "{path}"), schema), "repository", "x.toml")
    with pytest.raises(UserError, match="would read as an option"):
        call_of(one, {"path": "--help"})
    after = declared("x", DeclaredTool("X.", ("cat", "--", "{path}"), schema), "repository", "x.toml")
    assert call_of(after, {"path": "--help"})[0] == ("cat", "--", "--help")
    assert call_of(one, {})[0] == ("cat",)
    with pytest.raises(UserError, match="NUL"):
        call_of(one, {"path": "a\0b"})
    with pytest.raises(UserError, match="more than"):
        call_of(one, {"path": "x" * 60_000})


CODE_WORDS = [
    ["sh", "-c", "deploy {to}"],
    ["/usr/bin/env", "bash", "-o", "pipefail", "-lc", "deploy {to}"],
    ["docker", "exec", "db", "psql", "-h", "db", "-c", "SELECT '{to}'"],
    ["python3", "-c", "deploy('{to}')"],
    ["node", "--eval={to}"],
    ["ssh", "deployer@host", "--", "deploy {to}"],
    ["sed", "-n", "{to}p", "file"],
    ["perl", "-pe{to}"],
]


@pytest.mark.parametrize("command", CODE_WORDS)
def test_an_argument_never_becomes_code_of_a_shell_or_another_interpreter(command: list[str]) -> None:
    text = f'description = "D."\ncommand = {command}\n[arguments.properties.to]\ntype = "string"\n'
    with pytest.raises(
        UserError, match=r"x\.toml: \{to\} would be code of .*: use the variable ARG_TO or stdin"
    ):
        read_tool("x.toml", text.encode())


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", 'deploy "$ARG_TO"'],
        ["sh", "-c", 'deploy "$1"', "deploy", "{to}"],
        ["bash", "scripts/deploy.sh", "-e", "{to}"],
        ["python3", "-m", "tool", "-c", "{to}"],
        ["git", "log", "--grep={to}"],
    ],
)
def test_a_word_that_is_data_may_hold_an_argument(command: list[str]) -> None:
    text = f'description = "D."\ncommand = {command}\n[arguments.properties.to]\ntype = "string"\n'
    assert read_tool("x.toml", text.encode()).name == "x"


def test_an_argument_that_the_schema_does_not_have_takes_no_variable_of_another() -> None:
    schema = {"additionalProperties": True, "properties": {"to": {"enum": ["staging"]}}}
    one = declared("x", DeclaredTool("X.", ("deploy",), schema), "organisation", "x")
    assert call_of(one, {"to": "staging", "TO": "prod"})[1] == {"CLOISTER_TOOL": "x", "ARG_TO": "staging"}
    same = {"properties": {"a-b": {"type": "string"}, "a_b": {"type": "string"}}}
    with pytest.raises(UserError, match="two arguments have the same variable"):
        declared("x", DeclaredTool("X.", ("deploy",), same), "organisation", "x")


async def test_a_value_stays_a_value_in_a_shell_that_reads_its_variable(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, CODE)
    schema = {"properties": {"to": {"type": "string"}}}
    tools = {"say": DeclaredTool("Say.", ("sh", "-c", 'printf %s "$ARG_TO"'), schema)}
    done, *_ = await work(
        bench, call("say", "to = '\"; touch escaped; $(touch escaped) `touch escaped`'"), tools
    )
    assert done.text.startswith('"; touch escaped; $(touch escaped) `touch escaped`')
    assert not (bench.computer.work / "escaped").exists()


def test_a_python_function_of_an_installed_package_is_a_tool_that_needs_a_rule(tmp_path: Path) -> None:
    about = tmp_path / "company_tools-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: company-tools\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[cloister.tools]\nticket = company_tools:ticket\nbroken = company_tools:no_such\nbare = company_tools:bare\n"
    )
    (tmp_path / "company_tools.py").write_text(
        "async def ticket(number: int, lines: int = 3) -> str:\n"
        '    """Look up a ticket."""\n'
        "    return f'ticket {number}: {lines} lines'\n"
        "def bare(what): pass\n"
    )
    program = (
        "import anyio, msgspec\n"
        "from cloister.agent.tools.functions import installed\n"
        "offer = installed()\n"
        "(tool,) = offer.tools\n"
        "args = msgspec.convert({'number': 7}, tool.args)\n"
        "done = anyio.run(tool.run, None, args, None)\n"
        "print(msgspec.json.encode([tool.spec, tool.grant, tool.origin, done.text, offer.problems]).decode())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert found.stderr == ""
    spec, grant, origin, text, wrong = msgspec.json.decode(found.stdout)
    assert (spec["name"], spec["description"]) == ("ticket", "Look up a ticket.")
    assert spec["parameters"]["required"] == ["number"]
    assert (grant, origin, text) == (None, "server", "ticket 7: 3 lines")
    assert len(wrong) == 2
    assert "has no attribute 'no_such'" in " ".join(wrong)
    assert "has no docstring" in " ".join(wrong)


def test_a_declared_tool_is_offered_with_its_schema() -> None:
    one = read_tool(".cloister/tools/deploy.toml", DEPLOY.encode())
    (spec,) = [spec for spec in ToolSet([one.tool]).specs if spec.name == "deploy"]
    assert spec.parameters["required"] == ["to"]
    assert spec.parameters["additionalProperties"] is False
    assert one.digest == read_tool("other/deploy.toml", DEPLOY.encode()).digest
