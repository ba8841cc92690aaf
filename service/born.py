"""The time a log line says it was written, for ``load --born REGEX --born-format FMT``."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tiering.batch import validate_born_ms
from tiering.errors import InvalidRequestError
from tiering.times import to_ms

EPOCH_S = "epoch_s"
EPOCH_MS = "epoch_ms"
_DIRECTIVE = re.compile(r"%[-_0^#]?(.)")
_WITH_YEAR = frozenset("YyGcx")
_WITH_DAY = frozenset("djcxUWV")
_HINT = "FMT is a strptime format such as '%Y-%m-%d %H:%M:%S,%f', or epoch_s or epoch_ms"


class BornTimes:
    """Born times of the lines of one load, in ms UTC; remembers the last one for lines that have none."""

    def __init__(self, pattern: re.Pattern[str], born_format: str, *, year: int | None, now_ms: int) -> None:
        """``year`` is for formats without one; ``now_ms`` for the lines before the first that has a time.

        Raises :class:`InvalidRequestError` for a format that leaves the day or the year open.
        """
        self._pattern = pattern
        self._format = born_format
        self._prefix = ""
        self._last_text: str | None = None
        self._last_ms = now_ms
        self._zone_name = False
        if born_format not in (EPOCH_S, EPOCH_MS):
            directives = set(_DIRECTIVE.findall(born_format))
            if not directives & _WITH_DAY:
                raise InvalidRequestError(f"the time format {born_format!r} has no day", hint=_HINT)
            if not directives & _WITH_YEAR:
                if year is None:
                    raise InvalidRequestError(
                        f"the time format {born_format!r} has no year", hint="say which with --year"
                    )
                if not 1970 <= year <= 9999:
                    raise InvalidRequestError(f"year {year} is not between 1970 and 9999")
                self._prefix, self._format = f"{year:04d} ", f"%Y {born_format}"
            self._zone_name = "Z" in directives

    def of_line(self, line: str) -> int:
        """The line's time, or the previous line's; :class:`InvalidRequestError` if FMT cannot read what REGEX found."""
        match = self._pattern.search(line)
        if match is None:
            return self._last_ms
        text = match[1] if self._pattern.groups else match[0]
        if text is not None and text != self._last_text:
            self._last_ms = self._parse(text)
            self._last_text = text
        return self._last_ms

    def _parse(self, text: str) -> int:
        try:
            if self._format in (EPOCH_S, EPOCH_MS):
                ms = _epoch_ms(text, 1000 if self._format == EPOCH_S else 1)
            else:
                ms = self._parse_format(text)
        except ValueError as error:
            raise InvalidRequestError(f"cannot read the born time {text[:60]!r}: {error}", hint=_HINT) from error
        if ms < 0:
            raise InvalidRequestError(f"the born time {text[:60]!r} is before 1970")
        return validate_born_ms(ms)

    def _parse_format(self, text: str) -> int:
        moment = datetime.strptime(self._prefix + text, self._format)
        if moment.tzinfo is None:
            if self._zone_name and not re.search(r"\b(?:UTC|GMT|Z)\b", text, re.IGNORECASE):
                # %Z also takes the name of this machine's zone and then forgets it
                raise ValueError("a zone name other than UTC or GMT says no offset; use %z")
            moment = moment.replace(tzinfo=UTC)
        return to_ms(moment)


def _epoch_ms(text: str, factor: int) -> int:
    match = re.fullmatch(r"\s*(\d{1,20})(?:[.,](\d+))?\s*", text)
    if match is None:
        raise ValueError("not a number")
    whole = int(match[1]) * factor
    return whole + int((match[2] or "0").ljust(3, "0")[:3]) if factor == 1000 else whole
