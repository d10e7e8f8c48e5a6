"""How tools are told to leave a report that we can read, without changing what the command means.

By a variable where the tool has one, so that it reaches the tool through any script; by a flag where the command
is a simple one that we can read. A report goes to a file outside the working tree, `$CLOISTER_REPORT`.
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
"""The tool writes a report, or says more; what CTest prints tells more than its report."""

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
"""The tool prints in another form; cargo runs what comes after a program of tests that failed, too."""

_ALOUD = 'export GOFLAGS="${GOFLAGS:+$GOFLAGS }-v"; '
"""go names tests that pass only when told to, which reaches it through any script that sets no such variable itself."""

_ASKED = re.compile(
    r"(?:^| )(?:-f|-R|-o|--format|--formatter|--reporters?|--output(?:-\w+|File|json)?|--outputFile|--message-format|-json|"
    r"--json|--test-reporter|--junit-?xml)(?:[ =.]|$)"
)
_RUNS_SCRIPT = re.compile(r"^(npm|pnpm|yarn|bun) (?:run )?[\w:-]+$")


def environment(report: str, *, loose: bool = False) -> dict[str, str]:
    """Variables under which any check that ends up in pytest writes a JUnit file.

    The xunit1 family is the one that names files and lines; the cache would litter the repository.
    Bytecode is told from its source by size and whole second, so a quick edit after a check could be judged
    by the code before it: no bytecode is written. `loose` tests run even where others cannot be loaded.
    """
    more = " --continue-on-collection-errors" if loose else ""
    path = shlex.quote(f"--junitxml={report}")
    return {
        "PYTEST_ADDOPTS": f"{path} -o junit_family=xunit1 -p no:cacheprovider{more}",
        "PYTHONDONTWRITEBYTECODE": "1",
        REPORT: report,
    }


def specify(command: str, scripts: dict[str, str] | None = None, *, go: bool = False) -> Check:
    """How `command` is run. `scripts` are those of `package.json`, for commands that only name one.

    `go` says that the repository is a module of Go, whatever the command starts it by.
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
    """The command that `npm test` and the like stand for; empty when it is more than a simple one."""
    if not _RUNS_SCRIPT.match(command):
        return ""
    script = scripts.get(command.rpartition(" ")[2], "")
    return script if words(script) else ""


def _with_flags(command: str, scripts: dict[str, str]) -> str:
    if script := _script(command, scripts):
        flags = _flags(script)
        # Only npm wants to be told where its own arguments end; the others would hand the dashes on.
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
    """What may be put behind the command."""
    tool = tool_of(command)
    if tool is None or _ASKED.search(command) or " -- " in command:
        return ""
    if tool in _WRITES_FILE:
        return _WRITES_FILE[tool]
    return "" if tool.startswith(("go ", "cargo ")) else _SAYS.get(tool, "")
