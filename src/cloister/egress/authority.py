"""The certificate authority of a sandbox, for the hosts whose TLS the proxy terminates.

Its key lives in this process only and is never written to disk. The module takes long to load: only its first use does.
"""

import datetime
import os
import ssl
from collections import OrderedDict
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloister.core.addresses import is_address

_DAYS = 8
"""Longer than any sandbox lives."""
_LEAVES = 256


class Authority:
    """Issues certificates for any host; only programs inside one sandbox trust it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"Cloister door {os.urandom(4).hex()}")]
        )
        public = self._key.public_key()
        self._certificate = (
            self._begun(self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def pem(self) -> bytes:
        """The CA certificate, PEM-encoded."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """A server context for `host` that offers HTTP/1.1."""
        found = self._contexts.pop(host, None) or self._make(host)
        self._contexts[host] = found
        while len(self._contexts) > _LEAVES:
            self._contexts.popitem(last=False)
        return found

    def _make(self, host: str) -> ssl.SSLContext:
        name = x509.IPAddress(ip_address(host)) if is_address(host) else x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        public = self._leaf_key.public_key()
        leaf = (
            self._begun(subject, public)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _load(context, leaf.public_bytes(serialization.Encoding.PEM) + key)
        return context

    def _begun(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
        )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """OpenSSL loads keys from files only: use a memory file."""
    descriptor = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
