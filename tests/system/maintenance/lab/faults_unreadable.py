"""Faults that make files unreadable: nothing is removed because of them."""

from __future__ import annotations

from adapter.store import layout
from tests.system.maintenance.lab.faults import fault
from tests.system.maintenance.lab.victims import Victims


@fault("disk", "unreadable")
def message_unreadable(v: Victims) -> None:
    v.make_unreadable(v.file_path(v.content(journaled=False)))


@fault("disk", "unreadable")
def blob_unreadable(v: Victims) -> None:
    v.make_unreadable(v.blob_path(v.any_part()))


@fault("disk", "unreadable")
def folder_identity_unreadable(v: Victims) -> None:
    v.make_unreadable(v.folder_path(v.directory()) / layout.IDENTITY_FILE)


@fault("disk", "unreadable")
def folder_closed(v: Victims) -> None:
    place = v.directory(v.shows_no_renewed)
    v.closed.add(place.id)
    v.make_unreadable(v.folder_path(place))
