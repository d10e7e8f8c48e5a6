"""The text of a pull request: what was asked, what changed, the proof, what is not proven, how to verify. Pure."""

import hashlib
import re
from collections.abc import Iterator, Sequence

import msgspec

from cloister.core import events as e
from cloister.core.budget import amount
from cloister.core.diagnosis import Comparison, statement
from cloister.core.events.repair import PLAUSIBLE
from cloister.core.log import Index, request_of
from cloister.core.requests import FileChange
from cloister.core.text import harmless, one_line
from cloister.feedback.compare import compare
from cloister.runs.receipt import code
from cloister.runs.view import RunView, fold

_TESTS = 6
_FILES = 8
_NOTES = 4
_CHECKS = 4
_WORDS_CHARS = 1_500
_WORDS_LINES = 8
_PAGE_CHARS = 20_000
_MEANING = {
    "proven": "At least one check was red on the base and is green now, and nothing new is red.",
    "unbroken": "Nothing new is red, but no test shows the requested change.",
    "unproven": "No check could run.",
}


def part_of(made: e.ChangeMade, folder: str, commit: str) -> e.ChangeMade:
    """The change of one of several repositories, with the paths that its files have there."""
    start = f"{folder}/"
    own = [
        msgspec.structs.replace(file, path=file.path[len(start) :])
        for file in made.files
        if file.path.startswith(start)
    ]
    return msgspec.structs.replace(made, commit=commit, files=tuple(own))


def page(
    events: Sequence[e.Event],
    winner: e.AttemptEnded,
    made: e.ChangeMade,
    receipt: str | None,
    folder: str = "",
) -> str:
    """The text for a change that is about to be delivered, as Markdown. Text of models and people is inert in it.

    `folder` is where the repository is in the work tree of a run on several.
    """
    view = fold(events)
    lines = [
        *_asked(view, _issue(events, folder), winner.outcome),
        *_changed(winner, made.files),
        *(_beside(events, made, folder) if folder else ()),
        *_proof(events, view, winner),
        *_pages(events, winner),
        *_open(winner.comparison),
        *_footer(view, winner, made, receipt),
    ]
    text = "\n".join(lines).strip() + "\n"
    return text if len(text) <= _PAGE_CHARS else text[:_PAGE_CHARS] + "\n\n(cut off)\n"


def _issue(events: Sequence[e.Event], folder: str) -> int | None:
    """The issue that the change is about, in the repository that has it: of several the main one."""
    fixed = Index(events).last(e.BaseFixed)
    main = fixed.parts[0].folder if fixed and fixed.parts else ""
    return request_of(events).issue if folder == main else None


def _asked(view: RunView, issue: int | None, outcome: str) -> Iterator[str]:
    yield "## Asked"
    yield ""
    yield quoted(view.prompt)
    yield ""
    if issue is not None:
        # Forges close the issue with the merge; no one has shown yet that another change resolves it.
        yield f"{'Fixes' if outcome == 'proven' else 'Relates to'} #{issue}"
        yield ""


def _changed(winner: e.AttemptEnded, files: Sequence[FileChange]) -> Iterator[str]:
    yield "## Changed"
    yield ""
    if winner.reason.strip():
        yield quoted(winner.reason)
        yield ""
    for file in files[:_FILES]:
        status = "" if file.status == "modified" else f" ({file.status})"
        yield f"- {code(file.path, 160)} +{file.added:,} −{file.removed:,}{status}"
    if len(files) > _FILES:
        yield f"- … and {len(files) - _FILES:,} more"
    yield ""


def _beside(events: Sequence[e.Event], made: e.ChangeMade, folder: str) -> Iterator[str]:
    """The changes of the run's other repositories, which belong together with this one."""
    index = Index(events)
    fixed, at = index.last(e.BaseFixed), max(event.seq for event, _ in index.events(e.ChangeMade))
    sent = {body.folder: body for event, body in index.events(e.ChangeDelivered) if event.seq > at}
    yield "## One change of several"
    yield ""
    yield f"This is the part of the run in {code(folder, 80)}, the folder of this repository there. The proof is of all parts together."
    yield ""
    changed = {part.folder for part in made.parts}
    for part in fixed.parts if fixed else ():
        if part.folder != folder:
            there = sent.get(part.folder)
            where = there.url if there is not None and there.url else f"branch {code(made.branch, 120)}"
            yield f"- {code(part.repo, 200)}: {where if part.folder in changed else 'no change'}"
    yield ""


def _proof(events: Sequence[e.Event], view: RunView, winner: e.AttemptEnded) -> Iterator[str]:
    yield f"## Proof: {winner.outcome}"
    yield ""
    yield f"{_MEANING.get(winner.outcome, '')} In short: {code(statement(winner.comparison), 400)}."
    if Index(events).of(e.PatchChosen, attempt=winner.attempt):
        yield f"The change was {PLAUSIBLE}."
    yield ""
    base, now = (view.base_commit or "")[:12], winner.commit[:12]
    shown, checks = winner.comparison.shown, _checks_of(events, winner)
    if shown:
        yield f"| red on base `{base}`, green on the saved commit `{now}` | by |"
        yield "|---|---|"
        yield from (f"| {_cell(name)} | {_cell(checks.get(name, ''))} |" for name in shown[:_TESTS])
        if len(shown) > _TESTS:
            yield f"| … and {len(shown) - _TESTS:,} more | |"
        yield ""
    taken = Index(events).last(e.BaselineTaken)
    if taken is not None:
        before = compare(taken.diagnoses, taken.diagnoses)
        yield f"Before: {_count(before)}. Now: {_count(winner.comparison)}."
        yield ""
    if view.checks:
        yield "Checks, run in a fresh sandbox on the base and on the change:"
        yield ""
        yield from (f"- {code(check, 200)}" for check in view.checks[:_CHECKS])
        if len(view.checks) > _CHECKS:
            yield f"- … and {len(view.checks) - _CHECKS:,} more"
        yield ""


def _checks_of(events: Sequence[e.Event], winner: e.AttemptEnded) -> dict[str, str]:
    """The name of a test, or of a check → the command that it is of."""
    index = Index(events)
    taken, proof = index.last(e.BaselineTaken), index.last(e.ProofTaken, attempt=winner.attempt)
    found = (*(taken.diagnoses if taken else ()), *(proof.diagnoses if proof else ()))
    tests = {test.name: one.check for one in found for test in one.tests}
    return {one.check: one.check for one in found} | tests


def _count(found: Comparison) -> str:
    return f"{found.red:,} red, {found.passed:,} passed"


def _open(found: Comparison) -> Iterator[str]:
    """What the proof does not show."""
    groups = (
        ("Red before and now, and unrelated", found.unrelated),
        ("Red before and now", tuple(one for one in found.still if one not in found.unrelated)),
        ("Could not run", found.not_run),
        ("Flaky on the same files", found.flaky),
    )
    lines = [
        f"- {word}: {', '.join(code(name, 120) for name in names[:3])}"
        + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
        for word, names in groups
        if names
    ]
    lines += [f"- {code(note, 300)}" for note in found.notes[:_NOTES]]
    if not found.shown:
        lines.insert(0, "- No test shows the requested change.")
    yield "## Not proven"
    yield ""
    yield from lines or ["- Behaviour that no check of this repository covers."]
    yield ""


def pictured(events: Sequence[e.Event], winner: e.AttemptEnded) -> e.PagesPictured | None:
    """The pictures of pages that were taken of the winner's files."""
    taken = Index(events).last(e.PagesPictured)
    return taken if taken is not None and taken.commit == winner.commit else None


def _pages(events: Sequence[e.Event], winner: e.AttemptEnded) -> Iterator[str]:
    """The pages that the settings name, as they look on the base and now."""
    taken = pictured(events, winner)
    if taken is None:
        return
    before, after = ({one.name: one.sha256 for one in found} for found in (taken.before, taken.after))
    yield "## Pages"
    yield ""
    for name in {**before, **after}:
        same = "looks the same" if before.get(name) == after.get(name) else "looks different"
        yield f"- {code(name, 120)}: {same if name in before and name in after else 'shown on one side only'}"
    yield from (f"- {code(problem, 300)}" for problem in taken.problems[:_NOTES])
    yield f"- The pictures before and after: `cloister diff {events[0].run} --pictures FOLDER`"
    yield ""


def _footer(view: RunView, winner: e.AttemptEnded, made: e.ChangeMade, receipt: str | None) -> Iterator[str]:
    spent = [f"{view.steps:,} steps", f"{view.usage.total:,} tokens", f"{view.seconds:,.0f} s"]
    if view.cost is not None:
        spent.append(amount("dollars", view.cost))
    yield "## Run"
    yield ""
    yield f"- Run {code(view.id)}, attempt {winner.attempt}, commit `{made.commit[:12]}`: {', '.join(spent)}."
    if view.models:
        yield f"- Models: {', '.join(code(model, 80) for model in view.models[:5])}."
    if receipt is not None:
        digest = hashlib.sha256(receipt.encode()).hexdigest()
        yield (
            "- The receipt lists everything that the run touched up to this commit: "
            f"`cloister receipt {view.id} --delivered` (sha256 `{digest}`)."
        )
    yield (
        f"- Run the proof again: `cloister verify` with the address of this page; in a clone, `cloister verify {made.branch} --repo .`; "
        f"or `cloister verify proof.json` with the file of `cloister receipt {view.id} --json`."
    )


_TICKS = re.compile("`{3,}|~{3,}")


def quoted(text: str) -> str:
    """`text` as a quotation that is code: no mention, link, reference, HTML or heading in it means anything."""
    kept = harmless(text).strip()
    lines = kept.split("\n")
    short = "\n".join(lines[:_WORDS_LINES])[:_WORDS_CHARS].rstrip()
    kept = kept if len(lines) <= _WORDS_LINES and len(kept) <= _WORDS_CHARS else f"{short} …"
    longest = max((len(run) for run in _TICKS.findall(kept)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{kept or '(empty)'}\n{fence}"


def _cell(name: str) -> str:
    return code(one_line(name, 200).replace("|", "¦")) if name else ""
