"""Verification of the audit: every entry, every signature, the log that it covers, and the heads outside. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from cloister.core.events.run import pause_reason
from cloister.core.limits import PROMPT_CHARS_LISTED
from cloister.core.text import bounded
from cloister.log.audit.chain import kind_of
from cloister.log.audit.details import AUDITED_KINDS
from cloister.log.audit.entry import (
    FIRST,
    AuditEntry,
    Checkpoint,
    entry_hash,
    exact,
    extended,
    microseconds,
    signed_bytes,
)
from cloister.log.audit.head import signed_by_its_key
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


class LostHead(msgspec.Struct, frozen=True):
    """A signed head that the database did not continue."""

    number: int
    hash: str
    key: str


class Accepted(msgspec.Struct, frozen=True):
    """A person accepted the audit as it was, after a restore or with a new key."""

    kept: int
    """The newest entry at that time."""
    lost: LostHead | None
    """The head that was given up; None if it was missing."""
    key: str
    reason: str
    number: int = 0
    """The entry that says so."""
    who: str = ""
    at_us: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The findings; `ok` without any."""

    ok: bool
    entries: int
    checkpoints: int
    head: str
    signed: int
    """The newest entry that a trusted signature covers; only the chain protects later ones."""
    key: str | None
    """The key that trust started from: the pinned one, else the first of the chain, or one that was accepted."""
    problems: tuple[Flaw, ...] = ()
    anchor: Checkpoint | None = None
    """The signed head outside the database."""
    trusted: tuple[str, ...] = ()
    """The keys that may sign heads."""
    accepted: tuple[Accepted, ...] = ()


class _Chain(msgspec.Struct):
    """The result of the first pass, for the others."""

    signed: dict[int, str | None]
    """Numbers that signatures are over → the hash of that entry; None while no such entry was seen."""
    newest: int = 0
    head: str = FIRST
    backfilled: int = 0
    begun: int = 0
    """The entry since which a head is kept outside the database, and times are in whole microseconds."""
    starts: dict[str, int] = {}
    """Run → the number of the entry of its start."""
    ends: list[tuple[str, int]] = []
    """Run and number of each entry of an end; a run that was continued has several."""
    unsigned: list[tuple[str | None, int]] = []
    """Runs whose end could not be signed, according to an entry, and its number."""
    keys: list[tuple[int, str, str | None]] = []
    """Number, key, previous key."""
    accepted: list[Accepted] = []
    forgotten: dict[str, tuple[int, int]] = {}
    """Run → the entry that says that it was removed, and how many events it had."""


class _Removed(msgspec.Struct):
    run: str
    events: int


class StoredEvent(NamedTuple):
    """An event as it is on disk."""

    run: str
    seq: int
    at: float
    body: bytes


class ListedRun(NamedTuple):
    """A run as lists show it. All of it follows from the run's events."""

    id: str
    key: str | None = None
    state: str = "queued"
    outcome: str | None = None
    reason: str | None = None
    prompt: str = ""
    repo: str = ""
    model: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    last_seq: int = 0
    owner: str | None = None
    epoch: int = 0
    who: str = ""
    log: str = FIRST
    """The hash over the whole log."""


class Anchor(NamedTuple):
    """What is kept outside the database. It is read first: the database may be ahead of it, never behind."""

    head: Checkpoint | None = None
    head_problem: str | None = None
    """Why there is no head."""
    key: str | None = None
    """The public half of the host's key."""
    key_problem: str | None = None


class AuditRecords(Protocol):
    """One moment of the audit and the log beside it, whatever stores them."""

    def entries(self) -> Iterator[AuditEntry]:
        """By number."""
        ...

    def entries_of_runs(self) -> Iterator[AuditEntry]:
        """Those with a run, by run and seq."""
        ...

    def damage(self) -> Iterator[str]:
        """Sentences about a store whose structure is not the one that was made."""
        ...

    def highest_number(self) -> int:
        """The highest number that was ever given."""
        ...

    def checkpoints(self) -> list[Checkpoint]:
        """In the order in which they were written."""
        ...

    def events(self) -> Iterator[StoredEvent]:
        """By run and seq."""
        ...

    def listed(self) -> list[ListedRun]:
        """By the order of the list, oldest first."""
        ...


def verify(records: AuditRecords | None, anchor: Anchor, pinned: str | None = None) -> Verdict:
    """Check every entry, signature, event and listed run. Trust starts at `pinned`, a public key, or at the first key.

    `records` is None for a database that is missing or empty.
    """
    if records is None:
        problems = [
            Flaw("There is no audit: the database is missing or empty."),
            *_outside(_Chain({}), anchor),
        ]
        return Verdict(False, 0, 0, FIRST, 0, pinned, tuple(problems), anchor.head)
    checkpoints = records.checkpoints()
    chain = _Chain(signed={each.number: None for each in checkpoints})
    if anchor.head is not None:
        chain.signed[anchor.head.number] = None if anchor.head.number else FIRST
    # What the chain says of itself is exact and comes first; what follows from it may point at a neighbour.
    problems = _some(_entries(records, chain))
    trust = _trusted(chain, checkpoints, anchor, pinned)
    others = _some(_signatures(chain, checkpoints, trust)) + _some(_ends(chain, checkpoints, trust))
    others += _some(_log(records, chain, _gone(chain, checkpoints, trust)))
    problems += sorted(others, key=lambda problem: (problem.number is None, problem.number or 0))
    problems += _anchored(chain, anchor, trust)
    problems += [Flaw(each) for each in records.damage()]
    return Verdict(
        ok=not problems,
        entries=chain.newest,
        checkpoints=len(checkpoints),
        head=chain.head,
        signed=max((c.number for c in checkpoints if c.key in trust.keys), default=0),
        key=trust.root,
        problems=tuple(problems[:PROBLEMS]),
        anchor=anchor.head,
        trusted=tuple(sorted(trust.keys)),
        accepted=tuple(_vouched(chain, checkpoints, trust)),
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
    if highest != chain.newest:
        why = f"The audit ends with entry {chain.newest} and once had entry {highest}: its end was cut off."
        yield Flaw(why, chain.newest + 1)
    if not chain.newest:
        yield Flaw("The audit is empty.")


def _remember(chain: _Chain, entry: AuditEntry) -> None:
    match entry:
        case AuditEntry(kind="RunAdmitted", run=str(run)):
            chain.starts[run] = entry.number
        case AuditEntry(kind="RunFinished", run=str(run)):
            chain.ends.append((run, entry.number))
        case AuditEntry(kind="Backfilled", run=None) if not chain.keys:
            # An older log got its entries before any key. Later, no entry excuses a missing signature.
            chain.backfilled = entry.number
        case AuditEntry(kind="HeadBegun", run=None):
            chain.begun = chain.begun or entry.number
        case AuditEntry(kind="Unsigned" | "KeyMade" | "AuditAccepted" | "RunForgotten", run=None):
            with suppress(msgspec.MsgspecError):  # its hash shows the edit
                _remember_statement(chain, entry)
        case _:
            pass


def _remember_statement(chain: _Chain, entry: AuditEntry) -> None:
    if entry.kind == "AuditAccepted":
        said = msgspec.json.decode(entry.detail, type=Accepted)
        chain.accepted.append(
            msgspec.structs.replace(said, number=entry.number, who=entry.who, at_us=entry.at_us)
        )
        return
    if entry.kind == "RunForgotten":
        gone = msgspec.json.decode(entry.detail, type=_Removed)
        chain.forgotten[gone.run] = (entry.number, gone.events)
        return
    detail = msgspec.json.decode(entry.detail, type=dict[str, str | None])
    if entry.kind == "Unsigned":
        chain.unsigned.append((detail.get("run"), entry.number))
    elif key := detail.get("key"):
        chain.keys.append((entry.number, key, detail.get("previous")))


class _Trust(NamedTuple):
    root: str | None
    keys: frozenset[str]
    since: int
    """The entry that names the root."""


def _trusted(chain: _Chain, checkpoints: list[Checkpoint], anchor: Anchor, pinned: str | None) -> _Trust:
    """Trust the first key, and each key that a trusted one introduced with a signature over the entry that names it.

    A later signature of the old key does not vouch for a key that was slipped in between. A key that a person
    accepted in place of a lost one is trusted only if the head outside is signed with it and nothing is pinned.
    """
    trust = _reached(chain, checkpoints, pinned or (chain.keys[0][1] if chain.keys else None))
    head = anchor.head
    if pinned is None and head is not None and head.key not in trust.keys and signed_by_its_key(head):
        for each in chain.accepted:
            other = _reached(chain, checkpoints, each.key)
            if head.key in other.keys and head.number >= each.number:
                return other
    return trust


def _reached(chain: _Chain, checkpoints: list[Checkpoint], root: str | None) -> _Trust:
    if root is None:
        return _Trust(None, frozenset(), 0)
    keys = {root}
    for number, key, before in chain.keys:
        if before in keys and any(c.key == before and c.number == number for c in checkpoints):
            keys.add(key)
    since = next((number for number, key, _ in chain.keys if key == root), 0)
    return _Trust(root, frozenset(keys), since)


def _vouched(chain: _Chain, checkpoints: list[Checkpoint], trust: _Trust) -> list[Accepted]:
    """Return what was accepted with a signature of a trusted key over the entry itself."""
    signed = {each.number for each in checkpoints if each.key in trust.keys}
    return [each for each in chain.accepted if each.number in signed]


def _gone(chain: _Chain, checkpoints: list[Checkpoint], trust: _Trust) -> dict[str, int]:
    """Return the removed runs and how many events each had: those whose removal a trusted key signed."""
    signed = {each.number for each in checkpoints if each.key in trust.keys}
    return {run: events for run, (number, events) in chain.forgotten.items() if number in signed}


def _outside(chain: _Chain, anchor: Anchor) -> Iterator[Flaw]:
    """Check that the key and the head are there, and that the database is not behind the head."""
    if anchor.key is None:
        yield Flaw(anchor.key_problem or "The audit's key was removed.")
    head = anchor.head
    if head is None:
        yield Flaw(anchor.head_problem or "The signed head outside the database was removed.")
    elif not signed_by_its_key(head):
        yield Flaw("The signed head outside the database was edited: its signature is not valid.")
    elif head.number > chain.newest:
        yield Flaw(
            f"The audit ends with entry {chain.newest} and its signed head is entry {head.number}: the end was cut "
            "off, or an older copy was put back. After a restore, run `cloister audit accept`.",
            chain.newest + 1,
        )


def _anchored(chain: _Chain, anchor: Anchor, trust: _Trust) -> Iterator[Flaw]:
    yield from _outside(chain, anchor)
    if anchor.key is not None and anchor.key not in trust.keys:
        yield Flaw(
            "The host's key is not one that the audit trusts: it was replaced. If you know why, run "
            "`cloister audit accept`."
        )
    head = anchor.head
    if head is None:
        return
    if head.key not in trust.keys:
        yield Flaw("The signed head outside the database is of a key that the trusted one did not introduce.")
    if head.number <= chain.newest and chain.signed[head.number] != head.hash:
        yield Flaw(
            f"Entry {head.number} is not the one that the signed head names: this is another history.",
            head.number,
        )


def against(heads: Iterable[Checkpoint], hashes: Mapping[int, str], verdict: Verdict) -> Iterator[Flaw]:
    """Compare heads that were exported with the chain. `hashes` has those of the entries that they name.

    A head that a person gave up by accepting a restore is not a finding.
    """
    given_up = [(each.kept, each.lost.number) for each in verdict.accepted if each.lost is not None]
    for head in heads:
        signed = signed_bytes(head.number, head.hash, head.at_us, head.run, head.key)
        if not signed_by_its_key(head) and not valid(head.key, head.signature, signed):
            yield Flaw(f"The exported head {head.number} is not signed by its key.", head.number)
        elif head.key not in verdict.trusted:
            yield Flaw(
                f"The exported head {head.number} is of a key that this audit does not trust.", head.number
            )
        elif hashes.get(head.number) == head.hash or any(
            kept < head.number <= lost for kept, lost in given_up
        ):
            continue
        elif head.number > verdict.entries:
            yield Flaw(
                f"Entry {head.number} was exported and is gone: the audit ends with entry {verdict.entries}.",
                verdict.entries + 1,
            )
        else:
            yield Flaw(
                f"Entry {head.number} is not the one that was exported: this is another history.", head.number
            )


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
        elif each.key not in trust.keys and each.number > trust.since:
            yield Flaw(
                f"Entry {each.number} was signed with a key that the trusted one did not introduce: "
                "if you know that the key was replaced, verify with --key and the new one.",
                each.number,
            )


def _ends(chain: _Chain, checkpoints: list[Checkpoint], trust: _Trust) -> Iterator[Flaw]:
    """Check that the end of each run is signed."""
    if not checkpoints and chain.newest:
        yield Flaw("No signature is left.", chain.newest)
    first = min((each.number for each in checkpoints), default=chain.newest + 1)
    settled = max((each.number for each in _vouched(chain, checkpoints, trust)), default=0)
    for run, number in chain.unsigned:
        if first < number and settled < number:
            of = f"The end of run {run}" if run else "The audit"
            yield Flaw(
                f"{of} was not signed, according to entry {number}, though the key worked before.", number
            )
    stated = {each.number for each in checkpoints}
    for number in (*(each.number for each in chain.accepted), *filter(None, (chain.begun,))):
        if number not in stated:
            yield Flaw(f"The signature over entry {number} was removed.", number)
    marks = {(each.run, each.number) for each in checkpoints} | {*chain.unsigned}
    for run, number in chain.ends:
        # A new key is entered between the end and its signature.
        marked = any((run, number + offset) in marks for offset in range(3))
        if not marked and number > chain.backfilled:
            yield Flaw(f"The signature over the end of run {run} was removed.", number, run)


def _log(records: AuditRecords, chain: _Chain, gone: Mapping[str, int]) -> Iterator[Flaw]:
    """Compare the log with the chain, both ordered by run and event, and the list of runs with the log.

    The events of runs that are `gone` are not missed.
    """
    audited = _Peek(records.entries_of_runs())
    listed = records.listed()
    unseen = {row.id: row for row in listed}
    fold = _Fold("")
    for event in records.events():
        if event.run != fold.row.id:
            yield from _end(fold, unseen)
            fold = _Fold(event.run)
        yield from _without_event(audited, (event.run, event.seq), gone)
        if event.seq != fold.row.last_seq + 1:
            missing = fold.row.last_seq + 1
            yield Flaw(f"Event {missing} of run {event.run} was removed.", None, event.run, missing)
        if event.at != exact(event.at) and chain.starts.get(event.run, 0) > chain.begun > 0:
            why = f"The time of event {event.seq} of run {event.run} was edited."
            yield Flaw(why, None, event.run, event.seq)
        entry = audited.next if audited.next and _place(audited.next) == (event.run, event.seq) else None
        if entry is not None:
            audited.step()
        log = extended(fold.row.log, event.seq, microseconds(event.at), event.body)
        yield from _compared(event, entry, log)
        fold.take(event, log if entry is None or entry.log is None else entry.log)
    yield from _end(fold, unseen)
    yield from _without_event(audited, None, gone)
    for run in unseen:
        yield Flaw(f"Run {run} is listed and has no events.", None, run)
    starts = [chain.starts[row.id] for row in listed if row.id in chain.starts]
    if starts != sorted(starts):
        yield Flaw("The order of the list of runs was edited.")


class _Request(msgspec.Struct):
    prompt: str = ""
    repo: str = ""
    model: str | None = None
    key: str | None = None


class _Told(msgspec.Struct):
    """What an event tells the list, whatever version wrote it."""

    request: _Request = msgspec.field(default_factory=_Request)
    who: str = ""
    owner: str | None = None
    epoch: int = 0
    outcome: str | None = None
    reason: str | None = None
    model: str | None = None


_TELLING = frozenset(
    {
        "RunAdmitted",
        "RunClaimed",
        "RunPaused",
        "PauseRequested",
        "RunFinished",
        "RunContinued",
        "AttemptStarted",
    }
)
_decode_told = msgspec.json.Decoder(_Told).decode


class _Fold:
    """The row that the events of a run make."""

    def __init__(self, run: str) -> None:
        self.row = ListedRun(run)
        self.readable = True
        self._short: str | None = None
        """Why its owner paused it."""
        self._held: str | None = None
        """Why it waits for a person."""

    def take(self, event: StoredEvent, log: str) -> None:
        try:
            kind = kind_of(event.body)
            told = _decode_told(event.body) if kind in _TELLING else _Told()
        except msgspec.MsgspecError:
            kind, told, self.readable = "", _Told(), False
        started = event.at if kind == "RunAdmitted" else self.row.created_at
        self.row = _told(self.row, kind, told)._replace(
            created_at=started, updated_at=event.at, last_seq=event.seq, log=log
        )
        self._wait(kind, told)

    def _wait(self, kind: str, told: _Told) -> None:
        match kind:
            case "RunClaimed":
                self._short = None
            case "RunPaused":
                self._short = told.reason
            case "PauseRequested":
                self._held = pause_reason(told.who)
            case "ResumeRequested":
                self._held = None
            case "RunContinued":
                self._short = self._held = None
                return
            case _:
                return
        self.row = self.row._replace(reason=self._held if self._short is None else self._short)


def _told(row: ListedRun, kind: str, told: _Told) -> ListedRun:
    match kind:
        case "RunAdmitted":
            asked = told.request
            prompt = bounded(asked.prompt, PROMPT_CHARS_LISTED)
            return row._replace(
                key=asked.key, prompt=prompt, repo=asked.repo, model=asked.model, who=told.who
            )
        case "RunClaimed":
            return row._replace(state="running", owner=told.owner, epoch=told.epoch)
        case "RunFinished":
            return row._replace(state="finished", outcome=told.outcome, reason=told.reason)
        case "RunContinued":
            return row._replace(state="queued", outcome=None, reason=None, owner=None)
        case "AttemptStarted":
            return row if row.model is not None else row._replace(model=told.model)
        case _:
            return row


def _end(fold: _Fold, unseen: dict[str, ListedRun]) -> Iterator[Flaw]:
    """Check a run's row: only its hash covers the events after the run's last entry."""
    made = fold.row
    row = unseen.pop(made.id, None)
    if row is None:
        return
    run = made.id
    if (row.last_seq, row.log) != (made.last_seq, made.log):
        what = (
            "was edited"
            if row.last_seq == made.last_seq
            else f"ends with event {made.last_seq} and should end with {row.last_seq}"
        )
        yield Flaw(f"The end of the log of run {run} {what}.", None, run, made.last_seq)
    elif fold.readable and row != made:
        wrong = [name for name in ListedRun._fields if getattr(row, name) != getattr(made, name)]
        yield Flaw(
            f"The list of runs was edited: {', '.join(wrong)} of run {run} is not from its events.", None, run
        )


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


def _without_event(
    audited: "_Peek[AuditEntry]", until: tuple[str, int] | None, gone: Mapping[str, int]
) -> Iterator[Flaw]:
    """Report entries before `until` whose events are missing."""
    while audited.next is not None and (until is None or _place(audited.next) < until):
        entry = audited.step()
        if (entry.seq or 0) <= gone.get(entry.run or "", -1):
            continue
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
