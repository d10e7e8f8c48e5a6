"""Machines of one cluster: `cloister serve` processes with a data directory each, and real NATS servers."""

import shutil
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import borrowing
from tests.log.jetstream.servers import NatsServer, one_server
from tests.whole.e2e.conftest import Cloister

PROMPT = "The test suite fails. Find the cause and fix it."

Start = Callable[..., Cloister]
"""Starts a machine by its name, with more options of `cloister serve`."""


@pytest.fixture
def nats(tmp_path: Path) -> Generator[NatsServer]:
    with one_server(tmp_path / "nats") as server:
        yield server


def bodies(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["body"] for event in events if event["body"]["type"] == kind]


def one_story(events: list[dict[str, Any]]) -> None:
    """The log is complete, and nothing is in it twice."""
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["body"]["type"] for event in events].count("RunFinished") == 1
    steps = [body["step"] for body in bodies(events, "ModelReplied")]
    assert steps == sorted(set(steps)), "no reply was asked for twice"


@pytest.fixture
def machine(warm_dir: Path, tmp_path: Path, nats: NatsServer) -> Generator[Start]:
    started: dict[str, Cloister] = {}
    with ExitStack() as stack:

        def start(name: str, *options: str, code: int = 0) -> Cloister:
            if name not in started:
                data_dir = borrowing(warm_dir, tmp_path / name)
                table = f'port = 0\n[cluster]\nservers = ["{nats.url}"]\nmachine = "{name}"\n'
                (data_dir / "config.toml").write_text("port = 0\n" if "--cluster" in options else table)
                if started:
                    first = next(iter(started.values()))
                    shutil.copy(first.data_dir / "audit.key", data_dir / "audit.key")
                started[name] = Cloister(data_dir, tmp_path)
                stack.callback(_end, started[name])
            started[name]("serve", "--background", *options, code=code)
            return started[name]

        yield start


def _end(one: Cloister) -> None:
    if (one.data_dir / "server.json").exists():
        one("serve", "--stop", code=None)
