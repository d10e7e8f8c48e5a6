"""Issues at the server of forges, with labels and comments, in the form of each forge."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.forge.pulls.wires import Forge, Pull, Reply, Request

BEGAN = datetime(2099, 1, 1, tzinfo=UTC)
"""The clock of the forge: comments are one second apart."""
PEOPLE = {"ann": 1, "eve": 2, "cloister": 3}


@dataclass
class Issue:
    """One issue as the server has it."""

    number: int
    title: str
    body: str
    who: str
    at: int
    """When it was opened, in seconds of the forge's clock."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Label → who put it there."""
    closed: bool = False


def when(at: int) -> str:
    return (BEGAN + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(at: int) -> str:
    return f"{(BEGAN + timedelta(seconds=at)).timestamp()}"


def spot_of(forge: "Forge", number: int) -> int:
    """Where comments at an issue are kept: see `Forge.comments`."""
    return number if forge.kind in ("github", "gitea") else -number


def _updated(forge: "Forge", spot: int, at: int = 0) -> int:
    return max([at, *(when for when, one in enumerate(forge.comments) if one[0] == spot)])


def _since(forge: "Forge", text: str, key: str = "") -> list[tuple["Issue | Pull", int]]:
    """What changed since a time, with the time of its change."""
    every = [(one, _updated(forge, spot_of(forge, one.number), one.at)) for one in forge.issues]
    every += [(one, _updated(forge, one.number)) for one in forge.pulls]
    stamp = seconds if key == "seconds" else when
    return [(one, at) for one, at in every if stamp(at) >= text]


def _labelled(forge: "Forge", label: str) -> list[tuple["Issue | Pull", int]]:
    return [(one, one.at) for one in forge.issues if label in one.labels and not one.closed]


def answer(forge: "Forge", asked: "Request") -> "Reply | None":
    """The answer to a request about issues; None if it is about something else."""
    if asked.method != "GET":
        return None
    match forge.kind:
        case "github" | "gitea":
            return _like_github(forge, asked)
        case "gitlab":
            return _gitlab(forge, asked)
        case "bitbucket":
            return _bitbucket(forge, asked)
        case _:
            return _pagure(forge, asked)


def _like_github(forge: "Forge", asked: "Request") -> "Reply | None":
    match asked.path.removeprefix("/repos/team/shop/").split("/"):
        case ["issues"]:
            label = asked.query.get("labels")
            found = _labelled(forge, label) if label else _since(forge, asked.query["since"])
            return 200, [_github_issue(forge, *one) for one in found]
        case ["issues", number, ("events" | "timeline") as where]:
            key = "event" if where == "events" else "type"
            (issue,) = [one for one in forge.issues if one.number == int(number)]
            return 200, [
                {
                    "id": 50 + issue.at + at,
                    key: "labeled" if key == "event" else "label",
                    "actor" if key == "event" else "user": {"login": who},
                    "label": {"name": label},
                    **({"body": "1"} if key == "type" else {}),
                    "created_at": when(issue.at),
                }
                for at, (label, who) in enumerate(issue.labels.items())
            ]
        case _:
            return None


def _github_issue(forge: "Forge", one: "Issue | Pull", at: int) -> dict[str, Any]:
    pull = not isinstance(one, Issue)
    return {
        "number": one.number,
        "title": one.title,
        "body": one.body,
        "user": {"login": "cloister" if pull else one.who},
        "html_url": f"{forge.url}/team/shop/{'pull' if pull else 'issues'}/{one.number}",
        "created_at": when(0 if pull else one.at),
        "updated_at": when(at),
        **({"pull_request": {"html_url": "x"}} if pull else {}),
    }


def _gitlab(forge: "Forge", asked: "Request") -> "Reply | None":
    where = asked.path.removeprefix("/projects/team%2Fshop/").split("/")
    match where:
        case [("issues" | "merge_requests") as kind] if "source_branch" not in asked.query:
            label = asked.query.get("labels")
            found = _labelled(forge, label) if label else _since(forge, asked.query["updated_after"])
            return 200, [
                _gitlab_topic(forge, *one) for one in found if isinstance(one[0], Issue) == (kind == "issues")
            ]
        case ["issues", number, "resource_label_events"]:
            (issue,) = [one for one in forge.issues if one.number == int(number)]
            return 200, [
                {
                    "id": 50 + issue.at + at,
                    "action": "add",
                    "user": {"id": PEOPLE[who], "username": who},
                    "label": {"name": label},
                    "created_at": when(issue.at),
                }
                for at, (label, who) in enumerate(issue.labels.items())
            ]
        case _:
            return None


def _gitlab_topic(forge: "Forge", one: "Issue | Pull", at: int) -> dict[str, Any]:
    who = one.who if isinstance(one, Issue) else "cloister"
    return {
        "iid": one.number,
        "title": one.title,
        "description": one.body,
        "author": {"id": PEOPLE[who], "username": who},
        "web_url": f"{forge.url}/team/shop/-/x/{one.number}",
        "created_at": when(one.at if isinstance(one, Issue) else 0),
        "updated_at": when(at),
        **({} if isinstance(one, Issue) else {"source_branch": one.branch}),
    }


def _bitbucket(forge: "Forge", asked: "Request") -> "Reply | None":
    kind = asked.path.removeprefix("/repositories/team/shop/")
    query = asked.query.get("q", "")
    if kind not in ("issues", "pullrequests") or not query.startswith("updated_on>="):
        return None
    since = query.removeprefix("updated_on>=").partition(" ")[0]
    return 200, {
        "values": [
            _bitbucket_topic(forge, *one)
            for one in _since(forge, since)
            if isinstance(one[0], Issue) == (kind == "issues")
        ]
    }


def _bitbucket_topic(forge: "Forge", one: "Issue | Pull", at: int) -> dict[str, Any]:
    who = one.who if isinstance(one, Issue) else "cloister"
    user = {"uuid": f"{{{who}}}", "nickname": who}
    return {
        "id": one.number,
        "title": one.title,
        "links": {"html": {"href": f"{forge.url}/team/shop/x/{one.number}"}},
        "created_on": when(one.at if isinstance(one, Issue) else 0),
        "updated_on": when(at),
        **(
            {"reporter": user, "content": {"raw": one.body}}
            if isinstance(one, Issue)
            else {"author": user, "description": one.body, "source": {"branch": {"name": one.branch}}}
        ),
    }


def _pagure(forge: "Forge", asked: "Request") -> "Reply | None":
    match asked.path.removeprefix("/team/shop/").split("/"):
        case ["issues"]:
            label = asked.query.get("tags")
            found = _labelled(forge, label) if label else _since(forge, asked.query["since"], "seconds")
            return 200, {"issues": [_pagure_issue(forge, one) for one, _ in found if isinstance(one, Issue)]}
        case ["issue", number]:
            for one in forge.issues:
                if one.number == int(number):
                    return 200, _pagure_issue(forge, one)
            return None
        case _:
            return None


def _pagure_issue(forge: "Forge", one: Issue) -> dict[str, Any]:
    tagged: list[dict[str, Any]] = [
        {
            "id": 500 + one.at + at,
            "comment": f"**Metadata Update from @{who}**:\n- Issue tagged with: {label}",
            "user": {"name": who},
            "notification": True,
            "date_created": seconds(one.at),
        }
        for at, (label, who) in enumerate(one.labels.items())
        if who != one.who or one.at
    ]
    return {
        "id": one.number,
        "title": one.title,
        "content": one.body,
        "user": {"name": one.who},
        "tags": [*one.labels],
        "date_created": seconds(one.at),
        "last_updated": seconds(_updated(forge, -one.number, one.at)),
        "comments": [
            *(
                {"id": at, "comment": text, "user": {"name": who}, "date_created": seconds(at)}
                for at, (spot, who, text, _, _) in enumerate(forge.comments)
                if spot == -one.number
            ),
            *tagged,
        ],
    }
