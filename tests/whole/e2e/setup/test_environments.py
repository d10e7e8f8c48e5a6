"""Ordinary repositories go green with nothing but `--repo`: their dependencies are installed once, and reused."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import CACHE
from tests.whole.e2e.setup.ordinary import NPM, SINGLE, WORKSPACES, Sample, clean, project, registry

PROMPT = "The test suite fails. Find the cause and fix it."
APP = "import inflection\n\ndef total(values):\n    assert inflection\n    return sum(values) + 1\n"
TEST = "from app import total\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
FIX = 'calls = [{ tool = "edit", path = "app.py", old = "sum(values) + 1", new = "sum(values)" }]\n'
DONE = '[[reply]]\nsay = "Done."\ncalls = [{ tool = "finish", summary = "Repaired" }]\n'


def bodies(cloister: Any, kind: str) -> list[dict[str, Any]]:
    return [event["body"] for event in cloister.events() if event["body"]["type"] == kind]


@pytest.fixture
def needing(cloister: Any) -> Iterator[Path]:
    registry("pypi")
    repo = project("needs", **{"requirements.txt": "inflection\n", "app.py": APP, "test_app.py": TEST})
    yield repo
    clean(repo)


def test_requirements_go_green_and_the_registry_is_closed_during_the_run(
    cloister: Any, needing: Path
) -> None:
    script = cloister.script(
        '[[reply]]\nsay = "I try a package."\n'
        'calls = [{ tool = "bash", command = "pip install --retries 0 attrs" }]\n'
        f'[[reply]]\nexpect = "connect:@pypi"\nsay = "Then not."\n{FIX}{DONE}'
    )
    done = cloister("run", PROMPT, "--repo", str(needing), "--model", script, seconds=900)
    assert ("✓ proven" in done.stdout and "python 3.11" in done.stdout) or "reused" in done.stdout
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert environment["problem"] == "" and environment["template"].startswith("env-")
    refused = [body for body in bodies(cloister, "ConnectionDecided") if body["effect"] == "deny"]
    assert refused, "the door is closed again"
    told = [body["text"] for body in bodies(cloister, "ToolReturned") if body["tool"] == "bash"]
    assert "pip could not reach" in told[0] and "--rule 'allow connect:@pypi'" in told[0]
    assert "add the package there and call finish" in told[0]
    allowed = [body for body in bodies(cloister, "ConnectionDecided") if body["effect"] == "allow"]
    assert all("set-up" in body["rule"] for body in allowed)
    if environment["built"]:
        receipt = cloister.json("receipt", "last")
        assert any("set-up" in one["rule"] for one in receipt["connections"])
    cloister(
        "run",
        PROMPT,
        "--repo",
        str(needing),
        "--model",
        cloister.script(f'[[reply]]\nsay = "x"\n{FIX}{DONE}'),
    )
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert not environment["built"], "the second run finds it"


def test_what_the_agent_installs_counts_once_the_manifest_names_it(cloister: Any, needing: Path) -> None:
    use = '{ tool = "edit", path = "app.py", old = "import inflection", new = "import attr\\nimport inflection" }'
    fix = '{ tool = "edit", path = "app.py", old = "sum(values) + 1", new = "sum(values)" }'
    install = '{ tool = "bash", command = "pip install -q attrs" }'
    name = '{ tool = "write", path = "requirements.txt", content = "attrs\\ninflection\\n" }'
    script = cloister.script(
        f'[[reply]]\nsay = "I use a package."\ncalls = [{install}, {use}, {fix}]\n{DONE}'
        f'[[reply]]\nexpect = "You installed pip: attrs"\nsay = "I name it."\ncalls = [{name}]\n{DONE}'
    )
    rule = ("--rule", "allow connect:@pypi")
    done = cloister("run", PROMPT, "--repo", str(needing), "--model", script, *rule, seconds=900)
    assert "✓ proven" in done.stdout
    (refused,) = bodies(cloister, "FinishRefused")
    assert "You installed pip: attrs" in refused["text"]
    first, second = bodies(cloister, "EnvironmentPrepared")
    assert first["commit"] == "" and second["commit"], (
        "the proof of a changed manifest has its own environment"
    )
    left = {path.name for path in (CACHE / "templates").glob(f"{second['template']}*")}
    assert left <= {f"{second['template']}.log"}, "and it is gone afterwards"


def test_a_set_up_that_fails_is_said_and_the_run_goes_on(cloister: Any, tmp_path: Path) -> None:
    registry("pypi")
    repo = cloister.ledger("broken")
    (repo / "requirements.txt").write_text("cloister-has-no-such-package==0.0.7\n")
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a package that does not exist")
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", cloister.fix, seconds=900)
    assert "! set-up failed" in done.stdout and "cloister-has-no-such-package" in done.stdout
    assert "✓ proven" in done.stdout, "the base was enough"
    # Other tests build in the same directory: what they left there is gone when they end.
    left = list((cloister.data_dir / "templates").glob(".building-env-*"))
    cloister.until(lambda: not any(path.exists() for path in left))


def test_a_policy_can_forbid_set_up_and_is_named(cloister: Any, tmp_path: Path) -> None:
    registry("pypi")
    repo = cloister.ledger("forbidden")
    (repo / "requirements.txt").write_text("inflection\nattrs\n")
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "wants packages")
    config = cloister.data_dir / "config.toml"
    config.write_text(config.read_text() + '[[policy]]\naction = "connect:*"\neffect = "deny"\n')
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", cloister.fix, seconds=900)
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert "the proxy denies it" in environment["problem"] and "allow connect:" in environment["problem"]
    assert "deny connect:*" in environment["problem"], "the rule that forbids it"
    assert "✓ proven" in done.stdout
    assert all(body["effect"] == "deny" for body in bodies(cloister, "ConnectionDecided"))


def test_set_up_can_be_off_or_a_command(cloister: Any, tmp_path: Path) -> None:
    registry("pypi")
    repo = project("own-command", **{"requirements.txt": "inflection\n", "app.py": APP, "test_app.py": TEST})
    script = cloister.script(f'[[reply]]\nsay = "x"\n{FIX}{DONE}')
    arguments = ("run", PROMPT, "--repo", str(repo), "--model", script)
    off = cloister(*arguments, "--setup", "off", code=None)
    assert "inflection" in off.stdout and "✓ proven" not in off.stdout
    assert bodies(cloister, "EnvironmentPrepared") == []
    own = "mkdir -p $VIRTUAL_ENV/lib/python3.11/site-packages && touch $VIRTUAL_ENV/lib/python3.11/site-packages/inflection.py"
    done = cloister(*arguments, "--setup", f"uv pip install -q pytest && {own}", seconds=900)
    assert "✓ proven" in done.stdout
    clean(repo)


def test_npm_dependencies_and_a_node_that_the_template_lacks(cloister: Any) -> None:
    registry("npm")
    registry("pypi")
    repo = project(NPM.name, **NPM.broken)
    fix = 'calls = [{ tool = "edit", path = "sum.js", old = "a - b", new = "a + b" }]\n'
    script = cloister.script(f'[[reply]]\nsay = "x"\n{fix}{DONE}')
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", script, seconds=900)
    assert "✓ proven" in done.stdout
    clean(repo)


_QUICK = ("npm-workspace", "make")


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(one, id=one.name, marks=() if one.name in _QUICK else pytest.mark.long)
        for one in (*SINGLE, *WORKSPACES)
    ],
)
def test_an_ordinary_repository_goes_green_without_configuration(cloister: Any, sample: Sample) -> None:
    for name in sample.registries:
        registry(name)
    repo = project(f"ordinary-{sample.name}", **sample.broken)
    edit = f"old = {json.dumps(sample.bad)}, new = {json.dumps(sample.good)}"
    script = cloister.script(
        f'[[reply]]\nsay = "x"\ncalls = [{{ tool = "edit", path = "{sample.file}", {edit} }}]\n{DONE}'
    )
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", script, seconds=900)
    assert "✓ proven" in done.stdout
    (end,) = bodies(cloister, "AttemptEnded")
    assert end["comparison"]["fixed"] and not end["comparison"]["not_run"]
    clean(repo)


def test_a_package_that_the_change_names_is_there_in_its_proof(cloister: Any, needing: Path) -> None:
    """The registry is closed for the attempt, so its own checks stay red; the proof sets up what the change names."""
    use = '{ tool = "edit", path = "app.py", old = "import inflection", new = "import attr\\nimport inflection" }'
    fix = '{ tool = "edit", path = "app.py", old = "sum(values) + 1", new = "sum(values)" }'
    name = '{ tool = "write", path = "requirements.txt", content = "attrs\\ninflection\\n" }'
    finish = DONE.replace("[[reply]]\n", '[[reply]]\nexpect = "requirements.txt, which set-up reads"\n')
    script = cloister.script(f'[[reply]]\nsay = "I use a package."\ncalls = [{use}, {fix}, {name}]\n{finish}')
    done = cloister("run", PROMPT, "--repo", str(needing), "--model", script, seconds=900)
    assert "✓ proven" in done.stdout
    assert bodies(cloister, "FinishRefused") == []
    assert not any("pip" in body["text"] for body in bodies(cloister, "ToolReturned"))


def test_init_writes_settings_that_were_tried(cloister: Any, tmp_path: Path) -> None:
    registry("pypi")
    files = {"requirements.txt": "inflection\n", "app.py": APP, "test_app.py": TEST}
    repo = project("initialised", **files)
    settings = repo / ".cloister" / "config.toml"
    settings.unlink(missing_ok=True)
    done = cloister("init", "--repo", str(repo))
    assert "Wrote " in done.stdout and "python3 -m pytest" in done.stdout
    assert 'setup = [\n  "uv pip install' in settings.read_text()
    settings.unlink()
    broken = cloister.ledger("broken-settings")
    (broken / "requirements.txt").write_text("cloister-has-no-such-package==0.0.7\n")
    cloister.git(broken, "add", "-A")
    cloister.git(broken, "commit", "-q", "-m", "a package that does not exist")
    failed = cloister("init", "--repo", str(broken), code=1)
    assert "Wrote " in failed.stdout and "cloister-has-no-such-package" in failed.stderr
    (broken / ".cloister" / "config.toml").unlink()
    assert "Set-up failed" not in cloister("init", "--repo", str(broken), "--no-prove").stderr


def test_env_check_runs_the_checks_and_a_run_that_reuses_its_environment_names_what_set_up_reached(
    cloister: Any,
) -> None:
    registry("pypi")
    repo = cloister.ledger("checked")
    (repo / "requirements.txt").write_text("inflection\n")
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a dependency")
    shown = cloister("env", "show", "--repo", str(repo)).stdout
    assert (
        "Open during set-up only:\n  @pypi because " in shown
        and "  uv pip install -q -r requirements.txt" in shown
    )
    checked = cloister("env", "check", "--repo", str(repo)).stdout
    assert " is built, in " in checked and "python3 -m pytest -q: " in checked, checked
    again = cloister("env", "check", "--repo", str(repo)).stdout
    assert " is ready, built " in again and "python3 -m pytest -q: " in again, again
    cloister("run", PROMPT, "--repo", str(repo), "--model", cloister.fix, seconds=900)
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert not environment["built"] and not bodies(cloister, "ConnectionDecided")
    receipt = cloister.json("receipt", "last")
    (used,) = receipt["environments"]
    assert used["template"] == environment["template"] and used["reached"]
    assert all(re.fullmatch(r"[\w.-]+:\d+", host) for host in used["reached"])
    assert f"Set-up of `{used['template']}`, built on " in cloister("receipt", "last").stdout


def test_env_check_fails_where_a_check_cannot_run_and_where_there_is_none(
    cloister: Any, tmp_path: Path
) -> None:
    repo = cloister.ledger("lacking")
    (repo / ".cloister").mkdir(exist_ok=True)
    (repo / ".cloister" / "config.toml").write_text('checks = ["no-such-program --all"]\n')
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a check without its program")
    lacking = cloister("env", "check", "--repo", str(repo), code=1).stdout
    assert "no-such-program --all" in lacking and "not run" in lacking.lower(), lacking
    bare = tmp_path / "bare"
    bare.mkdir()
    cloister.git(bare, "init", "-q", "-b", "main")
    cloister.git(bare, "commit", "-q", "--allow-empty", "-m", "nothing")
    assert (
        "no checks: name them in .cloister/config.toml"
        in cloister("env", "check", "--repo", str(bare), code=1).stdout
    )


SERVICE = """\
import socket

def ask(port: int, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(words)
        return link.recv(64)

def answer() -> int:
    return 41
"""
REDIS = """\
from app import answer, ask

def test_redis_answers() -> None:
    assert ask(6379, b"PING\\r\\n") == b"+PONG\\r\\n"
    assert answer() == 42
"""
MEMCACHED = """\
from app import ask

def test_memcached_answers() -> None:
    assert ask(11211, b"version\\r\\n").startswith(b"VERSION ")
"""
RABBIT = """\
import pika

def test_the_user_of_the_settings_has_a_queue() -> None:
    who = pika.PlainCredentials("ada", "word")
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5672, "books", who)) as link:
        assert link.channel().queue_declare("pages").method.queue == "pages"
"""
POSTGRES = """\
import subprocess
from app import answer

def test_postgres_has_the_database_of_the_compose_file() -> None:
    asked = ("psql", "-h", "127.0.0.1", "-U", "ada", "-d", "books", "-tAc", "SELECT current_database()")
    done = subprocess.run(asked, capture_output=True, text=True, env={"PGPASSWORD": "word", "PATH": "/usr/bin:/bin"})
    assert done.stdout.strip() == "books", done.stderr
    assert answer() == 42
"""
MYSQL = """\
import pymysql
from app import answer

def test_mysql_has_the_user_and_the_database_of_the_compose_file() -> None:
    link = pymysql.connect(host="127.0.0.1", user="ada", password="word", database="books")
    with link, link.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS page (text VARCHAR(9))")
        cursor.execute("SELECT DATABASE()")
        assert cursor.fetchone() == ("books",)
    assert answer() == 42
"""
COMPOSE_MYSQL = """\
services:
  db:
    image: mysql:8
    environment: {MYSQL_USER: ada, MYSQL_PASSWORD: word, MYSQL_DATABASE: books, MYSQL_RANDOM_ROOT_PASSWORD: "1"}
"""
COMPOSE_RABBIT = """\
services:
  cache: {image: "redis:7"}
  queue:
    image: rabbitmq:3-management
    environment: {RABBITMQ_DEFAULT_USER: ada, RABBITMQ_DEFAULT_PASS: word, RABBITMQ_DEFAULT_VHOST: books}
"""
COMPOSE = """\
services:
  cache:
    image: redis:7
  db:
    image: postgres:15
    environment: {POSTGRES_USER: ada, POSTGRES_PASSWORD: word, POSTGRES_DB: books}
"""


def serving(cloister: Any, repo: Path, named: str) -> None:
    fix = '{ tool = "edit", path = "app.py", old = "return 41", new = "return 42" }'
    script = cloister.script(f'[[reply]]\nsay = "x"\ncalls = [{fix}]\n{DONE}')
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", script, seconds=900)
    assert "✓ proven" in done.stdout, done.stdout
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert environment["problem"] == "" and any(named in line for line in environment["plan"])
    clean(repo)


OWN = """\
import unittest
import urllib.request
from app import total


class Own(unittest.TestCase):
    def test_it_answers(self):
        with urllib.request.urlopen("http://127.0.0.1:9911/app.py") as answer:
            self.assertIn(b"def total", answer.read())

    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
"""


def test_a_service_that_a_command_starts_runs_beside_the_checks_and_the_proof(cloister: Any) -> None:
    api = '{ name = "api", command = "python3 -m http.server 9911 --bind 127.0.0.1", port = 9911 }'
    settings = f'services = [{api}]\nchecks = ["python3 -m unittest -q"]\n'
    app = "def total(values):\n    return sum(values) + 1\n"
    repo = project("own-service", **{".cloister/config.toml": settings, "app.py": app, "test_app.py": OWN})
    script = cloister.script(f'[[reply]]\nsay = "x"\n{FIX}{DONE}')
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", script, seconds=900)
    assert "✓ proven" in done.stdout, done.stdout
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert environment["problem"] == "" and any("api" in line for line in environment["plan"])
    clean(repo)


def test_a_service_that_never_becomes_ready_is_named_with_the_end_of_its_log(cloister: Any) -> None:
    late = '{ name = "late", command = "echo no licence; sleep 600", port = 9912 }'
    repo = cloister.ledger("late-service")
    (repo / ".cloister").mkdir(exist_ok=True)
    (repo / ".cloister" / "config.toml").write_text(f"services = [{late}]\n")
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a service that does not listen")
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", cloister.fix, seconds=900)
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert "late did not answer on port 9912 within 30 s" in environment["problem"]
    assert "no licence" in environment["problem"]
    assert "! set-up failed" in done.stdout and "✓ proven" in done.stdout, "the run goes on"


def test_a_service_that_does_not_start_in_a_run_is_in_the_log_and_on_the_screen(cloister: Any) -> None:
    """Its environment is there: set-up could start it."""
    once = "mkdir /opt/cloister/once || { echo the licence is used; exit 3; }; python3 -m http.server 9913"
    service = f'{{ name = "licensed", command = "{once} --bind 127.0.0.1", port = 9913 }}'
    repo = cloister.ledger("used-licence")
    (repo / ".cloister").mkdir(exist_ok=True)
    (repo / ".cloister" / "config.toml").write_text(f'services = [{service}]\nsetup = ["true"]\n')
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a service that starts once")
    cloister("env", "build", "--repo", str(repo), seconds=900)
    done = cloister("run", PROMPT, "--repo", str(repo), "--model", cloister.fix, seconds=900)
    (environment,) = bodies(cloister, "EnvironmentPrepared")
    assert not environment["built"] and environment["problem"] == ""
    failed = bodies(cloister, "ServiceFailed")
    assert all("licensed ended before it answered" in one["problem"] for one in failed)
    assert len(failed) >= 3, "the base, its fork for the baseline, and the proof"
    assert {one["sandbox"] for one in bodies(cloister, "SandboxOpened")} <= {one["sandbox"] for one in failed}
    assert "! a service did not start in sandbox" in done.stdout and "the licence is used" in done.stdout
    assert "✓ proven" in done.stdout, "the run goes on"
    (repo / "NEWS").write_text("x")
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "moved")
    failed = cloister("env", "check", "--repo", str(repo), code=1)
    assert "a service did not start: error: licensed ended" in failed.stderr


@pytest.mark.long
def test_services_run_beside_the_checks_and_the_proof(cloister: Any, long: bool) -> None:
    registry("debian")
    settings = 'services = ["redis", "memcached"]\nchecks = ["python3 -m pytest -q"]\n'
    files = {".cloister/config.toml": settings, "app.py": SERVICE, "test_app.py": REDIS}
    serving(cloister, project("with-two-stores", **files, **{"test_memcached.py": MEMCACHED}), "memcached")
    if long:  # PostgreSQL takes a minute to install
        files = {"compose.yml": COMPOSE, "requirements.txt": "redis\npsycopg2-binary\n", "app.py": SERVICE}
        tests = {"test_app.py": REDIS, "test_db.py": POSTGRES}
        serving(cloister, project("with-compose", **files, **tests), "postgresql")


@pytest.mark.long(only=True)
def test_rabbitmq_runs_beside_the_checks_and_the_proof(cloister: Any) -> None:
    registry("debian")
    files = {"compose.yml": COMPOSE_RABBIT, "requirements.txt": "redis\npika\n", "app.py": SERVICE}
    serving(
        cloister,
        project("with-rabbitmq", **files, **{"test_app.py": REDIS, "test_queue.py": RABBIT}),
        "rabbitmq",
    )


@pytest.mark.long(only=True)
def test_mysql_runs_beside_the_checks_and_the_proof(cloister: Any) -> None:
    registry("debian")
    files = {"compose.yml": COMPOSE_MYSQL, "requirements.txt": "pymysql\n", "app.py": SERVICE}
    serving(cloister, project("with-mysql", **files, **{"test_db.py": MYSQL}), "mysql")
