r"""FETCH responses as chunks of octets, ready to be written.

    fetch = mailboxes.fetch(state, view.by_uid(uids), items, dialect)
    async for chunk in fetch.chunks():      # at most some 256 KiB each
        await connection.write(chunk)
    if fetch.failed: …                      # content of these could not be read: they were answered with NIL

Items come in the order asked for; MODSEQ and UID are the caller's to add to the items where the dialect wants them.
Setting ``\Seen`` is the caller's too: commit first, then fetch (with FLAGS among the items).
"""

from __future__ import annotations

from collections.abc import AsyncIterator


class Fetch:
    #: UIDs of messages whose content could not be read or that are gone; complete when the chunks have ended.
    failed: list[int]

    def chunks(self) -> AsyncIterator[bytes]:
        """Raises MailError only where a literal already begun cannot be finished: the connection must be closed."""
        raise NotImplementedError
