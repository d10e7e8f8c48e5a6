"""`cloister run`: hand over a prompt and a repository, and watch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, MustPass, TierWish, settings_of

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.core.ids import RunId
    from cloister.core.requests import NewRun


# Options of `cloister run`. Imports nothing slow.


MaybePrompt = Annotated[
    str,
    typer.Argument(
        metavar="PROMPT", help="What should be done. '-' reads it from stdin.", show_default=False
    ),
]
RepoName = Annotated[
    str, typer.Option("--repo", metavar="PATH|URL", help="The repository to work on.", show_default=False)
]
RunFileName = Annotated[
    Path | None,
    typer.Option("--file", metavar="RUN.toml", help="A run written down; options count before it."),
]
Checks = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="CMD", help="A command that must be green; repeat for several."),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="provider:name, or script:FILE for a scripted model.")
]
Kind = Annotated[
    str | None,
    typer.Option("--kind", help="What kind of task it is, for settings that name models by it."),
]
AttemptWishes = Annotated[
    list[str] | None,
    typer.Option(
        "--attempt",
        metavar="model=M,temperature=T,share=S,hint=TEXT",
        help="An attempt that differs; repeat for several, instead of --n.",
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
        help="Go on from the best save point when an attempt is stuck.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="HOST", help="A host the run asks to reach; repeat for several."),
]

Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="RULE", help="E.g. 'deny bash:git push*'; repeat for several."),
]


def run(  # noqa: PLR0913  (each parameter is an option of the command)
    ctx: typer.Context,
    prompt: MaybePrompt = "",
    repo: RepoName = "",
    file: RunFileName = None,
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit to start from.")] = None,
    check: Checks = None,
    must_pass: MustPass = None,
    model: ModelName = None,
    kind: Kind = None,
    n: Annotated[int, typer.Option("--n", help="Attempts, each in its own fork; the best one counts.")] = 1,
    attempt: AttemptWishes = None,
    first_green: FirstGreen = False,
    search: SearchPolicy = None,
    tier: TierWish = "auto",
    template: Annotated[str, typer.Option("--template", help="What its sandboxes start from.")] = "default",
    steps: Annotated[int | None, typer.Option("--steps", help="Budget: replies of the model.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="Budget: tokens, in and out.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Budget: wall time.")] = None,
    dollars: Annotated[float | None, typer.Option("--dollars", help="Budget: US dollars.")] = None,
    allow_host: AllowedHosts = None,
    rule: Rules = None,
    detach: Annotated[bool, typer.Option("--detach", help="Let a server do it and return at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run and watch it; exit 0 when its checks are green."""
    from cloister.cli.request import Asked, RunFile, new_run, read_run_file

    settings = settings_of(ctx)
    new = new_run(
        Asked(
            prompt=prompt,
            repo=repo,
            ref=ref,
            checks=tuple(check or ()),
            model=model,
            n=n,
            tier=tier,
            template=template,
            steps=steps,
            tokens=tokens,
            seconds=seconds,
            allow_hosts=tuple(allow_host or ()),
            attempts=tuple(attempt or ()),
            first_green=first_green,
            search=search,
            kind=kind,
            dollars=dollars,
            rules=tuple(rule or ()),
            must_pass=tuple(must_pass or ()),
        ),
        settings,
        RunFile() if file is None else read_run_file(file),
    )
    if detach:
        detach_run(settings, new, as_json)
        return
    raise typer.Exit(attend_run(settings, new, as_json))


def going_on(run: "RunId") -> None:
    """What a person who let go of a run should know."""
    print(
        f"The run goes on. Watch it: cloister watch {run}  Stop it: cloister stop {run}",
        file=sys.stderr,
    )


def detach_run(settings: "Settings", new: "NewRun", as_json: bool) -> None:
    """Hand `new` to a server, started if need be, and print its id."""
    from cloister.cli.client.background import ensure
    from cloister.cli.client.http import Client

    place, _ = ensure(settings)
    found = Client(place).submit(new)
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json({"run": found})
    else:
        print(found)
        print(f"Watch it: cloister watch {found}", file=sys.stderr)


def attend_run(settings: "Settings", new: "NewRun", as_json: bool) -> int:
    """Drive `new`, or let the server that is there do so, and watch it; returns the exit code."""
    import anyio

    from cloister.cli.client.attend import Watch
    from cloister.cli.client.discover import living
    from cloister.cli.screen.shows import open_show

    place = living(settings.data_dir)
    if place is None:
        from cloister.cli.client.embedded import run_here

        return anyio.run(run_here, settings, new, open_show(as_json))
    from cloister.cli.client.http import Client
    from cloister.cli.client.stream import RemoteRun

    found = Client(place).submit(new)
    watch = Watch(open_show(as_json))

    async def follow() -> None:
        await watch.until_end(RemoteRun(settings.data_dir, found, watch).follow)

    anyio.run(follow)
    if watch.interrupts and watch.outcome is None:
        going_on(found)
    return watch.exit_code
