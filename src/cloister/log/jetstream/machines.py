"""The machines of a cluster: what each says of itself, renewed while it lives, and what a person asks of it.

A name belongs to one data directory at a time. Whether a machine lives is decided by its lease, never by a clock.
"""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import time
from collections.abc import Callable

import anyio
import msgspec
from anyio import to_thread
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from cloister.core.errors import HostError, UserError
from cloister.core.ids import OwnerId
from cloister.log.api import Peer
from cloister.log.jetstream.link import Link, keys_of, patiently

CLOCK_SECONDS = 60.0
"""How far a machine's clock may be from that of the NATS servers: the log shows times of all machines."""

OLDEST_SERVER = (2, 10)
"""The first NATS server with all that the log needs."""

_DRAIN = "drain."

_decode = msgspec.json.Decoder(Peer).decode
_encode = msgspec.json.Encoder().encode


class Machines:
    """The bucket of records. Every method may raise `HostError` (`cluster_away`, `no_disk`)."""

    def __init__(
        self, link: Link, bucket: KeyValue, lives: Callable[[OwnerId], bool], now: Callable[[], float]
    ) -> None:
        self._link = link
        self._bucket = bucket
        self._lives = lives
        self._now = now

    async def join(self, me: Peer, patience_seconds: float) -> Peer | None:
        """Take the name of `me`; return the record that the same data directory left before, if any.

        Waits for the end of a machine that died with this name. Raises `HostError` (`machine_taken`, `clock_apart`).
        """
        last = anyio.current_time() + patience_seconds
        first: int | None = None
        while True:
            known, number = await self._stored(me.name)
            first = number if first is None else first
            if known is None and number and anyio.current_time() <= last:
                await anyio.sleep(0.2)  # of another version: it is renewed while its machine lives
                continue
            if known is None and number and number != first:
                raise _taken(me.name)
            ours = known is not None and known.identity == me.identity
            if known is None or ours or not await to_thread.run_sync(self._lives, known.owner):
                if (made := await self._put(me, number)) is not None:
                    try:
                        await self._check_clock(made)
                    except HostError:
                        await self.leave(me.name)
                        raise
                    return known if ours else None
            elif anyio.current_time() > last:
                raise _taken(me.name)
            await anyio.sleep(0.2)

    async def tell(self, me: Peer) -> None:
        """Renew the record of this machine."""
        await patiently(lambda: self._bucket.put(me.name, _encode(me)))

    async def leave(self, name: str) -> None:
        await patiently(lambda: self._bucket.delete(name))

    async def all(self) -> tuple[Peer, ...]:
        """The machines by name, dead ones that did not leave included; `lives` says which is which."""
        named = await patiently(lambda: keys_of(self._link, f"{self._link.cluster.name}-machines"))
        found = [(await self._stored(name))[0] for name in named if not name.startswith(_DRAIN)]
        living = [each for each in found if each is not None]
        return tuple([await self._complete(each, await self.is_drained(each.name)) for each in living])

    async def _complete(self, machine: Peer, draining: bool) -> Peer:
        lives = await to_thread.run_sync(self._lives, machine.owner)
        return msgspec.structs.replace(machine, lives=lives, draining=draining)

    async def drain(self, name: str, on: bool) -> None:
        """Ask a machine to take no new runs, or to take runs again. Raises `UserError` (`no_such_machine`)."""
        if (await self._stored(name))[0] is None:
            raise UserError(
                "no_such_machine",
                f"The cluster has no machine {name[:60]!r}: `cloister cluster status` lists them.",
            )
        if on:
            await patiently(lambda: self._bucket.put(_DRAIN + name, b"1"))
        else:
            await patiently(lambda: self._bucket.delete(_DRAIN + name))

    async def is_drained(self, name: str) -> bool:
        return await self._value(_DRAIN + name) is not None

    async def _stored(self, name: str) -> tuple[Peer | None, int]:
        """The record of a machine and its number; a name without one has the number 0."""

        async def read() -> tuple[bytes, int]:
            try:
                found = await self._bucket.get(name)
            except (KeyNotFoundError, NotFoundError):
                return b"", 0
            return found.value or b"", found.revision or 0

        data, number = await patiently(read)
        try:
            return (_decode(data) if data else None), number
        except msgspec.MsgspecError:
            return None, number  # of another version

    async def _value(self, key: str) -> bytes | None:
        async def read() -> bytes | None:
            try:
                return (await self._bucket.get(key)).value
            except (KeyNotFoundError, NotFoundError):
                return None

        return await patiently(read)

    async def _put(self, me: Peer, number: int) -> int | None:
        """Replace the record with this number; None if it has another by now."""

        async def write() -> int | None:
            try:
                if number == 0:
                    return await self._bucket.create(me.name, _encode(me))
                return await self._bucket.update(me.name, _encode(me), last=number)
            except KeyWrongLastSequenceError:
                return None

        return await patiently(write)

    async def _check_clock(self, number: int) -> None:
        """Compare this machine's clock with the time at which NATS stored record `number`."""
        stream = f"KV_{self._link.cluster.name}-machines"
        found = await patiently(lambda: self._link.jetstream.get_msg(stream, number))
        apart = 0.0 if found.time is None else self._now() - found.time.timestamp()
        if abs(apart) > CLOCK_SECONDS:
            raise HostError(
                "clock_apart",
                f"The clock of this machine is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} that of the "
                "NATS servers: set both by NTP, then start again.",
            )


def _taken(name: str) -> HostError:
    return HostError(
        "machine_taken",
        f"Another machine of this cluster is called {name}: give this one another name with --name.",
    )


async def open_machines(
    link: Link, lives: Callable[[OwnerId], bool], now: Callable[[], float] = time.time
) -> Machines:
    """Open the bucket, made if missing. Raises `HostError` (`nats_too_old`, `cluster_away`)."""
    version = link.client.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        raise HostError(
            "nats_too_old",
            f"The NATS server has version {version.major}.{version.minor}: "
            f"a cluster needs {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or newer.",
        )
    name = f"{link.cluster.name}-machines"
    config = KeyValueConfig(bucket=name, replicas=link.cluster.replicas, storage=StorageType.FILE)

    async def bucket() -> KeyValue:
        try:
            return await link.jetstream.key_value(name)
        except NotFoundError:
            return await link.jetstream.create_key_value(config)

    return Machines(link, await patiently(bucket), lives, now)
