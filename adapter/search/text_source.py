"""Texts of messages for searches: from memory, the text index, or the canonical files, in this order."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from adapter.content.parts import decode_outline
from adapter.content.wire import Recipe
from adapter.search.searchable_text import SearchText, search_text
from adapter.search.text_index import TextIndex
from adapter.store.queries import messages
from adapter.transport import cache_fill
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

#: Text of a message that is gone or cannot be read.
NO_TEXT = SearchText("", "", "")
# A larger message is not rebuilt whole.
_MAX_WHOLE_BYTES = 4 << 20


class TextReader:
    """Usable from any thread. Caches the texts that came from files and drops the least recently used first."""

    def __init__(self, transport: Transport, index: TextIndex, limit: int) -> None:
        self._transport = transport
        self._index = index
        self.limit = limit  #: octets
        self._mutex = threading.Lock()
        self._texts: OrderedDict[str, SearchText] = OrderedDict()
        self._used_bytes = 0
        self._used_at = 0.0

    def message_ids(self, folder_id: int, uids: Sequence[int]) -> dict[int, str]:
        """Return message ids by UID, without those that are gone."""
        if not uids:
            return {}
        return self._transport.index.ask(messages.message_ids, folder_id, uids)

    def read(self, folder_id: int, uids: Sequence[int]) -> list[SearchText]:
        """Return the text of each message (UIDs ascending). Raises ``UNREADABLE``: a search must not skip a message."""
        ids = self.message_ids(folder_id, uids)
        existing = [ids[uid] for uid in uids if uid in ids]
        texts = self._cached(existing)
        missing = [message_id for message_id in existing if message_id not in texts]
        if missing:
            texts |= self._index.texts(missing)
            extracted = self.extract([message_id for message_id in missing if message_id not in texts], strict=True)
            self._cache(extracted)
            texts |= extracted
        return [texts.get(ids.get(uid, ""), NO_TEXT) for uid in uids]

    def extract(
        self, message_ids: Sequence[str], *, strict: bool = False, longest: int | None = None
    ) -> dict[str, SearchText]:
        """Extract texts from the files of messages, without those that cannot be read.

        ``longest``: reading stops after so many characters, and the text is marked as not whole.
        ``strict``: raise ``UNREADABLE`` for a message that cannot be read now.
        """
        if not message_ids:
            return {}
        cached = self._transport.index.ask(messages.recipes, message_ids)
        texts = {}
        for message_id in dict.fromkeys(message_ids):
            try:
                recipe, parts = cached.get(message_id, (None, None))
                texts[message_id] = self._extract(message_id, recipe, parts, longest)
            except MailError as error:
                _log.error("message %s: text unreadable (%s); not searched", message_id, error)
                if strict and error.reason is Reason.UNREADABLE:
                    raise
        return texts

    def drop_unused(self, unused_since: float) -> bool:
        """Drop everything if nothing was used since then (monotonic clock); return True if that freed memory."""
        with self._mutex:
            if self._used_at >= unused_since or not self._texts:
                return False
            self._texts.clear()
            self._used_bytes = 0
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
        if recipe.size <= _MAX_WHOLE_BYTES:
            with contextlib.suppress(MailError):  # an unreadable attachment does not hide the text
                octets = content.octets_with(message_id, recipe)
                return search_text(root, lambda start, stop: octets[start:stop], longest)
        return search_text(root, content.ranges(message_id, recipe).read, longest)

    def _cached(self, message_ids: Iterable[str]) -> dict[str, SearchText]:
        with self._mutex:
            self._used_at = time.monotonic()
            texts = {message_id: text for message_id in message_ids if (text := self._texts.get(message_id))}
            for message_id in texts:
                self._texts.move_to_end(message_id)
            return texts

    def _cache(self, texts: dict[str, SearchText]) -> None:
        with self._mutex:
            for message_id, text in texts.items():
                if message_id not in self._texts:
                    self._texts[message_id] = text
                    self._used_bytes += _cost(text)
            while self._used_bytes > self.limit and self._texts:
                self._used_bytes -= _cost(self._texts.popitem(last=False)[1])


def _cost(text: SearchText) -> int:
    return sum(map(sys.getsizeof, text)) + 300
