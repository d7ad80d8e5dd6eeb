"""Every setting with its default: one frozen dataclass per section of the TOML file (see :mod:`adapter.config.loader`).

Invariant: a field is here because something reads it. Times are seconds, sizes octets; networks are written as
``192.0.2.0/24``, and ``unix`` stands for peers on a unix socket.
"""

# ruff: noqa: RUF009 - Seconds(…) and Size(…) name types, they make nothing

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapter.config.loader import Seconds, Size

LineEndRule = Literal["reject", "normalise", "keep"]
OverQuota = Literal["later", "refuse"]

#: Listeners for mail: each is a setting of ``[listen]``.
LISTENERS = ("imap", "imaps", "smtp", "submission", "submissions", "lmtp")
#: TLS from the first octet: these need a certificate.
IMPLICIT_TLS_LISTENERS = frozenset({"imaps", "submissions"})
#: The listener of ``[metrics] listen``.
METRICS_LISTENER = "metrics"

#: In ``[hook.NAME] folders``: all folders.
ALL_FOLDERS = "*"


@dataclass(frozen=True, slots=True)
class Server:
    hostname: str = ""  # in greetings and trace headers; empty: the machine's own name
    workers: int = 1  # processes that serve together; more than one are looked after and replaced when they die
    drain: Seconds = Seconds(10.0)  # how long sessions may finish what they do, at the end and for maintenance
    threads: int = 2  # that parse and stage large messages; small ones have one of their own
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # or "debug", "warning", "error"
    log_format: Literal["text", "json"] = "text"  # or "json"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to serve what, as ``host:port`` or the path of a unix socket; flags of the command line replace these."""

    imap: tuple[str, ...] = ()
    imaps: tuple[str, ...] = ()
    smtp: tuple[str, ...] = ()
    submission: tuple[str, ...] = ()
    submissions: tuple[str, ...] = ()
    lmtp: tuple[str, ...] = ()
    backlog: int = 512
    socket_mode: int = 0o660  # of unix sockets


@dataclass(frozen=True, slots=True)
class Metrics:
    """What can be watched: /metrics for Prometheus, /healthz and /readyz."""

    listen: str = ""  # "127.0.0.1:9125"; empty: nowhere


@dataclass(frozen=True, slots=True)
class Certificate:
    certificate: str  # PEM file, the chain included
    key: str


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: str = ""  # PEM file; empty: no TLS
    key: str = ""  # PEM file; empty: in the certificate's file
    names: dict[str, Certificate] = field(default_factory=dict)  # others, by server name (SNI)
    client_ca: str = ""  # PEM file; LMTP peers other than on unix sockets must show a certificate of these authorities
    handshake: Seconds = Seconds(30.0)


@dataclass(frozen=True, slots=True)
class Login:
    mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "PLAIN", "LOGIN")
    allow_plaintext: bool = False  # AUTH without TLS, from anywhere; from loopback it is always allowed
    cache: Seconds = Seconds(60.0)  # a proven password is not hashed again so long
    threads: int = 2  # that hash passwords
    waiting: int = 100  # logins that may wait for them, or be delayed at one address; others are refused for now
    free_failures: int = 3  # of a user at one address, or addresses where a user failed, before logins are delayed
    free_users: int = 10  # that failed at one address, before logins of new users there are delayed
    delay: Seconds = Seconds(1.0)  # the first; each failure doubles it
    longest_delay: Seconds = Seconds(30.0)
    forget: Seconds = Seconds(900.0)  # failures so long ago no longer count
    token_command: tuple[str, ...] = ()  # gets an OAuth token on stdin, prints the address it belongs to
    token_url: str = ""  # or: token introspection (RFC 7662)
    token_timeout: Seconds = Seconds(10.0)


@dataclass(frozen=True, slots=True)
class Dovecot:
    """Users of an existing Dovecot log in as they do there; an account is made when it is first needed."""

    passwd_file: str = ""  # its passwd-file, which is only read
    scheme: str = "CRYPT"  # of passwords in it that do not name theirs
    auth_socket: str = ""  # its auth client socket, which checks passwords: a path or host:port
    userdb_socket: str = ""  # its auth-userdb socket, which knows recipients before their first login
    domain: str = ""  # of users whose names have none
    timeout: Seconds = Seconds(30.0)  # for an answer of its sockets


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer may cost. ``exempt`` networks are not counted; times and sizes hold for everybody."""

    connections: int = 2000  # of all listeners; the following are parts of it, 0: in proportion 5, 2, 2, 1
    connections_imap: int = 0  # of these at most half before the login
    connections_submission: int = 0  # the same
    connections_smtp: int = 0
    connections_lmtp: int = 0
    busy_login_time: Seconds = Seconds(10.0)  # to log in or to begin a mail, if more than half of those are waiting
    connections_per_ip: int = 50
    connections_per_user: int = 50
    exempt: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")
    message_size: Size = Size(50 << 20)
    header_size: Size = Size(256 << 10)
    recipients: int = 1000
    hops: int = 100  # Received fields: more are a loop
    commands_without_mail: int = 100  # of one SMTP connection
    errors: int = 20  # the same
    first_command: Seconds = Seconds(60.0)  # SMTP; for IMAP see [imap]
    idle: Seconds = Seconds(300.0)  # the same, between commands
    data_idle: Seconds = Seconds(180.0)  # while a message comes; for all that still comes of one that is refused
    data_grace: Seconds = Seconds(60.0)  # data may come more slowly than data_rate for so long in total
    data_rate: Size = Size(256)  # octets a second


@dataclass(frozen=True, slots=True)
class ImapSettings:
    """IMAP sessions and their caches."""

    login_time: Seconds = Seconds(60.0)  # how long a connection may stay without logging in
    idle: Seconds = Seconds(1800.0)  # without a command; RFC 3501 5.4 asks for 30 minutes at least
    keep_alive: Seconds = Seconds(120.0)  # between two "Still here" during IDLE
    send: Seconds = Seconds(300.0)  # a peer that takes nothing for so long is gone
    progress: Seconds = Seconds(10.0)  # between two reports of a long command (RFC 9585)
    id_from: tuple[str, ...] = ()  # proxies that say in ID for whom they speak, as Dovecot does
    bad_commands: int = 20  # in a row, before the connection is closed
    append_messages: int = 200  # in one APPEND (RFC 3502)
    message_limit: int = 0  # messages in one command (RFC 9738); 0: no limit
    literal_plus: bool = True  # false: literals of more than 4096 octets wait for the go-ahead (RFC 7888)
    compress: bool = True  # COMPRESS=DEFLATE (RFC 4978)
    unauthenticate: bool = False  # UNAUTHENTICATE (RFC 8437)
    folders: int = 10_000  # of one account
    keywords: int = 100  # in one command
    keyword_length: int = 100
    cache_folders: Size = Size(64 << 20)  # memory of one process for flags, dates, envelopes of folders in use
    cache_bodies: Size = Size(32 << 20)  # for messages that were read lately, or ahead
    cache_texts: Size = Size(32 << 20)  # for texts that were searched and are not indexed yet
    cache_time: Seconds = Seconds(120.0)  # without use, after which caches are emptied


@dataclass(frozen=True, slots=True)
class Smtp:
    """The MX port."""

    line_ends: LineEndRule = "reject"  # what is not CRLF: "reject" the message, "normalise" it, or "keep" it as it is
    proxy_from: tuple[str, ...] = ()  # peers that speak the PROXY protocol first


@dataclass(frozen=True, slots=True)
class Submission:
    line_ends: LineEndRule = "normalise"  # as in [smtp]
    proxy_from: tuple[str, ...] = ()
    xclient_from: tuple[str, ...] = ()  # who may speak for somebody else: a proxy in front
    keep_sent: bool = True  # a copy in the sender's Sent folder


@dataclass(frozen=True, slots=True)
class Lmtp:
    line_ends: LineEndRule = "keep"  # as in [smtp]
    proxy_from: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")  # who may deliver here at all
    xclient_from: tuple[str, ...] = ()  # who may speak for somebody else


@dataclass(frozen=True, slots=True)
class Domains:
    local: tuple[str, ...] = ()  # besides the domains of all registered addresses
    detail: str = "+"  # between a name and what is only a note to it; empty: none
    postmaster: str = ""  # where mail for <postmaster> goes; empty: postmaster@ a local domain, else the first account
    catch_all: dict[str, str] = field(default_factory=dict)  # domain -> address


@dataclass(frozen=True, slots=True)
class Quota:
    """For every account; 0: no limit."""

    storage: Size = Size(0)
    messages: int = 0
    over: OverQuota = "later"  # 452, the sender tries again; "refuse": 552, the sender gets it back


@dataclass(frozen=True, slots=True)
class Retention:
    """The end of a message's life."""

    deleted: Seconds = Seconds(30 * 86400.0)  # until content that no folder shows is erased; 0: never
    expire: dict[str, Seconds] = field(default_factory=dict)  # folder -> age at which its messages are deleted


@dataclass(frozen=True, slots=True)
class Account:
    """What one account wants otherwise: ``[account."ada@example.test"]``."""

    detail_folders: bool = False  # ada+lists@ goes to the folder "lists", if there is one
    html_alternative: bool = False  # what it submits as text/markdown alone gains an HTML alternative
    storage: Size | None = None
    messages: int | None = None
    over: OverQuota | None = None


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Without a host there is no mail to the outside."""

    host: str = ""
    port: int = 587
    tls: Literal["starttls", "implicit", "none"] = "starttls"  # or "implicit", "none"; certificates are verified
    ca_file: str = ""  # PEM file of authorities trusted besides the system's
    certificate: str = ""  # PEM file that shows who we are, for a smarthost that asks
    key: str = ""  # PEM file; empty: in the certificate's file
    user: str = ""
    password_file: str = ""  # its first line; read again for every connection
    helo: str = ""  # how we call ourselves; empty: the server's own name
    connections: int = 4  # to the smarthost, at once
    recipients: int = 50  # of one message, in one transaction
    idle: Seconds = Seconds(5.0)  # so long a connection waits for the next message
    connect: Seconds = Seconds(30.0)
    command: Seconds = Seconds(300.0)  # RFC 5321 4.5.3.2
    accept: Seconds = Seconds(600.0)  # from the end of the data to the answer
    first_retry: Seconds = Seconds(60.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(3600.0)
    warn_after: Seconds = Seconds(4 * 3600.0)  # the sender is told of the delay; 0: never
    expire_after: Seconds = Seconds(5 * 86400.0)  # the sender gets the message back


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """One account elsewhere."""

    host: str = ""
    port: int = 993
    tls: Literal["implicit", "starttls", "none"] = "implicit"  # or "starttls", "none"; certificates are verified
    ca_file: str = ""  # PEM file of authorities trusted instead of the system's
    user: str = ""
    password: str = field(default="", repr=False)  # better one of the two below
    password_file: str = ""  # its first line; read again for every connection
    password_command: tuple[str, ...] = ()  # the first line it prints
    account: str = ""  # the address here that gets the mail
    prefix: str = ""  # a folder here: INBOX goes into it, the others below it; empty: folders have the same names here
    folders: dict[str, str] = field(default_factory=dict)  # by their names there -> their names here
    skip: tuple[str, ...] = ()  # folders there that are left out, with those below them
    follow: bool = False  # markpost serve keeps up with it
    poll: Seconds = Seconds(60.0)  # between two looks at all folders; IDLE tells of INBOX at once, NOTIFY of the others
    timeout: Seconds = Seconds(60.0)  # for one answer
    first_retry: Seconds = Seconds(5.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(900.0)


@dataclass(frozen=True, slots=True)
class HookSettings:
    """A command or a URL, and which mail it is told of."""

    command: tuple[str, ...] = ()  # program and arguments; gets JSON on standard input and MARKPOST_ variables
    url: str = ""  # or: gets the JSON by POST; any status from 200 to 299 is a success
    authorization_file: str = ""  # its first line is sent to the URL as Authorization header
    accounts: tuple[str, ...] = ()  # addresses; empty: all
    folders: tuple[str, ...] = ("INBOX",)  # "*": all
    concurrency: int = 1  # calls at once
    timeout: Seconds = Seconds(30.0)  # for one call
    first_retry: Seconds = Seconds(5.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(900.0)
    give_up: Seconds = Seconds(86400.0)  # after so long a message is no longer tried; 0: never


@dataclass(frozen=True, slots=True)
class Settings:
    server: Server = field(default_factory=Server)
    listen: Listen = field(default_factory=Listen)
    metrics: Metrics = field(default_factory=Metrics)
    tls: Tls = field(default_factory=Tls)
    login: Login = field(default_factory=Login)
    dovecot: Dovecot = field(default_factory=Dovecot)
    limits: Limits = field(default_factory=Limits)
    imap: ImapSettings = field(default_factory=ImapSettings)
    smtp: Smtp = field(default_factory=Smtp)
    submission: Submission = field(default_factory=Submission)
    lmtp: Lmtp = field(default_factory=Lmtp)
    domains: Domains = field(default_factory=Domains)
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)  # address -> addresses
    quota: Quota = field(default_factory=Quota)
    retention: Retention = field(default_factory=Retention)
    account: dict[str, Account] = field(default_factory=dict)
    relay: RelaySettings = field(default_factory=RelaySettings)
    upstream: dict[str, UpstreamSettings] = field(default_factory=dict)  # by a name of one's own choice
    hook: dict[str, HookSettings] = field(default_factory=dict)  # the same
