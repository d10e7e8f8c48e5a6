"""Keys and certificates of NATS: who a machine is, and which subjects it may use.

NATS trusts an operator's key, the operator signs accounts, and an account signs its users. A user signs what a server
asks it to sign when it connects, so that no secret travels.
"""

import base64
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cloister.core.errors import UserError

Kind = Literal["operator", "account", "user"]

_PREFIX: dict[Kind, int] = {"operator": 14 << 3, "account": 0, "user": 20 << 3}
_SEED = 18 << 3
_UNLIMITED = -1
_ACCOUNT_LIMITS = (
    *("subs", "data", "payload", "imports", "exports", "conn", "leaf"),
    *("mem_storage", "disk_storage", "streams", "consumer"),
)

STREAMS = ("{}", "KV_{}-leases", "KV_{}-machines", "KV_{}-runs", "OBJ_{}-files")
"""The streams of a cluster, with its name."""


class Credentials(msgspec.Struct, frozen=True):
    """What proves a machine to NATS: its certificate (a JWT) and its key, the seed."""

    jwt: str
    seed: str


class Key:
    """An Ed25519 key with a kind, written as NATS writes it."""

    def __init__(self, kind: Kind, private: Ed25519PrivateKey) -> None:
        self.kind: Kind = kind
        self._private = private

    @classmethod
    def make(cls, kind: Kind) -> "Key":
        return cls(kind, Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, seed: str) -> "Key":
        """Raises `UserError` (`bad_credentials`)."""
        data = _unpacked(seed)
        kinds: dict[int, Kind] = {prefix: kind for kind, prefix in _PREFIX.items()}
        kind = kinds.get((data[0] & 7) << 5 | data[1] >> 3) if len(data) == 34 else None
        if kind is None or data[0] & 0xF8 != _SEED:
            raise _bad()
        return cls(kind, Ed25519PrivateKey.from_private_bytes(data[2:]))

    @property
    def seed(self) -> str:
        prefix = _PREFIX[self.kind]
        head = bytes((_SEED | prefix >> 5, (prefix & 31) << 3))
        return _packed(head + self._private.private_bytes_raw())

    @property
    def public(self) -> str:
        raw = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _packed(bytes((_PREFIX[self.kind],)) + raw)

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def certify(self, subject: str, name: str, claims: Mapping[str, Any]) -> str:
        """A certificate of this key about the public key `subject`."""
        body: dict[str, Any] = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**claims, "version": 2},
        }
        body["jti"] = (
            base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).decode().rstrip("=")
        )
        parts = [_url({"typ": "JWT", "alg": "ed25519-nkey"}), _url(body)]
        signed = ".".join(parts)
        return f"{signed}.{_url64(self.sign(signed.encode()))}"


def operator(key: Key, name: str) -> str:
    return key.certify(key.public, name, {"type": "operator"})


def account(key: Key, subject: str, name: str, *, stores: bool) -> str:
    """The certificate of an account without limits; only one that `stores` may use JetStream."""
    limits: dict[str, Any] = dict.fromkeys(_ACCOUNT_LIMITS, _UNLIMITED) | {"wildcards": True}
    if not stores:
        limits |= {"mem_storage": 0, "disk_storage": 0}
    return key.certify(subject, name, {"type": "account", "limits": limits})


def user(key: Key, subject: str, cluster: str, machine: str, role: str) -> str:
    """The certificate of a machine: it may use the subjects that its role needs, and no others."""
    publish, subscribe = subjects(cluster, machine, role)
    claims: dict[str, Any] = dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)
    claims |= {"type": "user", "pub": {"allow": publish}, "sub": {"allow": subscribe}}
    return key.certify(subject, machine, claims)


def subjects(cluster: str, machine: str, role: str) -> tuple[list[str], list[str]]:
    """What a machine of one role publishes and subscribes to.

    It appends to the log and speaks under its own name only, and can remove no stream.
    """
    streams = [stream.format(cluster) for stream in STREAMS]
    publish = [f"{cluster}.log.{machine}", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.ACK.>", "$JS.FC.>"]
    for stream in streams:
        publish += [f"$JS.API.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE", "MSG.GET")] + [
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
            f"$JS.API.CONSUMER.CREATE.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}.>",
            f"$JS.API.CONSUMER.INFO.{stream}.*",
            f"$JS.API.CONSUMER.DELETE.{stream}.*",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        ]
    publish += [f"$JS.API.STREAM.PURGE.OBJ_{cluster}-files", f"$O.{cluster}-files.>"]
    publish += [f"$KV.{cluster}-{bucket}.>" for bucket in ("leases", "runs")]
    publish += [f"$KV.{cluster}-machines.{machine}"]
    subscribe = [f"{inbox(machine)}.>", f"{cluster}.delta.*.*", f"$KV.{cluster}-leases.>"]
    if role != "api":
        publish += [f"{cluster}.delta.{machine}.*"]
    if role != "worker":
        publish += [f"$KV.{cluster}-machines.drain.*"]
    return publish, subscribe


def inbox(machine: str) -> str:
    """Where NATS answers a machine; no other machine may listen there."""
    return f"_INBOX.{machine}" if machine else "_INBOX"


def read_credentials(path: Path) -> Credentials:
    """Read the file that `cloister cluster join` wrote. Raises `UserError` (`bad_credentials`)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except (OSError, msgspec.MsgspecError):
        raise UserError(
            "bad_credentials",
            f"{path} has no credentials of a cluster: make it with `cloister cluster join FILE`.",
        ) from None


def _bad() -> UserError:
    return UserError("bad_credentials", "The key of this machine is damaged: join the cluster again.")


def _packed(data: bytes) -> str:
    return base64.b32encode(data + _crc(data).to_bytes(2, "little")).decode().rstrip("=")


def _unpacked(text: str) -> bytes:
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        raise _bad() from None
    if len(data) < 3 or _crc(data[:-2]) != int.from_bytes(data[-2:], "little"):
        raise _bad()
    return data[:-2]


def _crc(data: bytes) -> int:
    """CRC-16/XMODEM."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def _url(value: object) -> str:
    return _url64(msgspec.json.encode(value))


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
