"""The backbone of several machines: SQLite's, over a copy of the shared log that is up to date for each read.

A write is tried on the copy, appended to the shared log where the copy ends, and kept if the log ended there; else
the copy first applies what others appended, and the write is decided again. A read waits until the copy has every
write that was answered before, on whatever machine.
"""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from anyio import to_thread
from nats.aio.msg import Msg

from cloister.core.errors import CloisterError
from cloister.core.events import Delta
from cloister.core.ids import OwnerId, RunId
from cloister.log.audit.entry import exact
from cloister.log.audit.head import HeadFile
from cloister.log.hub import Hub
from cloister.log.jetstream.link import Link
from cloister.log.jetstream.shared_log import open_shared_log
from cloister.log.jetstream.writer import StreamWriter, open_stream_writer
from cloister.log.sqlite.backbone import SqliteBackbone
from cloister.log.sqlite.reader import AuditReader, LogReader
from cloister.log.sqlite.replica import begin_audit, open_replica

FRAGMENTS_WAITING = 1_024
"""Fragments that wait to be sent to other machines; the oldest are dropped."""

logger = logging.getLogger(__name__)

T = TypeVar("T")

_decode = msgspec.json.Decoder(Delta).decode
_encode = msgspec.json.Encoder().encode


class JetStreamBackbone(SqliteBackbone):
    """`Backbone` of one machine among several."""

    def __init__(  # noqa: PLR0913  (the parts of the SQLite backbone, and where fragments go)
        self,
        path: Path,
        writer: StreamWriter,
        reader: LogReader,
        hub: Hub,
        owner_lives: Callable[[OwnerId], bool],
        now: Callable[[], float],
        fragments: "Fragments",
    ) -> None:
        super().__init__(path, writer, reader, hub, owner_lives, now)
        self._copy = writer
        self._fragments = fragments

    @property
    def failure(self) -> CloisterError | None:
        """Why this machine cannot follow the log any more: it can neither drive runs nor show them."""
        return self._copy.failure

    def publish(self, run: RunId, delta: Delta) -> None:
        super().publish(run, delta)
        self._fragments.send(run, delta)

    async def _read(self, work: Callable[[], T]) -> T:
        await self._copy.catch_up()
        return await super()._read(work)

    async def _audited(self, read: Callable[[AuditReader], T]) -> T:
        await self._copy.catch_up()
        return await super()._audited(read)


class Fragments:
    """Fragments go to all machines on `NAME.delta.MACHINE.RUN`, outside the stream: never stored, lost when slow."""

    def __init__(self, link: Link, hub: Hub) -> None:
        self._link = link
        self._hub = hub
        self._subject = f"{link.cluster.name}.delta"
        self._waiting: deque[tuple[RunId, Delta]] = deque(maxlen=FRAGMENTS_WAITING)
        self._news = anyio.Event()

    def send(self, run: RunId, delta: Delta) -> None:
        """Never waits."""
        self._waiting.append((run, delta))
        self._news.set()

    async def serve(self) -> None:
        """Send and receive; never returns."""
        client = self._link.client
        await client.subscribe(f"{self._subject}.*.*", cb=self._receive)
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._waiting:
                run, delta = self._waiting.popleft()
                if not client.is_connected:
                    continue
                try:
                    await client.publish(f"{self._subject}.{self._link.machine}.{run}", _encode(delta))
                except Exception as error:
                    logger.debug("a fragment was not sent: %s", error)

    async def _receive(self, message: Msg) -> None:
        _, _, machine, run = message.subject.split(".")
        if machine != self._link.machine:
            try:
                self._hub.publish(RunId(run), _decode(message.data))
            except msgspec.MsgspecError:
                logger.debug("another version sent a fragment")


@asynccontextmanager
async def open_backbone(
    link: Link,
    path: Path,
    *,
    owner_lives: Callable[[OwnerId], bool],
    now: Callable[[], float] = time.time,
) -> AsyncGenerator[JetStreamBackbone]:
    """Open the backbone over the cluster of `link`, with this machine's copy at `path`; one process uses a copy.

    The key that signs the audit lies beside the copy and is the same on every machine. Raises `HostError`.
    """
    hub = Hub()
    shared = await open_shared_log(link)
    replica = await open_replica(path, shared.identity)
    try:
        fragments = Fragments(link, hub)
        async with open_stream_writer(shared, replica, hub, fragments.serve) as writer:
            await writer.write(partial(begin_audit, file=HeadFile(path), at=exact(now())))
            await to_thread.run_sync(replica.begin_head)
            with await to_thread.run_sync(LogReader, path, owner_lives) as reader:
                yield JetStreamBackbone(path, writer, reader, hub, owner_lives, now, fragments)
    finally:
        await to_thread.run_sync(replica.close)
