"""A run followed straight from the log: no server, so events only, and a look every moment."""

from typing import TYPE_CHECKING

import anyio

from cloister.core.errors import HostError

if TYPE_CHECKING:
    from cloister.cli.attend import Watch
    from cloister.core.ids import RunId
    from cloister.runs.reader import LogReader

_LOOK_SECONDS = 0.2
_UNCLAIMED_SECONDS = 5.0
"""How long nobody may drive a run before we say so: between two owners there is a gap."""


async def follow_log(log: "LogReader", run: "RunId", watch: "Watch") -> None:
    """Feed the watch until the run has finished. Raises `HostError` (`not_driven`) when nobody drives it."""
    driven_at = anyio.current_time()
    while True:
        row = log.row(run)
        page = log.page(run, watch.last_seq)
        for event in page.events:
            watch.feed(event)
        if page.finished and watch.last_seq >= page.last_seq:
            # Nothing after `--after` may be left to read; how it ended is known all the same.
            watch.outcome = watch.outcome or row.outcome
            return
        now = anyio.current_time()
        if row.owner_lives or page.events:
            driven_at = now
        elif now - driven_at > _UNCLAIMED_SECONDS:
            raise HostError(
                "not_driven",
                f"Nobody drives {run} now. It is kept: `cloister serve --background` goes on with it.",
            )
        if not page.more:
            await anyio.sleep(_LOOK_SECONDS)
