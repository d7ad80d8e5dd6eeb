"""IMAP commands over the memory store: the handlers need nothing but a reader and a writer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from adapter.config.schema import Settings
from tests.support.memory.server import Client, SocketlessServer, memory_server
from tests.support.memory.store import MemoryStore
from tests.support.messages import message
from tests.support.stores import ADA, BOB


@pytest.fixture
def mail() -> MemoryStore:
    return MemoryStore(ADA, BOB)


@pytest.fixture
async def server(mail: MemoryStore) -> AsyncIterator[SocketlessServer]:
    running = memory_server(mail)
    yield running
    await running.close()


@pytest.fixture
async def ada(server: SocketlessServer) -> Client:
    return await server.login(ADA)


async def filled(client: Client, count: int = 3) -> None:
    for number in range(1, count + 1):
        octets = message(f"Message {number}", f"Body {number}.\r\n", message_id=f"<{number}@x.test>")
        assert (await client.append("INBOX", octets)).startswith(b"OK [APPENDUID")
    await client.ok("SELECT INBOX")


def expunges(lines: list[bytes]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.endswith(b" EXPUNGE")]


# --- opening ---------------------------------------------------------------------------------------------------------


async def test_select_describes_the_mailbox(ada: Client) -> None:
    await ada.append("INBOX", message(), "(\\Seen)")
    await ada.append("INBOX", message(), "($Label)")
    *untagged, tagged = await ada.run("SELECT INBOX")
    text = b"\n".join(untagged)
    assert tagged == b"OK [READ-WRITE] Select completed"
    assert b"* 2 EXISTS" in untagged
    assert b"[UNSEEN 2]" in text
    assert b"[UIDNEXT 3]" in text
    assert b"$Label" in text


async def test_examine_refuses_changes(ada: Client) -> None:
    await filled(ada)
    await ada.ok("EXAMINE INBOX")
    assert (await ada.run("STORE 1 +FLAGS (\\Seen)"))[-1].startswith(b"NO [READ-ONLY]")
    assert (await ada.run("EXPUNGE"))[-1].startswith(b"NO [READ-ONLY]")


async def test_missing_mailbox_cannot_be_selected(ada: Client) -> None:
    assert (await ada.run("SELECT Nowhere"))[-1].startswith(b"NO [NONEXISTENT]")
    assert (await ada.run("FETCH 1 FLAGS"))[-1].startswith(b"BAD")


async def test_message_is_recent_to_the_first_session_alone(server: SocketlessServer, ada: Client) -> None:
    await ada.append("INBOX", message())
    other = await server.login(ADA)
    assert b"* 1 RECENT" in await ada.ok("SELECT INBOX")
    assert b"* 0 RECENT" in await other.ok("SELECT INBOX")


async def test_close_expunges_without_responses(ada: Client) -> None:
    await filled(ada)
    await ada.ok("STORE 2 +FLAGS.SILENT (\\Deleted)")
    assert await ada.ok("CLOSE") == []
    assert b"* 2 EXISTS" in await ada.ok("SELECT INBOX")


async def test_resynchronisation_sends_what_changed(ada: Client) -> None:
    await ada.ok("ENABLE QRESYNC")
    await filled(ada)
    (validity,) = {line.split()[3] for line in await ada.ok("SELECT INBOX") if b"UIDVALIDITY" in line}
    await ada.ok("STORE 1 +FLAGS (\\Flagged)")
    await ada.ok("STORE 3 +FLAGS (\\Deleted)")
    await ada.ok("EXPUNGE")
    lines = await ada.ok(b"SELECT INBOX (QRESYNC (%b 4))" % validity.rstrip(b"]"))
    assert b"* VANISHED (EARLIER) 3" in lines
    assert any(line.startswith(b"* 1 FETCH (UID 1 FLAGS (") and b"\\Flagged" in line for line in lines)


# --- FETCH -----------------------------------------------------------------------------------------------------------


async def test_fetch_of_flags_and_numbers(ada: Client) -> None:
    await filled(ada)
    await ada.ok("STORE 2 FLAGS (\\Answered custom)")
    lines = await ada.ok("FETCH 2 (UID FLAGS MODSEQ RFC822.SIZE)")
    size = len(message("Message 2", "Body 2.\r\n", message_id="<2@x.test>"))
    (line,) = [line for line in lines if b"FETCH" in line]
    assert line.startswith(b"* 2 FETCH (UID 2 FLAGS (")
    assert b"\\Answered" in line
    assert b"custom" in line
    assert line.endswith(b"MODSEQ (5) RFC822.SIZE %d)" % size)


async def test_fetch_of_envelope_and_structure(ada: Client) -> None:
    await filled(ada, 1)
    (line,) = await ada.ok("FETCH 1 (ENVELOPE BODYSTRUCTURE)")
    assert b'"Message 1" (("Bob" NIL "bob" "example.test"))' in line
    assert b'BODYSTRUCTURE ("TEXT" "PLAIN" ("CHARSET" "utf-8")' in line.replace(b"text", b"TEXT").replace(
        b"plain", b"PLAIN"
    ).replace(b"charset", b"CHARSET")


async def test_fetch_of_body_sets_seen_and_peek_does_not(ada: Client) -> None:
    await filled(ada, 2)
    (peeked,) = await ada.ok("FETCH 1 BODY.PEEK[TEXT]")
    assert peeked == b"* 1 FETCH (BODY[TEXT] {9}\r\nBody 1.\r\n)"
    (read,) = await ada.ok("FETCH 2 BODY[TEXT]<0.4>")
    assert b"\\Seen" in read
    assert b"BODY[TEXT]<0> {4}\r\nBody" in read
    assert b"UNSEEN 1" in b"".join(await ada.ok("STATUS INBOX (UNSEEN)"))


async def test_fetch_of_header_fields(ada: Client) -> None:
    await filled(ada, 1)
    (line,) = await ada.ok("FETCH 1 BODY.PEEK[HEADER.FIELDS (Subject)]")
    assert line.endswith(b"{22}\r\nSubject: Message 1\r\n\r\n)")


async def test_fetch_changed_since_a_mod_sequence(ada: Client) -> None:
    await filled(ada)
    await ada.ok("STORE 3 +FLAGS (\\Flagged)")
    lines = await ada.ok("FETCH 1:* (FLAGS) (CHANGEDSINCE 4)")
    assert [line.split()[1] for line in lines if b"FETCH" in line] == [b"3"]


async def test_fetch_of_a_message_another_session_expunged(server: SocketlessServer, ada: Client) -> None:
    await filled(ada)
    other = await server.login(ADA)
    await other.ok("SELECT INBOX")
    await other.ok("STORE 2 +FLAGS.SILENT (\\Deleted)")
    await other.ok("EXPUNGE")
    *untagged, tagged = await ada.run("FETCH 1:3 (RFC822.SIZE)")
    assert [line.split()[1] for line in untagged if b"RFC822.SIZE" in line] == [b"1", b"3"]
    assert tagged.startswith(b"OK [EXPUNGEISSUED]")
    assert b"* 2 EXPUNGE" in await ada.ok("NOOP")


# --- STORE, COPY, MOVE, EXPUNGE --------------------------------------------------------------------------------------


async def test_store_reports_flags_unless_silent(ada: Client) -> None:
    await filled(ada)
    (line,) = [line for line in await ada.ok("STORE 1 +FLAGS (\\Deleted)") if b"FETCH" in line]
    assert b"\\Deleted" in line
    assert [line for line in await ada.ok("STORE 1 -FLAGS.SILENT (\\Deleted)") if b"FETCH" in line] == []
    assert not any(b"\\Deleted" in line for line in await ada.ok("FETCH 1 FLAGS"))


async def test_conditional_store_names_the_modified_messages(ada: Client) -> None:
    await filled(ada)
    await ada.ok("STORE 2 +FLAGS (\\Flagged)")
    *_, tagged = await ada.run("STORE 1:3 (UNCHANGEDSINCE 4) +FLAGS (\\Seen)")
    assert tagged.startswith(b"OK [MODIFIED 2]")


async def test_too_many_keywords_are_refused(mail: MemoryStore) -> None:
    server = memory_server(mail, keywords=2)
    ada = await server.login(ADA)
    await filled(ada, 1)
    assert (await ada.run("STORE 1 +FLAGS (a b c)"))[-1].startswith(b"NO [LIMIT]")
    await server.close()


async def test_copy_names_old_and_new_uids(ada: Client) -> None:
    await filled(ada)
    tagged = (await ada.run("COPY 1,3 Archive"))[-1]
    assert tagged.startswith(b"OK [COPYUID ")
    assert tagged.split(b"]")[0].split()[-2:] == [b"1,3", b"1:2"]
    assert (await ada.run("COPY 1 Nowhere"))[-1].startswith(b"NO [TRYCREATE]")


async def test_move_removes_the_source(ada: Client) -> None:
    await filled(ada)
    lines = await ada.ok("MOVE 1:2 Trash")
    assert lines[0].startswith(b"* OK [COPYUID ")
    assert len(expunges(lines)) == 2
    assert b"MESSAGES 2" in b"".join(await ada.ok("STATUS Trash (MESSAGES)"))


async def test_expunge_by_uid_removes_only_the_named_messages(ada: Client) -> None:
    await filled(ada)
    await ada.ok("STORE 1:3 +FLAGS.SILENT (\\Deleted)")
    assert expunges(await ada.ok("UID EXPUNGE 2")) == [2]
    assert len(expunges(await ada.ok("EXPUNGE"))) == 2


# --- SEARCH ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("criteria", "numbers"),
    [
        ("ALL", b"1 2 3"),
        ("UNSEEN", b"1 3"),
        ('SUBJECT "Message 3"', b"3"),
        ('BODY "body 1"', b"1"),
        ('NOT TEXT "2"', b""),
        ("OR UID 1 KEYWORD custom", b"1 2"),
        ("FROM bob SMALLER 10000", b"1 2 3"),
    ],
)
async def test_search_finds_the_messages(ada: Client, criteria: str, numbers: bytes) -> None:
    await filled(ada)
    await ada.ok("STORE 2 +FLAGS (\\Seen custom)")
    assert (b"* SEARCH " + numbers).rstrip() in await ada.ok(f"SEARCH {criteria}")


async def test_sort_and_thread(ada: Client) -> None:
    await filled(ada)
    assert b"* SORT 3 2 1" in await ada.ok("SORT (REVERSE SUBJECT) UTF-8 ALL")
    reply = message("Re: Message 2", message_id="<4@x.test>", in_reply_to="<2@x.test>", references=["<2@x.test>"])
    await ada.append("INBOX", reply)
    assert b"* THREAD (1)(2 4)(3)" in await ada.ok("THREAD REFERENCES UTF-8 ALL")


async def test_saved_result_is_used_by_the_next_command(ada: Client) -> None:
    await filled(ada)
    await ada.ok('SEARCH RETURN (SAVE) SUBJECT "Message 2"')
    assert [line.split()[1] for line in await ada.ok("FETCH $ (RFC822.SIZE)")] == [b"2"]


# --- mailboxes -------------------------------------------------------------------------------------------------------


async def test_list_shows_hierarchy_and_special_use(ada: Client) -> None:
    await ada.ok("CREATE Work/Plans")
    lines = await ada.ok('LIST "" *')
    assert b'* LIST (\\HasChildren) "/" Work' in lines
    assert b'* LIST (\\HasNoChildren) "/" Work/Plans' in lines
    assert any(b"\\Sent" in line and line.endswith(b" Sent") for line in lines)
    assert await ada.ok('LIST "" Wor%') == [b'* LIST (\\HasChildren) "/" Work']


async def test_subscriptions(ada: Client) -> None:
    await ada.ok("CREATE Work")
    await ada.ok("SUBSCRIBE Work")
    assert any(line.endswith(b" Work") for line in await ada.ok('LSUB "" *'))
    await ada.ok("UNSUBSCRIBE Work")
    assert not any(line.endswith(b" Work") for line in await ada.ok('LSUB "" *'))
    assert (await ada.run("SUBSCRIBE Nowhere"))[-1].startswith(b"NO [NONEXISTENT]")


async def test_status_counts(ada: Client) -> None:
    await filled(ada)
    await ada.ok("STORE 1 +FLAGS.SILENT (\\Seen \\Deleted)")
    *_, line = await ada.ok("STATUS INBOX (MESSAGES UNSEEN DELETED UIDNEXT HIGHESTMODSEQ)")
    assert line == b"* STATUS INBOX (MESSAGES 3 UNSEEN 2 DELETED 1 UIDNEXT 4 HIGHESTMODSEQ 5)"


async def test_rename_and_delete(ada: Client) -> None:
    await ada.ok("CREATE One/Two")
    await ada.ok("RENAME One Three")
    assert any(line.endswith(b" Three/Two") for line in await ada.ok('LIST "" *'))
    await ada.ok("DELETE Three/Two")
    assert (await ada.run("DELETE Three/Two"))[-1].startswith(b"NO [NONEXISTENT]")
    assert (await ada.run("CREATE Sent"))[-1].startswith(b"NO [ALREADYEXISTS]")


async def test_renamed_inbox_gives_away_its_messages(ada: Client) -> None:
    await filled(ada)
    await ada.ok("RENAME INBOX Old")
    assert b"MESSAGES 3" in b"".join(await ada.ok("STATUS Old (MESSAGES)"))
    assert b"MESSAGES 0" in b"".join(await ada.ok("STATUS INBOX (MESSAGES)"))


async def test_selected_mailbox_that_is_deleted_fails_later_changes(server: SocketlessServer, ada: Client) -> None:
    await ada.ok("CREATE Gone")
    await ada.append("Gone", message())
    await ada.ok("SELECT Gone")
    other = await server.login(ADA)
    await other.ok("DELETE Gone")
    assert b"* 1 EXPUNGE" in await ada.ok("NOOP")
    assert (await ada.run("EXPUNGE"))[-1].startswith(b"NO")


async def test_accounts_see_their_own_mail_alone(server: SocketlessServer, ada: Client) -> None:
    await filled(ada)
    bob = await server.login(BOB)
    assert b"* 0 EXISTS" in await bob.ok("SELECT INBOX")


# --- APPEND ----------------------------------------------------------------------------------------------------------


async def test_append_keeps_flags_and_date(ada: Client) -> None:
    tagged = await ada.append("INBOX", message(), '(\\Flagged custom) "17-Jul-1996 02:44:25 +0000"')
    assert tagged.startswith(b"OK [APPENDUID ")
    await ada.ok("SELECT INBOX")
    (line,) = await ada.ok("FETCH 1 (FLAGS INTERNALDATE)")
    assert b"\\Flagged" in line
    assert b"custom" in line
    assert b'INTERNALDATE "17-Jul-1996 02:44:25 +0000"' in line


async def test_append_of_several_messages_is_one_command(ada: Client) -> None:
    one, two = message("one"), message("two")
    command = b"APPEND INBOX {%d+}\r\n%b {%d+}\r\n%b" % (len(one), one, len(two), two)
    assert (await ada.run(command))[-1].split(b"]")[0].endswith(b" 1:2")


async def test_append_is_refused_before_the_literal(ada: Client) -> None:
    assert (await ada.run("APPEND Nowhere {5}"))[-1].startswith(b"NO [TRYCREATE]")


async def test_append_over_quota_is_refused(mail: MemoryStore) -> None:
    settings = Settings()
    server = memory_server(mail, Settings(quota=type(settings.quota)(messages=1)))
    ada = await server.login(ADA)
    await filled(ada, 1)
    assert (await ada.append("INBOX", message())).startswith(b"NO [OVERQUOTA]")
    assert (await ada.run("COPY 1 Sent"))[-1].startswith(b"NO [OVERQUOTA]")
    assert b'* QUOTA "User quota" (MESSAGE 1 1)' in await ada.ok("GETQUOTAROOT INBOX")
    await server.close()


async def test_replace_expunges_the_old_message(ada: Client) -> None:
    await filled(ada, 2)
    octets = message("New")
    lines = await ada.ok(b"REPLACE 1 INBOX {%d+}\r\n%b" % (len(octets), octets))
    assert b"* 3 EXISTS" in lines
    assert b"* 1 EXPUNGE" in lines
    assert lines.index(b"* 3 EXISTS") < lines.index(b"* 1 EXPUNGE")


# --- IDLE ------------------------------------------------------------------------------------------------------------


async def test_idle_announces_changes_as_they_happen(server: SocketlessServer, ada: Client) -> None:
    await filled(ada, 1)
    other = await server.login(ADA)
    ada.send(b"i IDLE\r\n")
    assert (await ada.response()).startswith(b"+")
    await other.append("INBOX", message())
    assert await ada.response() == b"* 2 EXISTS\r\n"
    await other.ok("SELECT INBOX")
    await other.ok("STORE 1 +FLAGS.SILENT (\\Deleted)")
    await other.ok("EXPUNGE")
    while await ada.response() != b"* 1 EXPUNGE\r\n":
        pass
    ada.send(b"DONE\r\n")
    while (response := await ada.response()) != b"i OK Idle completed\r\n":
        assert response.startswith(b"* ")
