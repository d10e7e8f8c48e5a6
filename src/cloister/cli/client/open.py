"""Choose how a command reaches the verbs: a server by address, the server of the data directory, or this process."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from cloister.cli.client.discover import living
from cloister.cli.options import root_option, settings_of
from cloister.core.errors import Bug, HostError, UserError
from cloister.core.system import NeedsLoop

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.app.verbs.api import Verbs
    from cloister.cli.client.http import Server, Transport

T = TypeVar("T")


def perform(
    ctx: typer.Context,
    work: "Callable[[Verbs], Awaitable[T]]",
    *,
    serve: bool = False,
    quick: bool = False,
) -> T:
    """Run `work` with the verbs and return its result.

    `serve` starts a background server if none is running. `quick` says that `work` needs only the files of the data
    directory: neither its server nor an event loop, whose start-up would take a third of the time of a quick command.
    Work that finds that it cannot do without raises `NeedsLoop`, and starts again with one.
    """
    shared = _in_cluster(ctx)
    if serve and named_server(ctx) is None:
        from cloister.cli.client.discover import ensure

        ensure(settings_of(ctx))
    if quick and named_server(ctx) is None and not shared:
        from cloister.app.verbs.local import local_verbs

        with suppress(NeedsLoop):
            return _finished(work(local_verbs(settings_of(ctx))))
    import anyio

    async def main() -> T:
        async with open_verbs(ctx) as verbs:
            return await work(verbs)

    return anyio.run(main)


def _finished(work: Awaitable[T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.__await__().send(None)
    except StopIteration as done:
        return done.value
    raise Bug("A verb that needs no event loop has waited for one.")


def _in_cluster(ctx: typer.Context) -> bool:
    """True if the log here is a copy: only a server keeps it up to date, and knows which machines live."""
    if named_server(ctx) is not None:
        return False
    settings = settings_of(ctx)
    return settings.file.cluster is not None or (
        (found := living(settings.data_dir)) is not None and found.cluster
    )


def drives_here(ctx: typer.Context) -> bool:
    """True if this process would drive a new run, because there is no server."""
    if named_server(ctx) is not None or _in_cluster(ctx):
        return False
    return living(settings_of(ctx).data_dir) is None


@asynccontextmanager
async def open_verbs(ctx: typer.Context, *, drive: bool = False) -> "AsyncGenerator[Verbs]":
    """The verbs of this command. Without a server, `drive` opens the machine, so that runs can be submitted."""
    settings = settings_of(ctx)
    if _in_cluster(ctx):
        from anyio import to_thread

        from cloister.cli.client.discover import ensure

        await to_thread.run_sync(ensure, settings)
    if not drives_here(ctx):
        from cloister.cli.client.remote import RemoteVerbs

        yield RemoteVerbs(transport(ctx))
        return
    from cloister.app.verbs.local import local_verbs, open_local

    if not drive:
        yield local_verbs(settings)
        return
    async with open_local(settings) as verbs:
        yield verbs


def transport(ctx: typer.Context) -> "Transport":
    from cloister.cli.client.http import Transport

    settings, named = settings_of(ctx), named_server(ctx)

    async def find() -> "Server":
        return named or _server_here(settings)

    return Transport(find)


def _server_here(settings: "Settings") -> "Server":
    """The living server of the data directory; it may be another one than a moment ago."""
    from cloister.cli.client.http import Server

    found = living(settings.data_dir)
    if found is None:
        raise HostError("server_gone", "The server is gone: see `cloister serve --status`.")
    return Server(found.url, found.token())


def named_server(ctx: typer.Context) -> "Server | None":
    """The server of `--server` or `CLOISTER_SERVER`. Raises `UserError` (`bad_server`, `no_token`)."""
    settings = settings_of(ctx)
    url = root_option(ctx, "server") or settings.server
    if not url:
        return None
    from cloister.cli.client.http import Server, check_url

    address = check_url(url)
    file = root_option(ctx, "token_file")
    token = _read_token(Path(file)) if file else settings.token
    if not token or not token.isascii() or not token.isprintable():
        raise UserError("no_token", f"No token for {url}: give --token-file FILE, or set CLOISTER_TOKEN.")
    return Server(address, token, settings.ca)


def _read_token(path: Path) -> str:
    try:
        with path.expanduser().open("rb") as file:
            return file.read(4_096).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise UserError("no_token", f"The token file {path} cannot be read: {error.strerror}.") from None


async def check_shared_path(ctx: typer.Context, *paths: str | None) -> None:
    """Raise `UserError` (`not_on_server`) if an absolute path is given and the server is on another machine."""
    given = next((path for path in paths if path and path.startswith("/")), None)
    server = named_server(ctx)
    if given is None or server is None:
        return
    from cloister.app.settings import machine_id

    found = await transport(ctx).get(dict[str, str], "/v1/machine")
    if found.get("id") != machine_id():
        raise UserError(
            "not_on_server",
            f"{given} is a path on this machine, and the server at {server.url} is on another one: "
            "give a URL that the server can reach.",
        )
