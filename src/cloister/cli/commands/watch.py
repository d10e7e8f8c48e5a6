"""`cloister ps`, `watch`, `say`, `pause`, `stop` and `answer`: look at runs and steer them."""

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import drives_here, open_verbs, perform
from cloister.cli.options import (
    Accept,
    After,
    AsJson,
    AttachedFiles,
    Plain,
    RunName,
    attached,
    put,
    put_json,
    read_attached,
    settings_of,
    typed,
)
from cloister.core.errors import UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.cli.client.attend import Watch
    from cloister.core.events import Event
    from cloister.core.ids import RunId
    from cloister.log.api import RunRow


def watch(
    ctx: typer.Context,
    run: RunName,
    after: After = 0,
    accept: Accept = "proven",
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Show a run until it finishes, and steer it. Ctrl-C stops watching, not the run; twice stops the run."""
    import anyio

    found, seen = anyio.run(_watch, ctx, run, after, accept, as_json, plain)
    if seen.interrupts and seen.outcome is None:
        from cloister.cli.commands.run import still_running

        still_running(found)
    raise typer.Exit(seen.exit_code)


async def _watch(
    ctx: typer.Context, run: str, after: int, accept: Accept, as_json: bool, plain: bool
) -> "tuple[RunId, Watch]":
    from cloister.cli.client.attend import Watch
    from cloister.cli.client.steer import steer
    from cloister.cli.screen.screen import open_show

    async with open_verbs(ctx) as verbs:
        row = await verbs.runs.row(run)
        after = min(after, row.last_seq)
        earlier = await verbs.runs.events(row.id, limit=after) if after else ()
        show = open_show(as_json, earlier, plain=plain)
        steering = None if row.state == "finished" else steer(show)
        if steering is not None:
            for event in earlier:
                steering.feed(event)
            steering.at(verbs.runs, row.id)
        seen = Watch(show, after, accept, steering)
        seen.at(lambda: verbs.runs.row(row.id))

        async def follow() -> None:
            async with verbs.runs.follow(row.id, after) as items:
                async for item in items:
                    seen.feed(item)
            if seen.outcome is None:
                # The last event was before `--after`.
                seen.outcome = (await verbs.runs.row(row.id)).outcome

        await seen.until_end(follow)
    return row.id, seen


Listed = Literal[
    "queued",
    "running",
    "asks",
    "interrupted",
    "paused",
    "finished",
    "proven",
    "unbroken",
    "unproven",
    "red",
    "budget",
    "stopped",
    "failed",
]
_MOST = 1_000
"""Runs that are looked at for `--state asks|interrupted`."""


def ps(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MOST, help="How many runs to list.")] = 20,
    state_is: Annotated[
        Listed | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only runs that are queued, running, asks (they wait for your answer), interrupted, paused or "
            "finished, or that ended proven, unbroken, unproven, red, budget, stopped or failed.",
        ),
    ] = None,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="PATH|URL", help="Only runs of this repository.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only runs that this person started.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    where = repo and _named(repo)

    async def find(verbs: "Verbs") -> "tuple[RunRow, ...]":
        match state_is:
            case "asks" | "interrupted":
                rows = await verbs.runs.list(_MOST, state="running", repo=where, who=user)
                wanted = "asks you" if state_is == "asks" else state_is
                return tuple(row for row in rows if state(row) == wanted)[:limit]
            case None | "queued" | "running" | "paused" | "finished":
                return await verbs.runs.list(limit, state=state_is, repo=where, who=user)
            case _:
                return await verbs.runs.list(limit, outcome=state_is, repo=where, who=user)

    rows = perform(ctx, find, quick=True)
    if as_json:
        put_json(*rows)
    elif not rows:
        filtered = state_is or repo or user
        put("No such runs." if filtered else 'No runs yet. Start one: cloister run "fix the failing test"')
    else:
        _table(rows)


def _named(repo: str) -> str:
    from cloister.cli.request import repository

    try:
        return repository(repo)
    except UserError:
        return repo  # it may be gone, and its runs are still listed


def _table(rows: "tuple[RunRow, ...]") -> None:
    """One line for each run; two on a terminal that is too narrow for it."""
    from cloister.cli.screen.terminal import columns
    from cloister.runs.event_text.lines import seconds

    now, width = time.time(), columns(1_000)
    wide = width >= 130
    more = f" {'USER':<10} {'MODEL':<24} {'REPOSITORY':<24}" if wide else ""
    put(f"{'RUN':<15} {'STATE':<11} {'AGE':<9} {'TOOK':<11} {'COST':<8}{more} PROMPT")
    for row in rows:
        age = _age(now - row.created_at)
        took = seconds(max(0.0, row.updated_at - row.created_at)) if row.state == "finished" else ""
        cost = "" if row.cost is None else f"${row.cost:.2f}"
        head = f"{row.id:<15} {state(row):<11} {age:<9} {took:<11} {cost:<8}"
        place, name = row.repo.rstrip("/").rpartition("/")[2] or row.repo, row.model or ""
        if wide:
            head += f" {one_line(row.who, 10):<10} {one_line(name, 24):<24} {one_line(place, 24):<24}"
        put(f"{head} {one_line(row.prompt, max(20, min(72, width - len(head) - 2)))}")
        if not wide:
            put(f"{'':<15} {one_line(' · '.join(filter(None, (place, name, row.who))), width - 17)}")
        if about := _about(row, now):
            put(f"{'':<15} {about}")


def _about(row: "RunRow", now: float) -> str:
    """Why a run waits, or what it does and how long that usually takes."""
    if row.state == "paused":
        return one_line(row.reason or "", 200)
    if row.state == "queued":
        return f"{row.ahead} {'run is' if row.ahead == 1 else 'runs are'} before it" if row.ahead else ""
    if state(row) not in ("running", "asks you") or row.phase is None or row.phase_since is None:
        return ""
    from cloister.runs.event_text.lines import seconds

    usual = "" if row.phase_usual is None else f", usually {seconds(row.phase_usual)}"
    return f"{row.phase} for {_age(now - row.phase_since)}{usual}"


def state(row: "RunRow") -> str:
    """The state of a run in one word."""
    if row.state == "finished":
        return row.outcome or "finished"
    if row.state in ("running", "paused") and row.owner is not None and not row.owner_lives:
        return "interrupted"
    return "asks you" if row.asks else row.state


def _age(seconds: float) -> str:
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {word}"
    return f"{max(0, int(seconds))} s"


def say(
    ctx: typer.Context,
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    attach: AttachedFiles = None,
) -> None:
    """Send a message to a run, which reads it before its next step; a finished run continues with it."""
    row = perform(ctx, lambda verbs: verbs.runs.row(run), quick=True)
    finished = row.state == "finished"
    if finished and drives_here(ctx):
        from cloister.forge.host import check_kept

        check_kept(settings_of(ctx).data_dir, row.id)  # before a server starts to drive the next round
    message = typed(text)
    serve = finished and bool(message.strip())
    files = read_attached(attach)

    async def work(verbs: "Verbs") -> "Event":
        return await verbs.runs.say(run, message, attachments=await attached(verbs, files))

    event = perform(ctx, work, serve=serve, quick=not finished and not files)
    if finished:
        put(f"{event.run} continues. Watch it: cloister watch {event.run}")
    else:
        put(f"Sent to {event.run} (event {event.seq}).")


def stop(ctx: typer.Context, run: RunName) -> None:
    """Ask a run to stop; its work up to the last save point is kept."""
    found = perform(ctx, lambda verbs: verbs.runs.stop(run)).run
    put(f"Asked {found} to stop. Watch it end: cloister watch {found}")


def _reply(ctx: typer.Context, run: str, question: str | None, text: str) -> None:
    from cloister.core.events import PromptReceived

    event = perform(ctx, lambda verbs: verbs.runs.reply(run, question, typed(text)), serve=False)
    late = isinstance(event.body, PromptReceived)
    put(f"Sent to {event.run} as a message: the deadline has passed." if late else f"Answered {event.run}.")


def pause(ctx: typer.Context, run: RunName) -> None:
    """Pause a run before its next step, until `cloister resume`. The pause costs none of its time."""
    event = perform(ctx, lambda verbs: verbs.runs.pause(run))
    put(f"Asked {event.run} to pause before its next step. Let it go on: cloister resume {event.run}")


def resume(ctx: typer.Context, run: RunName) -> None:
    """Let a run go on that a person paused."""
    event = perform(ctx, lambda verbs: verbs.runs.resume(run))
    put(f"{event.run} goes on. Watch it: cloister watch {event.run}")


def interrupt(ctx: typer.Context, run: RunName) -> None:
    """Stop the current step of a run: its command or model request. The model learns of it, and the run goes on."""
    event = perform(ctx, lambda verbs: verbs.runs.interrupt(run))
    put(f"Asked {event.run} to stop its current step.")


def answer(
    ctx: typer.Context,
    run: RunName,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ASK] allow|deny|TEXT",
            help="The answer; before it the question, as the run's screen names it, if several are open. "
            "TEXT answers a question of the model.",
        ),
    ],
) -> None:
    """Answer a question of a run. After its deadline the default answer applies."""
    match words:
        case [("allow" | "deny") as verdict]:
            ask = None
        case [question, text] if question.startswith("q-"):
            _reply(ctx, run, question, text)
            return
        case [ask, ("allow" | "deny") as verdict]:
            pass
        case [text]:
            _reply(ctx, run, None, text)
            return
        case _:
            raise UserError("bad_answer", f"Say allow or deny: cloister answer {run} allow.")
    from cloister.core.events import AskAnswered

    event = perform(ctx, lambda verbs: verbs.runs.answer(run, ask, verdict))
    named = event.body.ask if isinstance(event.body, AskAnswered) else ask
    put(f"Answered {named} of {event.run}: {verdict}.")
