"""Files that every machine of a cluster can have, by the SHA-256 of their content, and one record per run that names some."""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import hashlib
import secrets
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from nats.js.api import KeyValueConfig, ObjectStoreConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from cloister.core.errors import HostError
from cloister.core.ids import RunId
from cloister.core.system import in_thread
from cloister.log.jetstream.link import Link, keys_of, patiently

FRESH_SECONDS = 86_400.0
"""A file that no record names is kept so long: its record may still be on the way."""


class Record(NamedTuple):
    """What the cluster knows of one run's files."""

    data: bytes
    number: int
    """Grows with each replacement."""


class Objects:
    """The bucket of files and the bucket of records. Every method may raise `HostError` (`cluster_away`, `no_disk`)."""

    def __init__(self, link: Link, files: ObjectStore, records: KeyValue) -> None:
        self._link = link
        self._files = files
        self._records = records

    async def put(self, digest: str, path: Path) -> None:
        """Store the file at `path`, whose content has this SHA-256, unless it is stored."""
        age = await self._age(digest)
        # An old one may be unnamed, and about to be removed.
        if age is not None and age < FRESH_SECONDS / 2:
            return

        async def store() -> None:
            with path.open("rb") as file:
                await self._files.put(digest, file)

        await patiently(store)

    async def get(self, digest: str, path: Path) -> None:
        """Write a stored file to `path`, whole or not at all. Raises `HostError` (`file_lost`)."""
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")

        async def fetch() -> None:
            with draft.open("wb") as file:
                await self._files.get(digest, file)

        try:
            try:
                await patiently(fetch)
            except HostError as error:
                if not isinstance(error.__cause__, NotFoundError):
                    raise
                raise _lost(digest) from error
            if await in_thread(digest_of, draft) != digest:
                raise _lost(digest)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    async def record(self, run: RunId) -> Record | None:
        async def read() -> Record | None:
            try:
                found = await self._records.get(run)
            except KeyNotFoundError:
                return None
            return Record(found.value or b"", found.revision or 0)

        return await patiently(read)

    async def replace(self, run: RunId, data: bytes, number: int) -> int | None:
        """Replace the record with this number (0: there is none) and return its new one; None if it has another."""

        async def write() -> int | None:
            try:
                return await self._records.update(run, data, last=number)
            except KeyWrongLastSequenceError:
                return None

        return await patiently(write)

    async def runs(self) -> tuple[RunId, ...]:
        """All runs with a record."""
        return tuple(
            map(RunId, await patiently(lambda: keys_of(self._link, f"{self._link.cluster.name}-runs")))
        )

    async def sweep(self, named: Collection[str], fresh_seconds: float = FRESH_SECONDS) -> int:
        """Remove files that are not `named` and not fresh; return how many."""

        async def listed() -> list[str]:
            try:
                return [each.name for each in await self._files.list(ignore_deletes=True)]
            except NotFoundError:
                return []

        removed = 0
        for digest in await patiently(listed):
            age = None if digest in named else await self._age(digest)
            if age is not None and age >= fresh_seconds:

                async def remove(digest: str = digest) -> None:
                    await self._files.delete(digest)

                await patiently(remove)
                removed += 1
        return removed

    async def _age(self, digest: str) -> float | None:
        """How many seconds ago a file was stored; None if it is not."""

        async def read() -> float | None:
            try:
                info = await self._files.get_info(digest)
            except NotFoundError:
                return None
            with suppress(ValueError):
                return (datetime.now(UTC) - datetime.fromisoformat(info.mtime or "")).total_seconds()
            return 0.0

        return await patiently(read)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lost(digest: str) -> HostError:
    return HostError(
        "file_lost",
        f"The cluster has no intact file {digest[:16]}: a save point of this run cannot be read on this machine.",
    )


async def open_objects(link: Link) -> Objects:
    """Open the buckets of the cluster, made if missing. Raises `HostError`."""
    name, replicas = link.cluster.name, link.cluster.replicas
    jetstream = link.jetstream

    async def files() -> ObjectStore:
        try:
            return await jetstream.object_store(f"{name}-files")
        except NotFoundError:
            config = ObjectStoreConfig(storage=StorageType.FILE, replicas=replicas)
            return await jetstream.create_object_store(f"{name}-files", config)

    async def records() -> KeyValue:
        try:
            return await jetstream.key_value(f"{name}-runs")
        except NotFoundError:
            config = KeyValueConfig(bucket=f"{name}-runs", replicas=replicas, storage=StorageType.FILE)
            return await jetstream.create_key_value(config)

    return Objects(link, await patiently(files), await patiently(records))
