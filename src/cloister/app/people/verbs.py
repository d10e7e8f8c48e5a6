"""The verbs of projects, members and links in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from cloister.app.people.projects import LEVELS, Access, MadeShare, People, ShareInfo, people_in
from cloister.app.verbs.api.people import PeopleVerbs
from cloister.app.verbs.local import Group, checked
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.people.projects import Level, Project, Share, Shareable


@checked(PeopleVerbs)
class LocalPeople(Group):
    """Implements `PeopleVerbs`."""

    @property
    def _people(self) -> People:
        return people_in(self._settings.data_dir)

    async def projects(self) -> tuple[Project, ...]:
        reach = self.reach
        own = None if self.caller.is_admin else set(reach.member_of())
        return tuple(one for one in self._people.projects() if own is None or one.name in own)

    async def set_project(self, name: str, repos: tuple[str, ...]) -> Project:
        made = await to_thread.run_sync(self._people.set_project, name, tuple(repos))
        await self._note("ProjectSet", name=name, repos=list(made.repos))
        return made

    async def remove_project(self, name: str) -> None:
        await to_thread.run_sync(self._people.remove_project, name)
        await self._note("ProjectRemoved", name=name)

    async def set_member(self, name: str, who: str, level: Level | None = None) -> Project:
        if not self.caller.is_admin and self.reach.in_project(name) != "administers":
            raise UserError("denied", f"{self.caller.name} administers no project {name[:60]!r}.")
        project = self._people.project(name)
        made = await to_thread.run_sync(self._people.set_member, name, who, level)
        await self._note("MemberSet", project=name, member=who, level=level or "none")
        if LEVELS.get(level or "sees", 0) < LEVELS["steers"]:
            await self._end_links_of(who, project)
        return made

    async def _end_links_of(self, who: str, project: Project) -> None:
        """A link lasts no longer than what its maker may do."""
        own = {one.id: one.run for one in self._people.shares() if one.by == who}
        rows = {run: await self._log.row(run, told=False) for run in own.values()}
        ended = [one for one, run in own.items() if any(project.has(repo) for repo in rows[run].repos)]
        if ended:
            await to_thread.run_sync(self._people.end_shares, ended)
            await self._note("SharesEnded", member=who, project=project.name, shares=ended)

    async def share(self, run: str, level: Shareable = "sees", seconds: float = 604_800.0) -> MadeShare:
        found, standing = await self.standing(run, "operator")
        if self.caller.guest or LEVELS[level] > LEVELS[standing.level]:
            raise UserError("denied", f"{self.caller.name} may not share {found} so.")
        made, secret = await to_thread.run_sync(
            self._people.share, found, level, self.caller.name, float(seconds)
        )
        await self._note("ShareMade", run=found, share=made.id, level=level, until=made.until)
        return MadeShare(_info(made), secret)

    async def shares(self, run: str) -> tuple[ShareInfo, ...]:
        found, _ = await self.standing(run, "operator")
        return tuple(_info(one) for one in self._people.shares(found))

    async def unshare(self, run: str, share: str) -> None:
        found, standing = await self.standing(run, "operator")
        one = next((each for each in self._people.shares(found) if each.id == share), None)
        if one is None:
            raise UserError("no_such_share", f"There is no link {share[:60]!r} to {found}.")
        if standing.level != "administers" and (self.caller.guest or one.by != self.caller.name):
            raise UserError("denied", f"Only {one.by}, or who administers the run, may end this link.")
        await to_thread.run_sync(self._people.end_shares, [share])
        await self._note("ShareEnded", run=found, share=share)

    async def access(self, run: str) -> Access:
        found, standing = await self.standing(run)
        row = await self._log.row(found, told=False)
        names = [one.name for one in self._people.projects() if any(one.has(repo) for repo in row.repos)]
        visible = names if self.caller.is_admin else [*set(names) & set(self.reach.member_of())]
        shares = not self.caller.guest and LEVELS[standing.level] >= LEVELS["steers"]
        return Access(standing.level, standing.role, standing.approves, tuple(sorted(visible)), shares)


def _info(share: Share) -> ShareInfo:
    return ShareInfo(share.id, share.run, share.level, share.by, share.since, share.until)
