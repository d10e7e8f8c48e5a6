"""`cloister project` and `cloister share`: who sees, steers, approves and administers the runs of which repositories."""

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, RunName, put, put_json, put_list
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.people.projects import MadeShare, Project, ShareInfo
    from cloister.app.verbs.api import Verbs

project = typer.Typer(
    help="Projects with members, who alone see their runs: list, set, member, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
share = typer.Typer(
    help="Links that let others into one run: add, list, rm.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="PROJECT", help="The name of the project.")]
_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}


@project.command("list")
def list_projects(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List your projects; an admin sees all."""

    def line(one: "Project") -> str:
        return f"{one.name:<20} {len(one.members):>7}  {', '.join(one.repos)}"

    found = perform(ctx, lambda verbs: verbs.people.projects())
    none = (
        "No projects: everyone with a role sees all runs. Make one: cloister project set NAME --repo PATTERN"
    )
    put_list(found, as_json, f"{'PROJECT':<20} {'MEMBERS':>7}  REPOSITORIES", line, none)


@project.command("set")
def set_project(
    ctx: typer.Context,
    name: Name,
    repo: Annotated[
        list[str],
        typer.Option("--repo", metavar="PATTERN", help="Such as 'github.com/acme/*'; repeat for several."),
    ],
    as_json: AsJson = False,
) -> None:
    """Make a project, or replace its repositories. From now on only members and admins see their runs."""
    made = perform(ctx, lambda verbs: verbs.people.set_project(name, tuple(repo)))
    if as_json:
        put_json(made)
        return
    put(f"{made.name}: {', '.join(made.repos)}; {len(made.members)} members.")


@project.command("member")
def member(
    ctx: typer.Context,
    name: Name,
    who: Annotated[str, typer.Argument(metavar="WHO", help="A person, or group:NAME at the login provider.")],
    level: Annotated[
        Literal["sees", "steers", "approves", "administers", "none"],
        typer.Argument(
            metavar="LEVEL", help="sees, steers, approves or administers; none removes the member."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Add, change or remove a member of a project."""
    given = None if level == "none" else level
    made = perform(ctx, lambda verbs: verbs.people.set_member(name, who, given))
    if as_json:
        put_json(made)
        return
    put(f"{who} {level} {made.name}." if given else f"{who} is no member of {made.name} any more.")


@project.command("members")
def members(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """List the members of a project."""

    async def find(verbs: "Verbs") -> "Project":
        found = next((one for one in await verbs.people.projects() if one.name == name), None)
        if found is None:
            raise UserError(
                "no_such_project", f"You have no project {name[:60]!r}: see `cloister project list`."
            )
        return found

    found = perform(ctx, find)
    rows = tuple(sorted(found.members.items()))
    none = (
        f"{name} has no members: only admins see its runs. Add one: cloister project member {name} WHO sees"
    )
    put_list(rows, as_json, f"{'MEMBER':<41} LEVEL", lambda one: f"{one[0]:<41} {one[1]}", none)


@project.command("rm")
def remove_project(ctx: typer.Context, name: Name) -> None:
    """Remove a project. Everyone with a role on the server then sees its runs."""
    perform(ctx, lambda verbs: verbs.people.remove_project(name))
    put(f"Removed {name}.")


@share.command("add")
def add_share(
    ctx: typer.Context,
    run: RunName,
    role: Annotated[
        Literal["sees", "steers"],
        typer.Option("--role", help="Whether they only see the run, or also steer it."),
    ] = "sees",
    span: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it holds: 30m, 12h, or 7d; at most 90d.")
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Print a link that lets anyone who has it into one run. The secret in it is not stored."""
    from cloister.cli.client.open import transport

    found = _SPAN.fullmatch(span)
    if found is None:
        raise UserError("bad_share", f"{span[:20]!r} is no time: give 30m, 12h or 7d.")
    seconds = float(int(found[1]) * _SECONDS[found[2]])

    async def make(verbs: "Verbs") -> "tuple[MadeShare, str]":
        made = await verbs.people.share(run, role, seconds)
        return made, (await transport(ctx).find()).url

    made, url = perform(ctx, make, serve=True)
    address = f"{url}/share#{made.secret}"
    if as_json:
        put_json({"url": address, "share": made.share})
        return
    put(address)
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(made.share.until))
    put(
        f"Anyone who has it {role} {made.share.run} until {until}. End it: cloister share rm {made.share.run} {made.share.id}",
        file=sys.stderr,
    )


@share.command("list")
def list_shares(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """List the links to a run that hold."""

    def line(one: "ShareInfo") -> str:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.until))
        return f"{one.id:<16} {one.level:<7} {one.by:<30} {until}"

    found = perform(ctx, lambda verbs: verbs.people.shares(run))
    none = f"No links. Make one: cloister share add {run}"
    put_list(found, as_json, f"{'LINK':<16} {'ROLE':<7} {'BY':<30} UNTIL", line, none)


@share.command("rm")
def remove_share(
    ctx: typer.Context,
    run: RunName,
    link: Annotated[str, typer.Argument(metavar="LINK", help="As `cloister share list` shows it.")],
) -> None:
    """End a link, also for the browsers that it let in."""
    perform(ctx, lambda verbs: verbs.people.unshare(run, link))
    put(f"Ended {link}.")
