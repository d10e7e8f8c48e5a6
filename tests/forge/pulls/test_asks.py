"""Deliveries that ask for work, in the form of each forge: who did what where, and whom a text addresses."""

import json
from typing import Any

import pytest

from cloister.forge.pulls.api import Spot
from cloister.forge.pulls.asks import TEXT_CHARS, Heard, heard, mentions

ISSUE = {"number": 4, "title": "Totals", "body": "It is wrong.", "updated_at": "2026-01-01T00:00:00Z"}
REPO = {"full_name": "team/shop"}
ANN = {"login": "ann"}
NOTE = {"id": 8, "note": "@bot fix it", "url": "http://x/8", "noteable_type": "Issue"}
PROJECT = {"path_with_namespace": "team/shop"}
GITLAB_ANN = {"id": 1, "username": "ann"}
PAGURE = {"project": {"fullname": "team/shop"}, "id": 4, "title": "Totals", "content": "It is wrong."}

MENTIONS: list[tuple[str, str, dict[str, Any], str, str]] = [
    (
        *("github", "issue_comment"),
        {"action": "created", "comment": {"id": 8, "body": "@bot fix it"}, "issue": ISSUE},
        *("ann", "4 issue_comment 8"),
    ),
    (
        *("gitea", "issue_comment"),
        {"action": "created", "comment": {"id": 8, "body": "@bot fix it"}, "issue": ISSUE},
        *("ann", "4 comment 8"),
    ),
    (
        *("gitlab", "Note Hook"),
        {
            "object_kind": "note",
            "user": GITLAB_ANN,
            "project": PROJECT,
            "object_attributes": NOTE,
            "issue": {"iid": 4, "title": "Totals", "description": "It is wrong."},
        },
        *("1", "#4 note 8"),
    ),
    (
        *("bitbucket", "issue:comment_created"),
        {
            "actor": {"uuid": "{ann}", "nickname": "ann"},
            "comment": {"id": 8, "content": {"raw": "@bot fix it"}},
            "issue": {"id": 4, "title": "Totals", "content": {"raw": "It is wrong."}},
        },
        *("{ann}", "issue 4 comment 8"),
    ),
    (
        *("pagure", ""),
        {
            "topic": "issue.comment.added",
            "msg": {
                "agent": "ann",
                "issue": {
                    **PAGURE,
                    "comments": [{"id": 7, "comment": "no"}, {"id": 8, "comment": "@bot fix it"}],
                },
            },
        },
        *("ann", "4 comment 8"),
    ),
]


def _heard(kind: str, event: str, body: dict[str, Any]) -> Heard | None:
    return heard(kind, event, json.dumps({"repository": REPO, "sender": ANN, **body}).encode())


@pytest.mark.parametrize(("kind", "event", "body", "person", "key"), MENTIONS, ids=lambda one: str(one)[:12])
def test_a_comment_is_heard_with_its_author_its_issue_and_one_name(
    kind: str, event: str, body: dict[str, Any], person: str, key: str
) -> None:
    found = _heard(kind, event, body)
    assert found is not None
    assert (found.path, found.spot, found.person, found.who, found.id) == (
        *("team/shop", Spot("issue", 4), person),
        *("ann", key),
    )
    assert (found.title, found.body, found.said, found.ref) == ("Totals", "It is wrong.", "@bot fix it", None)


LABELS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("github", "issues", {"action": "labeled", "label": {"name": "agent"}, "issue": ISSUE}, False),
    (
        *("gitea", "issues"),
        {"action": "label_updated", "issue": {**ISSUE, "labels": [{"name": "agent"}]}},
        True,
    ),
    (
        *("gitlab", "Issue Hook"),
        {
            "object_kind": "issue",
            "user": GITLAB_ANN,
            "project": PROJECT,
            "object_attributes": {"iid": 4, "title": "Totals", "action": "update"},
            "changes": {
                "labels": {"previous": [{"title": "old"}], "current": [{"title": "old"}, {"title": "agent"}]}
            },
        },
        False,
    ),
    (
        "pagure",
        "",
        {"topic": "issue.tag.added", "msg": {"agent": "ann", "issue": PAGURE, "tags": ["agent"]}},
        False,
    ),
]


@pytest.mark.parametrize(("kind", "event", "body", "listed"), LABELS, ids=[one[0] for one in LABELS])
def test_a_label_that_was_added_is_heard(
    kind: str, event: str, body: dict[str, Any], *, listed: bool
) -> None:
    found = _heard(kind, event, body)
    assert found is not None
    assert (found.labels, found.all, found.said, found.spot) == (("agent",), listed, "", Spot("issue", 4))


PULLS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        *("github", "issue_comment"),
        {
            "action": "created",
            "comment": {"id": 1, "body": "x"},
            "issue": {**ISSUE, "pull_request": {"url": "u"}},
        },
        "refs/pull/4/head",
    ),
    (
        "github",
        "pull_request",
        {"action": "labeled", "label": {"name": "x"}, "pull_request": ISSUE},
        "refs/pull/4/head",
    ),
    (
        *("gitlab", "Note Hook"),
        {
            "object_kind": "note",
            "user": GITLAB_ANN,
            "project": PROJECT,
            "object_attributes": NOTE,
            "merge_request": {"iid": 4},
        },
        "refs/merge-requests/4/head",
    ),
    (
        *("bitbucket", "pullrequest:comment_created"),
        {
            "actor": {"uuid": "{ann}", "nickname": "ann"},
            "comment": {"id": 8, "content": {"raw": "x"}},
            "pullrequest": {"id": 4, "source": {"branch": {"name": "fix"}}},
        },
        "fix",
    ),
]


@pytest.mark.parametrize(("kind", "event", "body", "ref"), PULLS, ids=[one[0] for one in PULLS])
def test_a_pull_request_names_its_commits(kind: str, event: str, body: dict[str, Any], ref: str) -> None:
    found = _heard(kind, event, body)
    assert found is not None
    assert (found.spot, found.ref) == (Spot("pull", 4), ref)


@pytest.mark.parametrize("kind", ["github", "gitea", "gitlab", "bitbucket", "pagure"])
@pytest.mark.parametrize(
    "body",
    [
        {"action": "created", "comment": 5, "issue": []},
        {"action": "labeled", "issue": {"number": -1}},
        {"object_kind": "note", "object_attributes": {}, "user": {"id": True}, "project": PROJECT},
        {"topic": "issue.comment.added", "msg": {"issue": {"id": 4, "comments": {}}, "project": REPO}},
        {"action": "edited", "issue": ISSUE},
        {},
    ],
)
def test_what_has_another_form_asks_for_nothing(kind: str, body: dict[str, Any]) -> None:
    assert _heard(kind, "issue_comment", body) is None


def test_a_comment_of_a_megabyte_is_cut() -> None:
    body = {"action": "created", "comment": {"id": 8, "body": "x" * 1_000_000}, "issue": ISSUE}
    found = _heard("github", "issue_comment", body)
    assert found is not None
    assert len(found.said) == TEXT_CHARS


@pytest.mark.parametrize(
    ("text", "addressed"),
    [
        ("@bot please", True),
        ("Hello @Bot, look", True),
        ("(@bot)", True),
        ("@bot.", True),
        ("@{bot} please", True),
        ("@{bot", False),
        ("@bottom", False),
        ("@bot-two", False),
        ("me@bot", False),
        ("https://example.org/@bot", False),
        ("@bot/team", False),
        ("@bot.example.org", False),
        ("`@bot`", False),
        ("> @bot fix\nno", False),
        ("```\n@bot\n```\nnothing", False),
        ("```\ncode\n```\n@bot now", True),
    ],
)
def test_a_mention_is_addressed_to_the_name_itself(text: str, addressed: bool) -> None:
    assert mentions(text, "bot") is addressed
