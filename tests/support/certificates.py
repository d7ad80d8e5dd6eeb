"""Certificates for tests: self-signed ones, and ones issued by a test authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from adapter.config.schema import Tls

_PEM = serialization.Encoding.PEM
_VALID_DAYS = 30


def make_certificate(directory: Path, name: str = "mail.example.test", *, local: bool = True) -> Tls:
    """Write a self-signed certificate for ``name``, and with ``local`` for localhost and 127.0.0.1."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    private = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    if local:
        names += [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = _builder(name, name, private).add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate.write_bytes(signed.sign(private, hashes.SHA256()).public_bytes(_PEM))
    key.write_bytes(_pem(private))
    key.chmod(0o600)
    return Tls(certificate=str(certificate), key=str(key))


def make_signed(directory: Path, name: str = "client.example.test") -> tuple[Path, Path]:
    """Write the certificate of a new authority, and a file with a certificate it issued and that one's key."""
    directory.mkdir(exist_ok=True)
    authority, signed = directory / "authority.pem", directory / "signed.pem"
    issuer, issuer_key, key = "An authority", *(ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = x509.BasicConstraints(ca=True, path_length=None)
    root = _builder(issuer, issuer, issuer_key).add_extension(ca, critical=True)
    leaf = _builder(name, issuer, key)
    authority.write_bytes(root.sign(issuer_key, hashes.SHA256()).public_bytes(_PEM))
    signed.write_bytes(leaf.sign(issuer_key, hashes.SHA256()).public_bytes(_PEM) + _pem(key))
    return authority, signed


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
