"""When an environment of the settings is built: on the first look, on a new commit, at its time, after a failure."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloister.app.settings import read_settings
from cloister.app.triggers.entries import EnvironmentEntry
from cloister.app.triggers.environments import RETRY_SECONDS, Keeper, Look, Made
from cloister.core.errors import UserError

pytestmark = pytest.mark.anyio
NIGHTLY = EnvironmentEntry("/srv/shop", cron="0 4 * * *")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@dataclass
class Machine:
    """A repository, a clock, and what was built when."""

    commit: str = "a"
    now: float = at("2026-05-01 12:00")
    problem: str = ""
    built: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    there: dict[str, float] = field(default_factory=dict[str, float])
    """Commit → when its environment was built."""

    async def tip(self, entry: EnvironmentEntry, bare: Path) -> str:
        return self.commit

    async def build(self, entry: EnvironmentEntry, again: bool) -> Made:
        new = again or self.commit not in self.there
        if new:
            self.built.append((self.commit, again))
        if new and not self.problem:
            self.there[self.commit] = self.now
        return Made(self.commit, Path(), "env-1", new, self.there.get(self.commit, 0.0), self.problem)

    def keeper(self) -> Keeper:
        return Keeper((), self.tip, self.build, lambda: self.now)


async def test_an_environment_is_built_once_for_each_commit() -> None:
    machine, last = Machine(), None
    for commit in ("a", "a", "b", "b"):
        machine.commit = commit
        last = await machine.keeper().look(EnvironmentEntry("/srv/shop"), last)
    assert machine.built == [("a", False), ("b", False)]


async def test_a_schedule_builds_again_once_also_if_its_time_passed_while_no_server_lived() -> None:
    machine = Machine(there={"a": at("2026-04-29 12:00")})
    keeper = machine.keeper()
    last: Look | None = None
    for moment in (
        "2026-05-01 12:00",
        "2026-05-01 12:05",
        "2026-05-02 03:59",
        "2026-05-02 04:00",
        "2026-05-02 04:05",
    ):
        machine.now = at(moment)
        last = await keeper.look(NIGHTLY, last)
    assert machine.built == [("a", True), ("a", True)]


async def test_a_set_up_that_failed_is_tried_again_after_a_while() -> None:
    machine = Machine(problem="no such package")
    keeper = machine.keeper()
    last = await keeper.look(EnvironmentEntry("/srv/shop"), None)
    last = await keeper.look(EnvironmentEntry("/srv/shop"), last)
    assert machine.built == [("a", False)]
    machine.now += RETRY_SECONDS
    await keeper.look(EnvironmentEntry("/srv/shop"), last)
    assert machine.built == [("a", False)] * 2


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('repo = ""', "an environment names its repository"),
        ('repo = "/x"\ncron = "every day"', "cron has five fields"),
        ('repo = "/x"\ncron = "@daily"\nzone = "Mars/Base"', "zone is a name such as Europe/Berlin"),
        ('repo = "/x"\nminutes = 0', "minutes from 0.1 to 10,080, not 0."),
        ('repo = "/x"\nsetup = "off"', "has no set-up: leave the table out."),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, table: str, told: str) -> None:
    (tmp_path / "config.toml").write_text(f"[[environment]]\n{table}\n")
    with pytest.raises(UserError, match="wrong setting") as caught:
        read_settings({"CLOISTER_DATA_DIR": str(tmp_path)})
    assert told in caught.value.message
