"""A server that lies, floods or redirects: one sentence each, and the token goes to no other address."""

import base64
import hashlib
import json
import re
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Literal

import anyio
import pytest
from msgspec import inspect
from tests.cli.client import forked
from tests.cli.client.test_everywhere import environment

from cloister.app.verbs.records import Admitted, Explained, LocalModel, MadeToken, TokenInfo
from cloister.app.verbs.webhooks import DeadDelivery, MadeWebhook, WebhookInfo
from cloister.cli.client import http
from cloister.core.errors import HostError
from cloister.core.events import Event
from cloister.core.text import ACTS
from cloister.log.api import RunRow
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.verify import Verdict
from cloister.runs.attempts.tree import TreeView
from cloister.runs.budget import BudgetReport
from cloister.runs.delivery import Removal, Removed
from cloister.runs.receipt import Receipt
from cloister.sandbox.api import SandboxInfo, SnapshotInfo
from cloister.sandbox.templates.catalog import TemplateInfo

TOKEN = "the-token-of-this-test"
Answer = Callable[[socket.socket, bytes], None]
Hostile = Callable[..., subprocess.CompletedProcess[str]]
ROW = {
    "id": "r-aaaabbbbcccc",
    "state": "finished",
    "outcome": "proven",
    "reason": None,
    "prompt": "do it",
    "repo": "/r",
    "model": None,
    "created_at": 1.0,
    "updated_at": 2.0,
    "last_seq": 1,
    "owner": None,
    "epoch": 1,
}


def serve(listener: socket.socket, answer: Answer, seen: list[bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (piece := connection.recv(65_536)):
                    break
                head += piece
            seen.append(head)
            answer(connection, head)


@contextmanager
def listening(answer: Answer) -> Generator[tuple[str, list[bytes]]]:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, args=(listener, answer, seen))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    """Run a command against a server that gives this answer to each request."""
    (tmp_path / "token").write_text(TOKEN)

    def run(answer: Answer, *argv: str) -> subprocess.CompletedProcess[str]:
        with listening(answer) as (url, _):
            named = (
                "--data-dir",
                str(tmp_path / "data"),
                "--server",
                url,
                "--token-file",
                str(tmp_path / "token"),
            )
            return forked.run((*named, *argv), cwd=tmp_path, env=environment())

    return run


def reply(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def says(data: bytes) -> Answer:
    return lambda connection, _: connection.sendall(data)


def endless(start: bytes, more: bytes) -> Answer:
    def answer(connection: socket.socket, _: bytes) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(more)

    return answer


def is_one_sentence(done: subprocess.CompletedProcess[str], said: str, code: int = 3) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("cloister: ") and done.stderr.count("\n") == 1
    assert len(done.stderr) < 5_000
    assert TOKEN not in done.stderr


DEEP = b"[" * 200_000
NOT_EXPECTED = "The server's reply is not what this version expects"
BROKEN: dict[str, tuple[Answer, str]] = {
    "endless header": (endless(b"HTTP/1.1 200 OK\r\nA: ", b"a" * 65_536), NOT_EXPECTED),
    "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 8_192), NOT_EXPECTED),
    "not HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), NOT_EXPECTED),
    "nothing": (says(b""), "The connection to the server"),
    "cut head": (says(b"HTTP/1.1 200 OK\r\nContent-Le"), "The connection to the server"),
    "cut body": (says(reply(b"[", length=100)), "The connection to the server"),
    "cut chunk": (
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n["),
        "The connection to the server",
    ),
    "two lengths": (says(reply(b"[]", "200 OK", "Content-Length: 3")), NOT_EXPECTED),
    "empty": (says(reply(b"")), NOT_EXPECTED),
    "no JSON": (says(reply(b"<html>")), NOT_EXPECTED),
    "no UTF-8": (says(reply(b'["\xff\xfe"]')), NOT_EXPECTED),
    "wrong type": (says(reply(b'{"id": 1}')), NOT_EXPECTED),
    "wrong member": (says(reply(json.dumps([ROW | {"prompt": ["x"]}]).encode())), NOT_EXPECTED),
    "deep": (says(reply(DEEP)), NOT_EXPECTED),
    "deep and ignored": (says(reply(b'[{"x": ' + DEEP + b"}]")), NOT_EXPECTED),
    "escapes": (says(reply(b'[{"\\u001b]0;x\\u0007\\u009b": 1, "id": "\\u001b[2J"}]')), NOT_EXPECTED),
}


@pytest.mark.parametrize(("answer", "said"), BROKEN.values(), ids=BROKEN)
def test_a_reply_that_cannot_be_read_is_one_sentence(hostile: Hostile, answer: Answer, said: str) -> None:
    is_one_sentence(hostile(answer, "ps"), said)


REFUSALS: dict[str, tuple[Answer, str, int]] = {
    "deep": (says(reply(DEEP, "400 No")), "refused with status 400", 2),
    "wrong types": (says(reply(b'{"code": 1, "message": []}', "403 No")), "refused with status 403", 2),
    "no UTF-8": (says(reply(b"\xff\xfe", "503 No")), "refused with status 503", 3),
    "endless": (endless(b"HTTP/1.1 400 No\r\n\r\n", b"x" * 65_536), "more than 1,048,576 bytes", 3),
    "long": (
        says(reply(json.dumps({"code": "x", "message": "x" * 900_000}).encode(), "400 No")),
        "characters in 1 lines left out",
        2,
    ),
}


@pytest.mark.parametrize(("answer", "said", "code"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_that_cannot_be_read_is_a_refusal(
    hostile: Hostile, answer: Answer, said: str, code: int
) -> None:
    done = hostile(answer, "ps")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and len(done.stderr) < 5_000
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


def test_a_body_without_an_end_is_read_to_the_bound_and_no_further(hostile: Hostile) -> None:
    done = hostile(endless(b"HTTP/1.1 200 OK\r\n\r\n[", b" " * 1_048_576), "ps")
    is_one_sentence(done, f"more than {http.REPLY_BYTES:,} bytes")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_a_redirect_is_one_sentence_and_the_token_stays_here(hostile: Hostile, status: int) -> None:
    with listening(says(reply(b"[]"))) as (elsewhere, seen):
        answer = says(reply(b"[]", f"{status} Moved", f"Location: {elsewhere}/v1/runs"))
        is_one_sentence(hostile(answer, "ps"), f"a redirect (status {status})")
    assert seen == []


def redirecting_sockets(elsewhere: str) -> Answer:
    """Answers requests about a run, and redirects its WebSocket."""

    def answer(connection: socket.socket, head: bytes) -> None:
        if b"Upgrade: websocket" in head:
            connection.sendall(reply(b"", "302 Found", f"Location: {elsewhere.replace('http', 'ws')}/"))
        else:
            connection.sendall(reply(json.dumps(ROW).encode()))

    return answer


def test_a_redirected_websocket_is_one_sentence_and_the_token_stays_here(hostile: Hostile) -> None:
    with listening(says(reply(b""))) as (elsewhere, seen):
        done = hostile(redirecting_sockets(elsewhere), "watch", ROW["id"])
    assert seen == []
    is_one_sentence(done, "a redirect (status 302)")


def upgraded(*messages: bytes) -> Answer:
    """Answers requests about a run, and sends these frames on its WebSocket."""

    def answer(connection: socket.socket, head: bytes) -> None:
        key = re.search(rb"Sec-WebSocket-Key: (\S+)", head)
        if key is None:
            connection.sendall(reply(json.dumps(ROW).encode()))
            return
        made = hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False)
        accept = base64.b64encode(made.digest()).decode()
        lines = (
            "HTTP/1.1 101 Yes",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept}",
        )
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        for message in messages:
            connection.sendall(b"\x81\x7f" + len(message).to_bytes(8, "big") + message)
        while connection.recv(65_536):
            pass

    return answer


@pytest.mark.parametrize(
    "message", [b"{", DEEP, b"[]", b'{"event": 1}', b'{"event": {"body": {"type": "No"}}}']
)
def test_a_message_that_cannot_be_read_is_one_sentence(hostile: Hostile, message: bytes) -> None:
    is_one_sentence(hostile(upgraded(message), "watch", ROW["id"]), NOT_EXPECTED)


def test_events_that_never_advance_end_with_a_sentence(hostile: Hostile) -> None:
    event = {
        "run": ROW["id"],
        "seq": 1,
        "at": 1.0,
        "body": {"type": "RunResumed", "after_seq": 0, "attempt": None},
    }
    done = hostile(says(reply(json.dumps([event] * 10_000).encode())), "log", ROW["id"])
    is_one_sentence(done, "the events are not in order")


POISON = "r-\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u200b\r\x08\x00"


PLAIN: dict[type[inspect.Type], object] = {
    inspect.StrType: POISON,
    inspect.BytesType: "",
    inspect.BoolType: True,
    inspect.IntType: 1,
    inspect.FloatType: 1,
}


def poisoned(kind: inspect.Type) -> object:
    """A value of this type with terminal escapes in every text, as JSON has it."""
    match kind:
        case inspect.StructType(fields=fields, tag=tag, tag_field=name):
            made = {field.encode_name: poisoned(field.type) for field in fields}
            return made | ({name: tag} if name else {})
        case inspect.UnionType(types=types):
            return poisoned(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [poisoned(item)]
        case inspect.TupleType(item_types=items):
            return [poisoned(item) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {str(poisoned(key)): poisoned(value)}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.StrType(pattern=str()):
            return "container"
        case _:
            return PLAIN.get(type(kind))


SHOWN: dict[str, object] = {
    "ps": tuple[RunRow, ...],
    "ps --json": tuple[RunRow, ...],
    "log r-x": tuple[Event, ...],
    "log r-x --json": tuple[Event, ...],
    "say r-x hi": Event,
    "stop r-x": Event,
    "rm r-x": Removed,
    "tree r-x": TreeView,
    "receipt r-x": str,
    "receipt r-x --json": Receipt,
    "budget": BudgetReport,
    "fork r-x --at 1 --detach": Admitted,
    "audit show r-x": tuple[AuditEntry, ...],
    "audit verify": Verdict,
    "audit key": dict[Literal["key"], str],
    "token add x": MadeToken,
    "token list": tuple[TokenInfo, ...],
    "webhook add x https://x.example/": MadeWebhook,
    "gc --dry-run": tuple[Removal, ...],
    "webhook ls": tuple[WebhookInfo, ...],
    "webhook dead": tuple[DeadDelivery, ...],
    "template ls": tuple[TemplateInfo, ...],
    "template show x": TemplateInfo,
    "template log x": str,
    "sandbox ls": tuple[SandboxInfo, ...],
    "sandbox create": SandboxInfo,
    "sandbox fork r-": tuple[SandboxInfo, ...],
    "sandbox rm r-": tuple[SandboxInfo, ...],
    "snapshot ls": tuple[SnapshotInfo, ...],
    "model list": tuple[LocalModel, ...],
    "policy explain bash:x": Explained,
}


@pytest.mark.parametrize("line", SHOWN)
def test_no_text_of_a_server_acts_on_the_terminal(hostile: Hostile, line: str) -> None:
    kind = SHOWN[line]
    value = poisoned(inspect.type_info(kind))
    body = POISON.encode() if kind is str else json.dumps(value).encode()
    row = json.dumps(poisoned(inspect.type_info(RunRow))).encode()

    def answer(connection: socket.socket, head: bytes) -> None:
        if re.search(rb"/row[ ?]", head):
            connection.sendall(reply(row))
        else:  # the second page of a list is empty
            connection.sendall(reply(b"[]" if re.search(rb"after=[1-9]", head) else body))

    done = hostile(answer, *line.split())
    assert re.search(r"owned|31m|r-", done.stdout + done.stderr), "the text was shown"
    assert re.findall(rf"[\x00-\x08\x0b-\x1f{ACTS}]", done.stdout + done.stderr) == []
    assert "Traceback" not in done.stderr


def test_no_refusal_of_a_server_acts_on_the_terminal(hostile: Hostile) -> None:
    problem = json.dumps({"code": POISON, "message": POISON}).encode()
    for status in ("400 No", "410 Gone", "500 Bug", "502 Outside", "503 Busy"):
        done = hostile(says(reply(problem, status)), "ps")
        assert done.returncode and "31m" in done.stderr
        assert re.findall(rf"[\x00-\x08\x0b-\x1f{ACTS}]", done.stdout + done.stderr) == []


def takes_all(connection: socket.socket, head: bytes) -> None:
    """Reads a chunked body to its end, then answers."""
    left = head
    while not left.endswith(b"0\r\n\r\n"):
        if not (piece := connection.recv(1_048_576)):
            return
        left = left[-8:] + piece
    connection.sendall(reply(b"", "204 Done"))


@pytest.mark.anyio
async def test_a_long_upload_is_given_the_time_it_needs() -> None:
    """The answer comes after the body: the wait for it begins at the end of the body."""
    with listening(takes_all) as (url, _):
        transport = http.Transport.to(http.Server(url, TOKEN))
        async with transport.sending("/v1/x", seconds=0.2) as sink:
            end = anyio.current_time() + 1
            while anyio.current_time() < end:
                await sink.send(b"x" * 1_000)


@pytest.mark.anyio
async def test_a_server_that_takes_a_body_and_stays_silent_is_given_up() -> None:
    def silent(connection: socket.socket, _: bytes) -> None:
        while connection.recv(65_536):
            pass

    with listening(silent) as (url, _):
        transport = http.Transport.to(http.Server(url, TOKEN))
        with pytest.raises(HostError) as raised:
            async with transport.sending("/v1/x", seconds=0.2) as sink:
                await sink.send(b"x")
    assert raised.value.code == "server_silent"
