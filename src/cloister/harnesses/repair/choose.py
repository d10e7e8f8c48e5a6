"""Picks one of several plausible patches and says why. Pure."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from cloister.harnesses.repair.api import FLAG_WORDS, LAST, Chosen, Trial

_ENOUGH = 5
"""Plausible patches to choose from."""
_MORE = (30, 150)
"""Candidates that are tried after the first plausible one: a third of those before it, between these."""
_MORE_DOUBTFUL = 600


class Behaviour(msgspec.Struct, frozen=True):
    """The old and the new code on inputs near those of the tests."""

    inputs: int
    differing: int
    """Inputs with another result than before."""
    worse: int
    """Inputs on which only the new code raises or does not end."""

    @classmethod
    def of(cls, old: Mapping[str, str], new: Mapping[str, str]) -> "Behaviour":
        shared = [key for key in old if key in new]
        differing = sum(old[key] != new[key] for key in shared)
        worse = sum(_is_bad(new[key]) and not _is_bad(old[key]) for key in shared)
        return cls(len(shared), differing, worse)


def _is_bad(digest: str) -> bool:
    return digest == "late" or digest.startswith("raises ")


def enough(tried: int, plausible: Collection[Trial]) -> bool:
    """True if the search may stop to choose. It looks longer for one that beats a partial or a doubtful patch."""
    full = [
        one.candidate.number + 1 for one in plausible if not (one.partial or LAST & set(one.candidate.flags))
    ]
    if full:
        return len(full) >= _ENOUGH or tried >= full[0] + min(max(_MORE[0], full[0] // 3), _MORE[1])
    first = next((trial.candidate.number + 1 for trial in plausible), None)
    return first is not None and tried >= first + _MORE_DOUBTFUL


def choose(plausible: Sequence[Trial], behaviours: Mapping[int, Behaviour]) -> Chosen:
    """Pick the patch with the least doubt. `plausible` is not empty; `behaviours` is by candidate number."""

    def doubt(trial: Trial) -> tuple[float, ...]:
        one = trial.candidate
        seen = behaviours.get(one.number)
        flagged = len(LAST & set(one.flags))
        return (
            len(trial.still_red),
            flagged,
            "pair" in one.flags,
            seen.worse if seen else 0,
            -one.score / (1 + one.size / 40),
            one.number,
        )

    order = sorted(plausible, key=doubt)
    best = order[0]
    return Chosen(
        best, _reasons(best, order[1:], behaviours), tuple(trial.candidate.number for trial in order[1:])
    )


def _reasons(best: Trial, others: Sequence[Trial], behaviours: Mapping[int, Behaviour]) -> tuple[str, ...]:
    one = best.candidate
    said = [f"found by the rule “{one.rule}” in {one.path}, line {one.line}"]
    said += [f"it {FLAG_WORDS[flag]}" for flag in one.flags]
    if best.still_red:
        said.append(f"it leaves {len(best.still_red)} of the failing tests as they are")
    if others:
        smaller = all(one.size <= other.candidate.size for other in others)
        said.append(
            f"{len(others)} other plausible patch{'' if len(others) == 1 else 'es'}"
            + (", none changes less" if smaller else "")
        )
    seen = behaviours.get(one.number)
    if seen and seen.inputs:
        said.append(
            f"of {seen.inputs} inputs near those of the tests {seen.differing} give another result than before, "
            f"{seen.worse} only now raise or do not end"
        )
    said.append("found by search, plausible, not proven correct")
    return tuple(said)
