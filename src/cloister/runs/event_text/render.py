"""The words for every event of a run, for the terminal (`Renderer`) and for the API (`words`). Pure."""

from collections.abc import Iterable, Iterator
from typing import assert_never

from cloister.core import events as e
from cloister.core.attempts import NATIVE, REPAIR, wishes
from cloister.core.requests import NewRun, ToolCall
from cloister.core.text import harmless, one_line
from cloister.runs.event_text import facts, search
from cloister.runs.event_text.facts import AtWork, Excerpt, Upkeep, excerpt, upkeep
from cloister.runs.event_text.lines import IDLE, EventWords, Fragment, Line, Piece, Status, seconds
from cloister.runs.event_text.summary import summary
from cloister.runs.view import fold, red

_DOING: dict[e.Phase, str] = {
    "fetch": "fetching the repository",
    "template": "preparing the template",
    "create": "opening a sandbox",
    "clone": "copying the repository into the sandbox",
    "baseline": "running the checks on the base",
    "fork": "forking the sandbox",
    "work": "working",
    "change": "committing the change",
}

_Beginning = (
    e.RunAdmitted
    | e.RunClaimed
    | e.RunResumed
    | e.RunPaused
    | e.RunContinued
    | e.InterruptRequested
    | e.BaseFixed
    | e.EnvironmentPrepared
    | e.SandboxOpened
    | e.ServiceFailed
    | e.SandboxClosed
    | e.SandboxUsed
    | e.ChecksChosen
    | e.BaselineSampled
    | e.BaselineTaken
)
_Talk = (
    e.AttemptStarted
    | e.PromptReceived
    | e.ModelReplied
    | e.ModelFailed
    | e.ModelSwitched
    | e.ModelChosen
    | e.FinishRefused
    | e.AttemptEnded
)
_Branching = e.AttemptForked | e.AttemptsRanked | e.JudgeSpoke | e.RewindRequested | e.Inherited
_Action = (
    e.ActionDecided
    | e.AskRaised
    | e.AskAnswered
    | e.QuestionAsked
    | e.QuestionAnswered
    | e.ToolReturned
    | e.ChecksRan
    | e.ProofTaken
    | e.SaveRefused
)
_Rest = (
    e.PolicyFixed
    | e.PhaseStarted
    | e.PhaseEnded
    | e.TurnEnded
    | e.StopRequested
    | e.PauseRequested
    | e.ResumeRequested
    | e.ConnectionDecided
    | e.ConnectionClosed
    | e.RequestDecided
    | e.ChangeMade
    | e.ChangeDelivered
    | e.DeliveryFailed
    | e.RunFinished
)

ASK_LINES = 30
"""Lines of an action that are shown to the person who decides on it."""

_THINKING = Status("waiting for the model")
_STEERED = {
    e.StopRequested: ("■ {} asked the run to stop", Status("stopping")),
    e.PauseRequested: ("‖ {} pauses the run before its next step", Status("paused by a person")),
    e.ResumeRequested: ("▸ {} lets the run go on", _THINKING),
}

_CallKey = tuple[int, str]
"""Attempt and id of a tool call."""


def words(events: Iterable[e.Event], after: int = 0, width: int = 120) -> Iterator[EventWords]:
    """The lines of each event with `seq > after`. `events` is the whole log: later words refer to earlier events."""
    renderer = Renderer(width)
    for event in events:
        pieces = renderer.feed(event)
        if event.seq > after:
            yield EventWords(event.seq, event.at, tuple(piece for piece in pieces if isinstance(piece, Line)))


class Renderer:
    """Folds the items of one run, from its first event on, into pieces; single-line facts are cut at `width`."""

    def __init__(self, width: int = 100) -> None:
        self._width = max(40, width)
        self._events: list[e.Event] = []
        self._request: NewRun | None = None
        self._red_before = 0
        self._checks: frozenset[str] = frozenset()
        # Ids of calls are the model's: unique within one reply of one attempt, and no further.
        self._calls: dict[_CallKey, ToolCall] = {}
        self._announced: set[_CallKey] = set()
        self._said_repair = False
        self._outputs: dict[_CallKey, Excerpt] = {}
        self._streamed: dict[int, str] = {}
        self._noted: e.Phase | None = None
        self._inherited = 0
        self._rounds = 1
        self._claimed = False
        self._working = False
        """True while attempts work."""
        """In this round."""
        self._at_work = AtWork()
        self._helpers: set[int] = set()

    def resize(self, width: int) -> None:
        self._width = max(40, width)

    def feed(self, item: e.Event | e.Delta) -> tuple[Piece, ...]:
        pieces = self._pieces(item)
        return self._at_work.over(pieces, item) if self._many else pieces

    def _pieces(self, item: e.Event | e.Delta) -> tuple[Piece, ...]:
        match item:
            case e.Event():
                self._events.append(item)
                return tuple(self._event(item))
            case e.ModelText():
                return tuple(self._model_text(item))
            case e.CommandOutput():
                return tuple(self._output(item))
            case e.Progress():
                return tuple(self._progress(item))
            case _:
                assert_never(item)

    # Deltas

    def _model_text(self, delta: e.ModelText) -> Iterator[Piece]:
        before = self._streamed.get(delta.attempt, "")
        self._streamed[delta.attempt] = before + delta.text
        if self._many:
            # Several attempts talk at once: whole lines only, when the reply is complete.
            return
        text = delta.text if before else delta.text.lstrip("\n")
        if text:
            yield Fragment(harmless(text))

    def _output(self, delta: e.CommandOutput) -> Iterator[Piece]:
        key = (delta.attempt, delta.source)
        if delta.source in self._checks or key not in self._calls:
            if last := [line for line in harmless(delta.text).split("\n") if line.strip()]:
                yield Status(f"checking: {one_line(delta.source, 40)}", output=(one_line(last[-1], 200),))
            return
        output = self._outputs.setdefault(key, Excerpt())
        yield from self._dimmed(delta.attempt, output.feed(delta.text))
        call = self._calls[key]
        yield Status(f"{one_line(call.name, 20)} running", output=output.newest())

    def _progress(self, delta: e.Progress) -> Iterator[Piece]:
        note = one_line(delta.note, 80)
        if delta.phase != self._noted:
            self._noted = delta.phase
            yield Line(f"· {_DOING[delta.phase]}: {note}", "dim")
        yield Status(f"{delta.phase}: {note}", delta.fraction)

    # Events

    def _event(self, event: e.Event) -> Iterator[Piece]:
        body = event.body
        if isinstance(body, _Beginning):
            yield from self._beginning(event, body)
        elif isinstance(body, _Talk):
            yield from self._talk(body)
        elif isinstance(body, _Action):
            yield from self._action(event, body)
        elif isinstance(body, _Branching):
            self._inherited += isinstance(body, e.Inherited)
            yield from facts.lines(body, self._inherited)
        elif isinstance(body, facts.Told):
            if isinstance(body, e.Delegated):
                self._helpers.add(body.attempt)
            yield from facts.told(body)
        elif isinstance(body, search.Searching):
            of = None if isinstance(body, e.FaultLocalised) else body.attempt
            yield from search.searching(body, "" if of is None else self._mark(of), self._width)
        elif isinstance(body, Upkeep):
            yield from upkeep(body, "" if body.attempt is None else self._mark(body.attempt))
        else:
            yield from self._rest(event, body)

    def _beginning(self, event: e.Event, body: _Beginning) -> Iterator[Piece]:
        match body:
            case e.RunAdmitted():
                yield from self._admitted(event, body.request)
            case e.InterruptRequested() | e.SandboxUsed():
                yield from self._stepped_in(body)
            case e.RunClaimed() | e.RunResumed() | e.RunPaused() | e.RunContinued() | e.EnvironmentPrepared():
                yield from self._driven(body)
            case e.BaseFixed():
                yield from facts.base(body.commit, body.branch, body.note, body.parts)
            case e.SandboxOpened():
                # Sandboxes of attempts are isolated like the first one, which is shown in full.
                own = body.attempt is not None and bool(self._mark(body.attempt))
                yield Line(f"· [{body.attempt}] sandbox {body.sandbox}", "dim") if own else facts.opened(body)
            case e.SandboxClosed() | e.ServiceFailed():
                yield facts.lacking(body)
            case e.ChecksChosen():
                self._checks = frozenset(body.checks)
                how = "found" if body.found else "given"
                yield from (Line(f"· check ({how}): {one_line(c, self._width)}", "dim") for c in body.checks)
            case e.BaselineSampled():
                yield facts.sampled(body.diagnoses)
            case e.BaselineTaken():
                yield from self._baseline(body)
            case _:
                assert_never(body)

    def _stepped_in(self, body: e.InterruptRequested | e.SandboxUsed) -> Iterator[Piece]:
        who = one_line(body.who, 40)
        if isinstance(body, e.SandboxUsed):
            yield Line(
                f"● {who} in the sandbox of attempt {body.attempt}, {body.how}: {one_line(body.what, 120)}",
                "warn",
            )
            return
        self._streamed.clear()  # of a reply that will not be complete
        yield Line(f"■ {who} stopped the current step", "warn")
        yield _THINKING

    def _driven(
        self, body: e.RunClaimed | e.RunResumed | e.RunPaused | e.RunContinued | e.EnvironmentPrepared
    ) -> Iterator[Piece]:
        match body:
            case e.EnvironmentPrepared():
                yield from facts.environment(body, self._width)
            case e.RunClaimed():
                self._working = False
                if self._claimed or (self._rounds == 1 and body.epoch > 1):
                    yield Line("↻ taken over: the process that drove this run has ended", "warn")
                self._claimed = True
            case e.RunContinued():
                self._rounds += 1
                self._claimed = False
                told = {"review": " after a review comment", "ci": " after a failed CI job"}
                why = told.get(body.origin, "")
                yield Line(f"● round {self._rounds}: {one_line(body.who, 40)} continues the run{why}", "head")
            case e.RunPaused():
                self._claimed = False  # the same process goes on later
                yield Line(f"‖ paused: {one_line(body.reason, 300)}", "warn")
            case e.RunResumed():
                # The calls of a turn that was cut off are made again.
                self._announced.clear()
                self._outputs.clear()
                yield Line(f"↻ resuming after event {body.after_seq}", "warn")
            case _:
                assert_never(body)

    def _baseline(self, body: e.BaselineTaken) -> Iterator[Piece]:
        self._red_before = red(body.diagnoses)
        if body.known:
            fork = self._request.forked_from if self._request else None
            where = f"in {fork.run}, which this run continues" if fork else "when its template was warmed"
            yield Line(f"· this commit was checked {where}", "dim")
        yield from facts.not_run(body.diagnoses)
        yield facts.baseline(body.diagnoses)

    def _admitted(self, event: e.Event, request: NewRun) -> Iterator[Piece]:
        self._request = request
        yield Line(f"● {event.run}  {one_line(request.prompt, self._width - 20)}", "head")
        ref = f" at {one_line(request.ref, 80)}" if request.ref else ""
        yield Line(f"· repository {one_line(request.repo, 200)}{ref}", "dim")
        yield from facts.attached(request.attachments)

    def _over(self, body: e.AttemptEnded) -> Iterator[Line]:
        if self._many:
            good = body.outcome in ("proven", "green")
            text = f"attempt {body.attempt} ended {body.outcome}: {one_line(body.reason, 200)}"
            yield Line(f"{'✓' if good else '✗'} {text}", "good" if good else "bad")

    def _failed(self, body: e.ModelFailed) -> Line:
        again = body.retry_seconds
        then = "giving up" if again is None else f"trying again in {seconds(again)}"
        who = "the model"
        if body.role == "code":
            self._streamed.pop(body.attempt, None)
        else:
            who = f"{one_line(body.model, 100)}, named to {one_line(body.role, 40)},"
            then = "continuing without it" if again is None else "asking the next one"
        what = f"{self._mark(body.attempt)}{who} failed: {one_line(body.message, 300)}"
        return Line(f"! {what} ({then})", "warn")

    def _talk(self, body: _Talk) -> Iterator[Piece]:
        match body:
            case e.AttemptStarted():
                yield from self._started(body)
                yield _THINKING
            case e.PromptReceived():
                yield Line(f"» {one_line(body.who, 40)}: {one_line(body.text, self._width)}", "head")
                yield from facts.attached(body.attachments)
            case e.ModelReplied():
                self._forget(body.attempt)
                for call in body.calls:
                    self._calls[body.attempt, call.id] = call
                yield from self._reply(body)
            case e.ModelFailed():
                yield self._failed(body)
            case e.ModelSwitched():
                yield Line(
                    f"· {self._mark(body.attempt)}continuing with {one_line(body.to_model, 200)}", "dim"
                )
            case e.ModelChosen():
                yield Line(f"» {one_line(body.who, 40)} switches to {one_line(body.model, 200)}", "head")
            case e.FinishRefused():
                yield from self._announce_finish(body.attempt)
                first = one_line(body.text, self._width)
                yield Line(f"✗ {self._mark(body.attempt)}not done yet: {first}", "warn")
            case e.AttemptEnded():
                yield from self._over(body)
            case _:
                assert_never(body)

    def _default(self, harness: str) -> Iterator[Piece]:
        """Say that there is no model before set-up and the baseline, which may take minutes."""
        new = self._request
        if harness != REPAIR or new is None or REPAIR in (new.harness, *(w.harness for w in wishes(new))):
            return
        self._said_repair = True
        yield from search.started("", by_default=True)

    def _started(self, body: e.AttemptStarted) -> Iterator[Piece]:
        mark = self._mark(body.attempt)
        if body.harness == REPAIR:
            wanted = () if self._request is None else wishes(self._request)
            named = [one.harness for one in wanted[body.attempt : body.attempt + 1]]
            named.append(self._request and self._request.harness)
            if not self._said_repair:
                yield from search.started(mark, by_default=REPAIR not in named)
            return
        warm = "" if body.temperature is None else f" at {body.temperature:g}"
        inside = "" if body.harness == NATIVE else f"harness {one_line(body.harness, 100)} in the sandbox, "
        yield Line(f"· {mark}{inside}model {one_line(body.model, 200)}{warm}", "dim")

    def _forget(self, attempt: int) -> None:
        """A reply ends the turn before it; ids of its calls may come again."""
        self._calls = {key: call for key, call in self._calls.items() if key[0] != attempt}
        self._announced = {key for key in self._announced if key[0] != attempt}

    def _reply(self, body: e.ModelReplied) -> Iterator[Piece]:
        streamed = self._streamed.pop(body.attempt, "")
        if not body.text.strip():
            return
        if self._many or not streamed:
            yield from facts.said(body.text, self._mark(body.attempt))
        elif body.text.startswith(streamed):
            if rest := body.text[len(streamed) :]:
                yield Fragment(harmless(rest))
        else:
            # This watcher was too slow and missed fragments: the log has the whole text.
            yield from facts.said(body.text)

    def _action(self, event: e.Event, body: _Action) -> Iterator[Piece]:
        match body:
            case e.ActionDecided():
                yield from self._announce(body.attempt, body.call)
                if body.effect == "deny" or not body.call:
                    why = one_line(body.rule, 200)
                    what = f"refused by the policy: {one_line(body.action, 120)} ({why})"
                    yield Line(f"{self._mark(body.attempt)}  ⊘ {what}", "warn")
            case e.AskRaised():
                yield from self._ask(event, body)
            case e.AskAnswered():
                yield Line(f"? {body.ask}: {body.answer} by {one_line(body.who, 40)}", "head")
            case e.QuestionAsked() | e.QuestionAnswered():
                yield from facts.question(body, event.run, self._width)
            case e.ToolReturned():
                yield from self._announce(body.attempt, body.call)
                yield from self._returned(body)
            case e.ChecksRan():
                yield from self._checked(body)
            case e.ProofTaken():
                yield from self._checked(body, f"  in a fresh sandbox, commit {body.commit[:10]}")
            case e.SaveRefused():
                yield Line(f"! {self._mark(body.attempt)}{one_line(body.text, 300)}", "warn")
            case _:
                assert_never(body)

    def _checked(self, body: e.ChecksRan | e.ProofTaken, where: str = "") -> Iterator[Piece]:
        yield from facts.unfinished(body.diagnoses)
        line = facts.checks(self._red_before, body.comparison)
        yield Line(f"{self._mark(body.attempt)}{line.text}{where}", line.style)
        if not body.comparison.green:
            yield from facts.red_names(body.comparison, self._width)
        if isinstance(body, e.ChecksRan) and body.note:
            yield Line("· set-up reads files of the change: its proof has an environment of its own", "dim")

    def _announce(self, attempt: int, call: str) -> Iterator[Piece]:
        known = self._calls.get((attempt, call))
        if known is not None and (attempt, call) not in self._announced:
            self._announced.add((attempt, call))
            yield Line(self._mark(attempt) + facts.call_line(known, self._width), "head")
            yield Status(f"{one_line(known.name, 20)} running")

    def _announce_finish(self, attempt: int) -> Iterator[Piece]:
        """The refusal comes before the call's result, and reads better after the call."""
        for (of, call), known in list(self._calls.items()):
            if of == attempt and known.name == "finish":
                yield from self._announce(attempt, call)

    def _ask(self, event: e.Event, body: e.AskRaised) -> Iterator[Piece]:
        left = seconds(max(0.0, body.deadline - event.at))
        yield Line(f"? {self._mark(body.attempt)}allow this? {one_line(body.action, 200)}", "warn")
        # A person must see what they allow: all of it, or a note that there is more.
        yield from (Line(f"  │ {line}".rstrip(), "warn") for line in excerpt(body.detail, ASK_LINES))
        yield Line(f"    cloister log {event.run} --after {event.seq - 1}   shows all of it", "warn")
        if body.rule:
            yield Line(f"  because: {one_line(body.rule, 200)}", "warn")
        whose = "Only an admin may allow this. " if body.approver == "admin" else ""
        yield Line(f"  {whose}Answer within {left}; the default is {body.default}", "warn")
        yield Line(f"    cloister answer {event.run} {one_line(body.ask, 60)} allow|deny", "warn")
        yield Status("waiting for your answer")

    def _returned(self, body: e.ToolReturned) -> Iterator[Piece]:
        live = self._outputs.pop((body.attempt, body.call), None)
        yield from self._dimmed(body.attempt, live.end() if live else facts.observation(body))
        mark = self._mark(body.attempt)
        if not body.ok:
            code = f"exit {body.exit_code}" if body.exit_code is not None else "failed"
            yield Line(f"{mark}  └ {code} after {seconds(body.seconds)}", "warn")
        elif body.seconds >= 1:
            yield Line(f"{mark}  └ {seconds(body.seconds)}", "dim")
        yield IDLE

    def _rest(self, event: e.Event, body: _Rest) -> Iterator[Piece]:
        match body:
            case e.PhaseStarted() | e.PhaseEnded():
                yield from self._phase(body)
            case e.PolicyFixed():
                yield from facts.policy(body)
                yield from self._default(body.harness)
            case e.StopRequested() | e.PauseRequested() | e.ResumeRequested():
                said, status = _STEERED[type(body)]
                yield Line(said.format(one_line(body.who, 40)), "warn")
                yield status
            case e.ConnectionDecided():
                where = one_line(f"{body.host}:{body.port}", 200)
                if body.effect == "deny":
                    rule = f"({one_line(body.rule, 200)}); allow it with --rule 'allow connect:{where}'"
                    yield Line(f"  ⊘ connection to {where} refused {rule}", "warn")
                else:
                    yield Line(f"  → connection to {where}", "dim")
            case e.RunFinished(again=False):
                yield IDLE
                yield from summary(fold(self._events), self._width)
            case e.TurnEnded():
                yield _THINKING
            case e.ChangeDelivered() | e.DeliveryFailed():
                yield from facts.delivery(body)
            case e.ConnectionClosed() | e.RequestDecided() | e.ChangeMade() | e.RunFinished():
                yield IDLE
            case _:
                assert_never(body)

    def _phase(self, body: e.PhaseStarted | e.PhaseEnded) -> Iterator[Piece]:
        beside = self._working and body.phase in e.BESIDE_WORK  # the status is the attempts'
        if isinstance(body, e.PhaseEnded):
            self._noted = None
            yield Line(f"✓ {body.phase}  {seconds(body.seconds)}", "dim")
        if not beside:
            yield Status(_DOING[body.phase]) if isinstance(body, e.PhaseStarted) else IDLE
        if body.phase == "work":
            self._working = isinstance(body, e.PhaseStarted)

    def _dimmed(self, attempt: int, lines: list[str]) -> Iterator[Piece]:
        mark = f"{self._mark(attempt)}  │ "
        room = self._width - len(mark)
        for line in lines:
            # Cut rather than wrapped: the rest of a wrapped line would look like a line of ours.
            cut = line if len(line) <= room else line[: room - 1] + "…"
            yield Line((mark + cut).rstrip(), "dim")

    @property
    def _many(self) -> bool:
        new = self._request
        return new is not None and (len(wishes(new)) > 1 or new.search is not None)

    def _mark(self, attempt: int) -> str:
        return f"[{attempt}] " if self._many or attempt in self._helpers else ""
