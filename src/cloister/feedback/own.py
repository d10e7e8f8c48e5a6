"""What a repository says itself about its checks: `.cloister.toml`, or `.cloister/config.toml`."""

import tomllib
from collections.abc import Mapping

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Check, CheckKind

FILES = (".cloister.toml", ".cloister/config.toml")


class OwnCheck(msgspec.Struct, frozen=True):
    """One check of the repository's own list; a plain string is its command."""

    command: str
    kind: CheckKind | None = None
    timeout: float | None = None


class _Own(msgspec.Struct, frozen=True):
    checks: list[str | OwnCheck] = []


def own_checks(contents: Mapping[str, str]) -> tuple[OwnCheck, ...]:
    """The list of the first file that has one; a file that cannot be read is as none."""
    for name in FILES:
        try:
            own = msgspec.convert(tomllib.loads(contents.get(name, "")), _Own)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError):
            continue
        found = [OwnCheck(one) if isinstance(one, str) else one for one in own.checks]
        kept = [
            msgspec.structs.replace(one, command=one.command.strip()) for one in found if one.command.strip()
        ]
        if kept:
            return tuple(kept[: limits.CHECKS])
    return ()


def adjusted(check: Check, own: tuple[OwnCheck, ...]) -> Check:
    """The check with the kind and the time limit that the repository gives it; longer than ours no check runs."""
    for one in own:
        if one.command == check.command:
            seconds = (
                check.seconds if one.timeout is None else max(1.0, min(one.timeout, limits.CHECK_SECONDS))
            )
            return msgspec.structs.replace(check, kind=one.kind or check.kind, seconds=seconds)
    return check
