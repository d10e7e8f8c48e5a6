"""A connection to an MCP server, with the official SDK: opened when it is needed, ended when it does not answer.

The SDK is imported here only, and this module is imported only where a server is declared.
"""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from anyio import TASK_STATUS_IGNORED, BrokenResourceError, CancelScope, ClosedResourceError, EndOfStream
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectSendStream
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from cloister import __version__
from cloister.agent.tools._spawn import started
from cloister.agent.tools.api import Show
from cloister.core import limits
from cloister.core.computer import Command, Computer, Exited, Output
from cloister.core.errors import HostError, SandboxLost, UserError, sole
from cloister.core.text import decode, one_line

MESSAGE_BYTES = 4_194_304
"""One message of a server; a longer one ends the connection."""
STARTS = 5
"""How often a server is started in one attempt."""
TOOLS = 500
CALL_BYTES, CALL_MESSAGES = 67_108_864, 10_000
"""What a server may send during one call."""
IDLE_BYTES, IDLE_MESSAGES = 8_388_608, 2_000
"""What it may send while it starts and lists its tools, and from one call to the next."""
_PAGES = 50
_TAIL_BYTES = 2_000
_READ_BYTES = 65_536
_PROGRESS_CHARS = 300

Streams = tuple[Any, Any]
Connect = Callable[["Tail"], AbstractAsyncContextManager[Streams]]
"""Opens a transport: streams of `SessionMessage`."""

# SAFETY: a server's text must not reach our log.
logging.getLogger("mcp").setLevel(logging.CRITICAL)


@dataclass(slots=True)
class Tail:
    """The end of what a server printed beside its messages, and how much it may still send."""

    data: bytes = b""
    why: str = ""
    """Why we ended the connection, if we did."""
    hidden: tuple[tuple[bytes, bytes], ...] = ()
    """Secrets of the server, and what is read in place of each."""
    bytes_left: int = IDLE_BYTES
    messages_left: int = IDLE_MESSAGES

    def add(self, data: bytes) -> None:
        self.data = self.without_secrets(self.data + data)[-_TAIL_BYTES:]

    def hide(self, secrets: Mapping[str, str]) -> None:
        """SAFETY: a server that repeats its secret in a result or a complaint must not give it to a model or a log."""
        forms = ((key, form) for key, text in secrets.items() for form in {text, json.dumps(text)[1:-1]})
        self.hidden = tuple((form.encode(), f"[{key}]".encode()) for key, form in forms)

    def without_secrets(self, data: bytes) -> bytes:
        for secret, told in self.hidden:
            data = data.replace(secret, told)
        return data

    def allow(self, size: int, messages: int) -> None:
        self.bytes_left, self.messages_left = size, messages

    def took(self, size: int, messages: int = 0) -> None:
        """Raises `HostError` (`mcp_failed`) for a server that sends without end."""
        self.bytes_left -= size
        self.messages_left -= messages
        if self.bytes_left < 0 or self.messages_left < 0:
            raise self.refused("too much" if self.bytes_left < 0 else "too many messages")

    def refused(self, what: str) -> HostError:
        self.why = f"It sent {what}."
        return HostError("mcp_failed", self.why)

    @property
    def text(self) -> str:
        said = one_line(decode(self.data), 300)
        return f" {self.why}" if self.why else f" It printed: {said}" if said else ""


class _Session(ClientSession):
    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """SAFETY: a schema of the server could hold a pattern that takes exponential time."""
        del name, result


@dataclass(slots=True)
class _Live:
    session: _Session
    scope: CancelScope
    closed: anyio.Event = field(default_factory=anyio.Event)


class Server:
    """One server in one attempt. `tasks` holds its connection."""

    def __init__(self, name: str, connect: Connect, tasks: TaskGroup, *, start_seconds: float) -> None:
        self.name = name
        self._connect = connect
        self._tasks = tasks
        self._start_seconds = start_seconds
        self._live: _Live | None = None
        self._lost: SandboxLost | None = None
        self._lock = anyio.Lock()
        self._starts = 0
        self._tail = Tail()

    async def tools(self) -> list[types.Tool]:
        """Its tools, at most `TOOLS`. Raises `HostError` (`mcp_failed`), `SandboxLost`."""
        session = await self._session()
        found: list[types.Tool] = []
        cursor: str | None = None
        try:
            with anyio.fail_after(self._start_seconds):
                for _ in range(_PAGES):
                    page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None or len(found) >= TOOLS:
                        break
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = one_line(".".join(map(str, wrong["loc"])), 100)
            what = f"sent a list of tools that is not MCP ({place}: {one_line(wrong['msg'], 100)})"
            raise self._failed(what, error) from None
        except Exception as error:
            raise self._failed("did not list its tools", error) from None
        return found[:TOOLS]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float, show: Show
    ) -> types.CallToolResult:
        """Raises `HostError` (`mcp_failed`), `SandboxLost`. A server that does not answer is ended."""
        session = await self._session()

        async def told(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
            show("err", f"{self.name}: {share} {one_line(message or '', _PROGRESS_CHARS)}\n".encode())

        self._tail.allow(CALL_BYTES, CALL_MESSAGES)
        try:
            with anyio.fail_after(seconds):
                return await session.call_tool(tool, dict(arguments), progress_callback=told)
        except TimeoutError as error:
            raise self._failed(f"did not answer within {seconds:g} s", error) from None
        except MCPError as error:
            if error.code != types.CONNECTION_CLOSED:
                raise HostError(
                    "mcp_failed", f"It answered with an error: {one_line(error.message, 2_000)}"
                ) from None
            raise self._failed("ended", error) from None
        except Exception as error:
            raise self._failed("answered with something else than a result", error) from None
        finally:
            self._tail.allow(IDLE_BYTES, IDLE_MESSAGES)

    def _failed(self, what: str, error: Exception) -> HostError | SandboxLost:
        """End the connection; the next call starts the server again."""
        if self._live is not None:
            self._live.scope.cancel()
            self._live = None
        cause = sole(error)
        if self._lost is not None:
            return self._lost
        if isinstance(cause, SandboxLost):
            return cause
        if isinstance(cause, TimeoutError) and "within" not in what:
            what = f"{what} within {self._start_seconds:g} s"
        again = " The next call starts it again." if self._starts < STARTS else ""
        return HostError("mcp_failed", f"The MCP server {self.name} {what}.{self._tail.text}{again}")

    async def _session(self) -> _Session:
        async with self._lock:
            if self._live is not None and not self._live.closed.is_set():
                return self._live.session
            if self._starts >= STARTS:
                raise HostError(
                    "mcp_failed", f"The MCP server {self.name} ended {STARTS} times and is not started again."
                )
            self._starts += 1
            self._tail.data, self._tail.why = b"", ""
            self._tail.allow(IDLE_BYTES, IDLE_MESSAGES)
            try:
                with anyio.fail_after(self._start_seconds):
                    live = self._live = await self._tasks.start(self._hold)
            except Exception as error:
                cause = sole(error)
                if isinstance(cause, UserError | HostError):
                    why = f"cannot be started: {cause.message.rstrip('.')}"
                elif isinstance(cause, TimeoutError):
                    why = f"was not ready within {self._start_seconds:g} s"
                else:
                    why = "does not speak MCP, or has ended"
                raise self._failed(why, error) from None
            return live.session

    async def _hold(self, *, task_status: TaskStatus[_Live] = TASK_STATUS_IGNORED) -> None:
        """Keep one connection open until it is cancelled or breaks."""
        live: _Live | None = None
        about = types.Implementation(name="cloister", version=__version__)
        try:
            with CancelScope() as scope:
                async with (
                    self._connect(self._tail) as (read, write),
                    _Session(read, write, client_info=about) as session,
                ):
                    await session.initialize()
                    live = _Live(session, scope)
                    task_status.started(live)
                    await anyio.sleep_forever()
        except Exception as error:
            if live is None:
                raise
            cause = sole(error)
            if isinstance(cause, SandboxLost):
                self._lost = cause
        finally:
            if live is not None:
                live.closed.set()


# Transports over stdio


class _Lines:
    """Messages of a server from the bytes that it prints: one JSON object per line."""

    def __init__(self, into: "MemoryObjectSendStream[SessionMessage | Exception]", tail: Tail) -> None:
        self._into = into
        self._tail = tail
        self._rest = bytearray()

    async def add(self, data: bytes) -> None:
        """Raises `HostError` (`mcp_failed`) for a line that is too long, and for too many."""
        self._tail.took(len(data))
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > MESSAGE_BYTES:
                raise self._too_long()
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for line in lines:
            if len(line) > MESSAGE_BYTES:
                raise self._too_long()
            self._tail.took(0, 1)
            if line.strip():
                await self._message(self._tail.without_secrets(bytes(line)))

    def _too_long(self) -> HostError:
        return self._tail.refused(f"a message of more than {MESSAGE_BYTES:,} bytes")

    async def _message(self, line: bytes) -> None:
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._tail.add(line + b"\n")  # many print a greeting
            return
        await self._into.send(SessionMessage(message))


def _line(message: SessionMessage) -> bytes:
    return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def in_sandbox(computer: Computer, argv: tuple[str, ...], env: Mapping[str, str], cwd: str) -> Connect:
    """A server that runs in the sandbox, on the pipes of a command."""
    command = Command(
        argv,
        cwd=cwd,
        env=dict(env),
        seconds=limits.TTL_SECONDS_MAX,
        limit_bytes=limits.ENDLESS_BYTES,
        grace_seconds=0.5,
    )

    @asynccontextmanager
    async def connect(tail: Tail) -> AsyncGenerator[Streams]:
        async with computer.start(command) as process, _streams() as (read, into, write, sent):

            async def receive() -> None:
                lines = _Lines(into, tail)
                async for item in process:
                    match item:
                        case Output(stream="out", data=data):
                            await lines.add(data)
                        case Output(data=data):
                            tail.took(len(data))
                            tail.add(data)
                        case Exited():
                            return

            async def send() -> None:
                async for message in sent:
                    await process.send(_line(message))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_broken, receive, tasks)
                tasks.start_soon(_until_broken, send, tasks)
                yield read, write
                tasks.cancel_scope.cancel()

    return connect


def on_host(
    argv: tuple[str, ...], env: Mapping[str, str], secrets: Callable[[], Awaitable[dict[str, str]]]
) -> Connect:
    """A server that runs on this machine, without the environment of this process."""

    @asynccontextmanager
    async def connect(tail: Tail) -> AsyncGenerator[Streams]:
        tail.hide(read := await secrets())
        try:
            async with (
                started(argv, {**env, **read}, merged=False) as process,
                _streams() as (read, into, write, sent),
            ):
                out, err, pipe = process.stdout, process.stderr, process.stdin
                if out is None or err is None or pipe is None:
                    raise HostError("mcp_failed", "It has no pipes.")

                async def receive() -> None:
                    lines = _Lines(into, tail)
                    while True:
                        await lines.add(await out.receive(_READ_BYTES))

                async def complaints() -> None:
                    while True:
                        data = await err.receive(_READ_BYTES)
                        tail.took(len(data))
                        tail.add(data)

                async def send() -> None:
                    async for message in sent:
                        await pipe.send(_line(message))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_until_broken, receive, tasks)
                    tasks.start_soon(_until_broken, complaints, None)
                    tasks.start_soon(_until_broken, send, tasks)
                    yield read, write
                    tasks.cancel_scope.cancel()
        except OSError as error:
            raise HostError("mcp_failed", f"{argv[0]} cannot be started ({error.strerror})") from None

    return connect


@asynccontextmanager
async def _streams() -> AsyncGenerator[tuple[Any, Any, Any, Any]]:
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, sent = anyio.create_memory_object_stream[SessionMessage](0)
    async with into, read, write, sent:
        yield read, into, write, sent


async def _until_broken(work: Callable[[], Any], tasks: TaskGroup | None) -> None:
    """Run one direction. Its end is that of the connection, `tasks`."""
    with suppress(EndOfStream, BrokenResourceError, ClosedResourceError):
        await work()
    if tasks is not None:
        tasks.cancel_scope.cancel()
