"""Git's own server over HTTP, for tests: a forge of one repository."""

import base64
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from cloister.egress.http.exchange import pieces
from cloister.egress.http.head import Framing

TOKEN = "ghp_0a1b2c3d4e5f6g7h8i9j0k1l2m3n4o5p6q7r"
BASIC = b"Basic " + base64.b64encode(b"x-access-token:" + TOKEN.encode())
IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git_server(root: Path, *, public: bool = False) -> Callable[[ByteStream], Awaitable[None]]:
    """`git http-backend` for all repositories below `root`, for who has the token or for everyone."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            head = (await reader.receive_until(b"\r\n\r\n", 65_536)).decode()
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {
                key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)
            }
            framing: Framing = (
                "chunked" if "transfer-encoding" in headers else int(headers.get("content-length", 0))
            )
            body = b"".join([piece async for piece in pieces(reader, framing, strict=True)])
            if not public and headers.get("authorization", "").encode() != BASIC:
                await stream.send(
                    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                return
            path, _, query = target.partition("?")
            env = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REMOTE_USER": "run",
                "REQUEST_METHOD": method,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": headers.get("content-type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
                "GIT_PROTOCOL": headers.get("git-protocol", ""),
            }
            ran = await anyio.run_process(["git", "http-backend"], input=body, env=env, check=False)
            said, _, data = ran.stdout.partition(b"\r\n\r\n")
            status = b"200 OK"
            kept: list[bytes] = []
            for line in said.split(b"\r\n"):
                if line.startswith(b"Status:"):
                    status = line[7:].strip()
                else:
                    kept.append(line)
            kept += [b"Content-Length: %d" % len(data), b"Connection: close"]
            await stream.send(b"HTTP/1.1 %s\r\n%s\r\n\r\n%s" % (status, b"\r\n".join(kept), data))

    return serve


def make_repository(bare: Path) -> None:
    bare.parent.mkdir(parents=True)
    work = bare.parent / "seed"
    env = {"PATH": os.environ["PATH"], "HOME": str(bare.parent), **IDENTITY}
    for line in (
        f"git init -q -b main {work}",
        f"git -C {work} commit -q --allow-empty -m base",
        f"git -C {work} branch stable",
        f"git clone -q --bare {work} {bare}",
        f"git -C {bare} config receive.advertisePushOptions true",
    ):
        subprocess.run(line.split(), check=True, env=env)
