"""Answers to SEARCH and SORT, and what ``$`` keeps of them (RFC 3501 7.2.5, 4731, 5182, 5256, 7162, 9394)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.imap.seqset import format_set
from protocol.imap.strings import quoted


@dataclass(frozen=True, slots=True)
class ReturnOptions:
    """The RETURN options of an extended search (RFC 4731 3.1). ``RETURN ()`` is ``all``, which the parser sets."""

    minimum: bool = False
    maximum: bool = False
    all: bool = False
    count: bool = False
    save: bool = False
    partial: tuple[int, int] | None = None  # as written; both negative to count from the end (RFC 9394 3.1)


class SearchAnswer(NamedTuple):
    response: bytes  # empty if nothing is to be sent
    saved: Sequence[int] | None  # UIDs for View.save_result(), None if ``$`` stays as it is


# RFC 3501 7.2.5; RFC 7162 3.1.6
def search_response(numbers: Sequence[int], modseq: int | None = None) -> bytes:
    """``modseq``: the highest of the messages found, if the criteria asked for MODSEQ."""
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
def partial_window(numbers: Sequence[int], window: tuple[int, int]) -> Sequence[int]:
    """The part of the ascending ``numbers`` that a PARTIAL range names."""
    low, high = min(map(abs, window)), max(map(abs, window))
    if window[0] < 0:
        end = len(numbers) - low + 1
        return numbers[max(0, len(numbers) - high) : max(0, end)]
    return numbers[low - 1 : high]


# RFC 4731 3.1, RFC 9051 7.3.4
def extended_search(
    tag: bytes,
    options: ReturnOptions,
    uids: Sequence[int],
    *,
    uid_command: bool,
    number_of: Callable[[Sequence[int]], Sequence[int]],
    modseq_of: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> SearchAnswer:
    """The ESEARCH response to the ascending ``uids`` found, and what SAVE keeps.

    ``number_of`` gives the message numbers of UIDs (``View.numbers``) and is not called for UID SEARCH;
    ``modseq_of`` is given if the criteria have MODSEQ.
    """
    covered = _covered(options, uids)
    saved = covered if options.save else None
    if options.save and not (options.minimum or options.maximum or options.all or options.count or options.partial):
        # RFC 5182 2.1: SAVE alone sends no response at all.
        return SearchAnswer(b"", saved)
    numbers = uids if uid_command else number_of(uids)
    # RFC 4466 2.6.2, tag-string: a quoted string, whatever the tag (some clients take nothing else).
    parts = [b"* ESEARCH (TAG " + quoted(tag) + b")"]
    if uid_command:
        parts.append(b"UID")
    if numbers:
        if options.minimum:
            parts.append(b"MIN %d" % numbers[0])
        if options.maximum:
            parts.append(b"MAX %d" % numbers[-1])
        if options.all:
            parts.append(b"ALL " + format_set(numbers))
    if options.count:
        parts.append(b"COUNT %d" % len(numbers))
    if options.partial:
        found = format_set(partial_window(numbers, options.partial))
        parts.append(b"PARTIAL (%d:%d %b)" % (*options.partial, found or b"NIL"))
    if modseq_of is not None and covered:
        # RFC 4731 3.2, RFC 7162 3.1.10
        parts.append(b"MODSEQ %d" % max(modseq_of(covered)))
    return SearchAnswer(b" ".join(parts) + b"\r\n", saved)


# RFC 5182 2.4, RFC 9394 3.2 for SAVE; RFC 4731 3.2 for MODSEQ, with the same table
def _covered(options: ReturnOptions, uids: Sequence[int]) -> Sequence[int]:
    """The messages an answer is about: those it shows, or all found if it counts or lists or only saves."""
    if options.all or options.count or not (options.minimum or options.maximum or options.partial):
        return uids
    found = list(partial_window(uids, options.partial)) if options.partial else []
    ends = ([uids[0]] if options.minimum and uids else []) + ([uids[-1]] if options.maximum and uids else [])
    for uid in ends:
        place = bisect_left(found, uid)
        if found[place : place + 1] != [uid]:
            found.insert(place, uid)
    return found
