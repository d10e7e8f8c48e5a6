"""Steer a run from the keyboard while it is shown: answer, say, stop the step, leave, stop the run."""

import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from cloister.cli.screen.keys import ESCAPE, Editor, Keys
from cloister.cli.screen.screen import LiveShow, Show
from cloister.cli.screen.terminal import Keyboard, in_foreground, is_terminal, read_some
from cloister.core.errors import CloisterError
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    Delta,
    Event,
    PauseRequested,
    QuestionAnswered,
    QuestionAsked,
    ResumeRequested,
    RunContinued,
    RunFinished,
    RunResumed,
)
from cloister.core.text import one_line
from cloister.runs.event_text.lines import Line, seconds

if TYPE_CHECKING:
    from cloister.app.verbs.api import RunVerbs
    from cloister.core.ids import RunId

LEAVE_SECONDS = 1.5
"""How long a second Ctrl-C can stop the run after the first."""
LOOK_SECONDS = 0.5
"""Keys do not answer a question that a person cannot have read: they were typed for something else."""
ESCAPE_SECONDS = 0.05
_HINT = "type to tell it more · Esc stops the step · Ctrl-P pauses · Ctrl-C leaves"


class Steering:
    """The keyboard of one watched run. Nothing works before `at` says which run it is."""

    def __init__(self, show: LiveShow, *, here: bool) -> None:
        self._show = show
        self._here = here
        """True if this process drives the run: leaving hands it over."""
        self._verbs: RunVerbs | None = None
        self._run: RunId | None = None
        self._asks: dict[str, tuple[AskRaised, float]] = {}
        """Open questions, and when each came."""
        self._questions: dict[str, tuple[QuestionAsked, float]] = {}
        """Those of the model that wait for an answer."""
        self._paused = False
        self._editor = Editor()
        self._presses = 0
        """Of Ctrl-C."""
        self._leave = anyio.Event()
        self._continued = anyio.Event()

    def at(self, verbs: "RunVerbs", run: "RunId") -> None:
        self._verbs, self._run = verbs, run

    def feed(self, item: Event | Delta) -> None:
        match item:
            case Event(body=AskRaised() as body):
                self._asks[body.ask] = (body, time.monotonic())
            case Event(body=AskAnswered() as body):
                self._asks.pop(body.ask, None)
            case Event(body=QuestionAsked() as body):
                self._questions[body.question] = (body, time.monotonic())
            case Event(body=QuestionAnswered() as body):
                self._questions.pop(body.question, None)
            case Event(body=PauseRequested()):
                self._paused = True
            case Event(body=ResumeRequested()):
                self._paused = False
            case Event(body=RunContinued()):
                self._paused = False
                self._questions.clear()
            case Event(body=RunFinished() | RunResumed()):
                self._asks.clear()
            case _:
                pass

    @property
    def stopping(self) -> bool:
        return self._presses > 1

    async def left(self) -> None:
        """Wait until the person has left."""
        await self._leave.wait()

    def lines(self, width: int) -> tuple[list[Line], int]:
        """What the keys do now, and the line that is typed."""
        lines: list[Line] = []
        if asked := self._approval():
            ask, since = asked
            ready = _read(since) and not self._editor.text
            keys = "[y] allow  [n] deny" if ready else "allow or deny?"
            more = f" ({len(self._asks)} questions)" if len(self._asks) > 1 else ""
            left = seconds(max(0.0, ask.deadline - time.time()))
            lines.append(Line(f"? {keys}{more} · {left} left · {one_line(ask.action, 200)}", "warn"))
        elif question := self._question():
            lines.append(self._asked(*question))
        if self._paused and not self._presses:
            lines.append(Line("‖ Paused before its next step. Ctrl-P lets it go on.", "warn"))
        text, column = self._editor.shown(width - 3)
        if self._presses == 1:
            after = "the run goes on in the background" if self._here else "the run goes on"
            lines.append(Line(f"Leaving: {after}. Ctrl-C again stops the run.", "warn"))
            return lines, 0
        if self._presses:
            lines.append(Line("Stopping the run … (Ctrl-C again: exit at once)", "warn"))
            return lines, 0
        lines.append(Line(f"› {text}") if text else Line(f"› {_HINT}", "dim"))
        return lines, column + 2

    def _asked(self, asked: QuestionAsked, since: float) -> Line:
        """A question of the model, and the keys that answer it."""
        left = seconds(max(0.0, asked.deadline - time.time()))
        text = self._editor.text
        keys = [f"[{at}] {one_line(one, 30)}" for at, one in enumerate(asked.choices[:9], start=1)]
        if text or not keys or not _read(since):
            keys = ["[Tab] answers with what you type"]
        return Line(f"? {'  '.join(keys)} · {left} left · {one_line(asked.text, 200)}", "warn")

    def _approval(self) -> tuple[AskRaised, float] | None:
        now = time.time()
        return next((asked for asked in self._asks.values() if asked[0].deadline > now), None)

    def _question(self) -> tuple[QuestionAsked, float] | None:
        now = time.time()
        return next((asked for asked in self._questions.values() if asked[0].deadline > now), None)

    async def read_keys(self, tasks: TaskGroup) -> None:
        """Act on keys until the terminal is closed."""
        keys = Keys()
        while True:
            await anyio.wait_readable(0)
            if not in_foreground():
                await self._continued.wait()  # the input is the shell's
                continue
            if not (data := await read_some(0)):
                return
            pressed = keys.feed(data)
            while keys.waits:
                with anyio.move_on_after(ESCAPE_SECONDS) as patience:
                    pressed += keys.feed(await read_some(0))
                if patience.cancelled_caught:
                    pressed += keys.end()
            for key in pressed:
                self._press(key, tasks)
            self._show.tick()

    def _press(self, key: str, tasks: TaskGroup) -> None:
        verbs, run = self._verbs, self._run
        if key == "ctrl-c":
            self._interrupt(tasks)
        elif key == "ctrl-z":
            os.kill(os.getpid(), signal.SIGTSTP)
        elif key == "ctrl-l":
            self._show.screen.redraw()
        elif verbs is not None and run is not None and (work := self._work(key, verbs, run)) is not None:
            tasks.start_soon(self._do, work)
        elif key == ESCAPE:
            self._editor.take()
        elif key not in ("enter", "tab", "ctrl-p"):
            self._editor.press(key)

    def _work(self, key: str, verbs: "RunVerbs", run: "RunId") -> Callable[[], Awaitable[object]] | None:
        """What a key does to the run; None if it edits the line."""
        text, asked = self._editor.text.strip(), self._approval()
        if key == ESCAPE and not self._editor.text:
            return lambda: verbs.interrupt(run)
        if key == "ctrl-p":
            return lambda: verbs.resume(run) if self._paused else verbs.pause(run)
        if answer := self._answer(key):
            return lambda: verbs.reply(run, *answer)
        if key == "enter" and text:
            self._editor.take()
            return lambda: verbs.say(run, text)
        if key in ("y", "n") and asked and not self._editor.text and _read(asked[1]):
            verdict, ask = "allow" if key == "y" else "deny", asked[0].ask
            return lambda: verbs.answer(run, ask, verdict)
        return None

    def _answer(self, key: str) -> tuple[str, str] | None:
        """The question of the model that a key answers, and the answer."""
        if self._approval() or (asked := self._question()) is None:
            return None
        question, since = asked
        if key == "tab" and (text := self._editor.take().strip()):
            return question.question, text
        if self._editor.text or not _read(since) or not (key.isascii() and key.isdigit()) or key == "0":
            return None
        return (
            (question.question, question.choices[int(key) - 1]) if int(key) <= len(question.choices) else None
        )

    def _interrupt(self, tasks: TaskGroup) -> None:
        self._presses += 1
        verbs, run = self._verbs, self._run
        if self._presses == 1:
            tasks.start_soon(self._leave_soon)
        elif self._presses == 2 and verbs is not None and run is not None:
            tasks.start_soon(self._do, lambda: verbs.stop(run))
        else:
            self._leave.set()

    async def _leave_soon(self) -> None:
        await anyio.sleep(LEAVE_SECONDS)
        if self._presses == 1:
            self._leave.set()

    async def _do(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except CloisterError as error:
            self._show.note(f"! {error.message}")

    @asynccontextmanager
    async def keyboard(self) -> AsyncGenerator[None]:
        """Read keys inside the block. The terminal is as before afterwards, and while the process is suspended."""
        self._show.screen.foot = self
        with Keyboard() as keyboard, anyio.open_signal_receiver(*_TERMINAL_SIGNALS) as signals:
            async with anyio.create_task_group() as tasks:

                async def hear() -> None:
                    async for number in signals:
                        if number == signal.SIGTSTP:
                            self._show.screen.hide()
                            keyboard.restore()
                            os.kill(os.getpid(), signal.SIGSTOP)
                        elif number == signal.SIGCONT and in_foreground():
                            keyboard.take()
                            self._show.screen.redraw()
                            self._continued.set()
                            self._continued = anyio.Event()
                        self._show.tick()

                tasks.start_soon(hear)
                tasks.start_soon(self.read_keys, tasks)
                yield
                tasks.cancel_scope.cancel()


_TERMINAL_SIGNALS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


def _read(since: float) -> bool:
    return time.monotonic() - since >= LOOK_SECONDS


def _can_steer() -> bool:
    """True if keys of a person arrive here, and not those of a shell."""
    return is_terminal(0) and is_terminal(1) and in_foreground()


def steer(show: Show, *, here: bool = False) -> Steering | None:
    """The keyboard for a live screen, if a person sits at it. `here`: this process drives the run."""
    if isinstance(show, LiveShow) and show.screen.moves and _can_steer():
        return Steering(show, here=here)
    return None
