"""`ruff check --output-format json`."""

import msgspec

from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole


class _Location(msgspec.Struct, frozen=True):
    row: int
    column: int


class _Complaint(msgspec.Struct, frozen=True):
    filename: str
    message: str
    location: _Location | None = None
    code: str | None = None
    severity: str = "error"


def ruff_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for found in whole(output, b'"noqa_row"', list[_Complaint]):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "ruff",
                    one.message,
                    one.filename,
                    (one.location.row, one.location.column) if one.location else (None, None),
                    plain.severity(one.severity),
                    one.code,
                )
                for one in found
            )
        )
    return None
