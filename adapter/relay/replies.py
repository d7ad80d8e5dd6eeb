"""What the smarthost said, or we have to say in its place, about one recipient."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_ENHANCED = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?=\s|$)")
_STATUS = re.compile(r"(?:[0-9]{3}[ -]?)?([245]\.[0-9]{1,3}\.[0-9]{1,3})(?=\s|$)")
_MAX_TEXT = 500
#: RFC 4954: about our own login, which the operator can mend; no reason to return mail.
_OF_LOGIN = frozenset({530, 534, 535, 538})


class Verdict(Enum):
    RELAYED = "relayed"  # the smarthost has taken responsibility
    FAILED = "failed"  # for good
    LATER = "later"
    AGAIN = "again"  # at once: there were too many recipients for one transaction


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: Verdict
    text: str  # one line: reply code, enhanced code, words
    remote: str = ""  # who said it; empty: we did
    last: str = ""  # if the time is up: what was said at the last attempt, and by whom ``remote`` tells

    @property
    def status(self) -> str:
        status = status_of(self.text)
        return f"4{status[1:]}" if self.verdict is Verdict.LATER else status


def status_of(text: str) -> str:
    """The enhanced code (RFC 3463) of a reply; its class alone where it has none."""
    found = _STATUS.match(text)
    if found is not None and (not text[:3].isdigit() or found[1][0] == text[0]):
        return found[1]
    return f"{text[0]}.0.0" if text[:1] in ("2", "4", "5") else "4.0.0"


def one_line(text: str) -> str:
    """What a peer said, fit for logs, headers and the journal: printable, bounded."""
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _MAX_TEXT]).split())[:_MAX_TEXT]


def failed(status: str, text: str) -> Answer:
    return Answer(Verdict.FAILED, f"550 {status} {one_line(text)}")


def later(status: str, text: str) -> Answer:
    return Answer(Verdict.LATER, f"451 {status} {one_line(text)}")


def read(code: int, message: str, remote: str) -> Answer:
    """The answer to MAIL, DATA or the message itself (RFC 5321 4.2.1)."""
    text = f"{code} {_joined(message)}"
    if 200 <= code < 300:
        return Answer(Verdict.RELAYED, text, remote)
    if 500 <= code < 600 and code not in _OF_LOGIN:
        return Answer(Verdict.FAILED, text, remote)
    if 400 <= code < 600:
        return Answer(Verdict.LATER, text, remote)
    return later("4.5.0", f"{remote} gave an answer that has no meaning here: {text}")


def read_recipient(code: int, message: str, remote: str) -> Answer:
    """The answer to RCPT. RFC 5321 4.5.3.1.10: too many recipients are no failure, and 552 once meant just that."""
    answer = read(code, message, remote)
    crowded = answer.status == "4.5.3" or answer.status == "5.5.3" or (code == 552 and answer.status == "5.0.0")
    if code in (452, 552) and (crowded or answer.status == "4.0.0"):
        return Answer(Verdict.AGAIN, answer.text, remote)
    return answer


def _joined(message: str) -> str:
    """Several lines as one; RFC 2034 repeats the enhanced code in each."""
    lines = [line.strip() for line in message.split("\n")]
    code = _ENHANCED.match(lines[0])
    if code is not None:
        lines[1:] = [line.removeprefix(code[1]).strip() for line in lines[1:]]
    return one_line(" ".join(lines))
