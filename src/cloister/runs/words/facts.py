"""Single facts of a run as words: a tool call, a check, a sandbox. Pure; all text comes out harmless."""

import json
from collections import deque
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import PolicyFixed, SandboxOpened, ToolReturned
from cloister.core.requests import Isolation, ToolCall
from cloister.core.text import harmless, one_line
from cloister.runs.view import red
from cloister.runs.words.lines import Line, counted, seconds

HEAD_LINES = 6
TAIL_LINES = 3
LINE_CHARS = 200


class Excerpt:
    """Shows the first lines of an endless output as they arrive, then a count and the last ones at the end."""

    def __init__(self, head: int = HEAD_LINES, tail: int = TAIL_LINES) -> None:
        self._room = head
        self._hidden = 0
        self._last: deque[str] = deque(maxlen=tail)
        self._partial = ""

    def feed(self, text: str) -> list[str]:
        """The lines that can be shown now."""
        *whole, rest = harmless(self._partial + text).split("\n")
        # A line without an end is cut here: memory stays bounded whatever a command prints.
        self._partial = rest[:LINE_CHARS]
        return [line for line in map(self._take, whole) if line is not None]

    def end(self) -> list[str]:
        """The lines to show when the output has ended."""
        shown = self.feed("\n") if self._partial else []
        left_out = self._hidden - len(self._last)
        note = [f"… {left_out:,} more {'line' if left_out == 1 else 'lines'} …"] if left_out else []
        return [*shown, *note, *self._last]

    def _take(self, line: str) -> str | None:
        line = line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
        if self._room > 0:
            self._room -= 1
            return line
        self._hidden += 1
        self._last.append(line)
        return None


def excerpt(text: str, head: int = HEAD_LINES) -> list[str]:
    """The first and the last lines of a complete text."""
    part = Excerpt(head)
    return [*part.feed(text), *part.end()]


_TELLING = ("command", "path", "pattern", "query", "summary")
"""Arguments that describe a call best, in this order."""

NAMES_SHOWN = 4


def call_target(call: ToolCall) -> str:
    """The argument that describes the call."""
    for name in _TELLING:
        value = call.arguments.get(name)
        if isinstance(value, str):
            return value
    return json.dumps(call.arguments, ensure_ascii=False) if call.arguments else ""


def call_line(call: ToolCall, width: int) -> str:
    name = one_line(call.name, 20)
    return f"▸ {name}  {one_line(call_target(call), max(20, width - len(name) - 4))}".rstrip()


def observation(returned: ToolReturned) -> list[str]:
    """The lines shown of a result that did not stream; a file that was read is only counted."""
    if returned.ok and returned.tool == "read":
        return [counted(returned.text.count("\n") + 1, "line")]
    return [] if returned.ok and returned.tool == "finish" else excerpt(returned.text)


def opened(body: SandboxOpened) -> Line:
    """A sandbox, its isolation, and its template if that is not `default`."""
    start = "" if body.template == "default" else f" · from {one_line(body.template, 48)}"
    return Line(f"· sandbox {body.sandbox} · {isolation(body.isolation)}{start}", "dim")


def isolation(value: Isolation) -> str:
    runtime = f"{value.runtime} on {value.platform}" if value.platform else value.runtime
    kernel = "shares this machine's kernel" if value.shares_kernel else "own kernel"
    filtered = "" if value.seccomp else " · no seccomp filter"
    return one_line(f"{value.tier} · {runtime} · {kernel}{filtered} · {value.store} store", 200)


def base(commit: str, branch: str | None, note: str | None) -> list[Line]:
    """The base of the run."""
    where = f"on {one_line(branch, 80)}" if branch else "with a detached HEAD"
    line = Line(f"· base {one_line(commit, 40)[:10]} {where}", "dim")
    return [line, Line(f"! {one_line(note, 300)}", "warn")] if note else [line]


def passed_count(diagnoses: Sequence[Diagnosis]) -> int:
    return sum(d.unlisted + sum(test.status == "passed" for test in d.tests) for d in diagnoses)


def baseline(diagnoses: Sequence[Diagnosis]) -> Line:
    """The checks on the untouched base, in one line."""
    if not diagnoses:
        return Line("· no checks: the change cannot be proven", "warn")
    failing, passed = red(diagnoses), passed_count(diagnoses)
    ok = f"{passed:,} passing" if passed else "green" if not failing else ""
    if not failing:
        return Line(f"✓ {ok} before any change", "good")
    return Line(f"✗ {failing:,} failing{', ' + ok if ok else ''} before any change", "bad")


def checks(before: int, now: Comparison) -> Line:
    """The failures on the base and now."""
    if now.green:
        passed = f"{now.passed:,} passing" if now.passed else "all checks are green"
        parts = (
            (len(now.fixed), "fixed"),
            (len(now.unrelated), "old and unrelated"),
            (len(now.flaky), "flaky"),
        )
        detail = ", ".join(f"{count:,} {word}" for count, word in parts if count)
        return Line(f"✓ {passed}{f'  ({detail})' if detail else ''}", "good")
    parts = (
        (len(now.fixed), "fixed"),
        (len(now.new), "new"),
        (len(now.missing), "missing"),
        (len(now.skipped), "skipped"),
        (len(now.weakened), "weakened"),
        (len(now.unrelated), "unrelated"),
        (len(now.flaky), "flaky"),
    )
    detail = ", ".join(f"{count:,} {word}" for count, word in parts if count)
    return Line(f"✗ {before:,} failing → {now.red:,} failing{f' ({detail})' if detail else ''}", "bad")


def red_names(now: Comparison, width: int) -> list[Line]:
    """The names behind a red count: new ones first, then lost ones, remaining ones, and unrelated ones."""
    named = [
        *(("new", name) for name in now.new),
        *(("weakened", name) for name in now.weakened),
        *(("missing", name) for name in now.missing),
        *(("skipped", name) for name in now.skipped),
        *(("still", name) for name in now.still if name not in now.unrelated),
        *(("old", name) for name in now.unrelated),
    ]
    lines = [Line(f"    {how:<8} {one_line(name, width - 13)}", "dim") for how, name in named[:NAMES_SHOWN]]
    more = len(named) - len(lines)
    return [*lines, Line(f"    … and {more:,} more", "dim")] if more > 0 else lines


def unfinished(diagnoses: Sequence[Diagnosis]) -> list[Line]:
    """Checks that were killed."""
    return [
        Line(f"! {one_line(d.check, 80)} was killed ({d.killed}) after {seconds(d.seconds)}", "warn")
        for d in diagnoses
        if d.killed
    ]


def said(text: str, indent: str = "") -> list[Line]:
    """Text of a model or a person, line by line."""
    return [Line((indent + line).rstrip(), "said") for line in harmless(text).strip("\n").split("\n")]


def policy(body: PolicyFixed) -> Iterator[Line]:
    """The layers of rules, if there are more than the built-in ones, and the limits they set."""
    if len(body.layers) > 1:
        yield Line(f"· rules: {one_line(', '.join(body.layers), 300)}", "dim")
    yield from (Line(f"! limited: {one_line(each, 200)}", "warn") for each in body.limited)
