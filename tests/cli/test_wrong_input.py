"""Wrong input ends with one sentence that says what to do, exit code 2, and no run."""

import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import Cloister

CASES = {
    "runn x": "There is no command 'runn'. Did you mean `cloister run`?",
    "zzzz": "There is no command 'zzzz'. `cloister --help` lists them.",
    "run x --repo nowhere": "There is no repository nowhere: the path does not exist.",
    "run x --repo file.txt": "file.txt is a file: give the directory of a git repository.",
    "run x --repo ftp://x/y": "is not a URL that can be fetched: use https, http, ssh, git or a path.",
    "run x --repo repo --model script:/nope": "There is no script /nope: give the file after script:.",
    "run x": "or name one with --repo PATH|URL, or make one: `git init && git add -A && git commit -m first`.",
    "run x --repo repo": "/repo has no commits yet, and a run starts from one: `git add -A && git commit -m first`.",
    "run x --repo bare": "/bare has no commits yet, and a run starts from one: push something to it first.",
    "run x --repo repo --ref nope": "/repo has no branch, tag or commit called nope.",
    "run x --repo plain": "is not a git repository: run `git init` and commit first",
    "diff nope": "There is no run 'nope': `cloister ps` lists them.",
    "log ../../etc": "There is no run '../../etc': `cloister ps` lists them.",
    "answer last a-1 maybe": "Say allow or deny: cloister answer last allow.",
    "why nofile": "Write a line as FILE:LINE",
    "policy explain frob": "an action is bash:COMMAND",
    "policy check nope.toml": "The policy nope.toml cannot be read: No such file or directory.",
    "env show --repo plain": "is not a git repository: run `git init` and commit first",
    "sandbox exec s-none ls": "There is no sandbox 's-none': `cloister sandbox ls` lists them.",
    "token rm nope": "There is no token 'nope': `cloister token list` shows them.",
    "--server nonsense ps": "Give --server an address such as https://host",
    "--server http://127.0.0.1:1 ps": "give --token-file FILE, or set CLOISTER_TOKEN.",
    "--server http://127.0.0.1:1 --token-file nope ps": "The token file nope cannot be read",
}


@pytest.mark.parametrize("line", CASES)
def test_wrong_input_is_one_sentence_with_what_to_do(line: str, cloister: Cloister, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file.txt").write_text("x")
    for name, options in (("repo", ()), ("bare", ("--bare",))):
        if f"repo {name}" in line:
            subprocess.run(["git", "init", "-q", *options, str(tmp_path / name)], check=True)
    done = cloister(*line.split())
    assert done.returncode == 2, done
    assert CASES[line] in done.stderr
    assert done.stderr.startswith("cloister: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""
    if line.startswith("run x --repo"):
        assert cloister("ps", "--json").stdout == "", "no run is stored"


def test_a_directory_inside_a_bare_repository_names_it(cloister: Cloister, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "bare")], check=True)
    done = cloister("run", "x", cwd=tmp_path / "bare" / "refs")
    assert f"{tmp_path}/bare has no commits yet" in done.stderr
