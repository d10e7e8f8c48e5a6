"""`shellcheck -f json1`."""

import msgspec

from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import whole


class _Comment(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int
    level: str
    code: int
    message: str


class _Report(msgspec.Struct, frozen=True):
    comments: list[_Comment]


def shellcheck_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for report in whole(output, b'"comments"', _Report):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "shellcheck",
                    one.message,
                    one.file,
                    (one.line, one.column),
                    plain.severity(one.level),
                    f"SC{one.code}",
                )
                for one in report.comments
            )
        )
    return None
