"""When a schedule is due: five cron fields in a time zone. Pure."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = {
    **{"jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6},
    **{"jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12},
}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_RANGES: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_PART = re.compile(r"(\*|[0-9a-z]{1,3})(?:-([0-9a-z]{1,3}))?(?:/([0-9]{1,4}))?")
_DAYS_AHEAD = 366 * 9
"""A leap day comes at least once in this time."""


class Cron(NamedTuple):
    """A schedule as sets of numbers."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_day: bool
    any_weekday: bool
    any_hour: bool

    def on(self, day: date) -> bool:
        """True if it has a time on this day. Where both kinds of days are named, one of them is enough."""
        by_day, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        both = not self.any_day and not self.any_weekday
        return day.month in self.months and (by_day or by_week if both else by_day and by_week)


def read_cron(text: str) -> Cron:
    """Raises `ValueError` with the reason."""
    fields = _NICKNAMES.get(text.strip().lower(), text).lower().split()
    if len(fields) != 5:
        raise ValueError("cron has five fields: minute, hour, day of the month, month, day of the week")
    sets = [_numbers(field, *limits) for field, limits in zip(fields, _RANGES, strict=True)]
    sets[4] = frozenset(one % 7 for one in sets[4])
    free = [field.startswith("*") for field in fields]
    found = Cron(*sets, any_day=free[2], any_weekday=free[4], any_hour=fields[1] == "*")
    if not any(True for day in _days(date(2024, 1, 1)) if found.on(day)):
        raise ValueError("cron names no day that exists")
    return found


def _numbers(field: str, what: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is no {what}")
        first, last, step = match.groups()
        start = low if first == "*" else names.get(first, _number(first))
        end = names.get(last, _number(last)) if last else high if first == "*" or step else start
        if not low <= start <= end <= high or step == "0" or (first == "*" and last):
            raise ValueError(f"{part[:40]!r} is no {what}: it is from {low} to {high}")
        found.update(range(start, end + 1, int(step or "1")))
    return frozenset(found)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def check_cron(text: str, zone: str) -> str | None:
    """Why a schedule cannot be used; None if it can."""
    try:
        read_cron(text)
        read_zone(zone)
    except ValueError as error:
        return str(error)
    return None


def read_zone(name: str) -> ZoneInfo:
    """Raises `ValueError`."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError(f"zone is a name such as Europe/Berlin or UTC, not {name[:80]!r}") from None


def next_time(cron: Cron, zone: ZoneInfo, after: float) -> float:
    """The first time that is later, in Unix seconds."""
    for day in _days(datetime.fromtimestamp(after, zone).date()):
        for at in _times(cron, zone, day):
            if at > after:
                return at
    raise AssertionError("a schedule that was read has a time")


def last_time(cron: Cron, zone: ZoneInfo, since: float, now: float) -> float | None:
    """The latest time in `since < time <= now`; None without one. Missed times count once so."""
    day, first = datetime.fromtimestamp(now, zone).date(), datetime.fromtimestamp(since, zone).date()
    while day >= first:
        found = [at for at in _times(cron, zone, day) if since < at <= now]
        if found:
            return found[-1]
        day -= timedelta(days=1)
    return None


def _days(first: date) -> Iterator[date]:
    return (first + timedelta(days=number) for number in range(_DAYS_AHEAD))


def _times(cron: Cron, zone: ZoneInfo, day: date) -> list[float]:
    """Unix seconds of each time on a day.

    When clocks are set forward, a named hour that is left out counts as the hour after it. When they are set back, a
    named hour counts once, and a schedule of every hour goes on.
    """
    if not cron.on(day):
        return []
    found: set[float] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
            at = wall.timestamp()
            there = datetime.fromtimestamp(at, zone).replace(tzinfo=UTC) == wall.replace(tzinfo=UTC)
            if there or not cron.any_hour:
                found.add(at)
            if there and cron.any_hour:
                found.add(wall.replace(fold=1).timestamp())
    return sorted(found)
