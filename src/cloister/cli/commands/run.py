"""`cloister run`: start a run and watch it."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec.structs import replace

from cloister.cli.client.open import check_shared_path, drives_here, open_verbs, perform
from cloister.cli.options import (
    Accept,
    AllowTestChanges,
    AsJson,
    AskTestChanges,
    AttachedFiles,
    ExcludeTests,
    MustPass,
    Plain,
    TierWish,
    attached,
    complete_harness,
    put,
    put_json,
    read_attached,
    settings_of,
)
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import Admitted, RunWish
    from cloister.cli.client.attend import Watch
    from cloister.cli.request import RunOptions
    from cloister.cli.screen.screen import Show
    from cloister.core.ids import RunId
    from cloister.core.requests import Accepted


MaybePrompt = Annotated[
    str,
    typer.Argument(metavar="PROMPT", help="The task. '-' reads it from stdin.", show_default=False),
]
RepoName = Annotated[
    list[str] | None,
    typer.Option(
        "--repo",
        metavar="PATH|URL",
        help="The repository to work on. Default: the one around the current directory. Repeat for several, "
        "each in a folder and with a change of its own.",
        show_default=False,
    ),
]
RunFileName = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="RUN.toml", help="Read the run from a TOML file; options take precedence."
    ),
]
Checks = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="CMD", help="A command that must pass; repeat for several."),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="provider:name, or script:FILE for a scripted model.")
]
Kind = Annotated[
    str | None,
    typer.Option("--kind", help="The kind of task, for settings that choose models by kind."),
]
AttemptWishes = Annotated[
    list[str] | None,
    typer.Option(
        "--attempt",
        metavar="model=M,temperature=T,share=S,harness=H,hint=TEXT",
        help="An attempt with its own settings; repeat for several, instead of --n.",
    ),
]
FirstGreen = Annotated[
    bool, typer.Option("--first-green", help="Stop the other attempts as soon as one is proven.")
]
SearchPolicy = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="greedy|beam:K",
        help="When an attempt is stuck, continue from the best save point.",
    ),
]
HarnessName = Annotated[
    str | None,
    typer.Option(
        "--harness",
        metavar="native|repair|opencode|claude|codex|acp:COMMAND",
        help="native: the loop with a model; repair: search by rules and tests, without a model; opencode, claude, codex, or any "
        "program that speaks the Agent Client Protocol: it works inside the sandbox, and the same evidence decides. "
        "Without a model, the default is repair.",
        autocompletion=complete_harness,
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="The seed of the repair harness; the same seed repeats the same search.",
        show_default=False,
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="HOST", help="A host the run needs; the policy decides. Repeat for several."
    ),
]

Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="RULE",
        help="A rule for this run, such as 'deny write:ci/**'; repeat for several. Rules about command lines, "
        "such as 'deny bash:git push*', are advice: a program can do the same in another way.",
    ),
]
Count = Annotated[
    int, typer.Option("--n", help="Attempts, each in its own fork; the best one becomes the result.")
]
Setup = Annotated[
    str,
    typer.Option(
        "--setup",
        metavar="auto|off|CMD",
        help="Install the dependencies as detected, not at all, or with this command.",
    ),
]
PullRequest = Annotated[
    bool | None,
    typer.Option(
        "--pr/--no-pr",
        help="Open a pull request with the change. Default: if the repository is at a forge of the settings.",
        show_default=False,
    ),
]

Issue = Annotated[
    int | None,
    typer.Option(
        "--issue",
        metavar="N",
        min=1,
        help="The issue of the repository's forge that the run is about: its pull request names it.",
        show_default=False,
    ),
]
NotesMode = Annotated[
    Literal["propose", "write", "off"] | None,
    typer.Option(
        "--notes",
        metavar="propose|write|off",
        help="What becomes of notes for later runs: proposed, written into the change, or none. Default: the settings.",
        show_default=False,
    ),
]


def run(  # noqa: PLR0913  (each parameter is an option of the command)
    ctx: typer.Context,
    prompt: MaybePrompt = "",
    repo: RepoName = None,
    file: RunFileName = None,
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit to start from.")] = None,
    check: Checks = None,
    must_pass: MustPass = None,
    exclude_test: ExcludeTests = None,
    allow_test_changes: AllowTestChanges = None,
    ask_test_changes: AskTestChanges = None,
    model: ModelName = None,
    kind: Kind = None,
    harness: HarnessName = None,
    seed: Seed = None,
    n: Count = 1,
    attempt: AttemptWishes = None,
    first_green: FirstGreen = False,
    search: SearchPolicy = None,
    tier: TierWish = "auto",
    template: Annotated[str, typer.Option("--template", help="The template of its sandboxes.")] = "default",
    setup: Setup = "auto",
    pr: PullRequest = None,
    issue: Issue = None,
    notes: NotesMode = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Budget: model replies.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="Budget: tokens, in and out.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Budget: wall time.")] = None,
    dollars: Annotated[float | None, typer.Option("--dollars", help="Budget: US dollars.")] = None,
    allow_host: AllowedHosts = None,
    rule: Rules = None,
    attach: AttachedFiles = None,
    detach: Annotated[bool, typer.Option("--detach", help="Hand it to a server and return at once.")] = False,
    accept: Accept = "proven",
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Start a run and watch it; exit 0 if its change is proven."""
    from cloister.cli.request import RunOptions
    from cloister.cli.screen.terminal import is_terminal

    options = RunOptions(
        *(prompt, (repo or [""])[0], ref, tuple(check or ()), model, n, tier, steps, tokens, seconds),
        *(tuple(allow_host or ()), template, kind, tuple(attempt or ()), first_green, search, dollars),
        also=tuple((repo or ())[1:]),
        rules=tuple(rule or ()),
        must_pass=tuple(must_pass or ()),
        exclude_tests=tuple(exclude_test or ()),
        allow_test_changes=tuple(allow_test_changes or ()),
        ask_test_changes=ask_test_changes,
        attended=not (detach or plain or as_json) and is_terminal(0) and is_terminal(1),
        harness=harness,
        seed=seed,
        setup=setup,
        pull_request=pr,
        issue=issue,
        notes=notes,
    )
    start(ctx, _submission(ctx, options, file, attach), detach, as_json, plain, accept)


RepoNames = Annotated[
    str,
    typer.Option(
        "--repos",
        metavar="FILE|QUERY",
        help="A file with one repository on each line ('-': stdin), or host/owner/pattern at a forge of the "
        "settings, such as 'github.com/acme/service-*'.",
        show_default=False,
    ),
]
FleetName = Annotated[
    str,
    typer.Option(
        "--name",
        help="The same command goes on with the same runs; with another name it makes new ones.",
        show_default=False,
    ),
]


def fleet(  # noqa: PLR0913  (each parameter is an option of the command)
    ctx: typer.Context,
    prompt: MaybePrompt = "",
    repos: RepoNames = "",
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=64, help="Unfinished runs at a time.")
    ] = 4,
    name: FleetName = "",
    file: RunFileName = None,
    check: Checks = None,
    model: ModelName = None,
    kind: Kind = None,
    n: Count = 1,
    pr: PullRequest = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Budget of each: model replies.")] = None,
    dollars: Annotated[float | None, typer.Option("--dollars", help="Budget of each: US dollars.")] = None,
    rule: Rules = None,
    accept: Accept = "proven",
    as_json: AsJson = False,
) -> None:
    """Start the same task in many repositories and show their outcomes; exit 0 if every change is proven."""
    import anyio

    from cloister.cli.client.attend import accepted
    from cloister.cli.fleet import Fleet, repositories, show
    from cloister.cli.request import RunFile, RunOptions, new_run, read_run_file

    if not repos:
        raise UserError("bad_repos", "Name the repositories: --repos FILE, or --repos host/owner/pattern.")
    options = RunOptions(
        # Each repository takes the place of this address.
        *(prompt, "https://localhost/each", None, tuple(check or ()), model, n, "auto"),
        *(steps, None, None, ()),
        kind=kind,
        dollars=dollars,
        rules=tuple(rule or ()),
        pull_request=pr,
    )
    new = new_run(options, settings_of(ctx), RunFile() if file is None else read_run_file(file))

    async def main() -> bool:
        async with open_verbs(ctx, drive=True) as verbs:
            found = await repositories(verbs, repos)
            await check_shared_path(ctx, *(one for one in found if one.startswith("/")))
            made = Fleet(verbs, found)
            await show(made, partial(made.run, new, name, parallel), as_json=as_json)
            return all(accepted(one.outcome, accept) for one in made.results)

    if not anyio.run(main):
        raise typer.Exit(1)


def _submission(
    ctx: typer.Context,
    options: "RunOptions",
    file: Path | None,
    attach: AttachedFiles = None,
) -> "Callable[[Verbs], Awaitable[Admitted]]":
    from cloister.cli.request import RunFile, new_run, read_run_file

    new = new_run(options, settings_of(ctx), RunFile() if file is None else read_run_file(file))
    return partial(_submit, ctx, new, read_attached(attach))


async def _submit(
    ctx: typer.Context, new: "RunWish", files: "tuple[tuple[str, bytes], ...]", verbs: "Verbs"
) -> "Admitted":
    models = (new.model, *(wish.model for wish in new.attempts))
    scripts = (name.removeprefix("script:") for name in models if name)
    await check_shared_path(ctx, *(one.repo for one in new.repositories), *scripts)
    if files:
        new = replace(new, attachments=await attached(verbs, files))
    return await verbs.runs.submit(new)


def still_running(run: "RunId") -> None:
    """Tell a person who stopped watching that the run continues."""
    put(
        f"The run continues. Watch it: cloister watch {run}\n                    Stop it: cloister stop {run}",
        file=sys.stderr,
    )


def start(
    ctx: typer.Context,
    submit: "Callable[[Verbs], Awaitable[Admitted]]",
    detach: bool,
    as_json: bool,
    plain: bool = False,
    accept: "Accepted" = "proven",
) -> None:
    """Submit a run and watch it to its end, or hand it to a server and print its id."""
    if not detach:
        import anyio

        from cloister.cli.screen.screen import open_show

        watch, run = anyio.run(_attend, ctx, submit, open_show(as_json, plain=plain), accept)
        if run is not None and watch.outcome is None:
            _let_go(ctx, run, watch)
        raise typer.Exit(watch.exit_code)
    found = perform(ctx, submit, serve=True).id
    if as_json:
        put_json({"run": found})
    else:
        put(found)
        put(f"Watch it: cloister watch {found}", file=sys.stderr)


async def _attend(
    ctx: typer.Context, submit: "Callable[[Verbs], Awaitable[Admitted]]", show: "Show", accept: "Accepted"
) -> "tuple[Watch, RunId | None]":
    """Watch a new run to its end.

    With a keyboard, Ctrl-C leaves the run, which goes on, and twice stops it. Without one, Ctrl-C only stops watching
    if a server drives the run; if this process drives it, the first stops the run and the second leaves it interrupted.
    """
    from cloister.cli.client.attend import Watch
    from cloister.cli.client.steer import steer
    from cloister.cli.failures import log_to
    from cloister.cli.screen.screen import NoteFile

    here = drives_here(ctx)
    steering = steer(show, here=here)
    if here:
        log_to(sys.stderr if steering is None else NoteFile(show))
    watch = Watch(show, accept=accept, steering=steering)
    submitted: list[tuple[Verbs, RunId]] = []

    async def drive() -> None:
        async with open_verbs(ctx, drive=True) as verbs:
            run = (await submit(verbs)).id
            submitted.append((verbs, run))
            watch.at(lambda: verbs.runs.row(run))
            if steering is not None:
                steering.at(verbs.runs, run)
            async with verbs.runs.follow(run) as items:
                async for item in items:
                    watch.feed(item)

    async def stop() -> bool:
        if not submitted:
            return False
        verbs, run = submitted[0]
        try:
            await verbs.runs.stop(run)
        except UserError:
            pass  # it has just finished
        else:
            show.note("Stopping … (Ctrl-C again: exit at once)")
        return True

    await watch.until_end(drive, stop if here else None)
    return watch, submitted[0][1] if submitted else None


def _let_go(ctx: typer.Context, run: "RunId", watch: "Watch") -> None:
    """Say what becomes of a run that is not watched any more; hand it to a server if no process drives it."""
    if drives_here(ctx):
        if not watch.left:
            resume = "`cloister serve --background` resumes"
            put(f"Interrupted. The saved work is kept; {resume} {run}.", file=sys.stderr)
            return
        from cloister.cli.client.discover import ensure

        put(f"Handing {run} over; it continues from its last save point.", file=sys.stderr)
        ensure(settings_of(ctx))
    still_running(run)
