"""A run driven by this very process: no server needed, and Ctrl-C stops it cleanly."""

import sys
from typing import TYPE_CHECKING

from cloister.cli.client.attend import Watch
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.cli.screen.shows import Show
    from cloister.core.ids import RunId
    from cloister.core.requests import NewRun


async def run_here(settings: "Settings", new: "NewRun", show: "Show") -> int:
    """Drive the run to its end; returns the exit code. The second Ctrl-C leaves it interrupted."""
    from cloister.app.verbs.local import LocalVerbs, open_local
    from cloister.cli.failures import log_to

    log_to(sys.stderr)
    watch = Watch(show)
    submitted: list[tuple[LocalVerbs, RunId]] = []

    async def drive() -> None:
        async with open_local(settings) as verbs:
            run = (await verbs.runs.submit(new)).id
            submitted.append((verbs, run))
            async with verbs.runs.follow(run) as items:
                async for item in items:
                    watch.feed(item)

    async def stop() -> bool:
        if not submitted:
            return False
        verbs, run = submitted[0]
        try:
            await verbs.runs.stop(run)
        except UserError:
            pass  # it finished in this very moment
        else:
            show.note("Stopping … (Ctrl-C again: at once)")
        return True

    await watch.until_end(drive, stop)
    if watch.outcome is None and submitted:
        run = submitted[0][1]
        print(
            f"Interrupted. What was saved is kept; a server (`cloister serve --background`) ends {run} properly.",
            file=sys.stderr,
        )
    return watch.exit_code
