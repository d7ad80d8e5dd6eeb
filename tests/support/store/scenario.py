"""One of every operation, in an order that makes them meet each other."""

from __future__ import annotations

from collections.abc import Iterator

from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder

CAROL = "carol@example.test"
PICTURE = bytes(range(256)) * 30
LATER = 2**40


def steps(store: Transport) -> Iterator[str]:
    """Run it on a store with ``ADA`` and ``BOB``; each step commits at least one record."""

    def inbox() -> int:
        return folder(store).id

    deliver(store, ADA, BOB, octets=message("one", message_id="<1@x>", attachments=[PICTURE]))
    yield "deliver"
    deliver(
        store, ADA, octets=message("two", message_id="<2@x>", in_reply_to="<1@x>", attachments=[PICTURE, b"z" * 99])
    )
    yield "deliver a reply"
    store.run(op.Deliver(store.stage(message("three")), BOB, [ADA], keep_sent=True))
    yield "submit"
    append(store, "Drafts", message("four"), message("five"), flags=Flag.DRAFT, keywords=("k", "l"))
    yield "append"
    store.run(op.ChangeFlags(ADA, inbox(), [1, 3], "add", Flag.READ | Flag.DELETED, ["k"]))
    yield "flags"
    store.run(op.ChangeFlags(ADA, inbox(), [3], "set", Flag.STARRED))
    yield "set flags"
    store.run(op.CreateFolder(ADA, "Work/2026"))
    yield "create"
    store.run(op.Copy(ADA, inbox(), [1, 2, 3], "Work/2026"))
    yield "copy"
    store.run(op.Move(ADA, inbox(), [2], "Archive"))
    yield "move"
    store.run(op.Expunge(ADA, inbox()))
    yield "expunge"
    store.run(op.RenameFolder(ADA, "Work", "Büro/Alt"))
    yield "rename"
    store.run(op.RenameFolder(ADA, "INBOX", "INBOX/Old"))
    yield "rename INBOX"
    store.run(op.CreateFolder(ADA, "x" * 300))
    yield "create with a long name"
    store.run(op.RenameFolder(ADA, "x" * 300, "Work"))
    yield "rename to a short name"
    store.run(op.DeleteFolder(ADA, "Büro/Alt/2026"))
    yield "delete"
    store.run(op.Subscribe(ADA, "Büro/Alt/2026"))
    yield "subscribe"
    store.run(op.Subscribe(ADA, "Sent", on=False))
    yield "unsubscribe"
    store.run(op.DeleteFolder(ADA, "INBOX/Old"))
    yield "delete with messages"
    store.run(op.Collect(LATER))
    yield "collect"
    store.run(op.Register(CAROL))
    yield "register"
    deliver(store, CAROL, BOB, octets=message("six", attachments=[b"c" * 4000]))
    yield "deliver to the new one"
    store.run(op.Deregister(CAROL))
    yield "deactivate"
    store.run(op.Register(CAROL))
    yield "register again"
    store.run(op.Register(CAROL, "stash"))
    yield "register by stash"
    deliver(store, CAROL, octets=message("seven", attachments=[b"d" * 4000]))
    yield "deliver to the second"
    store.run(op.Deregister(CAROL, "purge"))
    yield "purge"
    store.run(op.Register(CAROL))
    yield "register after the purge"
    store.run(op.Deregister(BOB, "stash"))
    yield "stash"
