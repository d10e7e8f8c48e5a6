"""The client for async code, on asyncio or trio. `synchronous.py` is the same for plain code."""

from __future__ import annotations

import codecs
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cloister.client.connect import Place, verbs_at
from cloister.core import limits
from cloister.core.errors import HostError, UserError

if TYPE_CHECKING:
    from cloister.app.verbs.records import BackgroundCommand, Executed
    from cloister.app.workbench.metrics import SandboxMetrics
    from cloister.cli.client.remote import RemoteVerbs
    from cloister.core.computer import Change, Entry, Exited, Output
    from cloister.core.events import Delta, Event
    from cloister.core.requests import Budget
    from cloister.runs.view import RunView
    from cloister.sandbox.api import SandboxInfo, SnapshotInfo
    from cloister.sandbox.code.contexts import CodeResult

Told = Callable[[str], object]
"""Gets output as text, as it arrives."""

RECONNECT_SECONDS = 600.0
"""How long a run is followed without a server: runs go on when it starts again."""
_LOOK_SECONDS = 0.5


class AsyncClient:
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
        self._place = Place(server, token, data_dir, ca)

    @cached_property
    def verbs(self) -> RemoteVerbs:
        """Everything else that a caller can do: audit, policy, templates, tokens, models."""
        return verbs_at(self._place)

    def server_url(self) -> str:
        """Where the server is now."""
        return self._place.server().url

    async def create(
        self,
        template: str = "default",
        *,
        ttl_seconds: float = limits.TTL_SECONDS,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        tier: str = "auto",
        task_id: str | None = None,
        quota: Mapping[str, float] | None = None,
        model: Mapping[str, Any] | None = None,
    ) -> AsyncSandbox:
        """Open a sandbox. A template `snapshot:NAME` starts from a snapshot.

        `quota` names what differs from the usual one, such as `{"memory_bytes": 2**30}`. With `model`, such as
        `{"tokens": 100_000}`, programs inside may ask a model at `http://model.cloister`, so many tokens together.
        """
        from cloister.app.verbs.records import NewSandbox

        wish = _record(
            NewSandbox,
            template=template,
            ttl_seconds=ttl_seconds,
            env=dict(env or {}),
            metadata=dict(metadata or {}),
            tier=tier,
            task_id=task_id,
            quota=None if quota is None else dict(quota),
            model=None if model is None else dict(model),
        )
        info, _ = await self.verbs.sandboxes.create(wish)
        return AsyncSandbox(self, info)

    async def sandboxes(self, metadata: Mapping[str, str] | None = None) -> list[AsyncSandbox]:
        """Those that live, oldest first; with `metadata`, those that have all of it."""
        from urllib.parse import urlencode

        query = urlencode(metadata) if metadata else None
        return [AsyncSandbox(self, info) for info in await self.verbs.sandboxes.list(query)]

    async def sandbox(self, id: str) -> AsyncSandbox:
        """A living sandbox, by id or a unique beginning of it."""
        return AsyncSandbox(self, await self.verbs.sandboxes.resolve(id))

    async def snapshots(self) -> list[SnapshotInfo]:
        return list(await self.verbs.snapshots.list())

    async def remove_snapshot(self, snapshot: str) -> None:
        await self.verbs.snapshots.remove(snapshot)

    def run(self, prompt: str, *, repo: str | Path, budget: Budget | None = None, **wishes: Any) -> AsyncRun:
        """A run that starts when it is first awaited or iterated. `wishes` are the members of `POST /v1/runs`.

        A `repo` that is a directory here is a path on the server's machine.
        """
        where = str(Path(repo).absolute()) if Path(repo).is_dir() else str(repo)
        given = {"prompt": prompt, "repo": where, "key": secrets.token_hex(16)} | wishes
        return AsyncRun(self, wish=given if budget is None else given | {"budget": budget})

    def attach(self, run: str) -> AsyncRun:
        """A run that was submitted before, by id, a unique beginning of one, or `last`."""
        return AsyncRun(self, run)


class AsyncRun:
    """A run. Iterating it yields its events, live, until it is finished; a lost connection is taken up again."""

    def __init__(self, client: AsyncClient, run: str = "", wish: Mapping[str, Any] | None = None) -> None:
        self._client = client
        self._wish = wish
        self._id = run

    async def id(self) -> str:
        """The run's id; submits it if it is new."""
        if self._wish is not None:
            from cloister.app.verbs.records import RunWish

            # With its key it is one run, however often it is sent.
            wish = _record(RunWish, **self._wish)
            self._id = (await self._client.verbs.runs.submit(wish)).id
            self._wish = None
        elif not self._id.startswith("r-"):
            self._id = (await self._client.verbs.runs.row(self._id)).id
        return self._id

    async def __aiter__(self) -> AsyncGenerator[Event]:
        async with aclosing(self.follow()) as items:
            async for item in items:
                if hasattr(item, "seq"):
                    yield item  # pyright: ignore[reportReturnType]

    async def follow(self, after: int = 0) -> AsyncGenerator[Event | Delta]:
        """Events with a `seq` above `after`, and the text and output between them as it arrives.

        Raises `HostError` (`server_gone`) if no server answers for ten minutes.
        """
        import anyio

        run = await self.id()
        deadline = anyio.current_time() + RECONNECT_SECONDS
        while True:
            try:
                async with self._client.verbs.runs.follow(run, after) as items:
                    async for item in items:
                        after = max(after, getattr(item, "seq", 0))
                        deadline = anyio.current_time() + RECONNECT_SECONDS
                        yield item
                return
            except HostError as error:
                if error.code not in _AWAY or anyio.current_time() > deadline:
                    raise
            await anyio.sleep(_LOOK_SECONDS)

    async def wait(self) -> RunView:
        """Wait until it is finished, and return its result."""
        async for _ in self:
            pass
        return await self.view()

    async def view(self) -> RunView:
        """The run as it is now: state, outcome, attempts, checks, cost."""
        run = await self.id()
        return await _patiently(lambda: self._client.verbs.runs.view(run))

    async def diff(self) -> str:
        return await self._client.verbs.runs.diff(await self.id())

    async def say(self, text: str) -> None:
        """Send it a message; a finished run goes on with it."""
        await self._client.verbs.runs.say(await self.id(), text)

    async def answer(self, allow: bool, ask: str | None = None) -> None:
        """Answer its question; None is the only open one."""
        await self._client.verbs.runs.answer(await self.id(), ask, "allow" if allow else "deny")

    async def stop(self) -> None:
        await self._client.verbs.runs.stop(await self.id())


class AsyncSandbox:
    """A sandbox. Leaving an `async with` block destroys it."""

    def __init__(self, client: AsyncClient, info: SandboxInfo) -> None:
        self.client = client
        self.info = info
        """As it was when it was last asked for; `refresh` asks again."""
        self.files = AsyncFiles(client, info.id)

    @classmethod
    async def create(
        cls, template: str = "default", *, client: AsyncClient | None = None, **wishes: Any
    ) -> AsyncSandbox:
        """Open one on `client`, or on the server that `AsyncClient()` finds. See `AsyncClient.create`."""
        return await (client or AsyncClient()).create(template, **wishes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def id(self) -> str:
        return self.info.id

    async def refresh(self) -> SandboxInfo:
        self.info = await self.client.verbs.sandboxes.get(self.id)
        return self.info

    async def close(self) -> None:
        """Destroy it; one that has ended already is fine."""
        try:
            await self.client.verbs.sandboxes.destroy(self.id)
        except UserError as error:
            if error.code != "no_such_sandbox":
                raise

    async def exec(
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

        With `on_stdout` or `on_stderr`, they get the output as it arrives.
        """
        more: dict[str, Any] = {"cwd": cwd, "env": dict(env or {}), "user": user, "seconds": seconds}
        if on_stdout is None and on_stderr is None:
            from cloister.app.verbs.records import Exec

            wish = _record(Exec, **_line(command), **more, stdin=stdin)
            return await self.client.verbs.sandboxes.exec(self.id, wish)
        collected = Collected(on_stdout, on_stderr)
        async with aclosing(self.stream(command, **more, stdin=stdin)) as items:
            async for item in items:
                collected.take(item)
        return collected.result()

    async def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "agent",
        seconds: float | None = None,
        stdin: str = "",
    ) -> AsyncGenerator[Output | Exited]:
        """Run a command and yield its output in order, then how it ended. Leaving it before its end kills it."""
        from cloister.app.verbs.records import NewCommand

        wish = _record(NewCommand, **_line(command), cwd=cwd, env=dict(env or {}), user=user, seconds=seconds)
        async with self.client.verbs.sandboxes.process(self.id, wish) as process:
            if len(data := stdin.encode()) > _STDIN_BYTES:
                raise UserError("too_large", f"stdin may have {_STDIN_BYTES:,} bytes: write a file.")
            await process.send(data)
            await process.send_eof()
            async with aclosing(process.__aiter__()) as items:
                async for item in items:
                    yield item

    async def start(self, command: str | Sequence[str], **more: Any) -> BackgroundCommand:
        """Start a command in the background; it outlives this connection. See `NewCommand` of the HTTP API."""
        from cloister.app.verbs.records import NewCommand

        return await self.client.verbs.sandboxes.start(self.id, _record(NewCommand, **_line(command), **more))

    async def commands(self) -> list[BackgroundCommand]:
        return list(await self.client.verbs.sandboxes.commands(self.id))

    async def output(self, command: str) -> bytes:
        """What a background command has printed so far, both streams in order; the oldest may be gone."""
        found, after = bytearray(), 0
        while True:
            page = await self.client.verbs.sandboxes.output(self.id, command, after)
            found += b"".join(piece.data for piece in page.output)
            if page.next_offset == after or not page.output:
                return bytes(found)
            after = page.next_offset

    async def kill(self, command: str) -> BackgroundCommand:
        return await self.client.verbs.sandboxes.kill(self.id, command)

    async def run_code(
        self, code: str, context: str = "default", *, seconds: float = limits.COMMAND_SECONDS
    ) -> CodeResult:
        """Run Python in an interpreter whose variables live until the next call. An exception is a result."""
        from cloister.app.verbs.records import RunCode

        wish = _record(RunCode, code=code, seconds=seconds)
        return await self.client.verbs.sandboxes.run_code(self.id, context, wish)

    async def fork(self, count: int = 1) -> list[AsyncSandbox]:
        """Copies of it as it is now."""
        made = await self.client.verbs.sandboxes.fork(self.id, count)
        return [AsyncSandbox(self.client, info) for info in made]

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Keep its files; `create(f"snapshot:{snapshot.id}")` starts from them."""
        return await self.client.verbs.snapshots.take(self.id, name)

    async def set_ttl(self, seconds: float) -> None:
        """Let it live that long from now on."""
        await self._change(ttl_seconds=seconds)

    async def set_metadata(self, metadata: Mapping[str, str]) -> None:
        await self._change(metadata=dict(metadata))

    async def pause(self) -> None:
        """Stop its processes where they are, with their memory, for a day at most."""
        await self._change(paused=True)

    async def resume(self) -> None:
        """Let them go on, with the time to live that was left."""
        await self._change(paused=False)

    async def _change(self, **what: Any) -> None:
        from cloister.app.verbs.records import SandboxChange

        self.info = await self.client.verbs.sandboxes.change(self.id, _record(SandboxChange, **what))

    async def token(self) -> str:
        """A token that reaches the inside of this sandbox only, and ends with it."""
        return (await self.client.verbs.sandboxes.token(self.id)).token

    async def address(self, port: int) -> str:
        """A URL of a port, for programs and browsers on the server's machine. It needs no token and ends with the sandbox."""
        from urllib.parse import urlsplit

        made = await self.client.verbs.sandboxes.address(self.id, port)
        server = urlsplit(self.client.server_url())
        return f"{server.scheme}://{made.host}{f':{server.port}' if server.port else ''}/"

    async def metrics(self) -> SandboxMetrics:
        """What it uses, and the ports that programs inside listen on."""
        return await self.client.verbs.sandboxes.metrics(self.id)


class AsyncFiles:
    """The files of a sandbox; paths are absolute or relative to /work."""

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client = client
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        async with self._client.verbs.files.read(self._sandbox, path) as pieces:
            return b"".join([piece async for piece in pieces])

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode("utf-8", errors="replace")

    async def write(self, path: str, data: str | bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file, with its directories; whole or not at all."""
        async with self._client.verbs.files.write(self._sandbox, path, mode=mode) as sink:
            await sink.send(data.encode() if isinstance(data, str) else data)

    async def list(self, path: str = ".") -> list[Entry]:
        return list(await self._client.verbs.files.list(self._sandbox, path))

    async def stat(self, path: str) -> Entry:
        return await self._client.verbs.files.stat(self._sandbox, path)

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except UserError as error:
            if error.code != "not_found":
                raise
            return False
        return True

    async def mkdir(self, path: str) -> None:
        await self._client.verbs.files.mkdir(self._sandbox, path)

    async def move(self, path: str, to: str) -> None:
        await self._client.verbs.files.move(self._sandbox, path, to)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._client.verbs.files.remove(self._sandbox, path, recursive=recursive)

    async def watch(self, path: str = ".") -> AsyncGenerator[Change]:
        """Changes below a directory, until it is removed."""
        async with self._client.verbs.files.watch(self._sandbox, path) as changes:
            async for change in changes:
                yield change


_STDIN_BYTES = 1_000_000
_AWAY = ("server_gone", "server_silent", "server_stopping", "no_server", "server_busy")
"""Codes of a server that may come back."""


@dataclass
class Collected:
    """The output of a streamed command, for its callbacks and its result."""

    on_stdout: Told | None
    on_stderr: Told | None
    _ended: Exited | None = None
    _texts: dict[str, list[str]] = field(default_factory=lambda: {"out": [], "err": []})
    _left: int = limits.OUTPUT_BYTES
    _decoders: dict[str, codecs.IncrementalDecoder] = field(
        default_factory=lambda: {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("out", "err")
        }
    )

    def take(self, item: Output | Exited) -> None:
        from cloister.core.computer import Exited

        if isinstance(item, Exited):
            for name, decoder in self._decoders.items():
                self._tell(name, decoder.decode(b"", final=True))
            self._ended = item
            return
        self._tell(item.stream, self._decoders[item.stream].decode(item.data))

    def _tell(self, name: str, text: str) -> None:
        if not text:
            return
        if self._left > 0:
            self._texts[name].append(text[: self._left])
        self._left -= len(text)
        told = self.on_stdout if name == "out" else self.on_stderr
        if told is not None:
            told(text)

    def result(self) -> Executed:
        from cloister.app.verbs.records import Executed

        ended = self._ended
        if ended is None:
            raise HostError("server_gone", "The connection was lost before the command had ended.")
        out, err = "".join(self._texts["out"]), "".join(self._texts["err"])
        return Executed(ended.code, ended.signal, ended.killed, out, err, ended.seconds, self._left < 0)


def _line(command: str | Sequence[str]) -> dict[str, Any]:
    return {"command": command} if isinstance(command, str) else {"argv": tuple(command)}


def _record(kind: Any, **members: Any) -> Any:
    """A record from plain values. Raises `UserError` (`bad_request`), as the server would."""
    import msgspec

    from cloister.core.errors import describe

    try:
        return msgspec.convert(msgspec.to_builtins(members), kind)
    except msgspec.ValidationError as error:
        raise UserError("bad_request", describe(error, kind)) from None


async def _patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of a server that may be restarting. Raises as `ask` after a while without one."""
    import anyio

    deadline = anyio.current_time() + RECONNECT_SECONDS
    while True:
        try:
            return await ask()
        except HostError as error:
            if error.code not in _AWAY or anyio.current_time() > deadline:
                raise
        await anyio.sleep(_LOOK_SECONDS)
