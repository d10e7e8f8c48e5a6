"""Options of `cloister run`. Imports nothing slow."""

from pathlib import Path
from typing import Annotated

import typer

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
