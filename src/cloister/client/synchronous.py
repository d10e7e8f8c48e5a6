"""The client for plain code: the methods of `asynchronous.py`, each waiting for its result.

One thread of the process has an event loop for all clients. It is a daemon, so that no program waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from cloister.client.asynchronous import AsyncClient, AsyncRun, AsyncSandbox, Collected, Told
from cloister.core import limits

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.from_thread import BlockingPortal

    from cloister.app.verbs.records import BackgroundCommand, Executed
    from cloister.app.workbench.metrics import SandboxMetrics
    from cloister.core.computer import Change, Entry, Exited, Output
    from cloister.core.events import Delta, Event
    from cloister.runs.view import RunView
    from cloister.sandbox.api import SandboxInfo, SnapshotInfo
    from cloister.sandbox.code.contexts import CodeResult

T = TypeVar("T")

_lock = threading.Lock()
_portals: dict[int, BlockingPortal] = {}
"""The loop of this process; a forked one starts its own."""
_AHEAD = 64
"""Items that are received before the caller takes them."""


def _portal() -> BlockingPortal:
    with _lock:
        if (found := _portals.get(os.getpid())) is None:
            found = _portals[os.getpid()] = _start()
        return found


def _start() -> BlockingPortal:
    import anyio
    from anyio.from_thread import BlockingPortal

    ready: Future[BlockingPortal] = Future()

    async def main() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    threading.Thread(target=partial(anyio.run, main), name="cloister-client", daemon=True).start()
    return ready.result()


def wait(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, done in the loop; an interrupt of the caller cancels it."""
    task = _portal().start_task_soon(work)
    try:
        return task.result()
    except BaseException:
        task.cancel()
        raise


def taken(items: Callable[[], AsyncGenerator[T]]) -> Generator[T]:
    """The items of an asynchronous generator, which stays in one task; leaving early closes it."""
    import anyio

    portal = _portal()

    async def passing(send: Any) -> None:
        async with send, aclosing(items()) as found:
            async for item in found:
                await send.send(item)

    async def open_stream() -> Any:
        return anyio.create_memory_object_stream[Any](_AHEAD)

    async def next_of(receive: Any) -> list[T]:
        try:
            return [await receive.receive()]
        except anyio.EndOfStream:
            return []

    send, receive = portal.call(open_stream)
    task = portal.start_task_soon(passing, send)
    try:
        while item := portal.call(next_of, receive):
            yield item[0]
        task.result()
    finally:
        task.cancel()
        portal.call(receive.aclose)


class Client:
    """A server, reached by address and token.

    Without arguments it is the one of CLOISTER_SERVER and CLOISTER_TOKEN, else the server of the data directory.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        data_dir: str | Path | None = None,
        ca: str | Path | None = None,
    ) -> None:
        self.asynchronous = AsyncClient(server, token, data_dir=data_dir, ca=ca)

    def create(self, template: str = "default", **wishes: Any) -> Sandbox:
        """Open a sandbox; its arguments are those of `AsyncClient.create`."""
        return Sandbox(wait(partial(self.asynchronous.create, template, **wishes)))

    def sandboxes(self, metadata: Mapping[str, str] | None = None) -> list[Sandbox]:
        """Those that live, oldest first; with `metadata`, those that have all of it."""
        return [Sandbox(found) for found in wait(partial(self.asynchronous.sandboxes, metadata))]

    def sandbox(self, id: str) -> Sandbox:
        """A living sandbox, by id or a unique beginning of it."""
        return Sandbox(wait(partial(self.asynchronous.sandbox, id)))

    def snapshots(self) -> list[SnapshotInfo]:
        return wait(self.asynchronous.snapshots)

    def remove_snapshot(self, snapshot: str) -> None:
        wait(partial(self.asynchronous.remove_snapshot, snapshot))

    def run(self, prompt: str, *, repo: str | Path, **wishes: Any) -> Run:
        """A run that starts when it is first iterated or asked. `wishes` are the members of `POST /v1/runs`."""
        return Run(self.asynchronous.run(prompt, repo=repo, **wishes))

    def attach(self, run: str) -> Run:
        """A run that was submitted before, by id, a unique beginning of one, or `last`."""
        return Run(self.asynchronous.attach(run))


class Run:
    """A run. Iterating it yields its events, live, until it is finished; a lost connection is taken up again."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run

    @property
    def id(self) -> str:
        """The run's id; submits it if it is new."""
        return wait(self._run.id)

    def __iter__(self) -> Generator[Event]:
        return taken(self._run.__aiter__)

    def follow(self, after: int = 0) -> Generator[Event | Delta]:
        """Events with a `seq` above `after`, and the text and output between them as it arrives."""
        return taken(partial(self._run.follow, after))

    def wait(self) -> RunView:
        """Wait until it is finished, and return its result."""
        return wait(self._run.wait)

    def view(self) -> RunView:
        """The run as it is now: state, outcome, attempts, checks, cost."""
        return wait(self._run.view)

    def diff(self) -> str:
        return wait(self._run.diff)

    def say(self, text: str) -> None:
        """Send it a message; a finished run goes on with it."""
        wait(partial(self._run.say, text))

    def answer(self, allow: bool, ask: str | None = None) -> None:
        """Answer its question; None is the only open one."""
        wait(partial(self._run.answer, allow, ask))

    def stop(self) -> None:
        wait(self._run.stop)


class Sandbox:
    """A sandbox. Leaving a `with` block destroys it."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.asynchronous = sandbox
        self.files = Files(sandbox)

    @classmethod
    def create(cls, template: str = "default", *, client: Client | None = None, **wishes: Any) -> Sandbox:
        """Open one on `client`, or on the server that `Client()` finds. See `AsyncClient.create`."""
        return (client or Client()).create(template, **wishes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        return self.asynchronous.id

    @property
    def info(self) -> SandboxInfo:
        """As it was when it was last asked for; `refresh` asks again."""
        return self.asynchronous.info

    def refresh(self) -> SandboxInfo:
        return wait(self.asynchronous.refresh)

    def close(self) -> None:
        """Destroy it; one that has ended already is fine."""
        wait(self.asynchronous.close)

    def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "agent",
        seconds: float = limits.COMMAND_SECONDS,
        stdin: str = "",
        on_stdout: Told | None = None,
        on_stderr: Told | None = None,
    ) -> Executed:
        """Run a line for bash, or a list of words, to its end. A command that fails is a result, not an error.

        With `on_stdout` or `on_stderr`, they get the output as it arrives, in the caller's thread.
        """
        more: dict[str, Any] = {"cwd": cwd, "env": env, "user": user, "seconds": seconds, "stdin": stdin}
        if on_stdout is None and on_stderr is None:
            return wait(partial(self.asynchronous.exec, command, **more))
        collected = Collected(on_stdout, on_stderr)
        with _closing(self.stream(command, **more)) as items:
            for item in items:
                collected.take(item)
        return collected.result()

    def stream(self, command: str | Sequence[str], **more: Any) -> Generator[Output | Exited]:
        """Run a command and yield its output in order, then how it ended. Leaving it before its end kills it."""
        return taken(partial(self.asynchronous.stream, command, **more))

    def start(self, command: str | Sequence[str], **more: Any) -> BackgroundCommand:
        """Start a command in the background; it outlives this connection. See `NewCommand` of the HTTP API."""
        return wait(partial(self.asynchronous.start, command, **more))

    def commands(self) -> list[BackgroundCommand]:
        return wait(self.asynchronous.commands)

    def output(self, command: str) -> bytes:
        """What a background command has printed so far, both streams in order; the oldest may be gone."""
        return wait(partial(self.asynchronous.output, command))

    def kill(self, command: str) -> BackgroundCommand:
        return wait(partial(self.asynchronous.kill, command))

    def run_code(
        self, code: str, context: str = "default", *, seconds: float = limits.COMMAND_SECONDS
    ) -> CodeResult:
        """Run Python in an interpreter whose variables live until the next call. An exception is a result."""
        return wait(partial(self.asynchronous.run_code, code, context, seconds=seconds))

    def fork(self, count: int = 1) -> list[Sandbox]:
        """Copies of it as it is now."""
        return [Sandbox(made) for made in wait(partial(self.asynchronous.fork, count))]

    def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Keep its files; `create(f"snapshot:{snapshot.id}")` starts from them."""
        return wait(partial(self.asynchronous.snapshot, name))

    def set_ttl(self, seconds: float) -> None:
        """Let it live that long from now on."""
        wait(partial(self.asynchronous.set_ttl, seconds))

    def set_metadata(self, metadata: Mapping[str, str]) -> None:
        wait(partial(self.asynchronous.set_metadata, metadata))

    def pause(self) -> None:
        """Stop its processes where they are, with their memory, for a day at most."""
        wait(self.asynchronous.pause)

    def resume(self) -> None:
        """Let them go on, with the time to live that was left."""
        wait(self.asynchronous.resume)

    def token(self) -> str:
        """A token that reaches the inside of this sandbox only, and ends with it."""
        return wait(self.asynchronous.token)

    def address(self, port: int) -> str:
        """A URL of a port, for programs and browsers on the server's machine. It needs no token and ends with the sandbox."""
        return wait(partial(self.asynchronous.address, port))

    def metrics(self) -> SandboxMetrics:
        """What it uses, and the ports that programs inside listen on."""
        return wait(self.asynchronous.metrics)


class Files:
    """The files of a sandbox; paths are absolute or relative to /work."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._files = sandbox.files

    def read(self, path: str) -> bytes:
        return wait(partial(self._files.read, path))

    def read_text(self, path: str) -> str:
        return wait(partial(self._files.read_text, path))

    def write(self, path: str, data: str | bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file, with its directories; whole or not at all."""
        wait(partial(self._files.write, path, data, mode=mode))

    def list(self, path: str = ".") -> list[Entry]:
        return wait(partial(self._files.list, path))

    def stat(self, path: str) -> Entry:
        return wait(partial(self._files.stat, path))

    def exists(self, path: str) -> bool:
        return wait(partial(self._files.exists, path))

    def mkdir(self, path: str) -> None:
        wait(partial(self._files.mkdir, path))

    def move(self, path: str, to: str) -> None:
        wait(partial(self._files.move, path, to))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        wait(partial(self._files.remove, path, recursive=recursive))

    def watch(self, path: str = ".") -> Generator[Change]:
        """Changes below a directory, until it is removed."""
        return taken(partial(self._files.watch, path))


@contextmanager
def _closing(items: Generator[T]) -> Generator[Generator[T]]:
    try:
        yield items
    finally:
        items.close()
