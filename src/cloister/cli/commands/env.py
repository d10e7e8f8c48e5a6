"""`cloister env` and `cloister init`: what a repository needs, and the file that says so."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import check_shared_path, perform
from cloister.cli.options import AllowTestChanges, AsJson, put, put_json
from cloister.core.errors import UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import EnvironmentInfo
    from cloister.environment.api import Plan
    from cloister.runs.attempts.verify import Claim, Verified

app = typer.Typer(
    help="What a repository needs to run its checks: show, build, check.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Repo = Annotated[str, typer.Option("--repo", metavar="PATH", help="A git repository on this machine.")]

Ref = Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit.")]
Command = Annotated[
    str, typer.Option("--setup", metavar="auto|CMD", help="Install as detected, or with this command.")
]


@app.command("show")
def show(ctx: typer.Context, repo: Repo = ".", as_json: AsJson = False) -> None:
    """Show the toolchains, packages, set-up and checks of a repository, each with its reason."""
    from cloister.environment.explain import explain

    plan = _plan(ctx, repo)
    if as_json:
        put_json(plan)
        return
    for line in explain(plan):
        put(line)


@app.command("build")
def build(
    ctx: typer.Context, repo: Repo = ".", ref: Ref = None, setup: Command = "auto", as_json: AsJson = False
) -> None:
    """Set up the environment of a repository; runs on it then start at once."""
    made = _set_up(ctx, repo, ref, setup)
    if as_json:
        put_json(made)
    else:
        _told(made)
    raise typer.Exit(1 if made.problem else 0)


@app.command("check")
def check(
    ctx: typer.Context, repo: Repo = ".", ref: Ref = None, setup: Command = "auto", as_json: AsJson = False
) -> None:
    """Set it up and run the checks once; exit 0 if every check can run, red or green."""
    made = _set_up(ctx, repo, ref, setup)
    if as_json:
        put_json(made)
    else:
        _told(made)
        _checked(made)
    raise typer.Exit(0 if made.works and made.checks else 1)


def _checked(made: "EnvironmentInfo") -> None:
    for line in made.checks or ("no checks: name them in .cloister/config.toml, or with --check",):
        put(one_line(line, 400))


def _set_up(
    ctx: typer.Context, repo: str, ref: str | None, setup: str, settings: str = ""
) -> "EnvironmentInfo":
    from cloister.cli.failures import log_to
    from cloister.cli.request import repository
    from cloister.cli.screen.screen import Progress

    log_to(sys.stderr)
    found = repository(repo)

    async def work(verbs: "Verbs") -> "EnvironmentInfo":
        await check_shared_path(ctx, found)
        return await verbs.templates.set_up(found, ref, setup, Progress(), settings)

    return perform(ctx, work)


def _told(made: "EnvironmentInfo") -> None:
    from cloister.runs.event_text.lines import moment, seconds

    for line in made.plan:
        put(one_line(line, 200))
    if made.problem:
        put(f"Set-up failed: {one_line(made.problem, 1_000)}", file=sys.stderr)
    elif made.built:
        put(f"{made.template} is built, in {seconds(made.seconds)}.")
    else:
        put(f"{made.template} is ready, built {moment(made.built_at)}.")


def init(
    ctx: typer.Context,
    repo: Repo = ".",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Set it up in a sandbox and run the checks once.")
    ] = True,
) -> None:
    """Write `.cloister/config.toml` from what is detected in a repository, and prove it in a sandbox."""
    from cloister.core.errors import UserError
    from cloister.core.repository import FILES
    from cloister.environment.explain import settings_text
    from cloister.forge.plain_git import find_checkout

    plan = _plan(ctx, repo)
    top = find_checkout(repo).top
    if not force and (there := [name for name in FILES if (top / name).exists()]):
        raise UserError("file_exists", f"{top / there[0]} exists: edit it, or give --force to replace it.")
    path = top / FILES[1]
    if path.is_symlink() or path.parent.is_symlink():
        raise UserError("bad_path", f"{path} is a link: remove it first.")
    path.parent.mkdir(exist_ok=True)
    text = settings_text(plan)
    path.write_text(text, encoding="utf-8")
    put(f"Wrote {path}. Commit it: runs read it from the commit they start from.")
    for note in plan.notes:
        put(f"Note: {note}.")
    if prove:
        made = _set_up(ctx, repo, None, "auto", text)
        _told(made)
        _checked(made)
        raise typer.Exit(0 if made.works and made.checks else 1)


def _plan(ctx: typer.Context, repo: str) -> "Plan":
    from cloister.environment.listing import collect, wanted
    from cloister.forge.read import working_files

    async def work(verbs: "Verbs") -> "Plan":
        names, texts = await working_files(repo, wanted)
        return await verbs.environments.plan(collect(names, texts.get))

    return perform(ctx, work)


def verify(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE|URL|REF",
            help="A run, a proof file (.json), the address of a pull request, or a branch or commit of --repo.",
        ),
    ],
    repo: Annotated[
        str, typer.Option("--repo", help="The repository with the change: a directory or an address.")
    ] = "",
    allow_test_changes: AllowTestChanges = None,
    as_json: AsJson = False,
) -> None:
    """Run the proof of a change again in fresh sandboxes; exit 0 if it holds."""
    from cloister.cli.failures import log_to
    from cloister.cli.request import repository
    from cloister.cli.screen.screen import Progress

    log_to(sys.stderr)
    allowed = tuple(allow_test_changes or ())
    claim = _proof_file(what) if what.endswith(".json") else None
    found = repository(repo) if repo or claim else ""

    async def work(verbs: "Verbs") -> "Verified":
        await check_shared_path(ctx, found)
        return await verbs.runs.verify(found, claim.commit if claim else what, Progress(), claim, allowed)

    made = perform(ctx, work)
    if as_json:
        put_json(made)
    else:
        word = "The proof holds" if made.holds else "The proof does not hold"
        put(f"{word}: {made.commit[:12]} claims {one_line(made.claimed, 20)}, the checks show {made.found}.")
        put(f"  base    {made.base[:12]}: {made.red_before:,} red")
        put(f"  change  {made.commit[:12]}: {made.red_now:,} red, {made.passed:,} passed")
        for name in made.shown[:10]:
            put(f"  shown   {one_line(name, 200)}")
        for check in made.checks:
            put(f"  check   {one_line(check, 200)}")
        put(f"  {one_line(made.statement, 400)}")
    raise typer.Exit(0 if made.holds else 1)


def _proof_file(name: str) -> "Claim":
    from cloister.runs.attempts.verify import PROOF_BYTES, claim_of

    try:
        with Path(name).open("rb") as file:
            return claim_of(file.read(PROOF_BYTES + 1))
    except OSError as error:
        raise UserError("bad_proof", f"{one_line(name, 200)} cannot be read: {error.strerror}.") from None
