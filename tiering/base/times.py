"""Times and durations as people write them.

A time is integer ms since the epoch, RFC 3339, or relative to a moment that comes in from outside: ``2h`` (two hours
ago), ``now-2h``, ``today+8h``, ``14:30``. A duration is a number and a unit.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import END_OF_TIME_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS = "ms, s, m, h, d or w"
_ABSOLUTE = "ms since the epoch, or RFC 3339 such as 2026-03-01T00:00:00Z or 2026-03-01"
_RELATIVE = "2h (two hours ago), now, now-2h, now+5m, today, yesterday, or 14:30 (today)"
_DURATION = r"([0-9]{1,15})\s*(ms|s|m|h|d|w)"
_NUMBER = re.compile("-?[0-9]{1,18}")
_CLOCK_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*([Zz]|[+-]\d\d:?\d\d)?"
_TIME_OF_DAY = re.compile(_CLOCK_TIME)
_RFC_3339 = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)(?:[Tt ]{_CLOCK_TIME})?")
_AGO = re.compile(_DURATION)
_FROM_NOW = re.compile(rf"(now|today|yesterday)(?:\s*([+-])\s*{_DURATION})?")
#: Ms since the epoch that are as many as seconds since the epoch are in our days: ten digits.
_LIKE_SECONDS = re.compile("[1-9][0-9]{9}")
#: Relative times of any length that are never before 1970, for those who describe them with a pattern.
RELATIVE_PATTERN = (r"^(((now|today|yesterday)([+-]D)?)|D|([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?)$").replace(
    "D", "([0-9]{1,12}ms|[0-9]{1,9}s|[0-9]{1,7}m|[0-9]{1,5}h|[0-9]{1,4}d|[0-9]{1,3}w)"
)


def parse_time(text: str, now_ms: int | None = None, *, local: bool = False) -> int:
    """Ms since the epoch of ``text``; a date alone is its midnight. Digits below a ms are cut off.

    Relative times are of ``now_ms``; without it, where a text is kept and read again, they are refused. What says no
    zone is UTC, or the zone of this machine where ``local`` is set; ``today`` begins at midnight there. Raises
    :class:`InvalidRequestError` for anything else, and for times before 1970 or after the year 9999.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        ms = int(text)
    else:
        relative = None if now_ms is None else _parse_relative(text, now_ms, local=local)
        ms = _parse_rfc_3339(text, _hint(now_ms), local=local) if relative is None else relative
    if not 0 <= ms <= END_OF_TIME_MS:
        raise InvalidRequestError(f"time {text[:60]!r} is not between 1970 and 9999", hint=_hint(now_ms))
    return ms


def seconds_hint(text: str) -> str | None:
    """Says what a time means that is as large as seconds since the epoch are, though ms are read; None for others."""
    text = text.strip()
    if not _LIKE_SECONDS.fullmatch(text):
        return None
    seconds = int(text)
    return (
        f"times are in ms: {text} is {format_time(seconds)}; "
        f"as seconds it would be {seconds}000, {format_time(seconds * 1000)}"
    )


def _hint(now_ms: int | None) -> str:
    return f"use {_ABSOLUTE}" if now_ms is None else f"use {_RELATIVE}; {_ABSOLUTE}; units are {_UNITS}"


def _parse_relative(text: str, now_ms: int, *, local: bool) -> int | None:
    """Returns None for a text of another form."""
    if ago := _AGO.fullmatch(text):
        return now_ms - _duration_ms(ago[1], ago[2])
    hint = _hint(now_ms)
    if named := _FROM_NOW.fullmatch(text):
        name, sign, number, unit = named.groups()
        begin_ms = now_ms
        if name != "now":
            day = _day_of(now_ms, None, local=local) - timedelta(days=name == "yesterday")
            begin_ms = _ms_of(datetime.combine(day, time()), None, local=local)
        return begin_ms if sign is None else begin_ms + _duration_ms(number, unit) * (-1 if sign == "-" else 1)
    if of_day := _TIME_OF_DAY.fullmatch(text):
        zone = _zone(of_day[5], hint)
        return _moment(text, _day_of(now_ms, zone, local=local), of_day.groups(), hint, local=local)
    return None


def _parse_rfc_3339(text: str, hint: str, *, local: bool) -> int:
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}", hint=hint)
    year, month, day, *of_day = match.groups()
    try:
        found = date(int(year), int(month), int(day))
    except ValueError as error:
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}: {error}", hint=hint) from error
    return _moment(text, found, tuple(of_day), hint, local=local)


def _moment(text: str, day: date, of_day: tuple[str | None, ...], hint: str, *, local: bool) -> int:
    hour, minute, second, fraction, zone = of_day
    seconds = int(second or 0)
    try:
        # Second 60 is how RFC 3339 writes a leap second; the epoch scale has none, so it is the second after.
        whole = datetime.combine(day, time(int(hour or 0), int(minute or 0)))
        ms = _ms_of(whole, _zone(zone, hint), local=local)
    except (ValueError, OverflowError, OSError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}: {error}", hint=hint) from error
    if seconds > 60:
        raise InvalidRequestError(f"cannot read the time {text[:60]!r}: second is over 60", hint=hint)
    return ms + seconds * 1000 + int((fraction or "0").ljust(3, "0")[:3])


def _ms_of(moment: datetime, zone: tzinfo | None, *, local: bool) -> int:
    """Ms of a moment on the calendar of a zone; without one, of this machine's or of UTC."""
    if zone is None and local:
        return (moment.astimezone(UTC) - _EPOCH) // _MS
    return (moment.replace(tzinfo=UTC) - _EPOCH - ((zone or UTC).utcoffset(None) or timedelta())) // _MS


def _day_of(ms: int, zone: tzinfo | None, *, local: bool) -> date:
    """Returns the day on the calendar of a zone; without one, of this machine's or of UTC."""
    moment = _EPOCH + ms * _MS
    return (moment.astimezone(None if local and zone is None else zone or UTC)).date()


def _zone(text: str | None, hint: str) -> tzinfo | None:
    if text is None:
        return None
    if text in "Zz":
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:])
    if hours > 23 or minutes > 59:
        raise InvalidRequestError(f"bad time zone {text!r}", hint=hint)
    return timezone(timedelta(hours=hours, minutes=minutes) * (-1 if text[0] == "-" else 1))


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
    match = _AGO.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(
            f"cannot read the duration {text[:60]!r}", hint=f"a number and {_UNITS}, for example 90d"
        )
    return _duration_ms(match[1], match[2])


def _duration_ms(number: str, unit: str) -> int:
    return int(number) * _UNITS_MS[unit]
