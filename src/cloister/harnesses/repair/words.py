"""What the repair harness says at its end: the summary of a patch, and why there is none. Pure.

Every sentence says what a person can do next.
"""

from collections.abc import Sequence

from cloister.core.events import CandidatesTried, PatchChosen
from cloister.core.events.repair import PLAUSIBLE
from cloister.core.text import one_line
from cloister.harnesses.repair.api import FLAG_WORDS, LAST, Chosen, Localised

_NEXT = "Configure a model for it (`cloister doctor` says how), or repair it by hand."

NO_TEST = (
    "No test fails on the base, so nothing shows a fault. The repair harness works from a failing test: add one that "
    "shows the fault, name the command that fails with --check, or configure a model."
)
NO_RULES = (
    "The check `{check}` fails, and the repair harness has no rules for it. It repairs code that a failing test of a "
    f"supported test runner shows. {_NEXT}"
)
BROKEN = f"The tests cannot be driven one by one, which a search needs. {_NEXT}"
NOT_RED_NOW = "No test fails on the files as they are now, so there is nothing to search for: a search cannot follow a message."
FLAKY = (
    "The failing tests pass when they are repeated ({names}): they are flaky, and a search needs a test that fails each "
    "time. Make them repeatable first."
)
UNRUN = (
    "The failing tests ({names}) did not run in the {seconds:.0f} s that a search may spend on finding the fault: the tests "
    "need longer. Give it more --seconds, or name a check that runs just these with --check."
)
OUTSIDE = (
    "{test} fails without running a line of the repository's own code{error}: the cause is outside the repository, in a "
    "package, a service or the environment, where a search cannot repair it."
)
STOPPED = "A person stopped the search after {tried:,} of {total:,} candidates. A new run begins with the first one again."
DENIED = (
    "The rules of this run deny `write` for the suspect files ({files}), so no candidate may be tried there."
)
NO_CANDIDATE = f"No rule changes a suspect line ({{files}}), so there is no candidate to try. {_NEXT}"


def exhausted(tried: int, total: int, plausible: int, late: int) -> str:
    """The end of a search without an accepted patch. `late`: failing tests that did not end in the search."""
    if plausible:
        found = (
            f"{plausible:,} passed the tests of the search, and the rules or the proof refused each of them"
        )
    else:
        found = "none makes the failing tests pass without breaking others"
    if late:
        found += f". {late:,} of the failing tests ran over the limit of a search: a loop without an end, or slow code"
    return (
        f"{tried:,} of {total:,} candidates tried: {found}. The fault is larger than one small change, or outside the "
        f"rules. {_NEXT}"
    )


def how(found: Localised) -> str:
    """What was measured, in words."""
    match found.method:
        case "coverage":
            passing, failing = len(found.passing), len(found.failing)
            said = f"the coverage of {failing:,} failing and {passing:,} passing tests"
        case "traceback":
            said = "the tracebacks of the failing tests"
        case "imports":
            said = "what the failing tests import"
    return one_line("; ".join((said, *found.notes)), 400)


def summary(chosen: Chosen, path: str, tried: int, total: int, plausible: int) -> str:
    """The words for the commit and the screen. The first line is the subject."""
    one = chosen.trial.candidate
    reasons = [reason for reason in chosen.reasons if reason != PLAUSIBLE]
    return _said(f"{path}:{one.line} ({one.rule})", tried, total, plausible, reasons)


def _said(what: str, tried: int, total: int, plausible: int, reasons: Sequence[str]) -> str:
    others = f", {plausible:,} of them plausible" if plausible > 1 else ""
    doubt = " Read it with care." if any(f"it {FLAG_WORDS[flag]}" in reasons for flag in LAST) else ""
    listed = "".join(f"\n- {one_line(reason, 300)}" for reason in reasons)
    return (
        f"Repair {what}\n\n"
        f"{PLAUSIBLE[0].upper()}{PLAUSIBLE[1:]}: the tests pass, which is all that is known. Review it as a "
        f"suggestion.{doubt} The repair harness tried {tried:,} of {total:,} candidates{others}."
        f"{listed}"
    )


HURRIED = "the time was nearly over, so the search looked no further"


def proven_late(one: PatchChosen, line: int, done: CandidatesTried | None) -> str:
    """The words for a patch that was proven after the run had been given more time: the same, from the log."""
    tried, total, plausible = (
        (done.tried, done.total, done.plausible) if done else (one.number, one.number, 1)
    )
    reasons = (
        f"found by the rule “{one.rule}” in {one.path}, line {line}",
        *filter(None, one.why.split("; ")),
    )
    return _said(f"{one.path}:{line} ({one.rule})", tried, total, plausible, reasons)


def left(done: CandidatesTried | None, unjudged: PatchChosen | None) -> str:
    """What a search had done when its time was over."""
    if done is None or not done.tried:
        return "The search had not tried a candidate yet: the tests may need minutes. Give it more --seconds."
    so_far = f"{done.tried:,} of {done.total:,} candidates were tried, none accepted."
    if unjudged is not None:
        so_far += (
            f" The files hold candidate {unjudged.number:,} ({unjudged.rule} in {unjudged.path}), which passes the tests of "
            "the search; its proof did not end in time."
        )
    return f"{so_far} Give it more --seconds."
