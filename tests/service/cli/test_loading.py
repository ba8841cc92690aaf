"""Lines become messages exactly as promised, and a bad line is named and refuses its batch."""

from __future__ import annotations

import gzip
import io
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest

from tierlog.service.cli import line_loader, line_sources
from tierlog.service.cli.line_loader import (
    RFC_3339,
    Batch,
    FilePosition,
    JsonField,
    LineRules,
    LoadReport,
    TimestampParser,
    batches_of,
    batches_of_text,
    check_batch,
    compile_pattern,
    load,
)
from tierlog.service.cli.line_sources import PIECE_BYTES, check_files
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.base.times import to_ms
from tierlog.tiering.message.batch import BORN_END_MS, Message, MessageBatch

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


def records(tmp_path: Path, data: bytes, *, continues: str = r"^\s", keys: Sequence[str] = ()) -> list[Message]:
    return read(
        tmp_path, data, LineRules("logs", [re.compile(key) for key in keys], None, None, LIMIT, re.compile(continues))
    )[0]


@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (b"a\n b\n c\nd\n", [b"a\n b\n c", b"d"]),
        (b"a\r\n b\r\nc", [b"a\n b", b"c"]),
        (b" head\n b\nc\n", [b" head\n b", b"c"]),
        (b"a\n\n b\n\n\nc\n\n", [b"a\n\n b", b"c"]),
        (b"\n\na\n b", [b"a\n b"]),
        (b"\n\n\n", []),
    ],
)
def test_lines_that_continue_a_record_are_part_of_its_message(tmp_path: Path, data: bytes, bodies: list[bytes]) -> None:
    assert [message.body for message in records(tmp_path, data)] == bodies


def test_keys_of_a_record_come_from_all_of_its_lines_and_counts_say_what_was_joined(tmp_path: Path) -> None:
    how = LineRules("logs", [re.compile(r"id=(\d)")], None, None, LIMIT, re.compile(r"^\s"))
    messages, report = read(tmp_path, b"id=1\n at id=2\n\n at id=3\n\nid=4\n", how)
    assert [message.keys for message in messages] == [["1", "2", "3"], ["4"]]
    assert (report.messages, report.continued, report.skipped_empty) == (2, 3, 1)


def test_a_record_ends_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\n b\n")
    (tmp_path / "b").write_bytes(b" c\nd\n")
    how = LineRules("logs", max_body_bytes=LIMIT, continues=re.compile(r"^\s"))
    (batch,) = batches_of([str(tmp_path / "a"), str(tmp_path / "b")], how)
    assert [message.body for message in batch.messages] == [b"a\n b", b" c", b"d"]
    assert [batch.place(position) for position in (1, 2)] == [f"{tmp_path}/b, line 1", f"{tmp_path}/b, line 2"]


@pytest.mark.parametrize("end", [b"", b"\nnext\n"])
def test_a_record_over_the_limit_is_named_by_its_first_line(tmp_path: Path, end: bytes) -> None:
    with pytest.raises(MessageTooLargeError, match=r"some\.log, line 2: the record that begins here is over the limit"):
        records(tmp_path, b"fine\nfirst\n" + b"\n".join([b" more" * 5] * 10) + end)


def test_a_record_of_any_length_is_held_only_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_sources, "PIECE_BYTES", 50)
    monkeypatch.setattr(line_loader, "PIECE_BYTES", 50)
    file, seen = tmp_path / "endless.log", list[int]()
    file.write_bytes(b"first\n" + b" more\n" * 100_000)
    how = LineRules("logs", max_body_bytes=LIMIT, continues=re.compile(r"^\s"))
    with pytest.raises(MessageTooLargeError, match="line 1"):
        list(batches_of([str(file)], how, seen.append))
    assert sum(seen) < 100_000  # a piece of the first look, and a few more
    file.write_bytes(b"first\n" + b"\n" * 10_000 + b"second\n")
    assert [message.body for batch in batches_of([str(file)], how) for message in batch.messages] == [
        b"first",
        b"second",
    ]


def test_records_are_the_same_however_their_lines_come_in_pieces(seed: int) -> None:
    chance = random.Random(seed)
    how = LineRules("logs", max_body_bytes=LIMIT, continues=re.compile(r"^\s"))
    for _ in range(100):
        text = b"".join(chance.choice([b"\n", b"a\n", b" b\n", b"c\r\n"]) for _ in range(chance.randrange(20)))
        pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
        found = [
            [m.body for batch in batches_of_text("t", piece, how) for m in batch.messages] for piece in ([text], pieces)
        ]
        assert found[0] == found[1]
        assert b"".join(found[0]).replace(b"\n", b"") == text.replace(b"\r\n", b"\n").replace(b"\n", b"")


def json_rules(*keys: str, tag: str | None = None, born: str | None = None, born_format: str = RFC_3339) -> LineRules:
    return LineRules(
        "logs",
        born=TimestampParser(None, born_format, year=None, now_ms=NOW_MS) if born else None,
        json_keys=[JsonField(key) for key in keys],
        json_tag=JsonField(tag) if tag else None,
        json_born=JsonField(born) if born else None,
    )


@pytest.mark.parametrize(
    ("line", "field", "keys"),
    [
        (b'{"a": {"b": "x"}}', "a.b", ["x"]),
        (b'{"a.b": "flat", "a": {"b": "deep"}}', "a.b", ["flat"]),
        (b'{"a": {"b.c": "x"}}', "a.b.c", ["x"]),
        (b'{"id": 12345678901234567890123}', "id", ["12345678901234567890123"]),
        (b'{"id": -1.50}', "id", ["-1.50"]),
        (b'{"id": ["x", 7, "x", null, {"y": 1}, ["z"]]}', "id", ["x", "7", "z"]),
        (b'{"items": [{"id": 1}, {"id": 2}, {}]}', "items.id", ["1", "2"]),
        (b'{"id": true}', "id", []),
        (b'{"id": null}', "id", []),
        (b'{"id": ""}', "id", []),
        (b'{"id": {"x": 1}}', "id", []),
        (b'{"other": 1}', "id", []),
        ('{"id": "Köln"}'.encode(), "id", ["Köln"]),
    ],
)
def test_strings_and_numbers_of_a_field_are_keys(tmp_path: Path, line: bytes, field: str, keys: list[str]) -> None:
    ((message,), report) = read(tmp_path, line, json_rules(field))
    assert (message.body, message.keys) == (line, keys)
    assert (report.without_key, report.not_json) == (0 if keys else 1, 0)


@pytest.mark.parametrize("line", [b"plain", b"[1]", b'"text"', b'{"id": NaN}', b'{"id": 1', b"[" * 100_000, b"{} x"])
def test_a_line_that_is_no_json_object_is_a_message_without_keys_and_counted(tmp_path: Path, line: bytes) -> None:
    ((message, other), report) = read(tmp_path, line + b'\n{"id": 1}\n', json_rules("id"))
    assert (message.body, message.keys, other.keys) == (line, [], ["1"])
    assert (report.without_key, report.not_json) == (1, 1)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (b'"2026-03-01T06:00:00.250Z"', RFC_3339),
        (b'"2026-03-01 07:00:00.25+01:00"', RFC_3339),
        (b"1772344800250", RFC_3339),
        (b"1772344800.25", "epoch_s"),
        (b'"01.03.2026 06:00:00,250"', "%d.%m.%Y %H:%M:%S,%f"),
    ],
)
def test_tag_and_time_come_out_of_fields(tmp_path: Path, text: bytes, form: str) -> None:
    data = b'{"level": "INFO", "at": %s}\n{"level": 3}\n' % text
    messages, report = read(tmp_path, data, json_rules(tag="level", born="at", born_format=form))
    assert [(message.tag, message.born_ms) for message in messages] == [
        ("INFO", 1_772_344_800_250),
        ("3", 1_772_344_800_250),
    ]
    assert (report.without_tag, report.without_time) == (0, 1)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (b'{"id": "a b"}', json_rules("id")),
        (b'{"id": "\\ud800"}', json_rules("id")),
        (b'{"at": "soon"}', json_rules(born="at")),
    ],
)
def test_a_field_that_can_be_no_key_or_time_makes_a_bad_line(tmp_path: Path, line: bytes, how: LineRules) -> None:
    (tmp_path / "bad.log").write_bytes(b"{}\n" + line)
    with pytest.raises(InvalidRequestError, match=r"bad\.log, line 2: "):
        check_batch(next(batches_of([str(tmp_path / "bad.log")], how)), LIMIT)


def test_a_field_with_an_empty_name_is_refused() -> None:
    for path in ("", "a.", ".a", "a..b"):
        with pytest.raises(InvalidRequestError, match="bad field"):
            JsonField(path)


def test_what_lines_lack_is_counted_and_which_pattern_was_found(tmp_path: Path) -> None:
    how = rules(r"id=(\d+)", r"x=(\d+)", tag="INFO", born=(r"^\d{4}-\S+", "%Y-%m-%d"))
    _, report = read(tmp_path, b"2026-03-01 INFO id=1\n\nnothing\n2026-03-02 none\n", how)
    assert (report.without_key, report.without_tag, report.without_time) == (2, 2, 1)
    assert [flag for name, flag in how.asked.items() if name not in report.matched] == [r"--key x=(\d+)"]


def test_two_groups_give_the_first_and_an_empty_group_is_a_bad_key(tmp_path: Path) -> None:
    ((message,), _) = read(tmp_path, b"a=1 b=2", rules(r"(\w)=(\d)"))
    assert message.keys == ["a", "b"]
    (tmp_path / "some.log").write_bytes(b"fine\nkey=\n")
    with pytest.raises(InvalidRequestError, match=r"line 2: bad key ''"):
        check_batch(next(batches_of([str(tmp_path / "some.log")], rules("key=(.*)"))), LIMIT)


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S,%f", "%d.%m.%Y", "%Y%m%d%H%M%S", "[%m/%d/%Y:%H:%M]"])
def test_times_of_plain_digits_are_what_strptime_makes_of_them(form: str, seed: int) -> None:
    chance = random.Random(seed)
    parser = TimestampParser(None, form, year=None, now_ms=0)
    assert parser._digits is not None
    for _ in range(300):
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=chance.randrange(BORN_END_MS // 2))
        text = moment.strftime(form)
        assert parser.of_text(text) == to_ms(datetime.strptime(text, form).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    "text", ["2026-02-30 00:00:00", "2026-01-01 24:00:00", "2026-01-01 00:60:00", "1969-12-31 23:59:59"]
)
def test_times_that_are_none_are_refused_in_plain_digits_too(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="born time"):
        TimestampParser(None, "%Y-%m-%d %H:%M:%S", year=None, now_ms=0).of_text(text)


@pytest.mark.parametrize("continues", [None, re.compile(r"^\s")])
def test_a_load_that_goes_on_at_any_batch_reads_exactly_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continues: re.Pattern[str] | None
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 3)
    files = [str(tmp_path / name) for name in "abc"]
    for number, name in enumerate(files):
        text = b"\n".join(b"%d-%d\r\n  more\n\n" % (number, line) for line in range(5))
        Path(name).write_bytes(text if number else gzip.compress(text))
    how = LineRules("logs", max_body_bytes=LIMIT, continues=continues)
    whole = list(batches_of(files, how, positions=()))
    bodies = [[message.body for message in batch.messages] for batch in whole]
    for number, batch in enumerate(whole):
        rest = list(batches_of(files, how, positions=batch.files))
        assert [[message.body for message in each.messages] for each in rest] == bodies[number + 1 :]
        counted = [sum(each.counts.skipped_empty for each in part) for part in (whole[number + 1 :], rest)]
        assert counted[0] == counted[1]
    assert whole[-1].files == tuple(FilePosition(lines, digest) for lines, digest in ((19, ANY), (19, ANY), (19, ANY)))


def test_a_file_that_is_not_what_it_was_is_refused_and_one_that_grew_is_read_on(tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    file.write_bytes(b"one\ntwo\nthr")
    *_, last = batches_of([str(file)], rules(), positions=())
    for changed in (b"one\ntwo\n", b"one\nTwo\nthr", b"one\ntwo\nthree\n", b""):
        file.write_bytes(changed)
        with pytest.raises(InvalidRequestError, match=r"app\.log, line 3: what was loaded up to here is not"):
            list(batches_of([str(file)], rules(), positions=last.files))
    file.write_bytes(b"one\ntwo\nthr\nfour\n")
    (batch,) = batches_of([str(file)], rules(), positions=last.files)
    assert [message.body for message in batch.messages] == [b"four"]


def test_what_a_file_grew_by_is_kept_while_the_next_one_is_passed(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in "ab"]
    for name in files:
        Path(name).write_bytes(b"1\n2\n")
    *_, last = batches_of(files, rules(), positions=())
    Path(files[0]).write_bytes(b"1\n2\n3\n")
    (batch,) = batches_of(files, rules(), positions=last.files)
    assert [message.body for message in batch.messages] == [b"3"]
    assert list(batches_of(files, rules(), positions=batch.files)) == []
