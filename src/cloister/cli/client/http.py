"""HTTP and WebSocket requests to one server. A refusal of the server is raised as the same error here.

A server may be hostile: replies are bounded, and every reply that cannot be read is a `HostError` (`bad_reply`).

HTTP is h11 over anyio: every wait can be cancelled, bodies of any size stream both ways, and the import costs a
tenth of a full client library.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import anyio
import anyio.lowlevel
import h11
import msgspec
from anyio.abc import ByteStream

from cloister.app.verbs.declare import BUILD_SECONDS, QUICK_SECONDS, Route, route_of
from cloister.core.computer import Sink
from cloister.core.errors import Bug, CloisterError, HostError, OutsideError, SandboxLost, UserError
from cloister.core.text import bounded, one_line

if TYPE_CHECKING:
    from ssl import SSLContext

    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

CONNECT_SECONDS = 10.0
STREAM_SECONDS = 120.0
"""How long a file transfer may make no progress."""
MESSAGE_BYTES = 16_777_216
REPLY_BYTES = 536_870_912
"""Largest reply that is read into memory."""
_REFUSAL_BYTES = 1_048_576
_SENTENCE_CHARS = 4_000
_SLOWEST = 1_024
"""Bytes per second that a reply must have on average."""
_READ_BYTES = 65_536
_REFUSED = 4000
"""WebSocket close codes from here are this number plus an HTTP status."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST = {401, 421, 503, 504}
_LISTS = {
    "runs": ("run", "ps"),
    "sandboxes": ("sandbox", "sandbox ls"),
    "snapshots": ("snapshot", "snapshot ls"),
    "templates": ("template", "template ls"),
    "tokens": ("token", "token list"),
    "logins": ("login", "token logins"),
    "models": ("model", "model list"),
    "webhooks": ("webhook", "webhook ls"),
}
"""Collection → the kind of its members and the command that lists them."""


Report = Callable[[float | None, str], None]


class _Progress(msgspec.Struct, frozen=True):
    fraction: float | None
    note: str


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str
    status: int = 500


class _Line(msgspec.Struct, frozen=True):
    progress: _Progress | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class Server(NamedTuple):
    """The address of a server and a token for it."""

    url: str
    token: str
    ca: Path | None = None
    """Certificates that vouch for the server's; None takes those of this machine."""

    def path(self, path: str) -> str:
        return urlsplit(self.url).path.rstrip("/") + path


def check_url(url: str) -> str:
    """Return `url` without a trailing slash. Raises `UserError` (`bad_server`): a token never travels in clear text."""
    try:
        parts = urlsplit(url)
        loopback, _ = parts.hostname in _LOOPBACK, parts.port
    except ValueError:
        parts, loopback = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UserError(
            "bad_server", "Give --server an address such as https://host or http://127.0.0.1:7717."
        )
    if parts.scheme == "http" and not loopback:
        raise UserError(
            "bad_server",
            f"A token must not be sent to {parts.hostname} over plain HTTP: use https, or an SSH tunnel to loopback.",
        )
    return url.rstrip("/")


def address(root: str, *parts: str | int, **query: object) -> str:
    """A path below `/v1`, each part quoted, with the query parameters that are not None.

    Raises `UserError` (`no_such_run`, …) for a name that no route can take.
    """
    name = str(parts[0]) if parts else "-"
    if set(name) <= {"."} or "/" in name:
        kind, command = _LISTS[root]
        raise UserError(f"no_such_{kind}", f"There is no {kind} {name!r}: `cloister {command}` lists them.")
    given = {name: value for name, value in query.items() if value is not None}
    quoted = "/".join(quote(str(part), safe="") for part in (root, *parts))
    return f"/v1/{quoted}" + (f"?{urlencode(given)}" if given else "")


class Transport:
    """Requests to the server that `find` names, each on its own connection."""

    def __init__(self, find: Callable[[], Awaitable[Server]]) -> None:
        self.find = find

    @classmethod
    def to(cls, server: Server) -> "Transport":
        async def find() -> Server:
            return server

        return cls(find)

    async def exchange(
        self,
        method: str,
        path: str,
        body: object = None,
        seconds: float = QUICK_SECONDS,
        key: str | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body of the reply. Raises the server's refusal, or `HostError`."""
        async with self._answered(method, path, body, seconds, key) as (status, pieces):
            return status, await _whole(pieces, REPLY_BYTES, seconds)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        seconds: float = QUICK_SECONDS,
        key: str | None = None,
    ) -> bytes:
        """Return the body of the reply. Raises as `exchange`."""
        return (await self.exchange(method, path, body, seconds, key))[1]

    @asynccontextmanager
    async def _answered(
        self,
        method: str,
        path: str,
        body: object = None,
        seconds: float = STREAM_SECONDS,
        key: str | None = None,
    ) -> AsyncGenerator[tuple[int, AsyncIterator[bytes]]]:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = [("Content-Type", "application/json")] if body is not None else []
        if key is not None:
            headers.append(("Idempotency-Key", key))
        async with _connected(await self.find(), seconds) as exchange:
            await exchange.request(method, path, [*headers, ("Content-Length", str(len(data)))])
            await exchange.send(h11.Data(data=data))
            await exchange.send(h11.EndOfMessage())
            status = await exchange.status()
            async with aclosing(exchange.body()) as pieces:
                if status >= 300:
                    raise failure(status, await _whole(pieces, _REFUSAL_BYTES, seconds))
                yield status, pieces

    async def progress(self, kind: type[T], path: str, body: object, report: Report) -> T:
        """Post a request that is answered with JSON lines: progress, then the result or an error."""
        left = b""
        async with self._answered("POST", path, body, BUILD_SECONDS) as (_, pieces):
            async for piece in pieces:
                *lines, left = (left + piece).split(b"\n")
                if len(left) > MESSAGE_BYTES:
                    raise bad_reply(f"a line has more than {MESSAGE_BYTES:,} bytes")
                for line in lines:
                    said = decoded(_Line, line)
                    if said.progress is not None:
                        report(said.progress.fraction, said.progress.note)
                    if said.error is not None:
                        raise failure(said.error.status, msgspec.json.encode(said.error))
                    if said.result:
                        return decoded(kind, said.result)
        raise HostError("server_gone", "The connection was lost before the server had finished.")

    async def get(self, kind: type[T], path: str, seconds: float = QUICK_SECONDS) -> T:
        return decoded(kind, await self.ask("GET", path, seconds=seconds))

    async def post(self, kind: type[T], path: str, body: object = None, seconds: float = QUICK_SECONDS) -> T:
        return decoded(kind, await self.ask("POST", path, body, seconds))

    @asynccontextmanager
    async def receiving(self, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """A body of any size; iterating raises `HostError` if it breaks off."""
        async with self._answered("GET", path) as (_, pieces):
            yield pieces

    def sending(self, path: str, seconds: float = STREAM_SECONDS) -> AbstractAsyncContextManager[Sink]:
        """A sink for a PUT body of any size; the body is complete when the block ends well."""
        return _sending(self, path, seconds)

    @asynccontextmanager
    async def dial(self, path: str, *, patient: bool = False) -> "AsyncGenerator[ClientConnection]":
        """A WebSocket. Raises the server's refusal, or `HostError` (`server_gone`).

        A `patient` one stays open while this side does not read.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        class Direct(connect):
            """Follows no redirect: the token would go with it."""

            def process_redirect(self, exc: Exception) -> Exception:
                return exc

        server = await self.find()
        connection = Direct(
            "ws" + server.url.removeprefix("http") + path,
            ssl=trusting(server.ca) if server.url.startswith("https") else None,
            additional_headers={"Authorization": f"Bearer {server.token}"},
            max_size=MESSAGE_BYTES,
            open_timeout=CONNECT_SECONDS,
            close_timeout=2,
            ping_interval=None if patient else 20,
            proxy=None,
        )
        try:
            socket = await connection
        except InvalidStatus as error:
            raise failure(error.response.status_code, bytes(error.response.body or b"")) from None
        except (OSError, WebSocketException, TimeoutError) as error:
            raise _gone(server, error) from None
        try:
            yield socket
        finally:
            with anyio.move_on_after(3, shield=True):
                await socket.close()


class Group:
    """Verbs of one subject over HTTP: those that declare their request; a subclass implements the others."""

    def __init__(self, transport: Transport) -> None:
        self.http = transport

    def __init_subclass__(cls) -> None:
        for name, verb in [item for base in cls.__bases__ for item in vars(base).items()]:
            route = route_of(verb) if inspect.isfunction(verb) else None
            if route is not None and name not in vars(cls):
                setattr(cls, name, _derived(verb, route))


def over_http(kind: type[T], transport: Transport) -> T:
    """The verbs of an interface, or of a `Group` that completes it."""
    made: Any = kind if issubclass(kind, Group) else type(kind.__name__, (Group, kind), {})
    return made(transport)


def _derived(verb: Callable[..., object], route: Route) -> Callable[..., Awaitable[object]]:
    about = inspect.signature(verb)
    root, *parts = route.path.split("/")

    async def call(self: Group, *args: object, **more: object) -> object:
        bound = about.bind(self, *args, **more)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        path = [str(given.pop(part[1:-1])) if part.startswith("{") else part for part in parts]
        report = given.pop("report", None)
        http, kind, key = self.http, str(about.return_annotation), None
        if route.method in ("GET", "DELETE"):
            query = {
                name: str(value).lower() if isinstance(value, bool) else value
                for name, value in given.items()
            }
            where, body = address(root, *path, **query), None
        else:
            key = cast("str | None", given.pop("key", None))
            names = dict(route.names)
            whole = {names.get(name, name): value for name, value in given.items()}
            where, body = address(root, *path), whole.get(route.body) if route.body else whole or None
        if report is not None:
            added = {**cast("dict[str, object]", body or {}), "progress": True}
            return await http.progress(record_of(kind), where, added, cast("Report", report))
        reply = await http.ask(route.method, where, body, route.seconds, key)
        if route.member is not None:
            found = decoded(dict[str, object], reply).get(route.member)
            if not isinstance(found, int if kind == "int" else str):
                raise bad_reply(f"it has no {route.member}")
            return found
        if kind == "str":
            return reply.decode("utf-8", errors="replace")
        return None if kind == "None" else decoded(record_of(kind), reply)

    return call


_RECORDS = {
    name: module
    for module, names in {
        "cloister.app.verbs.records": "Admitted BackgroundCommand ChangePack CommandOutput EnvironmentInfo Explained ForgeCheck LocalModel "
        "LoginInfo MadeToken Me ModelRole ModelTrial OneTimeLogin PolicyVerdict PortAddress SandboxToken TokenInfo "
        "TriggerInfo",
        "cloister.app.workbench.metrics": "SandboxMetrics",
        "cloister.app.checkup": "Checkup",
        "cloister.app.people.projects": "Access MadeShare Project ShareInfo",
        "cloister.app.verbs.knowledge": "RunNotes SkillList SkillText",
        "cloister.sandbox.code.contexts": "CodeContext CodeResult",
        "cloister.app.verbs.tools": "ToolList ToolTried",
        "cloister.app.verbs.webhooks": "DeadDelivery MadeWebhook WebhookInfo",
        "cloister.core.requests": "Attachment",
        "cloister.core.computer": "Entry",
        "cloister.core.events": "ChangeDelivered Event",
        "cloister.egress.packages": "Meaning",
        "cloister.environment.api": "Plan",
        "cloister.log.api": "Peer RunCount RunRow",
        "cloister.log.audit.entry": "AuditEntry Checkpoint",
        "cloister.log.audit.verify": "Verdict",
        "cloister.policy.api": "Policy",
        "cloister.runs.attempts.compare": "Compared",
        "cloister.runs.attempts.tree": "TreeView",
        "cloister.runs.attempts.verify": "Verified",
        "cloister.runs.attempts.why": "LineOrigin",
        "cloister.runs.budget": "BudgetReport",
        "cloister.runs.delivery": "Removal Removed",
        "cloister.runs.environments.repository": "Outlook",
        "cloister.runs.receipt": "Receipt",
        "cloister.runs.view": "RunView",
        "cloister.sandbox.api": "SandboxInfo SnapshotInfo",
        "cloister.sandbox.pool": "PoolInfo",
        "cloister.sandbox.templates.catalog": "TemplateInfo",
    }.items()
    for name in names.split()
}
"""Records that verbs return → their modules, each imported when a verb needs it."""


def record_of(annotation: str) -> Any:
    """The type that a return annotation of a verb means: a record, or a tuple of them."""
    name = annotation.removeprefix("tuple[").removesuffix(", ...]")
    found: Any = getattr(import_module(_RECORDS.get(name, "builtins")), name)
    return found if name == annotation else tuple[found, ...]


class _Exchange:
    """One request and its response."""

    def __init__(self, stream: ByteStream, server: Server, seconds: float) -> None:
        self._stream = stream
        self._server = server
        self._seconds = seconds
        self._state = h11.Connection(h11.CLIENT)
        self.sends_more = False
        """The answer may come after any time: the body is still being sent."""
        self.ended = False
        """The server has closed the connection."""

    async def request(self, method: str, path: str, headers: list[tuple[str, str]]) -> None:
        host = urlsplit(self._server.url).netloc
        common = [("Host", host), ("Authorization", f"Bearer {self._server.token}"), ("Connection", "close")]
        await self.send(
            h11.Request(method=method, target=self._server.path(path), headers=[*common, *headers])
        )

    async def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        if data := self._state.send(event):
            with anyio.fail_after(self._seconds):
                await self._stream.send(data)

    async def status(self) -> int:
        with anyio.fail_after(None if self.sends_more else self._seconds):
            while not isinstance(event := await self._next(), h11.Response):
                await anyio.lowlevel.checkpoint()
        return event.status_code

    async def body(self) -> AsyncGenerator[bytes]:
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def _next(self) -> object:
        while True:
            event = self._state.next_event()
            if event is not h11.NEED_DATA:
                if isinstance(event, h11.ConnectionClosed):
                    raise anyio.EndOfStream
                return event
            try:
                with anyio.fail_after(None if self.sends_more else self._seconds):
                    self._state.receive_data(await self._stream.receive(_READ_BYTES))
            except anyio.EndOfStream:
                self.ended = True
                self._state.receive_data(b"")


@asynccontextmanager
async def _connected(server: Server, seconds: float = STREAM_SECONDS) -> AsyncGenerator[_Exchange]:
    """One exchange, in which no send or receive may take longer than `seconds`."""
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            stream = await _connect(server)
    except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
        raise _gone(server, error) from None
    exchange = _Exchange(stream, server, seconds)
    try:
        async with stream:
            yield exchange
    except TimeoutError:
        raise HostError(
            "server_silent", f"The server at {server.url} did not answer in {seconds:g} s."
        ) from None
    except h11.RemoteProtocolError as error:
        raise (_lost(server) if exchange.ended else bad_reply(str(error))) from None
    except (h11.ProtocolError, anyio.EndOfStream, anyio.BrokenResourceError):
        raise _lost(server) from None


def _lost(server: Server) -> HostError:
    return HostError(
        "server_gone",
        f"The connection to the server at {server.url} was lost: see `cloister serve --status`.",
    )


async def _whole(pieces: AsyncIterator[bytes], limit: int, seconds: float) -> bytes:
    """Read a body to its end. Raises `HostError` (`bad_reply`) if it is too large or too slow."""
    found = bytearray()
    start = anyio.current_time()
    async for piece in pieces:
        found += piece
        if len(found) > limit:
            raise bad_reply(f"it has more than {limit:,} bytes")
        if anyio.current_time() - start > seconds + len(found) / _SLOWEST:
            raise TimeoutError
    return bytes(found)


async def _connect(server: Server) -> ByteStream:
    parts = urlsplit(server.url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = trusting(server.ca)
        return await anyio.connect_tcp(
            host, parts.port or 443, ssl_context=context, tls_standard_compatible=False
        )
    return await anyio.connect_tcp(host, parts.port or 80)


@cache
def trusting(ca: Path | None) -> "SSLContext":
    """How to check a server's certificate. Raises `UserError` (`bad_ca`)."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            "bad_ca",
            f"{ca} cannot be read as certificates in PEM ({error.strerror or 'not PEM'}): see CLOISTER_CA and `ca`.",
        ) from None


class _Upload:
    """The sink of a request body."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self.refused: CloisterError | None = None

    async def send(self, data: bytes) -> None:
        if self.refused is not None:
            raise self.refused
        if data:
            await self._exchange.send(h11.Data(data=data))


@asynccontextmanager
async def _sending(transport: Transport, path: str, seconds: float) -> AsyncGenerator[Sink]:
    async with _connected(await transport.find(), seconds) as exchange:
        await exchange.request("PUT", path, [("Transfer-Encoding", "chunked")])
        exchange.sends_more = True
        upload, answered = _Upload(exchange), anyio.Event()
        raised: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                # The server may refuse before it has the whole body, and close the connection.
                try:
                    status = await exchange.status()
                    reply = await _whole(exchange.body(), _REFUSAL_BYTES, seconds)
                except HostError as error:
                    upload.refused = error
                except (anyio.EndOfStream, anyio.BrokenResourceError, h11.ProtocolError, TimeoutError):
                    upload.refused = HostError("server_gone", "The server did not take the whole body.")
                else:
                    upload.refused = failure(status, reply) if status >= 300 else None
                finally:
                    answered.set()

            tasks.start_soon(listen)
            try:
                yield upload
                await exchange.send(h11.EndOfMessage())
            except (anyio.BrokenResourceError, h11.LocalProtocolError) as error:
                raised = error
            except Exception as error:  # raised below, outside of the group
                raised = error
                tasks.cancel_scope.cancel()
            with anyio.move_on_after(seconds) as wait:
                await answered.wait()
            if wait.cancelled_caught:
                raised = TimeoutError()
                tasks.cancel_scope.cancel()
        if upload.refused is not None:
            raise upload.refused
        if raised is not None:
            raise raised


def decoded(kind: type[T], reply: bytes | str) -> T:
    """Raises `HostError` (`bad_reply`)."""
    try:
        return msgspec.json.decode(reply, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_reply(str(error)) from None


def bad_reply(why: str) -> HostError:
    return HostError(
        "bad_reply", f"The server's reply is not what this version expects: {one_line(why, 200)}."
    )


def _gone(server: Server, error: Exception) -> HostError:
    why = getattr(error, "verify_message", None)
    if why is not None:
        return HostError(
            "bad_certificate",
            f"The certificate of {server.url} is not trusted ({one_line(str(why), 200)}): name the certificate of the "
            "authority that signed it in CLOISTER_CA, or the setting `ca`.",
        )
    if type(error).__name__ == "SSLError":
        return HostError("server_gone", f"The server at {server.url} does not speak TLS: check the address.")
    return HostError("server_gone", f"The server at {server.url} cannot be reached.")


def failure(status: int, reply: bytes) -> CloisterError:
    """The server's refusal as the error it was there."""
    if status < 300:
        return bad_reply(f"it has status {status}")
    if status < 400:
        return HostError(
            "redirected",
            f"The server answered with a redirect (status {status}), and a token is never sent to another address: "
            "give --server the address that the server has now.",
        )
    code, message = "refused", f"The server refused with status {status}."
    with suppress(HostError):
        said = decoded(_Error, reply)
        code, message = said.code, bounded(said.message, _SENTENCE_CHARS)
    if code in ("no_model", "no_key", "no_model_url"):
        message += " The server does the work with its own environment: set this there and restart it."
    match status:
        case 410:
            return SandboxLost(message)
        case 502:
            return OutsideError(code, message)
        case _ if status in _HOST:
            return HostError(code, message)
        case _ if status >= 500:
            return Bug(message)
        case _:
            return UserError(code, message)


def check_close(socket: "ClientConnection") -> None:
    """Raise what the server ended a WebSocket with, if it was a refusal."""
    if socket.close_code is not None and socket.close_code >= _REFUSED:
        status = socket.close_code - _REFUSED
        code = {403: "denied", 404: "not_found"}.get(status, "refused")
        problem = {"code": code, "message": socket.close_reason or ""}
        raise failure(status, msgspec.json.encode(problem))
