"""The streams: 1,000 clients on one run beside a bare broadcast, memory of an idle client, a noisy run beside another,
a long log, and the page of a long run in Chromium.

The server, the bare broadcast and the clients are processes of their own. A delivery begins before the append, which is
durable before anyone sees it; the bare broadcast stores nothing. `--clients N`, `--events N` and `--page-events N`
change the sizes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
from playwright.sync_api import sync_playwright
from websockets.asyncio.client import connect
from websockets.asyncio.server import broadcast, serve

from cloister.app.settings import read_settings
from cloister.app.wiring import App, open_app
from cloister.core.events import (
    AnyBody,
    AttemptStarted,
    CommandOutput,
    ModelReplied,
    PromptReceived,
    ToolReturned,
    TurnEnded,
)
from cloister.core.requests import NewRun, ToolCall, Usage
from cloister.log.api import Fence
from cloister.server.app import asgi_app
from cloister.server.auth import load_token
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets

ROUNDS, PAUSE = 10, 0.5
PAD = "x" * 200
NOISE_BYTES, NOISE_SECONDS = 65_536, 1 / 320
"""20 MB/s."""


def stamp() -> str:
    return f"{time.monotonic_ns()} {PAD}"


async def commands(act: Callable[[str], Awaitable[object]]) -> None:
    """Answer each line of the standard input with one line."""
    async for line in anyio.wrap_file(sys.stdin):
        print(json.dumps(await act(line.strip())), flush=True)


async def serve_bare() -> None:
    clients: set[Any] = set()

    async def hold(socket: Any) -> None:
        clients.add(socket)
        await socket.wait_closed()

    async def act(_line: str) -> object:
        for _ in range(ROUNDS):
            text = json.dumps({"type": "event", "event": {"body": {"text": stamp()}}})
            broadcast(clients, text)
            await anyio.sleep(PAUSE)
        return "done"

    async with serve(hold, "127.0.0.1", 0, compression=None) as server:
        print(json.dumps([next(iter(server.sockets)).getsockname()[1], "", ["x"]]), flush=True)
        await commands(act)


def turn(step: int) -> tuple[AnyBody, ...]:
    """The events of one turn, as the page shows them."""
    call = ToolCall(f"c{step}", "bash", {"command": "make test"})
    return (
        ModelReplied(0, step, "m", "I look at the next file.", (call,), Usage(1_000, 50), 0.5, cost=0.01),
        ToolReturned(0, call.id, "bash", True, PAD, 0.2, exit_code=0),
        TurnEnded(0, step, "f" * 40, False),
    )


async def serve_ours(data: Path, events: int, shown: int) -> None:
    (data / "config.toml").write_text("connections = 10000\n")
    settings = read_settings({"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "bench"}, data)
    token, sockets = load_token(data / "token"), Sockets()
    async with open_app(settings, role="embedded") as app:
        fences = [await claimed(app) for _ in range(4)]
        await app.backbone.append(fences[3], [AttemptStarted(0, "m")])
        for start in range(0, shown // 3, 1_000):
            steps = range(start, min(start + 1_000, shown // 3))
            await app.backbone.append(fences[3], [body for step in steps for body in turn(step + 1)])
        for start in range(0, events, 5_000):
            bodies = [PromptReceived(PAD, "bench") for _ in range(min(5_000, events - start))]
            await app.backbone.append(fences[2], bodies)
        with bound(0) as listener:
            async with listening(asgi_app(app, token, sockets), listener, sockets):
                print(
                    json.dumps([listener.getsockname()[1], token, [each.run for each in fences]]), flush=True
                )
                await commands(lambda line: told(app, fences, line == "noise"))


async def told(app: App, fences: list[Fence], noisy: bool) -> object:
    async with anyio.create_task_group() as tasks:

        async def noise() -> None:
            delta = CommandOutput(1, "c", "out", "y" * NOISE_BYTES)
            while True:
                app.backbone.publish(fences[1].run, delta)
                await anyio.sleep(NOISE_SECONDS)

        if noisy:
            tasks.start_soon(noise)
        for _ in range(ROUNDS):
            await app.backbone.append(fences[0], [PromptReceived(stamp(), "bench")])
            await anyio.sleep(PAUSE)
        tasks.cancel_scope.cancel()
    return "done"


async def claimed(app: App) -> Fence:
    run, _ = await app.backbone.admit(NewRun("bench", "/nowhere"), "bench")
    fence = await app.backbone.claim(app.owner, run)
    assert fence is not None
    return fence


async def watch(url: str, token: str, count: int) -> None:
    """Hold `count` clients; at the end of the input print the seconds from each event to each client."""
    seconds: list[float] = []
    ready = anyio.Semaphore(0)
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def one() -> None:
        async with connect(url, additional_headers=headers, proxy=None, compression=None) as socket:
            ready.release()
            async for text in socket:
                now = time.monotonic_ns()
                first = str(json.loads(text).get("event", {}).get("body", {}).get("text", "")).partition(" ")[
                    0
                ]
                if first.isdigit():
                    seconds.append((now - int(first)) / 1e9)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
            await ready.acquire()
        print(json.dumps("ready"), flush=True)

        async def act(_line: str) -> object:
            found = sorted(seconds)
            seconds.clear()
            return (
                [len(found), statistics.median(found), found[int(len(found) * 0.99)]] if found else [0, 0, 0]
            )

        await commands(act)


class Program:
    """This file in another role."""

    def __init__(self, *args: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._line()

    def ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._line()

    def memory(self) -> int:
        text = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) * 1_024 for line in text.splitlines() if line.startswith("Rss:"))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def fan_out(server: Program, url: str, token: str, clients: int) -> tuple[float, float, float]:
    """The median and the p99 of a delivery, and the bytes of an idle client."""
    before = server.memory()
    watching = Program("watch", url, token, clients)
    held = (server.memory() - before) / clients
    server.ask("send")
    count, median, p99 = watching.ask("say")
    watching.end()
    if count < clients * ROUNDS:
        print(f"   only {count} of {clients * ROUNDS} deliveries arrived")
    return median, p99, held


async def long_log(url: str, token: str, events: int) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    opened: list[float] = []
    for _ in range(10):
        begun = time.monotonic()
        async with connect(
            f"{url}?last=50", additional_headers=headers, proxy=None, max_queue=None
        ) as socket:
            while '"event"' not in str(await socket.recv()):
                pass
            opened.append(time.monotonic() - begun)
    most = min(events, 100_000)
    begun, count = time.monotonic(), 0
    async with connect(
        f"{url}?last={most}", additional_headers=headers, proxy=None, compression=None
    ) as socket:
        while count < most:
            count += str(await socket.recv()).startswith('{"type":"event"')
    took = time.monotonic() - begun
    print(
        f"a log of {events:,} events, opened at its end: {statistics.median(opened) * 1e3:.0f} ms (goal 50)"
    )
    print(f"replay of {most:,} events to one client: {most / took:,.0f} events/s (goal 20,000)")


def show_page(port: int, token: str, run: str) -> None:
    """The page of a run, from the address to its first paint, its last line, and the whole timeline."""
    secret = httpx.post(
        f"http://127.0.0.1:{port}/v1/logins", headers={"Authorization": f"Bearer {token}"}
    ).json()["secret"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/#login={secret}")
        page.locator("#main").wait_for()
        begun = time.monotonic()
        page.goto(f"http://127.0.0.1:{port}/runs/{run}")
        page.locator(".row.turn").last.wait_for()
        last = time.monotonic() - begun
        page.locator("input[type=range]:enabled").wait_for(timeout=300_000)
        whole = time.monotonic() - begun
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        count = int(page.get_by_role("slider", name="Time").get_attribute("max") or 0)
        browser.close()
    print(
        f"page of {count:,} events: first paint {paint:.0f} ms, at its end {last * 1e3:.0f} ms, whole {whole:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--page-events", type=int, default=100_000, help="0 leaves the page out")
    wanted = parser.parse_args()
    bare = Program("bare")
    plain = fan_out(bare, f"ws://127.0.0.1:{bare.first[0]}/", "", wanted.clients)
    bare.end()
    with tempfile.TemporaryDirectory() as root:
        ours = Program("ours", root, wanted.events, wanted.page_events)
        port, token, runs = ours.first
        url = f"ws://127.0.0.1:{port}/v1/runs/{{}}/stream"
        own = fan_out(ours, url.format(runs[0]), token, wanted.clients)
        print(f"p50, p99 of a delivery: {own[0] * 1e3:.0f}, {own[1] * 1e3:.0f} ms", end="; ")
        print(f"bare {plain[0] * 1e3:.0f}, {plain[1] * 1e3:.0f} ms: p99 {own[1] / plain[1]:.2f}x (goal 1.5)")
        print(f"an idle client: {own[2] / 1e3:.0f} KB, bare {plain[2] / 1e3:.0f} KB (goal 60)")
        one = Program("watch", url.format(runs[0]) + "?last=0", token, 1)
        ours.ask("send")
        quiet = one.ask("say")[2]
        loud = Program("watch", url.format(runs[1]), token, 10)
        ours.ask("noise")
        noisy = one.ask("say")[2]
        print(f"p99 beside a run with 20 MB/s and 10 clients: {(noisy - quiet) * 1e3:+.0f} ms (goal 50)")
        for program in (loud, one):
            program.end()
        anyio.run(long_log, url.format(runs[2]), token, wanted.events)
        if wanted.page_events:
            show_page(port, token, runs[3])
        ours.end()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["bare"]:
            anyio.run(serve_bare)
        case ["ours", data, events, shown]:
            anyio.run(serve_ours, Path(data), int(events), int(shown))
        case ["watch", url, token, count]:
            anyio.run(watch, url, token, int(count))
        case _:
            main()
