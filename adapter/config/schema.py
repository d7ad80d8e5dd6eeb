"""Every setting with its default: one frozen dataclass per section of the TOML file (see :mod:`adapter.config.loader`).

Invariant: every field is read somewhere. Times are seconds, sizes octets; networks are written ``192.0.2.0/24``, and
``unix`` means peers on a Unix socket. Comments are those of ``conf/markpost.toml``.
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
    """The process."""

    hostname: str = ""  # in greetings and trace headers; empty: the name of the machine
    workers: int = 1  # worker processes; with more than one, a supervisor restarts crashed workers
    drain: Seconds = Seconds(10.0)  # time for sessions to finish at shutdown and before maintenance
    threads: int = 2  # threads that parse and stage large messages; small messages have a thread of their own
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # or "debug", "warning", "error"
    log_format: Literal["text", "json"] = "text"  # or "json"


@dataclass(frozen=True, slots=True)
class Listen:
    """Listeners, as ``host:port`` or the path of a Unix socket; flags of the command line replace these."""

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
    """Monitoring: /metrics for Prometheus, /healthz and /readyz."""

    listen: str = ""  # "127.0.0.1:9125"; empty: off


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for another server name."""

    certificate: str  # PEM file, the chain included
    key: str


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates; without one there is no TLS."""

    certificate: str = ""  # PEM file; empty: no TLS
    key: str = ""  # PEM file; empty: in the certificate's file
    names: dict[str, Certificate] = field(default_factory=dict)  # certificates by server name (SNI)
    client_ca: str = ""  # PEM file; LMTP peers other than on unix sockets must present a certificate of these CAs
    handshake: Seconds = Seconds(30.0)


@dataclass(frozen=True, slots=True)
class Login:
    """Logins of people and programs."""

    mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "PLAIN", "LOGIN")
    allow_plaintext: bool = False  # allow AUTH without TLS from any address; from loopback it is always allowed
    cache: Seconds = Seconds(60.0)  # how long a verified password is not hashed again
    threads: int = 2  # threads that hash passwords
    waiting: int = 100  # logins that may wait for a thread, or be delayed at one address; more are refused temporarily
    free_failures: int = 3  # of a user at one address, or addresses with failures of a user, before logins are delayed
    free_users: int = 10  # users with failures at one address before logins of new users there are delayed
    delay: Seconds = Seconds(1.0)  # the first delay; each failure doubles it
    longest_delay: Seconds = Seconds(30.0)
    forget: Seconds = Seconds(900.0)  # older failures no longer count
    token_command: tuple[str, ...] = ()  # command that reads an OAuth token on stdin and prints its address
    token_url: str = ""  # or: token introspection (RFC 7662)
    token_timeout: Seconds = Seconds(10.0)


@dataclass(frozen=True, slots=True)
class Dovecot:
    """Users of an existing Dovecot: they log in with their Dovecot passwords; accounts are provisioned at first use."""

    passwd_file: str = ""  # its passwd-file; read only
    scheme: str = "CRYPT"  # of passwords in it without a scheme prefix
    auth_socket: str = ""  # its auth client socket, to check passwords: a path or host:port
    userdb_socket: str = ""  # its auth-userdb socket, to accept recipients before their first login
    domain: str = ""  # for user names without one
    timeout: Seconds = Seconds(30.0)  # for a response from its sockets


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per peer. ``exempt`` networks are not counted; times and sizes apply to every peer."""

    connections: int = 2000  # of all listeners; the following are its parts, 0: in the proportion 5, 2, 2, 1
    connections_imap: int = 0  # at most half of these before login
    connections_submission: int = 0  # by any name
    connections_smtp: int = 0
    connections_lmtp: int = 0
    busy_login_time: Seconds = Seconds(10.0)  # to log in or start a message while over half of those are in use
    connections_per_ip: int = 50
    connections_per_user: int = 50
    exempt: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")
    message_size: Size = Size(50 << 20)
    header_size: Size = Size(256 << 10)
    recipients: int = 1000
    hops: int = 100  # Received fields; more are treated as a loop
    commands_without_mail: int = 100  # in one SMTP connection
    errors: int = 20  # by any name
    first_command: Seconds = Seconds(60.0)  # SMTP; for IMAP see [imap]
    idle: Seconds = Seconds(300.0)  # the same, between commands
    data_idle: Seconds = Seconds(180.0)  # between chunks of a message; for the rest of a refused message
    data_grace: Seconds = Seconds(60.0)  # total time in which data may be slower than data_rate
    data_rate: Size = Size(256)  # octets per second


@dataclass(frozen=True, slots=True)
class ImapSettings:
    """IMAP sessions and their caches."""

    login_time: Seconds = Seconds(60.0)  # time for a connection to log in
    idle: Seconds = Seconds(1800.0)  # between commands; RFC 3501 5.4 requires at least 30 minutes
    keep_alive: Seconds = Seconds(120.0)  # between two "Still here" responses during IDLE
    send: Seconds = Seconds(300.0)  # a peer that reads nothing for this time is disconnected
    progress: Seconds = Seconds(10.0)  # between two progress reports of a long command (RFC 9585)
    id_from: tuple[str, ...] = ()  # proxies that may pass on the client's address with ID, as Dovecot does
    bad_commands: int = 20  # consecutive ones, before the connection is closed
    append_messages: int = 200  # in one APPEND (RFC 3502)
    message_limit: int = 0  # messages in one command (RFC 9738); 0: no limit
    literal_plus: bool = True  # false: literals of more than 4096 octets wait for the continuation (RFC 7888)
    compress: bool = True  # COMPRESS=DEFLATE (RFC 4978)
    unauthenticate: bool = False  # UNAUTHENTICATE (RFC 8437)
    folders: int = 10_000  # per account
    keywords: int = 100  # per command
    keyword_length: int = 100
    cache_folders: Size = Size(64 << 20)  # memory per process for flags, dates and envelopes of folders in use
    cache_bodies: Size = Size(32 << 20)  # for recently read and read-ahead messages
    cache_texts: Size = Size(32 << 20)  # for searched texts that are not indexed yet
    cache_time: Seconds = Seconds(120.0)  # unused caches are emptied after this time


@dataclass(frozen=True, slots=True)
class Smtp:
    """The MX port: mail from other servers, for local recipients only."""

    line_ends: LineEndRule = "reject"  # other than CRLF: "reject" the message, "normalise" them, or "keep" them
    proxy_from: tuple[str, ...] = ()  # peers that send a PROXY protocol header first


@dataclass(frozen=True, slots=True)
class Submission:
    """Mail from users."""

    line_ends: LineEndRule = "normalise"  # as in [smtp]
    proxy_from: tuple[str, ...] = ()
    xclient_from: tuple[str, ...] = ()  # peers that may pass on the client's address with XCLIENT: a proxy in front
    keep_sent: bool = True  # put a copy into the sender's Sent folder


@dataclass(frozen=True, slots=True)
class Lmtp:
    """Mail from a trusted mail server."""

    line_ends: LineEndRule = "keep"  # as in [smtp]
    proxy_from: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")  # peers that may deliver here
    xclient_from: tuple[str, ...] = ()  # peers that may pass on the client's address with XCLIENT


@dataclass(frozen=True, slots=True)
class Domains:
    """Local addresses."""

    local: tuple[str, ...] = ()  # in addition to the domains of all registered addresses
    detail: str = "+"  # separates the name from the detail in name+detail@domain; empty: off
    postmaster: str = ""  # recipient of mail for <postmaster>; empty: postmaster@ a local domain, or the first account
    catch_all: dict[str, str] = field(default_factory=dict)  # domain -> address


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of every account; 0: no limit."""

    storage: Size = Size(0)
    messages: int = 0
    over: OverQuota = "later"  # 452, the sender retries; "refuse": 552, the message bounces


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of deleted mail."""

    deleted: Seconds = Seconds(30 * 86400.0)  # until content that no folder shows is erased; 0: never
    expire: dict[str, Seconds] = field(default_factory=dict)  # folder -> age at which its messages are deleted


@dataclass(frozen=True, slots=True)
class Account:
    """Settings of one account: ``[account."ada@example.test"]``."""

    detail_folders: bool = False  # ada+lists@ is delivered to the folder "lists" if it exists
    html_alternative: bool = False  # a submitted text/markdown message gets an HTML alternative
    storage: Size | None = None
    messages: int | None = None
    over: OverQuota | None = None


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The smarthost. Without a host, only local mail is possible."""

    host: str = ""
    port: int = 587
    tls: Literal["starttls", "implicit", "none"] = "starttls"  # or "implicit", "none"; certificates are verified
    ca_file: str = ""  # PEM file of authorities trusted in addition to the system's
    certificate: str = ""  # PEM file of our client certificate, if the smarthost requires one
    key: str = ""  # PEM file; empty: in the certificate's file
    user: str = ""
    password_file: str = ""  # its first line; read again for every connection
    helo: str = ""  # our name in EHLO; empty: server.hostname
    connections: int = 4  # concurrent ones to the smarthost
    recipients: int = 50  # of one message in one transaction
    idle: Seconds = Seconds(5.0)  # time to keep an unused connection open
    connect: Seconds = Seconds(30.0)
    command: Seconds = Seconds(300.0)  # RFC 5321 4.5.3.2
    accept: Seconds = Seconds(600.0)  # from the end of the data to the reply
    first_retry: Seconds = Seconds(60.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(3600.0)
    warn_after: Seconds = Seconds(4 * 3600.0)  # the sender gets a delay report; 0: never
    expire_after: Seconds = Seconds(5 * 86400.0)  # the message bounces


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """An account of another IMAP server that is mirrored."""

    host: str = ""
    port: int = 993
    tls: Literal["implicit", "starttls", "none"] = "implicit"  # or "starttls", "none"; certificates are verified
    ca_file: str = ""  # PEM file of authorities trusted instead of the system's
    user: str = ""
    password: str = field(default="", repr=False)  # prefer one of the two below
    password_file: str = ""  # its first line; read again for every connection
    password_command: tuple[str, ...] = ()  # command that prints it on the first line
    account: str = ""  # the local address that gets the mail
    prefix: str = ""  # a local folder: INBOX is mirrored into it, other folders below it; empty: the same names
    folders: dict[str, str] = field(default_factory=dict)  # remote name -> local name
    skip: tuple[str, ...] = ()  # remote folders to omit, with their subfolders
    follow: bool = False  # markpost serve mirrors it continuously
    poll: Seconds = Seconds(60.0)  # between scans of all folders; IDLE and NOTIFY report changes at once
    timeout: Seconds = Seconds(60.0)  # for one response
    first_retry: Seconds = Seconds(5.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(900.0)


@dataclass(frozen=True, slots=True)
class HookSettings:
    """A command or a URL that is called for new mail."""

    command: tuple[str, ...] = ()  # program and arguments; gets JSON on standard input and MARKPOST_ variables
    url: str = ""  # or: gets the JSON by POST; a status from 200 to 299 is success
    authorization_file: str = ""  # its first line is the Authorization header
    accounts: tuple[str, ...] = ()  # addresses; empty: all
    folders: tuple[str, ...] = ("INBOX",)  # "*": all
    concurrency: int = 1  # concurrent calls
    timeout: Seconds = Seconds(30.0)  # for one call
    first_retry: Seconds = Seconds(5.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(900.0)
    give_up: Seconds = Seconds(86400.0)  # a message is not retried after this time; 0: retried for ever


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration: one field per section."""

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
    upstream: dict[str, UpstreamSettings] = field(default_factory=dict)  # by any name
    hook: dict[str, HookSettings] = field(default_factory=dict)  # by any name
