"""Models for tests: one with prepared replies, one for all roles, and a tiny GGUF file."""

import struct
from array import array
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketStream

from cloister.core.requests import Usage
from cloister.model.api import Failure, Model, Reply, Request, Role, TextDelta

Said = tuple[TextDelta | Reply | Failure, ...]


class SayingModel:
    """A `Model` that yields prepared items in order and records its requests."""

    def __init__(self, *said: Said, until: anyio.Event | None = None) -> None:
        self._said = list(said)
        self._until = until
        """Nothing is said before."""
        self.asked: list[Request] = []
        self.was_asked = anyio.Event()

    @property
    def name(self) -> str:
        return "saying:model"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        self.asked.append(request)
        self.was_asked.set()
        said = self._said.pop(0)

        async def items() -> AsyncGenerator[TextDelta | Reply | Failure]:
            if self._until is not None:
                await self._until.wait()
            for item in said:
                yield item

        yield items()


# One model for all roles


@dataclass(frozen=True, slots=True)
class SoleModel:
    """`Models` with the same model for every role and name."""

    model: Model
    window_tokens: int | None = None

    def role(self, role: Role) -> Model:
        return self.model

    def chain(self, role: Role) -> tuple[str, ...]:
        return (self.model.name,)

    def named(self, name: str) -> Model:
        return self.model

    def window(self, name: str) -> int | None:
        return self.window_tokens

    def cost(self, name: str, usage: Usage) -> float | None:
        return None

    def instead(self, name: str) -> "SoleModel":
        return self


# A language model of a few kilobytes that knows one thing: it calls `finish`.
#
# It is a file that llama.cpp loads like any other. Its weights let each token's score depend on the token alone,
# so that under a schema it takes the action whose name begins with the letter it likes most, with empty texts.


_WIDTH = 32
_CONTEXT = 32_768
_UNSIGNED, _SIGNED, _FLOAT, _BOOLEAN, _TEXT, _LIST = 4, 5, 6, 7, 8, 9
_NORMAL_TOKEN, _UNKNOWN_TOKEN, _CONTROL_TOKEN, _BYTE_TOKEN = 1, 2, 3, 6
_LIKES = ('"', "f", "}", ":", ",")
"""What it says when it may, best first."""


def write_tiny_model(path: Path) -> Path:
    """Write the file; the same bytes each time."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN_TOKEN, _CONTROL_TOKEN, _CONTROL_TOKEN, *[_BYTE_TOKEN] * 256]
    facts = b"".join(
        (
            _fact("general.architecture", _TEXT, _text("llama")),
            _fact("general.name", _TEXT, _text("tiny")),
            _number("llama.context_length", _CONTEXT),
            _number("llama.embedding_length", _WIDTH),
            _number("llama.block_count", 1),
            _number("llama.feed_forward_length", _WIDTH),
            _number("llama.attention.head_count", 1),
            _number("llama.rope.dimension_count", _WIDTH),
            _fact("llama.attention.layer_norm_rms_epsilon", _FLOAT, struct.pack("<f", 1e-5)),
            _fact("tokenizer.ggml.model", _TEXT, _text("llama")),
            _list("tokenizer.ggml.tokens", _TEXT, [_text(token) for token in tokens]),
            _list("tokenizer.ggml.scores", _FLOAT, [struct.pack("<f", 0.0)] * len(tokens)),
            _list("tokenizer.ggml.token_type", _SIGNED, [struct.pack("<i", kind) for kind in kinds]),
            _number("tokenizer.ggml.bos_token_id", 1),
            _number("tokenizer.ggml.eos_token_id", 2),
            _fact("tokenizer.ggml.add_space_prefix", _BOOLEAN, b"\0"),
        )
    )
    tensors = _tensors(tokens)
    infos, data = b"", b""
    for name, (shape, values) in tensors.items():
        infos += _text(name) + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", side) for side in shape) + struct.pack("<IQ", 0, len(data))
        data += _padded(array("f", values).tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 16) + facts + infos
    path.write_bytes(_padded(head) + data)
    return path


def _tensors(tokens: list[str]) -> dict[str, tuple[tuple[int, ...], list[float]]]:
    """Every token looks the same, nothing is added to it, and the last layer prefers what it prefers."""
    zero = ((_WIDTH, _WIDTH), [0.0] * _WIDTH * _WIDTH)
    ones = ((_WIDTH,), [1.0] * _WIDTH)
    liked = {3 + ord(letter): 2.0 - at / 10 for at, letter in enumerate(_LIKES)}
    liked[2] = 3.0  # the end, where the schema allows it
    bias = [value for at in range(len(tokens)) for value in (liked.get(at, 0.0), *[0.0] * (_WIDTH - 1))]
    looks = [value for _ in tokens for value in (1.0, *[0.0] * (_WIDTH - 1))]
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {
        "token_embd.weight": ((_WIDTH, len(tokens)), looks),
        "output_norm.weight": ones,
        "output.weight": ((_WIDTH, len(tokens)), bias),
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.{name}.weight": zero for name in layer},
    }


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _fact(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _number(key: str, value: int) -> bytes:
    return _fact(key, _UNSIGNED, struct.pack("<I", value))


def _list(key: str, kind: int, items: list[bytes]) -> bytes:
    return _fact(key, _LIST, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


# A small HTTP server on loopback that answers like a model provider, one prepared answer per request.
#
# It is for tests of providers: real sockets, real HTTP, the providers' documented streaming formats, no network.


HEAD_BYTES = 65_536
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pieces: tuple[bytes, ...] = ()
    """The body; each piece is sent separately."""
    end: bool = True
    """False drops the connection where the body would end."""
    hold: bool = False
    """Wait for the client to disconnect before that."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict[str, object])


class ModelServer:
    """Sends queued answers and records the requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[ReceivedRequest] = []
        self.left = anyio.Event()
        """Set when a client disconnected during an answer with `hold`."""
        self._answers: deque[Answer] = deque()

    def say(self, *answers: Answer) -> None:
        """Queue answers, one for each request to come. A request without one gets status 500."""
        self._answers.extend(answers)

    async def serve(self, stream: SocketStream) -> None:
        """One connection, one request."""
        async with stream:
            try:
                with anyio.fail_after(REQUEST_SECONDS):
                    self.asked.append(await _request(stream))
                    answer = self._answers.popleft() if self._answers else Answer(500)
                    await self._answer(stream, answer)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                self.left.set()
            except TimeoutError:
                return

    async def _answer(self, stream: SocketStream, answer: Answer) -> None:
        headers = {"connection": "close", "transfer-encoding": "chunked", **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in headers.items())]
        await stream.send("\r\n".join([*lines, "", ""]).encode())
        for piece in answer.pieces:
            await stream.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if answer.hold:
            await stream.receive()
        if answer.end:
            await stream.send(b"0\r\n\r\n")


@asynccontextmanager
async def open_model_server() -> AsyncGenerator[ModelServer]:
    """A server on a free loopback port for as long as the block lasts."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 (a socket's, not Django's)
        server = ModelServer(f"http://127.0.0.1:{port}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server.serve)
            yield server
            tasks.cancel_scope.cancel()


async def _request(stream: SocketStream) -> ReceivedRequest:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
        if len(data) > HEAD_BYTES:
            raise anyio.BrokenResourceError
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive()
    return ReceivedRequest(method, path, headers, body)
