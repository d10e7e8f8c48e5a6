"""`mypy --output json`: one object a line."""

import msgspec

from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import rows


class _Complaint(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int
    message: str
    severity: str
    hint: str | None = None
    code: str | None = None


def mypy_json(output: CheckOutput) -> Found | None:
    """A `Parser`. mypy counts columns from 0."""
    found = tuple(
        plain.complaint(
            "mypy",
            f"{one.message}\n{one.hint}" if one.hint else one.message,
            one.file,
            (one.line, one.column + 1),
            plain.severity(one.severity),
            one.code,
        )
        for one in rows(output, b'"severity": ', _Complaint)
    )
    return Found(diagnostics=found) if found else None
