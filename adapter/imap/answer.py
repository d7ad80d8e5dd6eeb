"""How a command ends: the tagged response (RFC 3501 7.1), and what may be told before it."""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import MailError, Reason
from protocol.imap.responses import codes


class Answer(NamedTuple):
    text: str
    code: bytes = b""
    status: bytes = b"OK"
    modseq_sent: bool = False  # FETCH responses with MODSEQ were sent (RFC 7162 3.2)
    tells: bool = True  # of changes in the selected mailbox
    limited: bytes = b""  # the code that says where a limit has cut the messages off (RFC 9738 3.1)
    exists_first: bool = False  # EXISTS before EXPUNGE (RFC 8508 3.3)
    uses_numbers: bool = False  # the criteria of a search had message numbers (RFC 7162 3.2.10)


# RFC 5530 3; RFC 3501 6.3.11, 6.4.7 for TRYCREATE
def failed(error: MailError, *, into: bool = False) -> Answer:
    """The answer to an operation that failed; ``into``: a mailbox that is missing was a destination."""
    code = error.reason.imap.encode("ascii")
    if into and error.reason is Reason.NO_SUCH_FOLDER:
        code = codes.TRYCREATE
    return Answer(error.public, code, b"NO")


def no(text: str, code: bytes = b"") -> Answer:
    return Answer(text, code, b"NO")
