"""Traces at a collector of our own, which decodes OTLP/HTTP JSON strictly."""

import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import pytest
from anyio import to_thread
from msgspec import Meta

from cloister.app.settings import read_settings
from cloister.app.wiring import open_app
from cloister.core import events as e
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import Isolation, NewRun, ToolCall, Usage
from cloister.log.api import Backbone, Fence
from cloister.log.audit.export import Collector
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.traces import STATE_FILE, ship_traces

pytestmark = pytest.mark.anyio

Digits = Annotated[str, Meta(pattern=r"^[0-9]{1,20}$")]
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """OTLP's JSON: fields in camel case, ids in hex, 64-bit numbers as text."""


class Any(Strict, frozen=True):
    string_value: str | None = None
    int_value: Digits | None = None
    double_value: float | None = None

    @property
    def plain(self) -> str | int | float | None:
        return int(self.int_value) if self.int_value else self.string_value or self.double_value


class Pair(Strict, frozen=True):
    key: str
    value: Any


class Status(Strict, frozen=True):
    code: int = 0


class Spanned(Strict, frozen=True):
    trace_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
    span_id: Id
    name: str
    kind: int
    start_time_unix_nano: Digits
    end_time_unix_nano: Digits
    attributes: list[Pair]
    status: Status
    parent_span_id: Id | None = None

    def get(self, key: str) -> str | int | float | None:
        return next((one.value.plain for one in self.attributes if one.key == key), None)

    @property
    def seconds(self) -> float:
        return (int(self.end_time_unix_nano) - int(self.start_time_unix_nano)) / 1e9


class Scope(Strict, frozen=True):
    name: str
    version: str


class ScopeSpans(Strict, frozen=True):
    scope: Scope
    spans: list[Spanned]


class Resource(Strict, frozen=True):
    attributes: list[Pair]


class ResourceSpans(Strict, frozen=True):
    resource: Resource
    scope_spans: list[ScopeSpans]


class Traces(Strict, frozen=True):
    resource_spans: list[ResourceSpans]


class Receiver:
    """What a collector took."""

    def __init__(self) -> None:
        self.url, self.statuses = "", list[int]()
        self.spans: list[Spanned] = []
        self.problems: list[str] = []
        self.raw = b""
        self.news = threading.Condition()

    async def until(self, name: str, count: int = 1) -> None:
        def wait() -> bool:
            with self.news:
                return self.news.wait_for(
                    lambda: sum(span.name == name for span in self.spans) >= count or bool(self.problems), 20
                )

        assert await to_thread.run_sync(wait)
        assert self.problems == []

    def named(self, name: str) -> Spanned:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    heard = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = heard.statuses.pop(0) if heard.statuses else 200
            with heard.news:
                try:
                    if self.path == "/v1/traces" and status == 200:
                        heard.raw += body
                        for resource in msgspec.json.decode(body, type=Traces).resource_spans:
                            # A span that was sent twice is the same span, as for any collector.
                            new = [span for scope in resource.scope_spans for span in scope.spans]
                            heard.spans += [span for span in new if span not in heard.spans]
                except msgspec.MsgspecError as error:
                    heard.problems.append(str(error))
                heard.news.notify_all()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        heard.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield heard
        server.shutdown()
        thread.join()


async def begun(log: Backbone) -> Fence:
    run, _ = await log.admit(NewRun("the secret prompt", "https://host.example/team/shop"), "ann")
    fence = await log.claim(OwnerId("o-1"), run)
    assert fence is not None
    return fence


CALL = ToolCall("c-1", "bash", {"command": "the secret command"})
ISOLATION = Isolation("container", "crun", True, "btrfs")
WORK = (
    e.PhaseEnded("clone", 0.5),
    e.SandboxOpened("s-1", ISOLATION, 0),
    e.AttemptStarted(0, "google:gemini-9"),
    e.ModelFailed(0, "overloaded", "secret text", 1.0, "google:gemini-9"),
    e.ModelReplied(0, 1, "google:gemini-9", "secret text", (CALL,), Usage(120, 30, 20), 2.5, cost=0.25),
    e.ToolReturned(0, "c-1", "bash", False, "secret output", 1.5, exit_code=2),
    e.ConnectionDecided("s-1", "evil.example", 443, "deny", "no rule"),
    e.ConnectionClosed("s-1", "pypi.example", 443, 10, 20, 0.75),
    e.AttemptEnded(0, "proven", "", "c", Comparison(())),
    e.SandboxClosed("s-1", "done"),
)
ENDED = e.RunFinished("proven", "all checks pass", 0)


@asynccontextmanager
async def shipping(log: Backbone, state: Path, receiver: Receiver) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ship_traces, log, state, Collector(receiver.url), 0.01)
        with anyio.fail_after(20):
            while not state.exists():  # noqa: ASYNC110, ASYNC240  (the file is how it says that it has begun)
                await anyio.sleep(0.01)
        yield
        tasks.cancel_scope.cancel()


async def test_a_run_is_a_trace_with_the_genai_conventions(tmp_path: Path, receiver: Receiver) -> None:
    async with open_backbone(tmp_path / "log.db", owner_lives=lambda _: True) as log:
        past = await begun(log)
        await log.append(past, [ENDED])
        receiver.statuses = [503]
        async with shipping(log, tmp_path / STATE_FILE, receiver):
            fence = await begun(log)
            await log.append(fence, WORK)
            await receiver.until("invoke_agent cloister")
        # Another server continues, and knows when the run began.
        async with shipping(log, tmp_path / STATE_FILE, receiver):
            await log.append(fence, [ENDED])
            await receiver.until("run")
    assert {span.get("gen_ai.conversation.id") for span in receiver.spans} == {fence.run}, "not of the past"
    assert len({span.trace_id for span in receiver.spans}) == 1
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)
    assert b"secret" not in receiver.raw
    run, attempt = receiver.named("run"), receiver.named("invoke_agent cloister")
    assert (run.parent_span_id, run.get("cloister.outcome"), run.status.code) == (None, "proven", 0)
    assert (run.get("cloister.repository"), run.get("enduser.id")) == (
        "https://host.example/team/shop",
        "ann",
    )
    assert {receiver.named(name).parent_span_id for name in ("queue", "sandbox", "phase clone", "invoke_agent cloister")} == {
        run.span_id
    }  # fmt: skip
    failed, chat = [span for span in receiver.spans if span.name == "chat gemini-9"]
    assert (failed.get("error.type"), failed.status.code) == ("overloaded", 2)
    assert (chat.parent_span_id, chat.kind, round(chat.seconds, 3)) == (attempt.span_id, 3, 2.5)
    assert {key: chat.get(key) for key in ("gen_ai.provider.name", "gen_ai.request.model")} == {
        "gen_ai.provider.name": "gcp.gemini", "gen_ai.request.model": "gemini-9",
    }  # fmt: skip
    assert (chat.get("gen_ai.usage.input_tokens"), chat.get("gen_ai.usage.output_tokens")) == (120, 30)
    assert chat.get("cloister.cost.dollars") == 0.25
    tool = receiver.named("execute_tool bash")
    assert (tool.parent_span_id, tool.get("gen_ai.tool.name")) == (attempt.span_id, "bash")
    assert (tool.get("process.exit.code"), tool.get("error.type")) == (2, "tool_failed")
    denied, door = [span for span in receiver.spans if span.name == "connect"]
    assert (denied.get("server.address"), denied.get("error.type")) == ("evil.example", "denied")
    assert (door.get("server.port"), door.get("cloister.received"), round(door.seconds, 3)) == (443, 20, 0.75)


async def test_a_server_sends_traces_where_the_settings_ask_for_them(
    tmp_path: Path, receiver: Receiver
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    config = data / "config.toml"
    config.write_text(f'otlp_endpoint = "{receiver.url}"\notlp_traces = true\n')
    async with open_app(read_settings({"USER": "root"}, data), role="server") as app:
        with anyio.fail_after(20):
            while not (data / STATE_FILE).exists():  # noqa: ASYNC110
                await anyio.sleep(0.01)
        run, _ = await app.backbone.admit(NewRun("p", "/nowhere", model="script:/none.toml"), "ann")
        app.supervisor.drive(RunId(run))
        await receiver.until("run")
    assert receiver.named("run").get("cloister.outcome") == "failed"
    config.write_text("otlp_traces = true\n")
    with pytest.raises(UserError, match="otlp_endpoint"):
        async with open_app(read_settings({"USER": "root"}, data), role="server"):
            pass
