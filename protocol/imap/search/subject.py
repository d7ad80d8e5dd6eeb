"""The base subject: a subject without "Re:", "[list]", "(fwd)" and the like (RFC 5256 2.1).

Two indexes move towards each other, so the cost is linear for every subject.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# RFC 5256 5: subj-blob = "[" *BLOBCHAR "]" *WSP. After step 1 the only white space is the single space.
_BLOB = re.compile(r"\[[^\[\]]*+\] *+")
# RFC 5256 5: subj-refwd = ("re" / ("fw" ["d"])) *WSP [subj-blob] ":"
_REFWD = re.compile(r"(?:re|fwd?+) *+(?>(?:\[[^\[\]]*+\] *+)?):", re.IGNORECASE | re.ASCII)
_SPACE = re.compile(r"[ \t\r\n]+")
_FORWARD_HEADER = "[fwd:"
_FORWARD_TRAILER = "]"
_FORWARDED = "(fwd)"


class BaseSubject(NamedTuple):
    """The base subject in its original spelling, and whether the message is a reply or forward (RFC 5256 3)."""

    text: str
    reply: bool


def base_subject(subject: str) -> BaseSubject:
    """Extract the base subject of a subject (RFC 5256 2.1), in which the caller has decoded encoded words."""
    # Step 1: tabs and continuations become spaces, runs of spaces one space.
    text = _SPACE.sub(" ", subject)
    start, end = 0, len(text)
    reply = False
    while True:
        # Step 2: trailers "(fwd)" and white space.
        while True:
            if end > start and text[end - 1] == " ":
                end -= 1
            elif end - start >= len(_FORWARDED) and text[end - len(_FORWARDED) : end].lower() == _FORWARDED:
                end -= len(_FORWARDED)
                reply = True
            else:
                break
        # Steps 3 to 5: leaders, and blobs unless nothing would be left.
        start, leader = _skip_leaders(text, start, end)
        reply = reply or leader
        # Step 6: remove "[fwd: … ]" and start again.
        wrapped = (
            end - start > len(_FORWARD_HEADER)
            and text[start : start + len(_FORWARD_HEADER)].lower() == _FORWARD_HEADER
            and text[end - 1] == _FORWARD_TRAILER
        )
        if not wrapped:
            return BaseSubject(text[start:end], reply)
        reply = True
        start += len(_FORWARD_HEADER)
        end -= len(_FORWARD_TRAILER)


def _skip_leaders(text: str, start: int, end: int) -> tuple[int, bool]:
    """Return the start of the text after all leaders and removable blobs, and whether "Re:" was among them."""
    reply = False
    while True:
        if start < end and text[start] == " ":
            start += 1
            continue
        # A run of blobs is scanned once: if no "Re:" follows the run, none follows a part of it.
        after, last = start, start
        while blob := _BLOB.match(text, after, end):
            last, after = after, blob.end()
        if refwd := _REFWD.match(text, after, end):
            start = refwd.end()
            reply = True
            continue
        # Step 4: a blob is removed unless nothing would be left; the last blob of a subject of blobs stays.
        return (after if after < end else last), reply
