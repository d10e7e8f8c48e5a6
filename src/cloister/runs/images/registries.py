"""Downloads of images that a repository chose: every address that the registry leads to is judged.

A registry answers with further addresses: of its token server, and of the store that holds its layers. skopeo follows
them in a network namespace of its own, whose only way out is a proxy that judges each address.
"""

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from anyio.abc import SocketListener, SocketStream

from cloister.core.addresses import is_address
from cloister.core.errors import UserError
from cloister.core.events import ConnectionDecided
from cloister.core.ids import SandboxId
from cloister.core.text import one_line
from cloister.egress.proxy import Door
from cloister.egress.rules import DoorEvent, Outside, Record, Resolve, forbidden, is_own, resolve
from cloister.policy.api import Action, ConnectAction, Decision, RequestAction
from cloister.sandbox.templates import oci

_NEAR = (None, "private", "shared", "example")
"""A registry may be in this machine's network, but not on this machine, on its link or a metadata service."""
_DOWNLOAD = SandboxId("s-download")
_RULE = "an image that a repository names"


async def check_registry(name: str) -> None:
    """Raises `UserError` (`no_image`) when a repository names a registry on this machine or its link."""
    host = oci.registry_host(name)
    if host is None:
        return
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        found = await resolve(bare, 443)
    except OSError:
        return  # skopeo says why
    if any(forbidden(address) not in _NEAR for address in found):
        raise UserError(
            "no_image",
            f"The registry of {one_line(name, 100)} is this machine: a repository cannot choose it.",
        )


@asynccontextmanager
async def judged_network(
    note: Callable[[str], None], outside: Outside | None = None
) -> AsyncGenerator[oci.Network]:
    """A network for skopeo; `note` gets a line for each connection. Raises `HostError` (`template_failed`)."""
    outside = outside or Outside()
    failure: Exception | None = None
    listener, namespace = await anyio.to_thread.run_sync(oci.empty_network)
    door = Door(_decide, _noting(note), outside=replace(outside, resolve=_judged(outside)))

    async def serve(stream: SocketStream) -> None:
        await door.serve(_DOWNLOAD, stream)

    try:
        port: int = listener.getsockname()[1]
        async with await SocketListener.from_socket(listener) as inlet, anyio.create_task_group() as tasks:
            tasks.start_soon(inlet.serve, serve)
            try:
                yield oci.Network(namespace, port)
            except Exception as error:
                failure = error  # raised below as it is: a task group would wrap it
            tasks.cancel_scope.cancel()
    finally:
        os.close(namespace)
    if failure is not None:
        raise failure


def _allowed(address: str, own: Callable[[str], bool]) -> bool:
    return forbidden(address) in _NEAR and not own(address)


def _judged(outside: Outside) -> Resolve:
    """Resolve only names all of whose addresses may be reached."""

    async def resolved(host: str, port: int) -> Sequence[str]:
        found = await outside.resolve(host, port)
        return found if all(_allowed(address, outside.is_own) for address in found) else ()

    return resolved


def _decide(action: Action) -> Decision:
    match action:
        case ConnectAction(host=host) | RequestAction(host=host):
            if is_address(host) and not _allowed(host.strip("[]"), is_own):
                return Decision("deny", "an address of this machine or its link")
            return Decision("allow", _RULE, exact=True)
        case _:
            return Decision("deny", _RULE)


def _noting(note: Callable[[str], None]) -> Record:
    async def record(_: SandboxId, body: DoorEvent) -> None:
        if isinstance(body, ConnectionDecided):
            note(f"{body.effect} {body.host}:{body.port}")

    return record
