"""Commands that need no server, no root and no sandbox, as real processes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import typer.main
from tests.cli.seeds import DEAD, queue, seed

from cloister.cli.entry import app
from cloister.cli.quick import GROUPS
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    Event,
    ModelChosen,
    PhaseEnded,
    PhaseStarted,
    PromptReceived,
    RunFinished,
    StopRequested,
)
from cloister.core.ids import RunId, new_owner_id
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.reader import LogReader
from cloister.sandbox.liveness import Owners

Cloister = Callable[..., subprocess.CompletedProcess[str]]


def last_event(data_dir: Path, run: RunId) -> Event:
    with LogReader(data_dir / "cloister.db") as log:
        return log.events(run)[-1]


def refused(done: subprocess.CompletedProcess[str], code: int, sentence: str) -> None:
    """One sentence on stderr, nothing on stdout, and the exit code of its kind."""
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"cloister: {sentence}\n")


def test_the_version_is_printed(cloister: Cloister) -> None:
    done = cloister("--version")
    assert (done.returncode, done.stdout) == (0, "cloister 0.1.0\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["ps", "--limit", "0"],
        ["ps", "--bogus"],
        ["run", "x", "--n", "y"],
        ["serve", "--port", "x"],
    ],
)
def test_usage_errors_end_with_two_and_no_traceback(cloister: Cloister, argv: list[str]) -> None:
    done = cloister(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: cloister")
    assert "Traceback" not in done.stderr


def test_env_show_explains_each_line_of_the_plan(cloister: Cloister, tmp_path: Path) -> None:
    files = {
        "package.json": '{"engines": {"node": ">=20"}, "scripts": {"test": "x"}, "dependencies": {"pg": "8"}}',
        "package-lock.json": "{}",
        "compose.yaml": "services: {db: {image: 'postgres:15'}, cache: {image: memcached}, queue: {image: nats}}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    done = cloister("env", "show")
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "Toolchains:\n  node 22, from the Python registry, because >=20 in engines of package.json\n",
        "Package managers:\n  npm, from the Python registry, because package-lock.json\n",
        "Open during set-up only:\n  @pypi because Node 22: >=20 in engines of package.json\n  @npm because package.json\n",
        "Set-up:\n  3 steps install the tools above (--json lists them)\n  npm ci --no-audit --no-fund # package-lock.json\n",
        "Services:\n  postgresql 15 because postgres in compose.yaml\nChecks:\n  npm test # the repository's npm suite\n",
        "Made from:\n  compose.yaml\n  package-lock.json\n",
        "  nats in compose.yaml is not started: if checks need it, add services = [",
        '  memcached in compose.yaml is not started: no manifest names a client; services = ["memcached"] starts it\n',
    ):
        assert line in done.stdout, done.stdout
    assert json.loads(cloister("env", "show", "--json").stdout)["services"][0]["name"] == "postgresql"


def test_an_empty_data_directory_has_no_runs_and_stays_empty(cloister: Cloister, data_dir: Path) -> None:
    done = cloister("ps")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No runs yet.")
    assert cloister("ps", "--json").stdout == ""
    assert not data_dir.exists()


def test_runs_are_listed_newest_first_with_what_became_of_them(cloister: Cloister, data_dir: Path) -> None:
    first, second = seed(data_dir, "the first", finished=True), seed(data_dir, "the \x1b[2Jsecond")
    done = cloister("ps")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["RUN", "STATE", "AGE", "TOOK", "COST", "USER", "MODEL", "REPOSITORY", "PROMPT"]
    assert [row[:2] + row[-2:] for row in rows[1:]] == [
        [second, "interrupted", "the", "second"],
        [first, "proven", "the", "first"],
    ]
    assert [json.loads(line)["id"] for line in cloister("ps", "--json").stdout.splitlines()] == [
        second,
        first,
    ]
    assert len(cloister("ps", "--json", "--limit", "1").stdout.splitlines()) == 1


def test_a_run_that_waits_for_a_person_is_listed_as_asks_you_until_it_is_answered(
    cloister: Cloister, data_dir: Path
) -> None:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        run, other = seed(data_dir, ask="a-1", owner=owner), seed(data_dir, "no question")
        listed = cloister("ps", "--state", "asks").stdout.splitlines()
        assert [line.split()[:3] for line in listed[1:]] == [[run, "asks", "you"]]
        assert json.loads(cloister("ps", "--json", "--state", "asks").stdout)["asks"] == 1
        assert cloister("answer", "last", "allow").stderr.endswith("it waits for no answer.\n")
        assert cloister("answer", run, "deny").stdout == f"Answered a-1 of {run}: deny.\n"
        assert cloister("ps", "--state", "asks").stdout == "No such runs.\n"
        listed = cloister(
            "ps", "--state", "interrupted", "--user", "ann", "--repo", "/repo"
        ).stdout.splitlines()
        assert [line.split()[0] for line in listed[1:]] == [other]
        assert cloister("ps", "--user", "bob").stdout == "No such runs.\n"


def test_a_listed_run_says_what_it_does_how_long_that_usually_takes_and_how_many_are_before_it(
    cloister: Cloister, data_dir: Path
) -> None:
    for took in (100.0, 125.0, 900.0):
        seed(data_dir, more=[PhaseEnded("work", took), RunFinished("proven", "Done.", 1)])
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        seed(data_dir, "at work", owner=owner, more=[PhaseStarted("work")])
        lines = cloister("ps").stdout.splitlines()
        place = next(number for number, line in enumerate(lines) if line.endswith("at work"))
        assert re.fullmatch(r" +work for \d+ s, usually 2 min 05 s", lines[place + 1])
    for prompt in ("first", "second", "third"):
        queue(data_dir, prompt)
    listed = cloister("ps").stdout.splitlines()
    waiting = [line.strip() for line in listed if line.endswith("before it")]
    assert waiting == ["2 runs are before it", "1 run is before it"]


def test_old_runs_are_removed_together_and_once(cloister: Cloister, data_dir: Path) -> None:
    first, second, going = seed(data_dir, finished=True), seed(data_dir, finished=True), seed(data_dir)
    assert cloister("rm", "--older-than", "1h").stdout == "No finished run with files is that old.\n"
    assert {line.split()[4] for line in cloister("rm", "--older-than", "0d").stdout.splitlines()} == {
        f"{first}.",
        f"{second}.",
    }
    assert cloister("rm", "--older-than", "0d").stdout == "No finished run with files is that old.\n"
    assert "is not finished" in cloister("rm", first, going).stderr
    assert "12h, 30d or 8w" in cloister("rm", "--older-than", "soon").stderr
    assert "Name the runs" in cloister("rm").stderr


def test_an_answer_names_its_question_only_if_several_are_open(cloister: Cloister, data_dir: Path) -> None:
    run = seed(data_dir, ask="a-1")

    async def ask_again() -> None:
        async with open_backbone(data_dir / "cloister.db", owner_lives=lambda _: False) as backbone:
            fence = await backbone.claim(DEAD, run)
            assert fence is not None
            await backbone.append(fence, [AskRaised("a-2", 1, "bash: y", "y", 4e9)])

    anyio.run(ask_again)
    refused(
        cloister("answer", run, "allow"),
        2,
        f"Run {run} asks several questions, so name one: a-1 (bash: x); a-2 (bash: y).",
    )
    refused(cloister("answer", run, "a-1", "perhaps"), 2, f"Say allow or deny: cloister answer {run} allow.")
    refused(
        cloister("answer", run, "perhaps"),
        2,
        f"The model of run {run} asks nothing. Answer a rule's question with allow or deny.",
    )
    assert cloister("answer", run, "a-2", "allow").returncode == 0
    assert cloister("answer", run, "allow").stdout == f"Answered a-1 of {run}: allow.\n"


def test_the_help_is_one_screen_with_every_command_in_its_group(cloister: Cloister) -> None:
    shown = cloister("--help").stdout
    lines = shown.splitlines()
    assert "\x1b" not in shown
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    there = set(getattr(typer.main.get_command(app), "commands"))  # noqa: B009  (its class is not public)
    assert there <= {name for group in GROUPS.values() for name in group}
    for name in there:
        assert f"  {name} " in shown


@pytest.mark.parametrize("group", ["sandbox", "template", "policy", "audit", "model", "token", "snapshot"])
def test_the_commands_of_a_group_are_described_in_whole_sentences(cloister: Cloister, group: str) -> None:
    assert "..." not in cloister(group, "--help", COLUMNS="80").stdout.partition("Commands:")[2]


def test_without_arguments_it_says_what_a_run_would_do_here(cloister: Cloister, tmp_path: Path) -> None:
    assert cloister(cwd=Path("/")).stdout == cloister("--help").stdout
    repo = tmp_path / "project"
    (repo / "deep").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "-b", "trunk", repo], check=True)
    assert "First commit something" in cloister(cwd=repo / "deep").stdout
    (repo / "deep" / "a.txt").write_text("a", encoding="utf-8")
    subprocess.run(["git", "-C", repo, "add", "."], check=True)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", repo, *name, "commit", "-qm", "x"], check=True)
    (repo / "b.txt").write_text("b", encoding="utf-8")
    done = cloister(cwd=repo / "deep")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{repo} (trunk at ")
    assert "1 uncommitted file is not part" in done.stdout
    assert "model   none (set" in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80


def test_doctor_fails_and_says_why_where_no_run_can_start(cloister: Cloister, tmp_path: Path) -> None:
    done = cloister("doctor", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (3, "")
    assert "MISSING  git " in done.stdout and "fix: apt-get install git" in done.stdout
    assert done.stdout.endswith("A run cannot start yet: see MISSING above.\n")
    assert json.loads(cloister("doctor", "--json", PATH=str(tmp_path)).stdout)["ready"] is False


def test_the_repository_is_the_one_around_the_current_directory(cloister: Cloister, tmp_path: Path) -> None:
    refused(
        cloister("run", "fix it", cwd=tmp_path),
        2,
        f"{tmp_path} is not inside a git repository: change to one, or name one with --repo PATH|URL, "
        "or make one: `git init && git add -A && git commit -m first`.",
    )
    subprocess.run(["git", "init", "-q", tmp_path / "project"], check=True)
    # It finds the repository, and only then the model.
    assert "nobody" in cloister("run", "fix it", "--model", "nobody:knows", cwd=tmp_path / "project").stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurent_runs = 3", "At $: unknown field 'concurent_runs'; did you mean 'concurrent_runs'?"),
        ('store = "zfs"', "At $.store: the value is not one of auto, btrfs, btrfs-loop, overlay, reflink."),
        ("[budget]\ndolars = 1", "At $.budget: unknown field 'dolars'; did you mean 'dollars'?"),
    ],
)
def test_a_wrong_setting_is_named_with_the_right_one(
    cloister: Cloister, data_dir: Path, text: str, told: str
) -> None:
    data_dir.mkdir()
    (data_dir / "config.toml").write_text(text, encoding="utf-8")
    assert told in cloister("ps").stderr


def test_the_global_option_chooses_the_data_directory(cloister: Cloister, tmp_path: Path) -> None:
    run = seed(tmp_path / "other")
    assert run in cloister("--data-dir", str(tmp_path / "other"), "ps").stdout


def test_a_run_is_named_by_its_id_a_beginning_of_it_or_last(cloister: Cloister, data_dir: Path) -> None:
    seed(data_dir)
    run = seed(data_dir)
    whole = cloister("log", run).stdout
    assert [line.split()[3] for line in whole.splitlines() if line[:5].strip()] == [
        "RunAdmitted",
        "RunClaimed",
    ]
    assert [cloister("log", name).stdout for name in (run[:8], run[2:8], "last")] == [whole] * 3


def test_the_log_is_json_lines_on_request_and_starts_where_one_says(
    cloister: Cloister, data_dir: Path
) -> None:
    run = seed(data_dir, finished=True)
    events = [json.loads(line) for line in cloister("log", run, "--json", "--after", "1").stdout.splitlines()]
    assert [(event["seq"], event["body"]["type"]) for event in events] == [
        (2, "RunClaimed"),
        (3, "RunFinished"),
    ]


def test_unknown_and_ambiguous_runs_are_refused(cloister: Cloister, data_dir: Path) -> None:
    refused(cloister("log", "r-nope"), 2, "There is no run 'r-nope': `cloister ps` lists them.")
    seed(data_dir)
    seed(data_dir)
    done = cloister("log", "r-")
    assert done.returncode == 2
    assert "is the start of several runs" in done.stderr


def test_say_stop_and_answer_go_into_the_log(cloister: Cloister, data_dir: Path) -> None:
    run = seed(data_dir, ask="a-1")
    assert cloister("say", run, "use integers", SUDO_USER="ann").returncode == 0
    assert last_event(data_dir, run).body == PromptReceived("use integers", "ann")
    assert cloister("answer", "last", "a-1", "allow", SUDO_USER="ann").returncode == 0
    assert last_event(data_dir, run).body == AskAnswered("a-1", "allow", "ann")
    script = data_dir / "other.toml"
    script.write_text('[[reply]]\nsay = "Hi."\n', encoding="utf-8")
    assert cloister("model", "use", run, f"script:{script}", SUDO_USER="ann").returncode == 0
    assert last_event(data_dir, run).body == ModelChosen(f"script:{script}", "ann")
    assert "needs a key" in cloister("model", "use", run, "anthropic").stderr
    assert cloister("stop", run, SUDO_USER="ann").returncode == 0
    assert last_event(data_dir, run).body == StopRequested("ann")


def test_bytes_that_are_no_text_are_replaced_in_what_is_said(
    plain_env: dict[str, str], data_dir: Path
) -> None:
    run = seed(data_dir)
    argv = [os.fsencode(sys.executable), b"-m", b"cloister", b"say", run.encode(), b"caf\xe9"]
    subprocess.run(argv, env=plain_env, check=True, stdout=subprocess.DEVNULL, timeout=60)
    body = last_event(data_dir, run).body
    assert isinstance(body, PromptReceived)
    assert body.text == "caf\N{REPLACEMENT CHARACTER}"


def test_what_cannot_be_said_or_answered_is_refused(cloister: Cloister, data_dir: Path) -> None:
    run = seed(data_dir, ask="a-1")
    refused(cloister("say", run, "  "), 2, "The message is empty: say what the run should do.")
    refused(cloister("answer", run, "a-2", "deny"), 2, f"Run {run} never asked 'a-2': it waits for a-1.")
    cloister("answer", run, "a-1", "deny")
    refused(cloister("answer", run, "a-1", "allow"), 2, "a-1 is answered already: deny.")
    ended = seed(data_dir, finished=True)
    done = cloister("stop", ended)
    assert (done.returncode, done.stdout) == (2, "")


def test_watching_a_finished_run_shows_it_and_ends_with_its_outcome(
    cloister: Cloister, data_dir: Path
) -> None:
    run = seed(data_dir, finished=True)
    done = cloister("watch", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:4] == [f"● {run}  fix it", "· repository /repo", "", "✓ proven  Done."]
    assert "\x1b" not in done.stdout
    later = cloister("watch", run, "--after", "2", "--json")
    assert [json.loads(line)["seq"] for line in later.stdout.splitlines()] == [3]
    assert cloister("watch", run, "--after", "3").returncode == 0


def test_watching_a_run_without_an_owner_says_so(cloister: Cloister, data_dir: Path) -> None:
    run = seed(data_dir)
    done = cloister("watch", run)
    assert done.returncode == 3
    assert done.stderr == (
        f"cloister: No process is driving {run}. Start `cloister serve --background` to resume it.\n"
    )


def test_a_run_that_changed_nothing_has_an_empty_diff_and_nothing_to_apply(
    cloister: Cloister, data_dir: Path, tmp_path: Path
) -> None:
    run = seed(data_dir, finished=True)
    shown = cloister("diff", run)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", f"{run} has changed nothing.\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    refused(
        cloister("apply", run, "--repo", str(tmp_path)),
        2,
        f"Run {run} has changed nothing yet: there is nothing to apply.",
    )


def test_checkout_is_refused_on_a_dirty_tree_before_anything_is_touched(
    cloister: Cloister, data_dir: Path, tmp_path: Path
) -> None:
    run = seed(data_dir, finished=True)
    repo = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    (repo / "mine.txt").write_text("not committed")
    refused(
        cloister("apply", run, "--repo", str(repo), "--checkout"),
        2,
        f"{repo} has uncommitted changes: commit or stash them, or leave out --checkout.",
    )
    assert sorted(path.name for path in repo.iterdir()) == [".git", "mine.txt"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["run", " ", "--repo", "."], "The prompt is empty: say what should be done."),
        (["run", "x", "--repo", "nowhere"], "There is no repository nowhere: the path does not exist."),
        (["run", "x", "--repo", ".", "--n", "99"], "Attempts must be between 1 and 8, not 99."),
        (["run", "x", "--repo", ".", "--check", ""], "A check is empty: give the command to run."),
        (
            ["run", "x", "--repo", ".", "--steps", "0"],
            "A budget needs at least one step, one token and some time, at most 604,800 seconds.",
        ),
        (
            ["run", "x", "--repo", ".", "--model", "script:none.toml"],
            "There is no script none.toml: give the file after script:.",
        ),
        (["serve", "--status", "--stop"], "Give one of --background, --status and --stop."),
        (
            ["sandbox", "exec", "s-1", "--", "ls", "-l"],
            "There is no sandbox 's-1': `cloister sandbox ls` lists them.",
        ),
        (["sandbox", "rm", "s-1"], "There is no sandbox 's-1': `cloister sandbox ls` lists them."),
        (
            ["sandbox", "shell", "s-1"],
            "There is no terminal here: use `cloister sandbox exec ID -- PROGRAM` instead.",
        ),
    ],
)
def test_user_mistakes_are_one_sentence_and_exit_two(
    cloister: Cloister, data_dir: Path, argv: list[str], sentence: str
) -> None:
    refused(cloister(*argv), 2, sentence)
    assert not data_dir.exists()


def test_a_prompt_beyond_the_limit_is_refused_whole(plain_env: dict[str, str], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "cloister", "run", "-", "--repo", "."]
    done = subprocess.run(
        argv,
        input="x" * 10_000_000,
        text=True,
        env=plain_env,
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "cloister: The prompt is 262,145 bytes and the limit is 262,144: "
        "put the long text into a file of the repository and refer to it.\n"
    )


def test_a_corrupt_configuration_and_a_corrupt_log_are_named(cloister: Cloister, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "config.toml").write_text("port = 'many'\n")
    done = cloister("ps")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cloister: {data_dir}/config.toml has a wrong setting:")
    (data_dir / "config.toml").unlink()
    (data_dir / "cloister.db").write_bytes(b"no database at all" * 100)
    done = cloister("ps")
    assert (done.returncode, done.stdout) == (3, "")
    assert "is damaged or is not a log of Cloister" in done.stderr


def test_a_closed_pipe_ends_a_command_quietly(plain_env: dict[str, str], data_dir: Path) -> None:
    run = seed(data_dir, "x" * 200_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "cloister", "log", run, "--json"],
        env=plain_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait(timeout=60) == 1


def test_local_models_are_listed_verified_and_removed(cloister: Cloister, data_dir: Path) -> None:
    listed = [json.loads(line) for line in cloister("model", "list", "--json").stdout.splitlines()]
    assert [(row["name"], row["here"]) for row in listed] == [
        ("qwen2.5-coder-1.5b", False),
        ("qwen2.5-coder-0.5b", False),
    ]
    place = Path(listed[1]["path"])
    place.parent.mkdir(parents=True)
    place.write_bytes(b"not a model")
    assert "yes" in cloister("model", "list").stdout
    done = cloister("model", "fetch", "qwen2.5-coder-0.5b")
    assert done.returncode == 2
    assert "has 11 bytes and the official file 491,400,064" in done.stderr
    assert cloister("model", "rm", "qwen2.5-coder-0.5b").returncode == 0
    assert not place.exists()
    refused(
        cloister("model", "rm", "gpt"),
        2,
        "There is no local model 'gpt': use qwen2.5-coder-1.5b, qwen2.5-coder-0.5b.",
    )


def test_a_hub_that_cannot_be_reached_is_said_with_what_to_do(cloister: Cloister, data_dir: Path) -> None:
    data_dir.mkdir(exist_ok=True)
    (data_dir / "config.toml").write_text('model_hub = "http://127.0.0.1:9"\n', encoding="utf-8")
    done = cloister("model", "fetch")
    assert done.returncode == 4
    assert "name your own file in the settings (local_models)" in done.stderr
    assert "pip" not in done.stderr, "weights come from the hub or from the user"
