"""A run that asks a database of the company, with a password that is nowhere inside."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.egress.credentials.database_server import Database, open_database
from tests.whole.e2e.setup.test_environments import bodies

ADDRESS = "127.0.0.2"
PASSWORD = "a-password-of-the-company-0123456789"
SETTINGS = """\
[[credential]]
name = "orders"
from = "file:{file}"
host = "{address}"
port = {port}
postgresql = "app/shop"
env = "DATABASE_URL"

[[policy]]
action = "credential:orders"
effect = "allow"

[[policy]]
action = "connect:{address}:{port}"
effect = "allow"
"""
ASK = """\
import os, socket, struct, urllib.parse
url = urllib.parse.urlsplit(os.environ["DATABASE_URL"])
link = socket.create_connection((url.hostname, url.port))
words = f"user\\0{url.username}\\0database\\0{url.path[1:]}\\0\\0".encode()
link.sendall(struct.pack("!II", len(words) + 8, 196608) + words)
query = b"SELECT current_user || \' in \' || current_database()\\0"
link.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
seen = b""
while b"SELECT 1\\0" not in seen and b"FATAL" not in seen:
    seen += link.recv(4096)
print("app in shop" if b"app in shop" in seen else seen)
"""
LOOK = "grep -raoF {} /proc/self/environ /tmp /home /etc /work | sort -u; echo looked"


@pytest.fixture
def database(cloister: Any) -> Iterator[Database]:
    with open_database(PASSWORD, address=ADDRESS) as found:
        authorities = cloister.cwd / "authorities.pem"
        authorities.write_text(found.certificate)
        cloister.more_env = {"SSL_CERT_FILE": str(authorities)}
        yield found


def test_a_run_asks_a_database_and_the_password_is_nowhere_inside(cloister: Any, database: Database) -> None:
    file = cloister.cwd / "password"
    file.write_text(PASSWORD)
    with (cloister.data_dir / "config.toml").open("a") as config:
        config.write(SETTINGS.format(file=file, address=ADDRESS, port=database.port))
    repo = cloister.ledger("asking")
    (repo / "ask.py").write_text(ASK)
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "ask")
    text = Path(cloister.fix.removeprefix("script:")).read_text()
    look = LOOK.format(PASSWORD[:12])
    first = f'[[reply]]\ncalls = [{{ tool = "bash", command = "python3 ask.py; env; {look}" }}]\n\n'
    done = cloister(
        "run",
        "Repair it.",
        "--repo",
        str(repo),
        "--model",
        cloister.script(text.replace("[[reply]]", f"{first}[[reply]]", 1)),
        seconds=900,
        code=None,
    )
    assert "✓ proven" in done.stdout, done.stdout
    seen = bodies(cloister, "ToolReturned")[0]["text"]
    assert seen.startswith("app in shop\n"), seen
    assert "DATABASE_URL=postgresql://orders@127.0.0.1:3128/shop" in seen
    assert PASSWORD[:12] not in seen.replace(look, "")
    (decided,) = bodies(cloister, "ConnectionDecided")
    assert (decided["host"], decided["effect"], decided["credential"]) == (ADDRESS, "allow", "orders")
    receipt = cloister.json("receipt", "last")
    assert [one["credential"] for one in receipt["connections"]] == ["orders"]
    for path in Path(cloister.data_dir).rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != "config.toml":
            assert PASSWORD.encode() not in path.read_bytes(), path
