"""Which owners live, for several machines: each renews a key in NATS while it lives.

No clock is compared with another one. An owner may act for `act_seconds` from the moment it began its last renewal
that was stored; others declare it dead after they have seen the same renewal for `dead_seconds`. They began to
see it after it began, and `dead_seconds` is longer: an owner that is cut off or was paused stops before its lease
can be taken. Renewals have a thread and a connection of their own, so that a busy machine still renews.
"""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from nats.aio.msg import Msg
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import (
    APIError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NotFoundError,
)
from nats.js.kv import KeyValue

from cloister.core.errors import CloisterError, HostError
from cloister.core.ids import OwnerId, is_id
from cloister.log.jetstream.link import ASK_SECONDS, Cluster, Link, away, is_silence, keys_of, open_link

FORGOTTEN_SECONDS = 86_400.0
"""After this the key of an owner that died without removing it goes."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Terms(msgspec.Struct, frozen=True):
    """The times of a lease, the same on every machine."""

    renew_seconds: float = 2.0
    act_seconds: float = 7.0
    dead_seconds: float = 12.0


def now() -> float:
    """Seconds that also pass while this process or machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StreamLeases:
    """`Lease` over a key-value bucket of NATS. Every method may be called in any thread and blocks it."""

    def __init__(self, portal: BlockingPortal, link: Link, bucket: KeyValue, terms: Terms) -> None:
        self._portal = portal
        self._link = link
        self._bucket = bucket
        self._terms = terms
        self._until: dict[OwnerId, float] = {}
        """Until when the owners that this process holds may act."""
        self._seen: dict[OwnerId, tuple[int | None, float]] = {}
        """The newest renewal of each owner, if its number is known, and since when this process has seen it."""
        self._connections = 0
        """How often the connection was made again when a renewal was last heard or asked for."""
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, owner: OwnerId) -> Generator[None]:
        """Be `owner` until the block ends or this process dies. Raises `HostError` (`owner_taken`, `cluster_away`)."""
        mark = secrets.token_hex(8).encode()
        begun = now()
        revision = self._call(partial(self._create, owner, mark))
        self._until[owner] = begun + self._terms.act_seconds
        renewing: Future[None] = self._portal.start_task_soon(self._renew, owner, mark, revision)
        try:
            yield
        finally:
            del self._until[owner]
            renewing.cancel()
            with suppress(CloisterError):  # else it dies without removing its key
                self._call(partial(self._bucket.delete, owner))

    def acts(self, owner: OwnerId) -> bool:
        """Return whether this process may still act as `owner`. Asks no other machine, and never blocks."""
        until = self._until.get(owner)
        return until is not None and now() < until

    def lives(self, owner: OwnerId) -> bool:
        """Return whether any process may act as `owner`; also True while the cluster does not answer."""
        try:
            revision = self._call(partial(self._revision, owner))
        except HostError:
            return True
        if revision is None:
            return False
        at = now()
        with self._lock:
            self._forget_unheard()
            known, since = self._seen.get(owner, (revision, at))
            if known is not None and known != revision:
                since = at  # renewed, and this process did not hear of it
            self._seen[owner] = (revision, since)
        return at - since < self._terms.dead_seconds

    def remove_dead(self) -> tuple[OwnerId, ...]:
        """Forget the owners that no longer live, and return them."""
        dead = [owner for owner in self._call(self._owners) if not self.lives(owner)]
        for owner in dead:
            self._call(partial(self._bucket.delete, owner))
        return tuple(dead)

    def bury(self, owner: OwnerId) -> None:
        """Declare an owner dead whose process is known to be gone. Raises `HostError`."""
        self._call(partial(self._bucket.delete, owner))

    def heard(self, owner: OwnerId) -> None:
        """A renewal passed by."""
        with self._lock:
            self._forget_unheard()
            self._seen[owner] = (None, now())

    def _forget_unheard(self) -> None:
        """Renewals may have passed while there was no connection: one heard before it proves nothing now."""
        made = self._link.client.stats["reconnects"]
        if made != self._connections:
            self._connections = made
            self._seen = {owner: seen for owner, seen in self._seen.items() if seen[0] is not None}

    def _call(self, ask: Callable[[], Any]) -> Any:
        """Ask NATS in the other thread. Raises `HostError` (`cluster_away`) when no answer comes."""
        try:
            return self._portal.call(ask)
        except CloisterError:
            raise
        except Exception as error:
            if is_silence(error) or isinstance(error, APIError | RuntimeError):
                raise away() from error
            raise

    async def _create(self, owner: OwnerId, mark: bytes) -> int:
        try:
            return await self._bucket.create(owner, mark)
        except KeyWrongLastSequenceError:
            raise HostError("owner_taken", f"Another process already holds {owner}: stop it first.") from None

    async def _revision(self, owner: OwnerId) -> int | None:
        try:
            return (await self._bucket.get(owner)).revision
        except (KeyNotFoundError, NotFoundError):
            return None

    async def _owners(self) -> tuple[OwnerId, ...]:
        names = await keys_of(self._link, f"{self._link.cluster.name}-leases")
        owners = [OwnerId(name) for name in names if is_id(name)]
        return tuple([owner for owner in owners if await self._revision(owner) is not None])

    async def _renew(self, owner: OwnerId, mark: bytes, revision: int) -> None:
        """Renew until the block of `hold` ends, or the key is another's."""
        while True:
            await anyio.sleep(self._terms.renew_seconds)
            begun = now()
            if begun >= self._until.get(owner, 0.0):
                # Never renewed again: others take its runs, and this process needs another owner.
                logger.error("the lease %s was not renewed in time: its runs stop here", owner)
                return
            try:
                revision = await self._bucket.update(owner, mark, last=revision)
            except KeyWrongLastSequenceError:
                # A renewal without an answer may have been stored; else the owner was removed as dead.
                found = await self._stored(owner, mark)
                if found is None:
                    logger.error("the lease %s was taken: its runs stop here", owner)
                    self._end(owner)
                    return
                revision = found
            except Exception as error:
                if not (is_silence(error) or isinstance(error, APIError)):
                    raise
                logger.warning("the lease %s was not renewed: %s", owner, error or type(error).__name__)
            else:
                if self.acts(owner):
                    self._until[owner] = begun + self._terms.act_seconds

    def _end(self, owner: OwnerId) -> None:
        if owner in self._until:
            self._until[owner] = 0.0

    async def _stored(self, owner: OwnerId, mark: bytes) -> int | None:
        """Return the number of the stored renewal if it is of this process; 0 if that is not known."""
        try:
            found = await self._bucket.get(owner)
        except (KeyNotFoundError, NotFoundError):
            return None
        except Exception as error:
            logger.debug("the lease %s was not read: %s", owner, error)
            return 0
        return found.revision if found.value == mark else None


@contextmanager
def open_leases(cluster: Cluster, terms: Terms | None = None) -> Generator[StreamLeases]:
    """Connect in a thread of its own until the block ends. Raises `UserError`, `HostError`, `OutsideError`."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_link(cluster)) as link,
    ):
        name = f"{cluster.name}-leases"
        config = KeyValueConfig(
            bucket=name,
            ttl=FORGOTTEN_SECONDS,
            replicas=cluster.replicas,
            storage=StorageType.FILE,
        )
        bucket = portal.call(_bucket, link, config)
        leases = StreamLeases(portal, link, bucket, terms or Terms())
        portal.call(_listen, link, name, leases)
        yield leases


async def _bucket(link: Link, config: KeyValueConfig) -> KeyValue:
    with anyio.move_on_after(5 * ASK_SECONDS):
        while True:
            try:
                try:
                    return await link.jetstream.key_value(config.bucket)
                except NotFoundError:
                    return await link.jetstream.create_key_value(config)
            except Exception as error:
                if not (is_silence(error) or isinstance(error, APIError)):
                    raise
                await anyio.sleep(0.2)
    raise away()


async def _listen(link: Link, bucket: str, leases: StreamLeases) -> None:
    """Renewals are messages that every connection can hear, as they are published."""
    prefix = f"$KV.{bucket}."

    async def heard(message: Msg) -> None:
        leases.heard(OwnerId(message.subject.removeprefix(prefix)))

    await link.client.subscribe(f"{prefix}>", cb=heard)
    await link.client.flush()
