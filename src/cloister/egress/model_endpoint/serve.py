"""`http://model.cloister`: one request of a program inside, asked of the run's model and answered in its own format.

No key is needed: what the program sends as one is dropped with the other headers. The model that is asked pays from
the budget of the attempt, or of the run, that the sandbox belongs to (`AskedModel`), so this is no way around either.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

import anyio
import msgspec

from cloister.core import limits
from cloister.core.ids import SandboxId
from cloister.egress.http.exchange import BadBody, chunk, pieces
from cloister.egress.http.head import HERE, Head
from cloister.egress.model_endpoint.api import Asked, BadRequest, InsideModel, Wire, Writer
from cloister.egress.quota import BROKEN, shared_limiter
from cloister.egress.streams import Inlet
from cloister.model.api import Failure, FailureCode, Reply, TextDelta

HOST = "model.cloister"

ENV = {
    "OPENAI_BASE_URL": f"http://{HOST}/v1",
    "OPENAI_API_KEY": "none-needed",
    "ANTHROPIC_BASE_URL": f"http://{HOST}",
    "ANTHROPIC_API_KEY": "none-needed",
}
"""Environment variables that point the usual clients at the endpoint."""

AskedModel = Callable[[SandboxId], InsideModel | None]
"""The model for the programs of a sandbox; None while it has none."""

_BODY_SECONDS = 60.0
_SEND_SECONDS = 60.0
"""The connection closes when a program does not read its reply for this long."""
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
_VERSION = "/v1"
"""Of every path; it may be left out, because some clients append it to the address and others do not."""
_CHAT = "/chat/completions"
_COUNT = "/messages/count_tokens"
_MODELS = "/models"
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    402: b"Payment Required",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    529: b"Overloaded",
}


@cache
def _wires() -> dict[str, Wire]:
    """The formats by the path of their requests."""
    # Slow to load, and most runs have no program inside that calls a model.
    from cloister.egress.model_endpoint.chat import Chat  # noqa: PLC0415
    from cloister.egress.model_endpoint.messages import Messages  # noqa: PLC0415
    from cloister.egress.model_endpoint.responses import Responses  # noqa: PLC0415

    return {_CHAT: Chat(), "/responses": Responses(), "/messages": Messages(), _COUNT: Messages()}


class _No(Exception):
    """An error reply in the wire format."""

    def __init__(self, status: int, code: str, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_seconds = retry_seconds


def status_of(code: FailureCode) -> int:
    """The status for a failure of the model. A spent budget is 402, which clients do not retry."""
    match code:
        case "budget":
            return 402
        case "rate_limit":
            return 429
        case "overloaded":
            return 529
        case "context_too_long" | "refused" | "bad_request":
            return 400
        case "auth" | "quota" | "network" | "bad_reply" | "off_script":
            # A problem between the run and its provider: a program inside cannot fix it.
            return 502


@dataclass(slots=True)
class _Use:
    """The use of the endpoint by one sandbox."""

    calls: int = 0
    failures: int = 0
    bytes: int = 0
    """The size of the requests in progress."""


class Endpoint:
    """The endpoint's handler for one proxy."""

    def __init__(self, model: AskedModel, send_seconds: float = _SEND_SECONDS) -> None:
        self._model = model
        self._send_seconds = send_seconds
        self._uses: dict[SandboxId, _Use] = {}

    async def serve(self, sandbox: SandboxId, head: Head, client: Inlet) -> None:
        """Serve one request, after which the connection closes."""
        client = _Hasty(client, self._send_seconds)
        path = head.path.rstrip("/")
        path = path.removeprefix(_VERSION) if f"{path}/".startswith(f"{_VERSION}/") else path
        wires = _wires()
        wire = wires.get(path)
        try:
            if head.method in ("GET", "HEAD") and (found := self._described(sandbox, path)) is not None:
                await _send(client, 200, b"" if head.method == "HEAD" else msgspec.json.encode(found))
                return
            if wire is None:
                known = ", ".join(_VERSION + one for one in (*wires, _MODELS))
                raise _No(404, "not_found", f"There is {known} here.")
            if head.method != "POST":
                raise _No(405, "bad_request", f"{head.path} is asked with POST.")
            model = self._of(sandbox)
            with self._counted(sandbox) as use:
                await self._call(path, head, client, model, use)
        except BadRequest as error:
            await _send(client, 400, (wire or wires[_CHAT]).error(400, "bad_request", str(error)))
        except _No as no:
            data = (wire or wires[_CHAT]).error(no.status, no.code, no.message)
            await _send(client, no.status, data, no.retry_seconds)

    async def _call(self, path: str, head: Head, client: Inlet, model: InsideModel, use: _Use) -> None:
        wire = _wires()[path]
        size = 0

        def more(taken: int) -> None:
            nonlocal size
            size += taken
            use.bytes += taken
            if use.bytes > limits.ENDPOINT_HELD_BYTES:
                most = f"{limits.ENDPOINT_HELD_BYTES:,}"
                raise _No(
                    429, "rate_limit", f"Requests that are served at a time have at most {most} bytes.", 1.0
                )

        try:
            body = await _body(head, client, more)
            asked = await anyio.to_thread.run_sync(
                wire.read, body, limiter=shared_limiter("decode", limits.ENDPOINT_DECODES)
            )
            del body
            if path == _COUNT:
                tokens = {"input_tokens": model.tokens(asked.request)}
                await _send(client, 200, msgspec.json.encode(tokens))
                return
            await self._answer(wire.writer(asked), asked, model, client, use)
        finally:
            use.bytes -= size

    @contextmanager
    def _counted(self, sandbox: SandboxId) -> Generator[_Use]:
        """Limit concurrent requests: each may hold a large body in memory and a call to the provider."""
        use = self._uses.setdefault(sandbox, _Use())
        if use.calls >= limits.ENDPOINT_CALLS:
            raise _No(
                429, "rate_limit", f"At most {limits.ENDPOINT_CALLS} requests at a time are served.", 1.0
            )
        if use.failures >= limits.ENDPOINT_FAILURES:
            raise _No(400, "refused", f"{limits.ENDPOINT_FAILURES} calls have failed: no more are made.")
        use.calls += 1
        try:
            yield use
        finally:
            use.calls -= 1

    def _of(self, sandbox: SandboxId) -> InsideModel:
        model = self._model(sandbox)
        if model is None:
            raise _No(
                503,
                "no_model",
                "This sandbox has no model: it belongs to no run that has one, and was made without.",
            )
        return model

    def _described(self, sandbox: SandboxId, path: str) -> dict[str, object] | None:
        """The reply to a request without a body; None if there is none. Every name is one of the only model."""
        if not path:
            return {"name": HOST}
        if path != _MODELS and not path.startswith(f"{_MODELS}/"):
            return None
        model = self._of(sandbox)
        one: dict[str, object] = {"object": "model", "type": "model", "display_name": model.name}
        one |= {"created": 0, "created_at": "1970-01-01T00:00:00Z", "owned_by": "cloister"}
        if model.window is not None:
            one["context_window"] = model.window
        if path != _MODELS:
            return {**one, "id": path.removeprefix(f"{_MODELS}/")}
        return {"object": "list", "data": [{**one, "id": model.name}], "has_more": False}

    async def _answer(
        self, writer: Writer, asked: Asked, model: InsideModel, client: Inlet, use: _Use
    ) -> None:
        answer: _Streamed | _Whole = _Streamed(writer, client) if asked.stream else _Whole(writer, client)
        last: Reply | Failure | None = None
        async with model.stream(asked.request) as items:
            async for item in items:
                match item:
                    case TextDelta():
                        await answer.text(item.text)
                    case Reply() | Failure():
                        last = item
                        break
        # The reservation for the call is released by now, so an immediate retry finds the room.
        match last:
            case Reply():
                await answer.end(last)
            case Failure():
                # A failed call costs nothing, so no budget would stop a program that only makes failing calls.
                use.failures += last.code != "budget"
                if not answer.begun:
                    raise _No(status_of(last.code), last.code, last.message, last.retry_seconds)
                await answer.failed(last)
            case None:
                pass


def hosts(model: AskedModel) -> dict[str, Callable[[SandboxId, Head, Inlet], Awaitable[None]]]:
    """The endpoint at its name, and at the address of the proxy for clients that use no proxy."""
    serve = Endpoint(model).serve
    return {HOST: serve, HERE: serve}


class _Hasty(Inlet):
    """A client that must read within a deadline. Raises `BrokenResourceError` if it does not."""

    def __init__(self, client: Inlet, seconds: float) -> None:
        super().__init__(client)
        self._seconds = seconds

    async def send(self, item: bytes) -> None:
        try:
            with anyio.fail_after(self._seconds):
                await super().send(item)
        except TimeoutError:
            raise anyio.BrokenResourceError from None


class _Whole:
    """A reply that is sent when it is complete."""

    begun = False

    def __init__(self, writer: Writer, client: Inlet) -> None:
        self._writer = writer
        self._client = client

    async def text(self, text: str) -> None:
        return None

    async def end(self, reply: Reply) -> None:
        await _send(self._client, 200, self._writer.whole(reply))

    async def failed(self, failure: Failure) -> None:
        return None


class _Streamed:
    """A reply that is streamed."""

    def __init__(self, writer: Writer, client: Inlet) -> None:
        self._writer = writer
        self._client = client
        self.begun = False

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._client.send(_STREAM_HEAD + chunk(self._writer.begin()))

    async def text(self, text: str) -> None:
        await self._begin()
        await self._client.send(chunk(self._writer.text(text)))

    async def end(self, reply: Reply) -> None:
        if not self.begun and reply.text:
            await self.text(reply.text)
        await self._begin()
        await self._client.send(chunk(self._writer.end(reply)) + chunk(b""))

    async def failed(self, failure: Failure) -> None:
        await self._client.send(chunk(self._writer.failed(failure)) + chunk(b""))


async def _body(head: Head, client: Inlet, more: Callable[[int], None]) -> bytes:
    """Read the body, calling `more` with each piece. Raises `_No` and `BadRequest`."""
    read = bytearray()
    _check_size(head.body if isinstance(head.body, int) else 0)
    if head.waits:
        await client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        with anyio.fail_after(_BODY_SECONDS):
            async for piece in pieces(client, head.body, strict=True):
                more(len(piece))
                read += piece
                _check_size(len(read))
        return bytes(read)
    except TimeoutError:
        raise BadRequest("The body did not arrive in time.") from None
    except BadBody as error:
        raise BadRequest(str(error)) from None


def _check_size(count: int) -> None:
    if count > limits.ENDPOINT_BODY_BYTES:
        raise _No(413, "too_large", f"A request has at most {limits.ENDPOINT_BODY_BYTES:,} bytes.")


async def _send(client: Inlet, status: int, data: bytes, retry_seconds: float | None = None) -> None:
    lines = [
        b"HTTP/1.1 %d %s" % (status, _REASONS[status]),
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(data),
        b"Connection: close",
    ]
    if retry_seconds is not None:
        lines.append(b"Retry-After: %d" % max(1, round(retry_seconds)))
    with suppress(*BROKEN):
        await client.send(b"\r\n".join([*lines, b"", data]))
