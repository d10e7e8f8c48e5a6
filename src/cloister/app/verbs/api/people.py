"""What a person can do with projects, their members, and links that share a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloister.app.verbs.declare import needs

if TYPE_CHECKING:
    from cloister.app.people.projects import Access, Level, MadeShare, Project, Shareable, ShareInfo


class PeopleVerbs(Protocol):
    """Who sees, steers, approves and administers the runs of which repositories.

    Unknown projects raise `UserError` (`no_such_project`).
    """

    @needs("viewer", "GET projects", anywhere=True)
    async def projects(self) -> tuple[Project, ...]:
        """The projects that the caller is a member of; of an admin all."""
        ...

    @needs("admin", "PUT projects/{name}")
    async def set_project(self, name: str, repos: tuple[str, ...]) -> Project:
        """Make a project, or replace its repositories; its members stay. Raises `UserError` (`bad_name`, `bad_project`)."""
        ...

    @needs("admin", "DELETE projects/{name}")
    async def remove_project(self, name: str) -> None:
        """Everyone with a role on the server then sees its runs."""
        ...

    @needs("admin", "POST projects/{name}/members", anywhere=True)
    async def set_member(self, name: str, who: str, level: Level | None = None) -> Project:
        """Add or change a member, or with None remove one, whose links to runs of the project end.

        For those who administer it. Raises `UserError` (`bad_member`, `denied`).
        """
        ...

    @needs("operator", "POST runs/{run}/shares")
    async def share(self, run: str, level: Shareable = "sees", seconds: float = 604_800.0) -> MadeShare:
        """A link that lets anyone who has it into one run, and never further than its maker.

        Raises `UserError` (`bad_share`, `denied`).
        """
        ...

    @needs("operator", "GET runs/{run}/shares")
    async def shares(self, run: str) -> tuple[ShareInfo, ...]:
        """The links to a run that hold."""
        ...

    @needs("operator", "DELETE runs/{run}/shares/{share}")
    async def unshare(self, run: str, share: str) -> None:
        """End a link, and the browsers that it let in. Its maker may, and who administers the run.

        Raises `UserError` (`no_such_share`, `denied`).
        """
        ...

    @needs("viewer", "GET runs/{run}/access")
    async def access(self, run: str) -> Access: ...
