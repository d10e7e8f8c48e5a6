"""The parser finds every denied program that a real bash runs, in lines of every shape."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.agent.shell.parse import read_commands
from cloister.policy.api import Layer, Rule, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.layers import BUILT_IN

NO_MARK = Decider(
    (BUILT_IN, Layer("host", (Rule("tool:bash:mark", "deny"), Rule("tool:bash:mark *", "deny"))))
)

NAMES = st.sampled_from(
    [
        "mark",
        "'mark'",
        "ma'r'k",
        "m\\ark",
        '"ma"rk',
        "$'\\x6dark'",
        "mar${z}k",
        "$(echo mark)",
        "${y:-mark}",
        "$y",
    ]
)
ARGUMENTS = st.sampled_from(["", " x", " $HOME", " 'a b'", " *", " $(echo x)"])
WRAPPERS = st.sampled_from(
    [
        "",
        "env ",
        "env A=1 ",
        "timeout 5 ",
        "timeout -s KILL 5 ",
        "nice -n 5 ",
        "nohup ",
        "command ",
        "exec ",
        "B=1 ",
        "stdbuf -oL ",
        "setsid -w ",
        "xargs </dev/null ",
        "echo 1 | xargs -n 1 ",
        "time ",
        "! ",
        "env -i PATH=$PATH ",
    ]
)


def joined(wrapper: str, name: str, argument: str) -> str:
    return wrapper + name + argument


SIMPLE: st.SearchStrategy[str] = st.builds(joined, WRAPPERS, NAMES, ARGUMENTS)
AROUND: list[Callable[[str], str]] = [
    lambda line: f"sh -c {shlex.quote(line)}",
    lambda line: f"bash -ec {shlex.quote(line)}",
    lambda line: f"eval {shlex.quote(line)}",
    lambda line: f"echo {shlex.quote(line)} | sh",
    lambda line: f"bash <<< {shlex.quote(line)}",
    lambda line: f"({line})",
    lambda line: f"{{ {line}; }}",
    lambda line: f"true && {line}",
    lambda line: f"false || {line}",
    lambda line: f"{line} | cat",
    lambda line: f"echo $({line})",
    lambda line: f'echo "a $({line}) b"',
    lambda line: f"x=$({line})",
    lambda line: f"cat <({line})",
    lambda line: f"if {line}; then :; fi",
    lambda line: f"for i in 1; do {line}; done",
    lambda line: f"case a in a) {line};; esac",
    lambda line: f"f() {{ {line}; }}; f",
    lambda line: f"find . -maxdepth 0 -exec sh -c {shlex.quote(line)} \\;",
    lambda line: f"trap {shlex.quote(line)} EXIT",
    lambda line: f"cat <<E\n$({line})\nE",
    lambda line: f"y=mark; {line}",
    lambda line: f"echo {shlex.quote(line)}",
    lambda line: f": # {line}",
    lambda line: f"cat <<'E'\n{line}\nE",
    lambda line: f"[[ -n $({line}) ]]",
    lambda line: f"echo ${{q:-$({line})}}",
]


def nested(line: str, around: list[int]) -> str:
    for number in around:
        line = AROUND[number](line)
    return line


LINES = st.builds(nested, SIMPLE, st.lists(st.integers(0, len(AROUND) - 1), max_size=4))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the program `mark`, which creates a file when it runs."""
    at = tmp_path_factory.mktemp("bash")
    program = at / "bin" / "mark"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n: > {at}/ran\n")
    program.chmod(0o755)
    (at / "work").mkdir()
    return at


def runs(place: Path, line: str) -> bool:
    """True if bash runs `mark` for `line`."""
    (place / "ran").unlink(missing_ok=True)
    subprocess.run(
        ["/bin/bash", "-c", line],
        cwd=place / "work",
        env={"PATH": f"{place}/bin:{os.defpath}", "HOME": str(place / "work")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    return (place / "ran").exists()


def denied(line: str) -> bool:
    action = ToolAction("bash", line, anyio.run(read_commands, line))
    return NO_MARK.decide(action).effect == "deny"


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LINES)
def test_denied_program_that_bash_runs_is_found_by_the_parser(place: Path, line: str) -> None:
    if not denied(line):
        assert not runs(place, line)


def test_trial_detects_whether_the_program_ran(place: Path) -> None:
    assert runs(place, "sh -c 'ma\"r\"k x'")
    assert not runs(place, "echo mark")
    assert not denied("echo mark")
