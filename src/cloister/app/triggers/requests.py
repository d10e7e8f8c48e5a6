"""What deliveries and the clock ask for, as tasks that survive a crash. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from cloister.app.triggers.entries import (
    HookTrigger,
    LabelTrigger,
    MentionTrigger,
    ScheduleTrigger,
    TriggerEntry,
    allows,
    fill,
    origin_of,
)
from cloister.app.verbs.records import RunWish
from cloister.core.text import one_line
from cloister.forge.hooks import look_up
from cloister.forge.pulls.api import Spot
from cloister.forge.pulls.asks import Heard, mentions
from cloister.forge.pulls.marks import looks_marked
from cloister.log.sqlite.inbox import Delivery, Task

ASK, TELL = "ask", "tell"
"""Kinds of tasks: start a run; tell the place that asked how the run ended."""


class Ask(msgspec.Struct, frozen=True):
    """A request for a run, before it is known whether the person may make it."""

    repo: str
    prompt: str
    who: str
    ref: str | None = None
    person: str = ""
    """Who must be allowed to push, as the forge names them; empty: the request was authenticated."""
    spot: Spot | None = None
    """Where the result goes."""


class Tell(msgspec.Struct, frozen=True):
    """A run whose end is posted where the request came from."""

    repo: str
    spot: Spot | None = None
    started: bool = False
    """True once the place knows of the run."""


def task(kind: str, name: str, trigger: str, value: Ask | Tell) -> Task:
    """A task with its value."""
    return Task(f"{kind} {name}", kind, trigger, msgspec.json.encode(value))


def wish(entry: TriggerEntry, ask: Ask, key: str | None) -> RunWish:
    """The run that a trigger starts."""
    return RunWish(
        ask.prompt,
        ask.repo,
        ref=ask.ref,
        checks=entry.checks,
        model=entry.model,
        kind=entry.kind,
        harness=entry.harness,
        tier=entry.tier,
        template=entry.template,
        setup=entry.setup,
        budget=entry.budget,
        rules=entry.rules,
        allow_hosts=entry.allow_hosts,
        exclude_tests=entry.exclude_tests,
        allow_test_changes=entry.allow_test_changes,
        pull_request=entry.pull_request,
        origin=origin_of(entry),
        key=key,
        issue=ask.spot.number if ask.spot is not None and ask.spot.kind == "issue" else None,
    )


def asks_of(
    entries: Sequence[TriggerEntry], host: str, told: Heard, labels: Mapping[str, str]
) -> tuple[list[Task], dict[str, str | None]]:
    """The runs that something at a forge asks for, and the marks that remember which labels are there.

    `labels` are the marks of before. A comment of ours asks for nothing.
    """
    address = f"https://{host}/{told.path}"
    tasks: list[Task] = []
    marks: dict[str, str | None] = {}
    for entry in entries:
        match entry:
            case LabelTrigger():
                wanted = _new_label(entry, address, told, labels, marks)
            case MentionTrigger():
                wanted = not looks_marked(told.said) and mentions(told.said, entry.mention)
            case _:
                continue
        if wanted and allows(entry, address):
            tasks.append(
                task(ASK, f"{entry.name} {address} {told.id}", entry.name, ask_at(entry, address, told))
            )
    return tasks, marks


def label_mark(entry: LabelTrigger, address: str, spot: Spot) -> str:
    """The mark that says that the label is there."""
    return f"label {entry.name} {address} {spot.kind} {spot.number}"


def _new_label(
    entry: LabelTrigger,
    address: str,
    told: Heard,
    labels: Mapping[str, str],
    marks: dict[str, str | None],
) -> bool:
    there = any(one.casefold() == entry.label.casefold() for one in told.labels)
    if not told.all:
        return there
    mark = label_mark(entry, address, told.spot)
    marks[mark] = "there" if there else None
    return there and mark not in labels


def ask_at(entry: LabelTrigger | MentionTrigger, address: str, told: Heard) -> Ask:
    """The request for a run that something at a forge makes."""
    values = {
        "title": told.title,
        "body": told.body,
        "said": told.said if told.said != told.body else "",
        "who": told.who,
        "url": told.url,
        "number": str(told.spot.number),
        "repo": address,
        "label": entry.label if isinstance(entry, LabelTrigger) else "",
    }
    # A field without a value is left out: an issue without a text is usual.
    prompt = fill(entry.prompt, lambda name: values.get(name, "") if name in values else None)
    return Ask(address, prompt, f"{one_line(told.who, 80)} (trigger)", told.ref, told.person, told.spot)


def ask_of_hook(entry: HookTrigger, delivery: Delivery) -> Task:
    """The run that a webhook of any sender asks for. Raises `ValueError` for what is not JSON."""
    body = read_json(delivery.body)
    prompt = fill(entry.prompt, lambda path: look_up(body, path))
    return task(
        ASK, f"{entry.name} {delivery.name}", entry.name, Ask(entry.repo, prompt, _own(entry), entry.ref)
    )


def ask_of_tick(entry: ScheduleTrigger, at: float) -> Task:
    """The run that the clock asks for."""
    return task(
        ASK, f"{entry.name} {at:.0f}", entry.name, Ask(entry.repo, entry.prompt, _own(entry), entry.ref)
    )


def _own(entry: TriggerEntry) -> str:
    return f"trigger {entry.name}"


def read_json(body: bytes) -> object:
    """Raises `ValueError`."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
