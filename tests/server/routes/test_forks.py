"""Trees, forks and comparisons over HTTP."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.server.conftest import Served

from cloister.core.attempts import AttemptWish, ForkedFrom
from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    BaseFixed,
    ChecksRan,
    ModelReplied,
    RunFinished,
    TurnEnded,
)
from cloister.core.requests import Budget, NewRun, Usage
from cloister.forge.change import Author, commit_tree
from cloister.forge.host import bare_repository
from cloister.forge.packs import tree_of
from cloister.forge.plain_git import PlainGit
from cloister.log.api import Fence
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio


async def forked_run(
    served: Served, tmp_path: Path, *, finished: bool, files: Mapping[str, str] | None = None
) -> tuple[Fence, int]:
    """A run with two attempts, the second forked from the first; returns the save point's number too.

    Both add `files`.
    """
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a.txt", "one\n")
    base = repo.commit("base")
    for name, text in (files or {}).items():
        repo.write(name, text)
    commits = [repo.write("a.txt", text) and repo.commit(text) for text in ("two\n", "three\n")]
    new = NewRun("do it", str(repo.path), attempts=(AttemptWish(temperature=0.5),))
    run, _ = await served.app.backbone.admit(new, "somebody")
    fence = await served.app.backbone.claim(served.app.owner, run)
    assert fence is not None
    bare = bare_repository(served.app.settings.data_dir, run)
    bare.parent.mkdir(parents=True)
    await PlainGit().fetch(str(repo.path), None, bare)
    first, second = [
        await commit_tree(
            bare, await tree_of(bare, commit), base, "Save point", Author("A <a@b.c>"), at=1_700_000_000
        )
        for commit in commits
    ]
    red = Comparison(still=("t",))
    await served.app.backbone.append(
        fence,
        (
            BaseFixed(base, "main"),
            AttemptStarted(0, "m", temperature=0.5),
            ModelReplied(0, 1, "m", "mine", (), Usage(10, 5), 0.1),
            ChecksRan(0, 1, (), red),
            TurnEnded(0, 1, first, True),
            AttemptForked(1, 0, 7, "stuck", Budget(), "Take another way.", stuck=0),
            AttemptEnded(0, "red", "It was stuck.", first, red),
            AttemptStarted(1, "m", parent=0, at=7),
            ModelReplied(1, 2, "m", "other", (), Usage(10, 5), 0.1),
            TurnEnded(1, 2, second, True),
        ),
    )
    if finished:
        end = AttemptEnded(1, "proven", "Done.", second, Comparison(green=True))
        await served.app.backbone.append(fence, (end, RunFinished("proven", "Done.", 1)))
    return fence, 7


async def test_the_tree_shows_forks_and_save_points(served: Served, tmp_path: Path) -> None:
    fence, point = await forked_run(served, tmp_path, finished=True)
    tree = (await served.client.get(f"/v1/runs/{fence.run}/tree")).json()
    parent, child = tree["nodes"]
    assert (tree["winner"], child["parent"], child["at"], child["reason"]) == (1, 0, point, "stuck")
    assert [(p["seq"], p["red"]) for p in parent["points"]] == [(point, 1)]


async def test_one_attempts_log_and_diff(served: Served, tmp_path: Path) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=True)
    base = f"/v1/runs/{fence.run}"
    assert "+two" in (await served.client.get(f"{base}/diff?attempt=0")).text
    assert "+three" in (await served.client.get(f"{base}/diff?attempt=1")).text
    own = (await served.client.get(f"{base}/events?attempt=0")).json()
    assert {event["body"].get("attempt") for event in own} <= {None, 0}
    inherited = (await served.client.get(f"{base}/events?attempt=1&after=4&limit=2")).json()
    assert [event["seq"] for event in inherited] == [5, 6]
    for path in ("diff", "events"):
        reply = await served.client.get(f"{base}/{path}?attempt=9")
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_attempt")


async def test_the_diff_at_a_save_point(served: Served, tmp_path: Path) -> None:
    fence, point = await forked_run(served, tmp_path, finished=True)
    base = f"/v1/runs/{fence.run}/diff"
    then = (await served.client.get(f"{base}?at={point}")).text
    assert "+two" in then
    assert "three" not in then
    refused = await served.client.get(f"{base}?at={point + 1}")
    assert (refused.status_code, refused.json()["code"]) == (400, "no_save_point")


async def test_a_fork_is_a_run_of_its_own(served: Served, tmp_path: Path) -> None:
    fence, point = await forked_run(served, tmp_path, finished=True)
    reply = await served.client.post(f"/v1/runs/{fence.run}/fork", json={"at": point, "prompt": "Go on."})
    assert reply.status_code == 201
    event = (await served.client.get(f"/v1/runs/{reply.json()['id']}/events?limit=1")).json()[0]
    asked = event["body"]["request"]
    assert asked["forked_from"] == {"run": fence.run, "seq": point, "say": "Go on."}
    assert asked["attempts"][0]["temperature"] == 0.5
    for body, code in (({"at": 2}, "no_save_point"), ({"at": 0}, "bad_request"), ({"to": 7}, "bad_request")):
        refused = await served.client.post(f"/v1/runs/{fence.run}/fork", json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, code)
    origin = {"run": fence.run, "seq": point}
    other = await served.client.post("/v1/runs", json={"prompt": "p", "repo": "/x", "forked_from": origin})
    assert (other.status_code, other.json()["code"]) == (400, "other_repository")


async def test_rewind_steers_a_live_run_and_forks_a_finished_one(served: Served, tmp_path: Path) -> None:
    fence, point = await forked_run(served, tmp_path, finished=False)
    reply = await served.client.post(f"/v1/runs/{fence.run}/rewind", json={"to": point})
    assert reply.json() == {"id": fence.run}
    last = (await served.client.get(f"/v1/runs/{fence.run}/events")).json()[-1]["body"]
    assert last == {"type": "RewindRequested", "to": point, "who": "tester", "key": ""}
    refused = await served.client.post(f"/v1/runs/{fence.run}/rewind", json={"to": 3})
    assert refused.json()["code"] == "no_save_point"
    await served.app.backbone.append(fence, (RunFinished("stopped", "Enough."),))
    again = await served.client.post(f"/v1/runs/{fence.run}/rewind", json={"to": point})
    assert again.json()["id"] != fence.run


async def test_attempts_are_compared(served: Served, tmp_path: Path) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=True)
    both = (await served.client.get(f"/v1/compare?a={fence.run}/0&b={fence.run}")).json()
    assert (both["a"]["outcome"], both["b"]["outcome"]) == ("red", "proven")
    assert (both["a"]["steps"], both["b"]["steps"], both["same_change"]) == (1, 2, False)
    assert "-+two" in both["diff"]
    assert "++three" in both["diff"]
    same = (await served.client.get(f"/v1/compare?a={fence.run}/1&b={fence.run}")).json()
    assert (same["same_change"], same["diff"]) == (True, "")
    for a, status in ((f"{fence.run}/x", 400), (f"{fence.run}/7", 404), ("r-nosuchrun", 404)):
        assert (await served.client.get("/v1/compare", params={"a": a, "b": fence.run})).status_code == status


async def test_a_removed_run_keeps_only_its_log(served: Served, tmp_path: Path) -> None:
    working, _ = await forked_run(served, tmp_path / "working", finished=False)
    refused = await served.client.delete(f"/v1/runs/{working.run}")
    assert (refused.status_code, refused.json()["code"]) == (409, "run_not_finished")
    fence, point = await forked_run(served, tmp_path, finished=True)
    before = (await served.client.get(f"/v1/runs/{fence.run}/events")).json()
    new = NewRun("more", str(tmp_path / "repo"), forked_from=ForkedFrom(fence.run, point))
    fork, _ = await served.app.backbone.admit(new, "somebody")
    needed = await served.client.delete(f"/v1/runs/{fence.run}")
    assert (needed.status_code, needed.json()["code"]) == (409, "run_forked")
    assert fork in needed.json()["message"]
    assert bare_repository(served.app.settings.data_dir, fence.run).exists()
    owned = await served.app.backbone.claim(served.app.owner, fork)
    assert owned is not None
    await served.app.backbone.append(owned, (RunFinished("stopped", "Stopped."),))
    for _ in range(2):
        assert (await served.client.delete(f"/v1/runs/{fence.run}")).json()["who"] == "tester"
    assert not bare_repository(served.app.settings.data_dir, fence.run).exists()
    assert (await served.client.get(f"/v1/runs/{fence.run}/events")).json() == before
    for path in (f"/v1/runs/{fence.run}/diff", f"/v1/compare?a={fence.run}/0&b={fence.run}"):
        reply = await served.client.get(path)
        assert (reply.status_code, reply.json()["code"]) == (409, "run_removed")
    fork = await served.client.post(f"/v1/runs/{fence.run}/fork", json={"at": point})
    assert (fork.status_code, fork.json()["code"]) == (409, "run_removed")
