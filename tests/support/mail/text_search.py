"""Sample mail for text search, and a reference that every answer is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.mailboxes import MailboxCache
from adapter.search.searchable_text import SearchText, field_of, search_text
from adapter.search.text_index import TextIndex
from adapter.transport.transport import Transport
from protocol.imap.search import keys
from protocol.imap.search.collation import fold
from protocol.imap.search.program import compile_search
from protocol.imap.session_view import View
from protocol.imap.wire.lexer import PLAIN
from protocol.mime.parser import scan
from tests.support.messages import message

NOW = 1_800_000_000


async def search(mailboxes: MailboxCache, state: CachedFolder, *criteria: keys.SearchKey) -> list[int]:
    view = View(state.uids, state.modseq, state.flags, PLAIN)
    return list(await mailboxes.search(state, compile_search(keys.And(criteria), view, NOW)))


def indexed_messages(store: Transport) -> set[str]:
    ids = [row[0] for row in store.index.query("SELECT message_id FROM messages")]
    index = TextIndex(store.root)
    try:
        return set(index.rows(ids))
    finally:
        index.close()


def text_of(octets: bytes) -> SearchText:
    return search_text(scan(octets), lambda start, stop: octets[start:stop])


WORDS = ("alpha", "beta", "Gamma", "straße", "ΣΊΣΥΦΟΣ", "naïve", "x y", "quarter", "ab", '"q"')


def sample_mail(count: int) -> list[bytes]:
    random_ = random.Random(7)
    made = []
    for number in range(count):
        body = " ".join(random_.choices(WORDS, k=6)) + "\r\n"
        octets = message(
            " ".join(random_.choices(WORDS, k=2)).encode().decode(),
            body,
            message_id=f"<m{number}@x.test>",
            references=[f"<m{number - 3}@x.test>"] if number > 3 and number % 2 else [],
            to=random_.choice(("ada@example.test", "Ada Lovelace <ada@example.test>", "group:;")),
            cc=random_.choice((None, "cc@example.test")),
            attachments=[random_.randbytes(30)] if number % 4 == 0 else (),
        )
        made.append(octets.replace(b"MIME-Version", b"X-Odd: %d\r\nMIME-Version" % number))
    return made


def matching_uids(sent: Sequence[bytes], matches: Callable[[SearchText], bool]) -> list[int]:
    return [uid for uid, octets in enumerate(sent, 1) if matches(text_of(octets))]


NEEDLES = (*WORDS, "ALPHA", "Straße", "STRASSE", "a", "é", "lpha be", "bob@example", "plain; charset", "nothing")


def uids_with(sent: Sequence[bytes], word: str, *where: Callable[[SearchText], str | None]) -> list[int]:
    needle = fold(word)
    return matching_uids(sent, lambda text: any(needle in (part(text) or "") for part in where))


async def check_text_search(mailboxes: MailboxCache, state: CachedFolder, sent: Sequence[bytes]) -> None:
    for word in NEEDLES:
        in_body = uids_with(sent, word, lambda text: text.body)
        assert await search(mailboxes, state, keys.BodyKey(word)) == in_body, word
        elsewhere = sorted(set(state.uids) - set(in_body))
        assert await search(mailboxes, state, keys.Not(keys.BodyKey(word))) == elsewhere
        anywhere = uids_with(sent, word, lambda text: text.body, lambda text: text.header)
        assert await search(mailboxes, state, keys.TextKey(word)) == anywhere
        subject = uids_with(sent, word, lambda text: field_of(text.header, "subject"))
        assert await search(mailboxes, state, keys.HeaderKey("subject", word)) == subject
        odd = uids_with(sent, word, lambda text: field_of(text.header, "x-odd"))
        assert await search(mailboxes, state, keys.HeaderKey("X-Odd", word)) == odd
    for name in ("X-Odd", "Cc", "References", "MIME-Version", "No-Such"):
        present = [uid for uid, octets in enumerate(sent, 1) if field_of(text_of(octets).header, name.lower())]
        assert await search(mailboxes, state, keys.HeaderKey(name, "")) == present
    assert await search(mailboxes, state, keys.HeaderKey("X-Odd", "4")) == [
        uid for uid in range(1, len(sent) + 1) if "4" in str(uid - 1) and (uid - 1) % 4 == 0
    ]
