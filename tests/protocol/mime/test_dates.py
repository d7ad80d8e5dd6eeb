"""Date fields in standard, obsolete and other common forms."""

from __future__ import annotations

import pytest

from protocol.mime.dates import parse_date


@pytest.mark.parametrize(
    ("raw", "iso"),
    [
        (b"Sun, 15 Nov 2026 23:06:01 +0000", "2026-11-15T23:06:01+00:00"),
        (b"15 Nov 2026 23:06:01 -0530", "2026-11-15T23:06:01-05:30"),
        (b"  Sun,15 Nov 2026  23:06 +0100 (CET) ", "2026-11-15T23:06:00+01:00"),
        (b"Sun, 15 Nov 26 23:06:01 GMT", "2026-11-15T23:06:01+00:00"),
        (b"Sun, 15 Nov 97 23:06:01 EST", "1997-11-15T23:06:01-05:00"),
        (b"Sun, 15 Nov 101 23:06:01 PDT", "2001-11-15T23:06:01-07:00"),
        (b"Fri, 21 Nov 1997 09(comment):   55  :  06 -0600", None),
        (b"(c) Fri, 21 Nov 1997 09:55:06 (x) -0600", "1997-11-21T09:55:06-06:00"),
        (b"Sun, 15 Nov 2026 23:06:01", "2026-11-15T23:06:01+00:00"),
        (b"Sun, 15 Nov 2026 23:06:01 Z", "2026-11-15T23:06:01+00:00"),
        (b"Sun, 15 Nov 2026 23:06:01 XYZ", "2026-11-15T23:06:01+00:00"),
        (b"Sun, 15 Nov 2026 23:06:60 -0000", "2026-11-15T23:06:59+00:00"),
        (b"Sun, 15 Nov 2026 23:06:01.123 +01:00", "2026-11-15T23:06:01+01:00"),
        (b"Sun, 15 Nov 2026 23:06:01 +9999", "2026-11-15T23:06:01+00:00"),
        (b"Sunday, 15-Nov-26 23.06.01 UT", "2026-11-15T23:06:01+00:00"),
        (b"15 November 2026, 23:06:01 +0000", "2026-11-15T23:06:01+00:00"),
        (b"Sun Nov 15 23:06:01 2026", "2026-11-15T23:06:01+00:00"),
        (b"Sun Nov  5 23:06:01 CET 2026", "2026-11-05T23:06:01+01:00"),
        (b"2026-11-15T23:06:01Z", "2026-11-15T23:06:01+00:00"),
        (b"2026-11-15 23:06:01 +0200", "2026-11-15T23:06:01+02:00"),
        (b"", None),
        (b"yesterday", None),
        (b"Sun, 31 Feb 2026 00:00:00 +0000", None),
        (b"Sun, 15 Foo 2026 00:00:00 +0000", None),
        (b"Sun, 15 Nov 2026 25:00:00 +0000", None),
        (b"Sun, 15 Nov 0000 23:00:00 +0000", None),
    ],
)
def test_date_fields_are_parsed(raw: bytes, iso: str | None) -> None:
    moment = parse_date(raw)
    assert (None if moment is None else moment.isoformat()) == iso
