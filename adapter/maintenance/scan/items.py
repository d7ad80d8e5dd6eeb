"""Work items of a scan: typed lines of a partition file, as the driver writes and an executor reads them."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from adapter.store import layout


class MessageItem(Struct, frozen=True, tag_field="what", tag="message"):
    """Files of a directory below messages/."""

    part: ClassVar[str] = "message"
    where: layout.Parts
    names: list[str]


class BlobItem(Struct, frozen=True, tag_field="what", tag="blob"):
    """Files of a directory below attachments/."""

    part: ClassVar[str] = "blob"
    where: layout.Parts
    names: list[str]


class LinkItem(Struct, frozen=True, tag_field="what", tag="link"):
    """Links of a folder. ``stamp``: that of the directory, "" if its rows must not be reused."""

    part: ClassVar[str] = "link"
    where: layout.Parts
    stamp: str
    names: list[str]


class FolderItem(Struct, frozen=True, tag_field="what", tag="folder"):
    """The directory of a folder, with the number of its links."""

    part: ClassVar[str] = "folder"
    where: layout.Parts
    links: int


class MailboxItem(Struct, frozen=True, tag_field="what", tag="mailbox"):
    """The directory of a mailbox, with the number of its folders."""

    part: ClassVar[str] = "mailbox"
    where: layout.Parts
    links: int


class TableItem(Struct, frozen=True, tag_field="what", tag="table"):
    """A range of keys of a table. ``detail``: read its rows instead of their sums. ``is_copy``: of the copied index."""

    part: ClassVar[str] = "table"
    table: str
    keys: list[str]
    detail: bool
    is_copy: bool = False
    low: list[Any] | None = None
    high: list[Any] | None = None


class CompareItem(Struct, frozen=True, tag_field="what", tag="compare"):
    """A range of keys of a table, to be compared between the expected tables and the index."""

    part: ClassVar[str] = "compare"
    table: str
    keys: list[str]
    low: list[Any] | None = None
    high: list[Any] | None = None


FileItem = MessageItem | BlobItem | LinkItem | FolderItem | MailboxItem
Item = FileItem | TableItem | CompareItem
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Item).decode
