"""`cloister sandbox`: sandboxes opened by hand."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from cloister.cli.client.open import perform
from cloister.cli.commands.sandbox import change, copy, detached, port
from cloister.cli.commands.sandbox.change import Pairs
from cloister.cli.options import AsJson, SandboxName, TierWish, put, put_json, put_list
from cloister.core.errors import UserError, describe
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import BackgroundCommand, NewCommand
    from cloister.sandbox.api import SandboxInfo

app = typer.Typer(
    help="Sandboxes opened by hand, their commands and their files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("create")
def create(  # noqa: PLR0913  one parameter per option
    ctx: typer.Context,
    template: Annotated[str, typer.Option("--template", help="A template, or snapshot:NAME.")] = "default",
    tier: TierWish = "auto",
    ttl: Annotated[
        float, typer.Option("--ttl", metavar="SECONDS", help="Destroy it after this time.")
    ] = 3600.0,
    task_id: Annotated[
        str | None, typer.Option("--task-id", help="A name of yours: the same name returns the same sandbox.")
    ] = None,
    metadata: Pairs = None,
    model_tokens: Annotated[
        int | None,
        typer.Option("--model-tokens", help="Let programs inside ask a model: this many tokens together."),
    ] = None,
    model_dollars: Annotated[
        float | None, typer.Option("--model-dollars", help="The same limit in US dollars.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Which model. Default: the settings'.")] = None,
    as_json: AsJson = False,
) -> None:
    """Open a sandbox and print its id. Starts a background server if none is running."""

    async def work(verbs: "Verbs") -> "SandboxInfo":
        import msgspec

        from cloister.app.verbs.records import NewSandbox

        wish: dict[str, object] = {"template": template, "tier": tier, "ttl_seconds": ttl, "task_id": task_id}
        wish["metadata"] = change.pairs(metadata)
        if model_tokens is not None:
            wish["model"] = {"tokens": model_tokens, "dollars": model_dollars, "name": model}
        elif model_dollars is not None or model is not None:
            raise UserError(
                "bad_usage", "Give --model-tokens: how many tokens its programs may use together."
            )
        try:
            return (await verbs.sandboxes.create(msgspec.convert(wish, NewSandbox)))[0]
        except msgspec.ValidationError as error:
            raise UserError("bad_request", describe(error, NewSandbox)) from None

    info = perform(ctx, work, serve=True)
    if as_json:
        put_json(info)
    else:
        put(info.id)
        put(f"Open a shell: cloister sandbox shell {info.id}", file=sys.stderr)


@app.command("exec")
def exec_command(  # noqa: PLR0913  one parameter per option
    ctx: typer.Context,
    sandbox: SandboxName,
    argv: Annotated[list[str], typer.Argument(metavar="-- ARGV...", help="The program and its arguments.")],
    cwd: Annotated[str, typer.Option("--cwd", help="The working directory.")] = "/work",
    user: Annotated[
        Literal["agent", "root"], typer.Option("--user", help="The user in the sandbox.")
    ] = "agent",
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Wall-clock limit. Default: as long as the sandbox lives."),
    ] = None,
    tty: Annotated[bool, typer.Option("--tty", help="Connect it to this terminal.")] = False,
    background: Annotated[
        bool, typer.Option("--background", help="Start it, print its id and return.")
    ] = False,
) -> None:
    """Run a program in a sandbox: stdin, stdout, stderr and the exit status are passed through."""
    if background and tty:
        raise UserError("bad_usage", "Give one of --background and --tty.")
    command = _command(tuple(argv), cwd, user, seconds, tty=tty)
    if not background:
        _run(ctx, sandbox, command)

    async def work(verbs: "Verbs") -> "BackgroundCommand":
        return await verbs.sandboxes.start((await verbs.sandboxes.resolve(sandbox)).id, command)

    started = perform(ctx, work)
    put(started.id)
    put(f"Follow it: cloister sandbox attach {started.sandbox} {started.id}", file=sys.stderr)


@app.command("shell")
def shell(ctx: typer.Context, sandbox: SandboxName) -> None:
    """Open a terminal in a sandbox; `exit` closes it, the sandbox stays."""
    _run(ctx, sandbox, _command(("/bin/bash", "-l"), "/work", "agent", None, tty=True))


def _command(
    argv: tuple[str, ...], cwd: str, user: Literal["agent", "root"], seconds: float | None, *, tty: bool
) -> "NewCommand":
    from cloister.app.verbs.records import NewCommand, Terminal
    from cloister.cli.screen.terminal import terminal_size

    if not tty:
        return NewCommand(argv, cwd=cwd, user=user, seconds=seconds)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            "no_terminal",
            "There is no terminal here: use `cloister sandbox exec ID -- PROGRAM` instead.",
        )
    env = {"TERM": "xterm-256color"}
    return NewCommand(argv, cwd=cwd, user=user, seconds=seconds, env=env, pty=Terminal(*terminal_size()))


def _run(ctx: typer.Context, sandbox: str, command: "NewCommand") -> NoReturn:
    async def work(verbs: "Verbs") -> int:
        from cloister.cli.screen.terminal import connect

        found = await verbs.sandboxes.resolve(sandbox)
        async with verbs.sandboxes.process(found.id, command) as process:
            return await connect(process, tty=command.pty is not None)

    raise typer.Exit(perform(ctx, work))


@app.command("fork")
def fork(
    ctx: typer.Context,
    sandbox: SandboxName,
    count: Annotated[int, typer.Option("--n", min=1, max=64, metavar="N", help="The number of copies.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Copy a running sandbox and print the ids of the copies; on microvm its processes continue in each."""

    async def work(verbs: "Verbs") -> "tuple[SandboxInfo, ...]":
        return await verbs.sandboxes.fork((await verbs.sandboxes.resolve(sandbox)).id, count)

    for made in perform(ctx, work):
        put_json(made) if as_json else put(made.id)


@app.command("ls")
def ls(ctx: typer.Context, metadata: Pairs = None, as_json: AsJson = False) -> None:
    """List the running sandboxes."""
    from urllib.parse import urlencode

    wanted = urlencode(change.pairs(metadata))
    found = perform(ctx, lambda verbs: verbs.sandboxes.list(wanted or None))
    head = f"{'SANDBOX':<15} {'TEMPLATE':<10} {'TIER':<10} {'RUNTIME':<16} ENDS IN"
    put_list(found, as_json, head, _line, "No sandboxes. Open one: cloister sandbox create")


@app.command("rm")
def rm(ctx: typer.Context, sandbox: SandboxName) -> None:
    """Destroy a sandbox and everything in it."""

    async def work(verbs: "Verbs") -> str:
        found = (await verbs.sandboxes.resolve(sandbox)).id
        await verbs.sandboxes.destroy(found)
        return found

    put(f"Removed {perform(ctx, work)}.")


app.command("set")(change.change)
app.command("metrics")(change.metrics)
app.command("token")(change.token)
app.command("commands")(detached.commands)
app.command("attach")(detached.attach)
app.command("kill")(detached.kill)
app.command("cp")(copy.cp)
app.command("files")(copy.files)
app.command("port")(port.port)


def _line(info: "SandboxInfo") -> str:
    from cloister.runs.event_text.lines import seconds

    left = seconds(max(0.0, info.expires_at - time.time()))
    tier, runtime = info.isolation.tier, one_line(info.isolation.runtime, 16)
    return f"{info.id:<15} {one_line(info.template, 10):<10} {tier:<10} {runtime:<16} {left}"
