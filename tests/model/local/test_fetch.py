"""Files of models: fetched once, resumed, verified, never trusted before."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import SocketAttribute, SocketStream

from cloister.core.errors import HostError, OutsideError, UserError
from cloister.model.local.fetch import fetch
from cloister.model.local.files import FILES, LocalFile, Shelf

pytestmark = pytest.mark.anyio

DATA = bytes(range(256)) * 40_000
FILE = LocalFile("small", "Small", "MIT", "org/small.gguf", len(DATA), hashlib.sha256(DATA).hexdigest())


NOWHERE = "http://127.0.0.1:9"


@dataclass
class Hub:
    """A hub that serves `data`, in the ways that hubs fail."""

    url: str
    data: bytes = DATA
    ranges: bool = True
    cut: int | None = None
    """Bytes after which it hangs up, once."""
    status: int = 200
    asked: list[str] = field(default_factory=list[str])

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
            text = head.decode().lower()
            self.asked.append(next((line for line in text.split("\r\n") if line.startswith("range")), ""))
            start = 0
            if self.ranges and (line := self.asked[-1]):
                start = int(line.partition("=")[2].rstrip("-"))
            body = self.data[start:]
            status = 206 if start else self.status
            await stream.send(f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            cut, self.cut = self.cut, None
            await stream.send(body if cut is None else body[:cut])


@asynccontextmanager
async def open_hub() -> AsyncGenerator[Hub]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        hub = Hub(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hub.serve)
            yield hub
            tasks.cancel_scope.cancel()


def shelf(tmp_path: Path, own: dict[str, str] | None = None) -> Shelf:
    return Shelf(tmp_path / "models", own or {}, {"small": FILE})


def quiet(done: int, total: int) -> None:
    assert 0 < done <= total


async def test_a_file_is_fetched_once_and_progress_is_reported(tmp_path: Path) -> None:
    told: list[int] = []
    async with open_hub() as hub:
        place = await fetch(shelf(tmp_path), "small", hub.url, lambda done, total: told.append(done))
        again = await fetch(shelf(tmp_path), "small", hub.url, quiet)
    assert place == again == tmp_path / "models" / "small.gguf"
    assert place.read_bytes() == DATA
    assert len(hub.asked) == 1
    assert told[-1] == len(DATA)
    assert [path.name for path in place.parent.iterdir()] == ["small.gguf"]


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_partial_download_is_kept(tmp_path: Path, ranges: bool) -> None:
    async with open_hub() as hub:
        hub.cut, hub.ranges = 3_000_000, ranges
        with pytest.raises(OutsideError) as caught:
            await fetch(shelf(tmp_path), "small", hub.url, quiet)
        assert caught.value.retryable
        assert "bytes are kept" in caught.value.message
        place = await fetch(shelf(tmp_path), "small", hub.url, quiet)
    assert place.read_bytes() == DATA
    assert hub.asked[1].startswith("range: bytes=")


@pytest.mark.parametrize("change", [b"", b"x", DATA])
async def test_download_with_wrong_bytes_is_deleted(tmp_path: Path, change: bytes) -> None:
    async with open_hub() as hub:
        hub.data = change + DATA[: len(DATA) - 1]
        with pytest.raises(OutsideError) as caught:
            await fetch(shelf(tmp_path), "small", hub.url, quiet)
    assert caught.value.code in ("bad_model_file", "hub_unreachable")
    assert not (tmp_path / "models" / "small.gguf").exists()


async def test_hub_error_names_the_url_and_status(tmp_path: Path) -> None:
    async with open_hub() as hub:
        hub.status = 404
        with pytest.raises(OutsideError, match="status 404"):
            await fetch(shelf(tmp_path), "small", hub.url, quiet)
    with pytest.raises(OutsideError, match="cannot be fetched"):
        await fetch(shelf(tmp_path), "small", hub.url, quiet)


async def test_file_named_in_the_settings_is_verified_in_place(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(DATA)
    mine = shelf(tmp_path, {"small": str(own)})
    assert await fetch(mine, "small", NOWHERE, quiet) == own
    own.write_bytes(DATA[::-1])
    with pytest.raises(UserError, match="not the official file"):
        await fetch(mine, "small", NOWHERE, quiet)
    own.unlink()
    with pytest.raises(UserError, match="check the path"):
        await fetch(mine, "small", NOWHERE, quiet)


async def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no local model 'large': use small"):
        await fetch(shelf(tmp_path), "large", NOWHERE, quiet)


async def test_second_concurrent_fetch_is_refused(tmp_path: Path) -> None:
    mine = shelf(tmp_path)
    refused: list[str] = []

    async def one(hub: Hub) -> None:
        try:
            await fetch(mine, "small", hub.url, quiet)
        except UserError as error:
            refused.append(error.code)

    async with open_hub() as hub:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, hub)
            tasks.start_soon(one, hub)
        place = await fetch(mine, "small", hub.url, quiet)
    assert (refused, len(hub.asked)) == (["fetch_under_way"], 1)
    assert place.read_bytes() == DATA


async def test_a_full_disk_is_reported_before_the_download(tmp_path: Path) -> None:
    huge = msgspec.structs.replace(FILE, bytes=10**18)
    async with open_hub() as hub:
        with pytest.raises(HostError, match=r"needs 1000000000\.0 GB more") as caught:
            await fetch(Shelf(tmp_path, {}, {"small": huge}), "small", hub.url, quiet)
    assert (caught.value.code, hub.asked) == ("disk_full", [])


async def test_unwritable_partial_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "small.part").symlink_to("/dev/full")
    async with open_hub() as hub:
        with pytest.raises(HostError, match=r"small\.part cannot be written \(No space left on device\)"):
            await fetch(Shelf(tmp_path, {}, {"small": FILE}), "small", hub.url, quiet)


def test_every_file_of_the_catalog_is_pinned() -> None:
    for file in FILES.values():
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.bytes > 100_000_000
        assert file.hub_path.endswith(".gguf")
