"""A small company on this machine: two repositories, a package index and a tax service that want tokens, a skill.

    .venv/bin/python examples/company/company.py DIRECTORY

makes the repositories, the tokens and the settings below DIRECTORY, and serves the index and the service until its
standard input ends. README.md has the rest.
"""

import base64
import io
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cloister.egress.authority import Authority

HERE = Path(__file__).parent
ADDRESS = "127.0.0.2"
"""On loopback, and not the name that programs reach without a proxy."""
WHEEL = "acme_money-1.0-py3-none-any.whl"
RATES = {"DE": 19, "FR": 20}
DATES = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
SETTINGS = """\
[knowledge]
skills = ["{at}/skills"]

[[credential]]             # for the private index: the proxy adds it to each request
name = "index"
from = "file:{at}/tokens/index"
host = "{address}"
port = {index}
paths = ["/simple/**", "/files/**"]
basic = "agent"

[[credential]]             # for the tax service: programs inside send a stand-in
name = "rates"
from = "file:{at}/tokens/rates"
host = "{address}"
port = {rates}
methods = ["GET"]
paths = ["/rates/**"]
env = "RATES_TOKEN"

[[policy]]
action = "credential:index"
effect = "allow"

[[policy]]
action = "credential:rates"
effect = "allow"

[[policy]]
action = "connect:{address}:{rates}"
effect = "allow"
"""


def wheel() -> bytes:
    """A package of the company, with nothing but Python."""
    code = 'def shown(cents: int) -> str:\n    return f"{cents // 100}.{cents % 100:02} EUR"\n'
    about = "acme_money-1.0.dist-info"
    kind = "Wheel-Version: 1.0\nGenerator: company\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        "acme_money.py": code,
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: acme-money\nVersion: 1.0\n",
        f"{about}/WHEEL": kind,
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in (*files.items(), (f"{about}/RECORD", record)):
            archive.writestr(name, text)
    return made.getvalue()


def index(path: str) -> bytes | None:
    """The page or the file of the index at a path."""
    if path.rstrip("/") == "/simple/acme-money":
        return f'<!DOCTYPE html><a href="../../files/{WHEEL}">{WHEEL}</a>'.encode()
    return wheel() if path == f"/files/{WHEEL}" else None


def rates(path: str) -> bytes | None:
    """The answer of the tax service at a path."""
    country = path.removeprefix("/rates/")
    return f"{country} {RATES[country]} percent\n".encode() if country in RATES else None


def serve(authority: Authority, authorization: str, answer) -> ThreadingHTTPServer:
    """Answer over TLS whoever sends this Authorization."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            known = secrets.compare_digest(self.headers.get("Authorization", ""), authorization)
            body = answer(self.path) if known else None
            self.send_response(200 if body is not None else 404 if known else 401)
            self.send_header(
                "Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream"
            )
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((ADDRESS, 0), Handler)
    context = authority.context(ADDRESS)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def repository(name: str, at: Path) -> None:
    shutil.copytree(HERE / name, at / name, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    git = ("git", "-c", "user.name=Acme", "-c", "user.email=acme@example.org")
    for args in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("commit", "-q", "-m", f"The repository {name}"),
    ):
        subprocess.run([*git, *args], cwd=at / name, check=True, env={**os.environ, **DATES})


def token(at: Path, name: str) -> str:
    """A new token, in a file that only its owner may read."""
    (at / "tokens").mkdir(exist_ok=True, mode=0o700)
    text = f"acme-{secrets.token_hex(20)}"
    (at / "tokens" / name).write_text(text)
    return text


def main() -> None:
    at = Path(sys.argv[1]).resolve()
    at.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    basic = base64.b64encode(f"agent:{token(at, 'index')}".encode()).decode()
    servers = (
        serve(authority, f"Basic {basic}", index),
        serve(authority, f"Bearer {token(at, 'rates')}", rates),
    )
    ports = {"index": servers[0].server_port, "rates": servers[1].server_port}
    for name in ("shop", "billing"):
        repository(name, at)
    shutil.copytree(HERE / "skills", at / "skills")
    script = at / "skills/tax-change/scripts/rate.sh"
    script.write_text(script.read_text().replace("RATES_URL", f"https://{ADDRESS}:{ports['rates']}"))
    known = ssl.get_default_verify_paths().cafile
    (at / "ca.pem").write_bytes((Path(known).read_bytes() if known else b"") + authority.pem)
    (at / "settings.toml").write_text(SETTINGS.format(at=at, address=ADDRESS, **ports))
    (at / "environment").write_text(
        f"export SSL_CERT_FILE={at}/ca.pem\n"
        f"export PIP_EXTRA_INDEX_URL=https://{ADDRESS}:{ports['index']}/simple/\n"
    )
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
