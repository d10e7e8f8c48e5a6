"""`eslint -f json`."""

import msgspec

from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole


class _Message(msgspec.Struct, frozen=True):
    severity: int
    message: str
    rule: str | None = msgspec.field(name="ruleId", default=None)
    line: int | None = None
    column: int | None = None


class _File(msgspec.Struct, frozen=True):
    messages: list[_Message]
    path: str = msgspec.field(name="filePath")


def eslint_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for files in whole(output, b'"filePath"', list[_File]):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "eslint",
                    one.message,
                    file.path,
                    (one.line, one.column),
                    "error" if one.severity > 1 else "warning",
                    one.rule,
                )
                for file in files
                for one in file.messages
            )
        )
    return None
