"""Prepare a sandbox for its proxy: trusted certificates, stand-ins for credentials, addresses of mirrors."""

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream

from cloister.core.computer import Command, Computer
from cloister.core.errors import UserError
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds
from cloister.egress.credentials import Credential, Keeper, Vault
from cloister.egress.git_push import Repository
from cloister.egress.http.connection import Handler, Offer
from cloister.egress.proxy import Door
from cloister.egress.rules import Outside, Record
from cloister.policy.api import Action, Decision, Layer, Policy, Rule, Sets
from cloister.policy.decide import Decider
from cloister.policy.layers import actions, set_names
from cloister.sandbox.api import Door as DoorCall
from cloister.sandbox.api import Host, Report, Sandbox, SandboxSpec, SnapshotInfo

FindSets = Callable[[frozenset[str]], Awaitable[tuple[Sets, dict[str, str]]]]
"""Resolve named host sets on this machine; also return the variables that point package clients there."""

STORE = "/etc/ssl/certs/ca-certificates.crt"
_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"),
    *("NIX_SSL_CERT_FILE",),
)
_SCRIPT = f"""set -e
mkdir -p {STORE.rpartition("/")[0]}
test -e {STORE} || : > {STORE}
sed -i '/^# cloister: begin$/,/^# cloister: end$/d' {STORE}
cat >> {STORE}
"""
_STORE_BYTES = 4_194_304
_SECONDS = 20.0


class Judge:
    """A policy whose named host sets are resolved on request."""

    def __init__(
        self, policy: Policy, find_sets: FindSets | None = None, untrusted: Callable[[], bool] | None = None
    ) -> None:
        self._policy = policy
        self._untrusted = untrusted or _never
        self._find_sets = find_sets
        self._decider = Decider(policy)
        self.env: dict[str, str] = {}
        self.empty: frozenset[str] = frozenset()
        """Named sets that stand for no host here."""

    def speaks_of(self, kind: str) -> bool:
        """True if any rule concerns this kind of action."""
        return any(action.startswith(kind) for action in actions(self._policy))

    async def prepare(self) -> None:
        """Resolve the host sets that the policy names."""
        names = set_names(self._policy)
        if names and self._find_sets is not None:
            sets, self.env = await self._find_sets(names)
            self._decider = Decider(self._policy, sets)
            self.empty = frozenset(name for name in names if not sets.get(name))

    def decide(self, action: Action) -> Decision:
        return self._decider.decide(action, untrusted=self._untrusted())


def _never() -> bool:
    return False


class Outfit:
    """A proxy and its setup inside the sandbox. It serves one sandbox and its forks, or all manual sandboxes."""

    def __init__(self, door: Door, judge: Judge, *, credentials: bool = False) -> None:
        self._door = door
        self._judge = judge
        self._reads_along = credentials or judge.speaks_of("request:")
        self._reaches = self._reads_along or judge.speaks_of("connect:")

    @property
    def empty_sets(self) -> frozenset[str]:
        """The named sets of the policy that stand for no host here; known after `env`."""
        return self._judge.empty

    @property
    def authority(self) -> bytes:
        """The CA certificate that programs inside trust where the proxy terminates TLS."""
        return self._door.authority.pem

    async def serve(self, sandbox: SandboxId, client: ByteStream) -> None:
        """Serve the connections of a sandbox."""
        await self._door.serve(sandbox, client)

    async def env(self) -> dict[str, str]:
        """Environment variables for the sandbox."""
        await self._judge.prepare()
        trust = dict.fromkeys(_VARIABLES, STORE) if self._reaches else {}
        return {**trust, **self._judge.env, **await self._door.stand_ins()}

    async def put_on(self, computer: Computer) -> None:
        """Install this machine's CA certificates in the sandbox, plus the proxy's own where it terminates TLS.

        An image without the few programs that this takes stays as it is; TLS to what it does not know then fails.
        """
        if not self._reaches:
            return
        pem = await anyio.to_thread.run_sync(_own_store)
        if self._reads_along:
            pem += self.authority
        if pem:
            block = b"\n# cloister: begin\n" + pem + b"\n# cloister: end\n"
            command = Command(("/bin/sh", "-c", _SCRIPT), cwd="/", user="root", seconds=_SECONDS)
            with suppress(UserError):  # no shell
                await computer.run(command, block)


def _own_store() -> bytes:
    """CA certificates of this machine, as its TLS library finds them."""
    place = ssl.get_default_verify_paths().cafile
    try:
        return Path(place).read_bytes()[:_STORE_BYTES] if place else b""
    except OSError:
        return b""


class Through(Host):
    """A host that gives each of its sandboxes a proxy."""

    def __init__(self, host: Host, outfit: Outfit) -> None:
        self._host = host
        self._outfit = outfit

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: DoorCall | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. A `door` takes the place of the proxy."""
        if door is not None:
            async with self._host.open(spec, door) as sandbox:
                yield sandbox
            return
        env = {**await self._outfit.env(), **spec.env}
        async with self._host.open(msgspec.structs.replace(spec, env=env), self._outfit.serve) as sandbox:
            await self._outfit.put_on(sandbox)
            yield sandbox

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return await self._host.snapshots()

    async def delete_snapshot(self, reference: str) -> None:
        await self._host.delete_snapshot(reference)

    async def prepare(self, template: str, report: Report) -> None:
        await self._host.prepare(template, report)

    async def sweep(self) -> int:
        return await self._host.sweep()


# Create proxies from this machine's configuration and the rules of one sandbox.


@dataclass(frozen=True, slots=True)
class Doorway:
    """Creates the proxies of this machine."""

    bounds: DoorBounds = field(default_factory=DoorBounds)
    credentials: tuple[Credential, ...] = ()
    vault: Vault = field(default_factory=lambda: Vault({}))
    find_sets: FindSets | None = None
    outside: Outside = field(default_factory=Outside)

    def outfit(
        self,
        policy: Policy,
        record: Record,
        repository: Repository | None = None,
        inside: Mapping[str, Handler] | None = None,
        untrusted: Callable[[], bool] | None = None,
    ) -> Outfit:
        """Create a proxy and its sandbox setup. Git inside may fetch from `repository` and push one branch to it.

        That takes a credential for its host: without one, a repository is a host like any other. `untrusted` says
        whether text from outside was read by now, after which what is of high impact does not pass.
        """
        if repository is not None and not self._knows(repository):
            repository = None
        if repository is not None:
            # Next to the built-in rules: no layer has to delegate it, and every layer can deny it.
            policy = (*policy[:1], _own_repository(repository), *policy[1:])
        judge = Judge(policy, self.find_sets, untrusted)
        offer = Offer(Keeper(self.credentials, self.vault), repository, inside or {})
        door = Door(judge.decide, record, outside=self.outside, bounds=self.bounds, offer=offer)
        return Outfit(door, judge, credentials=bool(self.credentials))

    def _knows(self, repository: Repository) -> bool:
        where = (repository.host, repository.port)
        return any((one.host, one.port) == where for one in self.credentials)


def _own_repository(repository: Repository) -> Layer:
    source = "the run's own repository"
    opened = (*repository.patterns, f"push:{repository.ref}")
    return Layer("repository", tuple(Rule(action, "allow", source) for action in opened), may_widen=True)
