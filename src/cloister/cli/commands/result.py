"""`cloister apply`: bring a run's change into a checkout as a branch."""

import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import After, AsJson, AttemptNumber, RunName, complete_run, open_log, settings_of

if TYPE_CHECKING:
    from cloister.runs.attempts.compare import Compared, Side


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

    from cloister.cli.client.speak import enter
    from cloister.cli.request import repository
    from cloister.forge.repositories import LocalRepositories
    from cloister.runs.delivery import run_apply

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        events = log.events(found)
    target = repository(str(repo))
    if checkout:
        check_clean(Path(target))
    delivered = anyio.run(run_apply, LocalRepositories(settings.data_dir), found, events, target)
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


# `cloister diff`: what a run changed, as a unified diff.


def diff(ctx: typer.Context, run: RunName, attempt: AttemptNumber = None) -> None:
    """Print what a run, or one attempt of it, changed so far as a unified diff. Needs no server."""
    import anyio

    from cloister.core.text import harmless
    from cloister.forge.repositories import LocalRepositories
    from cloister.runs.delivery import run_diff

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        events = log.events(found)
    text = anyio.run(run_diff, LocalRepositories(settings.data_dir), found, events, attempt)
    if not text:
        print(f"{found} has changed nothing.", file=sys.stderr)
    elif sys.stdout.isatty():
        coloured(harmless(text))
    else:
        # As it is: `cloister diff RUN | git apply` must get the very bytes.
        sys.stdout.write(text)


def coloured(text: str) -> None:
    """A diff on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in text.splitlines():
        console.print(Text(line, style=line_style(line)))


def line_style(line: str) -> str:
    """The colour of one line of a diff."""
    if line.startswith(
        ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "rename ", "similarity ")
    ):
        return "bold"
    if line.startswith("@@"):
        return "cyan"
    return {"+": "green", "-": "red"}.get(line[:1], "")


# `cloister log`: everything that happened in a run, whole.


def log(
    ctx: typer.Context,
    run: RunName,
    after: After = 0,
    attempt: AttemptNumber = None,
    as_json: AsJson = False,
) -> None:
    """Print a run's log: every event with its number, nothing shortened. Needs no server."""
    with open_log(settings_of(ctx)) as reader:
        found = reader.resolve(run)
        events = reader.events(found, after if attempt is None else 0)
    if attempt is not None:
        from cloister.runs.delivery import attempt_log

        events = tuple(event for event in attempt_log(events, attempt) if event.seq > after)
    if as_json:
        from cloister.cli.screen.shows import put_json

        for event in events:
            put_json(event)
        return
    from cloister.runs.words.log_entry import entry_lines

    for event in events:
        for line in entry_lines(event):
            print(line)


# `cloister receipt`: what a run touched, on one page.


def receipt(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Print what a run touched as one page of Markdown: files, commands, decisions, connections. Needs no server."""
    from cloister.log.sqlite.audit_reader import AuditReader
    from cloister.runs.receipt import receipt as made_of
    from cloister.runs.receipt_page import page

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        events = log.events(found)
    with AuditReader(settings.log_path) as audit:
        made = made_of(events, audit.seal(found))
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(made)
    else:
        print(page(made), end="")


# `cloister compare`: two runs or attempts side by side.


Which = Annotated[
    str,
    typer.Argument(help="A run, or an attempt of it: RUN/K.", autocompletion=complete_run),
]


_LABEL = 9
_REASON = 160
"""What is shown of why each of them ended."""


def compare(ctx: typer.Context, a: Which, b: Which, as_json: AsJson = False) -> None:
    """Compare two runs or attempts: outcome, how their changes differ, cost, steps, time. Needs no server."""
    import anyio

    from cloister.cli.screen.terminal import columns
    from cloister.core.text import harmless
    from cloister.forge.repositories import LocalRepositories
    from cloister.runs.attempts.compare import Subject, compare_runs, parse_subject

    settings = settings_of(ctx)
    sides: list[Subject] = []
    with open_log(settings) as log:
        for text in (a, b):
            name, attempt = parse_subject(text)
            sides.append(Subject(log.events(log.resolve(name)), attempt))
    repositories = LocalRepositories(settings.data_dir)
    found = anyio.run(compare_runs, repositories, sides[0], sides[1], time.time())
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(found)
        return
    for line in table(found, columns(120)):
        print(line)
    if found.diff and sys.stdout.isatty():
        pass

        coloured(harmless(found.diff))
    elif found.diff:
        sys.stdout.write(found.diff)


def table(found: "Compared", columns: int) -> Iterator[str]:
    """What is compared, side by side within so many columns, and what the changes have in common."""
    from textwrap import wrap

    most = max(24, (columns - _LABEL - 4) // 2)
    sides = [
        [(label, wrap(text, most) or [""]) for label, text in _cells(side)] for side in (found.a, found.b)
    ]
    width = max(len(line) for _, lines in sides[0] for line in lines)
    for (label, left), (_, right) in zip(*sides, strict=True):
        for place, (one, other) in enumerate(zip_longest(left, right, fillvalue="")):
            yield f"{'' if place else label:<{_LABEL}} {one:<{width}}  {other}".rstrip()
    if found.same_change:
        yield "Both changes are the same." if found.a.files else "Neither changed anything."


def _cells(side: "Side") -> list[tuple[str, str]]:
    from cloister.core.text import one_line
    from cloister.runs.words.lines import counted, seconds

    added, removed = sum(file.added for file in side.files), sum(file.removed for file in side.files)
    money = f", ${side.cost:.4f}" if side.cost is not None else ""
    return [
        ("", side.name),
        ("outcome", side.outcome or "works"),
        ("because", one_line(side.reason or "", _REASON)),
        ("evidence", _evidence(side)),
        ("change", f"{counted(len(side.files), 'file')}, +{added} −{removed}"),
        ("steps", f"{side.steps}"),
        ("cost", f"{side.usage.total:,} tokens{money}"),
        ("time", seconds(side.seconds)),
    ]


def _evidence(side: "Side") -> str:
    from cloister.agent.ranking import lost

    seen = side.comparison
    if seen is None:
        return "none"
    counts = [(seen.red, "red"), (len(seen.fixed), "fixed"), (seen.passed, "passed")]
    rare = [(len(seen.new), "new"), (lost(seen), "deleted, skipped or weakened")]
    return ", ".join(f"{number:,} {word}" for number, word in (*counts, *(one for one in rare if one[0])))


# `cloister rm`: delete what a finished run keeps beside its log.


def rm(ctx: typer.Context, run: RunName) -> None:
    """Delete a finished run's files: its change, its attempts' diffs and its save points. The log stays."""
    import anyio

    from cloister.forge.repositories import LocalRepositories
    from cloister.runs.delivery import remove_files

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        state = log.row(found).state
    anyio.run(remove_files, LocalRepositories(settings.data_dir), found, state, settings.user)
    print(f"Removed the files of {found}. Its log stays: cloister log {found}")
