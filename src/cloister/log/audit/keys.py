"""The host's Ed25519 key, which signs the head of the audit. Created on first use, readable by its owner alone."""

import base64
import os
import re
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cloister.core.errors import HostError, UserError

KEY_FILE = "audit.key"
_PUBLIC = re.compile(r"ed25519:[0-9a-f]{64}")
_READ_BYTES = 4_096
_PEM = re.compile(rb"-----BEGIN PRIVATE KEY-----\n([A-Za-z0-9+/=]{64})\n-----END PRIVATE KEY-----\n")
_DER = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the 32 bytes of an Ed25519 key in PKCS #8."""


class HostKey:
    """The private key in one file. Every signature reads it again: it may be replaced while a server runs.

    Every method may raise `HostError` with code `audit_key_exposed`, `audit_key_broken` or `audit_key_failed`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parsed: tuple[bytes, Ed25519PrivateKey] | None = None
        """The file's content, and the key in it: parsing takes longer than signing."""

    def public(self) -> str:
        """Return the public key as text; creates the key if there is none."""
        return _public_text(self._load())

    def found(self) -> str | None:
        """Return the public key as text; None if there is no key."""
        return self.public() if os.path.lexists(self._path) else None

    def sign(self, data: bytes) -> str:
        return self._load().sign(data).hex()

    def draft(self) -> "Draft":
        """Create a new key beside this one, to replace it."""
        path = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Draft(self._path, path, _write_new(path))
        except OSError as error:
            raise _failed(path, error) from None

    def _load(self) -> Ed25519PrivateKey:
        try:
            if not os.path.lexists(self._path):
                draft = self.draft()
                try:
                    os.link(draft.path, self._path)  # atomic, and never replaces an existing key
                except FileExistsError:
                    pass
                finally:
                    draft.drop()
            pem = _read(self._path)
        except OSError as error:
            raise _failed(self._path, error) from None
        if self._parsed is None or self._parsed[0] != pem:
            self._parsed = pem, _parsed(self._path, pem)
        return self._parsed[1]


class Draft:
    """A key that is not in use yet."""

    def __init__(self, target: Path, path: Path, public: str) -> None:
        self._target = target
        self.path = path
        self.public = public

    def take(self) -> None:
        """Replace the current key with this one."""
        self.path.replace(self._target)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


def valid(public: str, signature: str, data: bytes) -> bool:
    """Return whether `signature` is the signature of `public` over `data`."""
    if not _PUBLIC.fullmatch(public):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public.removeprefix("ed25519:")))
        key.verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_public(text: str) -> str:
    """Validate `text` as a public key. Raises `UserError` (`bad_key`)."""
    if not _PUBLIC.fullmatch(text.strip()):
        raise UserError(
            "bad_key",
            "A public key is `ed25519:` and 64 hexadecimal digits, as `cloister audit key` prints it.",
        )
    return text.strip()


def _write_new(path: Path) -> str:
    key = Ed25519PrivateKey.generate()
    der = base64.b64encode(_DER + key.private_bytes_raw())
    pem = b"-----BEGIN PRIVATE KEY-----\n" + der + b"\n-----END PRIVATE KEY-----\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    return _public_text(key)


def _public_text(key: Ed25519PrivateKey) -> str:
    return f"ed25519:{key.public_key().public_bytes_raw().hex()}"


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise HostError("audit_key_exposed", f"{path} is not a file of yours: move it away.")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise HostError(
                "audit_key_exposed",
                f"{path} can be read by others: run `chmod 600 {path}`, then `cloister audit key --rotate`.",
            )
        return file.read(_READ_BYTES)


def _parsed(path: Path, pem: bytes) -> Ed25519PrivateKey:
    usual = _PEM.fullmatch(pem)
    der = base64.b64decode(usual[1]) if usual else b""
    key = Ed25519PrivateKey.from_private_bytes(der[len(_DER) :]) if der.startswith(_DER) else _other(pem)
    if key is None:
        raise HostError(
            "audit_key_broken", f"{path} holds no Ed25519 key: put the right one back, or move it away."
        )
    return key


def _other(pem: bytes) -> Ed25519PrivateKey | None:
    """The key of a file that another program wrote."""
    # These take longer to load than a quick command needs for everything else.
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def _failed(path: Path, error: OSError) -> HostError:
    return HostError("audit_key_failed", f"The audit's key {path} cannot be used: {error.strerror}.")
