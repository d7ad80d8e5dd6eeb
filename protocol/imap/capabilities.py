"""The table of capabilities: when each is offered (RFC 3501 6.1.1), and what ENABLE changes (RFC 5161).

``RFC-STATUS.md`` is the output of :func:`rfc_status`; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from protocol.imap.commands.fetch_items import Attribute
from protocol.imap.commands.model import Command, Enable, Fetch, Search, Select, Sort, Status, StatusItem, Store, Thread
from protocol.imap.wire.lexer import Dialect


@dataclass(frozen=True, slots=True)
class Situation:
    """The properties of a connection and the settings that decide which capabilities are offered."""

    logged_in: bool = False
    tls: bool = False  #: the connection is encrypted
    starttls: bool = True  #: the server has a certificate
    plaintext: bool = False  #: passwords are allowed without TLS
    plain: bool = True
    login: bool = True
    scram: bool = True
    oauth: bool = False
    quota: bool = False
    compress: bool = True
    literal_plus: bool = True
    unauthenticate: bool = False
    append_limit: int | None = None
    message_limit: int | None = None

    @property
    def passwords(self) -> bool:
        """A password may be sent in plain text."""
        return self.tls or self.plaintext


class Offer(NamedTuple):
    """The condition under which a capability is offered, in words and as a predicate."""

    words: str
    holds: Callable[[Situation], bool]


class Capability(NamedTuple):
    name: str
    rfc: str
    offer: Offer
    what: str
    enables: tuple[str, ...] = ()  #: fields of Dialect that ENABLE sets


_ALWAYS: Final = Offer("always", lambda s: True)
_LOGGED_IN: Final = Offer("after login", lambda s: s.logged_in)
_PLAIN: Final = Offer("before login, under TLS or where allowed", lambda s: not s.logged_in and s.passwords and s.plain)
_LOGIN: Final = Offer("before login, under TLS or where allowed", lambda s: not s.logged_in and s.passwords and s.login)
_SCRAM: Final = Offer("before login, where configured", lambda s: not s.logged_in and s.scram)
_OAUTH: Final = Offer(
    "before login, under TLS or where allowed, where configured",
    lambda s: not s.logged_in and s.passwords and s.oauth,
)
_QUOTA: Final = Offer("after login, where configured", lambda s: s.logged_in and s.quota)
_NEVER: Final = Offer("not yet", lambda s: False)

CAPABILITIES: Final = (
    Capability("IMAP4rev1", "3501", _ALWAYS, "the base protocol"),
    Capability("IMAP4rev2", "9051", _ALWAYS, "the base protocol, revised", ("rev2", "utf8")),
    Capability(
        "STARTTLS",
        "3501 6.2.1",
        Offer("before login, without TLS", lambda s: not s.logged_in and not s.tls and s.starttls),
        "encryption on the plain port",
    ),
    Capability(
        "LOGINDISABLED",
        "3501 6.2.3",
        Offer("before login, where passwords need TLS first", lambda s: not s.logged_in and not s.passwords),
        "no LOGIN now",
    ),
    Capability("AUTH=PLAIN", "4616", _PLAIN, "SASL PLAIN"),
    Capability("AUTH=LOGIN", "draft-murchison-sasl-login", _LOGIN, "SASL LOGIN, for Outlook"),
    Capability("AUTH=SCRAM-SHA-256", "7677", _SCRAM, "SASL SCRAM"),
    Capability("AUTH=OAUTHBEARER", "7628", _OAUTH, "SASL with bearer tokens"),
    Capability("AUTH=XOAUTH2", "none", _OAUTH, "SASL with bearer tokens, the older form"),
    Capability("SASL-IR", "4959", _ALWAYS, "initial response in AUTHENTICATE"),
    Capability(
        "LITERAL+",
        "7888",
        Offer("always, unless LITERAL- is configured", lambda s: s.literal_plus),
        "literals without waiting",
    ),
    Capability(
        "LITERAL-",
        "7888",
        Offer("where configured", lambda s: not s.literal_plus),
        "literals without waiting, up to 4096",
    ),
    Capability("ID", "2971", _ALWAYS, "identification of client and server"),
    Capability("ENABLE", "5161", _ALWAYS, "extensions that change responses"),
    Capability("IDLE", "2177", _LOGGED_IN, "changes as they happen"),
    Capability("NAMESPACE", "2342", _LOGGED_IN, "where mailboxes live"),
    Capability("UNSELECT", "3691", _LOGGED_IN, "leave a mailbox without EXPUNGE"),
    Capability("CHILDREN", "3348", _LOGGED_IN, "\\HasChildren, \\HasNoChildren"),
    Capability("UIDPLUS", "4315", _LOGGED_IN, "APPENDUID, COPYUID, UID EXPUNGE"),
    Capability("MOVE", "6851", _LOGGED_IN, "MOVE, UID MOVE"),
    Capability("MULTIAPPEND", "3502", _LOGGED_IN, "many messages in one APPEND"),
    Capability(
        "APPENDLIMIT={append_limit}",
        "7889",
        Offer("after login, where configured", lambda s: s.logged_in and s.append_limit is not None),
        "the largest message",
    ),
    Capability("BINARY", "3516", _LOGGED_IN, "decoded parts, binary literals"),
    Capability("ESEARCH", "4731", _LOGGED_IN, "SEARCH RETURN"),
    Capability("ESORT", "5267", _LOGGED_IN, "SORT RETURN"),
    Capability("SEARCHRES", "5182", _LOGGED_IN, "$, the saved search result"),
    Capability("WITHIN", "5032", _LOGGED_IN, "OLDER, YOUNGER"),
    Capability("SORT", "5256", _LOGGED_IN, "SORT, UID SORT"),
    Capability("SORT=DISPLAY", "5957", _LOGGED_IN, "sort by displayed name"),
    Capability("THREAD=REFERENCES", "5256", _LOGGED_IN, "THREAD by references"),
    Capability("THREAD=ORDEREDSUBJECT", "5256", _LOGGED_IN, "THREAD by subject"),
    Capability("CONDSTORE", "7162", _LOGGED_IN, "mod-sequences", ("condstore",)),
    Capability("QRESYNC", "7162", _LOGGED_IN, "quick resynchronisation", ("condstore", "qresync")),
    Capability("LIST-EXTENDED", "5258", _LOGGED_IN, "selection and return options of LIST"),
    Capability("LIST-STATUS", "5819", _LOGGED_IN, "STATUS within LIST"),
    Capability("SPECIAL-USE", "6154", _LOGGED_IN, "\\Sent, \\Drafts, \\Trash, \\Junk, \\Archive"),
    Capability("CREATE-SPECIAL-USE", "6154", _LOGGED_IN, "CREATE with USE"),
    Capability("STATUS=SIZE", "8438", _LOGGED_IN, "the size of a mailbox"),
    Capability("OBJECTID", "8474", _LOGGED_IN, "MAILBOXID, EMAILID, THREADID"),
    Capability("SAVEDATE", "8514", _LOGGED_IN, "when a message came to its mailbox"),
    Capability("PREVIEW", "8970", _LOGGED_IN, "the beginning of a message's text"),
    Capability("REPLACE", "8508", _LOGGED_IN, "a new message in place of an old one"),
    Capability("PARTIAL", "9394", _LOGGED_IN, "pages of search and fetch results"),
    Capability("UIDONLY", "9586", _LOGGED_IN, "no message numbers", ("uid_only",)),
    Capability("UTF8=ACCEPT", "6855", _LOGGED_IN, "UTF-8 in strings and mailbox names", ("utf8",)),
    Capability("INPROGRESS", "9585", _LOGGED_IN, "progress of long commands"),
    Capability("QUOTA", "9208", _QUOTA, "quota roots"),
    Capability("QUOTA=RES-STORAGE", "9208", _QUOTA, "limit on octets"),
    Capability("QUOTA=RES-MESSAGE", "9208", _QUOTA, "limit on messages"),
    Capability(
        "COMPRESS=DEFLATE",
        "4978",
        Offer("after login, where configured", lambda s: s.logged_in and s.compress),
        "compression",
    ),
    Capability(
        "MESSAGELIMIT={message_limit}",
        "9738",
        Offer("after login, where configured", lambda s: s.logged_in and s.message_limit is not None),
        "messages per command",
    ),
    Capability(
        "UNAUTHENTICATE",
        "8437",
        Offer("after login, where configured", lambda s: s.logged_in and s.unauthenticate),
        "back to before login",
    ),
    Capability("ACL", "4314", _NEVER, "access control lists"),
    Capability("METADATA", "5464", _NEVER, "annotations"),
    Capability("NOTIFY", "5465", _NEVER, "changes of other mailboxes"),
)

# Extensions that no client was found to use.
_LEFT_OUT: Final = (
    ("CATENATE", "4469", "APPEND from parts of other messages"),
    ("URLAUTH", "4467", "URLs that give others access to a message"),
    ("CONTEXT=SEARCH, CONTEXT=SORT", "5267", "searches that stay up to date"),
    ("UIDBATCHES", "draft-ietf-mailmaint-imap-uidbatches", "UID ranges of equal size"),
    ("SEARCH=FUZZY", "6203", "inexact search"),
)

_BY_NAME: Final = {capability.name.upper(): capability for capability in CAPABILITIES}


# RFC 3501 7.2.1
def offered(situation: Situation) -> tuple[str, ...]:
    """Return the capabilities to announce, in the order of the table."""
    return tuple(
        capability.name.format(append_limit=situation.append_limit, message_limit=situation.message_limit)
        for capability in CAPABILITIES
        if capability.offer.holds(situation)
    )


# RFC 5161 3.1
def enable(names: Iterable[str], dialect: Dialect, situation: Situation) -> tuple[Dialect, tuple[str, ...]]:
    """Return the dialect after ENABLE, and the names to list as enabled. Unknown names are ignored."""
    enabled: list[str] = []
    for name in names:
        capability = _BY_NAME.get(name.upper())
        if capability is not None and capability.enables and capability.offer.holds(situation):
            dialect = replace(dialect, **dict.fromkeys(capability.enables, True))
            enabled.append(capability.name)
    return dialect, tuple(dict.fromkeys(enabled))


# RFC 7162 3.1: the CONDSTORE enabling commands
def enables_condstore(command: Command) -> bool:
    """Return True for a command that shows that the client supports mod-sequences."""
    match command:
        case Fetch():
            return Attribute.MODSEQ in command.items
        case Select():
            return command.condstore or command.qresync is not None
        case Status():
            return StatusItem.HIGHESTMODSEQ in command.items
        case Search() | Sort() | Thread():
            return command.uses_modseq
        case Store():
            return command.unchanged_since is not None
        case Enable():
            return not {"CONDSTORE", "QRESYNC"}.isdisjoint(command.capabilities)
        case _:
            return False


def rfc_status() -> str:
    """Render the table as Markdown."""
    rows = "".join(
        f"| `{c.name}` | {c.rfc} | {c.offer.words} | {'yes' if c.enables else ''} | {c.what} |\n" for c in CAPABILITIES
    )
    left_out = "".join(f"| `{name}` | {rfc} | {what} |\n" for name, rfc, what in _LEFT_OUT)
    return (
        "# IMAP: what is offered, by which RFC, and when\n\n"
        "This file is written from the table in `capabilities.py`; a test keeps the two equal.\n\n"
        f"| Capability | RFC | Offered | ENABLE | What |\n| --- | --- | --- | --- | --- |\n{rows}\n"
        "## Left out\n\n"
        "No client was found that uses these extensions, so they are not offered and not planned. Thunderbird,\n"
        "Roundcube, Evolution, neomutt, aerc, alpine, mbsync, offlineimap, fetchmail, getmail, imapflow and\n"
        "Dovecot's dsync were run.\n\n"
        f"| Capability | RFC | What |\n| --- | --- | --- |\n{left_out}"
    )
