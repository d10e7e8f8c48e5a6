"""A server that speaks the APIs of five forges over one state, and git over HTTP with the forge's token.

Each wire answers in the form of its forge and rejects fields that this forge does not know.
"""

import base64
import json
import re
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.forge.git_http import answer

TOKEN = "token-0123456789-abcdef"
Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]


@dataclass
class Pull:
    """One pull request as the server has it."""

    number: int
    branch: str
    onto: str
    title: str
    body: str
    draft: bool = False
    state: str = "open"
    labels: list[Any] = field(default_factory=list[Any])
    reviewers: list[Any] = field(default_factory=list[Any])


@dataclass
class Forge:
    """The state behind every wire: one repository `team/shop`."""

    kind: str
    root: Path
    """Repositories as `<root>/team/shop.git`."""
    pulls: list[Pull] = field(default_factory=list[Pull])
    comments: list[tuple[int, str, str, str, int]] = field(
        default_factory=list[tuple[int, str, str, str, int]]
    )
    """(pull, who, text, path, line)."""
    jobs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(name, `passed` | `failed` | `running`)."""
    log: str = "FAILED tests/test_cart.py::test_total\n"
    writers: tuple[str, ...] = ("ann",)
    may_push: bool = True
    drafts: bool = True
    requests: list[Request] = field(default_factory=list[Request])
    faults: list[Callable[[Request], Reply | None]] = field(
        default_factory=list[Callable[[Request], Reply | None]]
    )
    """Asked first; an answer stands instead of the forge's own."""
    lost: set[str] = field(default_factory=set[str])
    """Methods whose next request is carried out and its reply lost."""
    url: str = ""

    def commit(self, branch: str) -> str:
        shown = subprocess.run(
            ["git", "-C", str(self.root / "team/shop.git"), "rev-parse", f"refs/heads/{branch}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return shown.stdout.strip() if shown.returncode == 0 else "0" * 40

    def open(self, branch: str, onto: str, title: str, body: str, *, draft: bool = False) -> Pull:
        pull = Pull(len(self.pulls) + 1, branch, onto, title, body, draft)
        self.pulls.append(pull)
        return pull

    def at(self, number: str) -> Pull:
        return self.pulls[int(number) - 1]

    def exists(self, branch: str) -> bool:
        return any(one.branch == branch and one.state == "open" for one in self.pulls)


def only(body: dict[str, Any], *names: str) -> None:
    unknown = set(body) - set(names)
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")


# GitHub.


def _github_pull(forge: Forge, pull: Pull) -> dict[str, Any]:
    return {
        "number": pull.number,
        "html_url": f"{forge.url}/team/shop/pull/{pull.number}",
        "state": "open" if pull.state == "open" else "closed",
        "merged_at": "2026-01-01T00:00:00Z" if pull.state == "merged" else None,
        "draft": pull.draft,
        "title": pull.title,
        "node_id": f"PR_{pull.number}",
        "head": {"ref": pull.branch, "sha": forge.commit(pull.branch)},
    }


def github(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/graphql":
        only(body, "query", "variables")
        pull = forge.at(body["variables"]["id"].removeprefix("PR_"))
        pull.draft = "convertPullRequestToDraft" in body["query"]
        return 200, {"data": {}}
    if not asked.path.startswith("/repos/team/shop"):
        return 404, {"message": "Not Found"}
    match asked.method, asked.path.removeprefix("/repos/team/shop").strip("/").split("/"):
        case "GET", [""]:
            return 200, {"default_branch": "main", "permissions": {"push": forge.may_push}}
        case "GET", ["pulls"]:
            branch = asked.query["head"].removeprefix("team:")
            return 200, [_github_pull(forge, one) for one in forge.pulls if one.branch == branch]
        case "POST", ["pulls"]:
            only(body, "title", "body", "head", "base", "draft")
            if body["draft"] and not forge.drafts:
                return 422, {"message": "Draft pull requests are not supported in this repository."}
            if forge.exists(body["head"]):
                return 422, {
                    "message": "Validation Failed",
                    "errors": [{"message": "A pull request already exists"}],
                }
            pull = forge.open(body["head"], body["base"], body["title"], body["body"], draft=body["draft"])
            return 201, _github_pull(forge, pull)
        case "GET", ["pulls", number]:
            return 200, _github_pull(forge, forge.at(number))
        case "PATCH", ["pulls", number]:
            only(body, "title", "body", "state")
            pull = forge.at(number)
            pull.title, pull.body = body.get("title", pull.title), body.get("body", pull.body)
            pull.state = body.get("state", pull.state)
            return 200, _github_pull(forge, pull)
        case "POST", ["issues", number, "labels"]:
            forge.at(number).labels = body["labels"]
            return 200, []
        case "POST", ["pulls", number, "requested_reviewers"]:
            forge.at(number).reviewers = body["reviewers"]
            return 201, {}
        case "POST", ["issues", number, "comments"]:
            forge.comments.append((int(number), "cloister", body["body"], "", 0))
            return 201, {"id": len(forge.comments)}
        case "GET", ["issues", number, "comments"]:
            return 200, _github_comments(forge, number, lines=False)
        case "GET", ["pulls", number, "comments"]:
            return 200, _github_comments(forge, number, lines=True)
        case "GET", ["pulls", _, "reviews"]:
            return 200, [
                {"id": 900, "user": {"login": "ann"}, "body": "", "submitted_at": "2026-01-01T00:00:00Z"}
            ]
        case "GET", ["collaborators", who, "permission"]:
            return 200, {"permission": "write" if who in forge.writers else "read"}
        case "GET", ["commits", _, "check-runs"]:
            return 200, {
                "total_count": len(forge.jobs),
                "check_runs": [_github_job(n, *job) for n, job in enumerate(forge.jobs)],
            }
        case "GET", ["commits", _, "status"]:
            return 200, {"state": "pending", "statuses": []}
        case "GET", ["actions", "jobs", _, "logs"]:
            return 200, forge.log
        case _:
            return 404, {"message": "Not Found"}


def _github_comments(forge: Forge, number: str, *, lines: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": at,
            "user": {"login": who, "type": "User"},
            "body": text,
            "created_at": f"2026-01-01T00:00:{at:02}Z",
            **({"path": path, "line": line} if path else {}),
        }
        for at, (pull, who, text, path, line) in enumerate(forge.comments)
        if pull == int(number) and bool(path) == lines
    ]


def _github_job(number: int, name: str, state: str) -> dict[str, Any]:
    done = state != "running"
    return {
        "id": number + 1,
        "name": name,
        "status": "completed" if done else "in_progress",
        "conclusion": {"passed": "success", "failed": "failure"}.get(state),
        "html_url": "http://ci",
        "app": {"slug": "github-actions"},
    }


# GitLab.


def _gitlab_merge(forge: Forge, pull: Pull) -> dict[str, Any]:
    return {
        "iid": pull.number,
        "web_url": f"{forge.url}/team/shop/-/merge_requests/{pull.number}",
        "state": {"open": "opened"}.get(pull.state, pull.state),
        "source_branch": pull.branch,
        "sha": forge.commit(pull.branch),
        "draft": pull.title.startswith("Draft: "),
    }


def gitlab(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/users":
        return 200, [{"id": 7, "username": asked.query["username"]}]
    if not asked.path.startswith("/projects/team%2Fshop"):
        return 404, {"message": "404 Project Not Found"}
    match asked.method, asked.path.removeprefix("/projects/team%2Fshop").strip("/").split("/"):
        case "GET", [""]:
            level = 40 if forge.may_push else 20
            return 200, {
                "default_branch": "main",
                "permissions": {"project_access": {"access_level": level}, "group_access": None},
            }
        case "GET", ["merge_requests"]:
            branch = asked.query["source_branch"]
            return 200, [_gitlab_merge(forge, one) for one in forge.pulls if one.branch == branch]
        case "POST", ["merge_requests"]:
            only(
                body,
                "source_branch",
                "target_branch",
                "title",
                "description",
                "labels",
                "reviewer_ids",
                "remove_source_branch",
            )
            if forge.exists(body["source_branch"]):
                return 409, {
                    "message": ["Another open merge request already exists for this source branch: !1"]
                }
            pull = forge.open(
                body["source_branch"], body["target_branch"], body["title"], body["description"]
            )
            pull.labels, pull.reviewers = (
                body["labels"].split(",") if body["labels"] else [],
                body["reviewer_ids"],
            )
            return 201, _gitlab_merge(forge, pull)
        case "GET", ["merge_requests", number]:
            return 200, _gitlab_merge(forge, forge.at(number))
        case "PUT", ["merge_requests", number]:
            only(body, "title", "description", "state_event")
            pull = forge.at(number)
            pull.title, pull.body = body.get("title", pull.title), body.get("description", pull.body)
            pull.state = "closed" if body.get("state_event") == "close" else pull.state
            return 200, _gitlab_merge(forge, pull)
        case "POST", ["merge_requests", number, "notes"]:
            forge.comments.append((int(number), "cloister", body["body"], "", 0))
            return 201, {"id": 1}
        case "GET", ["merge_requests", number, "notes"]:
            people = {"ann": 1, "eve": 2, "cloister": 3}
            notes: list[dict[str, Any]] = [
                {"id": 90, "body": "added 1 commit", "author": {"id": 1, "username": "ann"}, "system": True}
            ]
            for at, (pull, who, text, path, line) in enumerate(forge.comments):
                if pull == int(number):
                    position = {"position": {"new_path": path, "new_line": line}} if path else {}
                    notes.append(
                        {
                            "id": at,
                            "body": text,
                            "author": {"id": people[who], "username": who},
                            "system": False,
                            **position,
                        }
                    )
            return 200, notes
        case "GET", ["members", "all", who]:
            return (200, {"access_level": 30}) if who == "1" else (404, {"message": "404 Not found"})
        case "GET", ["merge_requests", _, "pipelines"]:
            return 200, [{"id": 4, "status": "failed"}] if forge.jobs else []
        case "GET", ["pipelines", "4", "jobs"]:
            words = {"passed": "success", "failed": "failed", "running": "running"}
            return 200, [
                {
                    "id": at + 1,
                    "name": name,
                    "status": words[state],
                    "web_url": "http://ci",
                    "allow_failure": False,
                }
                for at, (name, state) in enumerate(forge.jobs)
            ]
        case "GET", ["jobs", _, "trace"]:
            return 200, forge.log
        case _:
            return 404, {"error": "404 Not Found"}


# Gitea and Forgejo.


def _gitea_pull(forge: Forge, pull: Pull) -> dict[str, Any]:
    return {
        "number": pull.number,
        "html_url": f"{forge.url}/team/shop/pulls/{pull.number}",
        "state": "open" if pull.state == "open" else "closed",
        "merged": pull.state == "merged",
        "title": pull.title,
        "draft": pull.title.startswith("WIP:"),
        "head": {"ref": pull.branch, "sha": forge.commit(pull.branch)},
    }


def gitea(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if not asked.path.startswith("/repos/team/shop"):
        return 404, {"message": "The target couldn't be found."}
    match asked.method, asked.path.removeprefix("/repos/team/shop").strip("/").split("/"):
        case "GET", [""]:
            return 200, {"default_branch": "main", "permissions": {"push": forge.may_push}}
        case "GET", ["pulls"]:
            return 200, [_gitea_pull(forge, one) for one in forge.pulls]
        case "GET", ["labels"]:
            return 200, [{"id": 5, "name": "agent"}]
        case "POST", ["pulls"]:
            only(body, "title", "body", "head", "base", "labels")
            if forge.exists(body["head"]):
                return 409, {"message": "pull request already exists for these targets"}
            pull = forge.open(body["head"], body["base"], body["title"], body["body"])
            pull.labels = body.get("labels", [])
            return 201, _gitea_pull(forge, pull)
        case "POST", ["pulls", number, "requested_reviewers"]:
            forge.at(number).reviewers = body["reviewers"]
            return 201, []
        case "GET", ["pulls", number]:
            return 200, _gitea_pull(forge, forge.at(number))
        case "PATCH", ["pulls", number]:
            only(body, "title", "body", "state")
            pull = forge.at(number)
            pull.title, pull.body = body.get("title", pull.title), body.get("body", pull.body)
            pull.state = body.get("state", pull.state)
            return 201, _gitea_pull(forge, pull)
        case "POST", ["issues", number, "comments"]:
            forge.comments.append((int(number), "cloister", body["body"], "", 0))
            return 201, {"id": 1}
        case "GET", ["issues", number, "comments"]:
            return 200, [
                _gitea_comment(at, who, text)
                for at, (pull, who, text, path, _) in enumerate(forge.comments)
                if pull == int(number) and not path
            ]
        case "GET", ["pulls", number, "reviews"]:
            lines = [one for one in forge.comments if one[0] == int(number) and one[3]]
            return 200, [
                {
                    "id": 9,
                    "body": "",
                    "user": {"login": "ann"},
                    "submitted_at": "2026-01-01T00:00:59Z",
                    "comments_count": len(lines),
                }
            ]
        case "GET", ["pulls", number, "reviews", "9", "comments"]:
            return 200, [
                {**_gitea_comment(at, who, text), "path": path, "position": line}
                for at, (pull, who, text, path, line) in enumerate(forge.comments)
                if pull == int(number) and path
            ]
        case "GET", ["collaborators", who, "permission"]:
            return 200, {"permission": "write" if who in forge.writers else "read"}
        case "GET", ["commits", _, "status"]:
            words = {"passed": "success", "failed": "failure", "running": "pending"}
            return 200, {
                "state": "pending",
                "statuses": [
                    {"context": name, "status": words[state], "target_url": "http://ci"}
                    for name, state in forge.jobs
                ],
            }
        case _:
            return 404, {"message": "The target couldn't be found."}


def _gitea_comment(at: int, who: str, text: str) -> dict[str, Any]:
    return {"id": at, "body": text, "user": {"login": who}, "created_at": f"2026-01-01T00:00:{at:02}Z"}


# Bitbucket Cloud.


def _bitbucket_pull(forge: Forge, pull: Pull) -> dict[str, Any]:
    return {
        "id": pull.number,
        "state": {"open": "OPEN", "merged": "MERGED"}.get(pull.state, "DECLINED"),
        "source": {"branch": {"name": pull.branch}, "commit": {"hash": forge.commit(pull.branch)[:12]}},
        "links": {"html": {"href": f"{forge.url}/team/shop/pull-requests/{pull.number}"}},
        "draft": pull.draft,
    }


def bitbucket(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if not asked.path.startswith("/repositories/team/shop"):
        return 404, {"type": "error", "error": {"message": "Repository not found"}}
    match asked.method, asked.path.removeprefix("/repositories/team/shop").strip("/").split("/"):
        case "GET", [""]:
            scopes = "pullrequest:write, repository:write" if forge.may_push else "repository"
            return 200, {"mainbranch": {"name": "main"}}, {"X-OAuth-Scopes": scopes}
        case "GET", ["pullrequests"]:
            branch = re.search(r'source\.branch\.name="([^"]+)"', asked.query["q"])
            return 200, {
                "values": [
                    _bitbucket_pull(forge, one) for one in forge.pulls if branch and one.branch == branch[1]
                ]
            }
        case "POST", ["pullrequests"]:
            only(
                body,
                "title",
                "description",
                "source",
                "destination",
                "draft",
                "close_source_branch",
                "reviewers",
            )
            branch = body["source"]["branch"]["name"]
            pull = forge.open(
                branch,
                body["destination"]["branch"]["name"],
                body["title"],
                body["description"],
                draft=body["draft"],
            )
            pull.reviewers = body.get("reviewers", [])
            return 201, _bitbucket_pull(forge, pull)
        case "GET", ["pullrequests", number]:
            return 200, _bitbucket_pull(forge, forge.at(number))
        case "PUT", ["pullrequests", number]:
            only(body, "title", "description", "draft")
            pull = forge.at(number)
            pull.title, pull.body, pull.draft = body["title"], body["description"], body["draft"]
            return 200, _bitbucket_pull(forge, pull)
        case "POST", ["pullrequests", number, "decline"]:
            forge.at(number).state = "closed"
            return 200, _bitbucket_pull(forge, forge.at(number))
        case "POST", ["pullrequests", number, "comments"]:
            forge.comments.append((int(number), "cloister", body["content"]["raw"], "", 0))
            return 201, {"id": 1}
        case "GET", ["pullrequests", number, "comments"]:
            return _bitbucket_comments(forge, number, asked)
        case "GET", ["permissions-config", "users", who]:
            return (
                (200, {"permission": "write"})
                if unquote(who) == "{ann}"
                else (404, {"type": "error", "error": {"message": "none"}})
            )
        case "GET", ["pullrequests", _, "statuses"]:
            words = {"passed": "SUCCESSFUL", "failed": "FAILED", "running": "INPROGRESS"}
            return 200, {
                "values": [
                    {"key": name, "name": name, "state": words[state], "url": "http://ci"}
                    for name, state in forge.jobs
                ]
            }
        case _:
            return 404, {"type": "error", "error": {"message": "Resource not found"}}


def _bitbucket_comments(forge: Forge, number: str, asked: Request) -> Reply:
    """Two to a page, so that a reader must turn pages."""
    found = [
        {
            "id": at,
            "content": {"raw": text},
            "user": {"uuid": f"{{{who}}}", "nickname": who},
            "deleted": False,
            **({"inline": {"path": path, "to": line}} if path else {}),
        }
        for at, (pull, who, text, path, line) in enumerate(forge.comments)
        if pull == int(number)
    ]
    start = 2 * (int(asked.query.get("page", "1")) - 1)
    more = {"next": f"{forge.url}/next"} if start + 2 < len(found) else {}
    return 200, {"values": found[start : start + 2], **more}


# Pagure.


def _pagure_pull(forge: Forge, pull: Pull) -> dict[str, Any]:
    return {
        "id": pull.number,
        "status": {"open": "Open", "merged": "Merged"}.get(pull.state, "Closed"),
        "branch_from": pull.branch,
        "title": pull.title,
        "commit_stop": forge.commit(pull.branch),
        "comments": [
            {
                "id": at,
                "comment": text,
                "user": {"name": who},
                "notification": False,
                "filename": path or None,
                "line": line or None,
            }
            for at, (number, who, text, path, line) in enumerate(forge.comments)
            if number == pull.number
        ],
    }


def pagure(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if not asked.path.startswith("/team/shop"):
        return 404, {"error": "Project not found", "error_code": "ENOPROJECT"}
    match asked.method, asked.path.removeprefix("/team/shop").strip("/").split("/"):
        case "GET", [""]:
            return 200, {
                "full_url": f"{forge.url}/team/shop",
                "access_users": {"owner": ["ann"], "admin": [], "commit": []},
            }
        case "GET", ["git", "branches"]:
            return 200, {"branches": ["main"], "default": "main", "total_branches": 1}
        case "GET", ["pull-requests"]:
            return 200, {"requests": [_pagure_pull(forge, one) for one in forge.pulls]}
        case "POST", ["pull-request", "new"]:
            only(body, "title", "branch_from", "branch_to", "initial_comment")
            pull = forge.open(body["branch_from"], body["branch_to"], body["title"], body["initial_comment"])
            return 200, _pagure_pull(forge, pull)
        case "GET", ["pull-request", number]:
            return 200, _pagure_pull(forge, forge.at(number))
        case "POST", ["pull-request", number]:
            pull = forge.at(number)
            pull.title, pull.body = body["title"], body["initial_comment"]
            pull.labels = body["tags"].split(",") if "tags" in body else pull.labels
            return 200, _pagure_pull(forge, pull)
        case "POST", ["pull-request", number, "comment"]:
            forge.comments.append((int(number), "cloister", body["comment"], "", 0))
            return 200, {"message": "Comment added"}
        case "POST", ["pull-request", number, "close"]:
            forge.at(number).state = "closed"
            return 200, {"message": "Pull-request closed!"}
        case "GET", ["pull-request", _, "flag"]:
            words = {"passed": "success", "failed": "failure", "running": "pending"}
            return 200, {
                "flags": [
                    {"username": name, "status": words[state], "url": "http://ci"}
                    for name, state in forge.jobs
                ]
            }
        case _:
            return 404, {"error": "Not found", "error_code": "ENOTFOUND"}


WIRES: dict[str, tuple[str, str, Callable[[Forge, Request], Reply]]] = {
    "github": ("/api/v3", "Bearer ", github),
    "gitlab": ("/api/v4", "Bearer ", gitlab),
    "gitea": ("/api/v1", "token ", gitea),
    "bitbucket": ("/2.0", "Bearer ", bitbucket),
    "pagure": ("/api/0", "token ", pagure),
}
"""Kind → where its API is, how its token is sent, and its answers."""


class _Handler(BaseHTTPRequestHandler):
    forge: Forge
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or "0")
        data = self._chunks() if self.headers.get("Transfer-Encoding") else self.rfile.read(size)
        prefix, word, wire = WIRES[self.forge.kind]
        where = urlsplit(self.path)
        if not where.path.startswith(("/api", "/2.0")):
            return self._git(where.path, where.query, data)
        path = where.path.removeprefix(prefix if where.path.startswith(prefix) else "/api")
        asked = Request(
            self.command, path, {k: v[0] for k, v in parse_qs(where.query).items()}, self._body(data)
        )
        self.forge.requests.append(asked)
        reply: Reply | None = None
        if self.headers.get("Authorization") != f"{word}{TOKEN}":
            reply = (401, {"message": "Bad credentials"})
        for fault in self.forge.faults:
            reply = reply or fault(asked)
        if reply is None:
            try:
                reply = wire(self.forge, asked)
            except (ValueError, KeyError, IndexError) as error:
                reply = (422, {"message": f"{type(error).__name__}: {error}"})
        if self.command in self.forge.lost:
            self.forge.lost.discard(self.command)
            self.close_connection = True
            return None
        return self._answer(reply[0], reply[1], reply[2] if len(reply) > 2 else None)

    def _body(self, data: bytes) -> dict[str, Any]:
        if not data:
            return {}
        if self.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
            return {
                name: values[0] for name, values in parse_qs(data.decode(), keep_blank_values=True).items()
            }
        return json.loads(data)

    def _chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _git(self, path: str, query: str, data: bytes) -> None:
        sent = self.headers.get("Authorization", "")
        known = sent.startswith("Basic ") and base64.b64decode(sent[6:]).decode().endswith(f":{TOKEN}")
        if not known or (not self.forge.may_push and "receive-pack" in path + query):
            return self._answer(
                401 if not known else 403, "denied", {"WWW-Authenticate": 'Basic realm="git"'}
            )
        return answer(self, self.forge.root, data, user="cloister")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the tests read answers, not logs."""


@contextmanager
def served(kind: str, root: Path) -> Generator[Forge]:
    """A forge of this kind on a port of its own, until the block ends."""
    forge = Forge(kind, root)
    handler = type("Handler", (_Handler,), {"forge": forge})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        forge.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield forge
        finally:
            server.shutdown()
            thread.join()
