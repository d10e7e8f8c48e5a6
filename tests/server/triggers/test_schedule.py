"""Schedules: cron's fields in a time zone, over changes of the clocks; wrong ones are refused with the reason."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from cloister.app.settings import read_settings
from cloister.core.errors import UserError
from cloister.core.system.schedule import check_cron, last_time, next_time, read_cron

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, BERLIN).strftime("%Y-%m-%d %H:%M %z")


@pytest.mark.parametrize(
    ("cron", "after", "due"),
    [
        ("*/15 * * * *", "2026-05-01 10:14", "2026-05-01 10:15 +0200"),
        ("0 9-17/4 * * mon-fri", "2026-05-01 17:30", "2026-05-04 09:00 +0200"),
        ("5,10 3 1 jan *", "2026-05-01 00:00", "2027-01-01 03:05 +0100"),
        ("0 0 29 2 *", "2026-05-01 00:00", "2028-02-29 00:00 +0100"),
        ("0 0 13 * 5", "2026-05-02 00:00", "2026-05-08 00:00 +0200"),  # the 13th, or a Friday
        ("0 0 * * 7", "2026-05-02 00:00", "2026-05-03 00:00 +0200"),
        ("@monthly", "2026-05-02 00:00", "2026-06-01 00:00 +0200"),
        ("30 2 * * *", "2026-03-28 12:00", "2026-03-29 03:30 +0200"),  # 02:30 does not exist
        ("30 2 * * *", "2026-10-25 02:30", "2026-10-26 02:30 +0100"),  # it comes twice, and counts once
    ],
)
def test_the_next_time_is_the_first_that_fits(cron: str, after: str, due: str) -> None:
    assert shown(next_time(read_cron(cron), BERLIN, at(after))) == due


def test_a_schedule_of_every_hour_goes_on_when_clocks_are_set_back() -> None:
    found, seconds = list[str](), at("2026-10-25 01:00")
    for _ in range(3):
        seconds = next_time(read_cron("0 * * * *"), BERLIN, seconds)
        found.append(shown(seconds))
    assert found == ["2026-10-25 02:00 +0200", "2026-10-25 02:00 +0100", "2026-10-25 03:00 +0100"]


def test_of_missed_times_only_the_last_counts() -> None:
    daily = read_cron("@daily")
    assert last_time(daily, BERLIN, at("2026-05-01 12:00"), at("2026-05-09 12:00")) == at("2026-05-09 00:00")
    assert last_time(daily, BERLIN, at("2026-05-01 00:00"), at("2026-05-01 23:59")) is None


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "0 0 31 2 *",
        "x * * * *",
    ],
)
def test_a_wrong_schedule_is_refused(cron: str) -> None:
    assert check_cron(cron, "UTC")
    assert check_cron("* * * * *", "Nowhere/Else")


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('on = "label"\nname = "a b"\nlabel = "x"\nrepos = ["*"]', "small letters"),
        ('on = "label"\nname = "a"\nlabel = "x"\nrepos = []', "name the repositories"),
        ('on = "mention"\nname = "a"\nmention = "@x"\nrepos = ["*"]', "without @"),
        ('on = "label"\nname = "a"\nrepos = ["*"]', "label"),
        ('on = "moon"\nname = "a"', "on"),
        ('on = "schedule"\nname = "a"\ncron = "x"\nrepo = "r"\nprompt = "p"', "five fields"),
        ('on = "schedule"\nname = "a"\ncron = "@daily"\nrepo = "https://u:p@h/r"\nprompt = "p"', "password"),
        ('on = "hook"\nname = "a"\nfrom = "env:X"\nrepo = "r"\nprompt = " "', "prompt is empty"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path: Path, table: str, reason: str) -> None:
    (tmp_path / "config.toml").write_text(f"[[trigger]]\n{table}\n")
    with pytest.raises(UserError, match=reason):
        read_settings({}, tmp_path)
