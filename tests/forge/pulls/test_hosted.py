"""A repository at a forge: fetched and pushed with the token, which is found nowhere else; one pull request per branch."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.forge.pulls.conftest import place_of
from tests.forge.pulls.wires import TOKEN, Forge, Reply, Request

from cloister.app.forges import pull_at
from cloister.core.errors import OutsideError
from cloister.core.events import ChangeDelivered, ChangeMade, DeliveryFailed, PromptReceived, RunFinished
from cloister.core.ids import RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.forge import Forges
from cloister.forge.api import Delivered, PagePictures, Proposal
from cloister.forge.change import Author, commit_tree, describe
from cloister.forge.host import in_bare, oid
from cloister.forge.pulls.hosted import Hosted
from cloister.forge.pulls.marks import Marks
from cloister.log.journal import open_journal
from cloister.log.sqlite.backbone import open_backbone
from cloister.runs.delivery import deliver_patiently, delivery
from cloister.runs.follow_up import Follower

pytestmark = pytest.mark.anyio

one_kind = pytest.mark.parametrize("forge", ["gitea"], indirect=True)
"""For what the kinds share."""


async def _proposal(forge: Forge, into: Path, message: str = "Fix the total\n\nBecause.") -> Proposal:
    """A commit on top of `main` in the run's own repository."""
    repo = f"{forge.url}/team/shop"
    base = await Hosted(place_of(forge)).fetch(repo, None, into)
    tree = oid((await in_bare(into, "rev-parse", f"{base.commit}^{{tree}}")).out)
    commit = await commit_tree(
        into, tree, base.commit, message, Author("Ann <ann@example.org>"), at=1_700_000_000
    )
    wish = Proposal(RunId("r-1"), repo, base.commit, commit, "cloister/fix", into, onto=base.branch)
    return await describe(wish)


async def _deliver(forge: Forge, proposal: Proposal, token: str = TOKEN) -> Delivered:
    sent = await Hosted(place_of(forge, token)).deliver(proposal)
    assert sent is not None
    return sent


def _branches(forge: Forge) -> dict[str, str]:
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(forge.root / "team/shop.git"),
            "for-each-ref",
            "--format=%(refname:short) %(objectname)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split(" ") for line in listed.stdout.splitlines())  # pyright: ignore[reportArgumentType]


async def test_a_change_becomes_a_branch_and_a_pull_request(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    sent = await _deliver(forge, proposal)
    assert (sent.branch, sent.number, sent.commit) == ("cloister/fix", 1, proposal.commit)
    assert sent.url is not None
    assert sent.url.startswith(forge.url)
    assert _branches(forge)["cloister/fix"] == proposal.commit
    pull = forge.pulls[0]
    assert (pull.branch, pull.onto, pull.title, pull.body) == (
        "cloister/fix",
        "main",
        "Fix the total",
        "Because.",
    )


@one_kind
async def test_a_repeated_delivery_changes_nothing(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    first = await _deliver(forge, proposal)
    assert await _deliver(forge, proposal) == first
    assert len(forge.pulls) == 1


async def test_a_pull_request_is_opened_as_the_person_who_asked_where_their_token_is_known(
    forge: Forge, tmp_path: Path
) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    forge.people = {"ann-0123456789": "ann", "bob-0123456789": "bob"}
    place = place_of(forge, people={"ann": "ann-0123456789", "@eve": "revoked-0123456789"})
    openers = list[str]()
    for number, who in enumerate(("ann", "bob", "@ann", "@eve")):
        asked = replace(proposal, branch=f"cloister/fix-{number}", who=who)
        sent = await Hosted(place).deliver(asked)
        assert sent is not None
        assert sent.number == number + 1
        openers.append(forge.pulls[-1].who)
    assert openers == ["ann", "cloister", "cloister", "cloister"]
    # A later round updates it with the token of the settings.
    await Hosted(place).deliver(replace(proposal, branch="cloister/fix-0", who="ann", page="Again"))
    assert (forge.pulls[0].body, forge.pulls[0].who) == ("Again", "ann")


async def test_pictures_are_in_the_text_where_the_forge_keeps_them_and_nowhere_in_the_way(
    forge: Forge, tmp_path: Path
) -> None:
    proposal = replace(await _proposal(forge, tmp_path / "run.git"), page="## Asked\n")
    looks = PagePictures("index-html-1280x800.png", b"\x89PNG before \0\xff", b"\x89PNG after")
    sent = await _deliver(
        forge, replace(proposal, pictures=(looks, replace(looks, name="new.png", before=b"")))
    )
    assert sent.number == 1
    body = forge.pulls[0].body
    if forge.kind not in ("gitlab", "gitea"):
        assert (body, forge.uploads) == ("## Asked\n", {})
        return
    assert sorted(one.encode("latin-1") for one in forge.uploads.values()) == sorted(
        (looks.before, looks.after, looks.after)
    )
    before, after, new = (at if forge.kind == "gitlab" else f"{forge.url}{at}" for at in forge.uploads)
    assert body.startswith("## Asked\n")
    assert f"| `index-html-1280x800.png` | ![before]({before}) | ![after]({after}) |\n" in body
    assert f"| `new.png` |  | ![after]({new}) |\n" in body
    # A forge that refuses them gets the pull request all the same.
    forge.faults.append(lambda asked: (413, {}) if asked.path.endswith(("uploads", "assets")) else None)
    sent = await _deliver(forge, replace(proposal, branch="cloister/other", pictures=(looks,)))
    assert (sent.number, forge.pulls[1].body) == (2, "## Asked\n")


@one_kind
async def test_a_lost_reply_leads_to_one_pull_request(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    await _deliver(forge, proposal)  # pushes, so that the next POST is the one that opens
    forge.pulls.clear()
    forge.lost.add("POST")
    assert (await _deliver(forge, proposal)).number == 1
    assert len(forge.pulls) == 1


async def test_a_later_round_moves_the_branch_and_updates_the_pull_request(
    forge: Forge, tmp_path: Path
) -> None:
    bare = tmp_path / "run.git"
    first = await _proposal(forge, bare)
    await _deliver(forge, first)
    tree = oid((await in_bare(bare, "rev-parse", f"{first.commit}^{{tree}}")).out)
    commit = await commit_tree(bare, tree, first.commit, "Fix it again", Author("Ann <ann@example.org>"))
    second = Proposal(
        first.run,
        first.repository,
        first.base,
        commit,
        first.branch,
        bare,
        previous=first.commit,
        onto="main",
    )
    sent = await _deliver(forge, await describe(second))
    assert (sent.branch, sent.number) == ("cloister/fix", 1)
    assert _branches(forge)["cloister/fix"] == commit
    assert [one.title for one in forge.pulls] == ["Fix it again"]


@one_kind
async def test_a_branch_of_another_person_stays_where_it_is(forge: Forge, tmp_path: Path) -> None:
    await in_bare(forge.root / "team/shop.git", "branch", "cloister/fix", "main")
    before = _branches(forge)["cloister/fix"]
    sent = await _deliver(forge, await _proposal(forge, tmp_path / "run.git"))
    assert sent.branch == "cloister/fix-2"
    assert _branches(forge)["cloister/fix"] == before


@one_kind
async def test_a_merged_pull_request_is_left_alone_and_another_is_opened(
    forge: Forge, tmp_path: Path
) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    await _deliver(forge, proposal)
    forge.pulls[0].state = "merged"
    assert (await _deliver(forge, proposal)).number == 2


@one_kind
@pytest.mark.parametrize("end", ["merged", "closed"])
async def test_nothing_is_pushed_to_the_branch_of_a_pull_request_that_ended(
    forge: Forge, tmp_path: Path, end: str
) -> None:
    first = await _proposal(forge, tmp_path / "run.git")
    await _deliver(forge, first)
    forge.pulls[0].state = end
    tree = oid((await in_bare(first.bare, "rev-parse", f"{first.commit}^{{tree}}")).out)
    commit = await commit_tree(first.bare, tree, first.commit, "More", Author("Ann <ann@example.org>"))
    later = replace(first, commit=commit, previous=first.commit)
    with pytest.raises(OutsideError, match=f"Pull request 1 at .* was {end} .* `cloister pr r-1`") as caught:
        await _deliver(forge, replace(later, follows="cloister/fix"))
    assert (caught.value.code, caught.value.retryable) == ("pull_request_ended", False)
    assert len(forge.pulls) == 1
    sent = await _deliver(forge, later)
    assert (sent.branch, sent.number) == ("cloister/fix-2", 2)
    assert _branches(forge)["cloister/fix"] == first.commit


@one_kind
async def test_the_branch_of_a_merged_pull_request_is_deleted_also_if_a_later_change_was_not_delivered(
    forge: Forge, tmp_path: Path
) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    sent = delivery(await _deliver(forge, proposal))
    forge.pulls[0].state = "merged"

    async def bare(_: RunId) -> Path:
        return proposal.bare

    async def tell(_: RunId, prompt: PromptReceived) -> None:
        raise AssertionError(prompt)

    async with open_backbone(tmp_path / "log.db", owner_lives=lambda _: True) as backbone:
        run, _ = await backbone.admit(NewRun("Fix it", proposal.repository), "ann")
        fence = await backbone.claim(new_owner_id(), run)
        assert fence is not None
        later = ChangeMade("cloister/fix", "d" * 40, (), "More.")
        failed = DeliveryFailed(proposal.repository, "It was merged.")
        made = ChangeMade("cloister/fix", proposal.commit, (), "Fixed.")
        await backbone.append(fence, (made, sent, later, failed, RunFinished("proven", "More.", 0)))
        ended, forges = tmp_path / "ended", Forges(places=(place_of(forge),))
        marks = Marks(b"k" * 32)
        follower = Follower(forges, backbone, backbone.read, tell, bare, "ann", marks, ended, 0)
        assert await follower.look() == set()
        assert "PullRequestEnded" in [one.kind for one in await backbone.audit()]
    assert "cloister/fix" not in _branches(forge)


@one_kind
async def test_a_delivery_waits_as_long_as_the_forge_asks(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.forge.pulls.http._WAIT_SECONDS", 0.1)
    monkeypatch.setattr("cloister.runs.delivery._FIRST_PAUSE_SECONDS", 0.01)
    proposal, times = await _proposal(forge, tmp_path / "run.git"), list[float]()

    def limited(asked: Request) -> Reply | None:
        times.append(time.monotonic())
        return (429, {"message": "slow down"}, {"Retry-After": "1"}) if len(times) == 1 else None

    forge.faults.append(limited)
    async with open_backbone(tmp_path / "log.db", owner_lives=lambda _: True) as backbone:
        run, _ = await backbone.admit(NewRun("Fix it", proposal.repository), "ann")
        fence = await backbone.claim(new_owner_id(), run)
        assert fence is not None
        async with open_journal(backbone, fence) as journal:
            await deliver_patiently(Forges(places=(place_of(forge),)), journal, proposal)
            (sent,) = journal.index.of(ChangeDelivered)
    assert sent.number == 1
    assert times[1] - times[0] >= 1
    forge.faults.append(lambda asked: (429, {}, {"Retry-After": "3601"}))
    count = len(forge.requests)
    with pytest.raises(OutsideError, match="for another 3601 s") as caught:
        await _deliver(forge, proposal)
    assert (caught.value.retryable, caught.value.after, len(forge.requests)) == (True, 3601, count + 1)


@one_kind
async def test_a_protected_branch_is_refused_with_the_forges_reason(forge: Forge, tmp_path: Path) -> None:
    hook = forge.root / "team/shop.git/hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'this branch is protected' >&2\nexit 1\n")
    hook.chmod(0o755)
    proposal = await _proposal(forge, tmp_path / "run.git")
    with pytest.raises(OutsideError) as caught:
        await _deliver(forge, proposal)
    assert (caught.value.code, caught.value.retryable) == ("forge_refused", False)
    assert forge.pulls == []


@one_kind
async def test_a_revoked_token_is_said_and_loses_nothing(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    with pytest.raises(OutsideError) as caught:
        await _deliver(forge, proposal, "revoked-token-0123456789")
    assert (caught.value.code, caught.value.retryable) == ("forge_denied", False)
    assert "revoked-token" not in caught.value.message
    assert (await in_bare(proposal.bare, "cat-file", "-e", proposal.commit)).ok


@one_kind
async def test_a_token_that_is_revoked_in_the_middle_of_a_push_loses_nothing(
    forge: Forge, tmp_path: Path
) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    forge.revoked_after = "service=git-receive-pack"  # the push has begun, and its pack is still to come
    with pytest.raises(OutsideError) as caught:
        await _deliver(forge, proposal)
    assert (caught.value.code, caught.value.retryable) == ("forge_denied", False)
    assert "cloister/fix" not in _branches(forge)
    forge.revoked, forge.revoked_after = False, ""
    assert (await _deliver(forge, proposal)).branch == "cloister/fix"


@one_kind
async def test_a_forge_that_is_down_may_be_tried_later(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    forge.faults.append(lambda asked: (503, {}))
    with pytest.raises(OutsideError) as caught:
        await _deliver(forge, proposal)
    assert caught.value.retryable


@one_kind
async def test_a_forge_that_stays_down_leaves_the_change_with_the_run_until_it_is_back(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.core.limits.DELIVERY_SECONDS", 0.5)  # in place of an hour
    monkeypatch.setattr("cloister.runs.delivery._FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("cloister.runs.delivery._LONGEST_PAUSE_SECONDS", 0.05)
    proposal, tries = await _proposal(forge, tmp_path / "run.git"), list[float]()

    def down(asked: Request) -> Reply:
        tries.append(time.monotonic())
        return 502, {}

    forge.faults.append(down)
    forges = Forges(places=(place_of(forge),))
    async with open_backbone(tmp_path / "log.db", owner_lives=lambda _: True) as backbone:
        run, _ = await backbone.admit(NewRun("Fix it", proposal.repository), "ann")
        fence = await backbone.claim(new_owner_id(), run)
        assert fence is not None
        async with open_journal(backbone, fence) as journal:
            with pytest.raises(OutsideError) as caught:
                await deliver_patiently(forges, journal, proposal)
            assert caught.value.code == "forge_unreachable"
            assert len(tries) > 3
            assert (await in_bare(proposal.bare, "cat-file", "-e", proposal.commit)).ok
            forge.faults.clear()
            await deliver_patiently(forges, journal, proposal)
            assert [one.number for one in journal.index.of(ChangeDelivered)] == [1]


async def test_a_renamed_repository_gets_its_pull_request_and_one_that_is_gone_is_named(
    forge: Forge, tmp_path: Path
) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    forge.renamed = True
    assert (await _deliver(forge, proposal)).number == 1
    assert _branches(forge)["cloister/fix"] == proposal.commit
    forge.renamed = False
    (forge.root / "team/shop.git").rename(forge.root / "team/gone.git")
    with pytest.raises(OutsideError) as caught:
        await _deliver(forge, replace(proposal, branch="cloister/other"))
    assert (caught.value.code, caught.value.retryable) == ("forge_missing", False)
    assert (await in_bare(proposal.bare, "cat-file", "-e", proposal.commit)).ok


@one_kind
async def test_the_token_is_in_no_file_of_the_run(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    await _deliver(forge, proposal)
    for path in (tmp_path / "run.git").rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


@one_kind
async def test_every_spelling_of_an_address_finds_its_forge(forge: Forge) -> None:
    forges = Forges(dict(os.environ), [place_of(forge)])
    host = forge.url.removeprefix("http://")
    for address in (
        f"https://{host}/team/shop",
        f"http://{host}/team/shop.git",
        f"ssh://git@{host}/team/shop.git",
    ):
        found = forges.hosted(address)
        assert found is not None, address
        assert found.path(address) == "team/shop"
    assert forges.hosted("https://other.example.org/team/shop") is None
    assert forges.hosted("/srv/team/shop") is None


async def test_the_page_of_a_pull_request_leads_to_its_change(forge: Forge) -> None:
    made = forge.open("fix", "main", "Fix", "")
    words = {"github": "pull", "gitlab": "-/merge_requests", "gitea": "pulls", "bitbucket": "pull-requests"}
    repo = f"{forge.url}/team/shop"
    page = f"{repo}/{words.get(forge.kind, 'pull-request')}/{made.number}"
    found = await pull_at(Forges(places=(place_of(forge),)), page)
    assert found in ((repo, forge.commit("fix")), (repo, "fix"))


@one_kind
async def test_a_branch_is_deleted_only_while_it_ends_at_our_commit(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    await _deliver(forge, proposal)
    hosted = Hosted(place_of(forge))
    at = (proposal.bare, proposal.repository, "cloister/fix")
    assert not await hosted.remove_branch(*at, proposal.base)
    assert "cloister/fix" in _branches(forge)
    assert await hosted.remove_branch(*at, proposal.commit)
    assert "cloister/fix" not in _branches(forge)
    assert not await hosted.remove_branch(*at, proposal.commit)
