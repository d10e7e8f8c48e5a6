"""One prompt over many repositories: submit, follow and show them, a bounded number at a time."""

import hashlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from cloister.app.verbs.records import RunWish
from cloister.cli.options import put, put_json, typed
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import RunClaimed, RunFinished
from cloister.core.text import harmless, one_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from cloister.app.verbs.api import Verbs
    from cloister.core.events import Delta, Event

REPOSITORIES = 1_000
_FILE_BYTES = 1_048_576
_WIDTH = 44


class FleetResult(msgspec.Struct):
    """One repository of a fleet, as it stands."""

    repo: str
    state: str = "waits"
    """`waits`, `queued`, `running`, `finished`, or `refused`: no run could be made."""
    run: str | None = None
    made: bool = True
    """False: an earlier call of the same command made this run."""
    outcome: str | None = None
    reason: str = ""
    pull_request: str = ""


async def repositories(verbs: "Verbs", named: str) -> tuple[str, ...]:
    """Those that a file lists, one on each line, or that the pattern `host/owner/name` finds at a forge.

    Raises `UserError` (`bad_repos`), and as the verb `repositories`.
    """
    found = _listed(named)
    if found is None:
        found = await verbs.runs.repositories(named)
    if not found:
        raise UserError("bad_repos", f"{one_line(named, 200)} names no repository.")
    if len(found) > REPOSITORIES:
        raise UserError("bad_repos", f"{len(found):,} repositories are too many: at most {REPOSITORIES:,}.")
    return found


def _listed(named: str) -> tuple[str, ...] | None:
    """The repositories of a file; None if there is no such file."""
    from cloister.cli.request import repository

    path = Path(named).expanduser()
    if named != "-" and not path.is_file():
        return None
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(_FILE_BYTES + 1)
    except OSError as error:
        raise UserError("bad_repos", f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > _FILE_BYTES:
        raise UserError("bad_repos", f"{path} is larger than {_FILE_BYTES >> 20} MiB.")
    lines = (typed(line.decode(errors="replace")).strip() for line in data.splitlines())
    home = Path() if str(path) == "-" else path.absolute().parent
    return tuple(dict.fromkeys(repository(one, home) for one in lines if one and not one.startswith("#")))


def wish_for(new: RunWish, repo: str, name: str) -> RunWish:
    """The run of one repository. The same command makes the same key, so that it goes on where it was."""
    wish = msgspec.structs.replace(new, repo=repo, key=None)
    digest = hashlib.sha256(name.encode() + b"\0" + msgspec.json.encode(wish)).hexdigest()
    return msgspec.structs.replace(wish, key=f"fleet-{digest[:40]}")


class Fleet:
    """The runs of one command."""

    def __init__(self, verbs: "Verbs", repos: Sequence[str]) -> None:
        self._verbs = verbs
        self.results = [FleetResult(one) for one in repos]
        self._changed: Callable[[FleetResult], None] = lambda _: None

    async def run(
        self, new: RunWish, name: str, parallel: int, changed: Callable[[FleetResult], None]
    ) -> None:
        """Returns when each has ended."""
        self._changed = changed
        waiting = iter(self.results)

        async def worker() -> None:
            for one in waiting:
                try:
                    await self._one(one, wish_for(new, one.repo, name))
                except CloisterError as error:
                    one.state = "refused" if one.run is None else one.state
                    one.reason = error.message
                self._changed(one)

        async with anyio.create_task_group() as tasks:
            for _ in range(min(parallel, len(self.results))):
                tasks.start_soon(worker)

    async def _one(self, one: FleetResult, wish: RunWish) -> None:
        admitted = await self._verbs.runs.submit(wish)
        one.run, one.made, one.state = admitted.id, admitted.made, "queued"
        self._changed(one)
        if (await self._verbs.runs.row(admitted.id)).state != "finished":
            async with self._verbs.runs.follow(admitted.id, deltas=False) as items:
                async for item in items:
                    self._follow(one, item)
        view = await self._verbs.runs.view(admitted.id)
        one.state, one.outcome = view.state, view.outcome
        one.reason, one.pull_request = view.reason or "", view.pull_request

    def _follow(self, one: FleetResult, item: "Event | Delta") -> None:
        body = getattr(item, "body", None)
        if isinstance(body, RunClaimed | RunFinished):
            one.state = "running" if isinstance(body, RunClaimed) else "finished"
            self._changed(one)


def _row(one: FleetResult) -> tuple[str, str, str, str]:
    name = one.repo.partition("://")[2] or one.repo
    name = name if len(name) <= _WIDTH else f"…{name[-_WIDTH + 1 :]}"
    what = one.pull_request or one_line(one.reason, 100)
    return one_line(name, _WIDTH), one.outcome or one.state, one.run or "-", what


def table(results: Sequence[FleetResult]) -> str:
    """The outcomes as lines of text."""
    rows = [("REPOSITORY", "OUTCOME", "RUN", "PULL REQUEST OR REASON"), *map(_row, results)]
    wide = [max(len(row[at]) for row in rows) for at in range(3)]
    return "\n".join(
        f"{row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]:<{wide[2]}}  {row[3]}".rstrip() for row in rows
    )


def _live_table(results: Sequence[FleetResult]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    ended = sum(one.state in ("finished", "refused") for one in results)
    shown = Table("repository", "state", "run", f"{ended} of {len(results)} ended", box=None)
    # What works or has ended last is worth a line; a long list does not fit.
    order = {"running": 0, "queued": 1, "finished": 2, "refused": 2, "waits": 3}
    for one in sorted(results, key=lambda each: order.get(each.state, 1))[:30]:
        shown.add_row(*(Text(harmless(cell)) for cell in _row(one)))
    return shown


async def show(
    fleet: Fleet, work: Callable[[Callable[[FleetResult], None]], Awaitable[None]], *, as_json: bool
) -> None:
    """Show a fleet while `work` drives it: a live table on a terminal, else a line for each repository that has ended."""
    if as_json or not sys.stdout.isatty():
        await work(_put_json_ended if as_json else _put_ended)
    else:
        from rich.live import Live

        with Live(_live_table(fleet.results), transient=True, auto_refresh=False) as shown:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_refresh, shown)
                await work(lambda _: shown.update(_live_table(fleet.results)))
                tasks.cancel_scope.cancel()
    if not as_json:
        put("", table(fleet.results), sep="\n")


def _ended(one: FleetResult) -> bool:
    return one.state == "refused" or one.outcome is not None


def _put_json_ended(one: FleetResult) -> None:
    if _ended(one):
        put_json(one)


def _put_ended(one: FleetResult) -> None:
    if _ended(one):
        put("  ".join(_row(one)).rstrip(), flush=True)


async def _refresh(shown: "Live") -> None:
    while True:
        shown.refresh()
        await anyio.sleep(0.25)
