"""Certificates: whether they are valid, for how long, for which names, and whether key and chain belong to them."""

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

_SOON = datetime.timedelta(days=14)
_SHORTEST = 2048  # bits of an RSA key, at least


def certificates(settings: Settings) -> Iterator[Finding]:
    tls = settings.tls
    if not tls.certificate:
        yield from _without(settings)
        return
    hostname = settings.server.hostname or socket.getfqdn()
    yield from _pair(tls.certificate, tls.key, hostname)
    for name, pair in tls.names.items():
        yield from _pair(pair.certificate, pair.key, name)


def _without(settings: Settings) -> Iterator[Finding]:
    places = ports.listed(settings, ("imap", "submission", "smtp"))
    if any(not place.path and not networks.is_loopback(place.host) for place in places):
        yield warn("certificate", "there is none, and not only loopback is served", "set certificate and key in [tls]")


def _pair(certificate: str, key: str, name: str) -> Iterator[Finding]:
    what = f"certificate {certificate}"
    try:
        with open(certificate, "rb") as file:
            chain = x509.load_pem_x509_certificates(file.read())
        with open(key or certificate, "rb") as file:
            private = load_pem_private_key(file.read(), None)
    except OSError as error:
        yield bad(what, f"{error.filename}: {error.strerror}", "let the user that markpost runs as read it")
        return
    except (ValueError, TypeError) as error:
        yield bad(what, f"not a PEM certificate with its key: {error}", "set certificate and key in [tls] to PEM files")
        return
    leaf = chain[0]
    problems = [*_validity(what, leaf), *_key(what, leaf, private), *_names(what, leaf, name), *_chain(what, chain)]
    yield from problems
    if not problems:
        days = (leaf.not_valid_after_utc - _now()).days
        yield ok(what, f"valid for {days} days, for {', '.join(_dns_names(leaf))}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _validity(what: str, leaf: x509.Certificate) -> Iterator[Finding]:
    renew = "renew it; the new one is read without a restart"
    if leaf.not_valid_before_utc > _now():
        yield bad(what, f"not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC", "set the clock, or wait")
    if leaf.not_valid_after_utc <= _now():
        yield bad(what, f"expired on {leaf.not_valid_after_utc:%Y-%m-%d}", renew)
    elif leaf.not_valid_after_utc - _now() < _SOON:
        yield warn(what, f"expires on {leaf.not_valid_after_utc:%Y-%m-%d}", renew)


def _key(what: str, leaf: x509.Certificate, private: object) -> Iterator[Finding]:
    public = private.public_key()  # type: ignore[attr-defined]
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if leaf.public_key().public_bytes(*form) != public.public_bytes(*form):
        yield bad(what, "the key belongs to another certificate", "set key in [tls] to the key it was made for")
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < _SHORTEST:
        yield warn(what, f"an RSA key of {public.key_size} bits is weak", "make a new one of 2048 bits, or ECDSA")


def _names(what: str, leaf: x509.Certificate, wanted: str) -> Iterator[Finding]:
    names = _dns_names(leaf)
    wanted = wanted.lower().rstrip(".")
    above = "*." + wanted.partition(".")[2]
    if wanted not in names and above not in names:
        yield warn(
            what,
            f"not for {wanted} but for {', '.join(names) or 'no name at all'}",
            "get one for the name that clients are told, or set [server] hostname",
        )


def _dns_names(leaf: x509.Certificate) -> list[str]:
    try:
        extension = leaf.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return []
    assert isinstance(extension, x509.SubjectAlternativeName)  # noqa: S101 - that is what the OID means
    return [name.lower() for name in extension.get_values_for_type(x509.DNSName)]


def _chain(what: str, chain: list[x509.Certificate]) -> Iterator[Finding]:
    if len(chain) == 1 and chain[0].issuer != chain[0].subject:
        yield warn(
            what,
            "the certificate of its issuer is not in the file, and many clients do not look for it",
            "use the full chain (fullchain.pem)",
        )
    if any(lower.issuer != upper.subject for lower, upper in itertools.pairwise(chain)):
        yield bad(what, "the certificates in it do not follow one another", "put the server's first, then its issuer's")
