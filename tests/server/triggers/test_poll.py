"""Labels and mentions at a forge that cannot reach this machine: the server asks it, and each starts one run."""

from pathlib import Path

import pytest
from tests.forge.pulls.talks import Issue, spot_of
from tests.forge.pulls.wires import Forge, Reply, Request
from tests.server.triggers.test_triggers import (
    LABEL,
    MENTION,
    admitted,
    comment,
    forge_with_repository,
    server,
    settled,
    until,
)

from cloister.app.settings import read_settings
from cloister.app.triggers import start
from cloister.app.triggers.poll import POLL
from cloister.app.wiring import App
from cloister.core.errors import UserError

pytestmark = pytest.mark.anyio
OFTEN = "poll = 0.02\n"
TRIGGERS = LABEL + OFTEN + MENTION.replace("HOST/*", "HOST/team/shop") + OFTEN


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(start, "LOOK_SECONDS", 0.05)


def _say(forge: Forge, number: int, who: str, text: str) -> None:
    forge.comments.append((spot_of(forge, number), who, text, "", 0))


async def _looked(app: App, forge: Forge) -> None:
    """Both triggers have read the repository once more than now."""
    assert app.hooks is not None
    inbox, before = app.hooks.inbox, len(forge.requests)

    def lists() -> list[str]:
        new = forge.requests[before:]
        lists = [one.query.keys() for one in new if one.path.rpartition("/")[2] == "issues"]
        return ["labels" if {"labels", "tags"} & one else "news" for one in lists]

    async def done() -> bool:
        # The third list of a trigger begins after its second one was read.
        both = {one for one in lists() if lists().count(one) > 2}
        return len(both) > 1 and len(await inbox.marks(POLL)) == 2

    await until(done)


@pytest.mark.parametrize("kind", ["github", "pagure"])
async def test_a_new_label_and_a_mention_start_one_run_each_also_over_a_restart(
    kind: str, tmp_path: Path
) -> None:
    with forge_with_repository(kind, tmp_path) as forge:
        forge.issues.append(Issue(7, "Old", "", "ann", 0, {"agent": "ann"}))
        _say(forge, 7, "ann", "@bot of before")
        refusals: list[Reply] = [(401, {"message": "Bad credentials"})] * 2

        def fault(asked: Request) -> Reply | None:
            return refusals.pop() if refusals and asked.path.endswith("/issues") else None

        forge.faults.append(fault)
        async with server(forge, tmp_path / "data", TRIGGERS) as (app, _, deliver):
            await _looked(app, forge)
            assert await admitted(app) == []
            forge.issues.append(
                Issue(8, "Totals", "They are wrong.", "ann", len(forge.comments), {"agent": "ann"})
            )
            forge.issues.append(Issue(9, "Mine", "", "eve", len(forge.comments), {"agent": "eve"}))
            _say(forge, 8, "eve", "@bot fix it")
            _say(forge, 8, "ann", "`@bot` is its name")
            _say(forge, 8, "ann", "@bot fix it please")
            if kind == "github":  # a webhook says the same
                await deliver("issue_comment", comment(3, "@bot fix it please"))
            await _looked(app, forge)
            await settled(app)
            assert sorted(one.request.prompt for one in await admitted(app)) == [
                "Totals\n\nThey are wrong.",
                "Totals\n\nThey are wrong.\n\n@bot fix it please",
            ]
            assert {(one.who, one.request.issue) for one in await admitted(app)} == {("ann (trigger)", 8)}
        async with server(forge, tmp_path / "data", TRIGGERS) as (app, _, _):
            await _looked(app, forge)
            assert len(await admitted(app)) == 2
            forge.issues[1].labels.clear()
            await _looked(app, forge)
            forge.issues[1].labels["agent"] = "ann"
            forge.issues[1].at = len(forge.comments)
            await until(lambda: _runs(app, 3))
            await settled(app)
        ended = [text for _, who, text, _, _ in forge.comments if who == "cloister" and "ended" in text]
        assert len(ended) == 3


async def _runs(app: App, count: int) -> bool:
    return len(await admitted(app)) == count


def test_a_trigger_that_polls_names_the_owner_of_its_repositories(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(MENTION.replace("HOST", "git.example.org") + "poll = 60\n")
    with pytest.raises(UserError, match="with one owner"):
        read_settings({"USER": "tester"}, tmp_path)
