"""Real `nats-server` processes on free ports of loopback, each with a directory of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("nats-server")
START_SECONDS = 30.0


class NatsServer:
    """One process; it can be killed and started again on its port, with what it has stored."""

    def __init__(self, directory: Path, name: str = "alone", more: str = "") -> None:
        self._directory = directory
        self._name = name
        self._more = more
        self._port = -1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        for old in self._directory.glob("*.ports"):
            old.unlink()
        config = self._directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self._port}"\nserver_name: {self._name}\n'
            f'ports_file_dir: "{self._directory}"\njetstream {{ store_dir: "{self._directory}/js", sync_interval: always }}\n'
            f"{self._more}\n"
        )
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, "-c", config], stdout=log, stderr=log)
        self._port = int(self._ports()["nats"][0].rpartition(":")[2])

    def _ports(self) -> dict[str, list[str]]:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for found in self._directory.glob("*.ports"):
                if text := found.read_text():
                    return json.loads(text)
            time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self._directory / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it as a power failure would."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)
            if number == signal.SIGKILL:
                self._process.wait(10)
                self._process = None


@contextmanager
def one_server(directory: Path, more: str = "") -> Generator[NatsServer]:
    server = NatsServer(directory, more=more)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def three_servers(directory: Path) -> Generator[Sequence[NatsServer]]:
    """A cluster: what is replicated is stored by at least two of them before it is acknowledged."""
    ports = free_ports(3)
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers = [
        NatsServer(
            directory / f"n{number}",
            f"n{number}",
            f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}',
        )
        for number, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


@contextmanager
def guarded_server(folder: Path) -> Generator[str]:
    """The server of a folder that `cloister cluster init` made, on a port of its own; yields its address."""
    (port,) = free_ports(1)
    config = folder / "nats.conf"
    config.write_text(config.read_text().replace("0.0.0.0:4222", f"127.0.0.1:{port}"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "-c", "nats.conf"], cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Server is ready" not in (text := (folder / "log").read_text()):
            assert process.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.02)
        yield f"tls://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


def free_ports(count: int) -> list[int]:
    """Servers of a cluster must know each other's port before they start."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in bound]
