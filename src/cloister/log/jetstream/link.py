"""The connection of one machine to NATS, and what its failures mean."""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import base64
import logging
import re
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, ServiceUnavailableError
from nats.js.errors import Error as JetStreamError

from cloister.core.errors import HostError, OutsideError, UserError
from cloister.log.jetstream.identity import Key, inbox, read_credentials

ASK_SECONDS = 3.0
"""How long one request may take before it is sent again."""

PATIENCE_SECONDS = 20.0
"""How long a call waits for a cluster that does not answer: longer than the election of a leader takes."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_FULL = frozenset({10_023, 10_047, 10_077, 10_122})
"""JetStream's codes for a stream, an account or a disk without room."""

_YOUNG = frozenset({10_005, 10_008, 10_009})
"""Its codes for a cluster whose servers have not found each other yet."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Cluster(msgspec.Struct, frozen=True):
    """Where the cluster is, and how its streams are kept."""

    servers: tuple[str, ...]
    """`nats://host:port`, or `tls://`."""
    name: str = "cloister"
    """Several clusters of Cloister can use one of NATS under different names."""
    replicas: int = 1
    """Of each stream: 1, 3 or 5. Counts when the streams are made."""
    machine: str = ""
    """The name of this machine in it; empty: one that counts for the connection only."""
    credentials: Path | None = None
    """The file with this machine's credentials."""
    ca: Path | None = None
    """Who vouches for the certificates of the NATS servers, in PEM."""


class Link:
    """One connection."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self.client = client
        self.cluster = cluster
        self.jetstream: JetStreamContext = client.jetstream(timeout=ASK_SECONDS)
        self.machine = cluster.machine or secrets.token_hex(6)
        """Names what it sends."""

    @property
    def payload_bytes(self) -> int:
        """How much one message may carry beside its headers."""
        return self.client.max_payload - 4_096


def check(cluster: Cluster) -> None:
    """Raises `UserError` (`bad_cluster`)."""
    if not _NAME.fullmatch(cluster.name):
        raise UserError(
            "bad_cluster", "A cluster's name has up to 32 lower-case letters, digits and hyphens."
        )
    if cluster.replicas not in (1, 3, 5):
        raise UserError("bad_cluster", "The streams of a cluster have 1, 3 or 5 replicas.")
    if cluster.machine and not _NAME.fullmatch(cluster.machine):
        raise UserError(
            "bad_cluster",
            "A machine's name has up to 32 lower-case letters, digits and hyphens: give one with --name.",
        )
    for server in cluster.servers:
        if not re.fullmatch(r"(nats|tls)://[^\s/]+", server):
            raise UserError(
                "bad_cluster", f"{server[:200]!r} is not the address of a NATS server: nats://host:4222."
            )
    if not cluster.servers:
        raise UserError("bad_cluster", "A cluster needs the address of a NATS server: nats://host:4222.")


@asynccontextmanager
async def open_link(cluster: Cluster) -> AsyncGenerator[Link]:
    """Connect; lost connections are made again. Raises `UserError`, `OutsideError` (`cluster_refused`, `cluster_away`)."""
    check(cluster)
    client = Client()
    await _connect(client, cluster)
    try:
        yield Link(client, cluster)
    finally:
        await _close(client)


class _GivenUp(Exception):
    """Raised inside the client, which would try for ever, and leaves connections open when it is cancelled."""


def _proof(cluster: Cluster) -> dict[str, Any]:
    """How this machine proves itself, and whom it believes. Raises `UserError` (`bad_credentials`, `bad_cluster`)."""
    given: dict[str, Any] = {"inbox_prefix": inbox(cluster.machine)}
    if cluster.credentials is not None:
        known = read_credentials(cluster.credentials)
        key = Key.read(known.seed)

        def signature(nonce: str) -> bytes:
            return base64.b64encode(key.sign(nonce.encode()))

        given["user_jwt_cb"] = known.jwt.encode
        given["signature_cb"] = signature
    if cluster.ca is not None:
        try:
            given["tls"] = ssl.create_default_context(cafile=cluster.ca)
        except (OSError, ssl.SSLError):
            raise UserError("bad_cluster", f"{cluster.ca} has no certificate in PEM.") from None
    return given


async def _connect(client: Client, cluster: Cluster) -> None:
    connected, proof = False, _proof(cluster)
    problem: Exception | None = None
    last = anyio.current_time() + ASK_SECONDS
    with anyio.move_on_after(3 * ASK_SECONDS):

        async def report(error: Exception) -> None:
            nonlocal problem
            problem = error
            if connected:
                logger.warning("the connection to NATS: %s", error or type(error).__name__)
            elif _is_refusal(error) or anyio.current_time() > last:
                raise _GivenUp

        try:
            await client.connect(
                list(cluster.servers),
                error_cb=report,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
                connect_timeout=int(ASK_SECONDS),
                ping_interval=10,
                max_outstanding_pings=2,
                name="cloister",
                **proof,
            )
            connected = True
        except _GivenUp:
            pass
        except (nats.errors.Error, OSError) as error:
            problem = error
    if not connected:
        await _close(client)
        raise _unreachable(cluster, problem or TimeoutError("no answer"))


async def _close(client: Client) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(ASK_SECONDS):
        await client.close()


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, nats.errors.AuthorizationError) or "authorization" in str(error).lower()


def _unreachable(cluster: Cluster, error: Exception) -> OutsideError:
    where = ", ".join(cluster.servers)[:200]
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        # A server that refuses says so and closes: what the client still writes may fail before it reads that.
        return OutsideError(
            "cluster_refused",
            f"NATS at {where} closes the connection: give this machine valid credentials, or see the server's log.",
        )
    if _is_refusal(error):
        return OutsideError(
            "cluster_refused", f"NATS at {where} refuses this machine's credentials: give it valid ones."
        )
    return OutsideError(
        "cluster_away", f"NATS at {where} cannot be reached: {error or type(error).__name__}."
    )


def away() -> HostError:
    return HostError(
        "cluster_away",
        "The cluster does not answer: check that its NATS servers run and that a majority of them is reachable.",
    )


def is_silence(error: Exception) -> bool:
    """Return whether `error` says that no answer came, so that the request may or may not have been carried out."""
    if isinstance(error, APIError):
        unavailable = isinstance(error, ServiceUnavailableError) and error.err_code not in _FULL
        return unavailable or error.err_code in _YOUNG
    return isinstance(error, nats.errors.Error | OSError)


@contextmanager
def explained() -> Generator[None]:
    """Translate refusals of JetStream inside the block."""
    try:
        yield
    except APIError as error:
        if error.err_code in _FULL:
            raise HostError(
                "no_disk", "The cluster's NATS servers have no room left: free some, or raise their limits."
            ) from error
        raise HostError("cluster_failed", f"NATS refused a request: {error.description}.") from error
    except JetStreamError as error:
        raise away() from error


async def keys_of(link: "Link", bucket: str) -> list[str]:
    """The keys of a bucket, sorted, also those that were deleted.

    The client's own list of keys is empty when they are on their way while it asks how many there are.
    """
    prefix = f"$KV.{bucket}."
    info = await link.jetstream.stream_info(f"KV_{bucket}", subjects_filter=f"{prefix}>")
    return sorted(subject.removeprefix(prefix) for subject in info.state.subjects or {})


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer. Raises `HostError` when there is none for long, and for a refusal."""
    last = anyio.current_time() + PATIENCE_SECONDS
    while True:
        try:
            with explained():
                return await ask()
        except Exception as error:
            cause = error.__cause__ if isinstance(error, HostError) else error
            if not (isinstance(cause, Exception) and is_silence(cause)):
                raise
            if anyio.current_time() > last:
                raise away() from cause
            await anyio.sleep(0.1)
