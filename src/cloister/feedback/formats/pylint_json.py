"""`pylint --output-format=json2`."""

import msgspec

from cloister.core.diagnosis import Severity
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole

_SEVERITIES: dict[str, Severity] = {"fatal": "error", "error": "error", "warning": "warning"}


class _Message(msgspec.Struct, frozen=True):
    type: str
    symbol: str
    message: str
    path: str
    line: int
    column: int
    id: str = msgspec.field(name="messageId")


class _Report(msgspec.Struct, frozen=True):
    messages: list[_Message]


def pylint_json(output: CheckOutput) -> Found | None:
    """A `Parser`. pylint counts columns from 0."""
    for report in whole(output, b'"messageId"', _Report):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "pylint",
                    one.message,
                    one.path,
                    (one.line, one.column + 1),
                    _SEVERITIES.get(one.type, "note"),
                    f"{one.id} {one.symbol}",
                )
                for one in report.messages
            )
        )
    return None
