"""Complaints of linters that draw the source: eslint's and shellcheck's lists, biome's and oxlint's frames."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain

_ESLINT_LINE = re.compile(r"^ {2,8}(\d{1,9}):(\d{1,9}) {2,10}(error|warning) {2,10}(\S.*)$")
_ESLINT_RULE = re.compile(r"^[@\w][\w@/-]{0,99}$")
_SHELL_FILE = re.compile(r"^In (\S.{0,300}) line (\d{1,9}):$")
_SHELL_LINE = re.compile(r"^( *)\^-{1,300}\^? (SC\d{1,6}) \((error|warning|info|style)\): (\S.*)$")
_BIOME_HEAD = re.compile(r"^([^\s:]{1,300}):(\d{1,9}):(\d{1,9}) ([\w/]{1,100}) .{0,80}━{2}")
_BIOME_SAID = re.compile(r"^ {2}([×!i]) (\S.*)$")
_OX_SAID = re.compile(r"^ {2}([×⚠]) (?:([a-z-]{1,40}\([\w-]{1,60}\)): )?(\S.*)$")
_OX_PLACE = re.compile(r"^ {1,8}╭─\[([^\s:]{1,300}):(\d{1,9}):(\d{1,9})\]$")


def eslint_text(output: CheckOutput) -> Found | None:
    """A `Parser`: the list that eslint prints, a file and below it its complaints."""
    if b"problem" not in output.out or "✖".encode() not in output.out:
        return None
    return _found(_eslint(output.out_lines))


def _eslint(text: Sequence[str]) -> Iterator[Diagnostic]:
    file = ""
    for line in text:
        if line and not line.startswith(" "):
            file = line
        elif file and (found := _ESLINT_LINE.match(line)):
            said, gap, rule = found[4].rpartition("  ")
            if not gap or not _ESLINT_RULE.match(rule):
                said, rule = found[4], ""
            at = (plain.number(found[1]), plain.number(found[2]))
            yield plain.complaint("eslint", said.rstrip(), file, at, plain.severity(found[3]), rule or None)


def shellcheck_text(output: CheckOutput) -> Found | None:
    """A `Parser`: what shellcheck prints for people."""
    return _found(_shellcheck(output.out_lines)) if b"^-- SC" in output.out or b"^ SC" in output.out else None


def _shellcheck(text: Sequence[str]) -> Iterator[Diagnostic]:
    file, line = "", None
    for row in text:
        if head := _SHELL_FILE.match(row):
            file, line = head[1], plain.number(head[2])
        elif file and (found := _SHELL_LINE.match(row)):
            at = (line, len(found[1]) + 1)
            yield plain.complaint("shellcheck", found[4], file, at, plain.severity(found[3]), found[2])


def biome_text(output: CheckOutput) -> Found | None:
    """A `Parser`: biome's headline, then what it has to say."""
    if "━━".encode() not in output.err and "━━".encode() not in output.out:
        return None
    return _found(one for text in (output.out_lines, output.err_lines) for one in _biome(text))


def _biome(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        if "━━" not in line or not (head := _BIOME_HEAD.match(line)):
            continue
        said = next(
            (found for below in text[index + 1 : index + 5] if (found := _BIOME_SAID.match(below))), None
        )
        if said is not None:
            at = (plain.number(head[2]), plain.number(head[3]))
            how = {"×": "error", "!": "warning"}.get(said[1], "note")
            yield plain.complaint("biome", said[2], head[1], at, plain.severity(how), head[4])


def oxlint_text(output: CheckOutput) -> Found | None:
    """A `Parser`: oxlint's sentence, and the place in the frame below it."""
    if "╭─".encode() not in output.out:
        return None
    return _found(_oxlint(output.out_lines))


def _oxlint(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        place = _OX_PLACE.match(line)
        if place is None:
            continue
        said = next(
            (
                found
                for above in reversed(text[max(0, index - 4) : index])
                if (found := _OX_SAID.match(above))
            ),
            None,
        )
        if said is not None:
            at = (plain.number(place[2]), plain.number(place[3]))
            yield plain.complaint(
                "oxlint", said[3], place[1], at, "error" if said[1] == "×" else "warning", said[2]
            )


def _found(diagnostics: Iterator[Diagnostic]) -> Found | None:
    found = tuple(diagnostics)
    return Found(diagnostics=found) if found else None
