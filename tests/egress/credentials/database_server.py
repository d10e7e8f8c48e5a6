"""A PostgreSQL server of this machine on loopback, with TLS, one user and a password."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PATH = os.pathsep.join((os.environ["PATH"], *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))))
"""Debian keeps the programs of a server where no search path looks."""
KEY = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Database:
    """A running server with the database `shop` of the user `app`."""

    port: int
    certificate: str
    """What it shows, which is also its authority."""


@contextmanager
def open_database(password: str, *, address: str = "127.0.0.1", name: str = "") -> Generator[Database]:
    """A server at a loopback address, with a certificate for `name`, or for the address."""
    if any(shutil.which(one, path=PATH) is None for one in ("postgres", "initdb", "psql", "openssl")):
        pytest.skip("PostgreSQL is not installed: run scripts/install dev")
    home = Path(tempfile.mkdtemp(prefix="cloister-db-"))
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root

    env = {**os.environ, "PATH": PATH}

    def run(*argv: str | Path, stdin: bytes = b"") -> None:
        subprocess.run(argv, check=True, capture_output=True, user=user, cwd=home, input=stdin, env=env)

    try:
        if user:
            shutil.chown(home, user)
        (home / "password").write_text(password)
        (home / "password").chmod(0o644)
        covers = f"subjectAltName={f'DNS:{name}' if name else f'IP:{address}'}"
        files = ("-keyout", home / "key", "-out", home / "pem")
        run(*KEY, "-days", "2", "-subj", "/CN=database", "-addext", covers, *files)
        made = ("-U", "app", "-A", "scram-sha-256", f"--pwfile={home}/password", "-N")
        run("initdb", "-D", home / "data", *made)
        run("postgres", "--single", "-D", home / "data", "postgres", stdin=b"CREATE DATABASE shop;\n")
        with socket.create_server((address, 0)) as free:
            port = free.getsockname()[1]
        options = {
            "listen_addresses": address,
            "port": port,
            "ssl": "on",
            "ssl_cert_file": home / "pem",
            "ssl_key_file": home / "key",
            "unix_socket_directories": "",
            "fsync": "off",
        }
        argv = ("postgres", "-D", home / "data", *(f"--{key}={value}" for key, value in options.items()))
        with subprocess.Popen(
            argv, user=user, cwd=home, stderr=subprocess.PIPE, text=True, env=env
        ) as server:
            try:
                assert server.stderr
                while "ready to accept connections" not in (line := server.stderr.readline()):
                    assert line, "it did not start"
                yield Database(port, (home / "pem").read_text())
            finally:
                server.terminate()
    finally:
        shutil.rmtree(home)
