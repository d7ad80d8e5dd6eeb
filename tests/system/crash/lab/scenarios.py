"""Scenarios of the crash tests: every operation, alone and together.

A scenario is a list of actions. Run one by one, each is acknowledged before the next starts; run grouped, all are
committed by one call of the writer, as operations that wait together are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adapter.store.effects import FlagChange
from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.operations.base import AnyOperation
from adapter.transport.staging import INLINE_BYTES
from adapter.transport.transport import Transport
from protocol.smtp.commands import Ret
from tests.system.crash.lab import letters
from tests.system.crash.lab.world import (
    ADA,
    BOB,
    CARL,
    CLUTTERED,
    DORA,
    LONELY_BLOB,
    LONG,
    NEW,
    REMOTE,
    SHARED_BLOB,
    append,
    folder_id,
    queue_ids,
)

#: Returns the operation to commit; an action other than an operation does its work and returns None.
Action = Callable[[Transport], AnyOperation | None]

LARGE = INLINE_BYTES + 50_000


@dataclass(frozen=True)
class Scenario:
    name: str
    actions: Sequence[Action]
    grouped: bool = False
    prepare: Sequence[Action] = ()  # done, and made durable, beforehand
    refused: int = 0  # how many of the last actions fail, for now, when all are committed together
    upkeep: bool = False  # not an operation: what it leaves behind when it fails goes when the store is opened again
    closing: bool = False  # test the steps of closing the store as well: they are the same for most

    def __str__(self) -> str:
        return self.name

    @property
    def reached(self) -> int:
        """Number of actions done when all went well."""
        return len(self.actions) - self.refused


def deliver(octets: bytes, recipients: Sequence[str], sender: str = BOB, *, keep_sent: bool = False) -> Action:
    return lambda transport: op.Deliver(transport.stage(octets), sender, recipients, keep_sent=keep_sent)


def deliver_spooled(octets: bytes, recipients: Sequence[str]) -> Action:
    """As a server receives it: in chunks, through the spool."""

    def action(transport: Transport) -> AnyOperation:
        with transport.spool() as spool:
            for start in range(0, len(octets), 100_000):
                spool.write(octets[start : start + 100_000])
            return op.Deliver(spool.stage(), BOB, recipients)

    return action


def flags(folder: str, chosen: Sequence[int], how: FlagChange, bits: int, keywords: Sequence[str] = ()) -> Action:
    return lambda transport: op.ChangeFlags(ADA, folder_id(transport, ADA, folder), chosen, how, bits, keywords)


def rename(old: str, new: str) -> Action:
    return lambda _: op.RenameFolder(ADA, old, new)


def put(folder: str, *items: bytes, bits: int = 0, address: str = ADA) -> Action:
    return lambda transport: append(transport, address, folder, *items, flags=bits)


def replace(transport: Transport) -> AnyOperation:
    source = folder_id(transport, ADA, "Red")
    item = op.AppendItem(transport.stage(letters.plain(103)), int(Flag.DRAFT), ["draft"], 1_700_000_000)
    return op.Append(ADA, "Drafts", [item], replaces=(source, [1]))


def replace_sent_copy(transport: Transport) -> AnyOperation:
    """The client's version of a message takes the place of the one that submission stored."""
    item = op.AppendItem(transport.stage(letters.plain(104)), int(Flag.READ))
    return op.Append(ADA, "Red", [item], find_twin=lambda plan, folder: op.Twin(1, yields=True))


def keep_sent_copy(transport: Transport) -> AnyOperation:
    """The client's version is there already when the message is submitted."""
    staged = transport.stage(letters.plain(105))
    return op.Deliver(staged, BOB, [ADA], keep_sent=True, find_twin=lambda plan, folder: op.Twin(1, yields=False))


def copy(folder: str, chosen: Sequence[int], to: str) -> Action:
    return lambda transport: op.Copy(ADA, folder_id(transport, ADA, folder), chosen, to)


def move(folder: str, chosen: Sequence[int], to: str) -> Action:
    return lambda transport: op.Move(ADA, folder_id(transport, ADA, folder), chosen, to)


def expunge(folder: str) -> Action:
    return lambda transport: op.Expunge(ADA, folder_id(transport, ADA, folder))


def run(operation: AnyOperation) -> Action:
    return lambda _: operation


def expire(folder: str, limit: int) -> Action:
    return lambda transport: op.Expire(ADA, folder_id(transport, ADA, folder), int(time.time()) + 10, limit)


def collect(_: Transport) -> AnyOperation:
    return op.Collect(int(time.time()) + 10)


def relay(transport: Transport) -> AnyOperation:
    staged = transport.stage(letters.with_files(120, b"for elsewhere"))
    elsewhere = [op.RelayRecipient(address, frozenset({"SUCCESS"})) for address in REMOTE]
    return op.Deliver(staged, BOB, [ADA], keep_sent=True, relay=elsewhere)


def asked_to_report(transport: Transport) -> AnyOperation:
    wishes = [op.RecipientRequest(address, [address], frozenset({"SUCCESS"}), "rfc822;X@Y") for address in (ADA, BOB)]
    requests = op.DsnRequests(wishes, Ret.FULL, "Envelope")
    return op.Deliver(transport.stage(letters.plain(123)), BOB, [ADA, BOB], requests=requests)


def try_later(transport: Transport) -> AnyOperation:
    items = [op.Requeued(item, 1_900_000_000, 1, "451 later", delay_warned=True) for item in queue_ids(transport)]
    return op.UpdateQueue(items, op.QueueReport(transport.stage(letters.plain(121)), ADA))


def give_up(transport: Transport) -> AnyOperation:
    items = [op.Finished(item, "failed", "550 no") for item in queue_ids(transport)]
    return op.FinishQueue(items, op.QueueReport(transport.stage(letters.plain(122)), ADA))


def mirror(number: int) -> Action:
    """A message of another server comes with its bookmark."""

    def action(transport: Transport) -> AnyOperation:
        item = op.AppendItem(transport.stage(letters.plain(number)), int(Flag.READ), ["there"], 1_700_000_000)
        return op.MirrorAppend(ADA, folder_id(transport, ADA, "Red"), item, "pull work", f"1.{number}")

    return action


def follow_mirror(transport: Transport) -> AnyOperation:
    """One is flagged there, one is gone, and that this was seen is noted."""
    change = op.MirrorChange("1.130", int(Flag.STARRED), ["other"])
    return op.UpdateMirror(ADA, "pull work", [change], ["1.131"], {"state": "1 132 1 9"})


def snapshot(transport: Transport) -> None:
    transport.snapshot()


def checkpoint(transport: Transport) -> None:
    transport.checkpoint()


_SWAP = (rename("Red", "Aside"), rename("Blue", "Red"), rename("Aside", "Blue"))

SCENARIOS = (
    Scenario("register", [run(op.Register(NEW))]),
    Scenario("register force", [run(op.Register(BOB, "force"))], prepare=[run(op.DeleteFolder(BOB, "Junk"))]),
    Scenario("register stash", [run(op.Register(ADA, "stash"))]),
    Scenario("register reactivate", [run(op.Register(DORA))]),
    Scenario("deregister deactivate", [run(op.Deregister(BOB, "deactivate"))]),
    Scenario("deregister stash", [run(op.Deregister(ADA, "stash"))]),
    Scenario("deregister purge", [run(op.Deregister(DORA, "purge"))]),
    Scenario("purge with clutter", [run(op.Deregister(CARL, "purge"))]),
    Scenario("deliver to many", [deliver(letters.plain(100, reply_to=3), [ADA, CARL, DORA], keep_sent=True)]),
    Scenario("deliver small files", [deliver(letters.with_files(101, b"a" * 900, b"b" * 900), [ADA, BOB])]),
    Scenario(
        "deliver large file",
        [deliver(letters.with_files(101, letters.noise(7, LARGE), b"small"), [ADA])],
        closing=True,
    ),
    Scenario("deliver large body", [deliver_spooled(letters.plain(101, size=LARGE), [ADA, BOB])], closing=True),
    Scenario("deliver known blob", [deliver(letters.with_files(101, SHARED_BLOB, LONELY_BLOB), [BOB])]),
    Scenario("append", [put("Archive", letters.plain(102), bits=int(Flag.READ))]),
    Scenario(
        "append several", [put(LONG, letters.plain(102), letters.with_files(103, b"x", b"x"), letters.plain(104))]
    ),
    Scenario("append replace", [replace]),
    Scenario("sent copy replaced", [replace_sent_copy]),
    Scenario("sent copy kept", [keep_sent_copy], prepare=[put("Sent", letters.plain(105), address=BOB)]),
    Scenario("flags add", [flags("INBOX", [1, 2, 3], "add", int(Flag.READ), ["$Label1", "red"])]),
    Scenario("flags remove", [flags("INBOX", [1, 6], "remove", int(Flag.STARRED | Flag.DELETED), ["BLUE"])]),
    Scenario("flags set", [flags("INBOX", [1, 3, 6], "set", int(Flag.ANSWERED), ["set"])]),
    Scenario("copy", [copy("INBOX", [1, 3, 4], "Archive")]),
    Scenario("move", [move("INBOX", [1, 2, 3], "Projects/2026")]),
    Scenario("move within", [move("Red", [1, 2], "Red")]),
    Scenario("expunge", [expunge("INBOX")]),
    Scenario("create nested", [run(op.CreateFolder(ADA, "One/Two/Three"))]),
    Scenario("create long", [run(op.CreateFolder(ADA, "New " + "y" * 300))]),
    Scenario("rename with children", [rename("Projects", "Work/Old")]),
    Scenario("rename long", [rename(LONG, "Short")]),
    Scenario("rename to long", [rename("Red", "Red " + "z" * 300)]),
    Scenario("rename swap", list(_SWAP), grouped=True),
    Scenario("rename inbox", [rename("INBOX", "Old mail")]),
    Scenario("rename cluttered", [run(op.RenameFolder(CARL, CLUTTERED, "Tidy"))]),
    Scenario("delete", [run(op.DeleteFolder(ADA, "Red"))]),
    Scenario("delete long", [run(op.DeleteFolder(ADA, LONG))]),
    Scenario("delete cluttered", [run(op.DeleteFolder(CARL, CLUTTERED))]),
    Scenario("delete and create", [run(op.DeleteFolder(ADA, "Red")), run(op.CreateFolder(ADA, "Red"))], grouped=True),
    Scenario("subscribe", [run(op.Subscribe(ADA, "Nowhere"))]),
    Scenario("unsubscribe", [run(op.Subscribe(ADA, "Sent", on=False))]),
    Scenario("expire", [expire("INBOX", 3)]),
    Scenario("collect", [collect]),
    Scenario("relay", [relay]),
    Scenario("deliver as asked", [asked_to_report]),
    Scenario("outbox try later", [try_later]),
    Scenario("outbox give up", [give_up]),
    Scenario("mirror", [mirror(130)]),
    Scenario("bookmarks", [run(op.SetBookmarks("hook agent", {"cursor": "7 1700000000", "retry": "x"}))]),
    Scenario("mirror update", [follow_mirror], prepare=[mirror(130), mirror(131)]),
    Scenario(
        "snapshot",
        [snapshot],
        prepare=[snapshot, put("Lists", letters.plain(90)), snapshot, run(op.Register(NEW))],
        upkeep=True,
    ),
    Scenario(
        "group",
        [
            deliver(letters.plain(110), [ADA, BOB]),
            deliver(letters.with_files(111, b"c" * 500), [ADA], keep_sent=True),
            deliver(letters.with_files(112, b"c" * 500, letters.noise(8, LARGE)), [CARL]),
            flags("INBOX", [1, 2], "add", int(Flag.READ)),
            copy("Red", [1], "Blue"),
            move("INBOX", [3], "Lists"),
            run(op.CreateFolder(ADA, "Later")),
            put("Lists", letters.plain(113)),
            expunge("INBOX"),
            run(op.DeleteFolder(ADA, "Empty")),
        ],
        grouped=True,
    ),
    # The blob only a collected message needs is wanted again in the same breath.
    Scenario(
        "group collect and deliver",
        [collect, deliver(letters.with_files(114, LONELY_BLOB), [CARL])],
        grouped=True,
        refused=1,
        closing=True,
    ),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
