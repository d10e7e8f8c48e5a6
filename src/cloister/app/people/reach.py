"""What one caller may do with which runs: the role on the server, the levels in projects, and links."""

from collections.abc import Sequence
from typing import NamedTuple

from cloister.app.people.projects import GROUP, LEVELS, Level, People
from cloister.app.tokens import RANK, Caller
from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId
from cloister.core.requests import Role


class Standing(NamedTuple):
    """What a caller may do with one run."""

    role: Role
    approves: Role | None
    """The highest approver that a rule may name for an action that this caller allows; None: they only deny."""
    level: Level


_OF_LEVEL: dict[Level, Standing] = {
    "sees": Standing("viewer", None, "sees"),
    "steers": Standing("operator", None, "steers"),
    "approves": Standing("operator", "operator", "approves"),
    "administers": Standing("admin", "admin", "administers"),
}
_OF_ROLE: dict[Role, Level] = {"viewer": "sees", "operator": "approves", "admin": "administers"}


class Reach:
    """The runs that a caller reaches, by the files as they stand at each question."""

    def __init__(self, people: People, caller: Caller) -> None:
        self._people = people
        self._caller = caller

    @property
    def everything(self) -> bool:
        """Whether no run is hidden, and the role on the server counts everywhere."""
        caller = self._caller
        if not caller.known:
            return False
        return caller.role == "admin" or not (caller.shares or self._people.projects())

    def sees(self, run: RunId, repos: tuple[str, ...]) -> bool:
        return self.everything or self._level(run, repos) is not None

    def standing(self, run: RunId | None, repos: Sequence[str]) -> Standing | None:
        """None: the run does not exist for the caller. `run` is None for one that is asked for."""
        level = self._level(run, repos)
        return None if level is None else _OF_LEVEL[level]

    def must_be(self, role: Role, run: RunId | None, repos: Sequence[str]) -> Standing:
        """Raises `UserError` (`denied`) unless the caller has at least `role` for these repositories."""
        found = self.standing(run, repos)
        if found is None or RANK[found.role] < RANK[role]:
            what = f"with {run}" if run else "in the project of this repository"
            may = "may do nothing" if found is None else f"{found.level}"
            needed = {"viewer": "sees", "operator": "steers", "admin": "administers"}[role]
            raise UserError("denied", f"{self._caller.name} {may} {what}: this needs a member who {needed}.")
        return found

    @property
    def highest(self) -> Role | None:
        """The highest role that the caller has anywhere."""
        held: list[Role] = [_OF_LEVEL[level].role for level in self._levels_anywhere()]
        if self._caller.known:
            held.append(self._caller.role)
        return next((role for role in reversed(RANK) if role in held), None)

    def member_of(self) -> tuple[str, ...]:
        """The names of the caller's projects."""
        return tuple(one.name for one in self._people.projects() if self._as_member(one.members) is not None)

    def in_project(self, name: str) -> Level | None:
        """The caller's own level in a project; None also if there is none of this name."""
        found = next((one for one in self._people.projects() if one.name == name), None)
        return None if found is None else self._as_member(found.members)

    def _levels_anywhere(self) -> tuple[Level, ...]:
        projects = self._people.projects()
        return (
            *self._shared(None),
            *_without_none(tuple(self._as_member(one.members) for one in projects)),
        )

    def _level(self, run: RunId | None, repos: Sequence[str]) -> Level | None:
        if self._caller.is_admin:
            return "administers"
        lowest: Level | None = "administers"
        for repo in repos:
            level = self._in_repository(repo)
            lowest = None if level is None or lowest is None else min(level, lowest, key=LEVELS.__getitem__)
        shared = self._shared(run) if run is not None else ()
        return _best(shared if lowest is None else (*shared, lowest))

    def _in_repository(self, repo: str) -> Level | None:
        own = tuple(one for one in self._people.projects() if one.has(repo))
        if not own:
            return _OF_ROLE[self._caller.role] if self._caller.known else None
        return _best(_without_none(tuple(self._as_member(one.members) for one in own)))

    def _as_member(self, members: dict[str, Level]) -> Level | None:
        caller = self._caller
        if caller.guest:
            return None
        names = (caller.name, *(f"{GROUP}{group}" for group in caller.groups))
        return _best(_without_none(tuple(members.get(name) for name in names)))

    def _shared(self, run: RunId | None) -> tuple[Level, ...]:
        if not self._caller.shares:
            return ()
        held = [one for one in self._people.shares() if one.id in self._caller.shares]
        return tuple(one.level for one in held if run in (None, one.run))


def _without_none(levels: Sequence[Level | None]) -> tuple[Level, ...]:
    """Without those that are none."""
    return tuple(level for level in levels if level is not None)


def _best(levels: Sequence[Level]) -> Level | None:
    return next((level for level in reversed(LEVELS) if level in levels), None)


def safely_highest(reach: Reach) -> Role | None:
    """As `Reach.highest`; None while the files cannot be read."""
    try:
        return reach.highest
    except HostError:
        return None
