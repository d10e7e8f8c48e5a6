"""`cloister policy`: what the rules say, and why."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, settings_of

if TYPE_CHECKING:
    from cloister.policy.api import Action, Decision, Policy

app = typer.Typer(
    help="What the rules say, and why: explain, test, show, check, schema, sets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Repo = Annotated[
    str | None,
    typer.Option(
        "--repo", metavar="PATH", help="With the rules of this repository's HEAD. Default: where you are."
    ),
]
PolicyPath = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")]


@app.command("explain")
def explain(
    ctx: typer.Context,
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION",
            help="E.g. 'bash:git push', write:.github/ci.yml, connect:example.org:443, push:main, tier:gvisor.",
        ),
    ],
    repo: Repo = None,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="As if text from outside had been read before.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what would be decided about one action, and by which rule in which file and line."""
    import anyio

    from cloister.cli.screen.policy import explained, show_explained
    from cloister.egress.packages import SetFinder
    from cloister.egress.sandbox_setup import sets_of
    from cloister.policy.decide import Decider

    async def find() -> "tuple[Action, Decision]":
        found, policy = await _action(action), await _policy(ctx, repo)
        sets = await sets_of(policy, SetFinder(settings_of(ctx).data_dir).find)
        return found, Decider(policy, sets).decide(found, untrusted=untrusted)

    record = explained(action, *anyio.run(find))
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(record)
        return
    show_explained(record)


@app.command("show")
def show(
    ctx: typer.Context,
    effective: Annotated[
        bool, typer.Option("--effective", help="All layers as one: what holds, strictest first.")
    ] = False,
    repo: Repo = None,
    as_json: AsJson = False,
) -> None:
    """Show the rules in force, layer by layer, each with its file and line."""
    import anyio

    from cloister.cli.screen.policy import effective_lines, layer_lines

    policy = anyio.run(_policy, ctx, repo)
    if as_json:
        from cloister.cli.screen.shows import put_json
        from cloister.policy.layers import least

        for layer in policy:
            put_json(layer)
        if effective:
            put_json({"limits": least(policy)})
        return
    for line in effective_lines(policy) if effective else layer_lines(policy):
        print(line)


@app.command("check")
def check(file: PolicyPath, as_json: AsJson = False) -> None:
    """Read a policy file; what is wrong is said with its line, and the exit code is 2."""
    from cloister.policy.file import read_policy
    from cloister.runs.run_rules import read_bounded

    read = read_policy("organisation", read_bounded(file), str(file))
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(read.layer)
        return
    print(f"{file} is good: {len(read.layer.rules)} rules, {len(read.tests)} tests.")


@app.command("test")
def test(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A policy file. Default: .cloister/policy.toml of the repository."
        ),
    ] = None,
    repo: Repo = None,
    as_json: AsJson = False,
) -> None:
    """Run the tests in a policy file against that file and the built-in rules; exit code 1 if one fails."""
    import anyio

    from cloister.cli.screen.policy import show_verdict, verdicts_of
    from cloister.egress.packages import SetFinder
    from cloister.policy.file import read_policy
    from cloister.runs.run_rules import REPOSITORY_FILE, read_bounded

    path = file or _top(repo) / REPOSITORY_FILE
    read = read_policy("organisation", read_bounded(path), str(path))
    verdicts = anyio.run(verdicts_of, read, SetFinder(settings_of(ctx).data_dir).find)
    if as_json:
        from cloister.cli.screen.shows import put_json

        for verdict in verdicts:
            put_json(verdict)
    else:
        for verdict in verdicts:
            show_verdict(verdict)
        print(f"{sum(one.ok for one in verdicts)} of {len(verdicts)} tests hold.", file=sys.stderr)
    if not all(one.ok for one in verdicts):
        raise typer.Exit(1)


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    import json

    from cloister.policy.file import policy_schema

    print(json.dumps(policy_schema(), indent=2))


def _top(repo: str | None) -> Path:
    from cloister.forge.plain import find_checkout

    return find_checkout(repo or ".").top


async def _policy(ctx: typer.Context, repo: str | None) -> "Policy":
    """Every layer above a run on `repo`; without one, that of the current directory where it is a repository."""
    from cloister.app.wiring import rule_files
    from cloister.core.errors import UserError
    from cloister.runs.run_rules import policy_here

    files = rule_files(settings_of(ctx))
    if repo is not None:
        return await policy_here(files, repo)
    try:
        _top(None)
    except UserError:
        return await policy_here(files, None)
    return await policy_here(files, ".")


async def _action(text: str) -> "Action":
    from cloister.cli.screen.policy import parsed
    from cloister.core.errors import UserError
    from cloister.core.text import one_line
    from cloister.policy.file import read_action

    try:
        return await parsed(read_action(text))
    except ValueError as error:
        raise UserError("bad_action", f"{one_line(text, 80)!r}: {error}.") from None


@app.command("sets")
def sets(
    ctx: typer.Context,
    again: Annotated[
        bool, typer.Option("--again", help="Ask the package clients anew, not what was kept.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which hosts the named sets stand for here: connect:@pypi, @npm, @debian, @crates, @go."""
    import anyio

    from cloister.egress.packages import Meaning, SetFinder
    from cloister.policy.api import SET_NAMES

    data_dir = settings_of(ctx).data_dir

    async def find(name: str) -> Meaning:
        return await SetFinder(data_dir).meaning(name, again=again)

    for name in sorted(SET_NAMES):
        if sys.stderr.isatty():
            print(f"asking for {name} …", end="\r", file=sys.stderr)
        found = anyio.run(find, name)
        if as_json:
            from cloister.cli.screen.shows import put_json

            put_json(found)
            continue
        print(f"@{name:<8} {' '.join(found.hosts) or '(nothing)'}")
        if found.problem:
            print(f"{'':<9} {found.problem}")
