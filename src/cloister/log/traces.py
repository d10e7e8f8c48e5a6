"""Traces of runs for an OpenTelemetry collector, with the GenAI conventions: a reader of the log with its own cursor.

A span is sent when it has ended. Its ids are functions of the log, so a span that is sent twice is the same span. Texts of people,
models and tools are not sent.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from anyio import to_thread

from cloister import __version__
from cloister.core import events as e
from cloister.core.addresses import without_userinfo
from cloister.core.ids import RunId
from cloister.core.requests import Usage
from cloister.core.text import one_line
from cloister.log.api import Backbone
from cloister.log.audit.export import LOOK_SECONDS, Collector, attributes, client, deliver, repeat, save

STATE_FILE = "traces.exported"
PAGE = 512
OPEN = 20_000
"""Spans that have begun and not ended; the oldest are forgotten."""
KINDS = frozenset(
    {
        "RunAdmitted", "RunContinued", "RunClaimed", "RunFinished", "PhaseEnded", "AttemptStarted", "AttemptForked",
        "AttemptEnded", "ModelReplied", "ModelSpent", "ModelFailed", "ToolReturned", "SandboxOpened", "SandboxClosed",
        "ConnectionClosed", "ConnectionDecided", "AskRaised", "AskAnswered",
    }
)  # fmt: skip
_PROVIDERS = {
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "bedrock": "aws.bedrock",
    "openai-responses": "openai",
}
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2

Value = str | int | float | None


class Begun(msgspec.Struct, frozen=True):
    """A span that has not ended."""

    at: float
    seq: int
    about: dict[str, str] = {}


class State(msgspec.Struct):
    """How far the log was sent, and what had begun by then."""

    cursor: int = 0
    open: dict[str, Begun] = {}


class Span(msgspec.Struct, frozen=True):
    """A span that has ended. Times are Unix seconds."""

    run: RunId
    id: str
    parent: str
    """Empty for the span of a run."""
    name: str
    start: float
    end: float
    about: Mapping[str, Value]


def _hash(size: int, *parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[: 2 * size]


class Fold:
    """Turns events into spans, in the order of the log."""

    def __init__(self, state: State) -> None:
        self.state = state

    def add(self, event: e.Event) -> Span | None:
        """Take the next event; returns the span that it ends."""
        run, body = event.run, event.body
        match body:
            case e.RunAdmitted(request=request, who=who):
                repo = one_line(without_userinfo(request.repo), 200)
                self._begin(run, event, {"cloister.repository": repo, "enduser.id": one_line(who)})
                self._begin(f"{run} queue", event)
            case e.RunContinued(who=who):
                self._begin(run, event, {"enduser.id": one_line(who)})
                self._begin(f"{run} queue", event)
            case e.RunClaimed():
                return self._end(f"{run} queue", event, "queue", {})
            case e.RunFinished(outcome=outcome, blame=blame):
                error = {} if blame is None else {"error.type": outcome}
                span = self._end(run, event, "run", {"cloister.outcome": outcome, **error})
                for name in [name for name in self.state.open if name.startswith(f"{run} ")]:
                    del self.state.open[name]
                return span
            case e.PhaseEnded(phase=phase, seconds=seconds):
                return self._past(event, f"phase {phase}", seconds, {})
            case e.AskRaised(ask=ask):
                self._begin(f"{run} ask {ask}", event)
            case e.AskAnswered(ask=ask, answer=answer):
                return self._end(f"{run} ask {ask}", event, "ask", {"cloister.answer": answer})
            case _:
                return self._of_attempt(event) or self._outside(event)
        return None

    def _of_attempt(self, event: e.Event) -> Span | None:
        body = event.body
        match body:
            case e.AttemptStarted() | e.AttemptForked():
                self._begin(f"{event.run} attempt {body.attempt}", event)
            case e.AttemptEnded(attempt=attempt, outcome=outcome):
                told = _operation(
                    "invoke_agent", {"gen_ai.agent.name": "cloister", "cloister.attempt": attempt}
                )
                title = "invoke_agent cloister"
                return self._end(
                    f"{event.run} attempt {attempt}", event, title, told | {"cloister.outcome": outcome}
                )
            case e.ModelReplied() | e.ModelSpent():
                purpose = "code" if isinstance(body, e.ModelReplied) else one_line(body.purpose)
                told = {**_used(body.usage, body.cost), "cloister.purpose": purpose}
                return self._chat(event, body.model, body.seconds, told, body.attempt)
            case e.ModelFailed():
                return self._chat(event, body.model, 0.0, {"error.type": body.code}, body.attempt)
            case e.ToolReturned():
                tool, error = one_line(body.tool, 64), None if body.ok else "tool_failed"
                about = {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": one_line(body.call, 128)}
                told = _operation(
                    "execute_tool", about | {"process.exit.code": body.exit_code, "error.type": error}
                )
                return self._past(event, f"execute_tool {tool}", body.seconds, told, body.attempt)
            case _:
                pass
        return None

    def _outside(self, event: e.Event) -> Span | None:
        run, body = event.run, event.body
        match body:
            case e.SandboxOpened(sandbox=sandbox):
                self._begin(f"{run} sandbox {sandbox}", event, {"cloister.template": one_line(body.template)})
            case e.SandboxClosed(sandbox=sandbox):
                told: dict[str, Value] = {"cloister.sandbox": one_line(sandbox)}
                return self._end(f"{run} sandbox {sandbox}", event, "sandbox", told)
            case e.ConnectionClosed(host=host, port=port):
                told = {"server.address": one_line(host, 253), "server.port": port}
                told |= {"cloister.sent": body.sent_bytes, "cloister.received": body.received_bytes}
                return self._past(event, "connect", body.seconds, told)
            case e.ConnectionDecided(effect="deny", host=host, port=port):
                told = {"server.address": one_line(host, 253), "server.port": port, "error.type": "denied"}
                return self._past(event, "connect", 0.0, told)
            case _:
                pass
        return None

    def _begin(self, name: str, event: e.Event, about: dict[str, str] | None = None) -> None:
        self.state.open.pop(name, None)
        self.state.open[name] = Begun(event.at, event.seq, about or {})
        if len(self.state.open) > OPEN:
            del self.state.open[next(iter(self.state.open))]

    def _parent(self, run: RunId, attempt: int | None = None) -> str:
        for name in ([] if attempt is None else [f"{run} attempt {attempt}"]) + [run]:
            if begun := self.state.open.get(name):
                return _hash(8, run, begun.seq, name)
        return ""

    def _end(self, name: str, event: e.Event, title: str, about: Mapping[str, Value]) -> Span | None:
        begun = self.state.open.pop(name, None)
        if begun is None:
            return None
        number = _hash(8, event.run, begun.seq, name)
        return Span(
            event.run, number, self._parent(event.run), title, begun.at, event.at, {**begun.about, **about}
        )

    def _past(
        self,
        event: e.Event,
        title: str,
        seconds: float,
        about: Mapping[str, Value],
        attempt: int | None = None,
    ) -> Span:
        """A span whose only event is its end."""
        number, start = _hash(8, event.run, event.seq), event.at - max(0.0, seconds)
        return Span(event.run, number, self._parent(event.run, attempt), title, start, event.at, about)

    def _chat(
        self, event: e.Event, model: str, seconds: float, about: dict[str, Value], attempt: int | None
    ) -> Span:
        provider, _, rest = model.partition(":")
        name, known = one_line(rest or model, 128), _PROVIDERS.get(provider, one_line(provider, 64))
        told = _operation("chat", about | {"gen_ai.provider.name": known, "gen_ai.request.model": name})
        return self._past(event, f"chat {name}", seconds, told, attempt)


def _operation(name: str, about: Mapping[str, Value]) -> dict[str, Value]:
    return {"gen_ai.operation.name": name, **about}


def _used(usage: Usage, cost: float | None) -> Mapping[str, Value]:
    tokens = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read.input": usage.cached_tokens,
    }
    return {f"gen_ai.usage.{kind}_tokens": count for kind, count in tokens.items()} | {
        "cloister.cost.dollars": cost
    }


def request(spans: Sequence[Span]) -> dict[str, object]:
    """Return the request body for `spans`."""
    resource = {"attributes": attributes({"service.name": "cloister", "service.version": __version__})}
    scope = {"name": "cloister.runs", "version": "1"}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": [*map(_encoded, spans)]}]}
        ]
    }


def _encoded(span: Span) -> dict[str, object]:
    made: dict[str, object] = {
        "traceId": _hash(16, span.run),
        "spanId": span.id,
        "name": span.name,
        "kind": _CLIENT if span.name.startswith(("chat ", "connect")) else _INTERNAL,
        "startTimeUnixNano": str(int(span.start * 1e9)),
        "endTimeUnixNano": str(int(span.end * 1e9)),
        "attributes": attributes({**span.about, "gen_ai.conversation.id": span.run}),
        "status": {"code": _ERROR} if span.about.get("error.type") else {},
    }
    return made | ({"parentSpanId": span.parent} if span.parent else {})


async def ship_traces(
    log: Backbone, state_file: Path, collector: Collector, look_seconds: float = LOOK_SECONDS
) -> None:
    """Send every span once that ends from now on, or since the last server sent, and go on for ever."""
    state = await to_thread.run_sync(_read, state_file)
    if state is None:
        # The first time: without the past, which may be long.
        state, end = State(), -1
        while state.cursor != end:
            end, (state.cursor, _) = state.cursor, await log.since(state.cursor, ("RunAdmitted",), PAGE)
        await to_thread.run_sync(save, state_file, msgspec.json.encode(state))
    async with client() as http:

        async def step() -> bool:
            nonlocal state
            # A copy: a page that was not accepted is read again.
            draft = msgspec.convert(msgspec.to_builtins(state), State)
            cursor, events = await log.since(draft.cursor, KINDS, PAGE)
            if cursor == draft.cursor:
                return False
            fold = Fold(draft)
            if spans := [span for span in map(fold.add, events) if span is not None]:
                await deliver(http, collector, "traces", request(spans))
            draft.cursor, state = cursor, draft
            await to_thread.run_sync(partial(save, state_file, msgspec.json.encode(draft)))
            return len(events) == PAGE

        await repeat(step, "the trace of runs", look_seconds)


def _read(path: Path) -> State | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
