"""Single facts of a run as words: a tool call, a check, a sandbox. Pure; all text comes out harmless."""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from cloister.core import events as e
from cloister.core.budget import amount
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import PolicyFixed, SandboxOpened, ToolReturned
from cloister.core.events.attempt import Level
from cloister.core.requests import Attachment, Isolation, ToolCall
from cloister.core.text import harmless, one_line
from cloister.runs.event_text.lines import IDLE, Line, Piece, Status, counted, moment, seconds
from cloister.runs.view import red

HEAD_LINES = 6
TAIL_LINES = 3
PANE_LINES = 6
LINE_CHARS = 200
PLAN_LINES = 8


class Excerpt:
    """Shows the first lines of an endless output as they arrive, then a count and the last ones at the end."""

    def __init__(self, head: int = HEAD_LINES, tail: int = TAIL_LINES) -> None:
        self._room = head
        self._hidden = 0
        self._last: deque[str] = deque(maxlen=tail)
        self._newest: deque[str] = deque(maxlen=PANE_LINES)
        self._partial = ""

    def feed(self, text: str) -> list[str]:
        """The lines that can be shown now."""
        *whole, rest = harmless(self._partial + text).split("\n")
        # A line without an end is cut here: memory stays bounded whatever a command prints.
        self._partial = rest[:LINE_CHARS]
        return [line for line in map(self._take, whole) if line is not None]

    def newest(self) -> tuple[str, ...]:
        """The last lines that were not shown yet, also one that has no end yet."""
        partial = (self._partial,) if self._partial.strip() else ()
        return (*self._newest, *partial)[-PANE_LINES:]

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
        self._newest.append(line)
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


def lacking(body: e.SandboxClosed | e.ServiceFailed) -> Line:
    """A sandbox that is gone, or that lacks a service."""
    if isinstance(body, e.SandboxClosed):
        return Line(f"· sandbox {body.sandbox} closed: {one_line(body.reason, 200)}", "dim")
    return Line(f"! a service did not start in sandbox {body.sandbox}: {one_line(body.problem, 600)}", "warn")


def environment(body: e.EnvironmentPrepared, width: int) -> Iterator[Line]:
    """How set-up went, and what it was for."""
    whose = f" for commit {body.commit[:10]}" if body.commit else ""
    if body.problem:
        yield Line(f"! set-up failed{whose}: {one_line(body.problem, 600)}", "warn")
        yield Line(
            f"! the run goes on with {one_line(body.template, 48)}; set-up is tried again next time", "warn"
        )
        return
    since = f", built {moment(body.built_at)}" if body.built_at else ""
    how = f"built in {seconds(body.seconds)}" if body.built else f"reused{since}"
    yield Line(f"· environment {one_line(body.template, 48)}{whose}: {how}", "dim")
    if body.built:
        yield from (Line(f"    {one_line(line, width - 4)}", "dim") for line in body.plan[:PLAN_LINES])


Told = (
    e.ToolsOffered
    | e.InstructionsGiven
    | e.SkillsPinned
    | e.NoteProposed
    | e.Delegated
    | e.DelegationEnded
    | e.PagesPictured
)


def told(body: Told) -> Iterator[Line]:
    """What the model of an attempt is given beside its task, and what is taken for people."""
    match body:
        case e.PagesPictured():
            yield from _pictures(body)
        case e.ToolsOffered():
            yield from _tools(body)
        case e.InstructionsGiven():
            where = one_line(body.folder or ", ".join(body.globs), 100)
            text = f"· {body.kind} from {one_line(body.path, 200)}"
            yield Line(f"{text} for {where}" if where else text, "dim")
        case e.SkillsPinned():
            yield from _skills(body)
        case e.Delegated():
            yield Line(f"→ attempt {body.parent} asks helper {body.attempt}: {one_line(body.task, 200)}")
        case e.DelegationEnded():
            yield Line(f"← helper {body.attempt} {body.outcome}: {one_line(body.report, 200)}")
        case e.NoteProposed():
            state = "written" if body.written else "proposed"
            yield Line(f"· note {state}: {one_line(body.text, 300)}")
        case _:
            assert_never(body)


def _pictures(body: e.PagesPictured) -> Iterator[Line]:
    if body.after:
        yield Line(f"· pictures of {counted(len(body.after), 'page')}, before and after the change", "dim")
    for problem in body.problems[:PLAN_LINES]:
        yield Line(f"! {one_line(problem, 400)}", "warn")


def _skills(body: e.SkillsPinned) -> Iterator[Line]:
    if body.skills:
        names = one_line(", ".join(one.name for one in body.skills), 200)
        yield Line(f"· skills ({len(body.skills):,}): {names}", "dim")
    for problem in body.problems[:PLAN_LINES]:
        yield Line(f"! {one_line(problem, 400)}", "warn")


def _tools(body: e.ToolsOffered) -> Iterator[Line]:
    """The tools that were added to an attempt, and those that could not be."""
    if body.tools:
        names = one_line(", ".join(tool.name for tool in body.tools), 200)
        yield Line(f"· tools ({len(body.tools):,}): {names}", "dim")
    for problem in body.problems[:PLAN_LINES]:
        yield Line(f"! {one_line(problem, 400)}", "warn")


def isolation(value: Isolation) -> str:
    runtime = f"{value.runtime} on {value.platform}" if value.platform else value.runtime
    kernel = "shares this machine's kernel" if value.shares_kernel else "own kernel"
    filtered = "" if value.seccomp else " · no seccomp filter"
    return one_line(f"{value.tier} · {runtime} · {kernel}{filtered} · {value.store} store", 200)


def base(commit: str, branch: str | None, note: str | None, parts: Sequence[e.BasePart] = ()) -> list[Line]:
    """The base of the run, or of each of its repositories."""
    if parts:
        each = [base(part.commit, part.branch, None)[0] for part in parts]
        lines = [
            Line(f"{line.text} in {one_line(part.folder, 80)}", line.style)
            for part, line in zip(parts, each, strict=True)
        ]
        return [*lines, Line(f"! {one_line(note, 300)}", "warn")] if note else lines
    where = f"on {one_line(branch, 80)}" if branch else "with a detached HEAD"
    line = Line(f"· base {one_line(commit, 40)[:10]} {where}", "dim")
    return [line, Line(f"! {one_line(note, 300)}", "warn")] if note else [line]


def passed_count(diagnoses: Sequence[Diagnosis]) -> int:
    return sum(d.unlisted + sum(test.status == "passed" for test in d.tests) for d in diagnoses)


def baseline(diagnoses: Sequence[Diagnosis]) -> Line:
    """The checks on the untouched base, in one line."""
    if not diagnoses:
        return Line(
            "· no checks: the change cannot be proven; name some with --check, or in .cloister/config.toml",
            "warn",
        )
    failing, passed = red(diagnoses), passed_count(diagnoses)
    idle = sum(bool(one.not_run) for one in diagnoses)
    if idle == len(diagnoses):
        return Line("! no check can run: the change cannot be proven", "warn")
    ok = f"{passed:,} passing" if passed else "green" if not failing else ""
    if not failing:
        return Line(f"✓ {ok} before any change", "good")
    return Line(f"✗ {failing:,} failing{', ' + ok if ok else ''} before any change", "bad")


def sampled(diagnoses: Sequence[Diagnosis]) -> Line:
    """Some tests on the untouched base, in one line."""
    failing, passed = red(diagnoses), passed_count(diagnoses)
    text = f"of the tests the task is about, {failing:,} failing, {passed:,} passing before any change"
    return Line(f"· {text}; the rest runs", "dim")


def not_run(diagnoses: Sequence[Diagnosis]) -> list[Line]:
    """Checks that could not run, with the reason."""
    found = (one for one in diagnoses if one.not_run)
    return [
        Line(f"! {one_line(one.check, 80)} could not run: {one_line(one.not_run, 300)}", "warn")
        for one in found
    ]


def checks(before: int, now: Comparison) -> Line:
    """The failures on the base and now."""
    if now.green and not now.ran:
        return Line("! no check could run", "warn")
    if now.green:
        passed = f"{now.passed:,} passing" if now.passed else "all checks are green"
        parts = (
            (len(now.fixed), "fixed"),
            (len(now.unrelated), "old and unrelated"),
            (len(now.flaky), "flaky"),
            (len(now.not_run), "not run"),
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
    unrelated = frozenset(now.unrelated)
    named = [
        *(("new", name) for name in now.new),
        *(("weakened", name) for name in now.weakened),
        *(("missing", name) for name in now.missing),
        *(("skipped", name) for name in now.skipped),
        *(("still", name) for name in now.still if name not in unrelated),
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


# Forks, rankings, budgets and stuck attempts as lines. Pure; all text comes out harmless.


def lines(
    body: e.AttemptForked | e.AttemptsRanked | e.JudgeSpoke | e.RewindRequested | e.Inherited, inherited: int
) -> Iterator[Line | Status]:
    """`inherited` counts the events of another run's conversation so far."""
    match body:
        case e.AttemptForked():
            where = f"event {body.at_seq}" if body.at_seq else "the base"
            why = one_line(body.reason, 200)
            yield Line(
                f"⑂ attempt {body.attempt} continues from {where} of attempt {body.parent}: {why}", "head"
            )
        case e.AttemptsRanked():
            for place, score in enumerate(body.scores, start=1):
                text = f"attempt {score.attempt} {score.outcome}  {one_line(score.why, 200)}"
                yield Line(
                    f"{place}. {text}",
                    "good" if place == 1 and score.outcome in ("proven", "green") else "dim",
                )
        case e.JudgeSpoke():
            chose = "chose none" if body.choice is None else f"chose attempt {body.choice}"
            yield Line(f"⚖ {one_line(body.model, 80)} {chose}: {one_line(body.text, 300)}", "head")
        case e.RewindRequested():
            yield Line(f"↶ {one_line(body.who, 40)} rewinds the run to event {body.to}", "head")
        case e.Inherited():
            if inherited == 1:
                yield Line("⑂ continues the conversation of another run", "dim")
            yield Status(f"inherits event {body.seq}")
        case _:
            assert_never(body)


# The status line when several attempts work at once.

_NAME = 12
"""Characters shown of a tool's name, which the model chose."""


class AtWork:
    """What each attempt does now: a fold of one run's items, in order."""

    def __init__(self) -> None:
        self._doing: dict[int, str] = {}
        self._tools: dict[tuple[int, str], str] = {}
        """Attempt and call → its tool."""

    def over(self, pieces: tuple[Piece, ...], item: e.Event | e.Delta) -> tuple[Piece, ...]:
        """`pieces` of `item`, with one status for all working attempts in place of their own."""
        self._take(item)
        if not self._doing:
            return pieces
        told = "  ".join(f"[{number}] {what}" for number, what in sorted(self._doing.items()))
        return (*(piece for piece in pieces if not isinstance(piece, Status)), Status(told))

    def _take(self, item: e.Event | e.Delta) -> None:
        match item:
            case e.Event():
                self._event(item.body)
            case e.ModelText():
                self._now(item.attempt, "writing")
            case e.CommandOutput() if (item.attempt, item.source) not in self._tools:
                self._now(item.attempt, "checking")
            case _:
                pass

    def _event(self, body: e.AnyBody) -> None:
        match body:
            case e.AttemptStarted():
                self._doing[body.attempt] = "starting"
            case e.ModelReplied():
                for call in body.calls:
                    self._tools[body.attempt, call.id] = one_line(call.name, _NAME)
                self._now(body.attempt, "acting")
            case e.ActionDecided():
                self._now(body.attempt, self._tools.get((body.attempt, body.call), "acting"))
            case e.AskRaised():
                self._now(body.attempt, "waiting for you")
            case e.TurnEnded():
                self._now(body.attempt, "thinking")
            case e.AttemptEnded():
                self._doing.pop(body.attempt, None)
            case e.RunClaimed() | e.RunFinished():
                self._doing.clear()
            case _:
                pass

    def _now(self, attempt: int, what: str) -> None:
        if attempt in self._doing:
            self._doing[attempt] = what


# Budgets, summaries, advice and stuck attempts.

Upkeep = (
    e.ModelSpent
    | e.BudgetWarned
    | e.BudgetSpent
    | e.BudgetExtended
    | e.ContextSummarised
    | e.StuckNoticed
    | e.Advised
)

_DONE = {"nudge": "telling the model", "escalate": "switching model", "stop": "ending the attempt"}


def whose(level: Level, name: str) -> str:
    return "the run's" if level == "run" else f"{level} {one_line(name, 60)}'s"


def upkeep(body: Upkeep, mark: str) -> Iterator[Line]:
    """`mark` names the attempt where there are several."""
    match body:
        case e.ModelSpent():
            took = f"{body.usage.total:,} tokens"
            yield Line(f"· {mark}{one_line(body.purpose, 40)}: {took} of {one_line(body.model, 100)}", "dim")
        case e.BudgetWarned():
            spent, limit = amount(body.what, body.spent), amount(body.what, body.limit)
            yield Line(f"! {mark}{spent} of {whose(body.level, body.name)} {limit} are spent", "warn")
        case e.BudgetSpent():
            limit = amount(body.what, body.limit)
            yield Line(f"✗ {mark}{whose(body.level, body.name)} budget of {limit} is spent", "bad")
        case e.BudgetExtended():
            more = amount(body.what, body.amount)
            who = one_line(body.who, 40)
            yield Line(f"» {mark}{who} gave {more} more to {whose(body.level, body.name)} budget", "head")
        case e.ContextSummarised():
            sizes = f"{body.before_tokens:,} → {body.after_tokens:,} tokens"
            yield Line(f"· {mark}earlier turns are summarised: {sizes}", "dim")
        case e.StuckNoticed():
            why = one_line(body.evidence, 200)
            yield Line(f"! {mark}stuck ({body.kind}): {why}; {_DONE[body.stage]}", "warn")
        case e.Advised():
            none = "no known kind" if body.role == "classify" else "no objections"
            said = f"by {one_line(body.model, 100)}: {one_line(body.text, 300) or none}"
            yield Line(f"· {mark}{body.role} {said}", "head" if body.text else "dim")
        case _:
            assert_never(body)


def delivery(body: e.ChangeDelivered | e.DeliveryFailed) -> Iterator[Piece]:
    """A pull request, or why there is none. A branch in the repository is part of the summary."""
    where = f"{one_line(body.folder, 60)}: " if body.folder else ""
    if isinstance(body, e.DeliveryFailed):
        yield Line(f"✗ {where}not delivered: {one_line(body.reason, 300)}", "bad")
    elif body.url:
        yield Line(f"→ {where}pull request {one_line(body.url, 200)}", "good")
    yield IDLE


def question(body: e.QuestionAsked | e.QuestionAnswered, run: str, width: int) -> Iterator[Line]:
    """A question of the model, and its answer."""
    if isinstance(body, e.QuestionAnswered):
        by = (
            "no answer in time, goes on with"
            if body.who == "deadline"
            else f"{one_line(body.who, 40)} answers:"
        )
        yield Line(f"? {body.question}: {by} {one_line(body.text, width)}", "said")
        return
    yield Line(f"? the model asks ({body.question}): {one_line(body.text, 2_000)}", "head")
    yield from (Line(f"    - {one_line(choice, width)}", "plain") for choice in body.choices)
    until = time.strftime("%H:%M:%S", time.localtime(body.deadline))
    yield Line(f"    else, at {until}: {one_line(body.default, width)}", "dim")
    yield Line(f"    cloister answer {run} {body.question} TEXT", "dim")


def attached(given: Iterable[Attachment]) -> Iterator[Line]:
    """A line for each attachment of a prompt."""
    for one in given:
        yield Line(f"· attached {one_line(one.name, 100)}  {one.media_type}, {one.size:,} bytes", "dim")
