"""`cloister log`, `diff`, `apply`, `receipt`, `compare` and `rm`: the work of a run."""

import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import (
    RUN_HELP,
    After,
    AsJson,
    AttemptNumber,
    RunName,
    complete_run,
    put,
    put_json,
    put_list,
)
from cloister.core.errors import HostError, UserError
from cloister.core.text import harmless, one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.core.budget import Account
    from cloister.core.events import ChangeDelivered
    from cloister.core.ids import RunId
    from cloister.runs.attempts.compare import Compared, Side
    from cloister.runs.delivery import Removal


OnlyFolder = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="FOLDER",
        help="Of a run on several repositories, the one in this folder.",
        show_default=False,
    ),
]


def apply(
    ctx: typer.Context,
    run: RunName,
    repo: Annotated[
        Path, typer.Option("--repo", metavar="PATH", help="The repository that receives the branch.")
    ] = Path(),
    checkout: Annotated[
        bool,
        typer.Option("--checkout", help="Switch to the branch; rejected if there are uncommitted changes."),
    ] = False,
    only: OnlyFolder = None,
) -> None:
    """Add a run's change to a repository as a new branch; nothing else is touched."""
    from cloister.app.verbs.apply import apply as apply_change
    from cloister.cli.request import repository

    target = repository(str(repo))
    if checkout:
        check_clean(Path(target))
    delivered = perform(ctx, lambda verbs: apply_change(verbs, run, target, only))
    put(f"Branch {delivered.branch} is in {delivered.where}.")
    if checkout:
        _switch(Path(target), delivered.branch)
        put(f"Switched to {delivered.branch}.")
    else:
        put(f"Show it: git -C {target} diff HEAD...{delivered.branch}")


def check_clean(repo: Path) -> None:
    """Raise `UserError` (`dirty_tree`) if there are uncommitted changes."""
    said = _git(repo, "status", "--porcelain", "--untracked-files=normal")
    if said.strip():
        raise UserError(
            "dirty_tree",
            f"{repo} has uncommitted changes: commit or stash them, or leave out --checkout.",
        )


def _switch(repo: Path, branch: str) -> None:
    _git(repo, "switch", "--quiet", branch, "--")


def _git(repo: Path, *args: str) -> str:
    from subprocess import TimeoutExpired  # noqa: TID251  (only its exception; processes start in _spawn)

    from cloister.cli._spawn import git

    try:
        said = git(repo, *args)
    except FileNotFoundError:
        raise HostError("no_git", "git is not installed: install it and try again.") from None
    except TimeoutExpired:
        raise HostError(
            "git_silent", f"git did not finish in {repo}: check the repository by hand."
        ) from None
    if said.code != 0:
        raise UserError("git_failed", f"git failed in {repo}: {one_line(said.err, 300)}")
    return said.out


def diff(
    ctx: typer.Context,
    run: RunName,
    attempt: AttemptNumber = None,
    at: Annotated[
        int | None, typer.Option("--at", min=0, metavar="EVENT", help="The changes at this save point.")
    ] = None,
    notes: Annotated[
        bool,
        typer.Option("--notes", help="The notes for later runs that it proposes, as a change of their file."),
    ] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures", metavar="FOLDER", help="Save the pictures of pages, before and after, in a folder."
        ),
    ] = None,
) -> None:
    """Print the changes of a run, of one attempt, or at a save point, as a unified diff."""
    if notes:
        _notes(ctx, run)
        return
    if pictures is not None:
        _pictures(ctx, run, pictures)
        return
    text = perform(ctx, lambda verbs: verbs.runs.diff(run, attempt, at), quick=True)
    if text:
        _patch(text)
    else:
        put(f"{run} has changed nothing.", file=sys.stderr)


def _patch(text: str) -> None:
    if sys.stdout.isatty():
        coloured(harmless(text))
    else:
        # Unfiltered: `cloister diff RUN | git apply` needs the exact bytes.
        sys.stdout.write(text)


def _pictures(ctx: typer.Context, run: str, folder: Path) -> None:
    async def work(verbs: "Verbs") -> list[tuple[str, bytes]]:
        view = await verbs.runs.view(run)
        pairs = (
            (when, one)
            for page in view.pictures
            for when, one in (("before", page.before), ("after", page.after))
        )
        return [
            (f"{when}-{one.name}", await verbs.runs.attachment(run, one.sha256)) for when, one in pairs if one
        ]

    found = perform(ctx, work)
    if not found:
        raise UserError("no_pictures", f"{run} has looked at no page.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in found:
        path = folder / one_line(name, 100).replace("/", "-")
        path.write_bytes(data)
        put(str(path))


def _notes(ctx: typer.Context, run: str) -> None:
    found = perform(ctx, lambda verbs: verbs.knowledge.notes(run))
    if found.diff:
        _patch(found.diff)
    else:
        put(f"{run} proposes no notes{' beside its change' if found.written else ''}.", file=sys.stderr)


def coloured(text: str) -> None:
    """Print a diff on a terminal."""
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


def log(
    ctx: typer.Context,
    run: RunName,
    after: After = 0,
    attempt: AttemptNumber = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a run: every event with its number, in full."""
    events = perform(ctx, lambda verbs: verbs.runs.events(run, after, attempt=attempt), quick=True)
    if as_json:
        put_json(*events)
        return
    from cloister.runs.event_text.lines import entry_lines

    for event in events:
        for line in entry_lines(event):
            put(line)


def receipt(
    ctx: typer.Context,
    run: RunName,
    as_json: AsJson = False,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="The receipt that the newest commit names by its hash.")
    ] = False,
) -> None:
    """Print everything a run touched as Markdown: files, commands, decisions, connections."""
    if as_json and not delivered:
        put_json(perform(ctx, lambda verbs: verbs.runs.receipt(run)))
    else:
        put(perform(ctx, lambda verbs: verbs.runs.receipt_page(run, delivered)), end="")


Which = Annotated[
    str,
    typer.Argument(help="A run, or an attempt of one: RUN/K.", autocompletion=complete_run),
]


_LABEL = 9
_REASON = 160
"""Characters of the reason that are shown."""


def compare(ctx: typer.Context, a: Which, b: Which, as_json: AsJson = False) -> None:
    """Compare two runs or attempts: outcome, difference of their changes, cost, steps, time."""
    from cloister.cli.screen.terminal import columns

    found = perform(ctx, lambda verbs: verbs.runs.compare(a, b))
    if as_json:
        put_json(found)
        return
    for line in table(found, columns(120)):
        put(line)
    if found.diff and sys.stdout.isatty():
        coloured(harmless(found.diff))
    elif found.diff:
        sys.stdout.write(found.diff)


def table(found: "Compared", columns: int) -> Iterator[str]:
    """The comparison as a table of at most so many columns."""
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
        yield "Both changes are identical." if found.a.files else "Neither changed anything."


def _cells(side: "Side") -> list[tuple[str, str]]:
    from cloister.runs.event_text.lines import counted, seconds

    added, removed = sum(file.added for file in side.files), sum(file.removed for file in side.files)
    money = f", ${side.cost:.4f}" if side.cost is not None else ""
    return [
        ("", side.name),
        ("outcome", side.outcome or "active"),
        ("because", one_line(side.reason or "", _REASON)),
        ("evidence", _evidence(side)),
        ("change", f"{counted(len(side.files), 'file')}, +{added} −{removed}"),
        ("steps", f"{side.steps}"),
        ("cost", f"{side.usage.total:,} tokens{money}"),
        ("time", seconds(side.seconds)),
    ]


def _evidence(side: "Side") -> str:
    from cloister.runs.attempts.scores import lost

    seen = side.comparison
    if seen is None:
        return "none"
    counts = [(seen.red, "red"), (len(seen.fixed), "fixed"), (seen.passed, "passed")]
    rare = [(len(seen.new), "new"), (lost(seen), "deleted, skipped or weakened")]
    return ", ".join(f"{number:,} {word}" for number, word in (*counts, *(one for one in rare if one[0])))


def rm(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help=RUN_HELP, autocompletion=complete_run)
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="All runs that ended longer ago: 12h, 30d or 8w."),
    ] = None,
) -> None:
    """Delete the files of finished runs: their changes, diffs and save points. Their logs stay."""
    if not runs and older_than is None:
        raise UserError("bad_options", "Name the runs, or give --older-than 30d.")
    before = None if older_than is None else time.time() - _age_seconds(older_than)

    async def work(verbs: "Verbs") -> "list[RunId]":
        found = [(await verbs.runs.row(run)).id for run in runs or ()]
        page = await verbs.runs.list(1_000, state="finished") if before is not None else ()
        while page and before is not None:
            found += [row.id for row in page if row.updated_at < before]
            page = await verbs.runs.list(1_000, before=page[-1].id, state="finished")
        started = time.time()
        removed = {run: await verbs.runs.remove(run) for run in dict.fromkeys(found)}
        return [run for run, done in removed.items() if before is None or done.at >= started]

    for found in (removed := perform(ctx, work)):
        put(f"Removed the files of {found}. Its log stays: cloister log {found}")
    if not removed:
        put("No finished run with files is that old.")


def gc(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what is older than the settings keep ([save_points], [retention]). A server does it once an hour."""

    def line(one: "Removal") -> str:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.since))
        return f"{one.kind:<12} {one.id:<16} {since}  {one.about}"

    found = perform(ctx, lambda verbs: verbs.runs.gc(dry_run))
    head = f"{'WOULD REMOVE' if dry_run else 'REMOVED':<12} {'ID':<16} {'SINCE':<16}  ABOUT"
    put_list(found, as_json, head, line, "Nothing is older than the settings keep.")


def _age_seconds(text: str) -> float:
    """Raises `UserError` (`bad_options`)."""
    number, unit = text[:-1], text[-1:]
    sizes = {"h": 3_600, "d": 86_400, "w": 604_800}
    if unit not in sizes or not number.isascii() or not number.isdigit():
        raise UserError(
            "bad_options", f"An age is a number of hours, days or weeks, as in 12h, 30d or 8w, not {text!r}."
        )
    return int(number) * sizes[unit]


def why(
    ctx: typer.Context,
    place: Annotated[str, typer.Argument(metavar="FILE:LINE", help="A line of the result.")],
    run: Annotated[str, typer.Argument(metavar="[RUN]", help=RUN_HELP, autocompletion=complete_run)] = "last",
    as_json: AsJson = False,
) -> None:
    """Show the turn that wrote a line: the request, the model's words and its tool calls."""
    path, _, number = place.rpartition(":")
    if not path or not number.isascii() or not number.isdigit() or not 0 < int(number) <= 10_000_000:
        raise UserError("bad_options", f"Write a line as FILE:LINE, such as shop/cart.py:12, not {place!r}.")
    found = perform(ctx, lambda verbs: verbs.runs.why(run, path, int(number)))
    if as_json:
        put_json(found)
        return
    put(f"{one_line(found.path, 200)}:{found.line}  {found.text}")
    if found.base:
        put("It was in the repository before the run.")
        return
    put(
        f"Attempt {found.attempt}, step {found.step}, save point {found.seq} of {found.run}, by {one_line(found.model, 80)}"
    )
    for head, text in (
        ("asked", found.prompt),
        ("said", found.said),
        *(("call", one) for one in found.calls),
    ):
        if text.strip():
            put(f"  {head:<6} {one_line(text, 400)}")


def pr(ctx: typer.Context, run: RunName, only: OnlyFolder = None, as_json: AsJson = False) -> None:
    """Open a pull request with a finished run's change, or update the one that is open.

    A run on several repositories gets one in each that it changed.
    """

    async def work(verbs: "Verbs") -> "list[ChangeDelivered]":
        changed = [
            one.folder
            for one in (await verbs.runs.view(run)).repositories
            # A directory that has the change as a branch needs none.
            if one.commit and (one.pull_request or not one.delivered_to)
        ]
        if only is not None or not changed:
            return [await verbs.runs.pull_request(run, only)]
        return [await verbs.runs.pull_request(run, folder) for folder in changed]

    done = perform(ctx, work)
    if as_json:
        put_json(done[0] if len(done) == 1 else done)
        return
    for one in done:
        put(f"Pull request {one.number} from {one_line(one.branch, 120)}: {one_line(one.url, 200)}")


forge = typer.Typer(help="The places that get pull requests.", no_args_is_help=True)


@forge.command("check")
def check_forge(
    ctx: typer.Context,
    repo: Annotated[str, typer.Argument(metavar="[REPO]", help="A directory or an address.")] = ".",
    as_json: AsJson = False,
) -> None:
    """Check that the token in the settings can open pull requests for a repository; exit 1 if not."""
    from cloister.cli.request import repository

    found = perform(ctx, lambda verbs: verbs.runs.check_forge(repository(repo)))
    if as_json:
        put_json(found)
    elif found.may:
        put(
            f"Pull requests can be opened at {one_line(found.repository, 200)} ({found.kind}), onto {found.default_branch}."
        )
    if found.lacks and not as_json:
        put(f"The token for {one_line(found.repository, 200)} ({found.kind}) lacks {', '.join(found.lacks)}.")
    if not found.may:
        raise typer.Exit(1)


RunOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run: show the levels it draws from, the run itself and its attempts.",
        autocompletion=complete_run,
    ),
]


def budget(ctx: typer.Context, run: RunOrNone = None, as_json: AsJson = False) -> None:
    """Show limits and spending, level by level."""
    accounts = perform(ctx, lambda verbs: verbs.runs.budget(run), quick=True).accounts
    if as_json:
        put_json(*accounts)
    elif not accounts:
        put("No spending yet.")
    else:
        put(f"{'LEVEL':<13} {'NAME':<28} {'PERIOD':<7} SPENT")
        for account in accounts:
            for line in _lines(account):
                put(line)


def _lines(account: "Account") -> "list[str]":
    from cloister.core.budget import RESOURCES, amount

    name = one_line(account.name, 28)
    head = f"{account.level:<13} {name:<28} {account.period or '':<7} "
    parts: list[str] = []
    for what in RESOURCES:
        limit, spent = account.limit(what), account.spent.of(what)
        if limit is not None:
            percent = f" ({spent / limit:.0%})" if limit else ""
            parts.append(f"{amount(what, spent)} of {amount(what, limit)}{percent}")
        elif spent:
            parts.append(amount(what, spent))
    if account.spent.unpriced:
        parts.append(f"{account.spent.unpriced:,} tokens without a known price")
    return [
        (head if number == 0 else " " * len(head)) + part for number, part in enumerate(parts or ["nothing"])
    ]
