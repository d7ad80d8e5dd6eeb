"""Responses to SEARCH and SORT, and the result saved as ``$`` (RFC 3501 7.2.5, 4731, 5182, 5256, 7162, 9394)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocol.imap.commands.model import Partial, SearchReturn
from protocol.imap.sequence_set import format_set, format_spans
from protocol.imap.wire.strings import quoted


class SearchResult(NamedTuple):
    response: bytes  # empty if no response is due
    saved: Sequence[int] | None  # UIDs for View.save_result(), None if ``$`` is unchanged


# RFC 3501 7.2.5; RFC 7162 3.1.6
def search_response(numbers: Sequence[int], modseq: int | None = None) -> bytes:
    """``modseq``: the highest of the matching messages, if the criteria contain MODSEQ."""
    return _numbers(b"* SEARCH", numbers, modseq)


# RFC 5256 4, BASE.7.2.SORT; RFC 7162 3.1.9
def sort_response(numbers: Sequence[int], modseq: int | None = None) -> bytes:
    return _numbers(b"* SORT", numbers, modseq)


def _numbers(lead: bytes, numbers: Sequence[int], modseq: int | None) -> bytes:
    if not numbers:
        return lead + b"\r\n"
    end = b"\r\n" if modseq is None else b" (MODSEQ %d)\r\n" % modseq
    return lead + (b" %d" * len(numbers)) % tuple(numbers) + end


# RFC 9394 3.1 and 3.3
def partial_window(results: Sequence[int], window: Partial) -> Sequence[int]:
    """Return the part of the results that a PARTIAL range names, in their order."""
    low, high = min(map(abs, window)), max(map(abs, window))
    if window.first < 0:
        return results[max(0, len(results) - high) : max(0, len(results) - low + 1)]
    return results[low - 1 : high]


# RFC 4731 3.1, RFC 9051 7.3.4; RFC 5267 3.1 (ESORT)
def extended_search(
    tag: bytes,
    returns: SearchReturn,
    uids: Sequence[int],
    *,
    uid_command: bool,
    number_of: Callable[[Sequence[int]], Sequence[int]],
    modseq_of: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ordered: bool = False,
) -> SearchResult:
    """Encode the ESEARCH response for matching ``uids``, and select the UIDs that SAVE stores.

    ``uids`` are ascending, or in the order of SORT if ``ordered``. ``number_of`` maps UIDs to message numbers
    (``View.numbers``) and is not called for UID commands; ``modseq_of`` is passed if the criteria contain MODSEQ.
    """
    covered = _covered(returns, uids)
    saved = sorted(covered) if returns.save else None
    if saved is not None and returns == SearchReturn(save=True):
        # RFC 5182 1: there is no response to SAVE alone.
        return SearchResult(b"", saved)
    numbers = uids if uid_command else number_of(uids)
    as_set = _set_in_order if ordered else format_set
    # RFC 4466 2.6.2, tag-string: always a quoted string, since some clients accept no other form.
    parts = [b"* ESEARCH (TAG " + quoted(tag) + b")"]
    if uid_command:
        parts.append(b"UID")
    if numbers:
        if returns.min:
            parts.append(b"MIN %d" % numbers[0])
        if returns.max:
            parts.append(b"MAX %d" % numbers[-1])
        if returns.all:
            parts.append(b"ALL " + as_set(numbers))
    if returns.count:
        parts.append(b"COUNT %d" % len(numbers))
    if returns.partial:
        page = as_set(partial_window(numbers, returns.partial))
        parts.append(b"PARTIAL (%d:%d %b)" % (*returns.partial, page or b"NIL"))
    if modseq_of is not None and covered:
        # RFC 4731 3.2, RFC 7162 3.1.10
        parts.append(b"MODSEQ %d" % max(modseq_of(covered)))
    return SearchResult(b" ".join(parts) + b"\r\n", saved)


# RFC 5182 2.4, RFC 9394 3.2 for SAVE; RFC 4731 3.2 for MODSEQ, with the same table
def _covered(returns: SearchReturn, uids: Sequence[int]) -> Sequence[int]:
    """Return the messages that a response covers: those it names, or all matches if it counts, lists or only saves."""
    if returns.all or returns.count or not (returns.min or returns.max or returns.partial):
        return uids
    covered = list(partial_window(uids, returns.partial)) if returns.partial else []
    ends = (uids[:1] if returns.min else (), uids[-1:] if returns.max else ())
    for end in ends:
        covered += [uid for uid in end if uid not in covered]
    return covered


# RFC 5267 3.2: only numbers that ascend by one form a range
def _set_in_order(numbers: Sequence[int]) -> bytes:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return format_spans(spans)
