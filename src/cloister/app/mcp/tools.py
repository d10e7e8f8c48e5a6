"""The tools of the MCP server. Each calls verbs, which check the role and the rules and enter it into the audit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import msgspec
from msgspec import Meta

from cloister.app.triggers import check_key
from cloister.app.verbs.api import Verbs
from cloister.app.verbs.records import Exec, NewSandbox, RunWish
from cloister.core.errors import Bug, UserError
from cloister.core.events import AskRaised, Event, QuestionAsked
from cloister.core.text import bounded, decode, harmless, one_line
from cloister.runs.attempts.verify import Verified
from cloister.runs.event_text.lines import Line
from cloister.runs.event_text.render import Renderer, words
from cloister.runs.view import RunView, fold

RESULT_CHARS = 60_000
"""Of one result; longer texts lose their middle."""
FILE_BYTES = 262_144
FOLLOW_SECONDS = 600.0
_LINES = 400
_TELL_SECONDS = 1.0

Progress = Callable[[float, str], Awaitable[None]]
"""Reports how far a call is: a number that grows, and one line."""

Run = Annotated[str, Meta(max_length=200, description="An id, a unique beginning of one, or `last`.")]
SandboxName = Annotated[str, Meta(max_length=100, description="The id of a sandbox.")]
Path = Annotated[str, Meta(max_length=4_096, description="Absolute, or relative to /work.")]
Follow = Annotated[float, Meta(ge=0, le=FOLLOW_SECONDS, description="How long to wait, in seconds.")]


class _Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class StartRun(_Args, frozen=True):
    prompt: Annotated[str, Meta(min_length=1, max_length=100_000, description="The task.")]
    repo: Annotated[
        str,
        Meta(max_length=4_096, description="A git URL, or the path of a repository on the server's machine."),
    ]
    ref: Annotated[str | None, Meta(description="Branch, tag or commit to start from.")] = None
    checks: Annotated[
        tuple[str, ...], Meta(max_length=20, description="Commands that must pass; none: they are found.")
    ] = ()
    model: Annotated[str | None, Meta(description="`provider:name`; none: the configured one.")] = None
    attempts: Annotated[int, Meta(ge=1, le=16, description="Attempts, each in its own sandbox.")] = 1
    key: Annotated[str, Meta(max_length=200, description="The same key is the same run.")] | None = None
    wait_seconds: Follow = 0.0


class FollowRun(_Args, frozen=True):
    run: Run
    after: Annotated[int, Meta(ge=0, description="Show events with a greater number.")] = 0
    wait_seconds: Follow = 300.0


class OneRun(_Args, frozen=True):
    run: Run


class ListRuns(_Args, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class SayToRun(_Args, frozen=True):
    run: Run
    text: Annotated[str, Meta(min_length=1, max_length=100_000)]


class AnswerRun(_Args, frozen=True):
    run: Run
    answer: Annotated[
        str,
        Meta(
            max_length=10_000,
            description="`allow` or `deny` for a question of the rules; else a text for the model.",
        ),
    ]
    question: Annotated[str | None, Meta(description="Its id; none: the only open one.")] = None


class DiffOfRun(_Args, frozen=True):
    run: Run
    attempt: int | None = None


class VerifyRun(_Args, frozen=True):
    ref: Annotated[
        str, Meta(max_length=4_096, description="A run, a branch of `repo`, or a pull request's address.")
    ]
    repo: Annotated[str, Meta(max_length=4_096, description="Empty if `ref` is a run or a pull request.")] = (
        ""
    )


class CreateSandbox(_Args, frozen=True):
    template: Annotated[str, Meta(max_length=100)] = "default"
    ttl_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3_600.0


class OneSandbox(_Args, frozen=True):
    sandbox: SandboxName


class ExecIn(_Args, frozen=True):
    sandbox: SandboxName
    command: Annotated[str, Meta(min_length=1, max_length=100_000, description="A line for bash.")]
    seconds: Annotated[float, Meta(gt=0, le=600)] = 120.0


class ReadFile(_Args, frozen=True):
    sandbox: SandboxName
    path: Path


class WriteFile(_Args, frozen=True):
    sandbox: SandboxName
    path: Path
    content: Annotated[str, Meta(max_length=FILE_BYTES)]


class NoArgs(_Args, frozen=True):
    pass


@dataclass(frozen=True, slots=True)
class ServedTool:
    """One tool of the server."""

    name: str
    description: str
    args: type[Any]
    run: Callable[[Verbs, Any, Progress], Awaitable[str]]
    reads: bool = False
    """True if it changes nothing."""


async def call(tool: ServedTool, verbs: Verbs, arguments: Mapping[str, object], progress: Progress) -> str:
    """Call a tool; its text is bounded. Raises `CloisterError`, also for wrong arguments (`bad_arguments`)."""
    try:
        args = msgspec.convert(arguments, tool.args)
    except msgspec.ValidationError as error:
        raise UserError("bad_arguments", f"{tool.name}: {one_line(str(error), 300)}.") from None
    return bounded(harmless(await tool.run(verbs, args, progress)), RESULT_CHARS)


# Runs


async def _start(verbs: Verbs, args: StartRun, progress: Progress) -> str:
    check_key(args.key)
    wish = RunWish(
        args.prompt,
        args.repo,
        args.ref,
        checks=args.checks,
        model=args.model,
        n=args.attempts,
        key=args.key,
    )
    admitted = await verbs.runs.submit(wish)
    if not args.wait_seconds:
        made = "started" if admitted.made else "was started before with this key"
        return f"The run {admitted.id} {made}. Follow it with run_follow."
    return await _follow(verbs, FollowRun(admitted.id, 0, args.wait_seconds), progress)


async def _follow(verbs: Verbs, args: FollowRun, progress: Progress) -> str:
    """Wait until the run has finished, asks a person, or the time is over; then what happened and where it is."""
    run = (await verbs.runs.row(args.run, told=False)).id
    renderer, events = Renderer(), list[Event]()
    with anyio.move_on_after(args.wait_seconds):
        async with verbs.runs.follow(run, 0, deltas=False) as items:
            async for item in items:
                if not isinstance(item, Event):
                    continue
                events.append(item)
                pieces = renderer.feed(item)
                if item.seq <= args.after:
                    continue
                if line := next((piece.text for piece in pieces if isinstance(piece, Line)), ""):
                    await progress(float(item.seq), one_line(line, 200))
                if isinstance(item.body, AskRaised | QuestionAsked) and _waits(events):
                    break
    if not events:
        events = list(await verbs.runs.events(run))
    return _told(events, args.after)


def _waits(events: list[Event]) -> bool:
    view = fold(events)
    return bool(view.asks or view.questions)


def _told(events: list[Event], after: int) -> str:
    view = fold(events)
    lines = [
        line for one in words(events, after) for line in (f"{one.seq}  {part.text}" for part in one.lines)
    ]
    cut = [f"… {len(lines) - _LINES} lines before"] if len(lines) > _LINES else []
    return "\n".join([*cut, *lines[-_LINES:], "", status_text(view)])


def status_text(view: RunView) -> str:
    """The state of a run in a few lines."""
    lines = [f"run {view.id}: {view.outcome or view.state}" + (f" ({view.phase})" if view.phase else "")]
    if view.reason:
        lines.append(one_line(view.reason, 500))
    if view.red_before is not None:
        lines.append(f"red before: {view.red_before}, now: {view.red_now}")
    lines.append(f"{view.steps} steps, {view.seconds:.0f} s; last event {view.last_seq}")
    lines += [
        f"asks [{ask.ask}]: {one_line(ask.action, 300)} ({one_line(ask.rule, 200)})" for ask in view.asks
    ]
    lines += [f"asks [{one.question}]: {one_line(one.text, 500)}" for one in view.questions]
    if view.summary:
        lines.append(view.summary)
    if view.branch:
        lines.append(f"branch {view.branch} at {view.commit}: {len(view.files)} files")
    if view.pull_request:
        lines.append(view.pull_request)
    return "\n".join(lines)


async def _status(verbs: Verbs, args: OneRun, progress: Progress) -> str:
    return status_text(await verbs.runs.view(args.run))


async def _list(verbs: Verbs, args: ListRuns, progress: Progress) -> str:
    rows = await verbs.runs.list(args.limit)
    lines = [f"{row.id}  {row.outcome or row.state}  {one_line(row.prompt, 100)}" for row in rows]
    return "\n".join(lines) or "There are no runs."


async def _say(verbs: Verbs, args: SayToRun, progress: Progress) -> str:
    event = await verbs.runs.say(args.run, args.text)
    return f"Sent, as event {event.seq}."


async def _answer(verbs: Verbs, args: AnswerRun, progress: Progress) -> str:
    view = await verbs.runs.view(args.run)
    asked = {ask.ask for ask in view.asks}
    rules = args.question in asked or (args.question is None and asked and not view.questions)
    if rules:
        if args.answer != "allow" and args.answer != "deny":
            raise UserError("bad_arguments", "A question of the rules is answered with `allow` or `deny`.")
        event = await verbs.runs.answer(args.run, args.question, args.answer)
    else:
        event = await verbs.runs.reply(args.run, args.question, args.answer)
    return f"Answered, as event {event.seq}."


async def _stop(verbs: Verbs, args: OneRun, progress: Progress) -> str:
    await verbs.runs.stop(args.run)
    return "It is asked to stop; its saved work stays."


async def _diff(verbs: Verbs, args: DiffOfRun, progress: Progress) -> str:
    return await verbs.runs.diff(args.run, args.attempt) or "There is no change."


async def _verify(verbs: Verbs, args: VerifyRun, progress: Progress) -> str:
    notes: list[str] = []
    found: Verified | None = None

    async def tell() -> None:
        told = 0
        while True:
            await anyio.sleep(_TELL_SECONDS)
            if len(notes) > told:
                told = len(notes)
                await progress(float(told), one_line(notes[-1], 200))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        found = await verbs.runs.verify(args.repo, args.ref, lambda fraction, note: notes.append(note))
        tasks.cancel_scope.cancel()
    if found is None:
        raise Bug("A verification without a result.")
    holds = "The proof holds." if found.holds else "The proof does not hold."
    return (
        f"{holds} {found.statement}\nclaimed {found.claimed}, found {found.found}: {', '.join(found.checks)}"
    )


# Sandboxes


async def _create(verbs: Verbs, args: CreateSandbox, progress: Progress) -> str:
    made, _ = await verbs.sandboxes.create(NewSandbox(template=args.template, ttl_seconds=args.ttl_seconds))
    return f"The sandbox {made.id} is open ({made.isolation.tier}); it ends in {args.ttl_seconds:g} s."


async def _sandboxes(verbs: Verbs, args: NoArgs, progress: Progress) -> str:
    found = await verbs.sandboxes.list()
    return "\n".join(f"{one.id}  {one.template}  {one.isolation.tier}" for one in found) or "There are none."


async def _exec(verbs: Verbs, args: ExecIn, progress: Progress) -> str:
    done = await verbs.sandboxes.exec(args.sandbox, Exec(command=args.command, seconds=args.seconds))
    end = f"[killed: {done.killed}]" if done.killed else f"[exit status {done.exit_code}]"
    return "\n".join(part.rstrip("\n") for part in (done.stdout, done.stderr, end) if part)


async def _read(verbs: Verbs, args: ReadFile, progress: Progress) -> str:
    data = bytearray()
    async with verbs.files.read(args.sandbox, args.path, limit_bytes=FILE_BYTES) as parts:
        async for part in parts:
            data += part
    return decode(bytes(data))


async def _write(verbs: Verbs, args: WriteFile, progress: Progress) -> str:
    data = args.content.encode()
    async with verbs.files.write(args.sandbox, args.path) as sink:
        await sink.send(data)
    return f"Wrote {len(data):,} bytes to {args.path}."


async def _destroy(verbs: Verbs, args: OneSandbox, progress: Progress) -> str:
    await verbs.sandboxes.destroy(args.sandbox)
    return "It has ended."


TOOLS: tuple[ServedTool, ...] = (
    ServedTool(
        "run_start",
        "Start a background coding run: an agent works on the task in a sandbox, and its change is accepted only "
        "with a proof. Returns the run's id at once, or waits for its end.",
        StartRun,
        _start,
    ),
    ServedTool(
        "run_follow",
        "Wait for a run and return what happened since an event: until it has finished, asks a person, or the time "
        "is over.",
        FollowRun,
        _follow,
        reads=True,
    ),
    ServedTool("run_status", "The state of a run, with its open questions.", OneRun, _status, reads=True),
    ServedTool("run_list", "The newest runs.", ListRuns, _list, reads=True),
    ServedTool("run_say", "Send a message to a run; a finished one continues with it.", SayToRun, _say),
    ServedTool("run_answer", "Answer a question of a run.", AnswerRun, _answer),
    ServedTool("run_stop", "Stop a run.", OneRun, _stop),
    ServedTool("run_diff", "The change of a run as a diff.", DiffOfRun, _diff, reads=True),
    ServedTool("run_verify", "Run the proof of a change again, from nothing.", VerifyRun, _verify),
    ServedTool("sandbox_create", "Open a sandbox for commands and files.", CreateSandbox, _create),
    ServedTool("sandbox_list", "The open sandboxes.", NoArgs, _sandboxes, reads=True),
    ServedTool("sandbox_exec", "Run a command line in a sandbox.", ExecIn, _exec),
    ServedTool("sandbox_read", "Read a text file of a sandbox.", ReadFile, _read, reads=True),
    ServedTool("sandbox_write", "Write a text file into a sandbox.", WriteFile, _write),
    ServedTool("sandbox_destroy", "End a sandbox.", OneSandbox, _destroy),
)
