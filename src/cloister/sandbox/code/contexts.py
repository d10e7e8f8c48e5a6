"""Contexts: interpreters of Python inside a sandbox whose variables live from one piece of code to the next.

A program of ours runs there (`guest/python_kernel.py`), with the template's own `python3`. What it says is untrusted.
"""

import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Meta

from cloister.core import limits
from cloister.core.computer import Command, Computer, Exited, Output, Process, Stream, User
from cloister.core.errors import CloisterError, UserError

CONTEXTS = 16
"""Contexts of one sandbox at a time."""
LINE_BYTES = 16_777_216
RESULT_BYTES = 33_554_432
"""Output and results of one piece of code together."""
GRACE_SECONDS = 5.0
"""How long interrupted code may take to end before its context is ended."""
Told = Callable[[Stream, str], None]
"""Gets the output of code as it arrives."""
DEFAULT = "default"
"""The context that is made when it is first used."""


class CodeContext(msgspec.Struct, frozen=True):
    """An interpreter whose variables live from one piece of code to the next."""

    id: str
    language: str
    cwd: str
    made_at: float
    """Unix seconds."""


class CodeError(msgspec.Struct, frozen=True):
    """An exception that the code raised."""

    name: str
    value: str
    traceback: str


class Shown(msgspec.Struct, frozen=True):
    """One result: the same thing as text by MIME type, pictures as base64."""

    data: dict[str, str]
    main: bool
    """The value of the last expression; False for what was displayed."""


class CodeResult(msgspec.Struct, frozen=True):
    """A piece of code that ended. All of it is untrusted."""

    stdout: str
    stderr: str
    results: tuple[Shown, ...]
    error: CodeError | None
    timed_out: bool
    """Whether it was interrupted at its limit."""
    truncated: bool
    """Whether output beyond the limit was dropped."""
    count: int
    """How many pieces of code this context has run."""
    seconds: float


class _Out(msgspec.Struct, frozen=True, tag="out"):
    id: int
    stream: Stream
    text: str


class _Result(msgspec.Struct, frozen=True, tag="result"):
    id: int
    data: Annotated[dict[str, str], Meta(max_length=32)]
    main: bool


class _Error(msgspec.Struct, frozen=True, tag="error"):
    id: int
    name: str
    value: str
    traceback: str


class _Done(msgspec.Struct, frozen=True, tag="done"):
    id: int
    count: int


_decode = msgspec.json.Decoder(_Out | _Result | _Error | _Done).decode


@dataclass
class _Cell:
    """What one piece of code has said so far."""

    id: int
    texts: dict[Stream, list[str]] = field(default_factory=lambda: {"out": [], "err": []})
    results: list[Shown] = field(default_factory=list[Shown])
    error: CodeError | None = None
    count: int = 0
    left: int = RESULT_BYTES
    done: anyio.Event = field(default_factory=anyio.Event)
    told: Told | None = None

    def take(self, message: _Out | _Result | _Error | _Done) -> None:
        match message:
            case _Out():
                if self._fits(len(message.text)):
                    self.texts[message.stream].append(message.text)
                    if self.told is not None:
                        self.told(message.stream, message.text)
            case _Result():
                if self._fits(sum(map(len, message.data.values()))):
                    self.results.append(Shown(message.data, message.main))
            case _Error():
                if self._fits(len(message.traceback) + len(message.value)):
                    self.error = CodeError(message.name, message.value, message.traceback)
            case _Done():
                self.count = message.count
                self.done.set()

    def _fits(self, size: int) -> bool:
        self.left -= size + 64
        return self.left >= 0


class _Kernel:
    """One context, and the program that serves it."""

    def __init__(self, info: CodeContext, env: Mapping[str, str], user: User) -> None:
        self.info = info
        self.env = dict(env)
        self.user: User = user
        self.ready = anyio.Event()
        """Set when the program has started, or never will."""
        self.gone = anyio.Event()
        self.scope = anyio.CancelScope()
        self.cell: _Cell | None = None
        self._number = 0
        self._busy = anyio.Lock()
        self._process: Process | None = None
        self._line = bytearray()
        self._said = b""

    async def serve(self, computer: Computer, *, task_status: TaskStatus[None]) -> None:
        argv = ("python3", "-u", "-c", _program())
        command = Command(
            argv,
            cwd=self.info.cwd,
            env=self.env,
            user=self.user,
            seconds=limits.ENDLESS_SECONDS,
            limit_bytes=limits.ENDLESS_BYTES,
        )
        started = False
        try:
            with self.scope:
                async with computer.start(command) as process:
                    self._process, started = process, True
                    self.ready.set()
                    task_status.started()
                    await self._listen(process)
        except CloisterError:
            if not started:
                raise
        finally:
            self.gone.set()
            self.ready.set()

    async def _listen(self, process: Process) -> None:
        async for item in process:
            match item:
                case Output() if item.stream == "out":
                    if not self._feed(item.data):
                        return
                case Output():
                    self._said = (self._said + item.data)[-2_000:]
                case Exited():
                    return

    def _feed(self, data: bytes) -> bool:
        """Take the whole lines; False when the program breaks the rules."""
        self._line += data
        while (end := self._line.find(b"\n")) >= 0:
            line = bytes(self._line[:end])
            del self._line[: end + 1]
            try:
                message = _decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return False
            if self.cell is not None and message.id == self.cell.id:
                self.cell.take(message)
        return len(self._line) <= LINE_BYTES

    async def run(self, code: str, seconds: float, env: Mapping[str, str], told: Told | None) -> CodeResult:
        """Raises `UserError` (`context_ended`)."""
        async with self._busy:
            await self.ready.wait()  # another call has just made the context
            self._number += 1
            cell = self.cell = _Cell(self._number, told=told)
            begun = time.monotonic()
            late = False
            try:
                await self._send({"id": cell.id, "code": code, "env": dict(env)})
                if not await self._ends(cell, seconds):
                    late = True
                    await self._interrupt(cell)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._interrupt(cell)
                raise
            finally:
                self.cell = None
            if not cell.done.is_set() and not late:
                raise UserError("context_ended", f"The context has ended: {self._why()}.")
            return CodeResult(
                stdout="".join(cell.texts["out"]),
                stderr="".join(cell.texts["err"]),
                results=tuple(cell.results),
                error=cell.error,
                timed_out=late,
                truncated=cell.left < 0,
                count=cell.count,
                seconds=time.monotonic() - begun,
            )

    def _why(self) -> str:
        said = self._said.decode("utf-8", errors="replace").strip().splitlines()
        return said[-1][:200] if said else "its program is gone, and the variables with it"

    async def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None and not self.gone.is_set():
            await self._process.send(msgspec.json.encode(message) + b"\n")

    async def _ends(self, cell: _Cell, seconds: float) -> bool:
        """Wait until the code or the whole context has ended; False when neither did in time."""
        with anyio.move_on_after(seconds) as wait:
            async with anyio.create_task_group() as tasks:

                async def gone() -> None:
                    await self.gone.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(gone)
                await cell.done.wait()
                tasks.cancel_scope.cancel()
        return not wait.cancelled_caught

    async def _interrupt(self, cell: _Cell) -> None:
        if self._process is None or self.gone.is_set() or cell.done.is_set():
            return
        await self._process.signal(signal.SIGINT)
        if not await self._ends(cell, GRACE_SECONDS):
            self.scope.cancel()
            await self.gone.wait()


class Contexts:
    """The contexts of all sandboxes of this process."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._all: dict[tuple[str, str], _Kernel] = {}

    async def make(
        self,
        sandbox: str,
        computer: Computer,
        *,
        cwd: str,
        env: Mapping[str, str],
        user: User,
        name: str | None = None,
    ) -> CodeContext:
        """Raises `UserError` (`too_many_contexts`, `start_failed`)."""
        if len(self.list(sandbox)) >= CONTEXTS:
            raise UserError("too_many_contexts", f"A sandbox has {CONTEXTS} contexts at most: remove one.")
        info = CodeContext(name or f"x-{secrets.token_hex(8)}", "python", cwd, time.time())
        kernel = self._all[sandbox, info.id] = _Kernel(info, env, user)
        try:
            await self._tasks.start(self._hold, kernel, sandbox, computer)
        except BaseException:
            self._all.pop((sandbox, info.id), None)
            raise
        return info

    async def _hold(
        self, kernel: _Kernel, sandbox: str, computer: Computer, *, task_status: TaskStatus[None]
    ) -> None:
        try:
            await kernel.serve(computer, task_status=task_status)
        finally:
            if self._all.get((sandbox, kernel.info.id)) is kernel:
                del self._all[sandbox, kernel.info.id]

    def list(self, sandbox: str) -> tuple[CodeContext, ...]:
        """Oldest first."""
        return tuple(kernel.info for (owner, _), kernel in self._all.items() if owner == sandbox)

    def _get(self, sandbox: str, context: str) -> _Kernel:
        """Raises `UserError` (`no_such_context`)."""
        found = self._all.get((sandbox, context))
        if found is None:
            raise UserError("no_such_context", f"Sandbox {sandbox[:40]} has no context {context[:40]!r}.")
        return found

    async def run(
        self,
        sandbox: str,
        context: str,
        code: str,
        seconds: float,
        env: Mapping[str, str],
        told: Told | None = None,
    ) -> CodeResult:
        """Raises `UserError` (`no_such_context`, `context_ended`). `told` gets the output as it arrives."""
        return await self._get(sandbox, context).run(code, seconds, env, told)

    async def remove(self, sandbox: str, context: str) -> None:
        kernel = self._get(sandbox, context)
        kernel.scope.cancel()
        await kernel.gone.wait()

    async def restart(self, sandbox: str, context: str, computer: Computer) -> CodeContext:
        """The same context without its variables."""
        kernel = self._get(sandbox, context)
        await self.remove(sandbox, context)
        info = kernel.info
        return await self.make(
            sandbox, computer, cwd=info.cwd, env=kernel.env, user=kernel.user, name=info.id
        )


@cache
def _program() -> str:
    return (files("cloister.sandbox.code.guest") / "python_kernel.py").read_text(encoding="utf-8")
