"""What a cluster is begun with, and what a machine joins it with: keys, certificates, and the files of the NATS servers."""

import datetime
import os
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloister.app.settings import MachineRole
from cloister.core.addresses import is_address
from cloister.core.errors import HostError, UserError
from cloister.log.audit.keys import KEY_FILE, HostKey
from cloister.log.jetstream import identity
from cloister.log.jetstream.identity import Credentials, Key

YEARS = 10
"""How long the certificates of a cluster last."""

FOLDER = "cluster"
_BEGUN = "cluster.json"
_CREDENTIALS, _CA = "machine.json", "ca.crt"
PORT, ROUTES_PORT = 4_222, 6_222


class Begun(msgspec.Struct, frozen=True):
    """What `cluster init` keeps: who holds this file can let machines in."""

    name: str
    servers: tuple[str, ...]
    replicas: int
    account: str
    """The key that signs machines."""


class Trust(NamedTuple):
    """What a NATS server knows before anyone connects, as certificates."""

    operator: str
    system: str
    """The public key of the account that NATS uses for itself."""
    accounts: dict[str, str]
    """Public key → certificate."""


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new machine needs, in one file."""

    name: str
    servers: tuple[str, ...]
    replicas: int
    machine: str
    role: MachineRole
    credentials: Credentials
    ca: str
    audit_key: str


def begin(data_dir: Path, hosts: Sequence[str], name: str) -> Path:
    """Make the keys of a cluster and the files of its NATS servers; return the folder with them.

    Raises `UserError` (`cluster_begun`, `bad_cluster`).
    """
    folder = data_dir / FOLDER
    if (folder / _BEGUN).exists():
        raise UserError(
            "cluster_begun",
            f"{folder} has the keys of a cluster already: let machines in with `cloister cluster invite`.",
        )
    if len(hosts) not in (1, 3, 5) or len(set(hosts)) != len(hosts):
        raise UserError("bad_cluster", "A cluster has 1, 3 or 5 NATS servers: name the host of each.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    root, system, own = Key.make("operator"), Key.make("account"), Key.make("account")
    accounts = {
        system.public: identity.account(root, system.public, "system", stores=False),
        own.public: identity.account(root, own.public, name, stores=True),
    }
    trust = Trust(identity.operator(root, name), system.public, accounts)
    ca_key, ca = _authority(name)
    _write(folder / _CA, _pem(ca), 0o644)
    for number, host in enumerate(hosts, start=1):
        there = folder / f"nats-{number}"
        there.mkdir(mode=0o700, exist_ok=True)
        key, certificate = _server(ca_key, ca, host)
        _write(there / "server.crt", _pem(certificate), 0o644)
        _write(there / "server.key", key, 0o600)
        _write(there / _CA, _pem(ca), 0o644)
        _write(there / "nats.conf", _config(name, number, hosts, trust).encode(), 0o600)
    servers = tuple(f"tls://{_bracketed(host)}:{PORT}" for host in hosts)
    begun = Begun(name, servers, len(hosts), own.seed)
    _write(folder / _BEGUN, msgspec.json.encode(begun), 0o600)
    HostKey(data_dir / KEY_FILE).public()  # makes it
    return folder


def invite(data_dir: Path, machine: str, role: MachineRole) -> Invitation:
    """Make the credentials of a machine. Raises `UserError` (`no_cluster`)."""
    folder = data_dir / FOLDER
    try:
        begun = msgspec.json.decode((folder / _BEGUN).read_bytes(), type=Begun)
        ca = (folder / _CA).read_text(encoding="ascii")
        audit_key = (data_dir / KEY_FILE).read_text(encoding="ascii")
    except (OSError, msgspec.MsgspecError):
        raise UserError(
            "no_cluster",
            f"{data_dir} has begun no cluster: invite machines where `cloister cluster init` was used.",
        ) from None
    key = Key.make("user")
    jwt = identity.user(Key.read(begun.account), key.public, begun.name, machine, role)
    credentials = Credentials(jwt, key.seed)
    return Invitation(begun.name, begun.servers, begun.replicas, machine, role, credentials, ca, audit_key)


def join(data_dir: Path, config: Path, path: Path) -> Invitation:
    """Take the invitation at `path`: write the credentials below the data directory, and the table `[cluster]`.

    Raises `UserError` (`bad_invitation`, `in_a_cluster`), `HostError` (`other_key`).
    """
    try:
        given = msgspec.json.decode(path.read_bytes(), type=Invitation)
    except (OSError, msgspec.MsgspecError):
        raise UserError(
            "bad_invitation", f"{path} is no invitation: make one with `cloister cluster invite NAME`."
        ) from None
    text = config.read_text(encoding="utf-8") if config.exists() else ""
    if any(line.strip() == "[cluster]" for line in text.splitlines()):
        raise UserError(
            "in_a_cluster", f"{config} has a table [cluster] already: remove it to join another one."
        )
    key = data_dir / KEY_FILE
    if key.exists() and key.read_text(encoding="ascii") != given.audit_key:
        raise HostError("other_key", f"{key} is not that of the cluster: join with an empty data directory.")
    folder = data_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(key, given.audit_key.encode(), 0o600)
    _write(folder / _CREDENTIALS, msgspec.json.encode(given.credentials), 0o600)
    _write(folder / _CA, given.ca.encode(), 0o644)
    servers = ", ".join(f'"{server}"' for server in given.servers)
    table = (
        f'\n[cluster]\nservers = [{servers}]\nname = "{given.name}"\nmachine = "{given.machine}"\n'
        f'role = "{given.role}"\nreplicas = {given.replicas}\n'
        f'credentials = "{folder / _CREDENTIALS}"\nca = "{folder / _CA}"\n'
    )
    config.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(config, (text + table).encode(), 0o600)
    return given


def _config(name: str, number: int, hosts: Sequence[str], trust: Trust) -> str:
    """The file of one NATS server; its paths are relative to the directory that it is started in."""
    preload = "\n".join(f"  {public}: {jwt}" for public, jwt in trust.accounts.items())
    tls = 'tls {{ cert_file: "server.crt", key_file: "server.key", ca_file: "ca.crt"{} }}'
    routes = ", ".join(f"nats://{_bracketed(host)}:{ROUTES_PORT}" for host in hosts)
    cluster = (
        f"cluster {{\n  name: {name}\n  listen: 0.0.0.0:{ROUTES_PORT}\n  routes: [{routes}]\n"
        f"  {tls.format(', verify: true')}\n}}\n"
        if len(hosts) > 1
        else ""
    )
    return (
        f"server_name: {name}-{number}\nlisten: 0.0.0.0:{PORT}\n{tls.format('')}\n"
        # With one server nothing but its own disk has what it acknowledged.
        f'jetstream {{ store_dir: "jetstream"{", sync_interval: always" if len(hosts) == 1 else ""} }}\n'
        f"{cluster}operator: {trust.operator}\nsystem_account: {trust.system}\n"
        f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace the file as a whole."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _begun(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Cloister cluster {name}")])
    made = (
        _begun(own, own, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, made


def _server(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, host: str
) -> tuple[bytes, x509.Certificate]:
    """The key and the certificate of one NATS server, for machines and for the other servers."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.IPAddress(ip_address(host)) if is_address(host) else x509.DNSName(host)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    made = (
        _begun(subject, ca.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, made
