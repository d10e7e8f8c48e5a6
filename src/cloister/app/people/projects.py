"""Projects, their members, and links that share one run: who may see and steer what, beside the roles of the server.

A repository that a project names belongs to its members and to admins; all others belong to everyone with a role here.
The files are read again whenever they changed, so that every change holds at once.
"""

import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from cloister.app.tokens import digest
from cloister.core.addresses import canonical_repository, repository_matches
from cloister.core.errors import UserError
from cloister.core.ids import RunId
from cloister.core.requests import Role
from cloister.core.system.json_file import JsonFile

Level = Literal["sees", "steers", "approves", "administers"]
LEVELS: dict[Level, int] = {"sees": 0, "steers": 1, "approves": 2, "administers": 3}
Shareable = Literal["sees", "steers"]

PROJECTS, MEMBERS, REPOS, SHARES, OF_RUN = 500, 2_000, 100, 5_000, 50
"""Of a server: projects, and links that hold. Of a project: members and patterns. Links of a run."""
SHARE_SECONDS_MAX = 90 * 86_400.0
GROUP = "group:"
"""Begins the name of a member that is a group at the login provider."""
GUEST = "guest "
"""Begins the name of a browser that a link let in."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_FILE_BYTES = 8_388_608


class Project(msgspec.Struct, frozen=True):
    """Repositories, and who works on them."""

    name: str
    repos: tuple[str, ...]
    """Patterns: `host/path` of an address, or a directory, with `*` for any characters."""
    members: dict[str, Level] = {}
    """A person's name, or `group:NAME` at the login provider."""

    def has(self, repo: str) -> bool:
        """Also what is below one of its directories, by whatever path."""
        return any(repository_matches(match, name) for name in _places(repo) for match in self.repos)


def _places(repo: str) -> tuple[str, ...]:
    """The spellings of a repository that patterns are matched with: a directory also by its real path and those above."""
    name = canonical_repository(repo)
    if not name.startswith(("/", ".", "~")):
        return (repo,)
    real = Path(name).expanduser().resolve()
    return (repo, str(real), *(str(above) for above in real.parents))


class Share(msgspec.Struct, frozen=True):
    """A link to one run, without its secret."""

    id: str
    run: RunId
    level: Shareable
    by: str
    sha256: str
    since: float
    until: float


class ShareInfo(msgspec.Struct, frozen=True):
    """A link to a run that holds."""

    id: str
    run: str
    level: Shareable
    by: str
    """Who made it."""
    since: float
    until: float
    """Unix seconds."""


class MadeShare(msgspec.Struct, frozen=True):
    """A new link; `secret` is shown only here. It belongs behind the `#` of the address `/share`."""

    share: ShareInfo
    secret: str


class Access(msgspec.Struct, frozen=True):
    """What the caller may do with a run."""

    level: Level
    role: Role
    """What the level means for verbs."""
    approves: Role | None
    """The highest approver of a rule that the caller can be; None: they can only deny."""
    projects: tuple[str, ...]
    """The projects that the run's repositories belong to; none: everyone with a role on the server sees it."""
    shares: bool
    """Whether the caller may make links to it."""


class _Projects(msgspec.Struct, frozen=True):
    projects: tuple[Project, ...] = ()


class _Shares(msgspec.Struct, frozen=True):
    shares: tuple[Share, ...] = ()


class People:
    """The projects and the links of one data directory."""

    def __init__(self, data_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._projects = JsonFile(data_dir / "projects.json", _Projects(), "projects_broken", _FILE_BYTES)
        self._shares = JsonFile(data_dir / "shares.json", _Shares(), "shares_broken", _FILE_BYTES)
        self._now = now

    def projects(self) -> tuple[Project, ...]:
        """Raises `HostError` (`projects_broken`): then only admins see anything."""
        return self._projects.get().projects

    def project(self, name: str) -> Project:
        """Raises `UserError` (`no_such_project`)."""
        found = next((one for one in self.projects() if one.name == name), None)
        if found is None:
            raise no_such_project(name)
        return found

    def set_project(self, name: str, repos: tuple[str, ...]) -> Project:
        """Make a project, or replace its patterns. Raises `UserError` (`bad_name`, `bad_project`)."""
        if not _NAME.fullmatch(name):
            raise UserError(
                "bad_name",
                f"{name[:60]!r} cannot name a project: use up to 40 of a-z, 0-9, dot, dash, underscore.",
            )
        if not 1 <= len(repos) <= REPOS or not all(one.strip() and len(one) <= 1_000 for one in repos):
            raise UserError(
                "bad_project",
                f"A project has 1 to {REPOS} repositories, such as github.com/acme/* or /srv/git/ledger.",
            )
        made: list[Project] = []

        def put(file: _Projects) -> _Projects:
            others = tuple(one for one in file.projects if one.name != name)
            old = next((one for one in file.projects if one.name == name), None)
            if old is None and len(others) >= PROJECTS:
                raise UserError("bad_project", f"There are {PROJECTS} projects already: remove some.")
            made.append(Project(name, repos, {} if old is None else old.members))
            return _Projects((*others, made[0]))

        self._projects.change(put)
        return made[0]

    def remove_project(self, name: str) -> None:
        """Its repositories are then everyone's who has a role here. Raises `UserError` (`no_such_project`)."""

        def remove(file: _Projects) -> _Projects:
            left = tuple(one for one in file.projects if one.name != name)
            if len(left) == len(file.projects):
                raise no_such_project(name)
            return _Projects(left)

        self._projects.change(remove)

    def set_member(self, name: str, who: str, level: Level | None) -> Project:
        """Add, change or, with None, remove a member. Raises `UserError` (`no_such_project`, `bad_member`)."""
        made: list[Project] = []
        if (
            not who.isprintable()
            or not 1 <= len(who.removeprefix(GROUP).strip()) <= 256
            or who.startswith(GUEST)
        ):
            raise UserError("bad_member", "A member is a person's name, or group:NAME at the login provider.")

        def put(file: _Projects) -> _Projects:
            old = next((one for one in file.projects if one.name == name), None)
            if old is None:
                raise no_such_project(name)
            members = {one: held for one, held in old.members.items() if one != who}
            if level is None and len(members) == len(old.members):
                raise UserError("bad_member", f"{who[:60]!r} is no member of {name}.")
            members |= {} if level is None else {who: level}
            if len(members) > MEMBERS:
                raise UserError("bad_member", f"A project has at most {MEMBERS:,} members: name a group.")
            made.append(structs.replace(old, members=members))
            return _Projects(tuple(made[0] if one.name == name else one for one in file.projects))

        self._projects.change(put)
        return made[0]

    def share(self, run: RunId, level: Shareable, by: str, seconds: float) -> tuple[Share, str]:
        """A link to a run and its secret, which is not stored. Raises `UserError` (`bad_share`)."""
        if not 60 <= seconds <= SHARE_SECONDS_MAX:
            raise UserError("bad_share", "A link holds for a minute to 90 days.")
        secret, now = secrets.token_urlsafe(32), self._now()
        made = Share(
            f"sh-{secrets.token_hex(6)}", run, level, by, digest(secret.encode("ascii")), now, now + seconds
        )

        def add(file: _Shares) -> _Shares:
            left = self._holding(file)
            if len(left) >= SHARES or sum(one.run == run for one in left) >= OF_RUN:
                raise UserError(
                    "bad_share", f"There are too many links already, at most {OF_RUN} per run: end some."
                )
            return _Shares((*left, made))

        self._shares.change(add)
        return made, secret

    def shares(self, run: RunId | None = None) -> tuple[Share, ...]:
        """The links that hold."""
        return tuple(one for one in self._holding(self._shares.get()) if run in (None, one.run))

    def opened(self, secret: bytes) -> Share:
        """The link that has this secret. Raises `UserError` (`bad_login`)."""
        given, found = digest(secret), None
        for one in self.shares():
            if hmac.compare_digest(one.sha256, given):
                found = one
        if found is None:
            raise UserError("bad_login", "This link has ended or is wrong: ask for a new one.")
        return found

    def end_shares(self, ids: Collection[str] = (), by: str | None = None) -> None:
        """End links: those with these ids, and all that a person made."""

        def end(file: _Shares) -> _Shares:
            return _Shares(tuple(one for one in self._holding(file) if one.id not in ids and one.by != by))

        if self.shares():
            self._shares.change(end)

    def _holding(self, file: _Shares) -> tuple[Share, ...]:
        # A clock that was set back must not prolong a link.
        now = self._now()
        return tuple(one for one in file.shares if one.since - 60 <= now < one.until)


def no_such_project(name: str) -> UserError:
    return UserError(
        "no_such_project", f"There is no project {name[:60]!r}: `cloister project list` shows them."
    )


@lru_cache(maxsize=8)
def people_in(data_dir: Path) -> People:
    """The people of a data directory; its files are read again only when they changed."""
    return People(data_dir)
