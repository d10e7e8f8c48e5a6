"""Downloads of images: every address that a registry leads to is judged.

A registry answers with further addresses: of its token server, and of the store that holds its layers. skopeo follows
them in a network namespace of its own, whose only way out is a proxy that judges each address. A registry that the
operator named is reached wherever it is; what it leads to is judged like any other.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import anyio
from anyio.abc import SocketListener, SocketStream

from cloister.core.addresses import is_address
from cloister.core.errors import UserError
from cloister.core.events import ConnectionDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds
from cloister.core.text import one_line
from cloister.egress.proxy import Door
from cloister.egress.rules import DoorEvent, Outside, Record, Resolve, forbidden, is_own, resolve
from cloister.egress.streams import Flow, Pace, Traffic
from cloister.policy.api import Action, ConnectAction, Decision, RequestAction
from cloister.sandbox.templates import oci

_NEAR = (None, "private", "shared", "example")
"""A registry may be in this machine's network, but not on this machine, on its link or a metadata service."""
_DOWNLOAD = SandboxId("s-download")
_RULE = "the registry of an image"
_BOUNDS = DoorBounds()


async def check_registry(name: str) -> None:
    """Raises `UserError` (`no_image`) when a repository names a registry on this machine or its link."""
    named = _places(name)
    if not named:
        return
    try:
        found = await resolve(named[0][0], 443)
    except OSError:
        return  # skopeo says why
    if any(forbidden(address) not in _NEAR for address in found):
        raise UserError(
            "no_image",
            f"The registry of {one_line(name, 100)} is this machine: a repository cannot choose it.",
        )


def _places(name: str) -> list[tuple[str, int]]:
    """The host of the registry in an image's name, with each port that it may have."""
    host = oci.registry_host(name)
    if host is None:
        return []
    bare, _, port = host.removeprefix("[").partition(
        "]:" if "]:" in host else ":" if "[" not in host else "]"
    )
    return [(bare.lower(), number) for number in ((int(port),) if port else (443, 80))]


@asynccontextmanager
async def judged_network(
    note: Callable[[str], None], outside: Outside | None = None, *, named: str = ""
) -> AsyncGenerator[oci.Network]:
    """A network for skopeo; `note` gets a line for each connection. Raises `HostError` (`template_failed`).

    `named` is an image whose registry the operator chose: it may be on this machine.
    """
    outside = outside or Outside()
    failure: Exception | None = None
    chosen = frozenset(_places(named))
    # Go's client connects to loopback itself.
    local = [(*place, at) for place in chosen for at in _loopback(place[0])]
    listeners, namespace = await anyio.to_thread.run_sync(
        lambda: oci.empty_network(*((at, port) for _, port, at in local))
    )
    door = Door(_judge(chosen), _noting(note), outside=replace(outside, resolve=_judged(outside, chosen)))

    async def serve(stream: SocketStream) -> None:
        await door.serve(_DOWNLOAD, stream)

    def relay(host: str, port: int) -> Callable[[SocketStream], Awaitable[None]]:
        async def relayed(stream: SocketStream) -> None:
            note(f"allow {host}:{port}")
            async with stream:
                with suppress(OSError):
                    async with await outside.dial(host, port) as server:
                        ends = anyio.current_time() + _BOUNDS.connection_seconds
                        await Flow(stream, server, Traffic(), Pace(_BOUNDS.idle_seconds, ends)).tunnel(b"")

        return relayed

    try:
        port: int = listeners[0].getsockname()[1]
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            for listener in listeners:
                inlet = await stack.enter_async_context(await SocketListener.from_socket(listener))
                at: tuple[str, int] = listener.getsockname()[:2]
                host = next((host for host, number, address in local if (address, number) == at), None)
                tasks.start_soon(inlet.serve, serve if host is None else relay(host, at[1]))
            try:
                yield oci.Network(namespace, port)
            except Exception as error:
                failure = error  # raised below as it is: a task group would wrap it
            tasks.cancel_scope.cancel()
    finally:
        os.close(namespace)
    if failure is not None:
        raise failure


def _loopback(host: str) -> tuple[str, ...]:
    if host == "localhost":
        return ("127.0.0.1", "::1")
    return (host,) if forbidden(host) == "loopback" else ()


def _allowed(address: str, own: Callable[[str], bool]) -> bool:
    return forbidden(address) in _NEAR and not own(address)


def _judged(outside: Outside, chosen: Collection[tuple[str, int]]) -> Resolve:
    """Resolve only names all of whose addresses may be reached."""

    async def resolved(host: str, port: int) -> Sequence[str]:
        found = await outside.resolve(host, port)
        free = (host, port) in chosen or all(_allowed(address, outside.is_own) for address in found)
        return found if free else ()

    return resolved


def _judge(chosen: Collection[tuple[str, int]]) -> Callable[[Action], Decision]:
    def decide(action: Action) -> Decision:
        match action:
            case ConnectAction(host=host, port=port) | RequestAction(host=host, port=port):
                bare = host.strip("[]")
                if is_address(host) and (bare, port) not in chosen and not _allowed(bare, is_own):
                    return Decision("deny", "an address of this machine or its link")
                return Decision("allow", _RULE, exact=True)
            case _:
                return Decision("deny", _RULE)

    return decide


def _noting(note: Callable[[str], None]) -> Record:
    async def record(_: SandboxId, body: DoorEvent) -> None:
        if isinstance(body, ConnectionDecided):
            note(f"{body.effect} {body.host}:{body.port}")

    return record
