"""Which command may come when (RFC 3501 3, 6): the one table.

For each command: the states it is allowed in, whether EXPUNGE may be reported while it runs, whether it speaks of
UIDs, and whether it can be used once message numbers are given up (UIDONLY).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from protocol.imap.commands.fetch_items import Attribute
from protocol.imap.commands.model import Command, Enable, Fetch, Search, Select, Sort, Status, StatusItem, Store, Thread
from protocol.imap.wire.lexer import CommandError, Dialect


class State(Enum):
    """RFC 3501 3"""

    NOT_AUTHENTICATED = "not authenticated"
    AUTHENTICATED = "authenticated"
    SELECTED = "selected"
    LOGOUT = "logout"


class Rule(NamedTuple):
    states: frozenset[State]
    sees_expunge: bool = True  #: RFC 3501 7.4.1, RFC 5256 3: numbers must not change under these commands
    uid: bool = False  #: the UID form of a command
    uid_only: bool = True  #: allowed under UIDONLY (RFC 9586 3)
    asks_for_news: bool = False  #: sent to learn of new mail (RFC 3501 6.1.2): clients notice an EXISTS within it


_ANY: Final = frozenset((State.NOT_AUTHENTICATED, State.AUTHENTICATED, State.SELECTED))
_LOGGED_OUT: Final = frozenset((State.NOT_AUTHENTICATED,))
_LOGGED_IN: Final = frozenset((State.AUTHENTICATED, State.SELECTED))
_SELECTED: Final = frozenset((State.SELECTED,))

_ANYTIME: Final = Rule(_ANY)
_TO_LOG_IN: Final = Rule(_LOGGED_OUT)
_ON_MAILBOXES: Final = Rule(_LOGGED_IN)
_ON_SELECTED: Final = Rule(_SELECTED)
_BY_UID: Final = Rule(_SELECTED, uid=True)
_BY_NUMBER: Final = Rule(_SELECTED, uid_only=False)
_FROZEN_NUMBERS: Final = Rule(_SELECTED, sees_expunge=False, uid_only=False)

RULES: Final[dict[str, Rule]] = {
    # RFC 3501 6.1
    "CAPABILITY": _ANYTIME,
    "NOOP": _ANYTIME._replace(asks_for_news=True),
    "LOGOUT": _ANYTIME,
    # RFC 2971 3.1
    "ID": _ANYTIME,
    # RFC 3501 6.2
    "STARTTLS": _TO_LOG_IN,
    "AUTHENTICATE": _TO_LOG_IN,
    "LOGIN": _TO_LOG_IN,
    # RFC 5161 3.1; RFC 9051 6.3.1: a server need not insist that no mailbox is selected
    "ENABLE": _ON_MAILBOXES,
    # RFC 3501 6.3
    "SELECT": _ON_MAILBOXES,
    "EXAMINE": _ON_MAILBOXES,
    "CREATE": _ON_MAILBOXES,
    "DELETE": _ON_MAILBOXES,
    "RENAME": _ON_MAILBOXES,
    "SUBSCRIBE": _ON_MAILBOXES,
    "UNSUBSCRIBE": _ON_MAILBOXES,
    "LIST": _ON_MAILBOXES,
    "LSUB": _ON_MAILBOXES,
    "STATUS": _ON_MAILBOXES,
    "APPEND": _ON_MAILBOXES,
    # RFC 2342 5
    "NAMESPACE": _ON_MAILBOXES,
    # RFC 2177 3
    "IDLE": _ON_MAILBOXES._replace(asks_for_news=True),
    # RFC 9208 4.1
    "GETQUOTA": _ON_MAILBOXES,
    "GETQUOTAROOT": _ON_MAILBOXES,
    "SETQUOTA": _ON_MAILBOXES,
    # RFC 4978 3
    "COMPRESS": _ON_MAILBOXES,
    # RFC 8437 3
    "UNAUTHENTICATE": _ON_MAILBOXES,
    # RFC 3501 6.4
    "CHECK": _ON_SELECTED._replace(asks_for_news=True),
    "CLOSE": _ON_SELECTED,
    "EXPUNGE": _ON_SELECTED,
    "SEARCH": _FROZEN_NUMBERS,
    "FETCH": _FROZEN_NUMBERS,
    "STORE": _FROZEN_NUMBERS,
    "COPY": _BY_NUMBER,
    "UID SEARCH": _BY_UID,
    "UID FETCH": _BY_UID,
    "UID STORE": _BY_UID,
    "UID COPY": _BY_UID,
    # RFC 3691 2
    "UNSELECT": _ON_SELECTED,
    # RFC 4315 2.1
    "UID EXPUNGE": _BY_UID,
    # RFC 5256 3
    "SORT": _FROZEN_NUMBERS,
    "THREAD": _FROZEN_NUMBERS,
    "UID SORT": _BY_UID,
    "UID THREAD": _BY_UID,
    # RFC 6851 3
    "MOVE": _BY_NUMBER,
    "UID MOVE": _BY_UID,
    # RFC 8508 3
    "REPLACE": _BY_NUMBER,
    "UID REPLACE": _BY_UID,
}


def check(name: str, state: State, dialect: Dialect) -> Rule:
    """The rule of a command; CommandError if it does not exist or may not come now."""
    rule = RULES.get(name)
    if rule is None:
        raise CommandError("Unknown command")
    if state not in rule.states:
        if state is State.NOT_AUTHENTICATED:
            raise CommandError("Log in first")
        raise CommandError("Select a mailbox first" if State.SELECTED in rule.states else "Already logged in")
    if dialect.uid_only and not rule.uid_only:
        raise CommandError("Message numbers can not be used", code="UIDREQUIRED")
    return rule


# RFC 7162 3.1: the CONDSTORE enabling commands
def enables_condstore(command: Command) -> bool:
    """Whether the client has shown that it knows mod-sequences."""
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
