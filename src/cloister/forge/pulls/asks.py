"""What a delivery of a forge's webhook says: who put which label where, or wrote what. Pure; all of it is untrusted."""

import re
from typing import NamedTuple, cast

import msgspec

from cloister.forge.hooks import look_up, repository
from cloister.forge.pulls.api import Spot

TEXT_CHARS = 20_000
_LINE_CHARS = 400
_LABELS = 50


class Heard(msgspec.Struct, frozen=True):
    """Something that a person did at an issue or a pull request."""

    path: str
    """The repository's path at the forge."""
    spot: Spot
    person: str
    """As `Talks.may_write` takes it."""
    who: str
    """As people read it."""
    id: str
    """The same for every delivery about this."""
    title: str = ""
    body: str = ""
    """The text that the issue or pull request began with."""
    said: str = ""
    """What the person wrote now; empty for a label."""
    labels: tuple[str, ...] = ()
    """Labels that were added."""
    all: bool = False
    """True: `labels` are all that are there now, because the forge does not say which is new."""
    url: str = ""
    ref: str | None = None
    """The commits of the pull request; None for an issue."""


class _News(NamedTuple):
    """What is new in a delivery."""

    id: str
    said: str = ""
    labels: tuple[str, ...] = ()
    all: bool = False


class _Found:
    """Reads a decoded delivery of any form without an error."""

    def __init__(self, body: object) -> None:
        self._body = body

    def text(self, *paths: str, most: int = _LINE_CHARS) -> str:
        for path in paths:
            value = look_up(self._body, path)
            if isinstance(value, str) and value:
                return value[:most] if len(value) <= most else value[: most - 1] + "…"
        return ""

    def number(self, *paths: str) -> int:
        values = (look_up(self._body, path) for path in paths)
        return next((one for one in values if type(one) is int and 0 < one < 2**53), 0)

    def has(self, path: str) -> bool:
        return look_up(self._body, path) is not None

    def last(self, path: str) -> "_Found":
        """The last entry of a list."""
        value = look_up(self._body, path)
        return _Found(cast("list[object]", value)[-1] if isinstance(value, list) and value else None)

    def names(self, path: str, field: str = "name") -> tuple[str, ...]:
        value = look_up(self._body, path)
        entries = cast("list[object]", value)[:_LABELS] if isinstance(value, list) else []
        found = [one if isinstance(one, str) else look_up(one, field) for one in entries]
        return tuple(one[:_LINE_CHARS] for one in found if isinstance(one, str))


def heard(kind: str, event: str, body: bytes) -> Heard | None:
    """What a delivery says; None if it is about something else. Raises `ValueError` for what is not JSON."""
    path = repository(kind, body)
    if path is None:
        return None
    found = _Found(msgspec.json.decode(body))
    match kind:
        case "github":
            return _github(found, event, path)
        case "gitea":
            return _gitea(found, event, path)
        case "gitlab":
            return _gitlab(found, path)
        case "bitbucket":
            return _bitbucket(found, event, path)
        case "pagure":
            return _pagure(found, event, path)
        case _:
            return None


def _github(found: _Found, event: str, path: str) -> Heard | None:
    action = found.text("action")
    pull = event in ("pull_request", "pull_request_review", "pull_request_review_comment")
    where = "pull_request" if pull else "issue"
    match event, action:
        case (("issues" | "pull_request"), "labeled"):
            label = found.text("label.name")
            news = _News(f"label {label} {found.text(f'{where}.updated_at')}", labels=(label,))
        case "issues", "opened":
            news = _News("opened", found.text("issue.body", most=TEXT_CHARS))
        case (("issue_comment" | "pull_request_review_comment"), "created"):
            said = found.text("comment.body", most=TEXT_CHARS)
            news = _News(f"{event} {found.number('comment.id')}", said)
        case "pull_request_review", "submitted":
            news = _News(f"review {found.number('review.id')}", found.text("review.body", most=TEXT_CHARS))
        case _:
            return None
    return _like_github(found, path, where, news)


def _gitea(found: _Found, event: str, path: str) -> Heard | None:
    pull = event.startswith("pull_request")
    where = "pull_request" if pull and found.has("pull_request") else "issue"
    labels, changed = found.names(f"{where}.labels"), found.text(f"{where}.updated_at")
    match found.text("action"):
        case "label_updated" | "label_cleared":
            news = _News(f"labels {changed}", labels=labels, all=True)
        case "opened":
            said = "" if pull else found.text("issue.body", most=TEXT_CHARS)
            news = _News("opened", said, labels, all=True)
        case "created" if found.has("comment.id"):
            said = found.text("comment.body", most=TEXT_CHARS)
            news = _News(f"comment {found.number('comment.id')}", said)
        case "reviewed":
            news = _News(f"review {changed}", found.text("review.content", most=TEXT_CHARS))
        case _:
            return None
    return _like_github(found, path, where, news)


def _like_github(found: _Found, path: str, where: str, news: _News) -> Heard | None:
    number, person = found.number(f"{where}.number"), found.text("sender.login")
    if not number or not person:
        return None
    pull = where == "pull_request" or found.has("issue.pull_request")
    return Heard(
        path,
        Spot("pull" if pull else "issue", number),
        person,
        person,
        f"{number} {news.id}",
        title=found.text(f"{where}.title"),
        body=found.text(f"{where}.body", most=TEXT_CHARS),
        said=news.said,
        labels=news.labels,
        all=news.all,
        url=found.text("comment.html_url", "review.html_url", f"{where}.html_url"),
        ref=f"refs/pull/{number}/head" if pull else None,
    )


def _gitlab(found: _Found, path: str) -> Heard | None:
    about = found.text("object_kind")
    at = {"issue": "object_attributes", "merge_request": "object_attributes"}.get(about, "")
    said, labels, mark = "", (), ""
    is_pull = about == "merge_request"
    if about == "note":
        is_pull = found.has("merge_request.iid")
        at = "merge_request" if is_pull else "issue"
        said, mark = (
            found.text("object_attributes.note", most=TEXT_CHARS),
            f"note {found.number('object_attributes.id')}",
        )
    elif about in ("issue", "merge_request"):
        opened = found.text("object_attributes.action") == "open"
        before = found.names("changes.labels.previous", "title")
        now = found.names("labels" if opened else "changes.labels.current", "title")
        labels = tuple(one for one in now if one not in before)
        said = found.text("object_attributes.description", most=TEXT_CHARS) if opened and not is_pull else ""
        mark = "opened" if opened else f"labels {found.text('object_attributes.updated_at')}"
    number, person = found.number(f"{at}.iid"), found.number("user.id")
    if not at or not number or not person:
        return None
    return Heard(
        path,
        Spot("pull" if is_pull else "issue", number),
        str(person),
        found.text("user.username"),
        f"{'!' if is_pull else '#'}{number} {mark}",
        title=found.text(f"{at}.title"),
        body=found.text(f"{at}.description", most=TEXT_CHARS),
        said=said,
        labels=labels,
        url=found.text("object_attributes.url"),
        ref=f"refs/merge-requests/{number}/head" if is_pull else None,
    )


def _bitbucket(found: _Found, event: str, path: str) -> Heard | None:
    """Bitbucket has no labels."""
    places = {"pullrequest:comment_created": "pullrequest", "issue:comment_created": "issue"}
    where, comment = places.get(event), found.number("comment.id")
    if event == "issue:created":
        where, said, mark = "issue", found.text("issue.content.raw", most=TEXT_CHARS), "opened"
    else:
        said, mark = found.text("comment.content.raw", most=TEXT_CHARS), f"comment {comment}"
    number = found.number(f"{where}.id")
    person = found.text("actor.uuid")
    if where is None or not number or not person:
        return None
    is_pull = where == "pullrequest"
    return Heard(
        path,
        Spot("pull" if is_pull else "issue", number),
        person,
        found.text("actor.nickname", "actor.display_name"),
        f"{where} {number} {mark}",
        title=found.text(f"{where}.title"),
        body=found.text(f"{where}.description", f"{where}.content.raw", most=TEXT_CHARS),
        said=said,
        url=found.text("comment.links.html.href", f"{where}.links.html.href"),
        ref=found.text("pullrequest.source.branch.name") or None if is_pull else None,
    )


def _pagure(found: _Found, event: str, path: str) -> Heard | None:
    topic = found.text("topic") or event
    is_pull = topic.startswith("pull-request.")
    where = next((one for one in ("pullrequest", "pull_request", "issue") if found.has(f"msg.{one}.id")), "")
    said, labels, mark = "", (), ""
    match topic.partition(".")[2]:
        case "tag.added":
            labels = found.names("msg.tags")
            mark = f"tags {','.join(labels)} {found.text('msg_id', f'msg.{where}.last_updated')}"
        case "new" if not is_pull:
            said, mark = found.text("msg.issue.content", most=TEXT_CHARS), "opened"
        case "comment.added":
            last = found.last(f"msg.{where}.comments")
            said, mark = last.text("comment", most=TEXT_CHARS), f"comment {last.number('id')}"
        case _:
            return None
    number, person = found.number(f"msg.{where}.id"), found.text("msg.agent")
    if not where or not number or not person:
        return None
    return Heard(
        path,
        Spot("pull" if is_pull else "issue", number),
        person,
        person,
        f"{number} {mark}",
        title=found.text(f"msg.{where}.title"),
        body=found.text(f"msg.{where}.content", f"msg.{where}.initial_comment", most=TEXT_CHARS),
        said=said,
        labels=labels,
        url=found.text(f"msg.{where}.full_url"),
        ref=f"refs/pull/{number}/head" if is_pull else None,
    )


_INLINE = re.compile(r"`[^`\n]{0,400}`")


def mentions(text: str, name: str) -> bool:
    """True if `text` addresses `@name` itself, and not in code or in a quotation."""
    own: list[str] = []
    fence = ""
    for line in text.split("\n"):
        start = line.lstrip()
        if fence:
            fence = "" if start.startswith(fence) else fence
        elif start[:3] in ("```", "~~~"):
            fence = start[:3]
        elif not start.startswith(">"):
            own.append(line)
    named = re.escape(name.strip("{}"))  # Bitbucket writes the id of an account in braces
    wanted = rf"(?<![\w@/.-])@(?:\{{{named}\}}|{named}(?![\w-]|\.\w|/))"
    return re.search(wanted, _INLINE.sub("", "\n".join(own)), re.IGNORECASE) is not None
