"""What mail clients need to know to set themselves up: Thunderbird's XML, Apple's profile, and records for the DNS.

Invariant: every address, domain and host name is data; none can break out of the format it is put into.
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
_TTL = 3600
#: RFC 6186 section 3.4: not offered, and clients need not try.
_NEVER = ("pop3", "pop3s")


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to reach the server."""

    kind: str
    protocol: Protocol
    security: Security
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody who wants to set up a mail client."""

    address: str
    offers: tuple[Offer, ...]  # the preferred first

    @property
    def domain(self) -> str:
        return _ascii(self.address.rpartition("@")[2])

    def first(self, protocol: Protocol) -> Offer:
        return next(offer for offer in self.offers if offer.protocol == protocol)


def client(address: str, settings: Settings, host: str) -> Client:
    """For an address, with what the settings listen on; where that is nothing, with the usual ports.

    Raises MailError for what is no address.
    """
    offers = []
    for kind, (protocol, implicit, usual) in _KINDS.items():
        ports = [endpoints.parse(kind, text).port or usual for text in getattr(settings.listen, kind)]
        security: Security = "tls" if implicit else "starttls" if settings.tls.certificate else "none"
        offers += [Offer(kind, protocol, security, _ascii(host), port) for port in dict.fromkeys(ports)]
    for protocol in ("imap", "smtp"):
        if not any(offer.protocol == protocol for offer in offers):
            kind, (_, _, usual) = next(item for item in _KINDS.items() if item[1][0] == protocol)
            offers.append(Offer(kind, protocol, "tls", _ascii(host), usual))
    return Client(names.normalise_address(address), tuple(offers))


def thunderbird(wanted: Client) -> str:
    """Thunderbird's autoconfiguration, the same for everybody in the domain."""
    root = ET.Element("clientConfig", version="1.1")
    provider = ET.SubElement(root, "emailProvider", id=wanted.domain)
    for tag in ("domain", "displayName", "displayShortName"):
        ET.SubElement(provider, tag).text = wanted.domain
    for protocol, tag in (("imap", "incomingServer"), ("smtp", "outgoingServer")):
        for offer in wanted.offers:
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


def apple(wanted: Client) -> str:
    """A configuration profile (.mobileconfig). The same account makes the same profile: a new one replaces the old."""
    imap, smtp = wanted.first("imap"), wanted.first("smtp")
    identifier = f"{imap.host}.{wanted.address}"
    account: dict[str, Any] = {
        **_payload("com.apple.mail.managed", f"{identifier}.mail", wanted.address),
        "EmailAccountType": "EmailTypeIMAP",
        "EmailAccountDescription": wanted.address,
        "EmailAddress": wanted.address,
        "OutgoingPasswordSameAsIncomingPassword": True,
    }
    for way, offer in (("Incoming", imap), ("Outgoing", smtp)):
        account |= {
            f"{way}MailServerAuthentication": "EmailAuthPassword",
            f"{way}MailServerHostName": offer.host,
            f"{way}MailServerPortNumber": offer.port,
            f"{way}MailServerUseSSL": offer.security != "none",
            f"{way}MailServerUsername": wanted.address,
        }
    profile = {
        **_payload("Configuration", identifier, f"Mail for {wanted.address}"),
        "PayloadContent": [account],
        "PayloadRemovalDisallowed": False,
    }
    return plistlib.dumps(profile).decode()


def records(wanted: Client) -> str:
    """SRV records for the zone of the domain (RFC 6186, RFC 8314 section 5.1), in the form of a zone file."""
    lines = []
    for kind in _KINDS:
        published = [offer for offer in wanted.offers if offer.kind == kind and offer.security != "none"]
        for offer in published[:1]:
            # The lower number is tried first: TLS from the start (RFC 8314 section 3).
            priority = 0 if offer.security == "tls" else 10
            lines.append(_record(kind, wanted.domain, f"{priority} 1 {offer.port} {offer.host.rstrip('.')}."))
        if not published:
            lines.append(_record(kind, wanted.domain, "0 0 0 ."))
    lines += [_record(kind, wanted.domain, "0 0 0 .") for kind in _NEVER]
    return "".join(f"{line}\n" for line in lines)


def _record(kind: str, domain: str, data: str) -> str:
    return f"_{kind}._tcp.{domain}. {_TTL} IN SRV {data}"


def _payload(kind: str, identifier: str, shown: str) -> dict[str, Any]:
    return {
        "PayloadType": kind,
        "PayloadVersion": 1,
        "PayloadIdentifier": identifier,
        "PayloadUUID": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind} {identifier}")).upper(),
        "PayloadDisplayName": shown,
    }


def _ascii(domain: str) -> str:
    """As it stands in the DNS."""
    try:
        spelled = to_ascii(domain)
    except UnicodeError:
        spelled = ""
    if not spelled or any(not (character.isalnum() or character in ".-_") for character in spelled):
        raise MailError(Reason.BAD_ADDRESS, f"{domain!r} cannot stand in the DNS")
    return spelled
