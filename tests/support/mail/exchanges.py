"""Mail that export and import carry, and the store content they must reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter.exchange.export import Exported, Exporter, Format
from adapter.exchange.import_ import Imported, Importer, find_source
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.stores import ADA

DATE = 1_600_000_000


EXCHANGED = [
    b"Subject: plain\r\n\r\nFrom the start\r\n>From x\r\n",
    b"Subject: no line end\r\n\r\nx",
    b"Subject: bare LF\n\nFrom Mon Jan  1 00:00:00 1970\n\nFrom a Mon Jan  1 00:00:00 1970\n",
    b"Subject: mixed\r\n\nbare\r and \r\r\n\x00 NUL \xff\xfe",
    b"",
    b"Status: RO\r\nX-Keywords: none\r\n\r\nown fields\r\n",
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\ntext\r\n--b\r\nContent-Type: image/png\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\n" + b"iVBORw0KGgo=\r\n" * 3 + b"--b--\r\n",
    b"Subject: large\r\n\r\n" + b"0123456789" * 100_000,
]


def fill_folders(transport: Transport) -> None:
    for folder in ("Work/Plans", "Entwürfe.alt", "a\\b ~ %41", "x" * 300, "INBOX/below"):
        transport.run(op.CreateFolder(ADA, folder))
    transport.run(op.Subscribe(ADA, "Work/Plans"))
    transport.run(op.Subscribe(ADA, "Not there"))
    transport.run(op.Subscribe(ADA, "Junk", on=False))
    flags = [0, Flag.READ, Flag.ANSWERED | Flag.STARRED, Flag.DELETED | Flag.DRAFT]
    words: list[Sequence[str]] = [(), ("todo",), ("$Forwarded", "todo"), ("$Label1",)]
    for number, octets in enumerate(EXCHANGED):
        for folder in ("INBOX", "Work/Plans", "x" * 300)[: 1 + number % 3]:
            # Dates that do not follow the order of arrival, some before 1970 and some in the future.
            date = DATE - 40_000_000 * number if number % 4 else 4_000_000_000
            item = op.AppendItem(transport.stage(octets), flags[number % 4], words[number % 4], date)
            transport.run(op.Append(ADA, folder, [item]))


def account_contents(transport: Transport, address: str) -> dict[str, Any]:
    with transport.reading() as connection:
        account = mailboxes.active_registration(connection, address).id
        folders = mailboxes.folders(connection, account)
        rows = {folder.name: mailboxes.rows(connection, folder.id) for folder in folders}
        subscribed = mailboxes.subscriptions(connection, account)
    return {
        "subscribed": subscribed,
        **{
            name: [
                (transport.content.octets(row.message_id), row.flags, row.keywords, row.internal_date)
                for row in messages
            ]
            for name, messages in rows.items()
        },
    }


def export(transport: Transport, target: Path, form: Format, address: str | None = None) -> Exported:
    return Exporter(transport, str(target), form, address).run()


def import_mail(transport: Transport, path: Path, address: str, folder: str | None = None) -> Imported:
    return Importer(transport, find_source(str(path), address), address, folder).run()
