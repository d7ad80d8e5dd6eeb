"""Quotas (RFC 9208): one root per account, from the settings; GETQUOTA, GETQUOTAROOT, SETQUOTA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.read_model.interface import StorageUse
from protocol.imap.commands import model
from protocol.imap.responses import codes, status
from protocol.imap.wire.lexer import CommandError

if TYPE_CHECKING:
    from adapter.imap.session import Session

#: The one quota root of an account, named as with most servers.
ROOT: Final = "User quota"
_UNIT_BYTES: Final = 1024  # RFC 9208 5.1


# RFC 9208 4.1.2
@handles(model.GetQuota)
async def get_quota(session: Session, command: model.GetQuota) -> TaggedResponse:
    use = await _storage_use(session)
    if command.root != ROOT:
        return no("No such quota root", codes.NONEXISTENT)
    _report(session, use)
    return TaggedResponse("Quota completed")


# RFC 9208 4.1.3
@handles(model.GetQuotaRoot)
async def get_quota_root(session: Session, command: model.GetQuotaRoot) -> TaggedResponse:
    use = await _storage_use(session)
    session.send(status.quota_root(command.mailbox, [ROOT], dialect=session.dialect))
    _report(session, use)
    return TaggedResponse("Quota root completed")


# RFC 9208 4.1.1: the operator sets limits, not the client
@handles(model.SetQuota)
async def set_quota(session: Session, command: model.SetQuota) -> TaggedResponse:
    await _storage_use(session)
    return no("Quotas are set by the administrator", codes.NOPERM)


async def _storage_use(session: Session) -> StorageUse:
    use = await session.reader.storage_use(session.account)
    if use is None:
        raise CommandError("Quotas are not configured", "NO", "CANNOT")
    return use


# RFC 9208 4.2.1, 5.1, 5.2
def _report(session: Session, use: StorageUse) -> None:
    resources: list[tuple[bytes, int, int]] = []
    if use.octet_limit:
        resources.append((b"STORAGE", -(-use.octets // _UNIT_BYTES), use.octet_limit // _UNIT_BYTES))
    if use.message_limit:
        resources.append((b"MESSAGE", use.messages, use.message_limit))
    session.send(status.quota(ROOT, resources))
