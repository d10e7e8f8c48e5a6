"""Each command does the same in this process and over HTTP: same output, same exit code, same audit."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.cli.client import forked
from tests.cli.seeds import seed

from cloister.cli.client.discover import living
from cloister.core.ids import new_owner_id
from cloister.log.sqlite.reader import AuditReader
from cloister.sandbox.liveness import Owners

Cloister = Callable[..., subprocess.CompletedProcess[str]]
Done = subprocess.CompletedProcess[str]

POLICY = """
version = 1
[[rule]]
action = "bash:git push*"
effect = "deny"
[[test]]
action = "bash:git push"
expect = "deny"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with runs, and a copy of it for a server. The test itself drives the unfinished run."""
    root = tmp_path_factory.mktemp("everywhere")
    here, owner = root / "here", new_owner_id()
    here.mkdir()
    seed(here, "the first", finished=True)
    seed(here, "the second", ask="a-1", owner=owner)
    seed(here, "the third", finished=True)
    (here / "config.toml").write_text('port = 0\n[[policy]]\naction = "model:anthropic:*"\neffect = "deny"\n')
    shutil.copytree(here, root / "there")
    (root / "policy.toml").write_text(POLICY)
    (root / "script.toml").write_text('[[reply]]\nsay = "Hi."\n')
    with Owners(here / "owners").hold(owner), Owners(root / "there" / "owners").hold(owner):
        yield root


def environment() -> dict[str, str]:
    ours = ("CLOISTER_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "NO_COLOR", "FORCE_COLOR", "SUDO_USER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONWARNINGS": "error", "USER": "ann", "ANTHROPIC_API_KEY": "sk-not-used"}


def run(home: Path, *args: str) -> Done:
    return forked.run(args, cwd=home, env=environment())


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    """The server of the copy, reached by its address and token from another data directory."""
    there = str(home / "there")
    started = run(home, "--data-dir", there, "serve", "--background")
    assert started.returncode == 0, started.stderr
    found = living(home / "there")
    assert found is not None
    yield found.url
    assert run(home, "--data-dir", there, "serve", "--stop").returncode == 0


@pytest.fixture
def both(home: Path, url: str) -> Callable[..., tuple[Done, Done]]:
    def run_both(*args: str) -> tuple[Done, Done]:
        token = str(home / "there" / "token")
        elsewhere = ("--data-dir", str(home / "empty"), "--server", url, "--token-file", token)
        here = forked.start(("--data-dir", str(home / "here"), *args), cwd=home, env=environment())
        there = forked.start((*elsewhere, *args), cwd=home, env=environment())
        return here.finish(), there.finish()

    return run_both


def plain(done: Done, home: Path) -> tuple[int, str, str]:
    """What a command said, without what differs by nature: secrets, keys, times and the data directory."""

    def cleaned(text: str) -> str:
        text = text.replace(str(home / "there"), "DATA").replace(str(home / "here"), "DATA")
        text = re.sub(r"(?<![\w-])[\w-]{43}(?![\w-])", "SECRET", text)
        text = re.sub(r"\b[0-9a-f]{64}\b", "HASH", text)
        text = re.sub(r"\b\d{9,10}\.\d+\b", "TIME", text)
        # A server also enters logins and calls.
        text = re.sub(r"(OK: |up to entry )\d+", r"\1N", text)
        text = re.sub(r"\b\d+ s +(?=\d|  )", "AGE ", text)  # of `ps`, which the second command prints later
        return re.sub(r"\d+ (s|min) ago", "AGO", text)

    return done.returncode, cleaned(done.stdout), cleaned(done.stderr)


READING = [
    ["ps"],
    ["ps", "--json"],
    ["log", "last"],
    ["log", "last", "--json", "--after", "1"],
    ["log", "r-nope"],
    ["log", "r-"],
    ["log", "last", "--attempt", "7"],
    ["watch", "last"],
    ["watch", "last", "--after", "2", "--json"],
    ["diff", "last"],
    ["diff", "last", "--attempt", "3"],
    ["apply", "last"],
    ["tree", "last"],
    ["tree", "last", "--json"],
    ["fork", "last", "--at", "1"],
    ["rewind", "last", "--to", "1"],
    ["compare", "last", "last"],
    ["compare", "last", "r-nope"],
    ["receipt", "last"],
    ["budget"],
    ["budget", "last", "--json"],
    ["audit", "show", "last"],
    ["audit", "export", "--run", "last"],
    ["audit", "export", "--format", "otel"],
    ["audit", "verify", "--key", "nonsense"],
    ["token", "list"],
    ["webhook", "ls"],
    ["gc", "--dry-run"],
    ["webhook", "dead"],
    ["webhook", "add", "x", "https://127.0.0.1/"],
    ["webhook", "add", "x", "mailto:ann@example.org"],
    ["webhook", "rm", "missing"],
    ["webhook", "test", "missing"],
    ["webhook", "replay", "--all"],
    ["token", "rm", "nobody-has-it"],
    ["token", "add", "NOT A NAME"],
    ["template", "ls"],
    ["template", "show", "default"],
    ["template", "show", "missing"],
    ["template", "log", "missing"],
    ["template", "rm", "missing"],
    ["template", "build", "missing"],
    ["snapshot", "take", "s-nope"],
    ["sandbox", "ls"],
    ["sandbox", "ls", "--json"],
    ["sandbox", "rm", "s-nope"],
    ["sandbox", "exec", "s-nope", "--", "true"],
    ["sandbox", "exec", "s-nope", "--background", "--", "true"],
    ["sandbox", "commands", "nope"],
    ["sandbox", "attach", "nope", "c-nope"],
    ["sandbox", "kill", "nope", "c-nope"],
    ["sandbox", "cp", "s-nope:a", "."],
    ["sandbox", "files", "s-nope"],
    ["sandbox", "port", "s-nope", "80"],
    ["sandbox", "fork", "s-nope"],
    ["model", "list"],
    ["model", "rm", "missing"],
    ["model", "fetch", "missing"],
    ["policy", "show"],
    ["policy", "show", "--effective", "--json"],
    ["policy", "explain", "bash:git push"],
    ["policy", "explain", "nonsense"],
    ["policy", "test", "policy.toml"],
    ["policy", "check", "policy.toml"],
    ["run", "x", "--repo", ".", "--template", "missing"],
    ["run", "x", "--repo", ".", "--model", "unknown:model"],
]


@pytest.mark.parametrize("argv", READING, ids=" ".join)
def test_a_command_prints_the_same_in_process_and_over_http(
    both: Callable[..., tuple[Done, Done]], home: Path, argv: list[str]
) -> None:
    here, there = both(*argv)
    assert plain(here, home) == plain(there, home)
    assert "Traceback" not in here.stderr
    assert not (home / "empty").exists(), "a remote command leaves the local data directory alone"


CHANGING = [
    (["say", "{open}", "use integers"], 0),
    (["say", "{open}", ""], 2),
    (["answer", "{open}", "a-2", "allow"], 2),
    (["answer", "{open}", "a-1", "deny"], 0),
    (["answer", "{open}", "a-1", "deny"], 2),
    (["model", "use", "{open}", "anthropic:claude-sonnet-4-5"], 2),
    (["model", "use", "{open}", "script:{home}/script.toml"], 0),
    (["stop", "{open}"], 0),
    (["stop", "{first}"], 2),
    (["rm", "{open}"], 2),
    (["rm", "{first}"], 0),
    (["say", "{first}", "too late"], 2),
    (["token", "add", "ci", "--role", "operator"], 0),
    (["token", "add", "ci"], 2),
    (["token", "list", "--json"], 0),
    (["token", "rm", "ci"], 0),
    (["template", "rm", "default"], 0),
    (["audit", "key", "--rotate"], 0),
    (["audit", "verify"], 0),
]
"""In this order: each acts on what the ones before have left."""


def kinds(data_dir: Path) -> list[tuple[str, str]]:
    """The audit entries that verbs write; a server adds its own about logins and calls."""
    transport = ("ApiCall", "Login", "LoginRefused")
    with AuditReader(data_dir / "cloister.db") as audit:
        return [(entry.kind, entry.who) for entry in audit.page(0, 10_000) if entry.kind not in transport]


def test_commands_that_change_something_do_the_same_and_leave_the_same_audit(
    both: Callable[..., tuple[Done, Done]], home: Path
) -> None:
    listed = [json.loads(line) for line in both("ps", "--json")[0].stdout.splitlines()]
    names = {"home": str(home), "open": listed[1]["id"], "first": listed[2]["id"]}
    for argv, code in CHANGING:
        here, there = both(*(word.format(**names) for word in argv))
        assert here.returncode == code, (argv, here.stdout, here.stderr)
        assert plain(here, home) == plain(there, home), argv
    written = kinds(home / "here")
    assert written == kinds(home / "there")
    for kind in ("TokenAdded", "TokenRemoved", "RunRemoved", "TemplateRemoved"):
        assert (kind, "ann") in written


def test_a_command_about_this_machine_rejects_a_server(home: Path, url: str) -> None:
    for argv in (["serve", "--status"], ["doctor"], ["model", "serve"]):
        done = run(home, "--server", url, *argv)
        command = " ".join(word for word in argv if not word.startswith("--"))
        assert (done.returncode, done.stderr) == (
            2,
            f"cloister: `cloister {command}` concerns this machine only: use it without --server.\n",
        )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--server", "http://127.0.0.1:1"], "No token for http://127.0.0.1:1"),
        (["--server", "http://host.example", "--token-file", "t"], "over plain HTTP: use https"),
        (["--server", "host.example", "--token-file", "t"], "Give --server an address"),
        (["--server", "http://127.0.0.1:1", "--token-file", "none"], "The token file none cannot be read"),
        (["--server", "http://127.0.0.1:1", "--token-file", "t"], "The server at http://127.0.0.1:1 cannot"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_sentence(tmp_path: Path, more: list[str], said: str) -> None:
    (tmp_path / "t").write_text("secret\n")
    done = run(tmp_path, "--data-dir", str(tmp_path / "data"), *more, "ps")
    assert done.returncode in (2, 3)
    assert done.stderr.startswith("cloister: ")
    assert said in done.stderr
    assert "secret" not in done.stderr


def test_a_token_of_a_lower_role_may_look_and_not_act(home: Path, url: str) -> None:
    made = run(home, "--data-dir", str(home / "there"), "token", "add", "guest")
    (home / "guest").write_text(made.stdout)
    named = ("--server", url, "--token-file", str(home / "guest"))
    assert run(home, *named, "ps").returncode == 0
    refused = run(home, *named, "stop", "last")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "guest is viewer" in refused.stderr


def test_the_environment_names_a_server_as_the_options_do(home: Path, url: str) -> None:
    token = (home / "there" / "token").read_text().strip()
    done = subprocess.run(
        [sys.executable, "-m", "cloister", "ps"],
        env=environment() | {"CLOISTER_SERVER": url, "CLOISTER_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "the third" in done.stdout, done.stderr


class Elsewhere(BaseHTTPRequestHandler):
    """A server that says it is on another machine."""

    def do_GET(self) -> None:
        body = b'{"id": "another"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_local_path_is_rejected_for_a_server_on_another_machine(home: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        (home / "any").write_text("token")
        named = ("--server", url, "--token-file", str(home / "any"))
        done = [
            run(home, *named, "run", "x", "--repo", "."),
            run(home, *named, "template", "build", "x", "--repository", "."),
        ]
        server.shutdown()
        thread.join()
    for each in done:
        assert (each.returncode, each.stdout) == (2, "")
        assert each.stderr == (
            f"cloister: {home} is a path on this machine, and the server at {url} is on another one: "
            "give a URL that the server can reach.\n"
        )
