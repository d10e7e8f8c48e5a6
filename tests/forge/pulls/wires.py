"""A server that speaks the APIs of five forges over one state, and git over HTTP with the forge's token.

Each wire answers in the form of its forge and rejects fields that this forge does not know.
"""

import base64
import hashlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from tests.forge.git_http import answer
from tests.forge.pulls import talks
from tests.forge.pulls.descriptions import description
from tests.forge.pulls.talks import PEOPLE, Issue, seconds, when

TOKEN = "token-0123456789-abcdef"
Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    token: str = ""


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
    stale: str = ""
    """The commit of its branch that conflicts with its base."""
    who: str = ""
    """Whose token opened it."""
    labels: list[Any] = field(default_factory=list[Any])
    reviewers: list[Any] = field(default_factory=list[Any])


@dataclass
class App:
    """A GitHub App with an installation at `team/shop`."""

    id: str
    key: RSAPublicKey
    permissions: dict[str, str]
    installed: bool = True
    seconds: float = 3_600
    """How long its tokens are valid."""
    issued: list[str] = field(default_factory=list[str])

    def knows(self, sent: str) -> bool:
        """True if the App signed this, for now and the next ten minutes at most."""
        said, _, signature = sent.removeprefix("Bearer ").rpartition(".")
        try:
            self.key.verify(_unbase64(signature), said.encode(), PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        head, claims = (json.loads(_unbase64(one)) for one in said.split("."))
        now = time.time()
        valid = claims["iat"] <= now < claims["exp"] <= claims["iat"] + 600
        return valid and head["alg"] == "RS256" and claims["iss"] == self.id

    def answer(self, forge: "Forge", asked: Request) -> Reply:
        """What the App itself may ask."""
        if not self.installed or asked.path not in _APP_PATHS:
            return 404, {"message": "Not Found"}
        if asked.method == "GET":
            return 200, {"id": 77, "permissions": self.permissions}
        only(asked.body, "repositories")
        if asked.body.get("repositories", ["shop"]) != ["shop"]:
            return 422, {"message": "There is at least one repository that does not exist"}
        self.issued.append(f"ghs_{len(self.issued)}_0123456789abcdef")
        ends = datetime.fromtimestamp(time.time() + self.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 201, {"token": self.issued[-1], "expires_at": ends, "permissions": self.permissions}


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


_APP_PATHS = (
    "/app/installations/77/access_tokens",
    "/repos/team/shop/installation",
    "/orgs/team/installation",
)


@dataclass
class Forge:
    """The state behind every wire: one repository `team/shop`."""

    kind: str
    root: Path
    """Repositories as `<root>/team/shop.git`."""
    pulls: list[Pull] = field(default_factory=list[Pull])
    issues: list[Issue] = field(default_factory=list[Issue])
    comments: list[tuple[int, str, str, str, int]] = field(
        default_factory=list[tuple[int, str, str, str, int]]
    )
    """(pull, who, text, path, line); where issues have numbers of their own, an issue counts as minus its number."""
    jobs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(name, `passed` | `failed` | `running`)."""
    jobs_of: str = ""
    """At GitHub the only commit with these jobs, if it is given: those of others pass."""
    earlier: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Runs of jobs on the same commit that were repeated."""
    base_jobs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    base_log: str = ""
    log: str = "FAILED tests/test_cart.py::test_total\n"
    workflow: str = ""
    """The name of a workflow of Gitea's Actions, whose jobs have logs; empty: another CI reports them."""
    writers: tuple[str, ...] = ("ann",)
    discreet: bool = False
    """It does not tell this token who may push."""
    scopes: str | None = None
    """Those of the token, where the forge tells them; None: it has all rights, or tells none."""
    unchanged: int = 0
    """Requests that were answered with 304."""
    may_push: bool = True
    revoked: bool = False
    """Git no longer takes the token."""
    revoked_after: str = ""
    """The part of a request to git after which the token is revoked."""
    drafts: bool = True
    renamed: bool = False
    """The repository is now `team/store`; requests for its old name are redirected."""
    requests: list[Request] = field(default_factory=list[Request])
    faults: list[Callable[[Request], Reply | None]] = field(
        default_factory=list[Callable[[Request], Reply | None]]
    )
    """Asked first; an answer stands instead of the forge's own."""
    lost: set[str] = field(default_factory=set[str])
    """Methods whose next request is carried out and its reply lost."""
    wrong: list[str] = field(default_factory=list[str])
    """What the forge's published description does not allow in an exchange; empty without one."""
    url: str = ""
    app: App | None = None
    """If there is one, only its tokens are valid."""
    uploads: dict[str, str] = field(default_factory=dict[str, str])
    """Files for texts: where they are, below the forge → their bytes, as Latin-1."""
    people: dict[str, str] = field(default_factory=dict[str, str])
    """Tokens of people → whose they are; they are valid, too."""

    def takes(self, token: str) -> bool:
        if token in self.people:
            return True
        return token == TOKEN if self.app is None else token in self.app.issued

    def commit(self, branch: str) -> str:
        shown = subprocess.run(
            ["git", "-C", str(self.root / "team/shop.git"), "rev-parse", f"refs/heads/{branch}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return shown.stdout.strip() if shown.returncode == 0 else "0" * 40

    def open(self, branch: str, onto: str, title: str, body: str, *, draft: bool = False) -> Pull:
        who = self.people.get(self.requests[-1].token, "cloister") if self.requests else ""
        pull = Pull(len(self.pulls) + 1, branch, onto, title, body, draft, who=who)
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


_BASE = 2_000
"""Jobs of the base have numbers from here on."""


def _runs(forge: Forge, *, all_of: bool, base: bool) -> list[tuple[int, str, str]]:
    """(number, name, state) of the jobs of the base or of the pull request, with the earlier runs of `all_of`."""
    if base:
        return [(_BASE + at, *job) for at, job in enumerate(forge.base_jobs)]
    now = [(1_000 + at, *job) for at, job in enumerate(forge.jobs)]
    return [*now, *((at + 1, *job) for at, job in enumerate(forge.earlier))] if all_of else now


def stamped(log: str, stream: str) -> str:
    return "".join(f"2026-01-01T00:00:00.1234567Z {stream}{line}\n" for line in log.splitlines())


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
        "base": {"ref": pull.onto, "sha": forge.commit(pull.onto)},
    }


def github(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/graphql":
        only(body, "query", "variables")
        pull = forge.at(body["variables"]["id"].removeprefix("PR_"))
        pull.draft = "convertPullRequestToDraft" in body["query"]
        return 200, {"data": {}}
    if asked.path == "/search/repositories" and asked.query["q"] == "user:team fork:true":
        return 200, {"total_count": 1, "items": [{"full_name": "team/shop", "archived": False}]}
    if not asked.path.startswith("/repos/team/shop"):
        return 404, {"message": "Not Found"}
    match asked.method, asked.path.removeprefix("/repos/team/shop").strip("/").split("/"):
        case "GET", [""]:
            told = {} if forge.scopes is None else {"X-OAuth-Scopes": forge.scopes}
            return 200, {"default_branch": "main", "permissions": {"push": forge.may_push}}, told
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
            pull = forge.at(number)
            state = "dirty" if pull.stale == forge.commit(pull.branch) else "clean"
            return 200, {**_github_pull(forge, pull), "mergeable_state": state}
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
        case "GET", ["commits", commit, "check-runs"]:
            jobs = _runs(forge, all_of=asked.query["filter"] == "all", base=commit == "main")
            if forge.jobs_of not in ("", commit):
                jobs = [(number, name, "passed") for number, name, _ in jobs]
            size, end = int(asked.query["per_page"]), int(asked.query["per_page"]) * int(asked.query["page"])
            shown = [_github_job(*job) for job in jobs[end - size : end]]
            return 200, {"total_count": len(jobs), "check_runs": shown}
        case "GET", ["commits", _, "status"]:
            return 200, {"state": "pending", "statuses": []}
        case "GET", ["actions", "jobs", number, "logs"]:
            return 302, "", {"Location": f"{forge.url}/store/{'base' if int(number) >= _BASE else 'log'}"}
        case _:
            return 404, {"message": "Not Found"}


def _github_comments(forge: Forge, number: str, *, lines: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": at,
            "user": {"login": who, "type": "User"},
            "body": text,
            "created_at": when(at),
            **({"path": path, "line": line} if path else {}),
        }
        for at, (pull, who, text, path, line) in enumerate(forge.comments)
        if pull == int(number) and bool(path) == lines
    ]


def _github_job(number: int, name: str, state: str) -> dict[str, Any]:
    done = state != "running"
    return {
        "id": number,
        "name": name,
        "status": "completed" if done else "in_progress",
        "conclusion": {"passed": "success", "failed": "failure", "cancelled": "cancelled"}.get(state),
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
        "target_branch": pull.onto,
        "sha": forge.commit(pull.branch),
        "draft": pull.title.startswith("Draft: "),
    }


def gitlab(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/personal_access_tokens/self" and forge.scopes is not None:
        return 200, {"id": 3, "scopes": forge.scopes.split()}
    if asked.path == "/users":
        return 200, [{"id": 7, "username": asked.query["username"]}]
    if asked.path == "/groups/team/projects":
        return 200, [{"path_with_namespace": "team/shop"}]
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
            pull.labels, pull.reviewers = body["labels"], body["reviewer_ids"]
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
        case "POST", ["issues", number, "notes"]:
            only(body, "body")
            forge.comments.append((-int(number), "cloister", body["body"], "", 0))
            return 201, {"id": 1}
        case "GET", ["issues", number, "notes"]:
            return 200, [
                {
                    "id": at,
                    "body": text,
                    "author": {"id": PEOPLE[who], "username": who},
                    "system": False,
                    "created_at": when(at),
                }
                for at, (spot, who, text, _, _) in enumerate(forge.comments)
                if spot == -int(number)
            ]
        case "GET", ["merge_requests", number, "notes"]:
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
                            "author": {"id": PEOPLE[who], "username": who},
                            "system": False,
                            "created_at": when(at),
                            **position,
                        }
                    )
            return 200, notes
        case "POST", ["uploads"]:
            only(body, "file")
            at = f"/uploads/{len(forge.uploads)}/picture.png"
            forge.uploads[at] = body["file"]
            return 201, {"alt": "picture", "url": at, "markdown": f"![picture]({at})"}
        case "GET", ["members", "all", who]:
            return (200, {"access_level": 30}) if who == "1" else (404, {"message": "404 Not found"})
        case "GET", ["merge_requests", _, "pipelines"]:
            return 200, [{"id": 4, "status": "failed"}] if forge.jobs else []
        case "GET", ["pipelines", "latest"]:
            known = asked.query["ref"] == "main" and forge.base_jobs
            return (200, {"id": 5, "status": "failed"}) if known else (404, {"message": "404 Not Found"})
        case "GET", ["pipelines", ("4" | "5") as pipeline, "jobs"]:
            words = {"passed": "success", "failed": "failed", "running": "running"}
            return 200, [
                {
                    "id": at,
                    "name": name,
                    "status": words[state],
                    "web_url": "http://ci",
                    "allow_failure": False,
                }
                for at, name, state in _runs(
                    forge, all_of=asked.query.get("include_retried") == "true", base=pipeline == "5"
                )
            ]
        case "GET", ["jobs", number, "trace"]:
            return 200, stamped(forge.base_log if int(number) >= _BASE else forge.log, "00O ")
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
        "base": {"ref": pull.onto, "sha": forge.commit(pull.onto)},
    }


def gitea(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/users/team/repos":
        return 200, [{"full_name": "team/shop"}, {"full_name": "team/old", "archived": True}]
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
        case "POST", ["issues", number, "assets"]:
            only(body, "attachment")
            forge.at(number)
            at = f"/attachments/{len(forge.uploads)}"
            forge.uploads[at] = body["attachment"]
            made = {"id": len(forge.uploads), "name": asked.query["name"], "size": len(body["attachment"])}
            return 201, {**made, "browser_download_url": f"{forge.url}{at}"}
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
        case "GET", ["commits", commit, "status"]:
            base = commit == "main"
            jobs = _runs(forge, all_of=False, base=base)
            sha = forge.commit("main") if base else commit
            return 200, {"sha": sha, "statuses": [_gitea_status(forge, *job) for job in jobs]}
        case "GET", ["commits", _, "statuses"]:
            return 200, [_gitea_status(forge, *job) for job in _runs(forge, all_of=True, base=False)]
        case "GET", ["actions", "jobs", number]:
            base = int(number) >= _BASE
            names = {at: name for at, name, _ in _runs(forge, all_of=True, base=base)}
            sha = forge.commit("main" if base else "fix")
            return 200, {"id": int(number), "name": names[int(number)], "head_sha": sha}
        case "GET", ["actions", "jobs", number, "logs"]:
            return 200, stamped(forge.base_log if int(number) >= _BASE else forge.log, "")
        case _:
            return 404, {"message": "The target couldn't be found."}


def _gitea_status(forge: Forge, number: int, name: str, state: str) -> dict[str, Any]:
    words = {"passed": "success", "failed": "failure", "running": "pending"}
    context, at = name, "http://ci"
    if forge.workflow:
        event = "push" if number >= _BASE else "pull_request"
        context, at = f"{forge.workflow} / {name} ({event})", f"/team/shop/actions/runs/3/jobs/{number}"
    return {"id": number, "context": context, "status": words[state], "target_url": at}


def _gitea_comment(at: int, who: str, text: str) -> dict[str, Any]:
    return {"id": at, "body": text, "user": {"login": who}, "created_at": when(at)}


# Bitbucket Cloud.


def _bitbucket_pull(forge: Forge, pull: Pull) -> dict[str, Any]:
    return {
        "id": pull.number,
        "state": {"open": "OPEN", "merged": "MERGED"}.get(pull.state, "DECLINED"),
        "source": {"branch": {"name": pull.branch}, "commit": {"hash": forge.commit(pull.branch)[:12]}},
        "destination": {"branch": {"name": pull.onto}, "commit": {"hash": forge.commit(pull.onto)[:12]}},
        "links": {"html": {"href": f"{forge.url}/team/shop/pull-requests/{pull.number}"}},
        "draft": pull.draft,
    }


def bitbucket(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/repositories/team":
        return 200, {"values": [{"full_name": "team/shop"}]}
    if asked.path == "/workspaces/team/permissions/repositories/shop":
        if forge.discreet:
            return 403, {"type": "error", "error": {"message": "only administrators"}}
        known = asked.query["q"] == 'user.uuid="{ann}"'
        right = {"type": "repository_permission", "permission": "write", "user": {"uuid": "{ann}"}}
        return 200, {"values": [right] if known else []}
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
            return _bitbucket_comments(forge, int(number), asked)
        case "POST", ["issues", number, "comments"]:
            only(body, "content")
            forge.comments.append((-int(number), "cloister", body["content"]["raw"], "", 0))
            return 201, {"id": 1}
        case "GET", ["issues", number, "comments"]:
            return _bitbucket_comments(forge, -int(number), asked)
        case "GET", ["permissions-config", "users", _]:
            return 403, {"type": "error", "error": {"message": "only administrators"}}
        case "GET", ["refs", "branches", "main"]:
            return 200, {"name": "main", "target": {"hash": forge.commit("main")}}
        case "GET", ["pullrequests" | "commit" as of, _, "statuses"]:
            # Its own CI is named by its number and branch; each repetition has a number of its own.
            words = {"passed": "SUCCESSFUL", "failed": "FAILED", "running": "INPROGRESS"}
            of_base = of == "commit"
            branch = "main" if of_base else "fix"
            return 200, {
                "values": [
                    {
                        "key": f"{number}" if name == "Pipeline" else name,
                        "name": f"Pipeline #{number} for {branch}" if name == "Pipeline" else name,
                        "state": words[state],
                        "url": "http://ci",
                        "updated_on": f"2026-01-01T00:00:00.{number:06}+00:00",
                    }
                    for number, name, state in _runs(forge, all_of=True, base=of_base)
                ]
            }
        case _:
            return 404, {"type": "error", "error": {"message": "Resource not found"}}


def _bitbucket_comments(forge: Forge, number: int, asked: Request) -> Reply:
    """Two to a page, so that a reader must turn pages."""
    found = [
        {
            "id": at,
            "content": {"raw": text},
            "user": {"uuid": f"{{{who}}}", "nickname": who},
            "deleted": False,
            "created_on": when(at),
            **({"inline": {"path": path, "to": line}} if path else {}),
        }
        for at, (pull, who, text, path, line) in enumerate(forge.comments)
        if pull == number
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
        "branch": pull.onto,
        "title": pull.title,
        "commit_stop": forge.commit(pull.branch),
        "user": {"name": "cloister"},
        "last_updated": seconds(
            max((at for at, one in enumerate(forge.comments) if one[0] == pull.number), default=0)
        ),
        "comments": [
            {
                "id": at,
                "comment": text,
                "user": {"name": who},
                "notification": False,
                "filename": path or None,
                "line": line or None,
                "date_created": seconds(at),
            }
            for at, (number, who, text, path, line) in enumerate(forge.comments)
            if number == pull.number
        ],
    }


def pagure(forge: Forge, asked: Request) -> Reply:  # noqa: C901 - one case for each request
    body = asked.body
    if asked.path == "/projects":
        return 200, {"projects": [{"fullname": "team/shop"}], "total_projects": 1}
    if (asked.method, asked.path) == ("POST", "/-/whoami"):
        return 200, {"username": "cloister"}
    if not asked.path.startswith("/team/shop"):
        return 404, {"error": "Project not found", "error_code": "ENOPROJECT"}
    match asked.method, asked.path.removeprefix("/team/shop").strip("/").split("/"):
        case "GET", [""]:
            return 200, {
                "full_url": f"{forge.url}/team/shop",
                "access_users": {
                    "owner": ["ann"],
                    "admin": [],
                    "commit": ["cloister"] if forge.may_push else [],
                },
            }
        case "GET", ["git", "branches"] if asked.query["with_commits"] == "1":
            return 200, {"branches": {"main": forge.commit("main")}, "total_branches": 1}
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
            only(body, "title", "initial_comment")
            pull = forge.at(number)
            pull.title, pull.body = body["title"], body["initial_comment"]
            return 200, _pagure_pull(forge, pull)
        case "POST", ["pull-request", number, "comment"]:
            forge.comments.append((int(number), "cloister", body["comment"], "", 0))
            return 200, {"message": "Comment added"}
        case "POST", ["pull-request", number, "assign"]:
            only(body, "assignee")
            forge.at(number).reviewers = [body["assignee"]]
            return 200, {"message": "pull-request assigned"}
        case "POST", ["pull-request", number, "close"]:
            forge.at(number).state = "closed"
            return 200, {"message": "Pull-request closed!"}
        case "GET", ["issue", number]:
            said = [(who, text) for spot, who, text, _, _ in forge.comments if spot == -int(number)]
            return 200, {
                "id": int(number),
                "comments": [
                    {"id": at, "comment": text, "user": {"name": who}} for at, (who, text) in enumerate(said)
                ],
            }
        case "POST", ["issue", number, "comment"]:
            only(body, "comment")
            forge.comments.append((-int(number), "cloister", body["comment"], "", 0))
            return 200, {"message": "Comment added"}
        case "GET", ["pull-request" | "c" as of, _, "flag"]:
            words = {"passed": "success", "failed": "failure", "running": "pending"}
            return 200, {
                "flags": [
                    {
                        "username": name,
                        "status": words[state],
                        "url": "http://ci",
                        "date_updated": f"{number:06}",
                    }
                    for number, name, state in _runs(forge, all_of=True, base=of == "c")
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

    def _serve(self) -> None:  # noqa: C901 - one case for each kind of request
        size = int(self.headers.get("Content-Length") or "0")
        data = self._chunks() if self.headers.get("Transfer-Encoding") else self.rfile.read(size)
        prefix, word, wire = WIRES[self.forge.kind]
        if self.forge.renamed and self._moved():
            return None
        where = urlsplit(self.path)
        if where.path.startswith("/store/"):
            log = self.forge.base_log if where.path == "/store/base" else self.forge.log
            return self._answer(200, stamped(log, ""))
        if not where.path.startswith(("/api", "/2.0")):
            return self._git(where.path, where.query, data)
        path = where.path.removeprefix(prefix if where.path.startswith(prefix) else "/api")
        asked = Request(
            self.command, path, {k: v[0] for k, v in parse_qs(where.query).items()}, self._body(data)
        )
        sent, app = self.headers.get("Authorization", ""), self.forge.app
        asked.token = sent.removeprefix(word)
        self.forge.requests.append(asked)
        reply: Reply | None = None
        if app is not None and path.endswith(("/installation", "/access_tokens")):
            known = app.knows(sent)
            wire = app.answer
        else:
            known = sent.startswith(word) and self.forge.takes(sent.removeprefix(word))
        if not known:
            reply = (401, {"message": "Bad credentials"})
        for fault in self.forge.faults:
            reply = reply or fault(asked)
        if reply is None:
            try:
                reply = talks.answer(self.forge, asked) or wire(self.forge, asked)
            except (ValueError, KeyError, IndexError) as error:
                reply = (422, {"message": f"{type(error).__name__}: {error}"})
            published = description(self.forge.kind)
            if published is not None and asked.path != "/graphql":
                self.forge.wrong += published.wrong(
                    asked.method, asked.path, asked.query, asked.body, reply[0], reply[1]
                )
        if self.command in self.forge.lost:
            self.forge.lost.discard(self.command)
            self.close_connection = True
            return None
        return self._answer(reply[0], reply[1], reply[2] if len(reply) > 2 else None)

    def _moved(self) -> bool:
        """Redirect from the old name; the new one stands for it."""
        at = re.sub(r"team(/|%2F)shop", r"team\1store", self.path)
        if at != self.path:
            status = 301 if self.command == "GET" else 307
            self._answer(status, "", {"Location": f"{self.forge.url}{at}"})
            return True
        self.path = re.sub(r"team(/|%2F)store", r"team\1shop", at)
        return False

    def _body(self, data: bytes) -> dict[str, Any]:
        if not data:
            return {}
        if self.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
            return {
                name: values[0] for name, values in parse_qs(data.decode(), keep_blank_values=True).items()
            }
        if boundary := re.fullmatch(r"multipart/form-data; boundary=(\S+)", self.headers["Content-Type"]):
            (part,) = data.split(f"--{boundary[1]}".encode())[1:-1]
            head, _, content = part.partition(b"\r\n\r\n")
            name = re.search(rb' name="([^"]+)"', head)
            return {name[1].decode(): content[:-2].decode("latin-1")} if name else {}
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
        if status == 200 and self.command == "GET":
            tag = f'"{hashlib.sha256(data).hexdigest()}"'
            headers = {**(headers or {}), "ETag": tag}
            if self.headers.get("If-None-Match") == tag:
                self.forge.unchanged += 1
                status, data = 304, b""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _git(self, path: str, query: str, data: bytes) -> None:
        sent = self.headers.get("Authorization", "")
        known = sent.startswith("Basic ")
        known = known and self.forge.takes(base64.b64decode(sent[6:]).decode().partition(":")[2])
        known = known and not self.forge.revoked
        if not known or (not self.forge.may_push and "receive-pack" in path + query):
            self._answer(401 if not known else 403, "denied", {"WWW-Authenticate": 'Basic realm="git"'})
            return
        answer(self, self.forge.root, data, user="cloister")
        if self.forge.revoked_after and self.forge.revoked_after in path + query:
            self.forge.revoked = True

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
