"""Leases in NATS: an owner that is paused or cut off stops before another process may take over."""

import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.log.jetstream.servers import NatsServer, one_server

from cloister.core.errors import CloisterError
from cloister.core.ids import OwnerId, new_owner_id
from cloister.log.jetstream.leases import StreamLeases, Terms, open_leases
from cloister.log.jetstream.link import Cluster

TERMS = Terms(renew_seconds=0.3, act_seconds=2.0, dead_seconds=3.0)
WAIT_SECONDS = 60.0

HOLDER = """
import sys
from cloister.core.ids import OwnerId
from cloister.log.jetstream.leases import Terms, open_leases
from cloister.log.jetstream.link import Cluster

with open_leases(Cluster((sys.argv[1],)), Terms(0.3, 2.0, 3.0)) as leases, leases.hold(OwnerId(sys.argv[2])):
    print("held", flush=True)
    for line in sys.stdin:
        print(leases.acts(OwnerId(sys.argv[2])), flush=True)
"""


class Holder:
    """Another process that holds an owner, and says when asked whether it may act."""

    def __init__(self, url: str, owner: OwnerId) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, url, owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "held"

    def acts(self) -> bool:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self._line() == "True"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def holder(url: str, owner: OwnerId) -> Generator[Holder]:
    started = Holder(url, owner)
    with started.process as process:
        try:
            yield started
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    with one_server(tmp_path_factory.mktemp("nats")) as started:
        yield started


@pytest.fixture
def leases(server: NatsServer) -> Generator[StreamLeases]:
    with open_leases(Cluster((server.url,)), TERMS) as opened:
        yield opened


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_owner_that_was_stopped_may_not_act_when_it_wakes(
    server: NatsServer, leases: StreamLeases
) -> None:
    owner = new_owner_id()
    with holder(server.url, owner) as other:
        assert other.acts()
        other.process.send_signal(signal.SIGSTOP)
        until(lambda: not leases.lives(owner))
        other.process.send_signal(signal.SIGCONT)
        assert not other.acts()
        until(lambda: not leases.lives(owner))


def test_an_owner_that_is_cut_off_stops_before_its_lease_can_be_taken(
    server: NatsServer, leases: StreamLeases
) -> None:
    owner = new_owner_id()
    with wire(server) as (url, cut), holder(url, owner) as other:
        assert other.acts()
        cut()
        seen: list[tuple[bool, bool]] = []
        while leases.lives(owner):
            seen.append((other.acts(), True))
            time.sleep(0.05)
        assert not other.acts()
        assert (True, True) in seen
        # It had stopped while it still lived for the others.
        assert (False, True) in seen


def test_an_observer_that_was_cut_off_takes_no_living_owner_for_dead(server: NatsServer) -> None:
    owner = new_owner_id()
    made = Wire(int(server.url.rpartition(":")[2]))
    try:
        url = f"nats://127.0.0.1:{made.port}"
        with open_leases(Cluster((url,)), TERMS) as observer, holder(server.url, owner) as other:
            until(lambda: observer.lives(owner))
            heard = time.monotonic() + TERMS.renew_seconds
            until(lambda: time.monotonic() > heard)  # a renewal passes that no call looks at
            made.drop()
            away = time.monotonic() + TERMS.dead_seconds
            until(lambda: time.monotonic() > away)
            made.carry()
            answers: list[bool] = []
            again = time.monotonic() + TERMS.dead_seconds
            while time.monotonic() < again:
                answers.append(observer.lives(owner))
                time.sleep(0.05)
            assert other.acts()
            assert all(answers)
    finally:
        made.close()


def test_while_nats_is_away_every_owner_is_thought_to_live_and_none_may_act_for_long(tmp_path: Path) -> None:
    owner = new_owner_id()
    with (
        one_server(tmp_path / "nats") as server,
        open_leases(Cluster((server.url,)), TERMS) as mine,
        open_leases(Cluster((server.url,)), TERMS) as other,
        mine.hold(owner),
    ):
        server.kill()
        until(lambda: not mine.acts(owner))
        assert other.lives(owner)
        server.start()
        until(lambda: not other.lives(owner))
        assert not mine.acts(owner)


def test_an_owner_whose_key_was_removed_stops(server: NatsServer, leases: StreamLeases) -> None:
    owner = new_owner_id()
    with holder(server.url, owner) as other:
        other.process.send_signal(signal.SIGSTOP)
        until(lambda: not leases.lives(owner))
        assert leases.remove_dead() == (owner,)
        with leases.hold(owner):
            other.process.send_signal(signal.SIGCONT)
            assert not other.acts()
            assert leases.acts(owner)
            with pytest.raises(CloisterError) as taken, leases.hold(owner):
                pass
            assert taken.value.code == "owner_taken"


class Wire:
    """Carries connections to a port until it is cut: then they stay open and carry nothing. Or drops them for a while."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cut, self._ended, self._dropping = threading.Event(), threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        self._cut.set()

    def drop(self) -> None:
        """End the connections, and refuse others until `carry`."""
        self._dropping.set()
        self._threads[0].join(10)
        self._listener.close()
        for end in tuple(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def carry(self) -> None:
        self._dropping.clear()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._threads[0] = threading.Thread(target=self._accept)
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(10)
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        while not self._dropping.is_set() and self._readable(self._listener):
            pair = (self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._port)))
            self._ends.extend(pair)
            for ends in (pair, pair[::-1]):
                self._threads.append(threading.Thread(target=self._carry, args=ends))
                self._threads[-1].start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while self._readable(one) and not self._cut.is_set() and (data := one.recv(65_536)):
                other.sendall(data)

    def _readable(self, end: socket.socket) -> bool:
        while not (self._ended.is_set() or (end is self._listener and self._dropping.is_set())):
            if select.select([end], [], [], 0.1)[0]:
                return True
        return False


@contextmanager
def wire(server: NatsServer) -> Generator[tuple[str, Callable[[], None]]]:
    """An address that leads to `server` until it is cut."""
    made = Wire(int(server.url.rpartition(":")[2]))
    try:
        yield f"nats://127.0.0.1:{made.port}", made.cut
    finally:
        made.close()
