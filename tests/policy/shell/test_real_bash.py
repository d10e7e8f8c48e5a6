"""The parser finds every denied program that a real bash runs, in lines of every shape."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.policy.api import Layer, Rule, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.layers import BUILT_IN
from cloister.policy.shell.parse import read_commands
from cloister.policy.shell.programs import word_set

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


def runs(place: Path, line: str, work: Path | None = None) -> bool:
    """True if bash runs `mark` for `line`."""
    (place / "ran").unlink(missing_ok=True)
    subprocess.run(
        ["/bin/bash", "-c", line],
        cwd=work or place / "work",
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


DIFF = "git diff HEAD~1"
SPELLINGS = {
    "continued by a carriage return": "true \\\r\nmark",
    "here document that ends with a carriage return": "cat <<E\r\nx\nE\r\nmark",
    "exported in quotes": f"export 'GIT_EXTERNAL_DIFF=mark'; {DIFF}",
    "exported by declare": f"declare -x GIT_EXTERNAL_DIFF=mark; {DIFF}",
    "exported by a quoted builtin": f"'export' GIT_EXTERNAL_DIFF=mark; {DIFF}",
    "exported through command": f"command export GIT_EXTERNAL_DIFF=mark; {DIFF}",
    "exported through builtin": f"builtin typeset -x GIT_EXTERNAL_DIFF=mark; {DIFF}",
    "a default": f"set -a; : ${{GIT_EXTERNAL_DIFF:=mark}}; {DIFF}",
    "a default in quotes": f'set -a; : "${{GIT_EXTERNAL_DIFF=mark}}"; {DIFF}',
    "an indirect default": f"set -a; r=GIT_EXTERNAL_DIFF; : ${{!r:=mark}}; {DIFF}",
    "a loop variable": f"set -a; for GIT_EXTERNAL_DIFF in mark; do {DIFF}; done",
    "read": f"set -a; read GIT_EXTERNAL_DIFF <<< mark; {DIFF}",
    "read with options": f"set -a; read -r -d '' GIT_EXTERNAL_DIFF <<< mark; GIT_X=1; {DIFF}",
    "printf": f"set -a; printf -v GIT_EXTERNAL_DIFF mark; {DIFF}",
    "printf without a space": f"set -a; printf -vGIT_EXTERNAL_DIFF mark; {DIFF}",
    "a reference": f"set -a; declare -n r=GIT_EXTERNAL_DIFF; r=mark; {DIFF}",
    "keywords": f"set -k; {DIFF} GIT_EXTERNAL_DIFF=mark",
    "the table of commands": "BASH_CMDS[foo]={bin}/mark; foo",
    "tar, abbreviated": "tar cf /dev/null a --checkpoint=1 --checkpoint-act=exec=mark",
    "tar, compressed": "tar --use-comp=mark -cf x.tar a",
    "tar, bundled": "tar -cvImark -f x.tar a",
    "tar, oldest style": "tar cfI x.tar mark a",
    "tar by its variable": "TAR_OPTIONS='--checkpoint=1 --checkpoint-action=exec=mark' tar cf /dev/null a",
    "split": "split --filt=mark a",
    "sed, bundled": "sed -be 'e mark' a",
    "sed without spaces": "sed -ne1emark a",
    "sed, abbreviated": "sed --expr='1e mark' a",
    "sed by flag": "sed 's,a,mark,gpe' a",
    "sed in a block": "sed -n '1{s/a/mark/;e\n}' a",
    "sed after a text": "sed -e 'a\\' -e x -e 'e mark' a",
    "sed after the file": "sed p a -e 'e mark'",
    "sed from a stream": "sed -f /dev/stdin a <<< 'e mark'",
    "make, abbreviated": "make --eva='$(shell mark)'",
    "make, bundled": "make -ksE '$(shell mark)'",
    "make from a stream": "make -f /dev/stdin <<< '$(shell mark)'",
    "make by a variable": "CC=mark make x.o",
    "make by an argument": "make CC=mark x.o",
    "git rebase, abbreviated": "git rebase --exe mark HEAD~1",
    "git rebase, bundled": "git rebase -kx mark HEAD~1",
    "git grep, bundled": "git grep -nOmark a",
    "git difftool, bundled": "git difftool -yx mark HEAD~1",
    "git difftool": "git difftool -y --extcmd=mark HEAD~1",
    "git clone": "git clone -u mark . c",
    "git clone, bundled": "git clone -qu mark . c",
    "git fetch, abbreviated": "git fetch --upload-p mark . HEAD",
    "git ls-remote": "git ls-remote --exe=mark .",
    "git submodule": "git submodule --quiet foreach mark",
    "an option in a variable": "X=--exec=mark; git rebase $X HEAD~1",
    "an option in an array": 'x=(--exec mark); git rebase "${x[@]}" HEAD~1',
    "an option as a parameter": 'set -- --exec=mark; git rebase "$@" HEAD~1',
    "an option in a default": "git rebase ${x:---exec=mark} HEAD~1",
    "an option that is printed": "git rebase $(echo --exec=mark) HEAD~1",
    "an option that is read": "echo --exec=mark | xargs git rebase HEAD~1",
    "an option in braces": "git rebase {--exec=mark,HEAD~1}",
    "python's module in a bundle": "python3 -Bm timeit -n1 -r1 'import os; os.system(\"mark\")'",
    "perl with a module from a stream": "perl -mstrict <<< 'system(\"mark\")'",
    "gcc with its version": "gcc-12 -wrapper mark -c x.c",
    "sqlite3 with an editor behind a comment": "sqlite3 :memory: \"select Edit/**/('x','mark')\"",
    "python from a stream": "python3 /dev/stdin <<< 'import os; os.system(\"mark\")'",
    "python from a descriptor": "python3 /dev/fd/0 <<< 'import os; os.system(\"mark\")'",
    "python from a process's descriptor": "python3 /proc/self/fd/0 <<< 'import os; os.system(\"mark\")'",
    "python from a stream, spelled otherwise": "python3 /dev/../dev/./stdin <<< 'import os; os.system(\"mark\")'",
    "python's module from a stream": "python3 -m cProfile /dev/stdin <<< 'import os; os.system(\"mark\")'",
    "python after a flag": "python3 -I -c 'import os; os.system(\"mark\")'",
    "perl from a stream": "perl /dev/stdin <<< 'system(\"mark\")'",
    "perl's debugger": "PERL5DB='BEGIN{system(\"mark\")}' perl -d /dev/null",
    "perl, bundled with a number": "perl -0777ne 'system(\"mark\")' a",
    "perl's module": "perl -M'strict;system(q(mark))' /dev/null",
    "node": 'node --import \'data:text/javascript,import("node:child_process").then(c=>c.execSync("mark"))\' x.mjs',
    "choom": "choom -n 0 -- mark",
    "gcc": "gcc -wrapper mark -c x.c",
    "sqlite3": "sqlite3 :memory: '.shell mark'",
    "sqlite3, abbreviated": "sqlite3 :memory: '.sh mark'",
    "sqlite3 from a stream": "sqlite3 :memory: <<< '.shell mark'",
    "sqlite3 with an editor": "sqlite3 :memory: \"select edit('x','mark')\"",
    "ssh-agent": "ssh-agent mark",
    "cmake": "cmake -E env A=1 mark",
    "cmake's clock": "cmake -E time mark",
    "cmake in a directory": "cmake -E chdir . mark",
    "apt-get": "apt-get {apt} -o APT::Update::Pre-Invoke::=mark update",
    "apt-get without a space": "apt-get {apt} -oapt::update::pre-invoke::=mark update",
    "install": "install --strip-prog=mark -s a b",
    "zip": "zip -q -T -TT mark z.zip a",
    "jobs": "jobs -x mark",
    "subscript in pieces": "[[ 'a[$''(mark)]' -eq 0 ]]",
}
"""Lines that run `mark` in a real bash."""

PROGRAMS = word_set("make node choom gcc sqlite3 ssh-agent gcc-12 cmake apt-get zip perl python3")
"""Programs that a machine may lack."""
APT = (
    "-o Dir::State=. -o Dir::Cache=. -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null "
    "-o Dir::Etc::trusted=/dev/null"
)


@pytest.fixture(scope="module")
def repository(place: Path) -> Path:
    """A repository with two commits, a submodule and a few files."""
    work = place / "work"
    (work / "a").write_text("a\n")
    (work / "x.c").write_text("int x;\n")
    (work / "x.mjs").write_text("")
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "archives" / "partial").mkdir(parents=True)
    script = """
        set -e
        git init -q sub && git -C sub -c user.name=n -c user.email=e commit -q --allow-empty -m s
        git init -q . && git config user.name n && git config user.email e
        git -c protocol.file.allow=always -c advice.addEmbeddedRepo=false submodule --quiet add ./sub sub
        git add a && git commit -q -m one && echo b >> a && git commit -q -a -m two
    """
    subprocess.run(["/bin/sh", "-c", script], cwd=work, check=True, stderr=subprocess.DEVNULL)
    return place


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_that_runs_a_denied_program_in_bash_is_denied(
    repository: Path, tmp_path: Path, name: str
) -> None:
    line = SPELLINGS[name].replace("{bin}", str(repository / "bin")).replace("{apt}", APT)
    needed = {word for word in line.split() if word in PROGRAMS}

    assert denied(line)
    if all(shutil.which(program, path=os.defpath) for program in needed):
        copy = tmp_path / "place"
        shutil.copytree(repository, copy, symlinks=True)
        assert runs(repository, line, copy / "work"), "this spelling would not run the program"


def test_options_of_apt_that_run_something_are_found_alone() -> None:
    assert denied("apt-get -o APT::Update::Pre-Invoke::=mark update")
    assert not denied("apt-get -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 install -y curl")
