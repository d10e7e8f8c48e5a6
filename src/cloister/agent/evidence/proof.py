"""The proof: run the checks on the saved change alone, then the formerly failing tests as they are on the base."""

from collections.abc import Sequence

import msgspec

from cloister.agent.evidence.run_checks import ShowCheck, run_checks, run_loosely
from cloister.agent.evidence.worktree import (
    back_to,
    base_files,
    both_versions,
    changed_since_base,
    restore_from_base,
    rewritten_since,
    tree_now,
)
from cloister.core.computer import Command, Computer
from cloister.core.diagnosis import Diagnosis, Weakening
from cloister.feedback.check_commands import may_run_tests
from cloister.feedback.compare import compare
from cloister.feedback.integrity.base_tests import (
    PutBack,
    is_looked_into,
    must_pass_as_before,
    put_back,
    spoils,
)

_SECONDS = 60.0


async def run_proof(
    computer: Computer,
    checks: Sequence[str],
    show: ShowCheck,
    *,
    baseline: tuple[Diagnosis, ...],
    known: tuple[Diagnosis, ...],
    cpus: float = 1.0,
) -> tuple[Diagnosis, ...]:
    """Run the checks in a fresh sandbox that holds the change and nothing else.

    `known` are the earlier results for the same files: a test that fails only here runs twice. Then restore the test
    files that the change touched from the base; a test that fails with those was weakened, not fixed.
    """
    tree, changes = await tree_now(computer), await changed_since_base(computer)
    found = await run_checks(computer, checks, "proof", show, baseline=known, cpus=cpus)
    seen = compare(baseline, found)
    decisive = must_pass_as_before(baseline, seen.fixed)
    if not decisive or seen.weakened:
        return found
    rewritten = await rewritten_since(computer, tree) if tree is not None else None
    if changes is None or tree is None or rewritten is None or not await back_to(computer, tree):
        return _doubted(found, (Weakening(".", "base", detail="the change cannot be inspected"),))
    if spoilt := spoils((*changes.changed, *changes.new), rewritten):
        return _doubted(found, spoilt)
    texts = await both_versions(computer, [name for name in changes.changed if is_looked_into(name)])
    if texts is None:
        return _doubted(found, (Weakening(".", "base", detail="the change is too large to inspect"),))
    inside = {one.path: one for one in texts}
    ways = put_back(changes.changed, changes.new, await base_files(computer), baseline, inside)
    red = tuple(one.check for one in baseline if not one.green and may_run_tests(one.check))
    before = tuple(one for one in baseline if one.check in red)
    for number, way in enumerate(ways):
        if not await _restored(computer, way):  # each way builds on the one before
            return _doubted(
                found, (Weakening(".", "base", detail="the tests of the base could not be restored"),)
            )
        place = f"proof-base-{number}"
        again = await run_loosely(computer, red, place, show, found, cpus)
        calm = compare(before, again)
        decisive.difference_update(calm.fixed, calm.flaky)
        if not decisive:
            return found
    return _doubted(found, tuple(Weakening(name, "base") for name in sorted(decisive))) if ways else found


async def _restored(computer: Computer, back: PutBack) -> bool:
    if back.restore and not await restore_from_base(computer, back.restore):
        return False
    for name, text in back.write:
        await computer.write(name, text.encode())
    if back.remove:
        done = await computer.run(Command(("rm", "-f", "--", *back.remove), seconds=_SECONDS))
        return done.ok
    return True


def _doubted(found: tuple[Diagnosis, ...], weak: tuple[Weakening, ...]) -> tuple[Diagnosis, ...]:
    if not weak:
        return found
    return tuple(msgspec.structs.replace(one, weakened=(*one.weakened, *weak)) for one in found)
