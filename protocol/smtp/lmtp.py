"""What LMTP does differently from SMTP (RFC 2033) after a message: one reply for each accepted recipient.

Invariant: as many replies as RCPT commands were accepted, in their order, duplicates included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.smtp.replies import INTERNAL_ERROR, Reply


def final_replies(recipients: Sequence[str], outcome: Reply | Mapping[str, Reply]) -> list[Reply]:
    """RFC 2033 4.2: the replies after DATA, or after BDAT with LAST.

    ``outcome`` is one reply for all (a message refused as a whole), or one by recipient. A recipient that was
    forgotten is told to try again: nothing is lost by it.
    """
    by_recipient = {} if isinstance(outcome, Reply) else outcome
    default = outcome if isinstance(outcome, Reply) else INTERNAL_ERROR
    return [_for_one(by_recipient.get(recipient, default), recipient) for recipient in recipients]


def _for_one(reply: Reply, recipient: str) -> Reply:
    # 421 would end the session before the other recipients are answered.
    code = 451 if reply.code == 421 else reply.code
    return Reply(code, reply.enhanced, f"<{recipient[:256]}> {reply.text}")
