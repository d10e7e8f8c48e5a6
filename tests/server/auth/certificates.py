"""An authority of a test's own, and certificates that it signs."""

import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Files(NamedTuple):
    """Paths of a certificate, its key, and the authority's certificate."""

    cert: Path
    key: Path
    ca: Path


def certificates(folder: Path, *names: str) -> Files:
    """Make an authority, and a certificate for the names and addresses, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
    leaf = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(subject == root, None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        )

    other = x509.SubjectAlternativeName([_name(one) for one in names])
    made = Files(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    authority = builder(root, ca_key.public_key()).sign(ca_key, hashes.SHA256())
    signed = builder(leaf, key.public_key()).add_extension(other, False).sign(ca_key, hashes.SHA256())
    made.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)
