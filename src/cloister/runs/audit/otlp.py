"""Entries as OpenTelemetry logs: what is sent to a collector over OTLP/HTTP, in JSON. Pure but for `send`."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import httpx
import msgspec

from cloister import __version__
from cloister.core.errors import OutsideError, UserError
from cloister.core.text import one_line
from cloister.runs.audit.entry import AuditEntry

SEND_SECONDS = 10.0
_REPLY_BYTES = 65_536
_INFO, _WARN = (9, "INFO"), (13, "WARN")
_TELLING = ('"effect":"deny"', '"answer":"deny"', '"ok":false')
_WARNINGS = frozenset({"LoginRefused", "Unsigned", "ModelFailed"})


class Collector(msgspec.Struct, frozen=True):
    """Where logs go."""

    endpoint: str
    """The base address; `/v1/logs` is added."""
    headers: dict[str, str] = {}
    """What the collector wants to see, such as a key. Never shown."""


def check_endpoint(text: str) -> str:
    """`text` as the address of a collector. Raises `UserError` (`bad_endpoint`)."""
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
    """The request's body for `entries`."""
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
    """Whole numbers are text in OTLP's JSON: they may be too large for JavaScript."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
        if value is not None
    ]


async def send(client: httpx.AsyncClient, collector: Collector, entries: Sequence[AuditEntry]) -> None:
    """Hand `entries` over. Raises `OutsideError` (`collector_failed`) unless the collector took all of them."""
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
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _failed(type(error).__name__) from None
    if not response.is_success:
        raise _failed(f"it answered {response.status_code}")
    if refused := _refused(reply):
        raise _failed(f"it refused {refused} entries")


def client() -> httpx.AsyncClient:
    """Not by way of any proxy that the environment names."""
    return httpx.AsyncClient(timeout=SEND_SECONDS, trust_env=False, follow_redirects=False)


class _Partial(msgspec.Struct, rename="camel"):
    rejected_log_records: int | str = 0


class _Reply(msgspec.Struct, rename="camel"):
    partial_success: _Partial | None = None


def _refused(reply: bytes) -> str | None:
    try:
        partial = msgspec.json.decode(reply, type=_Reply).partial_success
    except msgspec.DecodeError:
        return None  # collectors may answer with nothing
    count = str(partial.rejected_log_records) if partial else "0"
    return None if count == "0" else one_line(count, 20)


def _failed(why: str) -> OutsideError:
    return OutsideError(
        "collector_failed",
        f"The OpenTelemetry collector did not take the entries ({why}): check its address and that it runs.",
        retryable=True,
    )
