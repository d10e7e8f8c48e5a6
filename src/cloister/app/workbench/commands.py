"""Commands that outlive the request that started them, with their output and result on disk.

A result is recorded only when the guest has reported it. A command whose sandbox or server ended first has a reason
instead.
"""

import logging
import os
import shutil
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Literal, assert_never

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from cloister.core import limits
from cloister.core.computer import Command, Computer, Exited, Output, Process, Pty, Stream, User
from cloister.core.errors import CloisterError, HostError, SandboxLost, UserError
from cloister.core.ids import CommandId, OwnerId, SandboxId, is_id, new_command_id
from cloister.sandbox.protocol.mux import Signpost

SPOOL_BYTES = 16_777_216
"""Limit of the output that is kept of one command."""

_FILES = 8
"""Number of files; the oldest one is dropped as a whole."""

_HEAD = struct.Struct("<BI")
_STREAMS: tuple[Stream, Stream] = ("out", "err")


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """Bytes that were dropped before they were read."""

    size: int


class Spool:
    """The output of one command on disk: both streams in order, the oldest dropped when it is too much.

    The offset of a byte is the number of bytes before it, both streams together. Files are named by the offset of
    their first byte and hold pieces: u8 stream, u32 length, bytes. One writer, many readers. Blocking: use a thread.
    """

    def __init__(self, directory: Path, limit_bytes: int = SPOOL_BYTES) -> None:
        self._directory = directory
        self._file_bytes = limit_bytes // _FILES
        self._file: BinaryIO | None = None
        self._written = 0
        self._starts = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
        self.end = 0
        """The offset of the next byte."""
        if self._starts:
            with SpoolReader(self, self._starts[-1]) as reader:
                while reader.read(self._file_bytes) is not None:
                    pass
                self.end = reader.offset

    @property
    def begin(self) -> int:
        """The offset of the oldest byte that is kept."""
        return self._starts[0] if self._starts else 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The offsets at which the files begin."""
        return tuple(self._starts)

    def path(self, start: int) -> Path:
        return self._directory / f"{start:020d}"

    def append(self, output: Output) -> None:
        """Raises `OSError`; the earlier output stays intact."""
        if self._file is None or self._written >= self._file_bytes:
            self.close()
            self._file = self.path(self.end).open("ab", buffering=0)
            self._written = 0
            self._starts.append(self.end)
            while len(self._starts) > _FILES:
                self.path(self._starts[0]).unlink(missing_ok=True)
                del self._starts[0]
        head = _HEAD.pack(_STREAMS.index(output.stream), len(output.data))
        wanted = len(head) + len(output.data)
        if os.writev(self._file.fileno(), [head, output.data]) != wanted:
            # A full disk: half a piece would hide everything after it.
            os.ftruncate(self._file.fileno(), self._written)
            raise OSError(28, "No space left on device")
        self._written += wanted
        self.end += len(output.data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SpoolReader:
    """Reads from an offset on, including output that is appended later. Blocking: use a thread."""

    def __init__(self, spool: Spool, offset: int) -> None:
        self.offset = offset
        self._spool = spool
        self._file: BinaryIO | None = None
        self._start = self._at = 0
        """The offsets of the file's first byte and of the current piece."""

    def __enter__(self) -> "SpoolReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, limit_bytes: int) -> Output | Skipped | None:
        """The next piece, or a part of it; None when there is nothing more now."""
        if self._file is None and not self._open():
            return None
        if self.offset < self._at:
            skipped = Skipped(self._at - self.offset)
            self.offset = self._at
            return skipped
        while (piece := self._piece(limit_bytes)) is None:
            if not any(start > self._start for start in self._spool.starts):
                return None
            # A newer file follows. Try once more first: the last piece may have arrived meanwhile.
            if piece := self._piece(limit_bytes):
                return piece
            self.close()
            if not self._open():
                return None
            if self.offset < self._at:
                return self.read(limit_bytes)
        return piece

    def _open(self) -> bool:
        """Open the file that holds the offset, or the oldest one."""
        for _ in range(_FILES):
            starts = self._spool.starts
            if not starts:
                return False
            start = max((each for each in starts if each <= self.offset), default=starts[0])
            try:
                self._file = self._spool.path(start).open("rb", buffering=0)
            except FileNotFoundError:
                continue  # dropped meanwhile
            self._start = self._at = start
            return True
        return False

    def _piece(self, limit_bytes: int) -> Output | None:
        while self._file is not None:
            here = self._file.tell()
            head = self._file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                self._file.seek(here)
                return None
            number: int
            size: int
            number, size = _HEAD.unpack(head)
            into = self.offset - self._at
            if into >= size and size > 0:
                self._file.seek(size, os.SEEK_CUR)
                self._at += size
                continue
            self._file.seek(into, os.SEEK_CUR)
            data = self._file.read(min(size - into, limit_bytes))
            if into + len(data) < size:
                self._file.seek(here)  # a part of it was read: stay at this piece
                if not data:
                    return None
            else:
                self._at += size
            self.offset += len(data)
            return Output(_STREAMS[number & 1], data)
        return None


PIECE_BYTES = 262_144
"""Size of one read from disk."""

logger = logging.getLogger(__name__)

State = Literal["running", "exited", "failed", "lost"]


class Record(msgspec.Struct, frozen=True):
    """The record of a background command on disk."""

    id: CommandId
    sandbox: SandboxId
    owner: OwnerId
    argv: tuple[str, ...]
    cwd: str
    user: User
    pty: bool
    started_at: float
    state: State = "running"
    """`failed`: it could not be started. `lost`: its result is unknown."""
    exited: Exited | None = None
    ended_at: float | None = None
    reason: str = ""
    """Why it failed or was lost, in one sentence."""


class Background:
    """One command, running or over."""

    def __init__(self, record: Record, spool: Spool, process: Process | None = None) -> None:
        self.record = record
        self.spool = spool
        self.changed = Signpost()
        self._process = process

    @asynccontextmanager
    async def follow(self, offset: int) -> AsyncGenerator[AsyncIterator[Output | Skipped | Exited]]:
        """Its output from `offset` on, as it arrives, and its result.

        Raises `SandboxLost` or `UserError` (`start_failed`) instead of a result, and `UserError` (`bad_offset`).
        """
        if not 0 <= offset <= self.spool.end:
            raise UserError("bad_offset", f"offset must be between 0 and {self.spool.end}, not {offset}.")
        reader = SpoolReader(self.spool, offset)
        items = self._items(reader)
        try:
            yield items
        finally:
            await items.aclose()
            reader.close()

    async def _items(self, reader: SpoolReader) -> AsyncGenerator[Output | Skipped | Exited]:
        while True:
            while reader.offset < self.spool.end:
                piece = await to_thread.run_sync(reader.read, PIECE_BYTES)
                if piece is None:
                    break
                yield piece
            match self.record.state:
                case "running":
                    await self.changed.wait()
                case "exited":
                    if self.record.exited is not None:
                        yield self.record.exited
                    return
                case "failed":
                    raise UserError("start_failed", self.record.reason)
                case "lost":
                    raise SandboxLost(self.record.reason)
                case _:
                    assert_never(self.record.state)

    def read(self, offset: int, limit_bytes: int) -> tuple[tuple[Output | Skipped, ...], int]:
        """At most `limit_bytes` of output from `offset` on, and the next offset. Blocking."""
        pieces: list[Output | Skipped] = []
        with SpoolReader(self.spool, offset) as reader:
            while limit_bytes > 0 and (piece := reader.read(limit_bytes)) is not None:
                pieces.append(piece)
                limit_bytes -= len(piece.data) if isinstance(piece, Output) else 0
            return tuple(pieces), reader.offset

    async def ended(self) -> Record:
        """Wait for the end; return the record."""
        while self.record.state == "running":
            await self.changed.wait()
        return self.record

    async def send(self, data: bytes) -> None:
        if process := self._live():
            await process.send(data)

    async def send_eof(self) -> None:
        if process := self._live():
            await process.send_eof()

    async def signal(self, number: int) -> None:
        if process := self._live():
            await process.signal(number)

    async def resize(self, size: Pty) -> None:
        if process := self._live():
            await process.resize(size)

    async def kill(self) -> None:
        if process := self._live():
            await process.kill()

    def _live(self) -> Process | None:
        return self._process if self.record.state == "running" else None


class Commands:
    """The background commands of this data directory, ended ones included. Made by `open_commands`."""

    def __init__(
        self, directory: Path, owner: OwnerId, tasks: TaskGroup, kept: int = limits.COMMANDS_KEPT
    ) -> None:
        """`kept` is the number of ended commands to remember."""
        self._directory = directory
        self._kept = kept
        self._owner = owner
        self._tasks = tasks
        self._all: dict[CommandId, Background] = {}

    async def load(self, owner_lives: Callable[[OwnerId], bool]) -> None:
        """Load the commands of earlier processes; those without a result are lost."""
        for record in await to_thread.run_sync(_read_records, self._directory):
            if record.state == "running":
                if owner_lives(record.owner):
                    continue  # it belongs to another process
                record = _over(record, "lost", None, "The server ended before the command did.")
                await self._write(record)
            spool = await to_thread.run_sync(Spool, self._directory / record.id)
            self._all[record.id] = Background(record, spool)

    async def start(self, sandbox: SandboxId, computer: Computer, command: Command) -> Background:
        """Start and record `command`. Its output is unlimited; only the newest part is kept.

        Raises as `Computer.start`.
        """
        await self._make_room()
        return await self._tasks.start(self._hold, sandbox, computer, command)

    def list(self, sandbox: str) -> tuple[Record, ...]:
        """The commands of one sandbox, oldest first, also after it ended."""
        found = [each.record for each in self._all.values() if each.record.sandbox == sandbox]
        return tuple(sorted(found, key=lambda record: record.started_at))

    def get(self, sandbox: str, command: str) -> Background:
        """Raises `UserError` (`no_such_command`)."""
        found = self._all.get(CommandId(command))
        if found is None or found.record.sandbox != sandbox:
            raise UserError("no_such_command", f"Sandbox {sandbox[:40]} has no command {command[:40]}.")
        return found

    async def _hold(
        self,
        sandbox: SandboxId,
        computer: Computer,
        command: Command,
        *,
        task_status: TaskStatus[Background],
    ) -> None:
        made: Background | None = None
        exited: Exited | None = None
        state: State = "lost"
        reason = "The server was stopped and ended the command."
        command = msgspec.structs.replace(command, limit_bytes=limits.ENDLESS_BYTES)
        try:
            async with computer.start(command) as process:
                made = await self._make(sandbox, command, process)
                task_status.started(made)
                exited = await _record_all(made, process)
                state, reason = "exited", ""
        except CloisterError as error:
            # Before it started the error belongs to the caller of `start`.
            if made is None:
                raise
            state, reason = "lost" if isinstance(error, SandboxLost) else "failed", error.message
        finally:
            if made is not None:
                with anyio.CancelScope(shield=True):
                    await self._end(made, _over(made.record, state, exited, reason))

    async def _make(self, sandbox: SandboxId, command: Command, process: Process) -> Background:
        record = Record(
            id=new_command_id(),
            sandbox=sandbox,
            owner=self._owner,
            argv=command.argv,
            cwd=command.cwd,
            user=command.user,
            pty=command.pty is not None,
            started_at=time.time(),
        )
        home = self._directory / record.id
        try:
            await to_thread.run_sync(lambda: home.mkdir(parents=True, mode=0o700))
            await self._write(record)
        except OSError as error:
            raise HostError(
                "no_disk", f"The command cannot be recorded ({error.strerror}): free some disk space."
            ) from error
        made = Background(record, await to_thread.run_sync(Spool, home), process)
        self._all[record.id] = made
        return made

    async def _end(self, made: Background, record: Record) -> None:
        await to_thread.run_sync(made.spool.close)
        try:
            await self._write(record)
        except OSError:
            logger.exception("The result of command %s could not be recorded.", record.id)
        made.record = record
        made.changed.happened()

    async def _make_room(self) -> None:
        """Remove the oldest ended commands."""
        over = sorted(
            (each.record for each in self._all.values() if each.record.state != "running"),
            key=lambda record: record.started_at,
        )
        leaving = over[: max(0, len(over) + 1 - self._kept)]
        for record in leaving:  # before anything else runs, so that no other start removes them too
            del self._all[record.id]
        for record in leaving:
            await to_thread.run_sync(_remove, self._directory / record.id)

    async def _write(self, record: Record) -> None:
        await to_thread.run_sync(_write_record, self._directory / record.id, record)


async def _record_all(made: Background, process: Process) -> Exited:
    """Spool its output; return its result. Raises as iterating `process`."""
    keeping = True
    async for item in process:
        match item:
            case Output():
                if keeping and not await _keep(made, item):
                    keeping = False
                    await process.kill()
            case Exited():
                return item
    raise SandboxLost("The guest ended a command without a status.")


async def _keep(made: Background, item: Output) -> bool:
    try:
        await to_thread.run_sync(made.spool.append, item)
    except OSError as error:
        logger.error("Command %s is killed: its output cannot be kept (%s).", made.record.id, error.strerror)
        return False
    made.changed.happened()
    return True


def _over(record: Record, state: State, exited: Exited | None, reason: str) -> Record:
    return msgspec.structs.replace(record, state=state, exited=exited, reason=reason, ended_at=time.time())


def _read_records(directory: Path) -> list[Record]:
    found: list[Record] = []
    for home in sorted(directory.iterdir()) if directory.is_dir() else ():
        try:
            found.append(msgspec.json.decode((home / "record.json").read_bytes(), type=Record))
        except (OSError, msgspec.MsgspecError):
            # The process was killed before it recorded the command, so no caller knows its id.
            if is_id(home.name):
                _remove(home)
    return found


def _write_record(home: Path, record: Record) -> None:
    """Replace the record atomically and flush it to disk."""
    draft = home / "record.new"
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(home / "record.json")
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)


@asynccontextmanager
async def open_commands(
    directory: Path,
    owner: OwnerId,
    owner_lives: Callable[[OwnerId], bool],
    kept: int = limits.COMMANDS_KEPT,
) -> AsyncGenerator[Commands]:
    """The registry; leaving the block ends every command in it."""
    async with anyio.create_task_group() as tasks:
        commands = Commands(directory, owner, tasks, kept)
        await commands.load(owner_lives)
        try:
            yield commands
        finally:
            tasks.cancel_scope.cancel()
