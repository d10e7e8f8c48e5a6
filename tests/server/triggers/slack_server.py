"""A server that speaks Slack's published wires: three calls of the Web API, and the socket with acknowledged envelopes."""

import json
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
from websockets.asyncio.server import ServerConnection, serve
from websockets.protocol import State

BOT, APP = "xoxb-0123456789", "xapp-0123456789"


@dataclass
class Slack:
    """One workspace."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """As posted; `ts` is the number, and `was` holds earlier contents."""
    failures: list[tuple[int, dict[str, Any]] | None] = field(
        default_factory=list[tuple[int, dict[str, Any]] | None]
    )
    """Answers that stand instead of the next ones; None is the usual answer."""
    url: str = ""
    socket: str = ""
    waiting: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Envelopes that the socket sends until they are acknowledged."""
    acknowledged: list[str] = field(default_factory=list[str])
    sockets: int = 0
    hang_up: bool = False
    """True: the next connection ends after its first envelope, before an acknowledgement counts."""

    def call(self, method: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
        if token != f"Bearer {APP if method == 'apps.connections.open' else BOT}":
            return {"ok": False, "error": "invalid_auth"}
        match method:
            case "apps.connections.open":
                return {"ok": True, "url": self.socket}
            case "chat.postMessage":
                assert {"channel", "thread_ts", "text", "blocks"} <= body.keys()
                made: dict[str, Any] = {**body, "ts": f"900.{len(self.messages)}", "was": []}
                self.messages.append(made)
                return {"ok": True, "ts": made["ts"], "channel": body["channel"]}
            case "chat.update":
                (found,) = [one for one in self.messages if one["ts"] == body["ts"]]
                found["was"].append(found["blocks"])
                found.update(body)
                return {"ok": True, "ts": body["ts"]}
            case _:
                return {"ok": False, "error": "unknown_method"}

    def shown(self) -> list[str]:
        """The texts of all messages as people see them, in their order."""
        return [_words(one["blocks"]) for one in self.messages]


def _words(blocks: list[dict[str, Any]]) -> str:
    return " | ".join(one["text"]["text"] for one in blocks if one["type"] == "section")


@contextmanager
def web_api(slack: Slack) -> Generator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            failure = slack.failures.pop(0) if slack.failures else None
            if failure is not None:
                status, answer = failure
            else:
                method = self.path.rpartition("/")[2]
                status, answer = 200, slack.call(method, self.headers.get("Authorization", ""), body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        slack.url = f"http://127.0.0.1:{server.server_address[1]}/api"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def workspace() -> AsyncGenerator[Slack]:
    """A workspace with its API and its socket until the block ends."""
    slack = Slack()

    async def talk(socket: ServerConnection) -> None:
        slack.sockets += 1
        await socket.send(json.dumps({"type": "hello"}))
        while socket.state is State.OPEN:
            if not slack.waiting:
                await anyio.sleep(0.01)
                continue
            envelope = slack.waiting[0]
            await socket.send(json.dumps(envelope))
            if slack.hang_up:
                slack.hang_up = False
                return
            slack.acknowledged.append(json.loads(await socket.recv())["envelope_id"])
            slack.waiting.pop(0)

    async with serve(talk, "127.0.0.1", 0) as server:
        slack.socket = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/link"
        with web_api(slack):
            yield slack
