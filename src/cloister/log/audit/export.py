"""Export of the audit: entries to an OpenTelemetry collector over OTLP/HTTP, signed heads to other places."""

import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import to_thread

from cloister import __version__
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.text import one_line
from cloister.log.api import AuditLog
from cloister.log.audit.entry import AuditEntry, Checkpoint

if TYPE_CHECKING:
    import httpx2

SEND_SECONDS = 10.0
_REPLY_BYTES = 65_536
_INFO, _WARN = (9, "INFO"), (13, "WARN")
_TELLING = ('"effect":"deny"', '"answer":"deny"', '"ok":false')
_WARNINGS = frozenset({"LoginRefused", "Unsigned", "ModelFailed"})


class Collector(msgspec.Struct, frozen=True):
    """An OpenTelemetry collector."""

    endpoint: str
    """The base address; `/v1/logs` is added."""
    headers: dict[str, str] = {}
    """Additional headers, such as a key. Never printed."""


def check_endpoint(text: str) -> str:
    """Validate `text` as the address of a collector. Raises `UserError` (`bad_endpoint`)."""
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and bool(url.hostname) and "@" not in url.netloc
        good = good and url.port != 0 and not url.query and not url.fragment
    except ValueError:
        good = False
    if not good:
        raise UserError(
            "bad_endpoint",
            "A collector's address is http://HOST:PORT or https://HOST, without a password in it.",
        )
    return text.rstrip("/")


def logs(entries: Sequence[AuditEntry]) -> dict[str, object]:
    """Return the request body for `entries`."""
    return {
        "resourceLogs": [
            {
                "resource": {
                    "attributes": attributes({"service.name": "cloister", "service.version": __version__})
                },
                "scopeLogs": [
                    {
                        "scope": {"name": "cloister.audit", "version": "1"},
                        "logRecords": [_record(entry) for entry in entries],
                    }
                ],
            }
        ]
    }


def _record(entry: AuditEntry) -> dict[str, object]:
    number, text = _WARN if _is_warning(entry) else _INFO
    return {
        "timeUnixNano": str(entry.at_us * 1_000),
        "observedTimeUnixNano": str(entry.at_us * 1_000),
        "severityNumber": number,
        "severityText": text,
        "eventName": f"cloister.{entry.kind}",
        "body": {"stringValue": entry.detail},
        "attributes": attributes(
            {
                "cloister.audit.number": entry.number,
                "cloister.audit.kind": entry.kind,
                "cloister.run": entry.run,
                "cloister.event.seq": entry.seq,
                "enduser.id": entry.who or None,
                "cloister.audit.log": entry.log,
                "cloister.audit.previous": entry.previous,
                "cloister.audit.hash": entry.hash,
            }
        ),
    }


def _is_warning(entry: AuditEntry) -> bool:
    return entry.kind in _WARNINGS or any(word in entry.detail for word in _TELLING)


def attributes(values: Mapping[str, str | int | float | None]) -> list[dict[str, object]]:
    """Encode attributes as OTLP's JSON does: integers are strings."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: str | int | float) -> dict[str, object]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


async def send(client: "httpx2.AsyncClient", collector: Collector, entries: Sequence[AuditEntry]) -> None:
    """Send `entries`. Raises `OutsideError` (`collector_failed`) unless the collector accepts all of them."""
    await deliver(client, collector, "logs", logs(entries))


async def deliver(client: "httpx2.AsyncClient", collector: Collector, signal: str, content: object) -> None:
    """Send `content` to the collector's path for a signal. Raises `OutsideError` (`collector_failed`)."""
    import httpx2  # noqa: PLC0415  (few export, and it takes long to load)

    body = msgspec.json.encode(content)
    headers = {**collector.headers, "content-type": "application/json"}
    try:
        async with client.stream(
            "POST", f"{collector.endpoint}/v1/{signal}", content=body, headers=headers
        ) as response:
            reply = b""
            async for piece in response.aiter_bytes():
                reply += piece
                if len(reply) > _REPLY_BYTES:
                    break
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _failed(type(error).__name__) from None
    if not response.is_success:
        raise _failed(f"it answered {response.status_code}")
    if refused := _refused(reply):
        raise _failed(f"it refused {refused} entries")


def client() -> "httpx2.AsyncClient":
    """Create an HTTP client that ignores the proxies of the environment."""
    import httpx2  # noqa: PLC0415  (few export, and it takes long to load)

    return httpx2.AsyncClient(timeout=SEND_SECONDS, trust_env=False, follow_redirects=False)


class _Partial(msgspec.Struct, rename="camel"):
    rejected_log_records: int | str = 0
    rejected_spans: int | str = 0


class _Reply(msgspec.Struct, rename="camel"):
    partial_success: _Partial | None = None


def _refused(reply: bytes) -> str | None:
    try:
        partial = msgspec.json.decode(reply, type=_Reply).partial_success
    except msgspec.DecodeError:
        return None  # an empty answer is valid
    counts = (str(partial.rejected_log_records), str(partial.rejected_spans)) if partial else ()
    return next((one_line(count, 20) for count in counts if count != "0"), None)


def _failed(why: str) -> OutsideError:
    return OutsideError(
        "collector_failed",
        f"The OpenTelemetry collector did not accept the entries ({why}): check its address and that it runs.",
        retryable=True,
    )


# Continuous export by a server. The chain on disk is the queue: a failed page is sent again.


LOOK_SECONDS = 2.0
WAIT_SECONDS = 60.0
"""Longest pause after a failure."""

CURSOR_FILE = "audit.exported"
PAGE = 256

logger = logging.getLogger(__name__)


async def ship(
    log: AuditLog, cursor_file: Path, collector: Collector, look_seconds: float = LOOK_SECONDS
) -> None:
    """Send every entry of the audit once, in order, and go on for ever; at most a page is in memory.

    `cursor_file` keeps the number of the last entry that the collector accepted, so that the next server
    resumes there.
    """
    async with client() as http:

        async def step() -> bool:
            after = await to_thread.run_sync(_sent, cursor_file)
            page = await log.audit(after, PAGE)
            if page:
                await send(http, collector, page)
                await to_thread.run_sync(save, cursor_file, f"{page[-1].number}\n".encode())
            return len(page) == PAGE

        await repeat(step, "the audit", look_seconds)


async def repeat(step: Callable[[], Awaitable[bool]], what: str, look_seconds: float) -> None:
    """Call `step` for ever; it returns whether there is more to send. A failure is logged and tried again."""
    failures = 0
    while True:
        try:
            more = await step()
            if failures:
                logger.warning("%s is exported again", what)
            failures = 0
            if more:
                continue
        except (CloisterError, OSError) as error:
            failures += 1
            if failures == 1:
                logger.warning("%s is not exported: %s", what, error)
        await anyio.sleep(min(look_seconds * 2 ** min(failures, 10), WAIT_SECONDS))


def _sent(cursor_file: Path) -> int:
    """Return the number of the last accepted entry; 0 if unknown: sending twice is better than never."""
    try:
        text = cursor_file.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else 0


def save(file: Path, data: bytes) -> None:
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    draft.replace(file)


# Signed heads at places that a person who edits the data directory does not reach.


STATE_FILE = "heads.exported"
_SYSLOG = "syslog:"
_AUDIT_INFO = 13 * 8 + 6
_FILE_BYTES = 67_108_864
"""The priority of a message: facility `log audit`, severity `informational`."""

# Longer than any text of a guest or a model in a receipt, and a line of its own: neither can hold a forged one.
_HEAD = re.compile(
    r'\{"number":\d+,"hash":"[0-9a-f]{64}","at_us":\d+,"run":[^,{}]*,'
    r'"key":"ed25519:[0-9a-f]{64}","signature":"[0-9a-f]{128}"\}'
)
_TITLE = re.compile(r"# Receipt of run `([^`\n]*)`")
_PAGE_HEAD = re.compile(
    r"^- Head: entry ([0-9,]+), `([0-9a-f]{64})`\n- Signed at: (?:[0-9 :-]{19} UTC \()?([0-9]+) µs since 1970\)?, "
    r"key `(ed25519:[0-9a-f]{64})`\n- Signature: `([0-9a-f]{128})`$",
    re.MULTILINE,
)


class HeadState(msgspec.Struct):
    """How far the heads were exported to one place."""

    number: int = -1
    """The last head that arrived; -1 for none."""
    at: float = 0.0
    problem: str | None = None
    """Why the newest head did not arrive."""


def check_place(text: str) -> str:
    """Validate a place for heads. Raises `UserError` (`bad_place`)."""
    web = text.startswith(("http://", "https://"))
    try:
        good = bool(urlsplit(text).hostname) and "@" not in urlsplit(text).netloc
    except ValueError:
        good = False
    if not (good if web else Path(text.removeprefix(_SYSLOG)).is_absolute()):
        raise UserError(
            "bad_place",
            f"{one_line(text, 80)!r} is no place for signed heads: give the absolute path of a file, an address that "
            "takes POST, or syslog:/dev/log.",
        )
    return text


async def put_head(http: "httpx2.AsyncClient", place: str, head: Checkpoint) -> None:
    """Send one head. Raises `OutsideError` (`head_not_exported`), `OSError`."""
    import httpx2  # noqa: PLC0415  (few export, and it takes long to load)

    line = msgspec.json.encode(head)
    if place.startswith(("http://", "https://")):
        try:
            answer = await http.post(place, content=line, headers={"content-type": "application/json"})
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _not_taken(type(error).__name__) from None
        if not answer.is_success:
            raise _not_taken(f"it answered {answer.status_code}")
    elif place.startswith(_SYSLOG):
        await to_thread.run_sync(_log_head, place.removeprefix(_SYSLOG), line, abandon_on_cancel=True)
    else:
        await to_thread.run_sync(_append_head, place, line, abandon_on_cancel=True)


def _not_taken(why: str) -> OutsideError:
    return OutsideError("head_not_exported", f"The signed head was not accepted ({why}).", retryable=True)


def _log_head(path: str, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(SEND_SECONDS)
        channel.connect(path)
        channel.send(f"<{_AUDIT_INFO}>cloister-audit: ".encode() + line)


def _append_head(path: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def head_states(data_dir: Path) -> dict[str, HeadState]:
    """Return place → how far the heads were exported."""
    try:
        return msgspec.json.decode((data_dir / STATE_FILE).read_bytes(), type=dict[str, HeadState])
    except (OSError, msgspec.MsgspecError):
        return {}


ExportState = Literal["current", "waiting", "failing"]


def export_state(data_dir: Path, places: Sequence[str]) -> ExportState | None:
    """Whether the last head that was sent arrived at every place; None without places."""
    if not places:
        return None
    states = head_states(data_dir)
    if any(place in states and states[place].problem for place in places):
        return "failing"
    return "current" if all(place in states for place in places) else "waiting"


class HeadExport:
    """Sends the newest signed head to each place."""

    def __init__(self, read: Callable[[], Checkpoint | None], data_dir: Path, places: Sequence[str]) -> None:
        self._read = read
        self._data_dir = data_dir
        self._places = places

    async def run(self, look_seconds: float = LOOK_SECONDS) -> None:
        """Send each new head, for ever. A failure is logged, kept for `doctor`, and tried again."""
        await repeat(self.step, "the signed head", look_seconds)

    async def step(self) -> bool:
        """Send the newest head where it is missing. Raises the last failure after all places were tried."""
        head = await to_thread.run_sync(self._read)
        if head is None:
            return False
        states = await to_thread.run_sync(head_states, self._data_dir)
        waiting = [place for place in self._places if states.get(place, HeadState()).number != head.number]
        failure: CloisterError | OSError | None = None
        async with client() as http:
            for place in waiting:
                state = states.setdefault(place, HeadState())
                state.at = time.time()
                try:
                    await put_head(http, place, head)
                    state.number, state.problem = head.number, None
                except (CloisterError, OSError) as error:
                    failure, state.problem = error, one_line(str(error), 200)
        if waiting:
            kept = {place: states[place] for place in self._places}
            await to_thread.run_sync(save, self._data_dir / STATE_FILE, msgspec.json.encode(kept))
        if failure is not None:
            raise failure
        return False


def heads_in(place: str) -> list[Checkpoint]:
    """The signed heads at the end of a file that `put_head` appended to. Raises `OSError`."""
    with Path(place).open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _FILE_BYTES))
        return find_heads(file.read(_FILE_BYTES).decode("utf-8", "replace"))


def find_heads(text: str) -> list[Checkpoint]:
    """Return the signed heads in an export, a log with such lines, or receipts as pages or JSON."""
    heads = [msgspec.json.decode(found.encode(), type=Checkpoint) for found in _HEAD.findall(text)]
    for text_of_one in re.split(r"^(?=# Receipt of run )", text, flags=re.MULTILINE):
        title = _TITLE.match(text_of_one)
        heads += [
            Checkpoint(int(number.replace(",", "")), hashed, int(at_us), title and title[1], key, signature)
            for number, hashed, at_us, key, signature in _PAGE_HEAD.findall(text_of_one)
        ]
    return heads
