"""`cloister policy`: the rules in force, and why."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import drives_here, perform
from cloister.cli.options import AsJson, put, put_json
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import Explained, PolicyVerdict, RuleContext
    from cloister.egress.packages import Meaning
    from cloister.policy.api import Policy

app = typer.Typer(
    help="The rules in force, and why: explain, test, show, check, schema, sets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Repo = Annotated[
    str | None,
    typer.Option(
        "--repo",
        metavar="PATH",
        help="Add the rules of this repository's HEAD. Default: the current directory's.",
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
        bool, typer.Option("--untrusted", help="Assume that the run has read text from outside.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the decision about one action, and the rule with its file and line."""
    from cloister.cli.screen.tables import show_explained

    async def work(verbs: "Verbs") -> "Explained":
        return await verbs.policy.explain(action, await _context(repo), untrusted=untrusted)

    record = perform(ctx, work, quick=drives_here(ctx))
    if as_json:
        put_json(record)
    else:
        show_explained(record)


@app.command("show")
def show(
    ctx: typer.Context,
    effective: Annotated[
        bool, typer.Option("--effective", help="Print the rules of all layers as one list, strictest first.")
    ] = False,
    repo: Repo = None,
    as_json: AsJson = False,
) -> None:
    """Print the rules in force, layer by layer, each with its file and line."""
    from cloister.cli.screen.tables import effective_lines, layer_lines

    async def work(verbs: "Verbs") -> "Policy":
        return await verbs.policy.layers(await _context(repo))

    policy = perform(ctx, work)
    if as_json:
        from cloister.policy.layers import least

        put_json(*policy)
        if effective:
            put_json({"limits": least(policy)})
        return
    for line in effective_lines(policy) if effective else layer_lines(policy):
        put(line)


@app.command("check")
def check(file: PolicyPath, as_json: AsJson = False) -> None:
    """Read a policy file; an error is reported with its line, and the exit code is 2."""
    from cloister.policy.file import read_policy
    from cloister.runs.run_rules import read_bounded

    read = read_policy("organisation", read_bounded(file), str(file))
    if as_json:
        put_json(read.layer)
        return
    put(f"{file} is valid: {len(read.layer.rules)} rules, {len(read.tests)} tests.")


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
    """Run the tests in a policy file against that file and the built-in rules; exit 1 if one fails."""
    from cloister.cli.screen.tables import show_test
    from cloister.runs.run_rules import REPOSITORY_FILE, read_bounded

    path = file or _top(repo) / REPOSITORY_FILE
    text = _text(read_bounded(path), str(path))

    async def work(verbs: "Verbs") -> "tuple[PolicyVerdict, ...]":
        return await verbs.policy.test(text, str(path))

    results = perform(ctx, work)
    if as_json:
        put_json(*results)
    else:
        for result in results:
            show_test(result)
        put(f"{sum(one.ok for one in results)} of {len(results)} tests pass.", file=sys.stderr)
    if not all(one.ok for one in results):
        raise typer.Exit(1)


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    import json

    from cloister.policy.file import policy_schema

    put(json.dumps(policy_schema(), indent=2))


def _top(repo: str | None) -> Path:
    from cloister.forge.plain_git import find_checkout

    return find_checkout(repo or ".").top


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError("bad_policy", f"{name}: it is not UTF-8.") from None


async def _context(repo: str | None) -> "RuleContext":
    """The repository and its policy file at HEAD; by default that of the current directory, if it is a repository."""
    from cloister.app.verbs.records import RuleContext
    from cloister.forge.read import read_head_file
    from cloister.runs.run_rules import REPOSITORY_FILE

    if repo is None:
        try:
            _top(None)
        except UserError:
            return RuleContext()
    found = await read_head_file(repo or ".", REPOSITORY_FILE)
    commit, written = found or ("", None)
    source = f"{REPOSITORY_FILE}@{commit[:12]}"
    return RuleContext(str(_top(repo)), None if written is None else _text(written, source), source)


@app.command("sets")
def sets(
    ctx: typer.Context,
    again: Annotated[
        bool, typer.Option("--again", help="Ask the package clients again instead of the cache.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the hosts behind the named sets: connect:@pypi, @npm, @debian, @maven and others."""
    from cloister.policy.api import SET_NAMES

    async def work(verbs: "Verbs", name: str) -> "Meaning":
        return await verbs.policy.sets(name, again=again)

    for name in sorted(SET_NAMES):
        if sys.stderr.isatty():
            put(f"asking for {name} …", end="\r", file=sys.stderr)
        found = perform(ctx, partial(work, name=name))
        if as_json:
            put_json(found)
            continue
        put(f"@{name:<8} {' '.join(found.hosts) or '(nothing)'}")
        if found.problem:
            put(f"{'':<9} {found.problem}")
