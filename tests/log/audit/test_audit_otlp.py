"""The audit at an OpenTelemetry collector: complete, in order, and never in anybody's way."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from tests.log.audit.test_audit import entries, opened, whole_run

from cloister.app.settings import read_settings
from cloister.app.wiring import open_app
from cloister.core.errors import OutsideError, UserError
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.export import CURSOR_FILE, Collector, check_endpoint, client, logs, send, ship

pytestmark = pytest.mark.anyio


@dataclass
class Heard:
    """A collector on loopback, and what it was sent."""

    url: str = ""
    status: int = 200
    answer: bytes = b"{}"
    news: threading.Condition = field(default_factory=threading.Condition)
    requests: list[tuple[str, dict[str, str], Any]] = field(
        default_factory=list[tuple[str, dict[str, str], Any]]
    )

    def records(self) -> list[dict[str, Any]]:
        return [
            record
            for _, _, body in self.requests
            for resource in body["resourceLogs"]
            for scope in resource["scopeLogs"]
            for record in scope["logRecords"]
        ]

    async def until(self, count: int) -> None:
        """Wait for entry `count`."""

        def wait() -> bool:
            with self.news:
                return self.news.wait_for(lambda: count in self.numbers(), 20)

        assert await to_thread.run_sync(wait)

    def numbers(self) -> list[int]:
        return [int(attribute(record, "cloister.audit.number")) for record in self.records()]


def attribute(record: dict[str, Any], key: str) -> Any:
    (value,) = [each["value"] for each in record["attributes"] if each["key"] == key]
    return next(iter(value.values()))


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = heard.status  # once: a test may change it in any moment
            if status == 200:
                with heard.news:
                    heard.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                    heard.news.notify_all()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(heard.answer)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        heard.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield heard
        server.shutdown()
        thread.join()


async def test_every_entry_is_sent_as_a_log_record(heard: Heard, tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        run = await whole_run(backbone)
    found = entries(path, run)
    async with client() as http:
        await send(http, Collector(heard.url, {"x-key": "secret"}), found)
    ((route, headers, body),) = heard.requests
    assert (route, headers["content-type"], headers["x-key"]) == ("/v1/logs", "application/json", "secret")
    resource = body["resourceLogs"][0]["resource"]["attributes"]
    assert {"key": "service.name", "value": {"stringValue": "cloister"}} in resource
    assert heard.numbers() == [entry.number for entry in found]
    first = heard.records()[0]
    assert first["timeUnixNano"] == str(found[0].at_us * 1_000)
    assert (attribute(first, "cloister.run"), attribute(first, "enduser.id")) == (run, "ada")
    assert attribute(first, "cloister.audit.hash") == found[0].hash
    assert json.loads(first["body"]["stringValue"])["prompt"] == "fix it"
    denied = [r for r in heard.records() if '"effect":"deny"' in r["body"]["stringValue"]]
    assert {record["severityText"] for record in denied} == {"WARN"}


async def test_a_collector_that_refuses_is_said(heard: Heard) -> None:
    entry = AuditEntry(1, 1, "ApiCall", None, None, "ada", "{}", None, "0" * 64, "0" * 64)
    async with client() as http:
        for status, answer in (
            (503, b""),
            (200, b'{"partialSuccess":{"rejectedLogRecords":"1"}}'),
            (302, b""),
        ):
            heard.status, heard.answer = status, answer
            with pytest.raises(OutsideError, match="did not accept"):
                await send(http, Collector(heard.url), [entry])
        with pytest.raises(OutsideError, match="did not accept"):
            await send(http, Collector("http://127.0.0.1:1"), [entry])


async def test_a_server_sends_what_comes_and_goes_on_where_it_was(heard: Heard, tmp_path: Path) -> None:
    path = tmp_path / "cloister.db"
    async with opened(path) as backbone:
        await whole_run(backbone)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ship, backbone, tmp_path / CURSOR_FILE, Collector(heard.url), 0.01)
            await heard.until(len(entries(path)))
            await whole_run(backbone)
            await heard.until(len(entries(path)))
            tasks.cancel_scope.cancel()
        await whole_run(backbone)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ship, backbone, tmp_path / CURSOR_FILE, Collector(heard.url), 0.01)
            await heard.until(len(entries(path)))
            tasks.cancel_scope.cancel()
    # What was taken in the moment of the end may come once more, and nothing else does.
    assert list(dict.fromkeys(heard.numbers())) == list(range(1, len(entries(path)) + 1))


async def test_failing_collector_blocks_nothing_and_gets_everything_later(
    heard: Heard, tmp_path: Path
) -> None:
    path = tmp_path / "cloister.db"
    heard.status = 500
    async with opened(path) as backbone, anyio.create_task_group() as tasks:
        tasks.start_soon(ship, backbone, tmp_path / CURSOR_FILE, Collector(heard.url), 0.01)
        run = await whole_run(backbone)
        assert (await backbone.row(run)).state == "finished"
        heard.status = 200
        await heard.until(len(entries(path)))
        await backbone.note("ApiCall", "ada", {})
        await heard.until(len(entries(path)))
        tasks.cancel_scope.cancel()
    assert heard.numbers() == [entry.number for entry in entries(path)]
    assert (tmp_path / CURSOR_FILE).stat().st_mode & 0o777 == 0o600


async def test_a_server_that_knows_a_collector_sends_to_it(heard: Heard, tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "OTEL_EXPORTER_OTLP_ENDPOINT": heard.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=s%2Ccret, other = 1,broken",
    }
    settings = read_settings(env, tmp_path / "data")
    assert settings.otlp_headers == {"x-key": "s,cret", "other": "1"}
    async with open_app(settings, role="server") as app:
        await app.backbone.note("ApiCall", "ada", {})
        await heard.until(1)
    assert heard.requests[0][1]["x-key"] == "s,cret"


def test_only_an_address_without_a_password_is_a_collectors() -> None:
    assert check_endpoint("http://127.0.0.1:4318/") == "http://127.0.0.1:4318"
    for text in ("collector:4318", "file:///x", "http://me:pw@host", "http://", "http://[bad"):
        with pytest.raises(UserError):
            check_endpoint(text)


def test_no_entries_make_an_empty_list() -> None:
    body: Any = logs([])
    assert body["resourceLogs"][0]["scopeLogs"][0]["logRecords"] == []
