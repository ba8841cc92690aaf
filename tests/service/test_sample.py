"""The sample is the same on every machine and has everything in it that makes real logs hard."""

from __future__ import annotations

import hashlib
import re

import pytest

from tierlog.service.cli.line_loader import TimestampParser
from tierlog.service.sample import BORN_FORMAT, BORN_PATTERN, KEY_PATTERNS, TAG_PATTERN, sample_log

LINES = 6_000


@pytest.fixture(scope="module")
def log() -> bytes:
    return b"".join(sample_log(LINES))


def test_a_seed_gives_the_same_bytes_for_ever(log: bytes) -> None:
    assert b"".join(sample_log(LINES)) == log
    assert b"".join(sample_log(LINES, seed=2)) != log
    assert hashlib.sha256(b"".join(sample_log(50, seed=7))).hexdigest().startswith("6f275913cf3e0f23")


def test_a_shorter_sample_is_the_beginning_of_a_longer_one(log: bytes) -> None:
    assert log.startswith(b"".join(sample_log(100)).rstrip(b"-"))


@pytest.mark.parametrize("lines", [0, 1, 2, 37, 500])
def test_it_has_as_many_lines_as_asked_for_and_no_last_line_end(lines: int) -> None:
    data = b"".join(sample_log(lines))
    assert not data.endswith(b"\n")
    assert len(data.split(b"\r\n")) == max(lines, 1)


def test_line_ends_are_chosen(log: bytes) -> None:
    assert log.count(b"\r\n") == log.count(b"\n") == LINES - 1
    assert b"".join(sample_log(LINES, crlf=False)) == log.replace(b"\r\n", b"\n")


def test_it_has_long_lines_empty_lines_and_lines_with_many_keys(log: bytes) -> None:
    lines = log.split(b"\r\n")
    assert max(len(line) for line in lines) > 3_000
    assert b"" in lines
    assert max(len(re.findall(KEY_PATTERNS[0].encode(), line)) for line in lines) >= 100
    assert not log.isascii()
    assert log.decode()


def test_it_can_be_loaded_as_it_says(log: bytes) -> None:
    born = TimestampParser(re.compile(BORN_PATTERN), BORN_FORMAT, year=None, now_ms=0)
    lines = log.decode().split("\r\n")
    times = [born.of_line(line) for line in lines]
    assert times == sorted(times)
    assert times[0] > 0
    assert sum(bool(re.search(TAG_PATTERN, line)) for line in lines) > LINES * 0.9
    for pattern in KEY_PATTERNS:
        assert len(set(re.findall(pattern, log.decode()))) > 100
