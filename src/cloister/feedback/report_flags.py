"""Makes tools write a report that we can parse, without changing what the command does.

Uses an environment variable if the tool has one, so that it works through any script, and otherwise a flag if the
command is simple. Report files are outside the working tree, at `$CLOISTER_REPORT`.
"""

import re
import shlex

from cloister.core.diagnosis import Check
from cloister.feedback.kinds import kind_of, languages_of, tool_of, words

REPORT = "CLOISTER_REPORT"
_TO = f'"${REPORT}"'

_WRITES_FILE: dict[str, str] = {
    "jest": f"--json --outputFile={_TO}",
    "vitest": f"--reporter=default --reporter=json --outputFile.json={_TO}",
    "mocha": f"--reporter json --reporter-option output={_TO}",
    "ctest": "--output-on-failure",
}
"""Flags with which the tool writes a report. The text of CTest says more than its report."""

_SAYS: dict[str, str] = {
    "mypy": "--output json",
    "pyright": "--outputjson",
    "pylint": "--output-format=json2",
    "eslint": "-f json",
    "oxlint": "-f json",
    "shellcheck": "-f json1",
    "go test": "-json",
    "cargo test": "--no-fail-fast",
    "cargo check": "--message-format=json",
    "cargo clippy": "--message-format=json",
    "cargo build": "--message-format=json",
}
"""Flags with which the tool prints another format; cargo also runs the test programs after one that failed."""

_ALOUD = 'export GOFLAGS="${GOFLAGS:+$GOFLAGS }-v"; '
"""Makes go name passing tests, also through a script, unless the script sets the variable itself."""

_ASKED = re.compile(
    r"(?:^| )(?:-f|-R|-o|--format|--formatter|--reporters?|--output(?:-\w+|File|json)?|--outputFile|--message-format|-json|"
    r"--json|--test-reporter|--junit-?xml)(?:[ =.]|$)"
)
_RUNS_SCRIPT = re.compile(r"^(npm|pnpm|yarn|bun) (?:run )?[\w:-]+$")


def environment(report: str, *, loose: bool = False) -> dict[str, str]:
    """Variables with which any check that runs pytest writes a JUnit file.

    Only the xunit1 family names files and lines. The cache would litter the repository. Python compares bytecode
    with its source by size and whole second, so a quick edit could run old code: no bytecode is written. With
    `loose`, tests run even if others cannot be loaded.
    """
    more = " --continue-on-collection-errors" if loose else ""
    path = shlex.quote(f"--junitxml={report}")
    return {
        "PYTEST_ADDOPTS": f"{path} -o junit_family=xunit1 -p no:cacheprovider{more}",
        "PYTHONDONTWRITEBYTECODE": "1",
        REPORT: report,
    }


def specify(command: str, scripts: dict[str, str] | None = None, *, go: bool = False) -> Check:
    """Return the check for `command`. `scripts` are those of `package.json`, for commands that name one.

    `go`: the repository is a Go module, so the command may run `go test` indirectly.
    """
    run = _with_flags(command, scripts or {})
    if go and run == command and tool_of(command) is None:
        run = _ALOUD + command
    script = _script(command, scripts or {})
    kind = kind_of(command)
    if kind == "other" and script:
        kind = kind_of(script)
    seen = languages_of(script or command)
    return Check(command, kind=kind, run="" if run == command else run, languages=seen)


def _script(command: str, scripts: dict[str, str]) -> str:
    """The command behind `npm test` and the like; empty if it is not a simple one."""
    if not _RUNS_SCRIPT.match(command):
        return ""
    script = scripts.get(command.rpartition(" ")[2], "")
    return script if words(script) else ""


def _with_flags(command: str, scripts: dict[str, str]) -> str:
    if script := _script(command, scripts):
        flags = _flags(script)
        # Only npm needs `--` before arguments of the script; the others would pass it on.
        return f"{command} {'-- ' if command.startswith('npm') else ''}{flags}" if flags else command
    if not words(command):
        return command
    tool = tool_of(command)
    if tool == "node --test" and not _ASKED.search(command):
        both = (
            "--test --test-reporter=spec --test-reporter-destination=stdout "
            f"--test-reporter=junit --test-reporter-destination={_TO}"
        )
        return command.replace("--test", both, 1)
    if tool == "go test" and not _ASKED.search(command):
        return command.replace("go test", "go test -json", 1)
    if tool and tool.startswith("cargo ") and tool in _SAYS and not _ASKED.search(command):
        if _SAYS[tool] in command:
            return command
        return command.replace(tool, f"{tool} {_SAYS[tool]}", 1)
    flags = _flags(command)
    return f"{command} {flags}" if flags else command


def _flags(command: str) -> str:
    """The flags to append to the command."""
    tool = tool_of(command)
    if tool is None or _ASKED.search(command) or " -- " in command:
        return ""
    if tool in _WRITES_FILE:
        return _WRITES_FILE[tool]
    return "" if tool.startswith(("go ", "cargo ")) else _SAYS.get(tool, "")
