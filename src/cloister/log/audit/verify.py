"""Verification of the audit: every entry, every signature, and the log that it covers. Pure."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from cloister.log.audit.chain import kind_of
from cloister.log.audit.details import AUDITED_KINDS
from cloister.log.audit.entry import (
    FIRST,
    AuditEntry,
    Checkpoint,
    entry_hash,
    extended,
    microseconds,
    signed_bytes,
)
from cloister.log.audit.keys import valid

PROBLEMS = 20
"""How many findings are kept; one is enough to distrust the rest."""

T = TypeVar("T")


class Flaw(msgspec.Struct, frozen=True):
    """Something that differs from what was written."""

    why: str
    number: int | None = None
    """The entry."""
    run: str | None = None
    seq: int | None = None
    """The event."""


class Verdict(msgspec.Struct, frozen=True):
    """The findings; `ok` without any."""

    ok: bool
    entries: int
    checkpoints: int
    head: str
    signed: int
    """The newest entry that a trusted signature covers; only the chain protects later ones."""
    key: str | None
    """The key that trust started from: the pinned one, else the first of the chain."""
    problems: tuple[Flaw, ...] = ()


class _Chain(msgspec.Struct):
    """The result of the first pass, for the others."""

    signed: dict[int, str | None]
    """Numbers that checkpoints sign → the hash of that entry; None while no such entry was seen."""
    newest: int = 0
    head: str = FIRST
    backfilled: int = 0
    ends: dict[str, int] = {}
    """Run → the number of the entry of its end."""
    excused: set[str] = set()
    """Runs whose end could not be signed, according to an entry."""
    keys: list[tuple[int, str, str | None]] = []
    """Number, key, previous key."""


class StoredEvent(NamedTuple):
    """An event as it is on disk."""

    run: str
    seq: int
    at: float
    body: bytes


class RunEnd(NamedTuple):
    """How far a run's log goes, according to the run's own row."""

    last_seq: int
    log: str
    """The hash over the whole log."""


class AuditRecords(Protocol):
    """One moment of the audit and the log beside it, whatever stores them."""

    def entries(self) -> Iterator[AuditEntry]:
        """By number."""
        ...

    def entries_of_runs(self) -> Iterator[AuditEntry]:
        """Those with a run, by run and seq."""
        ...

    def highest_number(self) -> int | None:
        """The highest number that was ever given; None when the store does not remember it."""
        ...

    def checkpoints(self) -> list[Checkpoint]:
        """In the order in which they were written."""
        ...

    def events(self) -> Iterator[StoredEvent]:
        """By run and seq."""
        ...

    def run_ends(self) -> dict[str, RunEnd]: ...


def verify(records: AuditRecords | None, pinned: str | None = None) -> Verdict:
    """Check every entry, signature and event. Trust starts at `pinned`, a public key, or at the first key of the chain.

    `records` is None for an audit that was never begun.
    """
    if records is None:
        return Verdict(True, 0, 0, FIRST, 0, pinned)
    checkpoints = records.checkpoints()
    chain = _Chain(signed={each.number: None for each in checkpoints})
    # What the chain says of itself is exact and comes first; what follows from it may point at a neighbour.
    problems = _some(_entries(records, chain))
    trust = _trusted(chain, checkpoints, pinned)
    others = _some(_signatures(chain, checkpoints, trust)) + _some(_log(records))
    problems += sorted(others, key=lambda problem: (problem.number is None, problem.number or 0))
    return Verdict(
        ok=not problems,
        entries=chain.newest,
        checkpoints=len(checkpoints),
        head=chain.head,
        signed=max((c.number for c in checkpoints if c.key in trust.keys), default=0),
        key=trust.root,
        problems=tuple(problems[:PROBLEMS]),
    )


def _some(problems: Iterator[Flaw]) -> list[Flaw]:
    """Examine all, keep the first."""
    return [problem for position, problem in enumerate(problems) if position < PROBLEMS]


def _entries(records: AuditRecords, chain: _Chain) -> Iterator[Flaw]:
    """Check the chain by itself: numbers, links, hashes."""
    for entry in records.entries():
        if entry.number != chain.newest + 1:
            gone = f"{chain.newest + 1}" + (
                f" to {entry.number - 1}" if entry.number > chain.newest + 2 else ""
            )
            yield Flaw(f"Entry {gone} was removed.", chain.newest + 1)
        elif entry.previous != chain.head:
            yield Flaw(
                f"Entry {entry.number} does not follow entry {entry.number - 1}: one of them was edited, "
                "or their order was.",
                entry.number,
            )
        if entry_hash(entry) != entry.hash:
            yield Flaw(f"Entry {entry.number} was edited: its hash is not that of its content.", entry.number)
        chain.newest, chain.head = entry.number, entry.hash
        if entry.number in chain.signed:
            chain.signed[entry.number] = entry.hash
        _remember(chain, entry)
    highest = records.highest_number()
    if highest is not None and highest != chain.newest:
        why = f"The audit ends with entry {chain.newest} and once had entry {highest}: its end was cut off."
        yield Flaw(why, chain.newest + 1)


def _remember(chain: _Chain, entry: AuditEntry) -> None:
    match entry:
        case AuditEntry(kind="RunFinished", run=str(run)):
            chain.ends[run] = entry.number
        case AuditEntry(kind="Backfilled", run=None):
            chain.backfilled = entry.number
        case AuditEntry(kind="Unsigned" | "KeyMade", run=None):
            try:
                detail = msgspec.json.decode(entry.detail, type=dict[str, str | None])
            except msgspec.DecodeError:
                return  # its hash shows the edit
            if entry.kind == "Unsigned" and (run := detail.get("run")):
                chain.excused.add(run)
            elif key := detail.get("key"):
                chain.keys.append((entry.number, key, detail.get("previous")))
        case _:
            pass


class _Trust(NamedTuple):
    root: str | None
    keys: frozenset[str]


def _trusted(chain: _Chain, checkpoints: list[Checkpoint], pinned: str | None) -> _Trust:
    """Trust the first key, and each key that a trusted one introduced with a signature over the entry that names it.

    A later signature of the old key does not vouch for a key that was slipped in between.
    """
    root = pinned or (chain.keys[0][1] if chain.keys else None)
    if root is None:
        return _Trust(None, frozenset())
    keys = {root}
    for number, key, before in chain.keys:
        if before in keys and any(c.key == before and c.number == number for c in checkpoints):
            keys.add(key)
    return _Trust(root, frozenset(keys))


def _signatures(chain: _Chain, checkpoints: list[Checkpoint], trust: _Trust) -> Iterator[Flaw]:
    introduced = {key: number for number, key, _ in reversed(chain.keys)}
    for each in checkpoints:
        data = signed_bytes(each.number, each.hash, each.at_us, each.run, each.key)
        if not valid(each.key, each.signature, data):
            yield Flaw(f"The signature over entry {each.number} is not valid.", each.number)
            continue
        found = chain.signed[each.number]
        if found is None:
            why = f"Entry {each.number} was signed and is gone: the audit was cut off after entry {chain.newest}."
            yield Flaw(why, min(each.number, chain.newest + 1))
        elif found != each.hash:
            yield Flaw(
                f"Entry {each.number} is not the one that was signed: it or one before it was edited.",
                each.number,
            )
        elif introduced.get(each.key, each.number + 1) > each.number:
            yield Flaw(
                f"Entry {each.number} was signed with a key that no entry before it names.", each.number
            )
    if checkpoints and max(checkpoints, key=lambda each: each.number).key not in trust.keys:
        number = max(each.number for each in checkpoints)
        yield Flaw(
            f"The newest signature, over entry {number}, is of a key that the trusted one did not introduce: "
            "if you know that the key was replaced, verify with --key and the new one.",
            number,
        )
    elif trust.root is not None and not checkpoints and chain.ends:
        yield Flaw("No signature is left.", chain.newest)
    signed = {each.run for each in checkpoints}
    for run, number in chain.ends.items():
        if run not in signed and run not in chain.excused and number > chain.backfilled:
            yield Flaw(f"The signature over the end of run {run} was removed.", number, run)


def _log(records: AuditRecords) -> Iterator[Flaw]:
    """Compare the log with the chain, both ordered by run and event."""
    audited = _Peek(records.entries_of_runs())
    ends = records.run_ends()
    run, seq, log = "", 0, FIRST
    for event in records.events():
        if event.run != run:
            yield from _run_end(run, seq, log, ends)
            run, seq, log = event.run, 0, FIRST
        seq += 1
        yield from _without_event(audited, (event.run, event.seq))
        if event.seq != seq:
            yield Flaw(f"Event {seq} of run {run} was removed.", None, run, seq)
            seq = event.seq
        log = extended(log, event.seq, microseconds(event.at), event.body)
        entry = audited.next if audited.next and _place(audited.next) == (event.run, event.seq) else None
        if entry is not None:
            audited.step()
        yield from _compared(event, entry, log)
        log = log if entry is None or entry.log is None else entry.log
    yield from _run_end(run, seq, log, ends)
    yield from _without_event(audited, None)


def _place(entry: AuditEntry) -> tuple[str, int]:
    return entry.run or "", entry.seq or 0


def _compared(event: StoredEvent, entry: AuditEntry | None, log: str) -> Iterator[Flaw]:
    """Compare one event with its entry."""
    place = f"event {event.seq} of run {event.run}"
    try:
        kind = kind_of(event.body)
    except msgspec.DecodeError:
        yield Flaw(f"The body of {place} is no event.", entry and entry.number, event.run, event.seq)
        return
    if entry is None:
        if kind in AUDITED_KINDS:
            why = f"The entry of {place} ({kind}) is missing."
            yield Flaw(why, None, event.run, event.seq)
        return
    if entry.log != log:
        why = (
            f"Up to {place} the log is not the one that entry {entry.number} speaks of: an event was edited."
        )
        yield Flaw(why, entry.number, event.run, event.seq)
    elif entry.kind != kind or entry.at_us != microseconds(event.at):
        yield Flaw(f"Entry {entry.number} is not that of {place}.", entry.number, event.run, event.seq)


def _run_end(run: str, seq: int, log: str, ends: dict[str, RunEnd]) -> Iterator[Flaw]:
    """Check the end of a log: only the run's row covers the events after its last entry."""
    if run and ends[run] != (seq, log):
        last = ends[run].last_seq
        what = "was edited" if last == seq else f"ends with event {seq} and should end with {last}"
        yield Flaw(f"The end of the log of run {run} {what}.", None, run, seq)


def _without_event(audited: "_Peek[AuditEntry]", until: tuple[str, int] | None) -> Iterator[Flaw]:
    """Report entries before `until` whose events are missing."""
    while audited.next is not None and (until is None or _place(audited.next) < until):
        entry = audited.step()
        yield Flaw(
            f"Entry {entry.number} speaks of event {entry.seq} of run {entry.run}, which was removed.",
            entry.number,
            entry.run,
            entry.seq,
        )


class _Peek(Iterator[T]):
    """An iterator with a look-ahead of one item."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self.next: T | None = next(items, None)

    def __next__(self) -> T:
        return self.step()

    def step(self) -> T:
        found = self.next
        if found is None:
            raise StopIteration
        self.next = next(self._items, None)
        return found
