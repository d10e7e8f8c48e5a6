"""Verify a delivered change again from nothing: its checks on the base and on the change, in fresh sandboxes.

The commits carry what is needed: their trailers name the checks and the outcome, their parents lead to the base. So
another machine needs only the repository. A proof file (a receipt as JSON) says the same where the trailers were lost;
it is untrusted: where both are there they must agree, and its commands run only in the sandboxes.

A lost test is accepted only by the word of a person: in the run's own log on this machine, or of the caller. Neither a
commit nor a file can say it.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from cloister.agent.evidence.permission import permitted
from cloister.core.diagnosis import Comparison, Diagnosis, statement
from cloister.core.errors import UserError
from cloister.core.events import Event
from cloister.core.limits import CHECKS
from cloister.core.log import Index, request_of
from cloister.core.requests import NewRun
from cloister.core.system.locks import lock_within
from cloister.core.text import decode, one_line
from cloister.feedback.compare import compare
from cloister.feedback.integrity import weakening
from cloister.feedback.shown import permit
from cloister.forge import change
from cloister.forge.host import in_bare, must
from cloister.runs.templates import Workshop
from cloister.sandbox.api import Report

_ROUNDS = 100
_WAIT_SECONDS = 3_600.0
_CHECK = re.compile(r"^Check: (.{1,400})$", re.MULTILINE)
_OUTCOME = re.compile(r"^Outcome: ([a-z]{1,20}):", re.MULTILINE)
_PART = re.compile(r"^Cloister-Repository: (.{1,80})$", re.MULTILINE)
_RUN = re.compile(r"^Cloister-Run: ([A-Za-z0-9-]{1,64})$", re.MULTILINE)

SetUp = Callable[[NewRun, Report], Awaitable[tuple[Diagnosis, ...]]]
"""Builds the environment of a commit and runs the checks of the request there."""


PROOF_BYTES = 4 << 20
"""Size limit of a proof file."""
_Oid = Annotated[str, msgspec.Meta(pattern="^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
_Line = Annotated[str, msgspec.Meta(min_length=1, max_length=4_000, pattern=r"^[^\x00-\x08\x0e-\x1f]+$")]
_Checks = Annotated[tuple[_Line, ...], msgspec.Meta(min_length=1, max_length=CHECKS)]


class Claim(msgspec.Struct, frozen=True):
    """What the commits of a change, or its proof file, say about it."""

    run: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]{1,64}$")]
    base: _Oid
    commit: _Oid
    checks: _Checks
    outcome: Annotated[str, msgspec.Meta(max_length=20)]


class _Proof(msgspec.Struct):
    checks: _Checks


class _Receipt(msgspec.Struct):
    run: str
    base_commit: str
    commit: str
    outcome: str
    proof: _Proof
    repositories: list[object] = []


def claim_of(text: bytes) -> Claim:
    """The claim in a proof file. Raises `UserError` (`bad_proof`)."""
    if len(text) > PROOF_BYTES:
        raise UserError("bad_proof", f"The proof file is larger than {PROOF_BYTES >> 20} MiB.")
    try:
        found = msgspec.json.decode(text, type=_Receipt)
        if found.repositories:
            raise UserError(
                "several_repositories",
                f"The changes of run {one_line(found.run, 64)} are in several repositories, which only its own server has "
                "together: `cloister verify RUN` there.",
            )
        fields = (found.run, found.base_commit, found.commit, found.proof.checks, found.outcome)
        return msgspec.convert(dict(zip(Claim.__struct_fields__, fields, strict=True)), Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = one_line(str(error), 200)
        raise UserError(
            "bad_proof", f"This is no proof file of `cloister receipt RUN --json` with a change: {why}."
        ) from None


class Verified(msgspec.Struct, frozen=True):
    """A claim and what running its checks again showed."""

    run: str
    base: str
    commit: str
    checks: tuple[str, ...]
    claimed: str
    """The outcome that the change claims."""
    found: str
    """The outcome that the checks show now."""
    holds: bool
    """True if the checks show at least what the change claims."""
    statement: str
    shown: tuple[str, ...] = ()
    """What was red on the base and is green on the change."""
    red_before: int = 0
    red_now: int = 0
    passed: int = 0


class Grants(msgspec.Struct, frozen=True):
    """Which changes of tests are accepted."""

    allow: tuple[str, ...] = ()
    """Patterns of files, as the caller gives them."""
    events: tuple[Event, ...] = ()
    """The log of the run on this machine, with what people permitted; empty elsewhere."""

    async def of(self, bare: Path, claim: Claim) -> tuple[tuple[str, ...], frozenset[str]]:
        """The patterns of files, and the names of tests that people gave up for exactly these files."""
        if not self.events:
            return self.allow, frozenset()
        given = permitted(Index(self.events), await change.contents(bare, claim.base, claim.commit))
        return (*self.allow, *request_of(self.events).allow_test_changes, *given.patterns), given.lost


_STRENGTH = ("red", "unproven", "unbroken", "proven")


async def verify(
    workshop: Workshop,
    set_up: SetUp,
    repo: str,
    ref: str | Claim,
    report: Report,
    grants: Grants,
) -> Verified:
    """Run the proof of the change at `ref` of `repo`, or of a proof file's claim, again.

    Raises `UserError` (`no_claim`, `bad_proof`).
    """
    workshop.repositories.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = hashlib.sha256(repo.encode()).hexdigest()[:16]
    bare = workshop.repositories / f"verify-{name}.git"
    async with lock_within(bare.with_suffix(".lock"), _WAIT_SECONDS):
        name = ref.commit if isinstance(ref, Claim) else ref
        found = await workshop.forges.bring(repo, name, bare)
        if isinstance(ref, Claim):
            claim = await _agreed(bare, ref)
        else:
            claim = await read_claim(bare, found.commit)
        await workshop.forges.modules(repo, claim.base, bare)
        # By a path: the base may be a commit that no branch of the repository ends at.
        before = await set_up(_request(bare, claim.base, claim.checks), report)
        now = await set_up(_request(bare, claim.commit, claim.checks), report)
        allowed, lost = await grants.of(bare, claim)
    return judge(claim, before, now, allowed, lost)


async def _agreed(bare: Path, file: Claim) -> Claim:
    """The claim of a proof file, if the repository does not contradict it. Raises `UserError` (`bad_proof`)."""
    below = await in_bare(bare, "merge-base", "--is-ancestor", file.base, file.commit)
    if not below.ok or file.base == file.commit:
        raise UserError("bad_proof", f"The change {file.commit[:12]} is not based on {file.base[:12]}.")
    try:
        said = await read_claim(bare, file.commit)
    except UserError:
        return file  # a commit whose message was rewritten
    checks = {one_line(check, 200) for check in file.checks}
    for what, same in (
        ("the run", file.run == said.run),
        ("the base", file.base == said.base),
        ("the checks", checks <= set(said.checks)),
        ("the outcome", _strength(file.outcome) <= _strength(said.outcome)),
    ):
        if not same:
            raise UserError(
                "bad_proof", f"The proof file contradicts the commit {file.commit[:12]} about {what}."
            )
    return file


def _request(bare: Path, commit: str, checks: tuple[str, ...]) -> NewRun:
    return NewRun("verify", str(bare), commit, checks)


async def read_claim(bare: Path, commit: str) -> Claim:
    """Read the trailers of the change at `commit` and of the rounds before it. Raises `UserError` (`no_claim`)."""
    shown = await in_bare(
        bare,
        "log",
        "--first-parent",
        f"-n{_ROUNDS}",
        "--format=%H%x00%P%x00%B%x01",
        "--end-of-options",
        commit,
    )
    newest: Claim | None = None
    for entry in decode(must(shown, "read the change")).split("\x01"):
        name, _, rest = entry.strip("\n").partition("\0")
        parents, _, message = rest.partition("\0")
        run = _RUN.search(message)
        if run is not None and newest is None and (part := _PART.search(message)):
            raise UserError(
                "several_repositories",
                f"The commit {commit[:12]} is one of several changes of run {run[1]}, here {one_line(part[1], 80)}, which "
                f"are proven together: `cloister verify {run[1]}` where the run is.",
            )
        if run is None or (newest is not None and run[1] != newest.run):
            break
        outcome = _OUTCOME.search(message)
        base = parents.split(" ")[0]
        if newest is None:
            checks = tuple(dict.fromkeys(_CHECK.findall(message)))
            newest = Claim(run[1], base, name, checks, outcome[1] if outcome else "unproven")
        newest = msgspec.structs.replace(newest, base=base)
    if newest is None or not newest.base:
        raise UserError(
            "no_claim",
            f"The commit {commit[:12]} is no change of a run: its message has no line Cloister-Run.",
        )
    if not newest.checks:
        raise UserError(
            "no_claim", f"The change of run {newest.run} names no check: there is nothing to verify."
        )
    return newest


def judge(
    claim: Claim,
    before: Sequence[Diagnosis],
    now: Sequence[Diagnosis],
    allowed: Collection[str] = (),
    given_up: Collection[str] = (),
) -> Verified:
    """Compare the checks of both commits, and what they show with what the change claims.

    `allowed` are patterns of test files that may have lost tests, `given_up` names of tests that may be lost.
    """
    found = permit(compare(before, weakening.permitted(now, allowed)), before, allowed, given_up)
    # What was red before and is still red does not contradict a claim that lists it as unrelated.
    verdict = _verdict(found)
    holds = _strength(verdict) >= _strength(claim.outcome)
    return Verified(
        claim.run,
        claim.base,
        claim.commit,
        claim.checks,
        claim.outcome,
        verdict,
        holds,
        _statement(found, verdict),
        tuple(one_line(name, 300) for name in found.shown),
        compare(before, before).red,
        found.red,
        found.passed,
    )


def _statement(found: Comparison, verdict: str) -> str:
    lost = not found.new and (found.missing or found.skipped)
    return statement(found) if verdict == found.verdict and not lost else _sentence(found)


def _verdict(found: Comparison) -> str:
    if found.new or found.missing or found.skipped or found.weakened:
        return "red"
    if not found.ran:
        return "unproven"
    return "proven" if found.shown else "unbroken"


def _sentence(found: Comparison) -> str:
    if not found.new and (lost := (*found.missing, *found.skipped)):
        return (
            f"{len(lost):,} tests of the base do not run any more, such as {one_line(lost[0], 120)}; if a person permits that, "
            "name their files with --allow-test-changes"
        )
    first = one_line(found.shown[0], 120) if found.shown else ""
    said = f"shown by {first}: red on the base, green now" if first else "nothing new is red"
    return f"{said}; still red, as on the base: {len(found.still):,}"


def _strength(outcome: str) -> int:
    return _STRENGTH.index(outcome) if outcome in _STRENGTH else 0
