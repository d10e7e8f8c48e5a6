import io
import json
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.conftest import Served

from cloister.app.settings import Settings, read_settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    reply = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
    yield f"/v1/sandboxes/{reply.json()['id']}"


async def said(served: Served, sandbox: str, line: str) -> str:
    reply = await served.client.post(f"{sandbox}/exec", json={"command": line})
    assert reply.json()["exit_code"] == 0, reply.text
    return reply.json()["stdout"]


async def in_pieces(size: int) -> AsyncGenerator[bytes]:
    for _ in range(size // 100_000):
        yield b"x" * 100_000


async def test_files_of_any_size_are_streamed_both_ways(served: Served, sandbox: str) -> None:
    size, seen = 300_000_000, 0
    put = await served.client.put(f"{sandbox}/files", params={"path": "big"}, content=in_pieces(size))
    assert put.status_code == 204, put.text
    assert await said(served, sandbox, "stat -c %s big") == f"{size}\n"
    async with served.client.stream("GET", f"{sandbox}/files", params={"path": "big"}) as reply:
        assert reply.status_code == 200
        async for data in reply.aiter_bytes():
            seen += len(data)
    assert seen == size


async def test_an_upload_that_breaks_off_leaves_the_old_file(served: Served, sandbox: str) -> None:
    await served.client.put(f"{sandbox}/files", params={"path": "file"}, content=b"old")

    async def broken() -> AsyncGenerator[bytes]:
        yield b"half of it"
        raise KeyError

    with pytest.raises(KeyError):
        await served.client.put(f"{sandbox}/files", params={"path": "file"}, content=broken())
    with anyio.fail_after(20):
        while await said(served, sandbox, "ls -A") != "file\n":
            pass
    assert await said(served, sandbox, "cat file") == "old"


async def test_a_reader_who_leaves_early_leaves_nothing_running(served: Served, sandbox: str) -> None:
    await said(served, sandbox, "truncate -s 5G huge")
    for _ in range(3):
        async with served.client.stream("GET", f"{sandbox}/files", params={"path": "huge"}) as reply:
            async for _ in reply.aiter_bytes():
                break
    with anyio.fail_after(20):
        # One of them is above the command that looks.
        while await said(served, sandbox, "cat /proc/[0-9]*/comm | grep -c supervisor") != "1\n":
            pass


async def test_a_sandbox_that_dies_cuts_the_body_off(served: Served, sandbox: str) -> None:
    await said(served, sandbox, "truncate -s 5G huge")
    with pytest.raises(httpx.RemoteProtocolError), anyio.fail_after(30):
        async with served.client.stream("GET", f"{sandbox}/files", params={"path": "huge"}) as reply:
            async for _ in reply.aiter_bytes():
                await served.client.delete(sandbox)


async def test_names_are_looked_at_moved_made_and_removed(served: Served, sandbox: str) -> None:
    post, at = served.client.post, f"{sandbox}/files"
    assert (await post(f"{at}/mkdir", json={"path": "a/b", "mode": "700"})).status_code == 204
    await served.client.put(at, params={"path": "a/b/file"}, content=b"12345")
    entry = (await served.client.get(f"{at}/stat", params={"path": "a/b/file"})).json()
    assert (entry["name"], entry["kind"], entry["size"]) == ("file", "file", 5)
    assert (await post(f"{at}/move", json={"path": "a/b/file", "to": "c/file"})).status_code == 204
    assert await said(served, sandbox, "find . | sort | tr '\\n' ' '") == ". ./a ./a/b ./c ./c/file "
    full = await post(f"{at}/remove", json={"path": "a"})
    assert (full.status_code, full.json()["code"]) == (400, "file_failed")
    assert (await post(f"{at}/remove", json={"path": "a", "recursive": True})).status_code == 204
    for reply, status in (
        (await served.client.get(f"{at}/stat", params={"path": "a"}), 404),
        (await post(f"{at}/remove", json={"path": "/etc/passwd"}), 403),
        (await post(f"{at}/move", json={"path": "a", "to": "b"}), 404),
        (await post(f"{at}/mkdir", json={"path": "c/file"}), 400),
        (await post(f"{at}/mkdir", json={"path": "d", "mode": "4755"}), 400),
        (await post(f"{at}/mkdir", json={"path": ""}), 400),
    ):
        assert reply.status_code == status, reply.text


def archive(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


async def test_trees_go_in_and_out_as_archives(served: Served, sandbox: str) -> None:
    at = f"{sandbox}/tree"
    put = await served.client.put(at, params={"path": "t/in"}, content=archive("x/file", b"data"))
    assert put.status_code == 204, put.text
    assert await said(served, sandbox, "cat t/in/x/file") == "data"
    got = await served.client.get(at, params={"path": "t"})
    with tarfile.open(fileobj=io.BytesIO(got.content)) as tar:
        assert sorted(tar.getnames()) == [".", "./in", "./in/x", "./in/x/file"]
    for reply, code in (
        (await served.client.put(at, params={"path": "bad"}, content=b"no archive" * 100), "bad_archive"),
        (await served.client.get(at, params={"path": "none"}), "not_found"),
        (await served.client.get(at, params={"path": "t/in/x/file"}), "not_a_directory"),
    ):
        assert reply.json()["code"] == code


async def test_a_watcher_receives_changes(served: Served, sandbox: str) -> None:
    await said(served, sandbox, "mkdir w")

    async def heard(socket: Any) -> dict[str, Any]:
        with anyio.fail_after(20):
            return json.loads(await socket.recv())

    async with served.socket(f"{sandbox}/files/watch?path=w") as socket:
        assert await heard(socket) == {"watching": "w"}
        await said(served, sandbox, "touch w/new")
        assert (await heard(socket))["change"] == {"kind": "created", "path": "new"}
        await said(served, sandbox, "rm -r w")
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 1000
    async with served.socket(f"{sandbox}/files/watch?path=none") as socket:
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 4404
