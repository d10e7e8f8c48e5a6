"""A cluster under load: real NATS servers, a machine that serves people, workers, and many scripted runs at once."""

import json
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import borrowing
from tests.log.jetstream.servers import NatsServer
from tests.whole.cluster.conftest import bodies, one_story
from tests.whole.e2e.conftest import Cloister

TURNS = 4
WAIT_SECONDS = 600.0


def story(seconds: float) -> str:
    """A model that writes one line in each turn; a turn that were done twice would be in the story twice."""
    turns = [
        f'[[reply]]\ncalls = [{{ tool = "bash", command = "echo {turn} >> story; sleep {seconds}" }}]\n'
        for turn in range(1, TURNS + 1)
    ]
    return "".join(turns) + '[[reply]]\ncalls = [{ tool = "finish", summary = "Told." }]\n'


class Fleet:
    """Machines by name: `front`, and `w1`, `w2` and so on."""

    def __init__(
        self, root: Path, warm_dir: Path, servers: Sequence[NatsServer], workers: int, name: str
    ) -> None:
        self._name = name
        self._root = root
        self._warm = warm_dir
        self.servers = servers
        self.front = self._machine("front", "api")
        self.workers = [self._machine(f"w{number}", "worker") for number in range(1, workers + 1)]
        self._repo = root / "repo"
        self._repo.mkdir()
        (self._repo / "README").write_text("A story.\n")
        for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
            self.front.git(self._repo, *args)

    def _machine(self, name: str, role: str) -> Cloister:
        data_dir = borrowing(self._warm, self._root / name)
        urls = ", ".join(f'"{server.url}"' for server in self.servers)
        (data_dir / "config.toml").write_text(
            f'port = 0\nconcurrent_runs = 4\n[cluster]\nservers = [{urls}]\nmachine = "{name}"\nrole = "{role}"\n'
            f'name = "{self._name}"\nreplicas = {len(self.servers)}\n'
        )
        if name != "front":
            shutil.copy(self.front.data_dir / "audit.key", data_dir / "audit.key")
        one = Cloister(data_dir, self._root)
        one("serve", "--background")
        return one

    def submit(self, count: int, seconds: float = 1.0) -> list[str]:
        """Start runs; returns their ids."""
        model = self.front.script(story(seconds))
        wish = {"prompt": "Tell it.", "repo": str(self._repo), "model": model, "checks": ["test -e README"]}
        return [self.ask("/v1/runs", {**wish, "key": f"{model}-{number}"})["id"] for number in range(count)]

    def ask(self, path: str, body: object = None) -> Any:
        told = json.loads((self.front.data_dir / "server.json").read_text())
        token = (self.front.data_dir / "token").read_text().strip()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(told["url"] + path, data, headers), timeout=90
        ) as reply:
            text = reply.read().decode()
        return json.loads(text) if reply.headers.get_content_type() == "application/json" else text

    def rows(self) -> list[dict[str, Any]]:
        return self.ask("/v1/runs?limit=1000")

    def until(self, done: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """As `Cloister.until`; while no majority of NATS answers, neither does the front."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if done():
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, "the runs did not get there in time"
            time.sleep(0.1)

    def finished(self) -> bool:
        return all(row["state"] == "finished" for row in self.rows())

    def started(self, count: int) -> Callable[[], bool]:
        return lambda: sum(row["state"] == "running" for row in self.rows()) >= count

    def check(self, runs: Sequence[str]) -> None:
        """Every run ended as it would have alone: a whole log, each turn once, and its whole story."""
        told = "".join(f"+{turn}\n" for turn in range(1, TURNS + 1))
        for run in runs:
            events = self.ask(f"/v1/runs/{run}/events?limit=10000")
            one_story(events)
            ended = bodies(events, "RunFinished")[0]
            assert ended["outcome"] in ("proven", "unbroken"), ended
            assert told in self.ask(f"/v1/runs/{run}/diff"), run

    def stop(self) -> None:
        for one in (*self.workers, self.front):
            if (one.data_dir / "server.json").exists():
                one("serve", "--stop", code=None)

    def left_over(self) -> list[str]:
        """Sandboxes that are still there."""
        homes = [one.data_dir / "sandboxes" for one in self.workers]
        return [str(path) for home in homes if home.exists() for path in home.iterdir()]


@contextmanager
def fleet(
    root: Path, warm_dir: Path, servers: Sequence[NatsServer], workers: int, name: str = "cloister"
) -> Generator[Fleet]:
    root.mkdir(exist_ok=True)
    made = Fleet(root, warm_dir, servers, workers, name)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def asleep(one: Cloister) -> Generator[None]:
    """The server of a machine does not run while the block lasts."""
    pid = one.server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
