"""Every reply of the SMTP and LMTP servers, in one table: code, enhanced code (RFC 3463, 2034) and text.

Invariants: the class digit of the enhanced code agrees with the reply code; texts are ASCII and reveal no paths or
internals; every line is at most 512 octets (RFC 5321 4.5.3.1.5); LMTP gives as many replies after a message as RCPT
commands were accepted, in their order, duplicates included. The greeting, the replies to HELO, EHLO and LHLO, 334 and
354 have no enhanced code (RFC 2034 sections 3 and 4).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import MailError, ProtocolError, Reason
from protocol.sasl.mechanisms import FailureCause

MAX_LINE_BYTES = 512
_MAX_DETAIL_CHARS = 200


def _clean(text: str, limit: int) -> str:
    if text.isascii() and text.isprintable():
        return text[:limit]
    return "".join(char if " " <= char <= "~" else "?" for char in text[:limit])


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply; ``text`` may hold several lines separated by LF. ``wire`` is ready to be sent."""

    code: int
    enhanced: str
    text: str
    wire: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # RFC 2034 section 4: every line of a multi-line reply has the enhanced code.
        prefix = f"{self.enhanced} " if self.enhanced else ""
        lines = [_clean(prefix + line, MAX_LINE_BYTES - 6) for line in self.text.split("\n")]
        wire = "".join(f"{self.code}-{line}\r\n" for line in lines[:-1]) + f"{self.code} {lines[-1]}\r\n"
        object.__setattr__(self, "wire", wire.encode("ascii"))

    @property
    def positive(self) -> bool:
        return self.code < 400

    @property
    def closes(self) -> bool:
        """The connection ends after this reply."""
        return self.code in {221, 421, 521}

    def about(self, detail: str) -> Reply:
        """The same reply with a bounded, sanitised detail after the text, such as a message id."""
        return Reply(self.code, self.enhanced, f"{self.text}: {_clean(detail, _MAX_DETAIL_CHARS)}")


class SmtpError(ProtocolError):
    """A command is refused with ``reply``."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.text)
        self.reply = reply


# 2xx and 3xx: success, or continue.
TLS_READY = Reply(220, "2.0.0", "Ready to start TLS")
GOODBYE = Reply(221, "2.0.0", "Goodbye")
HELP = Reply(214, "2.0.0", "Commands are those of RFC 5321 and of the extensions listed by EHLO")
AUTHENTICATED = Reply(235, "2.7.0", "Authentication succeeded")
OK = Reply(250, "2.0.0", "Ok")
SENDER_OK = Reply(250, "2.1.0", "Sender ok")
RECIPIENT_OK = Reply(250, "2.1.5", "Recipient ok")
CHUNK_OK = Reply(250, "2.0.0", "Chunk received")
ACCEPTED = Reply(250, "2.0.0", "Message accepted")
CANNOT_VERIFY = Reply(252, "2.0.0", "Cannot verify the address, but will accept mail and attempt delivery")
START_DATA = Reply(354, "", "End data with <CR><LF>.<CR><LF>")

# 4xx: the same may succeed later. 421 also closes the connection.
SHUTTING_DOWN = Reply(421, "4.3.2", "Server shutting down, try again later")
IDLE = Reply(421, "4.4.2", "Idle for too long, closing")
TOO_SLOW = Reply(421, "4.4.2", "Data rate below limit or message too long, closing")
TOO_MANY_CONNECTIONS = Reply(421, "4.7.0", "Too many connections, try again later")
TOO_MANY_ERRORS = Reply(421, "4.7.0", "Too many errors, closing")
TOO_MANY_COMMANDS = Reply(421, "4.7.0", "Too many commands without mail, closing")
NOT_SMTP = Reply(421, "4.7.0", "This is a mail server, closing")
BAD_PROXY_HEADER = Reply(421, "4.7.0", "Bad PROXY header, closing")
TOO_MANY_RECIPIENTS = Reply(452, "4.5.3", "Too many recipients, send the rest in another transaction")
AUTH_UNAVAILABLE = Reply(454, "4.7.0", "Temporary authentication failure")
TLS_UNAVAILABLE = Reply(454, "4.7.0", "TLS is temporarily unavailable")

# 5xx: the same will fail again. Syntax:
UNKNOWN_COMMAND = Reply(500, "5.5.2", "Command not recognised")
LINE_TOO_LONG = Reply(500, "5.5.2", "Line too long")
AUTH_LINE_TOO_LONG = Reply(500, "5.5.6", "Authentication exchange line is too long")
BAD_SYNTAX = Reply(501, "5.5.4", "Syntax error in arguments")
NO_ARGUMENTS = Reply(501, "5.5.4", "This command takes no arguments")
BAD_SENDER = Reply(501, "5.1.7", "Bad sender address syntax")
BAD_RECIPIENT = Reply(501, "5.1.3", "Bad recipient address syntax")
BAD_PARAMETER = Reply(501, "5.5.4", "Bad parameter value")
DUPLICATE_PARAMETER = Reply(501, "5.5.4", "Duplicate parameter")
AUTH_MALFORMED = Reply(501, "5.5.2", "Cannot decode the authentication response")
AUTH_CANCELLED = Reply(501, "5.7.0", "Authentication cancelled")
NOT_IMPLEMENTED = Reply(502, "5.5.1", "Command not implemented")
HELLO_FIRST = Reply(503, "5.5.1", "Send EHLO or LHLO first")
EHLO_FIRST = Reply(503, "5.5.1", "Command requires EHLO or LHLO")
NESTED_MAIL = Reply(503, "5.5.1", "A mail transaction is already open")
MAIL_FIRST = Reply(503, "5.5.1", "Send MAIL first")
RCPT_FIRST = Reply(503, "5.5.1", "No valid recipients")
CHUNKS_STARTED = Reply(503, "5.5.1", "Not allowed once BDAT has begun")
CHUNKS_FAILED = Reply(503, "5.5.1", "An earlier chunk failed, send RSET")
BINARY_NEEDS_BDAT = Reply(503, "5.5.1", "BODY=BINARYMIME needs BDAT")
IN_TRANSACTION = Reply(503, "5.5.1", "Not allowed during a mail transaction")
ALREADY_TLS = Reply(503, "5.5.1", "TLS is already active")
ALREADY_AUTHENTICATED = Reply(503, "5.5.1", "Already authenticated")
UNKNOWN_MECHANISM = Reply(504, "5.5.4", "Authentication mechanism not supported")
BAD_CHUNK = Reply(521, "5.5.4", "Syntax: BDAT size [LAST], closing")
NOT_TRUSTED = Reply(521, "5.7.1", "Connections from this address are not allowed, closing")
UNKNOWN_PARAMETER = Reply(555, "5.5.4", "Parameter not recognised or not offered")
UTF8_NEEDED = Reply(553, "5.6.7", "Non-ASCII address needs SMTPUTF8")

# 5xx: policy.
AUTH_REQUIRED = Reply(530, "5.7.0", "Authentication required")
TLS_REQUIRED = Reply(530, "5.7.0", "Must issue STARTTLS first")
AUTH_FAILED = Reply(535, "5.7.8", "Authentication credentials invalid")
ENCRYPTION_REQUIRED = Reply(538, "5.7.11", "Encryption required for authentication")
RELAY_DENIED = Reply(550, "5.7.1", "Relaying denied")
NO_RELAY = Reply(550, "5.7.1", "No relay is configured for mail to other domains")
SENDER_DENIED = Reply(550, "5.7.1", "Sender address does not belong to this account")
FROM_DENIED = Reply(550, "5.7.1", "From or Sender does not belong to this account")
BARE_LINE_END = Reply(550, "5.6.11", "Message has bare CR or LF line ends")
HEADER_TOO_BIG = Reply(552, "5.3.4", "Message header is too big")
MAIL_LOOP = Reply(554, "5.4.6", "Too many hops, mail is looping")


def _reason_reply(reason: Reason) -> Reply:
    return Reply(reason.smtp, reason.enhanced, reason.public)


REASONS: dict[Reason, Reply] = {reason: _reason_reply(reason) for reason in Reason}
INTERNAL_ERROR = REASONS[Reason.UNKNOWN]
TOO_BIG = REASONS[Reason.TOO_BIG]

# RFC 4954 section 4 and 6.
AUTH_ERRORS: dict[FailureCause, Reply] = {
    FailureCause.MALFORMED: AUTH_MALFORMED,
    FailureCause.TOO_LONG: AUTH_LINE_TOO_LONG,
    FailureCause.CANCELLED: AUTH_CANCELLED,
    FailureCause.REFUSED: AUTH_FAILED,
    FailureCause.UNAVAILABLE: AUTH_UNAVAILABLE,
}

TABLE: dict[str, Reply] = {name: value for name, value in list(globals().items()) if isinstance(value, Reply)}


def reply_to(error: BaseException) -> Reply:
    """The reply to a failed operation. Unknown errors are temporary, so that no bug bounces mail."""
    if isinstance(error, SmtpError):
        return error.reply
    if isinstance(error, MailError):
        return REASONS[error.reason]
    return INTERNAL_ERROR


def greeting(hostname: str, service: str) -> Reply:
    """RFC 5321 4.3.1: the host name is the first word; ``service`` is ESMTP or LMTP."""
    return Reply(220, "", f"{hostname} {service} ready")


def hello(hostname: str, keywords: Iterable[str] = ()) -> Reply:
    """RFC 5321 4.1.1.1: the reply to HELO (no keywords), EHLO or LHLO."""
    return Reply(250, "", "\n".join((hostname, *keywords)))


def challenge(data: bytes) -> bytes:
    """RFC 4954 section 4: an empty challenge keeps the space; the 512-octet limit does not apply."""
    return b"334 " + base64.b64encode(data) + b"\r\n"


def lmtp_replies(recipients: Sequence[str], outcome: Reply | Mapping[str, Reply]) -> list[Reply]:
    """RFC 2033 4.2: the replies after DATA, or after BDAT with LAST.

    ``outcome`` is one reply for all (a message refused as a whole), or one by recipient. A recipient without a reply
    gets a temporary error, so that no mail is lost.
    """
    by_recipient = {} if isinstance(outcome, Reply) else outcome
    default = outcome if isinstance(outcome, Reply) else INTERNAL_ERROR
    return [_for_recipient(by_recipient.get(recipient, default), recipient) for recipient in recipients]


def _for_recipient(reply: Reply, recipient: str) -> Reply:
    # 421 would end the session before the other recipients get their reply.
    code = 451 if reply.code == 421 else reply.code
    return Reply(code, reply.enhanced, f"<{recipient[:256]}> {reply.text}")
