"""Lines become messages exactly as promised, and a bad line is named and refuses its batch."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tierlog.service.cli import line_loader
from tierlog.service.cli.line_loader import (
    Batch,
    LineRules,
    LoadReport,
    TimestampParser,
    batches_of,
    check_batch,
    compile_pattern,
    load,
)
from tierlog.service.cli.line_sources import PIECE_BYTES, check_files
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.message.batch import Message, MessageBatch

LIMIT = 100
NOW_MS = 1_700_000_000_000


def rules(
    *keys: str, tag: str | None = None, born: tuple[str, str] | None = None, year: int | None = None
) -> LineRules:
    return LineRules(
        "logs",
        [re.compile(key) for key in keys],
        re.compile(tag) if tag else None,
        TimestampParser(re.compile(born[0]), born[1], year=year, now_ms=NOW_MS) if born else None,
        LIMIT,
    )


def read(tmp_path: Path, data: bytes, how: LineRules) -> tuple[list[Message], LoadReport]:
    file = tmp_path / "some.log"
    file.write_bytes(data)
    batches, report = list(batches_of([str(file)], how)), LoadReport()
    for batch in batches:
        report.add(batch.counts)
    return [message for batch in batches for message in batch.messages], report


@pytest.mark.parametrize(
    ("data", "bodies", "skipped"),
    [
        (b"", [], 0),
        (b"a", [b"a"], 0),
        (b"a\n", [b"a"], 0),
        (b"a\r\nb\r\n", [b"a", b"b"], 0),
        (b"a\r\nb", [b"a", b"b"], 0),
        (b"a\r", [b"a"], 0),
        (b"a\r\r\nb\rc\n", [b"a\r", b"b\rc"], 0),
        (b"\n\r\na\n\n", [b"a"], 3),
        (b" \n", [b" "], 0),
        (b"\xff\x01\x85\xe2\x80\xa8\x0b\n", [b"\xff\x01\x85\xe2\x80\xa8\x0b"], 0),
    ],
)
def test_a_line_ends_at_lf_or_the_end_and_loses_one_cr(
    tmp_path: Path, data: bytes, bodies: list[bytes], skipped: int
) -> None:
    messages, report = read(tmp_path, data, rules())
    assert [message.body for message in messages] == bodies
    assert report.skipped_empty == skipped


def test_every_match_of_every_pattern_is_a_key_once_and_in_order(tmp_path: Path) -> None:
    ((message,), _) = read(tmp_path, b"id=7 blk_1 blk_-2 id=8 blk_1", rules(r"blk_-?\d+", r"id=(\d+)"))
    assert message.keys == ["blk_1", "blk_-2", "7", "8"]


def test_a_group_that_takes_no_part_gives_no_key(tmp_path: Path) -> None:
    ((message,), _) = read(tmp_path, b"id=7 x9", rules(r"id=(\d+)|x\d"))
    assert message.keys == ["7"]


def test_the_tag_is_the_first_match_or_none(tmp_path: Path) -> None:
    messages, _ = read(tmp_path, b"a INFO b WARN\nnothing", rules(tag="INFO|WARN"))
    assert [message.tag for message in messages] == ["INFO", ""]


def test_born_times_are_utc_and_a_line_without_one_takes_the_previous(tmp_path: Path) -> None:
    data = b"head\n2015-10-18 18:01:47,978 x\n  trace\n2015-10-18 18:01:48,1 y\n"
    how = rules(born=(r"^\d{4}-\S+ \S+", "%Y-%m-%d %H:%M:%S,%f"))
    messages, _ = read(tmp_path, data, how)
    assert [message.born_ms for message in messages] == [
        NOW_MS,
        1_445_191_307_978,
        1_445_191_307_978,
        1_445_191_308_100,
    ]


@pytest.mark.parametrize(
    ("text", "pattern", "form", "year", "ms"),
    [
        ("081109 203615 x", r"^\d{6} \d{6}", "%y%m%d %H%M%S", None, 1_226_262_975_000),
        ("[Sun Dec 04 04:47:44 2005]", r"\[(.*?)\]", "%a %b %d %H:%M:%S %Y", None, 1_133_671_664_000),
        ("Dec 10 06:55:46 LabSZ", r"^\w+ +\d+ \S+", "%b %d %H:%M:%S", 2016, 1_481_352_946_000),
        ("Feb 29 00:00:00 host", r"^\w+ +\d+ \S+", "%b %d %H:%M:%S", 2016, 1_456_704_000_000),
        ("20171223-22:15:29:606|", r"^[^|]+", "%Y%m%d-%H:%M:%S:%f", None, 1_514_067_329_606),
        ("20171224-0:7:20:444|", r"^[^|]+", "%Y%m%d-%H:%M:%S:%f", None, 1_514_074_040_444),
        ("10/Oct/2000:13:55:36 -0700", r"^.*$", "%d/%b/%Y:%H:%M:%S %z", None, 971_211_336_000),
        ("2026-03-01 06:00:00 GMT", r"^.*$", "%Y-%m-%d %H:%M:%S %Z", None, 1_772_344_800_000),
        ("1514067329.606 x", r"^\S+", "epoch_s", None, 1_514_067_329_606),
        ("1514067329606 x", r"^\S+", "epoch_ms", None, 1_514_067_329_606),
    ],
)
def test_born_times_of_usual_logs_are_read(
    tmp_path: Path, text: str, pattern: str, form: str, year: int | None, ms: int
) -> None:
    ((message,), _) = read(tmp_path, text.encode(), rules(born=(pattern, form), year=year))
    assert message.born_ms == ms


@pytest.mark.parametrize(("form", "year"), [("%b %d %H:%M:%S", None), ("%H:%M:%S", 2020), ("%b %d", 1600)])
def test_a_format_that_leaves_the_day_or_the_year_open_is_refused(form: str, year: int | None) -> None:
    with pytest.raises(InvalidRequestError):
        TimestampParser(re.compile("x"), form, year=year, now_ms=0)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (b"key [a b]", rules(r"\[(.*)\]")),
        (b"key []", rules(r"\[(.*)\]")),
        (b"key [\xff]", rules(r"\[(.*)\]")),
        (b"tag [\xff]", rules(tag=r"\[(.*)\]")),
        (b"31.02.2020", rules(born=(r"^\d\S*", "%d.%m.%Y"))),
        (b"1960-01-01", rules(born=(r"^\d\S*", "%Y-%m-%d"))),
        (b"12h", rules(born=(r"^\d\S*", "epoch_s"))),
        (b"2026-03-01 CET", rules(born=(r"^\d.*$", "%Y-%m-%d %Z"))),
        (b"x" * (LIMIT + 1), rules()),
        (b"x" * (LIMIT + 1) + b"\r", rules()),
        (b"x" * 10_000, rules()),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, how: LineRules, end: bytes) -> None:
    file = tmp_path / "bad.log"
    file.write_bytes(b"fine\n\n" + line + end)

    def check_all() -> None:
        for batch in batches_of([str(file)], how):
            check_batch(batch, LIMIT)

    with pytest.raises(InvalidRequestError, match=re.escape(f"{file}, line 3: ")):
        check_all()


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
def test_a_line_of_exactly_the_limit_is_taken(tmp_path: Path, end: bytes) -> None:
    messages, _ = read(tmp_path, b"x" * LIMIT + end + (b"y" if end.endswith(b"\n") else b""), rules())
    assert messages[0].body == b"x" * LIMIT


def test_a_long_line_is_refused_without_reading_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "long.log"
    file.write_bytes(b"x" * 10_000_000)
    seen: list[int] = []
    with pytest.raises(MessageTooLargeError, match="line 1"):
        list(batches_of([str(file)], rules(), seen.append))
    assert sum(seen) <= LIMIT + 1 + PIECE_BYTES


def test_batches_are_bounded_by_lines_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 3)
    monkeypatch.setattr(line_loader, "BATCH_BYTES", 10)
    file = tmp_path / "some.log"
    file.write_bytes(b"1\n2\n3\n4\n\n" + b"x" * 9 + b"\n" + b"y" * 9 + b"\n" + b"z" * 50)
    sizes = [[len(message.body) for message in batch.messages] for batch in batches_of([str(file)], rules())]
    assert sizes == [[1, 1, 1], [1, 9], [9], [50]]


def test_files_are_read_in_order_and_standard_input_is_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"in\n")))
    (batch,) = batches_of([str(tmp_path / "a"), "-", str(tmp_path / "b")], rules())
    assert [message.body for message in batch.messages] == [b"a", b"in", b"b"]
    assert [batch.place(position) for position in range(3)] == [
        f"{tmp_path}/a, line 1", "standard input, line 1", f"{tmp_path}/b, line 1",
    ]  # fmt: skip


def test_a_file_that_is_not_there_is_found_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert check_files([str(tmp_path / "a")]) == 3
    assert check_files([str(tmp_path / "a"), "-"]) is None
    for missing in (tmp_path / "b", tmp_path):
        with pytest.raises(InvalidRequestError, match=str(missing)):
            check_files([str(tmp_path / "a"), str(missing)])


def test_what_was_acknowledged_before_a_refused_batch_is_counted() -> None:
    def append(messages: Sequence[Message]) -> None:
        MessageBatch.of(messages, now_ms=0, max_body_bytes=LIMIT)

    batches = [
        Batch(messages, [("f", np.array(numbers))], LoadReport(len(messages), batches=1, bytes=len(messages)))
        for messages, numbers in (
            ([Message("logs", b"1"), Message("logs", b"2")], [1, 2]),
            ([Message("logs", b"3"), Message("logs", b"4", ["a b"])], [3, 9]),
            ([Message("logs", b"5")], [10]),
        )
    ]
    report = LoadReport()
    acknowledged: list[Batch] = []
    with pytest.raises(InvalidRequestError, match=r"f, line 9: bad key 'a b'"):
        load(batches, append, report=report, acknowledged=acknowledged.append)
    assert (report.messages, report.batches, report.bytes) == (2, 1, 2)
    assert acknowledged == batches[:1]


def test_a_bad_pattern_or_topic_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequestError, match="bad pattern"):
        compile_pattern("(")
    with pytest.raises(InvalidRequestError, match="bad topic"):
        LineRules("a/b")
