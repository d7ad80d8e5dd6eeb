"""The texts of messages, from where they are had soonest: memory, the text index, or the canonical files."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import orjson

from adapter.content.parts import decode_outline
from adapter.content.wire import Recipe
from adapter.search.searchable_text import SearchText, search_text
from adapter.search.text_index import TextIndex
from adapter.transport import cache_fill
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

#: Of a message that is gone or cannot be read.
NOTHING = SearchText("", "", "")
# A larger message is not rebuilt whole.
_WHOLE = 4 << 20
_IDS = "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?"
_IDS_IN_RANGE = f"{_IDS} AND uid BETWEEN ? AND ?"
_IDS_IN_LIST = f"{_IDS} AND uid IN (SELECT value FROM json_each(?))"  # noqa: S608
_CACHED = "SELECT message_id, recipe, outline FROM cache_messages WHERE message_id IN (SELECT value FROM json_each(?))"


class TextReader:
    """For any thread. Texts that come from files are kept for a while, the least recently used first."""

    def __init__(self, transport: Transport, index: TextIndex, limit: int) -> None:
        self._transport = transport
        self._index = index
        self.limit = limit  #: octets
        self._mutex = threading.Lock()
        self._kept: OrderedDict[str, SearchText] = OrderedDict()
        self._used = 0
        self._used_at = 0.0

    def message_ids(self, folder_id: int, uids: Sequence[int]) -> dict[int, str]:
        """By UID; those that are gone are left out."""
        if not uids:
            return {}
        if uids[-1] - uids[0] < 2 * len(uids):
            return dict(self._transport.index.query(_IDS_IN_RANGE, (folder_id, uids[0], uids[-1])))
        return dict(self._transport.index.query(_IDS_IN_LIST, (folder_id, orjson.dumps(list(uids)).decode())))

    def read(self, folder_id: int, uids: Sequence[int]) -> list[SearchText]:
        """The text of each of these messages (UIDs ascending). Raises ``UNREADABLE``: no search answers without it."""
        ids = self.message_ids(folder_id, uids)
        wanted = [ids[uid] for uid in uids if uid in ids]
        found = self._remembered(wanted)
        lacking = [message_id for message_id in wanted if message_id not in found]
        if lacking:
            found |= self._index.texts(lacking)
            fresh = self.extract([message_id for message_id in lacking if message_id not in found], strict=True)
            self._remember(fresh)
            found |= fresh
        return [found.get(ids.get(uid, ""), NOTHING) for uid in uids]

    def extract(
        self, message_ids: Sequence[str], *, strict: bool = False, longest: int | None = None
    ) -> dict[str, SearchText]:
        """The texts of messages from their files; those that cannot be read are left out.

        ``longest``: of a text that has more characters the rest is not read, and it is marked as not whole.
        ``strict``: raises ``UNREADABLE`` for one that cannot be read now.
        """
        if not message_ids:
            return {}
        asked = orjson.dumps(list(message_ids)).decode()
        cached = {row[0]: row[1:] for row in self._transport.index.query(_CACHED, (asked,))}
        found = {}
        for message_id in dict.fromkeys(message_ids):
            try:
                recipe, parts = cached.get(message_id, (None, None))
                found[message_id] = self._extract(message_id, recipe, parts, longest)
            except MailError as error:
                _log.error("the text of message %s cannot be read: %s", message_id, error)
                if strict and error.reason is Reason.UNREADABLE:
                    raise
        return found

    def let_go(self, unused_since: float) -> bool:
        """Drop everything if nothing was used since then (of the monotonic clock); whether that freed anything."""
        with self._mutex:
            if self._used_at >= unused_since or not self._kept:
                return False
            self._kept.clear()
            self._used = 0
            return True

    def _extract(
        self, message_id: str, encoded: bytes | None, encoded_outline: bytes | None, longest: int | None
    ) -> SearchText:
        content = self._transport.content
        if encoded is None or encoded_outline is None:
            row = cache_fill.derive(content, message_id)
            encoded, encoded_outline = row.recipe, row.outline
        recipe = Recipe.decode(encoded)
        root = decode_outline(encoded_outline)
        if recipe.size <= _WHOLE:
            with contextlib.suppress(MailError):  # an attachment that cannot be read does not hide the text
                octets = content.octets_with(message_id, recipe)
                return search_text(root, lambda start, stop: octets[start:stop], longest)
        return search_text(root, content.ranges(message_id, recipe).read, longest)

    def _remembered(self, message_ids: Iterable[str]) -> dict[str, SearchText]:
        with self._mutex:
            self._used_at = time.monotonic()
            found = {message_id: text for message_id in message_ids if (text := self._kept.get(message_id))}
            for message_id in found:
                self._kept.move_to_end(message_id)
            return found

    def _remember(self, texts: dict[str, SearchText]) -> None:
        with self._mutex:
            for message_id, text in texts.items():
                if message_id not in self._kept:
                    self._kept[message_id] = text
                    self._used += _cost(text)
            while self._used > self.limit and self._kept:
                self._used -= _cost(self._kept.popitem(last=False)[1])


def _cost(text: SearchText) -> int:
    return sum(map(sys.getsizeof, text)) + 300
