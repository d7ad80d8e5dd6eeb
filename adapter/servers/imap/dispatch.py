"""Which handler carries out which command: the one table.

A handler takes the session and the command and returns the tagged answer, or None if it has sent it itself or will do
so later. It may raise CommandError, ProtocolError and MailError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from adapter.servers.imap import (
    append,
    commands_any,
    commands_copy,
    commands_login,
    commands_mailbox,
    commands_search,
    commands_select,
    fetch,
    idle,
    quota,
    store_flags,
)
from adapter.servers.imap.answer import Answer
from protocol.imap import commands
from protocol.imap.commands import Command

Handler = Callable[[Any, Any], Awaitable[Answer | None]]

HANDLERS: Final[dict[type[Command], Handler]] = {
    commands.Capability: commands_any.capability,
    commands.Noop: commands_any.noop,
    commands.Logout: commands_any.logout,
    commands.Id: commands_any.identify,
    commands.StartTls: commands_login.starttls,
    commands.Authenticate: commands_login.authenticate,
    commands.Login: commands_login.login,
    commands.Enable: commands_login.enable,
    commands.Compress: commands_login.compress,
    commands.Unauthenticate: commands_login.unauthenticate,
    commands.Select: commands_select.select,
    commands.Close: commands_select.close,
    commands.Unselect: commands_select.unselect,
    commands.Create: commands_mailbox.create,
    commands.Delete: commands_mailbox.delete,
    commands.Rename: commands_mailbox.rename,
    commands.Subscribe: commands_mailbox.subscribe,
    commands.Unsubscribe: commands_mailbox.unsubscribe,
    commands.List: commands_mailbox.list_mailboxes,
    commands.Lsub: commands_mailbox.lsub,
    commands.Namespace: commands_mailbox.namespace,
    commands.Status: commands_mailbox.status,
    commands.GetQuota: quota.get_quota,
    commands.GetQuotaRoot: quota.get_quota_root,
    commands.SetQuota: quota.set_quota,
    commands.Append: append.append,
    commands.Replace: append.replace,
    commands.Idle: idle.idle,
    commands.Check: commands_any.check,
    commands.Expunge: commands_copy.expunge,
    commands.Search: commands_search.search,
    commands.Sort: commands_search.sort,
    commands.Thread: commands_search.thread,
    commands.Fetch: fetch.fetch,
    commands.Store: store_flags.store,
    commands.Copy: commands_copy.copy,
    commands.Move: commands_copy.move,
}
