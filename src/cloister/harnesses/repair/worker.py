"""One warm process in the sandbox, seen from the host: requests and answers as JSON lines.

The answers come from a process that runs the repository's code, so they are untrusted: they are decoded into closed
records, and a line has a limit. What they say decides only what is tried next. The proof runs elsewhere.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.resources import files

import anyio
import msgspec

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Computer, Exited, Process
from cloister.core.errors import UserError
from cloister.core.text import one_line
from cloister.harnesses.repair.api import Language, Status
from cloister.harnesses.repair.localise import Covered
from cloister.harnesses.repair.suite import Suite

WORKER_LOST = "worker_lost"
_LINE_BYTES = 32 * 1024 * 1024
_END_SECONDS = 5.0


class Broken(msgspec.Struct, frozen=True):
    """A file that could not be collected."""

    id: str
    message: str = ""
    frames: list[tuple[str, int]] = []


class Ready(msgspec.Struct, frozen=True, tag_field="op", tag="ready"):
    """The tests are collected."""

    tests: list[str]
    errors: list[Broken] = []
    modules: list[str] = []
    """Files of the repository that were imported."""


class OneTest(msgspec.Struct, frozen=True, tag_field="op", tag="test"):
    """One test ran."""

    id: str
    status: Status
    seconds: float = 0.0
    lines: dict[str, list[int]] = {}
    frames: list[tuple[str, int]] = []
    error: str = ""
    message: str = ""

    @property
    def covered(self) -> Covered:
        given = (self.id, self.status, self.seconds, self.lines, self.frames, self.error, self.message)
        return Covered(*given)


class Done(msgspec.Struct, frozen=True, tag_field="op", tag="done"):
    """A request is answered."""

    left: int = 0
    lost: bool = False


class Tried(msgspec.Struct, frozen=True, tag_field="op", tag="tried"):
    """A candidate was tried up to a stage; -1 if it does not parse."""

    results: dict[str, Status]
    stage: int
    why: str = ""


class Called(msgspec.Struct, frozen=True, tag_field="op", tag="called"):
    """What functions returned: what was called, and a digest of what came."""

    digests: list[tuple[str, str]]


Answer = Ready | OneTest | Done | Tried | Called
_DECODER = msgspec.json.Decoder(Answer)
Lines = Mapping[str, Sequence[int]]
Stages = Sequence[tuple[Sequence[str], float, float]]
"""Names of tests, the limit of each in seconds of processor time, and that of all in seconds on the clock."""


_PROGRAMS: dict[Language, tuple[str, ...]] = {
    "python": ("python_probes.py", "python_runners.py", "python_worker.py"),
    "script": ("script_worker.cjs",),
    "go": ("go_worker.go",),
}


@cache
def program(language: Language) -> str:
    """The program of the worker for a language, as one text."""
    folder = files("cloister.harnesses.repair.guest")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _PROGRAMS[language])


class Worker:
    """A running worker. One request at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items = aiter(process)
        self._rest = b""
        self._lines: list[bytes] = []
        self._errors = b""
        self.ready: Ready | None = None

    async def send(self, op: str, **request: object) -> None:
        await self._process.send(msgspec.json.encode({"op": op, **request}) + b"\n")

    async def answer(self) -> Answer:
        """The next answer. Raises `UserError` (`worker_lost`) if the process ended or wrote something else."""
        while not self._lines:
            try:
                item = await anext(self._items)
            except StopAsyncIteration:
                raise self._lost("ended") from None
            if isinstance(item, Exited):
                raise self._lost(f"ended ({item.killed or item.code})")
            if item.stream == "err":
                self._errors = (self._errors + item.data)[-2_000:]
                continue
            *whole, self._rest = (self._rest + item.data).split(b"\n")
            self._lines.extend(whole)
            if len(self._rest) > _LINE_BYTES:
                raise self._lost("wrote too long a line")
        try:
            return _DECODER.decode(self._lines.pop(0))
        except msgspec.MsgspecError:
            raise self._lost("wrote no valid answer") from None

    def _lost(self, why: str) -> UserError:
        said = one_line(self._errors.decode(errors="replace"), 400)
        return UserError(WORKER_LOST, f"The process that runs the tests {why}. {said}".strip())

    async def opened(self) -> Ready:
        """What was collected."""
        if self.ready is None:
            answer = await self.answer()
            if not isinstance(answer, Ready):
                raise self._lost("answered out of turn")
            self.ready = answer
        return self.ready

    async def cover(
        self,
        tests: Sequence[str],
        *,
        seconds: float,
        each: float,
        trace: bool = True,
        only: Lines | None = None,
    ) -> AsyncIterator[Covered]:
        """Run tests one by one; yield how each went. `only`: trace just functions with one of these lines."""
        await self.opened()
        await self.send("cover", tests=tests, seconds=seconds, each=each, trace=trace, only=only)
        while isinstance(answer := await self.answer(), OneTest):
            yield answer.covered

    async def attempt(self, path: str, text: str, stages: Stages, *, cold: bool = False) -> Tried:
        await self.opened()
        await self.send("try", path=path, text=text, stages=stages, cold=cold)
        answer = await self.answer()
        if not isinstance(answer, Tried):
            raise self._lost("answered out of turn")
        return answer

    async def call(self, path: str, text: str | None, tests: Sequence[str]) -> dict[str, str]:
        """What functions of a file return on arguments near those of the tests, with `text` as the file."""
        await self.opened()
        await self.send("call", path=path, text=text, tests=tests)
        answer = await self.answer()
        return dict(answer.digests) if isinstance(answer, Called) else {}

    async def end(self) -> None:
        """Close its input and wait until it has removed its files."""
        with anyio.move_on_after(_END_SECONDS):
            await self._process.send_eof()
            async for _ in self._items:
                pass


@asynccontextmanager
async def started(computer: Computer, suite: Suite, seconds: float) -> AsyncGenerator[Worker]:
    """Start a worker; it begins to collect at once."""
    command = Command(
        (*suite.launch, program(suite.language)),
        cwd=f"{WORK_DIR}/{suite.folder}" if suite.folder else WORK_DIR,
        env={**suite.env, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""},
        seconds=seconds,
        limit_bytes=limits.ENDLESS_BYTES,
    )
    async with AsyncExitStack() as stack:
        worker = Worker(await stack.enter_async_context(computer.start(command)))
        await worker.send("open", runner=suite.runner, args=suite.args)
        try:
            yield worker
        finally:
            with anyio.CancelScope(shield=True):
                await worker.end()
