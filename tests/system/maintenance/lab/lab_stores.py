"""Stores to damage: one with all features, and random ones."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

from adapter.store import layout
from adapter.store.effects import LostPlace, MarkDamaged, MarkLost, Unproject, UnprojectedRow
from adapter.transport import operations as op
from adapter.transport.operations import RelayRecipient
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.mail.real_mail import RealMail
from tests.support.messages import message
from tests.support.store.loss_records import Emit
from tests.support.stores import ADA, BOB, append, deliver, folder, new_store, rows

CAROL = "carol@example.test"
ACCOUNTS = (ADA, BOB, CAROL)
_LONG_NAME = "x" * 300
_MORE_FOLDERS = ("Projects/Engine", "Büro/Alt~1", _LONG_NAME, "INBOX/deep")
_FOLDERS = ("Projects", *_MORE_FOLDERS, "Sent", "Archive", "Trash")
_LATER = 2**40
LOSSES = "Losses"
_REAL_MAIL = RealMail(1)


def build(root: Path, *, snapshot: bool = False, losses: bool = False) -> None:
    """Flags, keywords, copies, expunges, folders, attachments, threads, an outbox, and purged content."""
    with new_store(root, *ACCOUNTS) as transport:
        for number in range(8):
            octets = message(
                f"Message {number}",
                message_id=f"<{number}@example.test>",
                in_reply_to=f"<{number - 1}@example.test>" if number % 2 else None,
                to=f"{ADA}, {BOB}" if number < 3 else ADA,
                attachments=[b"part %d" % number, *([b"another"] if number == 4 else [])] if number >= 4 else [],
            )
            deliver(transport, *((ADA, BOB) if number < 3 else (ADA,)), octets=octets)
        deliver(transport, CAROL, octets=message("Gone", message_id="<gone@x>"))
        remove_for_good(transport, CAROL)
        if snapshot:
            transport.snapshot()
        transport.run(op.CreateFolder(ADA, "Projects/Engine"))
        transport.run(op.Subscribe(ADA, "Projects/Engine"))
        for spare in ("Spare", "Spare 2", "Spare 3"):
            transport.run(op.CreateFolder(BOB, spare))
        transport.run(op.CreateFolder(CAROL, _LONG_NAME))
        append(transport, "Projects/Engine", message("Note 1", message_id="<n1@x>"), flags=1, keywords=("todo",))
        append(transport, "Projects/Engine", message("Note 2", message_id="<n2@x>"), flags=4)
        append(transport, "Archive", message("Old", message_id="<old@x>"), flags=1)
        inbox = folder(transport)
        transport.run(op.ChangeFlags(ADA, inbox.id, [1, 2], "add", 1, ["seen-it"]))
        transport.run(op.Copy(ADA, inbox.id, [1], "Projects"))
        transport.run(op.ChangeFlags(ADA, inbox.id, [3], "add", 8))
        transport.run(op.Expunge(ADA, inbox.id))
        send_away(transport, "Elsewhere")
        _deliver_as_asked(transport)
        deliver(transport, CAROL, octets=message("For Carol", message_id="<carol@x>", to=CAROL))
        append(transport, "Archive", *_too_large_for_the_journal(), keywords=("large",))
        if losses:
            append(transport, "Archive", message("Large 2", "barrel\r\n" * 60_000), message("Small"))
            lose_some(transport, backup(root))


def backup(root: Path) -> Path:
    """The directory for copies of files that were lost in a store."""
    return root.parent / "backup"


def lose_some(transport: Transport, kept: Path) -> None:
    """A message with a lost part and a lost message, both recorded by a repair; copies of the files are kept."""
    kept.mkdir(exist_ok=True)
    transport.run(op.CreateFolder(CAROL, LOSSES))
    texts = [message(subject, "word\r\n" * 60_000, attachments=[subject.encode() * 40_000])
             for subject in ("Damaged", "Lost")]  # fmt: skip
    append(transport, LOSSES, *texts, address=CAROL, flags=5, keywords=("once",))
    place = folder(transport, LOSSES, CAROL)
    damaged, lost = rows(transport, LOSSES, CAROL)
    part = transport.index.query("SELECT sha256 FROM message_attachments WHERE message_id = ?", (damaged.message_id,))
    where = LostPlace(place.id, lost.uid, lost.internal_date, lost.saved_at, lost.flags, lost.keywords)
    taken_out = Unproject.out_of(place, place.highestmodseq + 1, (UnprojectedRow(lost.uid, lost.message_id),))
    transport.run(Emit((MarkDamaged(damaged.message_id, part[0][0]), taken_out, MarkLost(lost.message_id, (where,)))))
    for parts in (
        (*layout.blob_directory(part[0][0]), part[0][0]),
        (*layout.message_directory(lost.message_id), layout.message_name(lost.message_id)),
    ):
        Path(transport.root, *parts).rename(kept / parts[-1])


def _deliver_as_asked(transport: Transport) -> None:
    """The sender requests a notification (RFC 3461)."""
    asked = op.DsnRequests([op.RecipientRequest(BOB, [BOB], frozenset({"SUCCESS"}), "rfc822;Bob@X")], envid="E-1")
    transport.run(op.Deliver(transport.stage(message("Asked", to=BOB)), ADA, [BOB], requests=asked))


def _too_large_for_the_journal() -> tuple[bytes, bytes]:
    """A message and a part that exist only as files."""
    return message("Large", "bottle\r\n" * 60_000), message("Large part", attachments=[bytes(range(256)) * 1200])


def build_random(root: Path, chance: random.Random, *, losses: bool = False) -> None:
    """Run a random mix of operations; those that do not fit the store are skipped."""
    with new_store(root, *ACCOUNTS) as transport:
        for address in ACCOUNTS:
            transport.run(op.CreateFolder(address, chance.choice(_MORE_FOLDERS)))
        for number in range(chance.randint(8, 24)):
            with contextlib.suppress(MailError):
                _one_operation(transport, chance, number)
        if losses and chance.random() < 0.5:
            with contextlib.suppress(MailError):  # Carol's account may have been removed
                lose_some(transport, backup(root))


def _one_operation(transport: Transport, chance: random.Random, number: int) -> None:
    address = chance.choice(ACCOUNTS)
    name = chance.choice(("INBOX", *_FOLDERS))
    what = chance.choice(
        ("deliver",) * 5 + ("large", "append", "flags", "copy", "move", "expunge", "folder") + ("rare",) * 2
    )
    if what == "deliver":
        deliver(transport, *chance.sample(ACCOUNTS, chance.randint(1, 3)), octets=_octets(chance, number))
    elif what == "large":
        append(
            transport, name, chance.choice(_too_large_for_the_journal()), address=address, flags=chance.randrange(32)
        )
    elif what == "append":
        words = tuple(chance.sample(["todo", "Später", "x"], chance.randint(0, 2)))
        append(transport, name, _octets(chance, number), address=address, flags=chance.randrange(32), keywords=words)
    elif what == "flags":
        changed = op.ChangeFlags(address, folder(transport, name, address).id, [1, 2, 3], "add", chance.randrange(32))
        transport.run(changed)
    elif what in ("copy", "move"):
        folder_rows = rows(transport, name, address)
        uids = [row.uid for row in folder_rows if chance.random() < 0.5]
        operation = op.Copy if what == "copy" else op.Move
        transport.run(operation(address, folder(transport, name, address).id, uids, chance.choice(_FOLDERS)))
    elif what == "expunge":
        inbox = folder(transport, name, address).id
        transport.run(op.ChangeFlags(address, inbox, [1, 3], "add", 8))
        transport.run(op.Expunge(address, inbox))
    elif what == "folder":
        if chance.random() < 0.7:
            transport.run(op.CreateFolder(address, name))
        else:
            transport.run(op.DeleteFolder(address, name))
    else:
        _rare(transport, chance, address, name)


def _rare(transport: Transport, chance: random.Random, address: str, name: str) -> None:
    what = chance.choice(("rename", "subscribe", "collect", "queue", "snapshot", "stash"))
    if what == "rename":
        transport.run(op.RenameFolder(address, name, chance.choice(_FOLDERS)))
    elif what == "subscribe":
        transport.run(op.Subscribe(address, name, on=chance.random() < 0.5))
    elif what == "collect":
        remove_for_good(transport, address)
    elif what == "queue":
        send_away(transport, f"Queued {chance.random()}")
    elif what == "snapshot":
        transport.snapshot()
    else:
        transport.run(op.Register(CAROL, "stash"))


def _octets(chance: random.Random, number: int) -> bytes:
    """A malformed message, or one with threads, HTML and attachments like real mail."""
    if chance.random() < 0.5:
        return _REAL_MAIL.octets(number)
    return message(
        f"Letter {number}",
        "".join(chance.choices("Grüße, \n.", k=chance.randint(0, 200))).replace("\n", "\r\n"),
        message_id=f"<{number}@example.test>" if chance.random() < 0.8 else None,
        in_reply_to=f"<{chance.randint(0, 20)}@example.test>" if chance.random() < 0.3 else None,
        to=", ".join(chance.sample(ACCOUNTS, chance.randint(1, 3))),
        attachments=[chance.randbytes(chance.choice((5, 3000, 300_000)))] if chance.random() < 0.3 else [],
    )


def remove_for_good(transport: Transport, address: str) -> None:
    """Purge all messages of an inbox, with content that no other folder shows."""
    inbox = folder(transport, address=address)
    uids = [row.uid for row in rows(transport, address=address)]
    transport.run(op.ChangeFlags(address, inbox.id, uids, "add", 8))
    transport.run(op.Expunge(address, inbox.id))
    transport.run(op.Collect(_LATER))


def send_away(transport: Transport, subject: str) -> None:
    staged = transport.stage(message(subject, to="zoe@elsewhere.test"))
    transport.run(op.Deliver(staged, ADA, [], relay=[RelayRecipient("zoe@elsewhere.test")]))
