"""Package clients inside a sandbox, through the door and without it, in turn.

Without the door a client runs in the same sandbox with the network of this machine. npm and pip use the sources that
they are set up with. go and cargo download from a server on this machine.
"""

import hashlib
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio

from cloister.core.computer import shell
from cloister.core.events import ConnectionDecided
from cloister.core.ids import SandboxId, new_owner_id
from cloister.egress.factory import STORE, Doorway, Through
from cloister.egress.packages import SetFinder
from cloister.egress.rules import DoorEvent, Outside, Resolver, resolve
from cloister.policy.api import Layer, Rule
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.templates.recipes import Packages
from parts.place import WARM, nothing

COUNT = 100
SIZE = 50_000
SECONDS = 600.0
INDEX, ADDRESS = "index.bench", "127.0.0.77"
TEMPLATE = Packages(
    (
        "ca-certificates",
        "git",
        "curl",
        "python3",
        "python3-pip",
        "npm",
        "nodejs",
        "cargo-web",
        "rustc-web",
        "golang-go",
    )
)
NPM = "npm install --ignore-scripts --no-audit --no-fund --loglevel=error --cache $PWD/cache"
TOPS = "express@4 mocha@10 rimraf@5"
PIP = "python3 -m pip download -q --no-input --no-deps --no-cache-dir --only-binary :all: -d . "
WHEELS = """
    absl-py aiofiles aiosignal alabaster annotated-types anyio appdirs argcomplete asgiref asttokens attrs
    backcall beautifulsoup4 bleach blinker boltons cachetools certifi chardet charset-normalizer click cloudpickle
    colorama commonmark configargparse decorator defusedxml deprecated dill distlib dnspython docutils entrypoints
    exceptiongroup execnet executing fastjsonschema filelock flake8 flask fsspec gitdb gitpython h11 httpcore httpx
    humanize hyperlink idna imagesize importlib-metadata incremental iniconfig isodate isort itsdangerous jinja2
    jmespath joblib jsonpatch jsonpointer jsonschema mako markdown markdown-it-py mccabe mdurl
    more-itertools mypy-extensions nodeenv oauthlib packaging parso pathspec pexpect platformdirs pluggy
    prompt-toolkit ptyprocess pyasn1 pycodestyle pycparser pyflakes pygments pyparsing python-dateutil pytz
    requests requests-oauthlib rich six sniffio tomli toolz tqdm typing-extensions urllib3 wcwidth werkzeug zipp
"""


def modules() -> str:
    return "".join(f"require bench.test/m{number:03} v1.0.0\n" for number in range(COUNT))


def crates() -> str:
    return "".join(f'crate{number:03} = "1"\n' for number in range(COUNT))


GO = f"""printf 'module bench.test/main\\ngo 1.19\\n{modules().replace(chr(10), chr(92) + "n")}' > go.mod
export GOPROXY=https://{INDEX} GOSUMDB=off GOFLAGS=-modcacherw GOMODCACHE=$PWD/cache GOPATH=$PWD/go
go mod download"""
CARGO = f"""mkdir -p src home && touch src/lib.rs
printf '[package]\\nname = "bench"\\nversion = "0.0.0"\\n[dependencies]\\n{crates().replace(chr(10), chr(92) + "n")}' > Cargo.toml
printf '[source.crates-io]\\nreplace-with = "bench"\\n[source.bench]\\nregistry = "sparse+https://{INDEX}/"\\n' > home/config.toml
CARGO_HOME=$PWD/home cargo fetch -q"""
JOBS = {
    "npm": f"{NPM} {TOPS}; ls node_modules | wc -l >&2",
    "pip": f"{PIP} {' '.join(WHEELS.split())}; ls | wc -l >&2",
    "go": f"{GO}; ls cache/cache/download/bench.test | wc -l >&2",
    "cargo": f"{CARGO}; ls home/registry/cache/* | wc -l >&2",
}


SERVER = """
import http.server, os, sys
from cloister.egress.authority import Authority

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=sys.argv[3])

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512

    def finish_request(self, request, client_address):
        with context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, request, client_address):
        pass

authority = Authority()
context = authority.context(sys.argv[2])
server = Server((sys.argv[1], 443), Handler)
os.write(1, authority.pem)
os.close(1)
server.serve_forever()
"""


def fill(root: Path) -> None:
    """Write an index of Go modules and of crates, as files that a server only has to return."""

    def put(path: str, data: bytes) -> None:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)

    noise = random.Random(1)  # bytes that do not compress
    put("config.json", json.dumps({"dl": f"https://{INDEX}/dl/{{crate}}"}).encode())
    for number in range(COUNT):
        module, crate = f"m{number:03}", f"crate{number:03}"
        about = f"module bench.test/{module}\n".encode()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(f"bench.test/{module}@v1.0.0/go.mod", about)
            archive.writestr(f"bench.test/{module}@v1.0.0/data", noise.randbytes(SIZE))
        put(f"bench.test/{module}/@v/list", b"v1.0.0\n")
        put(f"bench.test/{module}/@v/v1.0.0.info", b'{"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}')
        put(f"bench.test/{module}/@v/v1.0.0.mod", about)
        put(f"bench.test/{module}/@v/v1.0.0.zip", packed.getvalue())
        packed = io.BytesIO()
        manifest = f'[package]\nname = "{crate}"\nversion = "1.0.0"\n'.encode()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in (
                ("Cargo.toml", manifest),
                ("src/lib.rs", b""),
                ("data", noise.randbytes(SIZE)),
            ):
                member = tarfile.TarInfo(f"{crate}-1.0.0/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        put(f"dl/{crate}", packed.getvalue())
        digest = hashlib.sha256(packed.getvalue()).hexdigest()
        line = f'{{"name": "{crate}", "vers": "1.0.0", "deps": [], "features": {{}}, "yanked": false, "cksum": "{digest}"}}\n'
        put(f"{crate[:2]}/{crate[2:4]}/{crate}", line.encode())


@contextmanager
def index(directory: Path) -> Generator[bytes]:
    """Serve the index in a process of its own. Yield the certificate of its authority."""
    fill(directory)
    argv = [sys.executable, "-c", SERVER, ADDRESS, INDEX, str(directory)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.read()
        finally:
            server.kill()


async def resolved(host: str, port: int) -> Sequence[str]:
    return [ADDRESS] if host == INDEX else await resolve(host, port)


class Client:
    """Runs a line inside a sandbox, through the door or on the network of this machine."""

    def __init__(self, sandbox: Sandbox, pid: int, env: dict[str, str]) -> None:
        self._sandbox = sandbox
        self._pid = pid
        self._env = {name: value for name, value in env.items() if "PROXY" not in name.upper()}

    async def timed(self, line: str, *, door: bool) -> tuple[float, str]:
        """Seconds, and the last line that was printed."""
        line = f"mkdir /work/job && cd /work/job && {line}"
        began = time.perf_counter()
        if door:
            ran = await self._sandbox.run(shell(line, seconds=SECONDS))
            said = ran.err
        else:
            enter = f"nsenter -t {self._pid} -U -m -p -S 1000 -G 1000 /bin/bash -c"
            argv = [
                "/bin/sh",
                "-c",
                f'for file in {groups(self._pid)}; do echo $$ > $file; done; exec {enter} "$1"',
                "sh",
            ]
            said = (await anyio.run_process([*argv, line], env=self._env, check=False)).stderr
        taken = time.perf_counter() - began
        await self._sandbox.run(shell("rm -rf /work/job", seconds=SECONDS, user="root"))
        return taken, said.decode(errors="replace").strip().rpartition("\n")[2]


def groups(pid: int) -> str:
    """The control groups of a process, as files to write another one to: its share of this machine's time is the same."""
    found: list[str] = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        places = (
            Path("/sys/fs/cgroup") / mount / path[1:] / "cgroup.procs" for mount in (kind or "unified", "")
        )
        found += [str(place) for place in places if path != "/" and place.is_file()]
    return " ".join(found)


async def set_up(sandbox: Sandbox, pem: bytes) -> dict[str, str]:
    """Let the clients inside work without the door too, and return their environment."""
    names = f"{ADDRESS} {INDEX}\n".encode()
    for path, data in (
        ("hosts", names),
        ("resolv.conf", await anyio.Path("/etc/resolv.conf").read_bytes()),
        (STORE[5:], pem),
    ):
        await sandbox.run(shell(f"cat >> /etc/{path}", user="root"), data)
    said = (await sandbox.run(shell("env -0"))).out.decode()
    return dict(line.split("=", 1) for line in said.split("\0") if line)


@asynccontextmanager
async def inside(directory: Path, pem: bytes, log: list[DoorEvent]) -> AsyncGenerator[Client]:
    """A sandbox with the clients, and its door."""

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        log.append(body)

    actions = ("connect:@npm", "connect:@pypi", f"connect:{INDEX}:443")
    doorway = Doorway(find_sets=SetFinder(directory).find, outside=Outside(Resolver(resolved)))
    rules = tuple(Rule(action, "allow") for action in actions)
    outfit = doorway.outfit((Layer("host", rules, may_widen=True),), record)
    owner = new_owner_id()
    with Owners(directory / "owners").hold(owner):
        host = ContainerHost(directory, owner, None, os.environ["PATH"])
        host.templates.keep_recipe("downloads", TEMPLATE)
        await host.prepare("downloads", nothing)
        async with Through(host, outfit).open(SandboxSpec(template="downloads")) as sandbox:
            env = await set_up(sandbox, pem)
            namespace = (await sandbox.run(shell("readlink /proc/self/ns/mnt"))).out.decode().strip()
            yield Client(sandbox, process_in(namespace), env)
        await host.close()


def process_in(namespace: str) -> int:
    """A process of this machine that is inside."""
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str((one / "ns" / "mnt").readlink()) == namespace:
                return int(one.name)
    raise LookupError(namespace)


async def downloads(rounds: int) -> None:
    """Print how long each client takes, both ways."""
    log: list[DoorEvent] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for kind in ("downloads/templates", "programs"):
            (WARM / kind).mkdir(parents=True, exist_ok=True)
            (directory / Path(kind).name).symlink_to(WARM / kind)
        with index(directory / "index") as pem:
            async with inside(directory, pem, log) as client:
                for kind, line in JOBS.items():
                    await compare(client, kind, line, rounds, log)


async def compare(client: Client, kind: str, line: str, rounds: int, log: list[DoorEvent]) -> None:
    times: dict[bool, list[float]] = {True: [], False: []}
    counts: set[str] = set()
    worked = time.process_time()
    log.clear()
    for number in range(2 * rounds):
        door = bool(number % 2)
        taken, count = await client.timed(line, door=door)
        times[door].append(taken)
        counts.add(count)
    effects = Counter(body.effect for body in log if isinstance(body, ConnectionDecided))
    through, without = statistics.median(times[True]), statistics.median(times[False])
    print(
        f"{f'{kind}, {min(counts)} packages':<30} {through:7.1f} s against {without:7.1f} s without   ratio {through / without:4.2f}"
        f"   wanted ≤ 1.5   ({effects['allow'] // rounds} connections, {effects['deny']} refused,"
        f" {(time.process_time() - worked) / rounds:.1f} s of CPU in the door)",
        flush=True,
    )
