"""The smarthost's reply about one recipient, or our own in its place, and the verdict that follows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_ENHANCED = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?=\s|$)")
_STATUS = re.compile(r"(?:[0-9]{3}[ -]?)?([245]\.[0-9]{1,3}\.[0-9]{1,3})(?=\s|$)")
_MAX_TEXT_CHARS = 500
#: RFC 4954: errors of our own login, which the operator can fix: they never bounce mail.
_LOGIN_CODES = frozenset({530, 534, 535, 538})


class Verdict(Enum):
    RELAYED = "relayed"  # the smarthost has taken responsibility
    FAILED = "failed"  # permanently
    DEFERRED = "later"
    RETRY_NOW = "again"  # too many recipients for one transaction: the next one starts at once


@dataclass(frozen=True, slots=True)
class RecipientReply:
    verdict: Verdict
    text: str  # one line: reply code, enhanced code, text
    remote: str = ""  # the host that replied; empty: our own reply
    last_reply: str = ""  # of an expired row: the reply of ``remote`` to the last attempt

    @property
    def status(self) -> str:
        status = status_of(self.text)
        return f"4{status[1:]}" if self.verdict is Verdict.DEFERRED else status


def status_of(text: str) -> str:
    """The enhanced code (RFC 3463) of a reply; only its class if it has none."""
    match = _STATUS.match(text)
    if match is not None and (not text[:3].isdigit() or match[1][0] == text[0]):
        return match[1]
    return f"{text[0]}.0.0" if text[:1] in ("2", "4", "5") else "4.0.0"


def one_line(text: str) -> str:
    """Make a peer's text safe for logs, headers and the journal: printable, bounded."""
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _MAX_TEXT_CHARS]).split())[
        :_MAX_TEXT_CHARS
    ]


def failed(status: str, text: str) -> RecipientReply:
    return RecipientReply(Verdict.FAILED, f"550 {status} {one_line(text)}")


def deferred(status: str, text: str) -> RecipientReply:
    return RecipientReply(Verdict.DEFERRED, f"451 {status} {one_line(text)}")


def parse_reply(code: int, message: str, remote: str) -> RecipientReply:
    """The reply to MAIL, DATA or the message itself (RFC 5321 4.2.1)."""
    text = f"{code} {_joined(message)}"
    if 200 <= code < 300:
        return RecipientReply(Verdict.RELAYED, text, remote)
    if 500 <= code < 600 and code not in _LOGIN_CODES:
        return RecipientReply(Verdict.FAILED, text, remote)
    if 400 <= code < 600:
        return RecipientReply(Verdict.DEFERRED, text, remote)
    return deferred("4.5.0", f"{remote} sent an unexpected reply: {text}")


def parse_rcpt_reply(code: int, message: str, remote: str) -> RecipientReply:
    """The reply to RCPT. RFC 5321 4.5.3.1.10: too many recipients is not a failure, and 552 used to mean that."""
    reply = parse_reply(code, message, remote)
    too_many = reply.status in ("4.5.3", "5.5.3") or (code == 552 and reply.status == "5.0.0")
    if code in (452, 552) and (too_many or reply.status == "4.0.0"):
        return RecipientReply(Verdict.RETRY_NOW, reply.text, remote)
    return reply


def _joined(message: str) -> str:
    """Join the lines of a reply; RFC 2034 repeats the enhanced code in each."""
    lines = [line.strip() for line in message.split("\n")]
    code = _ENHANCED.match(lines[0])
    if code is not None:
        lines[1:] = [line.removeprefix(code[1]).strip() for line in lines[1:]]
    return one_line(" ".join(lines))
