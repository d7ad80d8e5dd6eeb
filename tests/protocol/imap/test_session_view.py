"""The session's view: exact octets in each dialect, and its cost in large folders."""

from __future__ import annotations

import sys
import time
import tracemalloc
from array import array
from collections.abc import Sequence

import pytest

from protocol.errors import ProtocolError
from protocol.imap.commands.registry import COMMANDS
from protocol.imap.flags import SEEN, FlagTable
from protocol.imap.sequence_set import SAVED, parse_set
from protocol.imap.session_view import Emission, FlagUpdate, FolderChange, View, emission
from protocol.imap.wire.lexer import PLAIN, Dialect

CONDSTORE = Dialect(condstore=True)
QRESYNC = Dialect(condstore=True, qresync=True)
UIDONLY = Dialect(uid_only=True)


class Folder:
    """Mask and mod-sequence of every message are derived from its UID."""

    def __init__(self) -> None:
        self.flags = FlagTable()

    def masks(self, uids: Sequence[int]) -> list[int]:
        return [SEEN if uid % 2 else 0 for uid in uids]

    def modseqs(self, uids: Sequence[int]) -> list[int]:
        return [uid + 1000 for uid in uids]


FOLDER = Folder()


def uids(*numbers: int) -> array[int]:
    return array("I", numbers)


def view(*numbers: int, dialect: Dialect = PLAIN) -> View:
    return View(uids(*numbers), 1, FOLDER.flags, dialect)


def flush(seen: View, point: Emission = Emission.ALL) -> bytes:
    return seen.flush(point, FOLDER)


@pytest.mark.parametrize(
    ("command", "numbers", "expected"),
    [
        ("FETCH", False, Emission.NO_EXPUNGE),
        ("STORE", False, Emission.NO_EXPUNGE),
        ("SEARCH", False, Emission.NO_EXPUNGE),
        ("SORT", False, Emission.NO_EXPUNGE),
        ("THREAD", False, Emission.NO_EXPUNGE),
        ("UID FETCH", False, Emission.ALL),
        ("UID STORE", False, Emission.ALL),
        ("UID SEARCH", False, Emission.ALL),
        ("UID SEARCH", True, Emission.NO_EXPUNGE),
        ("UID SORT", True, Emission.NO_EXPUNGE),
        ("NOOP", False, Emission.ALL),
        ("IDLE", False, Emission.ALL),
        ("COPY", False, Emission.ALL),
        ("EXPUNGE", False, Emission.ALL),
        (None, False, Emission.NO_EXPUNGE),
    ],
)
def test_where_expunges_are_allowed(command: str | None, numbers: bool, expected: Emission) -> None:
    assert emission(COMMANDS[command] if command else None, uses_numbers=numbers) is expected


def test_new_messages_are_announced_by_exists() -> None:
    seen = view(5, 6)
    seen.apply(FolderChange(uids(5, 6, 9), 2))
    seen.apply(FolderChange(uids(5, 6, 9, 10), 3))
    assert seen.pending
    assert len(seen) == 2
    assert flush(seen, Emission.NO_EXPUNGE) == b"* 4 EXISTS\r\n"
    assert flush(seen) == b""
    assert not seen.pending


def test_expunges_are_held_back_and_merged() -> None:
    seen = view(5, 6, 7, 8)
    seen.apply(FolderChange(uids(5, 7, 8), 2, expunged=[6]))
    seen.apply(FolderChange(uids(5, 7, 8, 9), 3))
    seen.apply(FolderChange(uids(7, 8, 9), 4, expunged=[5]))
    assert flush(seen, Emission.NO_EXPUNGE) == b"* 5 EXISTS\r\n"
    assert list(seen.by_number(parse_set(b"1:*")).uids) == [7, 8, 9]
    assert list(seen.by_number(parse_set(b"1:*")).numbers) == [3, 4, 5]
    assert seen.by_number(parse_set(b"2")).has_expunged
    assert flush(seen) == b"* 2 EXPUNGE\r\n* 1 EXPUNGE\r\n"
    assert list(seen.uids) == [7, 8, 9]


def test_message_added_and_expunged_between_flushes_is_never_mentioned() -> None:
    seen = view(5)
    seen.apply(FolderChange(uids(5, 6), 2))
    seen.apply(FolderChange(uids(5), 3, expunged=[6]))
    assert not seen.pending
    assert flush(seen) == b""


def test_expunge_is_announced_before_new_messages() -> None:
    seen = view(5, 6)
    seen.apply(FolderChange(uids(6, 7), 2, expunged=[5]))
    assert flush(seen) == b"* 1 EXPUNGE\r\n* 2 EXISTS\r\n"


def test_qresync_and_uidonly_announce_vanished() -> None:
    for dialect in (QRESYNC, UIDONLY):
        seen = view(5, 6, 7, 9, dialect=dialect)
        seen.apply(FolderChange(uids(9), 2, expunged=[5, 6, 7]))
        assert flush(seen) == b"* VANISHED 5:7\r\n"


def test_flags_in_each_dialect() -> None:
    change = FolderChange(uids(5, 6), 2, flagged=[6, 5])
    expected = {
        PLAIN: b"* 1 FETCH (UID 5 FLAGS (\\Seen))\r\n* 2 FETCH (UID 6 FLAGS ())\r\n",
        CONDSTORE: (b"* 1 FETCH (UID 5 FLAGS (\\Seen) MODSEQ (1005))\r\n* 2 FETCH (UID 6 FLAGS () MODSEQ (1006))\r\n"),
        UIDONLY: b"* 5 UIDFETCH (FLAGS (\\Seen))\r\n* 6 UIDFETCH (FLAGS ())\r\n",
    }
    for dialect, sent in expected.items():
        seen = view(5, 6, dialect=dialect)
        seen.apply(change)
        seen.apply(change)
        assert flush(seen) == sent
        assert flush(seen) == b""


def test_silent_change_announces_at_most_the_modseq() -> None:
    change = FolderChange(uids(5, 6), 2, flagged=[5])
    seen = view(5, 6)
    seen.apply(change, FlagUpdate.SILENT)
    assert flush(seen) == b""
    # RFC 7162 3.1.3: the mod-sequence is announced
    seen = view(5, 6, dialect=CONDSTORE)
    seen.apply(change, FlagUpdate.SILENT)
    assert flush(seen) == b"* 1 FETCH (UID 5 MODSEQ (1005))\r\n"
    # RFC 3501 6.4.6: changes by other sessions are announced with flags
    for order in ((FlagUpdate.SILENT, FlagUpdate.FLAGS), (FlagUpdate.FLAGS, FlagUpdate.SILENT)):
        seen = view(5, 6)
        for report in order:
            seen.apply(change, report)
        assert flush(seen) == b"* 1 FETCH (UID 5 FLAGS (\\Seen))\r\n"


def test_touched_flags_are_announced_unless_a_fetch_carried_them() -> None:
    seen = view(5, 6)
    seen.touch([5, 6, 99])
    seen.mark_fetched_flags([6])
    assert flush(seen) == b"* 1 FETCH (UID 5 FLAGS (\\Seen))\r\n"
    seen.touch([5])
    seen.mark_fetched_flags([5, 6])
    assert flush(seen) == b""


def test_flags_of_unannounced_and_expunged_messages() -> None:
    seen = view(5)
    seen.apply(FolderChange(uids(5, 6), 2))
    seen.apply(FolderChange(uids(5, 6), 3, flagged=[5, 6]))
    seen.apply(FolderChange(uids(6), 4, expunged=[5]))
    assert flush(seen, Emission.NO_EXPUNGE) == b"* 2 EXISTS\r\n"
    assert flush(seen) == b"* 1 EXPUNGE\r\n"


def test_new_keyword_is_announced_before_its_first_message() -> None:
    folder = Folder()
    seen = View(uids(5), 1, folder.flags, PLAIN)
    folder.flags.mask(["$Junk"])
    seen.apply(FolderChange(uids(5), 2, flagged=[5]))
    lines = seen.flush(Emission.NO_EXPUNGE, folder).split(b"\r\n")
    assert lines[0] == b"* FLAGS (\\Seen \\Answered \\Flagged \\Deleted \\Draft $Junk)"
    assert lines[1].startswith(b"* OK [PERMANENTFLAGS (")
    assert lines[2].startswith(b"* 1 FETCH")


def test_modseq_is_held_back_while_expunges_are_pending() -> None:
    """RFC 7162 3.2."""
    seen = view(5, 6, dialect=QRESYNC)
    seen.apply(FolderChange(uids(6), 50, expunged=[5]))
    seen.apply(FolderChange(uids(6), 51, flagged=[6]))
    assert flush(seen, Emission.NO_EXPUNGE) == (
        b"* 2 FETCH (UID 6 FLAGS () MODSEQ (1006))\r\n* OK [HIGHESTMODSEQ 49] Expunges pending\r\n"
    )
    assert flush(seen, Emission.NO_EXPUNGE) == b""
    assert seen.flush(Emission.NO_EXPUNGE, FOLDER, modseq_sent=True).startswith(b"* OK [HIGHESTMODSEQ 49]")
    assert flush(seen) == b"* VANISHED 5\r\n* OK [HIGHESTMODSEQ 51] Highest\r\n"


def test_sequence_sets_resolve_to_announced_messages() -> None:
    seen = view(5, 6, 9)
    assert list(seen.by_number(parse_set(b"2,1,2:1")).uids) == [5, 6]
    assert list(seen.by_number(parse_set(b"*")).uids) == [9]
    assert list(seen.by_number(parse_set(b"7:*")).uids) == [9]
    assert list(seen.by_number(parse_set(b"1:4294967295")).numbers) == [1, 2, 3]
    assert list(seen.by_uid(parse_set(b"6:8")).numbers) == [2]
    assert list(seen.by_uid(parse_set(b"7:8,100")).uids) == []
    assert list(seen.by_uid(parse_set(b"100:*")).uids) == [9]
    for wrong in (b"4", b"1,4", b"4:9"):
        with pytest.raises(ProtocolError):
            seen.by_number(parse_set(wrong))
    empty = view()
    assert list(empty.by_number(parse_set(b"1:*")).uids) == []
    assert list(empty.by_uid(parse_set(b"1:*")).uids) == []


def test_saved_result_excludes_expunged_messages() -> None:
    seen = view(5, 6, 9)
    assert list(seen.by_uid(SAVED).uids) == []
    seen.save_result([5, 9])
    assert list(seen.by_number(SAVED).numbers) == [1, 3]
    seen.apply(FolderChange(uids(6, 9), 2, expunged=[5]))
    assert list(seen.by_uid(SAVED).uids) == [9]
    flush(seen)
    assert list(seen.by_number(SAVED).numbers) == [2]


def test_search_returns_announced_messages_only() -> None:
    seen = view(5, 6)
    current = uids(5, 6, 7)
    seen.apply(FolderChange(current, 2))
    assert list(seen.visible(current)) == [5, 6]
    assert list(seen.visible([5, 7])) == [5]
    flush(seen)
    assert seen.visible(current) is current
    assert seen.uids is current


def test_cost_in_a_large_folder() -> None:
    """Expunging half of 100,000 messages is one pass, and a view that is up to date has no list of its own."""
    everything = array("I", range(1, 200_001, 2))
    half = everything[::2]
    seen = View(everything, 1, FOLDER.flags, PLAIN)
    began = time.process_time()
    seen.apply(FolderChange(half, 2, expunged=everything[1::2]))
    sent = flush(seen)
    assert time.process_time() - began < 10
    assert sent.count(b"EXPUNGE") == 50_000
    assert sent.startswith(b"* 100000 EXPUNGE\r\n* 99998 EXPUNGE\r\n")
    assert seen.uids is half
    tracemalloc.start()
    views = [View(everything, 1, FOLDER.flags, PLAIN) for _ in range(1000)]
    for each in views:
        each.apply(FolderChange(half, 2))
        each.flush(Emission.ALL, FOLDER)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 1000 * 1000
    assert sys.getsizeof(everything) > 400_000


def arrive(seen: View, *numbers: int, exists_overlooked: bool = False, recent: tuple[int, int] | None = None) -> bytes:
    seen.apply(FolderChange(uids(*numbers), 9))
    if recent is not None:
        seen.add_recent(*recent)
    return seen.flush(Emission.ALL, FOLDER, exists_overlooked=exists_overlooked)


def test_recent_counts_announced_messages_only() -> None:
    seen = view(1, 2, 4)
    seen.add_recent(2, 5)
    assert seen.announce_recent() == 2
    assert arrive(seen, 1, 2, 4, 7, 8, recent=(8, 8)) == b"* 5 EXISTS\r\n* 3 RECENT\r\n"
    assert seen.recent == [(2, 5), (8, 8)]
    seen.apply(FolderChange(uids(1, 4, 7, 8), 10, expunged=[2]))
    assert flush(seen) == b"* 2 EXPUNGE\r\n* 2 RECENT\r\n"
    assert arrive(seen, 1, 4, 7, 8, 9) == b"* 5 EXISTS\r\n"  # recent to another session


def test_recent_is_shown_with_the_flags() -> None:
    seen = view(1, 2, 3)
    seen.add_recent(2, 3)
    seen.touch([1, 2, 3])
    assert flush(seen) == (
        b"* 2 RECENT\r\n* 1 FETCH (UID 1 FLAGS (\\Seen))\r\n"
        b"* 2 FETCH (UID 2 FLAGS (\\Recent))\r\n* 3 FETCH (UID 3 FLAGS (\\Recent \\Seen))\r\n"
    )


def test_revision_2_has_no_recent_messages() -> None:
    seen = view(1, 2, dialect=Dialect(rev2=True, utf8=True))
    assert arrive(seen, 1, 2, 3, recent=(1, 3), exists_overlooked=True) == b"* 3 EXISTS\r\n"
    assert (seen.recent, seen.recent_count) == ([], 0)
    assert seen.repeat_exists() == b"* 3 EXISTS\r\n"


def test_exists_is_repeated_once_where_it_may_be_overlooked() -> None:
    seen = view(1)
    assert seen.repeat_exists() == b""
    assert arrive(seen, 1, 2, exists_overlooked=True, recent=(2, 2)) == b"* 2 EXISTS\r\n* 1 RECENT\r\n"
    assert seen.repeat_exists() == b"* 2 EXISTS\r\n* 1 RECENT\r\n"
    assert seen.repeat_exists() == b""
    arrive(seen, 1, 2, 3, exists_overlooked=True)
    arrive(seen, 1, 2, 3, 4)  # a later EXISTS was noticed
    assert seen.repeat_exists() == b""


@pytest.mark.parametrize(("asked", "repeated"), [([], True), ([1], True), ([1, 2], False), ([2], False)])
def test_exists_is_not_repeated_to_a_client_that_fetches_the_message(asked: list[int], repeated: bool) -> None:
    seen = view(1)
    arrive(seen, 1, 2, exists_overlooked=True)
    seen.note_fetch(asked)
    assert bool(seen.repeat_exists()) == repeated


def test_exists_before_expunge_for_replace() -> None:
    seen = view(1, 2)
    seen.apply(FolderChange(uids(2, 3), 9, expunged=[1]))
    assert seen.flush(Emission.ALL, FOLDER, exists_first=True) == b"* 3 EXISTS\r\n* 1 EXPUNGE\r\n"
    assert list(seen.uids) == [2, 3]


def test_numbers_of_expunged_messages_are_valid_until_announced() -> None:
    seen = view(4, 5, 6)
    seen.apply(FolderChange(uids(4, 6), 9, expunged=[5]))
    assert seen.by_number(parse_set(b"1:3")).uids == [4, 6]
    assert list(seen.by_number(parse_set(b"1:3"), with_expunged=True).uids) == [4, 5, 6]
    assert seen.has_expunged([4, 5])
    assert not seen.has_expunged([4, 6])
    assert list(seen.by_number(parse_set(b"7,2:9"), beyond=True).uids) == [6]
