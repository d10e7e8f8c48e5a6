"""SARIF, a JSON format of many linters, compilers and scanners."""

import msgspec

from cloister.core.diagnosis import Diagnostic, Severity
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import whole

_SEVERITIES: dict[str, Severity] = {"error": "error", "warning": "warning"}


class _Text(msgspec.Struct, frozen=True):
    text: str = ""
    markdown: str = ""


class _Artifact(msgspec.Struct, frozen=True):
    uri: str | None = None


class _Region(msgspec.Struct, frozen=True, rename="camel"):
    start_line: int | None = None
    start_column: int | None = None


class _Physical(msgspec.Struct, frozen=True, rename="camel"):
    artifact_location: _Artifact | None = None
    region: _Region | None = None


class _Location(msgspec.Struct, frozen=True, rename="camel"):
    physical_location: _Physical | None = None


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    message: _Text
    level: str = "warning"
    """The default of the standard."""
    rule_id: str | None = None
    locations: list[_Location] = []
    suppressions: list[msgspec.Raw] = []


class _Driver(msgspec.Struct, frozen=True):
    name: str = "sarif"


class _Tool(msgspec.Struct, frozen=True):
    driver: _Driver = _Driver()


class _Run(msgspec.Struct, frozen=True):
    tool: _Tool = _Tool()
    results: list[_Result] | None = None


class _Log(msgspec.Struct, frozen=True):
    runs: list[_Run]


@marked(b'"runs"', where="any")
def sarif(output: CheckOutput) -> Found | None:
    """Skip results that are suppressed in the source."""
    logs = list(whole(output, b'"runs"', _Log))
    if not logs:
        return None
    found = tuple(
        _read(run.tool.driver.name, result)
        for log in logs
        for run in log.runs
        for result in run.results or ()
        if not result.suppressions
    )
    return Found(diagnostics=found)


def _read(tool: str, result: _Result) -> Diagnostic:
    physical = next((one.physical_location for one in result.locations if one.physical_location), None)
    file = physical.artifact_location.uri if physical and physical.artifact_location else None
    region = physical.region if physical else None
    at = (region.start_line, region.start_column) if region else (None, None)
    said = result.message.text or result.message.markdown
    severity = _SEVERITIES.get(result.level, "note")
    return plain.complaint(plain.name(tool).lower(), said, file, at, severity, result.rule_id)
