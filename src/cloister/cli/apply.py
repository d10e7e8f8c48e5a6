"""`cloister apply`: bring a run's change into a checkout as a branch."""

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import RunName, open_log, settings_of


def apply(
    ctx: typer.Context,
    run: RunName,
    repo: Annotated[
        Path, typer.Option("--repo", metavar="PATH", help="The repository that gets the branch.")
    ] = Path(),
    checkout: Annotated[
        bool, typer.Option("--checkout", help="Switch to the branch; refused when files are changed.")
    ] = False,
) -> None:
    """Put a run's change into a repository as a new branch, touching nothing else."""
    import anyio

    from cloister.cli.request import repository
    from cloister.cli.speak import enter
    from cloister.runs.result import run_apply

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        events = log.events(found)
    target = repository(str(repo))
    if checkout:
        check_clean(Path(target))
    delivered = anyio.run(run_apply, settings.data_dir, found, events, target)
    enter(settings, "Applied", {"run": found, "where": delivered.where, "branch": delivered.branch})
    print(f"Branch {delivered.branch} is in {delivered.where}.")
    if checkout:
        _switch(Path(target), delivered.branch)
        print(f"Switched to {delivered.branch}.")
    else:
        print(f"Look at it: git -C {target} diff HEAD...{delivered.branch}")


def check_clean(repo: Path) -> None:
    """Raises `UserError` (`dirty_tree`) when switching could lose or mix anything."""
    from cloister.core.errors import UserError

    said = _git(repo, "status", "--porcelain", "--untracked-files=normal")
    if said.strip():
        raise UserError(
            "dirty_tree",
            f"{repo} has changes that are not committed: commit or stash them, or leave out --checkout.",
        )


def _switch(repo: Path, branch: str) -> None:
    _git(repo, "switch", "--quiet", branch, "--")


def _git(repo: Path, *args: str) -> str:
    from subprocess import TimeoutExpired  # noqa: TID251  (only its exception; processes start in _spawn)

    from cloister.cli._spawn import git
    from cloister.core.errors import HostError, UserError
    from cloister.core.text import one_line

    try:
        said = git(repo, *args)
    except FileNotFoundError:
        raise HostError("no_git", "git is not installed: install it and try again.") from None
    except TimeoutExpired:
        raise HostError("git_silent", f"git did not end in {repo}: look there by hand.") from None
    if said.code != 0:
        raise UserError("git_failed", f"git refused in {repo}: {one_line(said.err, 300)}")
    return said.out
