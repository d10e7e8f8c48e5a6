"""Routes of background commands, which outlive the connection that started them: start, list, read, attach, end."""

from typing import Annotated

from litestar import delete, get, post, websocket
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.app.verbs.api import Attached, SandboxVerbs
from cloister.app.verbs.records import BackgroundCommand, CommandOutput, NewCommand, NewContext, RunCode
from cloister.app.workbench.commands import Skipped
from cloister.core.computer import Exited, Output
from cloister.core.errors import UserError
from cloister.sandbox.code.contexts import CodeContext, CodeResult
from cloister.server.routes import Given, Wait, of
from cloister.server.routes.process import ended, send_output, talk
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import NORMAL, Ending, Part, Socket, Sockets, Wire, converse

OFFSET_MAX = 2**53

ContextName = Annotated[str, PathParameter(description="A context's id; `default` is made at its first use.")]
_CONTEXT = NewContext()
CommandName = Annotated[str, PathParameter(description="A background command's id.")]
Offset = Annotated[
    int,
    QueryParameter(ge=0, le=OFFSET_MAX, description="Output from here on: bytes of both streams together."),
]


@post(
    "/v1/sandboxes/{sandbox:str}/commands",
    **of(SandboxVerbs.start, "Start a command in the background", "startCommand", 201),
)
async def start_command(sandbox: SandboxName, data: JSONBody[NewCommand], verbs: Given) -> BackgroundCommand:
    return await verbs.sandboxes.start(sandbox, data)


@get(
    "/v1/sandboxes/{sandbox:str}/commands",
    **of(
        SandboxVerbs.commands,
        "The background commands of a sandbox, also of one that is gone; oldest first",
        "listCommands",
    ),
)
async def list_commands(sandbox: SandboxName, verbs: Given) -> tuple[BackgroundCommand, ...]:
    return await verbs.sandboxes.commands(sandbox)


@get(
    "/v1/sandboxes/{sandbox:str}/commands/{command:str}",
    **of(SandboxVerbs.output, "A background command and its output from an offset on", "getCommand"),
)
async def get_command(
    sandbox: SandboxName, command: CommandName, verbs: Given, offset: Offset = 0
) -> CommandOutput:
    return await verbs.sandboxes.output(sandbox, command, offset)


@delete(
    "/v1/sandboxes/{sandbox:str}/commands/{command:str}",
    **of(
        SandboxVerbs.kill,
        "End a background command with everything it started; its record stays",
        "endCommand",
        200,
    ),
)
async def end_command(sandbox: SandboxName, command: CommandName, verbs: Given) -> BackgroundCommand:
    return await verbs.sandboxes.kill(sandbox, command)


@post(
    "/v1/sandboxes/{sandbox:str}/contexts",
    **of(SandboxVerbs.new_context, "An interpreter whose variables live", "newContext", 201),
)
async def new_context(
    sandbox: SandboxName, verbs: Given, data: JSONBody[NewContext] = _CONTEXT
) -> CodeContext:
    return await verbs.sandboxes.new_context(sandbox, data)


@get(
    "/v1/sandboxes/{sandbox:str}/contexts",
    **of(SandboxVerbs.contexts, "The contexts of a sandbox", "listContexts"),
)
async def list_contexts(sandbox: SandboxName, verbs: Given) -> tuple[CodeContext, ...]:
    return await verbs.sandboxes.contexts(sandbox)


@post(
    "/v1/sandboxes/{sandbox:str}/contexts/{context:str}/run",
    **of(SandboxVerbs.run_code, "Run code in a context", "runCode", 200),
)
async def run_code(
    sandbox: SandboxName, context: ContextName, data: JSONBody[RunCode], verbs: Given, wait: Wait
) -> CodeResult:
    return await wait(verbs.sandboxes.run_code(sandbox, context, data))


@post(
    "/v1/sandboxes/{sandbox:str}/contexts/{context:str}/restart",
    **of(SandboxVerbs.restart_context, "Forget the variables of a context", "restartContext", 200),
)
async def restart_context(sandbox: SandboxName, context: ContextName, verbs: Given) -> CodeContext:
    return await verbs.sandboxes.restart_context(sandbox, context)


@delete(
    "/v1/sandboxes/{sandbox:str}/contexts/{context:str}",
    **of(SandboxVerbs.remove_context, "End a context", "deleteContext"),
)
async def remove_context(sandbox: SandboxName, context: ContextName, verbs: Given) -> None:
    await verbs.sandboxes.remove_context(sandbox, context)


@websocket("/v1/sandboxes/{sandbox:str}/commands/{command:str}/attach", **of(SandboxVerbs.attach))
async def attach(
    socket: Socket,
    verbs: Given,
    sockets: NamedDependency[Sockets],
    sandbox: SandboxName,
    command: CommandName,
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        found = verbs.sandboxes.attach(sandbox, command, read_offset(socket.query_params.get("offset", "0")))

        async def both() -> Ending:
            async with found as attached:
                return await talk(wire, attached, lambda: _show(wire, attached))

        return (both,)

    await converse(socket, sockets, parts)


async def _show(wire: Wire, attached: Attached) -> Ending:
    async for item in attached:
        match item:
            case Output():
                await send_output(wire, item)
            case Skipped():
                await wire.send_record(skipped=item.size)
            case Exited():
                await wire.send_record(exited=ended(item))
    return Ending(NORMAL, "The command ended.")


def read_offset(text: str) -> int:
    """Raises `UserError` (`bad_offset`)."""
    if not text.isascii() or not text.isdigit() or int(text[:20]) > OFFSET_MAX:
        raise UserError("bad_offset", "offset is a whole number of bytes, 0 for all.")
    return int(text)


SOCKET_ROUTES = (attach,)
