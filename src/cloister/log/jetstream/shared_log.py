"""The shared log of a cluster: one JetStream stream of transactions, appended only at its end, read in order.

JetStream replicates it and refuses an append unless the stream still ends where its writer has read to. So the
transactions of all machines have one order, and each was decided with all before it in sight.
"""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import msgspec
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from cloister.core.errors import Bug, HostError
from cloister.core.ids import new_command_id
from cloister.log.jetstream.link import (
    ASK_SECONDS,
    PATIENCE_SECONDS,
    Link,
    away,
    explained,
    is_silence,
)

_WRONG_END = frozenset({10_071, 10_164})
"""JetStream's codes for an append that names another end."""

_BATCH = 64
"""Messages that the server sends before it is asked for more."""

_EXPIRES_SECONDS = 4.0
"""How long the server waits for messages before it says that there are none."""

_EXPECTED, _COMMIT, _PART = "Nats-Expected-Last-Sequence", "Cloister-Commit", "Cloister-Part"

Take = Callable[[int, bytes | None], None]
"""Called with the number of each message in order; with a transaction, if it is complete."""


class Behind(Exception):
    """The shared log goes on beyond what this machine has read."""


class SharedLog:
    """The stream `NAME` with one subject per machine, `NAME.log.MACHINE`."""

    def __init__(self, link: Link, identity: str) -> None:
        self._link = link
        self._stream = link.cluster.name
        self._subject = f"{self._stream}.log.{link.machine}"
        self.identity = identity
        """The same for every machine, and different for any other shared log."""

    async def tip(self) -> int:
        """Return the number at which the log ends, with every append that was answered. Raises `HostError`."""
        info = await _patiently(lambda: self._link.jetstream.stream_info(self._stream))
        return info.state.last_seq

    async def append(self, data: bytes, after: int) -> int:
        """Append a transaction behind `after`; durable on a majority when its number is returned.

        Raises `Behind` if the log does not end there; `HostError` (`cluster_away`, `no_disk`).
        """
        packed = zlib.compress(data, 1)
        size = self._link.payload_bytes
        parts = [packed[at : at + size] for at in range(0, len(packed), size)]
        name = new_command_id()
        for number, part in enumerate(parts, start=1):
            headers = {_COMMIT: name, _PART: f"{number}/{len(parts)}"}
            after = await self._put(part, headers, after)
        return after

    async def _put(self, part: bytes, headers: dict[str, str], after: int) -> int:
        unsure = False
        with anyio.move_on_after(PATIENCE_SECONDS):
            while True:
                try:
                    ack = await self._link.jetstream.publish(
                        self._subject, part, timeout=ASK_SECONDS, headers={**headers, _EXPECTED: str(after)}
                    )
                except Exception as error:
                    if isinstance(error, APIError) and error.err_code in _WRONG_END:
                        # An earlier try may have arrived although its answer did not.
                        if unsure and await self._is_ours(after + 1, headers):
                            return after + 1
                        raise Behind from None
                    if not is_silence(error):
                        with explained():
                            raise
                    unsure = True
                    await anyio.sleep(0.1)
                else:
                    return ack.seq
        raise away()

    async def _is_ours(self, number: int, headers: dict[str, str]) -> bool:
        try:
            found = await _patiently(lambda: self._link.jetstream.get_msg(self._stream, number))
        except HostError as error:
            if isinstance(error.__cause__, NotFoundError):
                return False
            raise
        known: dict[str, str] = found.headers or {}
        return all(known.get(name) == value for name, value in headers.items())

    async def tail(self, after: int, take: Take) -> None:
        """Read all transactions behind `after`, and those that come; never returns."""
        reader = _Reader(self._link, self._stream, after, take)
        while True:
            try:
                await reader.read()
            except Exception as error:
                if not (is_silence(error) or isinstance(error, APIError)):
                    raise
            await anyio.sleep(0.1)


class _Reader:
    """Reads on where it stopped, with a new consumer each time: a lost message or consumer is only a pause."""

    def __init__(self, link: Link, stream: str, after: int, take: Take) -> None:
        self._link = link
        self._stream = stream
        self._after = after
        self._take = take
        self._commit = ""
        self._parts: list[bytes] = []
        self._asked = 0
        """Messages that the server may still send before it must be asked again."""
        self._alive = anyio.Event()
        """Set with each message, also one that says there are none."""
        self._gap = False

    async def read(self) -> None:
        """Read until a message is missing or the server is silent."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._after + 1,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=30.0,
            mem_storage=True,
            num_replicas=1,
        )
        client = self._link.client
        inbox = client.new_inbox()
        self._gap, self._asked = False, 0
        subscription = await client.subscribe(inbox, cb=self._arrived)
        try:
            consumer = await self._link.jetstream.add_consumer(self._stream, config)
            ask = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer.name}"
            wish = msgspec.json.encode({"batch": _BATCH, "expires": int(_EXPIRES_SECONDS * 1e9)})
            while not self._gap:
                if self._asked <= 0:
                    self._asked = _BATCH
                    await client.publish(ask, wish, reply=inbox)
                self._alive = anyio.Event()
                with anyio.move_on_after(_EXPIRES_SECONDS + ASK_SECONDS) as patience:
                    await self._alive.wait()
                if patience.cancelled_caught:
                    return
        finally:
            with anyio.CancelScope(shield=True), suppress(Exception):
                await subscription.unsubscribe()

    async def _arrived(self, message: Msg) -> None:
        headers = message.headers or {}
        if "Status" in headers:
            self._asked = 0
        elif not self._gap:
            self._asked -= 1
            number = message.metadata.sequence.stream
            if number > self._after + 1:
                self._gap = True
            elif number == self._after + 1:
                self._after = number
                self._join(number, headers, message.data)
        if self._asked <= 0 or self._gap:
            self._alive.set()

    def _join(self, number: int, headers: dict[str, Any], data: bytes) -> None:
        """Parts follow each other: a transaction that another machine came into was given up, and is sent again."""
        part, _, count = headers.get(_PART, "1/1").partition("/")
        if headers.get(_COMMIT, "") != self._commit or part == "1":
            self._commit, self._parts = headers.get(_COMMIT, ""), []
        self._parts.append(data)
        complete = part == count == str(len(self._parts))
        self._take(number, _unpacked(b"".join(self._parts)) if complete else None)


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""  # no version writes that: decoding it says so


async def open_shared_log(link: Link) -> SharedLog:
    """The shared log of the cluster, made if there is none. Raises `HostError`."""
    name = link.cluster.name
    config = StreamConfig(
        name=name,
        subjects=[f"{name}.log.*"],
        storage=StorageType.FILE,
        num_replicas=link.cluster.replicas,
        discard=DiscardPolicy.NEW,
        deny_delete=True,
        deny_purge=True,
    )
    try:
        info = await _patiently(lambda: link.jetstream.stream_info(name))
    except HostError as error:
        if not isinstance(error.__cause__, NotFoundError):
            raise
        # Two machines that make it at once ask for the same.
        info = await _patiently(lambda: link.jetstream.add_stream(config))
    if info.created is None:
        raise Bug("JetStream did not say when the stream was made.")
    return SharedLog(link, f"{name} {info.created}")


async def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer. Raises `HostError` (`cluster_away`) after some time, and for a refusal."""
    with anyio.move_on_after(PATIENCE_SECONDS):
        while True:
            try:
                with explained():
                    return await ask()
            except Exception as error:
                cause = error.__cause__ if isinstance(error, HostError) else error
                if not (isinstance(cause, Exception) and is_silence(cause)):
                    raise
                await anyio.sleep(0.1)
    raise away()
