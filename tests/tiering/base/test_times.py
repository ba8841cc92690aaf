"""Times go in as ms, RFC 3339 or relative to now, and come out as RFC 3339."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import (
    RELATIVE_PATTERN,
    format_time,
    parse_duration,
    parse_time,
    seconds_hint,
)

#: 2026-03-01T06:00:00.345Z
NOW_MS = 1_772_344_800_345
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is in New York, where clocks go forward on 2026-03-08."""
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1772344800345", 1_772_344_800_345),
        ("2026-03-01", 1_772_323_200_000),
        ("2026-03-01T06:00:00Z", 1_772_344_800_000),
        ("2026-03-01t06:00:00z", 1_772_344_800_000),
        ("2026-03-01 06:00", 1_772_344_800_000),
        ("2026-03-01T06:00:00.345Z", 1_772_344_800_345),
        ("2026-03-01T06:00:00.345999999Z", 1_772_344_800_345),
        ("2026-03-01T06:00:00,3", 1_772_344_800_300),
        ("2026-03-01T07:30:00+01:30", 1_772_344_800_000),
        ("2026-03-01T04:30:00-0130", 1_772_344_800_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_a_time_is_read_in_every_usual_form(text: str, ms: int) -> None:
    assert parse_time(text) == ms
    assert parse_time(text, NOW_MS) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW_MS),
        ("2h", NOW_MS - 2 * HOUR_MS),
        (" 2 h ", NOW_MS - 2 * HOUR_MS),
        ("345ms", NOW_MS - 345),
        ("1s", NOW_MS - 1000),
        ("1m", NOW_MS - 60_000),
        ("3d", NOW_MS - 3 * DAY_MS),
        ("1w", NOW_MS - 7 * DAY_MS),
        ("now-2h", NOW_MS - 2 * HOUR_MS),
        ("now+5m", NOW_MS + 300_000),
        ("now + 5m", NOW_MS + 300_000),
        ("today", 1_772_323_200_000),
        ("today+8h", 1_772_323_200_000 + 8 * HOUR_MS),
        ("yesterday", 1_772_323_200_000 - DAY_MS),
        ("14:30", 1_772_323_200_000 + 14 * HOUR_MS + 1_800_000),
        ("05:00:01.5", 1_772_323_200_000 + 5 * HOUR_MS + 1_500),
        ("14:30Z", 1_772_323_200_000 + 14 * HOUR_MS + 1_800_000),
        ("01:00+10:00", 1_772_323_200_000 - 9 * HOUR_MS),
    ],
)  # fmt: skip
def test_a_relative_time_is_relative_to_the_moment_given(text: str, ms: int) -> None:
    assert parse_time(text, NOW_MS) == ms


def test_a_day_begins_at_midnight_of_the_zone_that_is_written() -> None:
    """06:00 UTC on the first of March is still the last of February ten hours to the west."""
    assert format_time(parse_time("23:00-10:00", NOW_MS)) == "2026-03-01T09:00:00.000Z"
    assert format_time(parse_time("00:00+10:00", NOW_MS)) == "2026-02-28T14:00:00.000Z"


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("today", "2026-03-01T05:00:00.000Z"),
        ("yesterday", "2026-02-28T05:00:00.000Z"),
        ("14:30", "2026-03-01T19:30:00.000Z"),
        ("14:30Z", "2026-03-01T14:30:00.000Z"),
        ("2026-03-01", "2026-03-01T05:00:00.000Z"),
        ("2026-07-01T12:00", "2026-07-01T16:00:00.000Z"),
        ("2026-07-01T12:00Z", "2026-07-01T12:00:00.000Z"),
        ("2h", "2026-03-01T04:00:00.345Z"),
    ],
)
def test_a_local_time_without_a_zone_is_of_this_machine(text: str, utc: str) -> None:
    assert format_time(parse_time(text, NOW_MS, local=True)) == utc


@pytest.mark.usefixtures("new_york")
def test_yesterday_is_the_day_before_on_the_calendar_and_not_24_hours_ago() -> None:
    monday_ms = parse_time("2026-03-09T09:00:00-04:00")
    sunday_ms, today_ms = (parse_time(text, monday_ms, local=True) for text in ("yesterday", "today"))
    assert today_ms - sunday_ms == 23 * HOUR_MS


@pytest.mark.usefixtures("new_york")
def test_the_zone_of_the_machine_is_asked_only_if_local_times_are() -> None:
    assert parse_time("today", NOW_MS) == parse_time("2026-03-01") == 1_772_323_200_000


@pytest.mark.parametrize("text", ["now", "2h", "today", "yesterday", "14:30", "now-1d"])
def test_a_text_that_is_kept_cannot_be_relative(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read the time"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "tomorrow", "2026-13-01", "2026-02-30", "2026-03-01T25:00:00Z", "2026-03-01T06:00:61Z", "-1", "1.5",
        "1969-12-31T23:59:59Z", "2026-03-01T06:00:00+99:00", "99999999999999999", "2026-03-01T", "٣",
        "2026-03-01T06:00:00Z extra", "2y", "1h30m", "-2h", "now-", "now2h", "+2h", "25:00", "14:60", "99999w",
        "now+999999999999d", "14:30+99:00",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_time(text, NOW_MS)
    assert refused.value.hint is not None
    for form in ("ms since the epoch", "2026-03-01T00:00:00Z", "2h (two hours ago)", "now-2h", "today", "14:30"):
        assert form in refused.value.hint


def test_the_pattern_of_relative_times_describes_only_what_is_read() -> None:
    for text in ("now", "today", "now-2h", "today+9999d", "999w", "99999h", "999999999999ms", "14:30", "23:59:59"):
        assert re.search(RELATIVE_PATTERN, text)
        parse_time(text, NOW_MS)
    for text in ("", "tomorrow", "2", "2h ago", "24:00", "7", "nowhere"):
        assert not re.search(RELATIVE_PATTERN, text)


def test_a_time_as_large_as_seconds_are_is_pointed_out() -> None:
    assert seconds_hint("1772344800") == (
        "times are in ms: 1772344800 is 1970-01-21T12:19:04.800Z; "
        "as seconds it would be 1772344800000, 2026-03-01T06:00:00.000Z"
    )
    for text in ("1772344800345", "0", "177234480", "2026-03-01", "2h"):
        assert seconds_hint(text) is None


@pytest.mark.parametrize("ms", [0, 1, 999, 1_772_344_800_345, 253_402_300_799_999])
def test_a_time_survives_being_written_and_read(ms: int) -> None:
    assert parse_time(format_time(ms)) == ms


def test_a_time_beyond_four_digit_years_is_shown_as_its_number() -> None:
    assert format_time(253_402_300_800_000) == "253402300800000"
    assert format_time(-1) == "-1"


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90d", 7_776_000_000), ("12 h", 43_200_000), ("5m", 300_000), ("1s", 1000), ("7ms", 7), ("2w", 1_209_600_000)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1.5h", "1y", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read the duration"):
        parse_duration(text)
