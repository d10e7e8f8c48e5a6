"""What a sandbox made by hand uses, and which TCP ports programs in it listen on."""

import time
from collections.abc import Iterator

import msgspec

from cloister.core.computer import Computer
from cloister.core.errors import UserError
from cloister.sandbox.api import Sandbox
from cloister.sandbox.local.spec import PROXY_PORT

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
TABLE_BYTES = 262_144
"""Read of each table; a line has about 150 bytes."""
PORTS = 256
"""Most ports in one answer."""
_LISTEN = "0A"


class SandboxMetrics(msgspec.Struct, frozen=True):
    """What a sandbox uses of what it may use."""

    at: float
    """Unix seconds."""
    cpus: float
    """Processors that it may use at once."""
    cpu_seconds: float
    """Time of processors that it has used so far."""
    memory_bytes: int
    """In use now, the cache of files included."""
    memory_limit_bytes: int
    disk_bytes: int | None
    """What it wrote since it was made, half a minute late at most; None where that is not counted."""
    disk_limit_bytes: int
    ports: tuple[int, ...]
    """TCP ports that programs inside listen on. Untrusted."""


async def measured(sandbox: Sandbox) -> SandboxMetrics:
    """What `sandbox` uses now."""
    load, quota = await sandbox.load(), sandbox.info.quota
    return SandboxMetrics(
        at=time.time(),
        cpus=quota.cpus,
        cpu_seconds=load.cpu_seconds,
        memory_bytes=load.memory_bytes,
        memory_limit_bytes=quota.memory_bytes,
        disk_bytes=load.disk_bytes,
        disk_limit_bytes=quota.disk_bytes,
        ports=await listening_ports(sandbox),
    )


async def listening_ports(computer: Computer) -> tuple[int, ...]:
    """The ports in order, without that of the proxy; none where the kernel inside does not tell. Untrusted."""
    found: set[int] = set()
    for table in TABLES:
        try:
            found.update(ports_in(await computer.read(table, limit_bytes=TABLE_BYTES)))
        except UserError:
            continue  # a kernel without IPv6 has no table of it
    return tuple(sorted(found - {PROXY_PORT}))[:PORTS]


def ports_in(table: bytes) -> Iterator[int]:
    """The local ports of sockets that listen, in the text of `/proc/net/tcp`; lines of another form are skipped."""
    for line in table.decode("ascii", errors="replace").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 4 or fields[3] != _LISTEN:
            continue
        digits = fields[1].rpartition(":")[2]
        if len(digits) == 4 and all(digit in "0123456789ABCDEF" for digit in digits):
            yield int(digits, 16)
