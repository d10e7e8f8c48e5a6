"""`process.Process` of e2b: commands and terminals inside, over Connect."""

import base64
import re
import signal
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State
from msgspec import Meta

from cloister.app.verbs.api import Attached, SandboxVerbs, Verbs
from cloister.app.verbs.records import SECONDS_MAX, BackgroundCommand, NewCommand, Terminal
from cloister.app.workbench.commands import Skipped
from cloister.core.computer import Exited, Output, Pty
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.server.compat.connect import failing, frame, framed, stream, unary
from cloister.server.compat.e2b import HOME, at, placed, sandbox_of, user
from cloister.server.compat.e2b.control import opened
from cloister.server.compat.live import Live, Tell
from cloister.server.routes import Given, of

_PIECE = 262_144
_KEEPALIVE: dict[str, object] = {"event": {"keepalive": {}}}
_SIGNALS = {
    "SIGNAL_SIGTERM": signal.SIGTERM,
    "SIGNAL_SIGKILL": signal.SIGKILL,
    "SIGNAL_SIGINT": signal.SIGINT,
}
_DURATION = re.compile(r"[0-9]{1,12}")
_Asked = Request[Any, Any, State]
Size = Annotated[int, Meta(ge=1, le=1_000)]


class _Size(msgspec.Struct, frozen=True):
    cols: Size = 80
    rows: Size = 24


class _Pty(msgspec.Struct, frozen=True):
    size: _Size = _Size()


class _Config(msgspec.Struct, frozen=True):
    cmd: str
    args: tuple[str, ...] = ()
    envs: dict[str, str] = {}
    cwd: str | None = None


class _Start(msgspec.Struct, frozen=True):
    process: _Config
    pty: _Pty | None = None
    stdin: bool | None = None
    tag: str | None = None


class _Selector(msgspec.Struct, frozen=True):
    pid: int = 0


class _Input(msgspec.Struct, frozen=True):
    stdin: bytes | None = None
    pty: bytes | None = None


class _Named(msgspec.Struct, frozen=True):
    """Any message about one process."""

    process: _Selector
    input: _Input = _Input()
    signal: str = ""
    pty: _Pty | None = None


def pid_of(command: str) -> int:
    """The number by which its clients know a command."""
    return int.from_bytes(sha256(command.encode()).digest()[:4], "big") >> 1 or 1


async def _found(verbs: Verbs, sandbox: str, process: _Selector) -> BackgroundCommand:
    """Raises `UserError` (`no_such_command`)."""
    for command in await verbs.sandboxes.commands(sandbox):
        if command.state == "running" and pid_of(command.id) == process.pid:
            return command
    raise UserError("no_such_command", f"There is no process {process.pid} in this sandbox.")


@post(
    at("/process.Process/Start"), **of(SandboxVerbs.start, status=200), **opened(request_max_body_size=None)
)
async def start(request: _Asked, verbs: Given) -> Live:
    try:
        sandbox, wish = sandbox_of(request), await framed(_Start, request)
        command = _command(request, wish)
    except CloisterError as error:
        return failing(error)

    async def produce(tell: Tell) -> None:
        made = await verbs.sandboxes.start(sandbox, command)
        await tell(frame({"event": {"start": {"pid": pid_of(made.id)}}}))
        async with verbs.sandboxes.attach(sandbox, made.id) as attached:
            if wish.stdin is False and wish.pty is None:
                await attached.send_eof()
            await _follow(attached, tell, terminal=wish.pty is not None)

    return stream(produce, _KEEPALIVE)


def _command(request: _Asked, wish: _Start) -> NewCommand:
    given = request.headers.get("connect-timeout-ms", "")
    seconds = int(given) / 1000 if _DURATION.fullmatch(given) else 0.0
    size = None if wish.pty is None else wish.pty.size
    who, cwd = user(request), placed(wish.process.cwd or HOME)
    # The home directory is a link: programs see the name that code for e2b has in it.
    usual = {"PWD": cwd} | ({} if who == "root" else {"HOME": HOME})
    return NewCommand(
        argv=(wish.process.cmd, *wish.process.args),
        cwd=cwd,
        env=usual | wish.process.envs,
        user=who,
        seconds=min(SECONDS_MAX, seconds) if seconds > 0 else None,
        pty=None if size is None else Terminal(size.rows, size.cols),
    )


@post(
    at("/process.Process/Connect"),
    **of(SandboxVerbs.attach, status=200),
    **opened(request_max_body_size=None),
)
async def connect(request: _Asked, verbs: Given) -> Live:
    try:
        sandbox, wish = sandbox_of(request), await framed(_Named, request)
        command = await _found(verbs, sandbox, wish.process)
    except CloisterError as error:
        return failing(error)

    async def produce(tell: Tell) -> None:
        await tell(frame({"event": {"start": {"pid": pid_of(command.id)}}}))
        async with verbs.sandboxes.attach(sandbox, command.id, command.output_end) as attached:
            await _follow(attached, tell, terminal=command.pty)

    return stream(produce, _KEEPALIVE)


async def _follow(attached: Attached, tell: Tell, *, terminal: bool) -> None:
    async for item in attached:
        match item:
            case Output():
                name = "pty" if terminal else "stdout" if item.stream == "out" else "stderr"
                for start_ in range(0, len(item.data), _PIECE):
                    data = base64.b64encode(item.data[start_ : start_ + _PIECE]).decode()
                    await tell(frame({"event": {"data": {name: data}}}))
            case Skipped():
                continue
            case Exited():
                if item.killed == "time":
                    raise TimeoutError
                if item.killed == "output":
                    raise OutsideError("too_much_output", "The command printed too much and was ended.")
                await tell(frame({"event": {"end": _end(item)}}))


def _end(exited: Exited) -> dict[str, object]:
    if exited.code is not None:
        return {"exitCode": exited.code, "exited": True, "status": f"exit status {exited.code}"}
    number = exited.signal or 0
    return {"exitCode": -1, "exited": False, "status": f"signal: {number}", "error": f"signal: {number}"}


@post(at("/process.Process/List"), **of(SandboxVerbs.commands, status=200), **opened())
async def list_processes(request: _Asked, verbs: Given) -> dict[str, object]:
    await unary(dict[str, object], request)
    found = await verbs.sandboxes.commands(sandbox_of(request))
    return {
        "processes": [
            {
                "config": {"cmd": one.argv[0], "args": list(one.argv[1:]), "cwd": one.cwd},
                "pid": pid_of(one.id),
            }
            for one in found
            if one.state == "running"
        ]
    }


@post(
    [
        at("/process.Process/SendInput"),
        at("/process.Process/CloseStdin"),
        at("/process.Process/Update"),
        at("/process.Process/SendSignal"),
    ],
    **of(SandboxVerbs.attach, status=200),
    **opened(request_max_body_size=None),
)
async def steer(request: _Asked, verbs: Given) -> Response[dict[str, object]]:
    sandbox, wish = sandbox_of(request), await unary(_Named, request)
    command = await _found(verbs, sandbox, wish.process)
    method = request.url.path.rpartition("/")[2]
    async with verbs.sandboxes.attach(sandbox, command.id, command.output_end) as attached:
        match method:
            case "SendInput":
                await attached.send(wish.input.stdin or wish.input.pty or b"")
            case "CloseStdin":
                await attached.send_eof()
            case "Update" if wish.pty is not None:
                await attached.resize(Pty(wish.pty.size.rows, wish.pty.size.cols))
            case "SendSignal" if wish.signal == "SIGNAL_SIGKILL":
                await attached.kill()
            case "SendSignal":
                await attached.signal(_SIGNALS.get(wish.signal, signal.SIGTERM))
            case _:
                raise UserError("bad_request", "There is nothing to change.")
    return Response({})


ROUTES = (start, connect, list_processes, steer)
