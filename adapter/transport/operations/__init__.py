"""The operations of the store: every mutation is one of these, and all go through the one writer."""

from adapter.transport.operations.base import Operation
from adapter.transport.operations.delivery import Append, AppendItem, Deliver, Delivery, Placed, Twin
from adapter.transport.operations.envelopes import DsnRequests, RecipientRequest, RelayEnvelope, RelayRecipient
from adapter.transport.operations.folders import CreateFolder, DeleteFolder, RenameFolder, Subscribe
from adapter.transport.operations.messages import (
    ChangeFlags,
    Collect,
    Copied,
    Copy,
    Expire,
    Expunge,
    Expunged,
    FlagsChanged,
    Move,
)
from adapter.transport.operations.mirror import MirrorAppend, MirrorChange, MirrorUpdated, SetBookmarks, UpdateMirror
from adapter.transport.operations.outbox import Finished, FinishQueue, QueueReport, Requeued, StaleReport, UpdateQueue
from adapter.transport.operations.registration import Deregister, Register

__all__ = [
    "Append",
    "AppendItem",
    "ChangeFlags",
    "Collect",
    "Copied",
    "Copy",
    "CreateFolder",
    "DeleteFolder",
    "Deliver",
    "Delivery",
    "Deregister",
    "DsnRequests",
    "Expire",
    "Expunge",
    "Expunged",
    "FinishQueue",
    "Finished",
    "FlagsChanged",
    "MirrorAppend",
    "MirrorChange",
    "MirrorUpdated",
    "Move",
    "Operation",
    "Placed",
    "QueueReport",
    "RecipientRequest",
    "Register",
    "RelayEnvelope",
    "RelayRecipient",
    "RenameFolder",
    "Requeued",
    "SetBookmarks",
    "StaleReport",
    "Subscribe",
    "Twin",
    "UpdateMirror",
    "UpdateQueue",
]
