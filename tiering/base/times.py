"""Times as people write them: integer ms since the epoch, or RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import END_OF_TIME_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_HINT = "use ms since the epoch or RFC 3339, for example 2026-03-01T00:00:00Z or 2026-03-01"
_RFC_3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*([Zz]|[+-]\d\d:?\d\d)?)?"
)


def parse_time(text: str) -> int:
    """Ms since the epoch of ``text``; a date alone is its midnight, no zone is UTC. Digits below a ms are cut off.

    Raises :class:`InvalidRequestError` for anything else, and for times before 1970 or after the year 9999.
    """
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        ms = int(text)
    else:
        ms = _parse_rfc_3339(text)
    if not 0 <= ms <= END_OF_TIME_MS:
        raise InvalidRequestError(f"time {text!r} is not between 1970 and 9999", hint=_HINT)
    return ms


def _parse_rfc_3339(text: str) -> int:
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}", hint=_HINT)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        # Second 60 is how RFC 3339 writes a leap second; the epoch scale has none, so it is the second after.
        whole = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), tzinfo=UTC)
        seconds = int(second or 0)
        ms = (whole - _EPOCH) // _MS + seconds * 1000 + int((fraction or "0").ljust(3, "0")[:3])
    except ValueError as error:
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}: {error}", hint=_HINT) from error
    if seconds > 60:
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}: second is over 60", hint=_HINT)
    return ms - _zone_ms(zone)


def _zone_ms(zone: str | None) -> int:
    if zone is None or zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise InvalidRequestError(f"bad time zone {zone!r}", hint=_HINT)
    return (hours * 60 + minutes) * (-60_000 if zone[0] == "-" else 60_000)


def to_ms(moment: datetime) -> int:
    """Ms since the epoch of an aware moment, rounded down."""
    return (moment - _EPOCH) // _MS


def format_time(ms: int) -> str:
    """RFC 3339 in UTC with ms; the number itself where no year of four digits says it."""
    if not 0 <= ms < END_OF_TIME_MS:
        return str(ms)
    moment = _EPOCH + ms * _MS
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def to_local(ms: int) -> str:
    """RFC 3339 in the zone of this machine, with its offset; the number where no year of four digits says it."""
    if not 0 <= ms < END_OF_TIME_MS:
        return str(ms)
    try:
        moment = (_EPOCH + ms * _MS).astimezone()
    except (OverflowError, OSError, ValueError):  # what the zone adds leads beyond the calendar
        return format_time(ms)
    return moment.isoformat(timespec="milliseconds")


def parse_duration(text: str) -> int:
    """Ms of a number with a unit: ms, s, m, h, d (24 h) or w. Raises :class:`InvalidRequestError` for anything else."""
    match = re.fullmatch(r"([0-9]{1,15})\s*(ms|s|m|h|d|w)", text.strip())
    if match is None:
        raise InvalidRequestError(
            f"cannot read the duration {text[:60]!r}", hint="a number and ms, s, m, h, d or w, for example 90d"
        )
    return int(match[1]) * _UNITS_MS[match[2]]
