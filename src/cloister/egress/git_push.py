"""Git over HTTPS to the run's own repository: fetch, and push to the run's own branch and to nothing else.

Of git's protocol only what a push names is read: the list of commands that comes before the pack.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from urllib.parse import urlsplit

from anyio import EndOfStream

from cloister.core.addresses import normal_host
from cloister.core.text import one_line
from cloister.egress.http.exchange import CONTINUE, BadBody, pieces
from cloister.egress.http.head import Head, values
from cloister.egress.quota import Refused
from cloister.egress.rules import Gate, Visit
from cloister.egress.streams import Inlet
from cloister.policy.api import PushAction
from cloister.policy.pattern import request_paths

_COMMANDS_BYTES = 65_536
_COMMAND = re.compile(
    rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) (refs/[\x21-\x7e\x80-\xff]+)"
)
_CAPABILITIES = re.compile(
    rb"report-status(-v2)?|side-band-64k|quiet|atomic|ofs-delta|object-format=[a-z0-9]+"
    rb"|agent=[\x21-\x7e]+|session-id=[\x21-\x7e]+|delete-refs|no-thin"
)
_SERVICES = ("git-upload-pack", "git-receive-pack")


class Repository:
    """The run's repository: its address, the requests that git needs, and the one ref that a push may move."""

    def __init__(self, host: str, port: int, path: str, branch: str) -> None:
        self.host = host
        self.port = port
        self.path = path
        """The path of its address, without a trailing slash."""
        self.ref = f"refs/heads/{branch}"

    @classmethod
    def of(cls, address: str, branch: str) -> "Repository | None":
        """The repository at `address`; None when it is not reached over HTTPS."""
        try:
            parts = urlsplit(address)
            port = parts.port or 443
            host = normal_host(parts.hostname or "")
        except ValueError:
            return None
        path = parts.path.rstrip("/")
        plain = re.fullmatch(r"(/[A-Za-z0-9._~+-]+)+", path) and not re.search(r"/\.{1,2}(/|$)", path)
        if parts.scheme.lower() != "https" or not plain:
            return None
        return cls(host, port, path, branch)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Policy rules that allow git's own requests."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = f"{host}:{self.port}{self.path}"
        return (
            f"request:GET {where}/info/refs",
            *(f"request:POST {where}/{service}" for service in _SERVICES),
        )

    async def admit(self, gate: Gate, visit: Visit, head: Head, client: Inlet) -> AsyncIterator[bytes] | None:
        """Admit or refuse a request. Return the body if part of it was read. Raises `Refused`.

        Requests that are not about a repository's packs are none of its business. A push is looked into whatever
        repository it is for, on this host: a rule that opens a host opens no push.
        """
        if (visit.host, visit.port) != (self.host, self.port):
            return None
        path, _, query = head.target.partition(b"?")
        receiving = _may_be_read_as_push(path)
        if path.endswith(b"/info/refs") and query not in tuple(b"service=" + s.encode() for s in _SERVICES):
            raise await self._refuse(visit, head, "git is spoken here in its smart form only")
        if not receiving:
            return None
        if head.method != "POST" or path != self.path.encode() + b"/git-receive-pack":
            raise await self._refuse(visit, head, "a push goes to the run's own repository only")
        if values(head.headers, b"content-encoding"):
            raise await self._refuse(visit, head, "a push is not compressed as a whole")
        return await self._read(gate, visit, head, client)

    async def _read(self, gate: Gate, visit: Visit, head: Head, client: Inlet) -> AsyncIterator[bytes]:
        if head.waits:
            await client.send(CONTINUE)
        body = pieces(client, head.body, strict=True)
        read = bytearray()
        end, whole = 0, False
        try:
            while not whole:
                if len(read) > _COMMANDS_BYTES:
                    raise ValueError("its list of refs is too long")
                try:
                    read += await anext(body)
                except StopAsyncIteration:
                    raise ValueError("its list of refs has no end") from None
                end, whole = commands_end(read, end)
            refs = pushed_refs(bytes(read[:end]))
        except (ValueError, BadBody) as error:
            raise await self._refuse(visit, head, f"the push is denied: {error}") from None
        except EndOfStream:
            raise Refused(400, "The push was cut off.") from None
        for ref in refs:
            await self._judge(gate, visit, head, ref)
        return _again(bytes(read), body)

    async def _judge(self, gate: Gate, visit: Visit, head: Head, ref: str) -> None:
        if ref != self.ref:
            raise await self._refuse(
                visit, head, f"{one_line(ref, 100)} is not the run's own branch, {self.ref}"
            )
        decision = gate.of(PushAction(f"https://{self.host}{self.path}", ref))
        if decision.effect != "allow":
            raise await self._refuse(visit, head, decision.rule)

    async def _refuse(self, visit: Visit, head: Head, why: str) -> Refused:
        await visit.request(head, "deny", why)
        return Refused(403, f"{self.host}{one_line(head.path, 100)} is denied: {one_line(why, 300)}.")


def _may_be_read_as_push(path: bytes) -> bool:
    """True if any server could read the path as a push, whatever its spelling."""
    try:
        ways = request_paths(path.decode("ascii"))
    except ValueError:
        return True
    return any("git-receive-pack" in way.lower() for way in ways)


async def _again(read: bytes, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    if read:
        yield read
    async for piece in body:
        yield piece


def commands_end(data: bytes | bytearray, at: int = 0) -> tuple[int, bool]:
    """Skip whole packets from `at`. Return the offset after them, and whether the last is the flush packet.

    Raises `ValueError`.
    """
    while len(data) >= at + 4:
        size = _size(bytes(data[at : at + 4]))
        if size == 0:
            return at + 4, True
        if len(data) < at + size:
            break
        at += size
    return at, False


def _size(text: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]{4}", text):
        raise ValueError("a packet has no length")
    size = int(text, 16)
    if 0 < size < 5:
        raise ValueError("a packet has a kind that no push uses")
    return size


def pushed_refs(commands: bytes) -> tuple[str, ...]:
    """The refs that a push would move, from its commands and their flush packet. Raises `ValueError`.

    A probe without commands moves none. Deletions, signed pushes, push options and unknown capabilities are refused.
    """
    refs: list[str] = []
    at = 0
    while size := _size(commands[at : at + 4]):
        line = commands[at + 4 : at + size]
        at += size
        if not refs:
            line, _, capabilities = line.partition(b"\0")
            for word in capabilities.split():
                if not _CAPABILITIES.fullmatch(word):
                    raise ValueError(
                        f"it asks for {one_line(word.decode('latin-1'), 60)}, which is not taken"
                    )
        refs.append(_ref(line.removesuffix(b"\n")))
    if at + 4 != len(commands):
        raise ValueError("its list of refs continues after its end")
    return tuple(refs)


def _ref(line: bytes) -> str:
    found = _COMMAND.fullmatch(line)
    if found is None:
        raise ValueError("it contains something other than ref updates")
    if not found[2].strip(b"0"):
        raise ValueError("it deletes a ref")
    return found[3].decode("utf-8", errors="replace")
