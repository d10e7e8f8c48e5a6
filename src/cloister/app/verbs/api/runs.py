"""What a person can do with runs: the verbs of runs, environments and triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from cloister.app.verbs.declare import SLOW_SECONDS, needs, no_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from cloister.app.overview import OverviewItem
    from cloister.app.verbs.records import (
        Admitted,
        ChangePack,
        ForgeCheck,
        TriggerInfo,
    )
    from cloister.core.events import ChangeDelivered, Delta, Event
    from cloister.core.ids import RunId
    from cloister.core.requests import Attachment, NewRun, Origin, Outcome, State, Tier
    from cloister.environment.api import Plan
    from cloister.environment.listing import Listing
    from cloister.log.api import RunCount, RunRow
    from cloister.log.hub import Direct
    from cloister.runs.attempts.compare import Compared
    from cloister.runs.attempts.tree import TreeView
    from cloister.runs.attempts.verify import Claim, Verified
    from cloister.runs.attempts.why import LineOrigin
    from cloister.runs.budget import BudgetReport
    from cloister.runs.delivery import Removal, Removed
    from cloister.runs.environments.repository import Outlook
    from cloister.runs.receipt import Receipt
    from cloister.runs.view import RunView
    from cloister.sandbox.api import Report


class RunVerbs(Protocol):
    """Runs: submit, look, steer, branch, compare, hand over."""

    @needs("operator", "POST runs", body="new", anywhere=True)
    async def submit(self, new: NewRun) -> Admitted:
        """Admit a run; it is durable when this returns. A `RunWish` takes the missing budget from the configuration.

        Raises `UserError` (`bad_run`, `denied`, `unknown_template`, `no_model`, …).
        """
        ...

    @needs("operator", anywhere=True)
    async def attach(self, name: str, data: bytes) -> Attachment:
        """Store a picture or a text file for a prompt that follows within a day; the record goes into the request.

        Raises `UserError` (`attachment_too_large`, `bad_attachment`).
        """
        ...

    @needs("viewer")
    async def attachment(self, run: str, sha256: str) -> bytes:
        """The bytes of an attachment of a run. Raises `UserError` (`no_such_attachment`)."""
        ...

    @needs("viewer", "GET runs", anywhere=True)
    async def list(
        self,
        limit: int = 100,
        before: str | None = None,
        state: State | None = None,
        outcome: Outcome | None = None,
        repo: str | None = None,
        who: str | None = None,
    ) -> tuple[RunRow, ...]:
        """The newest runs first; `before` is the last run of the page before, the others say which runs to list."""
        ...

    @needs("viewer", "GET counts", anywhere=True)
    async def counts(self) -> tuple[RunCount, ...]:
        """All runs, counted by state and outcome."""
        ...

    @needs("viewer", "GET runs/{run}/row")
    async def row(self, run: str, *, told: bool = True) -> RunRow:
        """The run as lists show it. `row(name).id` resolves a name; unless `told`, without a look at its log."""
        ...

    @needs("viewer", "GET runs/{run}")
    async def view(self, run: str) -> RunView: ...

    @needs("viewer")
    async def events(
        self,
        run: str,
        after: int = 0,
        limit: int | None = None,
        attempt: int | None = None,
        before: int | None = None,
    ) -> tuple[Event, ...]:
        """Events with a `seq` above `after`, of one attempt if given; with `before`, the last ones below it.

        Raises `UserError` (`no_such_attempt`).
        """
        ...

    @needs("viewer")
    def follow(
        self, run: str, after: int = 0, *, deltas: bool = True, direct: Direct | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]:
        """The log after `after`, then live until the run is finished. Deltas come where the driver shows them.

        `direct` may take live events at once, as of `Backbone.follow`; an implementation may offer it none.
        An implementation reconnects by itself. Raises `HostError` (`not_driven`, `server_gone`).
        """
        ...

    @needs("viewer", anywhere=True)
    def overview(
        self, after: int | None = None, last: int = 200
    ) -> AbstractAsyncContextManager[AsyncIterator[OverviewItem]]:
        """All runs and sandboxes as they change, without end.

        First the unfinished runs, and those that changed after `after`, the cursor of a `Synced`; with None, the
        newest `last`. Raises `HostError` (`no_server`).
        """
        ...

    @needs("operator", "POST runs/{run}/say")
    async def say(
        self,
        run: str,
        text: str,
        origin: Origin = "user",
        key: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> Event:
        """Send a message; a finished run continues with it in another round, which a driving process must take up.

        `key` here and below is the caller's id of the message: sent again with it, the message is done once, and the
        event that it caused is returned. `UserError` (`key_taken`) if it was another message, and `bad_key`.

        Raises `UserError` (`empty_message`, `too_large`, `run_removed`, `no_such_attachment`, `too_many_attachments`).
        """
        ...

    @needs("operator", "POST runs/{run}/rebase", seconds=SLOW_SECONDS)
    async def rebase(self, run: str) -> Event: ...  # also raises `not_moved`, `no_branch`, `unknown_ref`

    @needs("operator", "POST runs/{run}/stop")
    async def stop(self, run: str, key: str | None = None) -> Event:
        """Raises `UserError` (`run_finished`)."""
        ...

    @needs("operator", "POST runs/{run}/pause")
    async def pause(self, run: str, key: str | None = None) -> Event:
        """Wait before the next step until `resume`; the wait costs none of the run's time.

        Raises `UserError` (`run_finished`, `run_paused`).
        """
        ...

    @needs("operator", "POST runs/{run}/resume")
    async def resume(self, run: str, key: str | None = None) -> Event:
        """Let a run go on that a person paused. Raises `UserError` (`run_finished`, `run_not_paused`)."""
        ...

    @needs("operator", "POST runs/{run}/interrupt")
    async def interrupt(self, run: str, key: str | None = None) -> Event:
        """Stop the step at work: its model request or tool call. The run goes on, and the model learns of it.

        Raises `UserError` (`run_finished`).
        """
        ...

    @needs("operator", "POST runs/{run}/answer")
    async def answer(
        self, run: str, ask: str | None, answer: Literal["allow", "deny"], key: str | None = None
    ) -> Event:
        """Answer a question; None is the only open one.

        Raises `UserError` (`no_such_ask`, `several_asks`, `ask_answered`, `denied`).
        """
        ...

    @needs("operator", "POST runs/{run}/questions")
    async def reply(self, run: str, question: str | None, text: str, key: str | None = None) -> Event:
        """Answer a question of the model; None is the only open one. After its deadline it is sent as a message.

        Raises `UserError` (`no_such_question`, `several_questions`, `question_answered`, `empty_message`, `too_large`).
        """
        ...

    @needs("operator", "POST runs/{run}/model")
    async def use_model(self, run: str, model: str, key: str | None = None) -> Event:
        """Continue the run with another model. Raises `UserError` when it is unknown or the policy denies it."""
        ...

    @needs("operator", "POST runs/{run}/fork", say="prompt")
    async def fork(
        self, run: str, at: int | None = None, say: str | None = None, key: str | None = None
    ) -> Admitted:
        """A new run from a save point of `run`. Raises `UserError` (`no_save_point`), and as `submit`."""
        ...

    @needs("operator", "POST runs/{run}/rewind", member="id")
    async def rewind(self, run: str, to: int, key: str | None = None) -> RunId:
        """Continue from an earlier save point; a finished run is forked there. Returns the run that continues."""
        ...

    @needs("admin", "DELETE runs/{run}", seconds=SLOW_SECONDS)
    async def remove(self, run: str) -> Removed:
        """Delete a finished run's files; its log stays. Raises `UserError` (`run_not_finished`, `run_forked`)."""
        ...

    @needs("admin", "POST gc", seconds=SLOW_SECONDS)
    async def gc(self, dry_run: bool = False) -> tuple[Removal, ...]:
        """Remove what is older than the settings keep; with `dry_run`, only say what that would be."""
        ...

    @needs("viewer", "GET runs/{run}/diff", seconds=SLOW_SECONDS)
    async def diff(self, run: str, attempt: int | None = None, at: int | None = None) -> str:
        """The change of the run, of one of its attempts, or at one of its save points.

        Raises `UserError` (`no_such_attempt`, `no_save_point`, `run_removed`).
        """
        ...

    @needs("viewer", "GET runs/{run}/why", seconds=SLOW_SECONDS)
    async def why(self, run: str, path: str, line: int) -> LineOrigin:
        """The turn that wrote one line of the result. Raises `UserError` (`no_change`, `no_such_line`, `run_removed`)."""
        ...

    @needs("viewer", "GET runs/{run}/tree")
    async def tree(self, run: str) -> TreeView: ...

    @needs("viewer", "GET compare", seconds=SLOW_SECONDS, anywhere=True)
    async def compare(self, a: str, b: str) -> Compared:
        """Two runs or attempts (`RUN/K`). Raises `UserError` (`no_such_attempt`, `bad_attempt`, `same_twice`)."""
        ...

    @needs("operator", "GET runs/{run}/change", seconds=SLOW_SECONDS)
    async def change(self, run: str, have: str | None = None, folder: str | None = None) -> ChangePack:
        """The change as git objects. `have` is a commit that the caller has, e.g. the base; the pack is then smaller.

        `folder` names one repository of a run on several.
        Raises `UserError` (`no_change`, `run_removed`, `several_repositories`, `no_such_repository`).
        """
        ...

    @needs("operator", "POST runs/{run}/applied")
    async def applied(self, run: str, where: str, branch: str) -> None:
        """Record in the audit that the caller put the change into a repository."""
        ...

    @needs("operator", "POST runs/{run}/pull-request", seconds=SLOW_SECONDS)
    async def pull_request(self, run: str, folder: str | None = None) -> ChangeDelivered:
        """Open a pull request with the change of a finished run, or update the one that is open.

        `folder` names one repository of a run on several. Raises `UserError` (`run_not_finished`, `no_change`,
        `no_forge`, `denied`, `several_repositories`, `no_such_repository`), `OutsideError`.
        """
        ...

    @needs("operator", "POST verify")
    async def verify(
        self,
        repo: str,
        ref: str,
        report: Report = no_report,
        claim: Claim | None = None,
        allow_test_changes: tuple[str, ...] = (),
    ) -> Verified:
        """Run the proof of a change again from nothing, by the trailers of its commits at `ref` of `repo`.

        An empty `repo` means that `ref` is a run of this server, or the address of a pull request. `claim` is that of a
        proof file, and stands in place of `ref`. Tests that the change lost count against it, unless a person permitted
        that in a run of this server, or the caller does for the files of these patterns.

        Raises `UserError` (`no_claim`, `bad_proof`, `no_forge`, `no_repository`, `unknown_ref`), `OutsideError`.
        """
        ...

    @needs("operator", "GET forge", seconds=SLOW_SECONDS)
    async def check_forge(self, repo: str) -> ForgeCheck:
        """Whether the settings' token can open pull requests for a repository.

        Raises `UserError` (`no_forge`), `OutsideError`.
        """
        ...

    @needs("operator", "GET forge/repositories", seconds=SLOW_SECONDS)
    async def repositories(self, pattern: str) -> tuple[str, ...]:
        """The addresses of repositories at a forge of the settings, by `host/owner/pattern`.

        Raises `UserError` (`bad_query`, `no_forge`), `OutsideError`.
        """
        ...

    @needs("viewer", "GET runs/{run}/receipt", seconds=SLOW_SECONDS)
    async def receipt(self, run: str) -> Receipt: ...

    @needs("viewer", "GET runs/{run}/receipt/markdown", seconds=SLOW_SECONDS)
    async def receipt_page(self, run: str, delivered: bool = False) -> str:
        """The receipt as Markdown; if `delivered` the one that the newest commit names by its hash, byte for byte."""
        ...

    @needs("viewer", "GET budget")
    async def budget(self, run: str | None = None) -> BudgetReport:
        """Limits and spending of every level; with a run, those above it, itself and its attempts."""
        ...


class EnvironmentVerbs(Protocol):
    """The environments that repositories need."""

    @needs("operator", "POST environments/plan", body="listing", anywhere=True)
    async def plan(self, listing: Listing) -> Plan:
        """Detect the environment of a repository from its file names and manifests, which the caller has."""
        ...

    @needs("operator", "POST environments/look", anywhere=True, seconds=SLOW_SECONDS)
    async def look(self, repo: str, ref: str | None = None, tier: Tier = "auto") -> Outlook:
        """What a run on a repository would find; a sandbox for it is kept warm for some minutes. Nothing is built.

        A repository that cannot be fetched is an answer too. Raises `UserError` (`bad_run`, `denied`).
        """
        ...


class TriggerVerbs(Protocol):
    """What starts runs from outside. The settings declare it; unknown names raise `UserError` (`no_such_trigger`)."""

    @needs("viewer", "GET triggers")
    async def list(self) -> tuple[TriggerInfo, ...]: ...

    @needs("viewer", "GET triggers/{name}")
    async def get(self, name: str) -> TriggerInfo: ...

    @needs("operator", "POST triggers/{name}/run")
    async def run(self, name: str, repo: str | None = None, fields: dict[str, str] | None = None) -> Admitted:
        """Start its run now, with these values in its prompt. Raises `UserError` (`bad_run`), and as `submit`."""
        ...

    @needs("admin", "POST triggers/{name}/pause")
    async def pause(self, name: str, *, paused: bool = True) -> TriggerInfo:
        """Start no more runs, or, if not `paused`, start them again; what was asked meanwhile is lost."""
        ...
