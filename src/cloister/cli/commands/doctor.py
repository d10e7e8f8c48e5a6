"""`cloister doctor`: check whether a run can start on this machine; `cloister` alone: what a run would do here."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloister.cli.options import AsJson, local_only, put, put_json, settings_of
from cloister.core.errors import CloisterError, UserError

if TYPE_CHECKING:
    from cloister.app.checkup import Finding
    from cloister.app.settings import Settings


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Check this machine; exit 0 if a run can start, else 3."""
    import anyio

    from cloister.app.checkup import Checkup, checkup

    local_only(ctx, "doctor")
    settings = settings_of(ctx)

    async def check() -> Checkup:
        return Checkup.of(await checkup(settings, _server_finding(settings), await _pool_finding(settings)))

    found = anyio.run(check)
    ready, findings = found.ready, found.findings
    if as_json:
        put_json({"ready": ready, "findings": findings})
    else:
        for finding in findings:
            mark = "ok" if finding.ok else "MISSING" if finding.needed else "note"
            put(f"{mark:<8} {finding.name:<10} {finding.found}")
            if finding.fix and not finding.ok:
                put(f"{'':<19} fix: {finding.fix}")
        put("A run can start." if ready else "A run cannot start yet: see MISSING above.")
    if not ready:
        raise typer.Exit(3)


def _server_finding(settings: "Settings") -> "Finding":
    from cloister.app.checkup import Finding
    from cloister.cli.client.discover import living, lock_held

    try:
        if server := living(settings.data_dir):
            return Finding("server", True, f"{server.url}, process {server.pid}", needed=False)
        held = lock_held(settings.data_dir)
        found = "starting or stopping" if held else "not running; `cloister run` works without"
    except CloisterError as error:
        found = error.message
    return Finding("server", False, found, "cloister serve --background", needed=False)


async def _pool_finding(settings: "Settings") -> "tuple[Finding, ...]":
    """About the warm sandboxes, if the configuration asks for any."""
    if not settings.file.pool:
        return ()
    from cloister.app.checkup import pool_finding
    from cloister.cli.client.discover import living
    from cloister.cli.client.http import Server, Transport
    from cloister.cli.client.remote import RemoteVerbs

    try:
        found = living(settings.data_dir)
        transport = Transport.to(Server(found.url, found.token())) if found else None
        return (pool_finding(await RemoteVerbs(transport).sandboxes.pool() if transport else ()),)
    except CloisterError:
        return (pool_finding(()),)


def begin(ctx: typer.Context) -> None:
    """Explain what a run would do in the repository around this directory; elsewhere print the help."""
    from cloister.cli.request import current_repository

    try:
        repo = current_repository()
    except UserError:
        put(ctx.get_help())
        return
    from cloister.cli._spawn import git

    commit, changed = (
        git(Path(repo), "rev-parse", "--short", "HEAD"),
        git(Path(repo), "status", "--porcelain"),
    )
    branch = git(Path(repo), "branch", "--show-current").out.strip() or "no branch"
    count = len(changed.out.splitlines())
    put(f"{repo} ({branch}{f' at {commit.out.strip()}' if commit.code == 0 else ', no commit yet'})\n")
    put('  cloister run "fix the failing test"\n')
    put("copies this commit into a sandbox, lets the model work while the checks run on")
    put("the base, proves the result in a fresh sandbox and writes it to a new branch")
    put("with the proof. Your files and branches stay as they are.")
    if commit.code:
        put("First commit something: a run starts from a commit.")
    elif count:
        files = "1 uncommitted file is" if count == 1 else f"{count} uncommitted files are"
        put(f"{files} not part of a run: commit what it needs.")
    put(f"\n  model   {_model(ctx)}\n  server  {_server(ctx)}\n")
    put("Can a run start here?  cloister doctor      All commands:  cloister --help")


def _model(ctx: typer.Context) -> str:
    from cloister.app.config import usual_model

    try:
        return usual_model(settings_of(ctx))
    except UserError as error:
        if error.code != "no_model":
            return error.message
        return "none (set ANTHROPIC_API_KEY or another): a search repairs small faults"


def _server(ctx: typer.Context) -> str:
    from cloister.cli.client.discover import living
    from cloister.cli.client.open import named_server

    try:
        if named := named_server(ctx):
            return named.url
        found = living(settings_of(ctx).data_dir)
    except CloisterError as error:
        return error.message
    return found.url if found else "none: `cloister run` drives the run itself"
