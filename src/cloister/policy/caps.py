"""Limits: of all layers the smallest holds, and what it took away is said with its place."""

from collections.abc import Mapping

from cloister.policy.api import Cap, LimitName, Policy


def least(policy: Policy) -> dict[LimitName, Cap]:
    """The cap that holds for each limit that has one; of equals the strongest author's."""
    found: dict[LimitName, Cap] = {}
    for layer in policy:
        for cap in layer.caps:
            if cap.name not in found or cap.most < found[cap.name].most:
                found[cap.name] = cap
    return found


def capped(
    policy: Policy, wanted: Mapping[LimitName, float | None]
) -> tuple[dict[LimitName, float | None], tuple[str, ...]]:
    """What of `wanted` is given, and a sentence for everything that is less. None is without a limit."""
    given = dict(wanted)
    notes: list[str] = []
    for name, cap in least(policy).items():
        if name not in wanted:
            continue
        asked = wanted[name]
        if asked is None or asked > cap.most:
            given[name] = cap.most
            instead = "no limit" if asked is None else f"{asked:g}"
            notes.append(f"{name}: {cap.most:g} instead of {instead} (limits.{name}, {cap.source})")
    return given, tuple(notes)
