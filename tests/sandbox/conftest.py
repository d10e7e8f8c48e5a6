"""A real guest as a plain subprocess, which must leave nothing behind."""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, Process

from cloister.sandbox._spawn import pipes, spawn
from cloister.sandbox.local.guest_build import build
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.link import Link, link_over

OpenGuest = Callable[..., AbstractAsyncContextManager[tuple[Link, Process]]]
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@pytest.fixture(scope="session")
def guest_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return anyio.run(build, "guest", tmp_path_factory.mktemp("guest"))


def marked(mark: str) -> list[str]:
    """The command lines of processes that carry `mark` in their environment."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            carries = mark.encode() in (entry / "environ").read_bytes()
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if carries and line:  # a zombie has no command line
            found.append(line.decode(errors="replace"))
    return found


async def none_left(mark: str) -> None:
    with anyio.move_on_after(10):
        while marked(mark):  # noqa: ASYNC110  strangers' processes signal their end to nobody
            await anyio.sleep(0.01)
    assert marked(mark) == []


@pytest.fixture
def open_guest(guest_program: Path) -> OpenGuest:
    @asynccontextmanager
    async def opened(
        *options: str,
        within: tuple[str, ...] = (),
        door: Callable[[ByteStream], Awaitable[None]] | None = None,
        ttl_seconds: int = 120,
        proxy_port: int = 0,
    ) -> AsyncGenerator[tuple[Link, Process]]:
        mark = f"MARK={secrets.token_hex(8)}"
        name, _, value = mark.partition("=")
        env = {"PATH": PATH, "LANG": "C.UTF-8", name: value}
        setup = frames.Setup(ttl_seconds, proxy_port, "test")
        async with spawn([*within, str(guest_program), *options], env={"PATH": PATH}) as process:
            stdin, stdout, _ = pipes(process)
            async with link_over(stdin, stdout, setup, env=env, door=door) as link:
                yield link, process
            with anyio.fail_after(20):
                await process.wait()
        await none_left(mark)

    return opened
