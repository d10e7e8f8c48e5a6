"""Deliver a commit of a run's repository with plain git."""

from pathlib import Path

from cloister.core.ids import RunId
from cloister.forge.api import Delivered, Proposal
from cloister.forge.change import describe
from cloister.forge.plain_git import PlainGit


async def deliver(
    bare: Path, commit: str, branch: str, repo: str, previous: str | None = None
) -> Delivered | None:
    proposal = Proposal(RunId("r-forge"), repo, commit, commit, branch, bare, previous=previous)
    return await PlainGit().deliver(await describe(proposal))
