"""Dates in header fields: RFC 5322 section 3.3, the obsolete forms of 4.3, and other common forms."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_MONTHS = {name: number for number, name in enumerate(b"jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
# RFC 5322 section 4.3; military letters are read as -0000.
_ZONES = {b"est": -5, b"edt": -4, b"cst": -6, b"cdt": -5, b"mst": -7, b"mdt": -6, b"pst": -8, b"pdt": -7}
_ZONES |= {
    b"cet": 1,
    b"cest": 2,
    b"met": 1,
    b"mest": 2,
    b"eet": 2,
    b"eest": 3,
    b"bst": 1,
    b"msk": 3,
    b"jst": 9,
}

_TIME = rb"(\d{1,2})[:.](\d{1,2})(?>(?:[:.](\d{1,2})(?>(?:[.,]\d{1,9})?))?)"
_ZONE = rb"(?>(?:([+-])(\d{1,2}):?(\d{2})|\(?([A-Za-z]{1,5}))?)"
# [Mon,] 2 Jan 2006 15:04[:05] zone
_RFC5322 = re.compile(
    rb"(?>(?:[A-Za-z]{1,10}\.?,?\s*+)?)(\d{1,2})[\s-]*+([A-Za-z]{3})[a-z]{0,6}+[\s.,-]*+(\d{2,4})[\s,]++"
    + _TIME
    + rb"\s*+"
    + _ZONE
)
# Mon Jan  2 15:04:05 [zone] 2006
_ASCTIME = re.compile(
    rb"[A-Za-z]{3,9},?\s++([A-Za-z]{3})[a-z]{0,6}+\s++(\d{1,2}),?\s++"
    + _TIME
    + rb"\s++(?>(?:([A-Za-z]{1,5})\s++)?)(\d{4})"
)
# 2006-01-02T15:04:05zone
_ISO = re.compile(rb"(\d{4})[-/](\d{1,2})[-/](\d{1,2})[T\s]\s*+" + _TIME + rb"\s*+" + _ZONE)
_COMMENT = re.compile(rb"\([^()]*+\)")
_MAX_DATE_BYTES = 200


def parse_date(raw: bytes) -> datetime | None:
    """Parse a Date field, with its zone; None if it has no valid date."""
    raw = raw[:_MAX_DATE_BYTES].strip()
    match = _RFC5322.match(raw)
    if match is None and b"(" in raw:
        raw = _COMMENT.sub(b" ", raw).strip()
        match = _RFC5322.match(raw)
    if match is not None:
        day, month_name, year, hour, minute, second, sign, zone_hour, zone_minute, zone_name = match.groups()
        month = _MONTHS.get(month_name.lower(), 0)
        return _moment(_year(year), month, day, hour, minute, second, _zone(sign, zone_hour, zone_minute, zone_name))
    match = _ASCTIME.match(raw)
    if match is not None:
        month_name, day, hour, minute, second, zone_name, year = match.groups()
        month = _MONTHS.get(month_name.lower(), 0)
        return _moment(int(year), month, day, hour, minute, second, _zone(None, None, None, zone_name))
    match = _ISO.match(raw)
    if match is not None:
        year, month_digits, day, hour, minute, second, sign, zone_hour, zone_minute, zone_name = match.groups()
        zone = _zone(sign, zone_hour, zone_minute, zone_name)
        return _moment(int(year), int(month_digits), day, hour, minute, second, zone)
    return None


def _moment(
    year: int, month: int, day: bytes, hour: bytes, minute: bytes, second: bytes | None, zone: timezone
) -> datetime | None:
    # A leap second becomes second 59, the last one that datetime can express.
    seconds = min(int(second), 59) if second else 0
    try:
        return datetime(year, month, int(day), int(hour), int(minute), seconds, tzinfo=zone)
    except ValueError:
        return None


def _year(digits: bytes) -> int:
    """RFC 5322 section 4.3: two digits below 50 are this century, other short years count from 1900."""
    year = int(digits)
    if len(digits) == 2:
        return year + (2000 if year < 50 else 1900)
    return year + 1900 if len(digits) == 3 else year


def _zone(sign: bytes | None, hours: bytes | None, minutes: bytes | None, name: bytes | None) -> timezone:
    if sign is not None and hours is not None and minutes is not None:
        offset = int(hours) * 60 + int(minutes)
        if not 0 < offset < 24 * 60:
            return UTC
        return timezone(timedelta(minutes=-offset if sign == b"-" else offset))
    if name is not None:
        east = _ZONES.get(name.lower(), 0)
        if east:
            return timezone(timedelta(hours=east))
    return UTC
