"""Check certificates: validity, names, key and chain."""

from __future__ import annotations

import datetime
import itertools
import socket
from collections.abc import Iterator

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

from adapter.config.schema import Settings
from adapter.doctor import ports
from adapter.doctor.findings import Finding, bad, ok, warn
from adapter.net import networks

_EXPIRES_SOON = datetime.timedelta(days=14)
_MIN_RSA_BITS = 2048


def certificates(settings: Settings) -> Iterator[Finding]:
    tls = settings.tls
    if not tls.certificate:
        yield from _without_certificate(settings)
        return
    hostname = settings.server.hostname or socket.getfqdn()
    yield from _pair(tls.certificate, tls.key, hostname)
    for name, pair in tls.names.items():
        yield from _pair(pair.certificate, pair.key, name)


def _without_certificate(settings: Settings) -> Iterator[Finding]:
    endpoints = ports.configured_endpoints(settings, ("imap", "submission", "smtp"))
    if any(not endpoint.path and not networks.is_loopback(endpoint.host) for endpoint in endpoints):
        yield warn(
            "certificate",
            "none, but not only loopback is served",
            "set certificate and key in [tls]",
        )


def _pair(certificate: str, key: str, name: str) -> Iterator[Finding]:
    check = f"certificate {certificate}"
    try:
        with open(certificate, "rb") as file:
            chain = x509.load_pem_x509_certificates(file.read())
        with open(key or certificate, "rb") as file:
            private = load_pem_private_key(file.read(), None)
    except OSError as error:
        yield bad(check, f"{error.filename}: {error.strerror}", "make it readable for the user that runs markpost")
        return
    except (ValueError, TypeError) as error:
        yield bad(
            check, f"not a PEM certificate with its key: {error}", "set certificate and key in [tls] to PEM files"
        )
        return
    leaf = chain[0]
    problems = [*_validity(check, leaf), *_key(check, leaf, private), *_names(check, leaf, name), *_chain(check, chain)]
    yield from problems
    if not problems:
        days = (leaf.not_valid_after_utc - _now()).days
        yield ok(check, f"valid for {days} days, for {', '.join(_dns_names(leaf))}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _validity(check: str, leaf: x509.Certificate) -> Iterator[Finding]:
    renew = "renew it; the new one is loaded without a restart"
    if leaf.not_valid_before_utc > _now():
        yield bad(check, f"not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC", "set the clock, or wait")
    if leaf.not_valid_after_utc <= _now():
        yield bad(check, f"expired on {leaf.not_valid_after_utc:%Y-%m-%d}", renew)
    elif leaf.not_valid_after_utc - _now() < _EXPIRES_SOON:
        yield warn(check, f"expires on {leaf.not_valid_after_utc:%Y-%m-%d}", renew)


def _key(check: str, leaf: x509.Certificate, private: object) -> Iterator[Finding]:
    public = private.public_key()  # type: ignore[attr-defined]
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if leaf.public_key().public_bytes(*form) != public.public_bytes(*form):
        yield bad(check, "the key belongs to another certificate", "set key in [tls] to the key of this certificate")
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < _MIN_RSA_BITS:
        yield warn(check, f"an RSA key of {public.key_size} bits is weak", "create one of 2048 bits, or an ECDSA key")


def _names(check: str, leaf: x509.Certificate, hostname: str) -> Iterator[Finding]:
    names = _dns_names(leaf)
    hostname = hostname.lower().rstrip(".")
    wildcard = "*." + hostname.partition(".")[2]
    if hostname not in names and wildcard not in names:
        yield warn(
            check,
            f"not for {hostname} but for {', '.join(names) or 'no name at all'}",
            "get a certificate for the name that clients use, or set [server] hostname",
        )


def _dns_names(leaf: x509.Certificate) -> list[str]:
    try:
        extension = leaf.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return []
    assert isinstance(extension, x509.SubjectAlternativeName)  # noqa: S101 - implied by the OID
    return [name.lower() for name in extension.get_values_for_type(x509.DNSName)]


def _chain(check: str, chain: list[x509.Certificate]) -> Iterator[Finding]:
    if len(chain) == 1 and chain[0].issuer != chain[0].subject:
        yield warn(
            check,
            "the certificate of its issuer is not in the file, and many clients do not fetch it",
            "use the full chain (fullchain.pem)",
        )
    if any(lower.issuer != upper.subject for lower, upper in itertools.pairwise(chain)):
        yield bad(check, "the certificates are not in chain order", "put the server's first, then its issuer's")
