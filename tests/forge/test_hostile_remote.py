"""Remotes that lie: a URL that sends without end, and a local repository that names programs as its remote."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cloister.core.errors import CloisterError, UserError
from cloister.forge.host import in_bare, in_checkout
from cloister.forge.plain_git import PlainGit, find_checkout
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

MIB = 1_048_576
TIP = "1" * 40
MISSING = "2" * 40
Answer = Callable[[], Iterator[bytes]]


def pkt(line: bytes) -> bytes:
    return f"{len(line) + 4:04x}".encode() + line


def refs() -> bytes:
    capabilities = b"side-band-64k ofs-delta shallow no-progress symref=HEAD:refs/heads/main"
    return (
        pkt(f"{TIP} HEAD\0".encode() + capabilities + b"\n")
        + pkt(f"{TIP} refs/heads/main\n".encode())
        + b"0000"
    )


def pack_header(objects: int) -> bytes:
    return b"PACK" + struct.pack(">II", 2, objects)


def endless_blob() -> Iterator[bytes]:
    """One blob of 2**62 bytes, in zlib blocks that are not compressed."""
    size, head = 2**62, bytearray()
    byte, size = 0x30 | size & 15, size >> 4
    while size:
        head.append(byte | 0x80)
        byte, size = size & 127, size >> 7
    yield pack_header(1) + bytes(head) + bytes([byte]) + b"\x78\x01"
    block = b"\x00" + struct.pack("<HH", 60_000, 60_000 ^ 0xFFFF) + os.urandom(60_000)
    while True:
        yield block


def endless_objects() -> Iterator[bytes]:
    """As many empty blobs as a pack can announce."""
    yield pack_header(2**32 - 1)
    while True:
        yield b"\x30\x78\x9c\x03\x00\x00\x00\x00\x01" * 5_000


def endless_progress() -> Iterator[bytes]:
    while True:
        yield b"Counting objects: 99%\r" * 2_000 + b"\n"


class HostileServer:
    """Answers `git://` like a server, and then without end."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"git://127.0.0.1:{listener.getsockname()[1]}/x.git"
        self.pack: Answer = endless_blob
        self.endless_refs = False
        self.band = b"\1"
        """Objects; 2 is for progress."""
        self._listener = listener

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            number = 0
            while self.endless_refs:
                names = (pkt(f"{TIP} refs/heads/b{number + n}\n".encode()) for n in range(1_000))
                connection.sendall(b"".join(names))
                number += 1_000
            connection.sendall(refs())
            wanted = b""
            while b"done" not in wanted:
                if not (more := connection.recv(65_536)):
                    return
                wanted += more
            connection.sendall(pkt(b"NAK\n"))
            for data in self.pack():
                for at in range(0, len(data), 60_000):
                    connection.sendall(pkt(self.band + data[at : at + 60_000]))


@pytest.fixture
def server() -> Generator[HostileServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hostile = HostileServer(listener)
        threading.Thread(target=hostile.serve, daemon=True).start()
        yield hostile
        listener.shutdown(socket.SHUT_RDWR)


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("pack", [endless_blob, endless_objects])
async def test_a_url_that_sends_without_end_is_cut_off_and_leaves_nothing(
    server: HostileServer, tmp_path: Path, pack: Answer
) -> None:
    server.pack = pack
    with pytest.raises(CloisterError) as caught:
        await PlainGit(fetch_bytes=8 * MIB).fetch(server.url, None, tmp_path / "bare")
    if pack is endless_blob:
        assert isinstance(caught.value, UserError) and caught.value.code == "repository_too_large"
        assert caught.value.message == f"{server.url} sends more than 8 MiB, the limit of one fetch."
    else:
        assert caught.value.code == "fetch_failed"
    assert used_bytes(tmp_path / "bare") < MIB


async def test_a_url_with_progress_without_end_fails_in_one_sentence(
    server: HostileServer, tmp_path: Path
) -> None:
    server.band, server.pack = b"\2", endless_progress
    with pytest.raises(CloisterError) as caught:
        await PlainGit().fetch(server.url, None, tmp_path / "bare")
    assert caught.value.code == "fetch_failed"
    assert "more than 16 MiB of messages" in caught.value.message and len(caught.value.message) < 500


async def test_a_url_with_refs_without_end_fails_in_one_sentence(
    server: HostileServer, tmp_path: Path
) -> None:
    server.endless_refs = True
    with pytest.raises(CloisterError) as caught:
        await PlainGit().fetch(server.url, None, tmp_path / "bare")
    assert caught.value.code == "fetch_failed"
    assert caught.value.message.startswith(f"{server.url} cannot be fetched: ")
    assert len(caught.value.message) < 500


async def test_a_repository_below_the_limit_is_fetched(repo: SampleRepo, tmp_path: Path) -> None:
    with served(repo.path) as url:
        base = await PlainGit(fetch_bytes=8 * MIB).fetch(url, None, tmp_path / "bare")
    assert base.commit == repo.head


@contextmanager
def served(path: Path) -> Generator[str]:
    """`path` behind git's own server for inetd, one connection after the other."""
    argv = ["daemon", "--inetd", "--export-all", "--strict-paths", str(path / ".git")]

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    pid = os.posix_spawnp(
                        "git",
                        ["git", *argv],
                        os.environ,
                        file_actions=[(os.POSIX_SPAWN_DUP2, connection.fileno(), n) for n in (0, 1)],
                    )
                    os.waitpid(pid, 0)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"git://127.0.0.1:{listener.getsockname()[1]}{path}/.git"
        listener.shutdown(socket.SHUT_RDWR)


REMOTES = {
    "ssh": "ssh://host.invalid/x",
    "a short ssh address": "host.invalid:x",
    "ext": "ext::{program}",
    "a path": "{folder}",
    "fd": "fd::0",
    "an unknown helper": "evil::x",
}


@pytest.mark.parametrize("remote", REMOTES)
@pytest.mark.parametrize("lazy", [True, False], ids=["git would fetch", "git would not"])
async def test_a_hostile_promisor_remote_runs_nothing(
    repo: SampleRepo, tmp_path: Path, remote: str, lazy: bool
) -> None:
    """The repository lacks an object and says where it is: at a remote whose transport is a program of its own."""
    marker, program = tmp_path / "marker", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.promisor": "true",
        "remote.evil.url": REMOTES[remote].format(program=program, folder=repo.path),
        "remote.evil.uploadpack": str(program),
        "core.sshCommand": str(program),
        "core.gitProxy": str(program),
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
    }.items():
        repo.git("config", key, value)
    env = {"GIT_NO_LAZY_FETCH": "0"} if lazy else {}
    in_theirs = await in_checkout(find_checkout(str(repo.path)), "cat-file", "-p", MISSING, env=env)
    in_ours = await in_bare(repo.path / ".git", "cat-file", "-p", MISSING, env=env)
    assert not in_theirs.ok and not in_ours.ok
    assert not marker.exists()
