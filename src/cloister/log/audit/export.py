"""Export of the audit to an OpenTelemetry collector over OTLP/HTTP, in JSON."""

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec
from anyio import to_thread

from cloister import __version__
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.text import one_line
from cloister.log.api import AuditLog
from cloister.log.audit.entry import AuditEntry

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
                    "attributes": _attributes({"service.name": "cloister", "service.version": __version__})
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
        "attributes": _attributes(
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


def _attributes(values: Mapping[str, str | int | None]) -> list[dict[str, object]]:
    """Encode attributes; OTLP's JSON writes integers as strings."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
        if value is not None
    ]


async def send(client: httpx2.AsyncClient, collector: Collector, entries: Sequence[AuditEntry]) -> None:
    """Send `entries`. Raises `OutsideError` (`collector_failed`) unless the collector accepts all of them."""
    body = msgspec.json.encode(logs(entries))
    headers = {**collector.headers, "content-type": "application/json"}
    try:
        async with client.stream(
            "POST", f"{collector.endpoint}/v1/logs", content=body, headers=headers
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


def client() -> httpx2.AsyncClient:
    """Create an HTTP client that ignores the proxies of the environment."""
    return httpx2.AsyncClient(timeout=SEND_SECONDS, trust_env=False, follow_redirects=False)


class _Partial(msgspec.Struct, rename="camel"):
    rejected_log_records: int | str = 0


class _Reply(msgspec.Struct, rename="camel"):
    partial_success: _Partial | None = None


def _refused(reply: bytes) -> str | None:
    try:
        partial = msgspec.json.decode(reply, type=_Reply).partial_success
    except msgspec.DecodeError:
        return None  # an empty answer is valid
    count = str(partial.rejected_log_records) if partial else "0"
    return None if count == "0" else one_line(count, 20)


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

    A failure is logged and tried again. `cursor_file` keeps the number of the last entry that the collector
    accepted, so that the next server resumes there.
    """
    failures = 0
    async with client() as http:
        while True:
            try:
                after = await to_thread.run_sync(_sent, cursor_file)
                page = await log.audit(after, PAGE)
                if page:
                    await send(http, collector, page)
                    await to_thread.run_sync(_save, cursor_file, page[-1].number)
                if failures:
                    logger.warning("the audit is exported again")
                failures = 0
                if len(page) == PAGE:
                    continue
            except (CloisterError, OSError) as error:
                failures += 1
                if failures == 1:
                    logger.warning("the audit is not exported: %s", error)
            await anyio.sleep(min(look_seconds * 2 ** min(failures, 10), WAIT_SECONDS))


def _sent(cursor_file: Path) -> int:
    """Return the number of the last accepted entry; 0 if unknown: sending twice is better than never."""
    try:
        text = cursor_file.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _save(cursor_file: Path, number: int) -> None:
    draft = cursor_file.with_name(f"{cursor_file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{number}\n")
    draft.replace(cursor_file)
