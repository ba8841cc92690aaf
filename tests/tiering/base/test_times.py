"""Times go in as ms or RFC 3339 and come out as RFC 3339."""

from __future__ import annotations

import pytest

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import format_time, parse_duration, parse_time


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


@pytest.mark.parametrize(
    "text",
    [
        "", "yesterday", "2026-13-01", "2026-02-30", "2026-03-01T25:00:00Z", "2026-03-01T06:00:61Z", "-1", "1.5",
        "1969-12-31T23:59:59Z", "2026-03-01T06:00:00+99:00", "99999999999999999", "2026-03-01T", "٣",
        "2026-03-01T06:00:00Z extra",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_time(text)


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
