"""One session with a running program: prompts go in, updates and questions come out, and a turn can be cut short."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from cloister import __version__
from cloister.agent.harnesses.native.interrupt import withdraw
from cloister.core.computer import WORK_DIR, Computer
from cloister.core.errors import sole
from cloister.core.log import Journal
from cloister.core.requests import ToolCall
from cloister.harnesses.acp.calls import Seen
from cloister.harnesses.acp.connection import Connection, Died, Refusal, started
from cloister.harnesses.acp.gate import Gate, chosen
from cloister.harnesses.acp.messages import (
    VERSION,
    Ended,
    Initialized,
    Loaded,
    Message,
    Opened,
    Option,
    PermissionAsked,
    Update,
    Updated,
    decoded,
)
from cloister.harnesses.acp.programs import Program
from cloister.harnesses.acp.transcript import Transcript

_START_SECONDS = 300.0
"""For the program to answer at first: some unpack themselves, which takes long on a busy machine."""
_CANCEL_SECONDS = 20.0
"""For the program to end a turn that is cancelled; then it is killed."""
_QUESTIONS = 32
"""Permissions that a program may ask for at a time."""
_CANCELLED: Mapping[str, Any] = {"outcome": {"outcome": "cancelled"}}


Reply = Callable[[bool | None, str], Mapping[str, Any]]
"""The answer to a question: allowed or not, and why not; None: the turn is over."""


class Session(ABC):
    """A session of one program, whatever it speaks."""

    def __init__(
        self, connection: Connection, attempt: int, journal: Journal, transcript: Transcript, gate: Gate
    ) -> None:
        self.connection = connection
        self.transcript = transcript
        self.id = ""
        self._attempt = attempt
        self._journal = journal
        self._gate = gate
        self._tasks: TaskGroup
        self._questions: set[anyio.CancelScope] = set()

    async def serve(self, tasks: TaskGroup) -> None:
        """Handle what the program sends until it ends."""
        self._tasks = tasks
        await self.connection.serve(self.handle)

    async def open(self, earlier: str) -> bool:
        """Load the session `earlier` if the program can; else begin a new one. True if it was loaded. Raises `Died`."""
        try:
            with anyio.fail_after(_START_SECONDS):
                return await self.begin(earlier)
        except TimeoutError:
            raise Died(f"The harness did not answer within {_START_SECONDS:g} s.") from None
        except Refusal as refusal:
            raise Died(f"The harness cannot begin: {refusal}.") from None

    async def prompt(self, text: str) -> str:
        """Send a prompt; return why the turn ended. Raises `Died` and `Refusal`."""
        try:
            return await self.turn(text)
        finally:
            self._end_questions()

    async def cancel(self) -> None:
        """End the turn at work. Raises `Died` if the program does not."""
        await self.interrupt()
        self._end_questions()
        await anyio.sleep(_CANCEL_SECONDS)
        raise Died("The harness did not end its turn when Cloister cancelled it, so Cloister killed it.")

    def _end_questions(self) -> None:
        for scope in list(self._questions):
            scope.cancel()

    async def take(self, update: Update) -> None:
        """Record what the program did."""
        await self.transcript.take(update)

    async def ask(self, message: Message, update: Update, reply: Reply) -> None:
        """Answer a question of the program: now, or when a person has answered it."""
        known = await self.transcript.asked(update)
        if known is None or len(self._questions) >= _QUESTIONS:
            await self.answer(message, reply(None, ""))
        else:
            self._tasks.start_soon(self._decide, message, *known, reply)

    async def _decide(self, message: Message, seen: Seen, call: ToolCall, reply: Reply) -> None:
        with anyio.CancelScope() as scope:
            self._questions.add(scope)
            try:
                seen.denied = await self._gate.allows(seen, call)
            finally:
                self._questions.discard(scope)
            if seen.denied:
                self.transcript.denied.append(seen.denied)
            await self.answer(message, reply(not seen.denied, seen.denied))
        if scope.cancelled_caught:  # the turn is over
            await withdraw(self._journal, self._attempt)
            await self.answer(message, reply(None, ""))

    async def answer(self, message: Message, result: Mapping[str, Any]) -> None:
        """Answer a question of the program."""
        await self.connection.answer(message, result)

    @abstractmethod
    async def begin(self, earlier: str) -> bool:
        """As `open`. Sets `id`."""

    @abstractmethod
    async def turn(self, text: str) -> str:
        """As `prompt`."""

    @abstractmethod
    async def interrupt(self) -> None:
        """Tell the program to end its turn."""

    @abstractmethod
    async def handle(self, message: Message) -> None:
        """Handle one request or notification."""


class AcpSession(Session):
    """A session over ACP."""

    _quiet = True
    """True while nothing is recorded: a session that is loaded repeats what the log has."""

    async def begin(self, earlier: str) -> bool:
        about = {"name": "cloister", "title": "Cloister", "version": __version__}
        # Its files and commands stay inside: what it did here would be outside of its sandbox.
        able = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        hello = {"protocolVersion": VERSION, "clientCapabilities": able, "clientInfo": about}
        found = await self.connection.request("initialize", hello, Initialized)
        if found.protocol_version != VERSION:
            raise Died(f"The harness speaks version {found.protocol_version} of ACP, and not {VERSION}.")
        where: dict[str, Any] = {"cwd": WORK_DIR, "mcpServers": []}
        loaded = False
        if earlier and found.agent_capabilities.load_session:
            with suppress(Refusal):  # it is lost: a new one gets a summary
                await self.connection.request("session/load", {**where, "sessionId": earlier}, Loaded)
                self.id, loaded = earlier, True
        if not loaded:
            self.id = (await self.connection.request("session/new", where, Opened)).session_id
        self._quiet = False
        return loaded

    async def turn(self, text: str) -> str:
        given = {"sessionId": self.id, "prompt": [{"type": "text", "text": text}]}
        return (await self.connection.request("session/prompt", given, Ended)).stop_reason

    async def interrupt(self) -> None:
        await self.connection.notify("session/cancel", {"sessionId": self.id})

    async def handle(self, message: Message) -> None:
        match message.method:
            case "session/update":
                found = decoded(message.params, Updated)
                if found is not None and not self._quiet and found.session_id == self.id:
                    await self.take(found.update)
            case "session/request_permission":
                asked = decoded(message.params, PermissionAsked)
                if asked is None:
                    await self.connection.answer(message, _CANCELLED)
                else:
                    await self.ask(message, asked.tool_call, partial(_outcome, asked.options))
            case _ if message.id is not None:
                await self.connection.refuse(message, "Not offered: work with your own tools.")
            case _:
                pass


def _outcome(options: tuple[Option, ...], allow: bool | None, _why: str) -> Mapping[str, Any]:
    option = None if allow is None else chosen(options, allow=allow)
    return {"outcome": {"outcome": "selected", "optionId": option}} if option else _CANCELLED


def _kind(program: Program) -> type[Session]:
    # The other two are made of what is here.
    match program.wire:
        case "acp":
            return AcpSession
        case "codex":
            from cloister.harnesses.codex import CodexSession  # noqa: PLC0415

            return CodexSession
        case "claude":
            from cloister.harnesses.claude import ClaudeSession  # noqa: PLC0415

            return ClaudeSession


@asynccontextmanager
async def opened(
    computer: Computer, program: Program, attempt: int, journal: Journal, transcript: Transcript, gate: Gate
) -> AsyncGenerator[Session]:
    """Start a program and serve it while the block runs."""
    failures: list[Exception] = []
    try:
        async with (
            started(computer, program.name, program.argv, program.env) as connection,
            anyio.create_task_group() as tasks,
        ):
            kind = _kind(program)
            session = kind(connection, attempt, journal, transcript, gate)
            session.id = program.session
            tasks.start_soon(session.serve, tasks)
            try:
                yield session
            except Exception as error:
                failures.append(error)  # raised below as it is: a task group would wrap it
            tasks.cancel_scope.cancel()
    except Exception as error:
        raise sole(error) from None
    if failures:
        raise failures[0]
