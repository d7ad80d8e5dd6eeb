"""Which handler carries out which command: the one table.

A handler takes the session and the command and returns the tagged answer, or None if it has sent it itself or will do
so later. It may raise CommandError, ProtocolError and MailError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from adapter.imap.answer import Answer
from adapter.imap.commands import append, basic, copy, fetch, idle, login, mailbox, quota, search, select, store
from protocol.imap.commands import model
from protocol.imap.commands.model import Command

Handler = Callable[[Any, Any], Awaitable[Answer | None]]

HANDLERS: Final[dict[type[Command], Handler]] = {
    model.Capability: basic.capability,
    model.Noop: basic.noop,
    model.Logout: basic.logout,
    model.Id: basic.identify,
    model.StartTls: login.starttls,
    model.Authenticate: login.authenticate,
    model.Login: login.login,
    model.Enable: login.enable,
    model.Compress: login.compress,
    model.Unauthenticate: login.unauthenticate,
    model.Select: select.select,
    model.Close: select.close,
    model.Unselect: select.unselect,
    model.Create: mailbox.create,
    model.Delete: mailbox.delete,
    model.Rename: mailbox.rename,
    model.Subscribe: mailbox.subscribe,
    model.Unsubscribe: mailbox.unsubscribe,
    model.List: mailbox.list_mailboxes,
    model.Lsub: mailbox.lsub,
    model.Namespace: mailbox.namespace,
    model.Status: mailbox.status,
    model.GetQuota: quota.get_quota,
    model.GetQuotaRoot: quota.get_quota_root,
    model.SetQuota: quota.set_quota,
    model.Append: append.append,
    model.Replace: append.replace,
    model.Idle: idle.idle,
    model.Check: basic.check,
    model.Expunge: copy.expunge,
    model.Search: search.search,
    model.Sort: search.sort,
    model.Thread: search.thread,
    model.Fetch: fetch.fetch,
    model.Store: store.store,
    model.Copy: copy.copy,
    model.Move: copy.move,
}
