"""A repository at a forge: fetched and pushed with the token, which is found nowhere else; one pull request per branch."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.forge.pulls.conftest import place_of
from tests.forge.pulls.wires import TOKEN, Forge

from cloister.core.errors import OutsideError
from cloister.core.ids import RunId
from cloister.forge import Forges
from cloister.forge.api import Delivered, Proposal
from cloister.forge.change import commit_tree, describe
from cloister.forge.host import in_bare, oid
from cloister.forge.pulls.hosted import Hosted

pytestmark = pytest.mark.anyio

one_kind = pytest.mark.parametrize("forge", ["gitea"], indirect=True)
"""For what the kinds share."""


async def _proposal(forge: Forge, into: Path, message: str = "Fix the total\n\nBecause.") -> Proposal:
    """A commit on top of `main` in the run's own repository."""
    repo = f"{forge.url}/team/shop"
    base = await Hosted(place_of(forge)).fetch(repo, None, into)
    tree = oid((await in_bare(into, "rev-parse", f"{base.commit}^{{tree}}")).out)
    commit = await commit_tree(into, tree, base.commit, message, "Ann <ann@example.org>", at=1_700_000_000)
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
    commit = await commit_tree(bare, tree, first.commit, "Fix it again", "Ann <ann@example.org>")
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
async def test_a_forge_that_is_down_may_be_tried_later(forge: Forge, tmp_path: Path) -> None:
    proposal = await _proposal(forge, tmp_path / "run.git")
    forge.faults.append(lambda asked: (503, {}))
    with pytest.raises(OutsideError) as caught:
        await _deliver(forge, proposal)
    assert caught.value.retryable


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
