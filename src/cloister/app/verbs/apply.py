"""A run's change on its way from the server's repository into the caller's checkout, as a git pack."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread

from cloister.app.verbs.api import Verbs
from cloister.app.verbs.records import ChangePack
from cloister.core import limits
from cloister.core.errors import OutsideError, UserError
from cloister.core.events import BaseFixed, ChangeMade, Event
from cloister.core.log import Index, request_of
from cloister.core.text import decode
from cloister.forge import Forges
from cloister.forge.api import Delivered, Proposal, RunRepositories
from cloister.forge.change import NOTES_REF, attach, branch_name, describe
from cloister.forge.host import Checkout, complaint, copy_in, ensure_bare, in_bare, in_checkout, is_oid
from cloister.forge.packs import Pack, pack, pack_since
from cloister.forge.plain_git import BASE_REF, find_checkout, is_url
from cloister.runs.attempts.work import base_commit, result_commit
from cloister.runs.delivery import change_at, part_named

_ROUNDS = 100
"""Earlier rounds that a change names."""


async def pack_change(
    repositories: RunRepositories, events: Sequence[Event], have: str | None, folder: str | None = None
) -> ChangePack:
    """The work of the run whose whole log is `events`, of several repositories that in `folder`.

    Raises `UserError` (`no_change`, `run_removed`, `several_repositories`, `no_such_repository`).
    """
    run, base, commit = events[0].run, base_commit(events), result_commit(events)
    index, part = Index(events), part_named(events, folder)
    made = [change_at(one, part.folder) for one in index.of(ChangeMade)]
    changes = [one for one in made if one is not None]
    if part.folder:
        fixed = index.last(BaseFixed)
        own = [one.commit for one in fixed.parts if one.folder == part.folder] if fixed else []
        base, commit = own[0] if own else None, changes[-1] if changes else None
    if base is None or commit is None or commit == base:
        where = f" in {part.folder}" if part.folder else ""
        raise UserError("no_change", f"Run {run} has changed nothing{where} yet: there is nothing to apply.")
    earlier = [one for one in changes if one != commit]
    bare = await repositories.open(run)
    since = have if have is not None and is_oid(have) else None
    packed: Pack | None = None if since is None else await pack_since(bare, since, commit)
    if packed is None:
        since, packed = None, await pack(bare, commit)
    note = await in_bare(bare, "notes", f"--ref={NOTES_REF}", "show", commit)
    return ChangePack(
        run=run,
        branch=branch_name(request_of(events).prompt, run),
        base=base,
        commit=commit,
        pack=packed.data,
        since=since,
        shallow=packed.shallow,
        receipt=decode(note.out) if note.ok else None,
        previous=earlier[-1] if earlier else None,
        earlier=tuple(earlier[-_ROUNDS:]),
    )


async def apply(verbs: Verbs, run: str, repo: str, folder: str | None = None) -> Delivered:
    """Put the change of `run` into the caller's repository as a new branch, touching nothing else.

    Of a run on several repositories it is the change in `folder`; None finds it by the base that the repository has.
    Raises `UserError` (`not_a_path`, `no_repository`, `no_change`, `several_repositories`), `OutsideError`
    (`bad_change`).
    """
    if is_url(repo):
        raise UserError("not_a_path", f"{repo} is not a repository on this machine: give a path.")
    checkout = await to_thread.run_sync(find_checkout, repo)
    view = await verbs.runs.view(run)
    base = view.base_commit
    if view.repositories:
        bases = {one.folder: one.base for one in view.repositories if folder in (None, one.folder)}
        fit = [name for name, commit in bases.items() if await _has(checkout, commit)]
        folder = fit[0] if len(fit) == 1 else folder
        base = bases.get(folder) if folder is not None else None
    have = base if base is not None and await _has(checkout, base) else None
    change = await verbs.runs.change(run, have, folder)
    delivered = await _put(change, checkout, repo)
    await verbs.runs.applied(change.run, delivered.where, delivered.branch)
    return delivered


async def _has(checkout: Checkout, commit: str) -> bool:
    return is_oid(commit) and (await in_checkout(checkout, "cat-file", "-e", f"{commit}^{{commit}}")).ok


async def _put(change: ChangePack, checkout: Checkout, repo: str) -> Delivered:
    with tempfile.TemporaryDirectory(prefix="cloister-apply-") as home:
        bare = Path(home) / "change.git"
        await ensure_bare(bare)
        if change.since is not None:
            copied = await copy_in(checkout, change.since, bare, BASE_REF)
            if not copied.ok:
                raise UserError("broken_repository", f"{checkout.top} cannot be read: {complaint(copied)}.")
        elif change.shallow:
            (bare / "shallow").write_text("".join(f"{name}\n" for name in change.shallow))
        await _unpack(bare, change)
        if change.receipt is not None:
            await attach(bare, change.commit, change.receipt)
        tip = decode(
            (
                await in_checkout(checkout, "rev-parse", "--verify", "--quiet", f"refs/heads/{change.branch}")
            ).out
        )
        previous = tip.strip() if tip.strip() in change.earlier else change.previous
        proposal = Proposal(
            change.run, repo, change.base, change.commit, change.branch, bare, previous=previous
        )
        delivered = await Forges().at(repo).deliver(await describe(proposal))
    assert delivered is not None  # noqa: S101  (only a URL gives None)
    return delivered


async def _unpack(bare: Path, change: ChangePack) -> None:
    """Raises `OutsideError` (`bad_change`) for objects that git rejects."""
    size = f"--max-input-size={limits.FILE_BYTES}"
    done = await in_bare(bare, "index-pack", "--stdin", "--fix-thin", "--strict", size, stdin=change.pack)
    if done.ok and is_oid(change.commit):
        done = await in_bare(bare, "cat-file", "-e", f"{change.commit}^{{commit}}")
    if not done.ok or not is_oid(change.commit):
        raise OutsideError("bad_change", f"The server's pack of {change.run} is damaged: {complaint(done)}.")
