"""Quotas (RFC 9208): one root per account, from the settings; GETQUOTA, GETQUOTAROOT, SETQUOTA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.store.quotas import Quota, usage
from protocol.imap.commands import model
from protocol.imap.responses import codes, status
from protocol.imap.wire.lexer import CommandError

if TYPE_CHECKING:
    from adapter.imap.session import Session

#: The one quota root of an account; its name is the account's, as with most servers.
ROOT: Final = "User quota"
_UNIT: Final = 1024  # RFC 9208 5.1


# RFC 9208 4.1.2
@handles(model.GetQuota)
async def get_quota(session: Session, command: model.GetQuota) -> TaggedResponse:
    quota = _configured(session)
    if command.root != ROOT:
        return no("No such quota root", codes.NONEXISTENT)
    await _report(session, quota)
    return TaggedResponse("Quota completed")


# RFC 9208 4.1.3
@handles(model.GetQuotaRoot)
async def get_quota_root(session: Session, command: model.GetQuotaRoot) -> TaggedResponse:
    quota = _configured(session)
    session.send(status.quota_root(command.mailbox, [ROOT], dialect=session.dialect))
    await _report(session, quota)
    return TaggedResponse("Quota root completed")


# RFC 9208 4.1.1: the operator sets limits, not the client
@handles(model.SetQuota)
async def set_quota(session: Session, command: model.SetQuota) -> TaggedResponse:
    _configured(session)
    return no("Quotas are set by the administrator", codes.NOPERM)


def _configured(session: Session) -> Quota:
    quota = session.server.quotas.of(session.account)
    if not quota.limited:
        raise CommandError("Quotas are not configured", "NO", "CANNOT")
    return quota


# RFC 9208 4.2.1, 5.1, 5.2
async def _report(session: Session, quota: Quota) -> None:
    used, count = usage(list((await session.mailboxes.status(session.account)).values()))
    resources: list[tuple[bytes, int, int]] = []
    if quota.storage:
        resources.append((b"STORAGE", -(-used // _UNIT), quota.storage // _UNIT))
    if quota.messages:
        resources.append((b"MESSAGE", count, quota.messages))
    session.send(status.quota(ROOT, resources))
