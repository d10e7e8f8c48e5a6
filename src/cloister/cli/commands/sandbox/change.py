"""`cloister sandbox set`, `metrics` and `token`: other settings of a sandbox, what it uses, a token for its inside."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, SandboxName, put, put_json
from cloister.core.errors import UserError, describe

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import SandboxToken
    from cloister.app.workbench.metrics import SandboxMetrics
    from cloister.sandbox.api import SandboxInfo

Pairs = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata of sandboxes; may be repeated."),
]


def pairs(given: Iterable[str] | None) -> dict[str, str]:
    """The metadata of `KEY=VALUE` arguments. Raises `UserError` (`bad_usage`)."""
    found: dict[str, str] = {}
    for one in given or ():
        key, equals, value = one.partition("=")
        if not key or not equals:
            raise UserError("bad_usage", f"--metadata takes KEY=VALUE, not {one[:60]!r}.")
        found[key] = value
    return found


def change(
    ctx: typer.Context,
    sandbox: SandboxName,
    ttl: Annotated[
        float | None,
        typer.Option("--ttl", metavar="SECONDS", help="Destroy it after this time, from now on."),
    ] = None,
    metadata: Pairs = None,
    paused: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Stop its processes where they are, or let them go on."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the time to live of a sandbox, or all of its metadata; pause it, or let it go on."""
    if ttl is None and metadata is None and paused is None:
        raise UserError("bad_usage", "Give --ttl, --metadata, --pause or --resume.")
    wanted = None if metadata is None else pairs(metadata)

    async def work(verbs: "Verbs") -> "SandboxInfo":
        import msgspec

        from cloister.app.verbs.records import SandboxChange

        try:
            wish = msgspec.convert({"ttl_seconds": ttl, "metadata": wanted, "paused": paused}, SandboxChange)
        except msgspec.ValidationError as error:
            raise UserError("bad_request", describe(error, SandboxChange)) from None
        return await verbs.sandboxes.change((await verbs.sandboxes.resolve(sandbox)).id, wish)

    info = perform(ctx, work)
    put_json(info) if as_json else put(f"Changed {info.id}.")


def metrics(ctx: typer.Context, sandbox: SandboxName, as_json: AsJson = False) -> None:
    """Show what a sandbox uses: processors, memory, disk, and the ports that listen in it."""

    async def work(verbs: "Verbs") -> "SandboxMetrics":
        return await verbs.sandboxes.metrics((await verbs.sandboxes.resolve(sandbox)).id)

    found = perform(ctx, work)
    if as_json:
        put_json(found)
        return
    disk = "not counted" if found.disk_bytes is None else _of(found.disk_bytes, found.disk_limit_bytes)
    put(f"cpu     {found.cpu_seconds:.1f} s, at most {found.cpus:g} at once")
    put(f"memory  {_of(found.memory_bytes, found.memory_limit_bytes)}")
    put(f"disk    {disk}")
    put(f"ports   {', '.join(map(str, found.ports)) or 'none'}")


def token(ctx: typer.Context, sandbox: SandboxName, as_json: AsJson = False) -> None:
    """Print a token that reaches the inside of this sandbox only: commands, files and ports. It ends with the sandbox."""

    async def work(verbs: "Verbs") -> "SandboxToken":
        return await verbs.sandboxes.token((await verbs.sandboxes.resolve(sandbox)).id)

    made = perform(ctx, work)
    put_json(made) if as_json else put(made.token)


def _of(used: int, limit: int) -> str:
    return f"{used / 1024**2:,.0f} of {limit / 1024**2:,.0f} MiB"
