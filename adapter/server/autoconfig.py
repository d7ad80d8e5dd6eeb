"""Autoconfiguration of mail clients: Thunderbird's XML, Apple's profile, and DNS records.

Invariant: addresses, domains and host names are escaped as data of the output format.
"""

from __future__ import annotations

import plistlib
import uuid
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any, Literal

from adapter.config.schema import Settings
from adapter.net import endpoints
from adapter.store import names
from protocol.errors import MailError, Reason
from protocol.idna import to_ascii

Protocol = Literal["imap", "smtp"]
Security = Literal["tls", "starttls", "none"]

#: In the order clients should prefer them (RFC 8314 section 3).
_KINDS: dict[str, tuple[Protocol, bool, int]] = {
    "imaps": ("imap", True, 993),
    "imap": ("imap", False, 143),
    "submissions": ("smtp", True, 465),
    "submission": ("smtp", False, 587),
}
_SOCKET_TYPES: dict[Security, str] = {"tls": "SSL", "starttls": "STARTTLS", "none": "plain"}
_TTL_SECONDS = 3600
#: Published as not offered (RFC 6186 section 3.4).
_NOT_OFFERED = ("pop3", "pop3s")


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to reach the server."""

    kind: str
    protocol: Protocol
    security: Security
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClientSetup:
    """The settings of a mail client for one address."""

    address: str
    offers: tuple[Offer, ...]  # the preferred one first

    @property
    def domain(self) -> str:
        return _ascii(self.address.rpartition("@")[2])

    def first(self, protocol: Protocol) -> Offer:
        return next(offer for offer in self.offers if offer.protocol == protocol)


def client_setup(address: str, settings: Settings, host: str) -> ClientSetup:
    """Return the settings for an address: the configured listeners, or the standard ports. Raises MailError."""
    offers = []
    for kind, (protocol, implicit, standard_port) in _KINDS.items():
        ports = [endpoints.parse(kind, text).port or standard_port for text in getattr(settings.listen, kind)]
        security: Security = "tls" if implicit else "starttls" if settings.tls.certificate else "none"
        offers += [Offer(kind, protocol, security, _ascii(host), port) for port in dict.fromkeys(ports)]
    for protocol in ("imap", "smtp"):
        if not any(offer.protocol == protocol for offer in offers):
            kind, (_, _, standard_port) = next(item for item in _KINDS.items() if item[1][0] == protocol)
            offers.append(Offer(kind, protocol, "tls", _ascii(host), standard_port))
    return ClientSetup(names.normalise_address(address), tuple(offers))


def thunderbird(setup: ClientSetup) -> str:
    """Render Thunderbird's autoconfiguration, which is the same for all addresses of a domain."""
    root = ET.Element("clientConfig", version="1.1")
    provider = ET.SubElement(root, "emailProvider", id=setup.domain)
    for tag in ("domain", "displayName", "displayShortName"):
        ET.SubElement(provider, tag).text = setup.domain
    for protocol, tag in (("imap", "incomingServer"), ("smtp", "outgoingServer")):
        for offer in setup.offers:
            if offer.protocol != protocol:
                continue
            server = ET.SubElement(provider, tag, type=protocol)
            ET.SubElement(server, "hostname").text = offer.host
            ET.SubElement(server, "port").text = str(offer.port)
            ET.SubElement(server, "socketType").text = _SOCKET_TYPES[offer.security]
            ET.SubElement(server, "username").text = "%EMAILADDRESS%"
            ET.SubElement(server, "authentication").text = "password-cleartext"
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def apple(setup: ClientSetup) -> str:
    """Render a configuration profile (.mobileconfig); an account always has the same identifiers, to be replaceable."""
    imap, smtp = setup.first("imap"), setup.first("smtp")
    identifier = f"{imap.host}.{setup.address}"
    account: dict[str, Any] = {
        **_payload("com.apple.mail.managed", f"{identifier}.mail", setup.address),
        "EmailAccountType": "EmailTypeIMAP",
        "EmailAccountDescription": setup.address,
        "EmailAddress": setup.address,
        "OutgoingPasswordSameAsIncomingPassword": True,
    }
    for way, offer in (("Incoming", imap), ("Outgoing", smtp)):
        account |= {
            f"{way}MailServerAuthentication": "EmailAuthPassword",
            f"{way}MailServerHostName": offer.host,
            f"{way}MailServerPortNumber": offer.port,
            f"{way}MailServerUseSSL": offer.security != "none",
            f"{way}MailServerUsername": setup.address,
        }
    profile = {
        **_payload("Configuration", identifier, f"Mail for {setup.address}"),
        "PayloadContent": [account],
        "PayloadRemovalDisallowed": False,
    }
    return plistlib.dumps(profile).decode()


def records(setup: ClientSetup) -> str:
    """Render SRV records as a zone file (RFC 6186, RFC 8314 section 5.1)."""
    lines = []
    for kind in _KINDS:
        published = [offer for offer in setup.offers if offer.kind == kind and offer.security != "none"]
        for offer in published[:1]:
            # Implicit TLS is preferred: clients try the lower priority first (RFC 8314 section 3).
            priority = 0 if offer.security == "tls" else 10
            lines.append(_record(kind, setup.domain, f"{priority} 1 {offer.port} {offer.host.rstrip('.')}."))
        if not published:
            lines.append(_record(kind, setup.domain, "0 0 0 ."))
    lines += [_record(kind, setup.domain, "0 0 0 .") for kind in _NOT_OFFERED]
    return "".join(f"{line}\n" for line in lines)


def _record(kind: str, domain: str, data: str) -> str:
    return f"_{kind}._tcp.{domain}. {_TTL_SECONDS} IN SRV {data}"


def _payload(kind: str, identifier: str, display_name: str) -> dict[str, Any]:
    return {
        "PayloadType": kind,
        "PayloadVersion": 1,
        "PayloadIdentifier": identifier,
        "PayloadUUID": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind} {identifier}")).upper(),
        "PayloadDisplayName": display_name,
    }


def _ascii(domain: str) -> str:
    """Convert a domain to its DNS form. Raises MailError."""
    try:
        spelled = to_ascii(domain)
    except UnicodeError:
        spelled = ""
    if not spelled or any(not (character.isalnum() or character in ".-_") for character in spelled):
        raise MailError(Reason.BAD_ADDRESS, f"{domain!r} is not a valid DNS name")
    return spelled
