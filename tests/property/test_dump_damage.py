"""Damaged, cut and hostile input of every kind: what can be read is shown, the rest is a finding, nothing breaks."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.stores.dumps import Dumped, as_json, dumped, kind_of, samples
from tierlog.service.dump.kinds import PARTS
from tierlog.service.dump.result import MOST_FINDINGS
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.record import MAGIC_V1

#: Kinds whose every byte is covered by a checksum or has one meaning only.
CHECKED = ("index-compacted", "index-object", "manifest-head", "manifest-page", "queue-rows", "state")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def names() -> list[str]:
    return [
        "commit-log", "commit-log.ours", "tiered-log", "consume-queue", "tiered-queue", "index-classic",
        "index-chained", "index-chained.writing", "index-chained.rocketmq", "index-compacted",
        "index-compacted.rocketmq", "index-object", "sorted-segment", "manifest-head", "manifest-page",
        "manifest-page.references", "queue-rows", "state", "checkpoint", "abort", "lock", "json",
        "json.consumerOffset.json", "json.our-topics.json",
    ]  # fmt: skip


def in_its_place(path: Path, folder: Path) -> Path:
    """The same name and the same two folders above it, so that it is recognised as the original is."""
    target = folder.joinpath(*path.parts[-3:])
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def shown(path: Path, kind: str) -> Iterator[Dumped]:
    """Every part of a file, as what it was and as what it looks like now; that may be unknown."""
    for part in PARTS.get(kind, (None,)):
        for slots in (None, 7):
            for told in (kind, None):
                try:
                    found = dumped(path, told, part=part if told else None, slots=slots)
                except InvalidRequestError:
                    continue
                as_json(found)
                assert all(row.keys() <= found.dump.columns.keys() for row in found.rows)
                assert len(found.findings) <= MOST_FINDINGS
                yield found


@pytest.mark.parametrize("name", names())
def test_a_file_cut_anywhere_is_shown_as_far_as_it_goes(found: dict[str, Path], folder: Path, name: str) -> None:
    data = found[name].read_bytes()
    path = in_its_place(found[name], folder)
    for length in sorted({0, 1, 8, 20, 27, 28, 29, 40, len(data) // 3, len(data) // 2, len(data) - 1}):
        path.write_bytes(data[:length])
        ways = list(shown(path, kind_of(name)))
        if kind_of(name) in CHECKED and length:
            assert all(way.findings for way in ways), length


@pytest.mark.parametrize("name", [name for name in names() if kind_of(name) in CHECKED and name.count(".") == 0])
def test_every_changed_byte_of_a_checked_kind_is_found(found: dict[str, Path], folder: Path, name: str) -> None:
    data = bytearray(found[name].read_bytes())
    path = in_its_place(found[name], folder)
    for at in range(0, len(data), max(1, len(data) // 150)):
        data[at] ^= 0x10
        path.write_bytes(data)
        try:
            assert dumped(path, kind_of(name)).findings, at
        except InvalidRequestError:
            assert kind_of(name).startswith("index-")  # its length no longer says how many slots there are
        data[at] ^= 0x10


@pytest.mark.parametrize("name", names())
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_never_break_a_dump(found: dict[str, Path], folder: Path, name: str, data: st.DataObject) -> None:
    damaged = bytearray(found[name].read_bytes())
    places = st.integers(0, len(damaged) - 1)
    early = st.integers(0, min(len(damaged), 160) - 1)
    late = early.map(lambda at: len(damaged) - 1 - at)
    for at in data.draw(st.lists(places | early | late, min_size=1, max_size=6)):
        word = data.draw(
            st.sampled_from((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")) | st.binary(max_size=9)
        )
        damaged[at : at + len(word)] = word[: len(damaged) - at]
    if data.draw(st.booleans()):
        del damaged[data.draw(places) :]
    path = in_its_place(found[name], folder)
    path.write_bytes(damaged)
    for _ in shown(path, kind_of(name)):
        pass


@pytest.mark.parametrize("kind", sorted({kind_of(name) for name in names()}))
@given(data=st.binary(max_size=400))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_never_break_a_dump(folder: Path, kind: str, data: bytes) -> None:
    path = folder / "arbitrary"
    path.write_bytes(data)
    for _ in shown(path, kind):
        pass


def _section(magic: bytes, table_length: int, length: int) -> bytes:
    return struct.pack(">8sIIQI", magic, 1, table_length, length, 0)


HOSTILE = {
    "commit-log": struct.pack(">ii", 0x7FFFFFFF, MAGIC_V1) + bytes(200),
    "sorted-segment": bytes(64) + struct.pack("<IBI", 0xFFFFFFF0, 0x80, 0x8F92EAB1),
    "index-object": bytes(64) + struct.pack(">iI8s", 0x7FFFFFFF, 0, b"TLIDXTAI"),
    "index-chained": struct.pack(">iqqii", 0xBCC50289 - (1 << 32), 0, 0, 0x7FFFFFFF, 0x7FFFFFFF) + bytes(80),
    "index-compacted": struct.pack(">iqqii", 0xBCC50285 - (1 << 32), 0, 0, 0x7FFFFFFF, 0x7FFFFFFF) + bytes(80),
    "index-classic": struct.pack(">qqqqii", 0, 0, 0, 0, 0x7FFFFFFF, 0x7FFFFFFF) + bytes(80),
    "manifest-head": _section(b"TLHEAD01", 0xFFFFFFFF, 1 << 62),
    "manifest-page": _section(b"TLMPAGE1", 0xFFFFFFFF, 1 << 62),
    "queue-rows": _section(b"TLQROWS1", 0x7FFFFFFF, 1 << 40),
    "state": _section(b"TLSTATE1", 0xFFFFFFFF, 1 << 62),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_length_is_believed_before_it_was_checked(tmp_path: Path, kind: str) -> None:
    (tmp_path / "hostile").write_bytes(HOSTILE[kind])
    tracemalloc.start()
    try:
        for slots in (None, 1, 0x7FFFFFFF):
            with contextlib.suppress(InvalidRequestError):  # slots that were told do not fit, or are asked for
                assert dumped(tmp_path / "hostile", kind, slots=slots).findings
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_damaged_record_hides_none_of_those_behind_it(found: dict[str, Path], folder: Path) -> None:
    source = found["commit-log.ours"]
    rows = dumped(source).rows
    data = bytearray(source.read_bytes())
    lost = rows[3]
    data[lost["position"] + 2] ^= 0x40  # its size
    path = in_its_place(source, folder)
    path.write_bytes(data)
    after = dumped(path)
    assert [row["physical_offset"] for row in after.rows] == [row["physical_offset"] for row in rows if row is not lost]
    (finding,) = after.findings
    assert f"log ends at {lost['physical_offset']}" in finding
    assert f"records stand again from {rows[4]['physical_offset']} on" in finding


def test_a_flipped_bit_in_a_body_or_elsewhere_is_told_apart(found: dict[str, Path], folder: Path) -> None:
    source = found["commit-log.ours"]
    record = dumped(source).rows[2]
    for at, wanted in ((88, ("bad", "bad")), (16, ("ok", "bad"))):  # first byte of the body, the flag
        data = bytearray(source.read_bytes())
        data[record["position"] + at] ^= 1
        path = in_its_place(source, folder)
        path.write_bytes(data)
        row = dumped(path).rows[2]
        assert (row["body_crc"], row["record_checksum"]) == wanted


def test_archived_records_are_shown_without_the_seek_table(found: dict[str, Path], folder: Path) -> None:
    source = found["sorted-segment"]
    whole = dumped(source, part="records")
    path = in_its_place(source, folder)
    path.write_bytes(source.read_bytes()[:-5])
    cut = dumped(path, part="records")
    assert cut.rows == whole.rows
    assert "no seek table" in cut.findings[0]
    assert dumped(path).rows == dumped(source).rows


def test_items_of_an_index_object_are_shown_without_its_tail(found: dict[str, Path], folder: Path) -> None:
    source = found["index-object"]
    path = in_its_place(source, folder)
    path.write_bytes(source.read_bytes()[:-7])
    cut = dumped(path)
    assert cut.rows == dumped(source).rows
    assert len(cut.findings) == 1


def test_most_findings_are_counted_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "0" / f"{0:020d}"
    path.parent.mkdir()
    path.write_bytes(b"\xff" * 20 * 1_000)
    found = dumped(path)
    assert (len(found.findings), found.dump.unsaid) == (MOST_FINDINGS, 1_000 - MOST_FINDINGS)


#: Files without a checksum of their own: where to write which bytes, and what is found then.
CONTRADICTIONS = [
    ("index-classic", 32, b"\0\0\0\7", "slots are in use"),
    ("index-classic", 40, b"\x7f\0\0\0", "1 slots point at no item"),
    ("index-classic", 40 + 4 * 500 + 20 * 5 + 16, b"\0\0\0\x63", "item 5 has hash"),
    ("index-classic", 40 + 4 * 500 + 20 * 5 + 12, b"\xff", "item 5 has hash"),
    ("index-chained.rocketmq", 20, b"\0\0\0\4", "header says 4 slots are in use, 3 are"),
    ("index-chained.rocketmq", 28 + 8 * 5 + 32 * 2, b"\x80", "item 2 has hash"),
    ("index-chained.rocketmq", 28 + 8 * 5 + 32 * 2 + 28, b"\0\0\0\2", "item 2 has hash"),
    ("index-chained.rocketmq", 24, b"\0\0\0\x20", "header says 32 items, the file has room for 19"),
    ("index-compacted.rocketmq", 20, b"\0\0\0\1", "header says 1 slots are in use, 40 are"),
    ("index-compacted.rocketmq", 28 + 8 * 3 + 3, b"\1", "1 slots do not lie where the ones before them end"),
    ("index-compacted.rocketmq", 28 + 8 * 50 + 3, b"\xff", "not all lie in the slot of their hash"),
    ("consume-queue", 8, b"\x80", "unit 0 has offset"),
    ("consume-queue", 20, bytes(20), "units 1 to 1 were never written, but 2 was"),
]


@pytest.mark.parametrize(("name", "at", "patch", "wanted"), CONTRADICTIONS)
def test_contradictions_are_found_where_there_is_no_checksum(
    found: dict[str, Path], folder: Path, name: str, at: int, patch: bytes, wanted: str
) -> None:
    slots = {"index-classic": 500, "index-chained.rocketmq": 5, "index-compacted.rocketmq": 50}.get(name)
    data = bytearray(found[name].read_bytes())
    data[at : at + len(patch)] = patch
    path = in_its_place(found[name], folder)
    path.write_bytes(data)
    damaged = dumped(path, kind_of(name), slots=slots)
    assert any(wanted in finding for finding in damaged.findings), damaged.findings
    assert damaged.rows


def test_a_blank_record_that_does_not_fit_its_file_is_found(found: dict[str, Path], folder: Path) -> None:
    source = found["commit-log.ours"]
    blank = dumped(source).rows[-1]
    path = in_its_place(source, folder)
    path.write_bytes(source.read_bytes()[:-16])
    left = blank["size_bytes"] - 16
    assert dumped(path).findings == [
        f"blank record at {blank['physical_offset']} says {blank['size_bytes']} bytes are left, but {left} are"
    ]


def test_bytes_behind_a_blank_record_are_counted_and_no_finding(found: dict[str, Path], folder: Path) -> None:
    source = found["commit-log.ours"]
    blank = dumped(source).rows[-1]
    data = bytearray(source.read_bytes())
    data[-3:] = b"abc"  # RocketMQ leaves there what was there
    path = in_its_place(source, folder)
    path.write_bytes(data)
    assert dumped(path).findings == []
    assert (
        dumped(path).head["after_log_end"] == f"blank record, then {blank['size_bytes'] - 8} bytes, 3 of them not zero"
    )


def test_a_damaged_frame_or_page_is_left_out_and_the_rest_is_shown(found: dict[str, Path], folder: Path) -> None:
    source = found["sorted-segment"]
    frames = dumped(source, part="frames").rows
    data = bytearray(source.read_bytes())
    data[frames[1]["position"] + 20] ^= 1
    path = in_its_place(source, folder)
    path.write_bytes(data)
    whole, damaged = dumped(source, part="records"), dumped(path, part="records")
    assert damaged.rows == [row for row in whole.rows if row["frame"] != 1]
    (finding,) = damaged.findings
    assert finding.startswith("frame 1: ")


def test_a_record_that_stands_elsewhere_than_it_says_ends_the_log(found: dict[str, Path], folder: Path) -> None:
    source = found["commit-log.ours"]
    rows = dumped(source).rows
    data = bytearray(source.read_bytes())
    moved = rows[3]["position"]
    data[moved + 28 : moved + 36] = (77).to_bytes(8)
    path = in_its_place(source, folder)
    path.write_bytes(data)
    after = dumped(path)
    assert "a record that says it stands at 77;" in after.findings[0]
    assert [row["position"] for row in after.rows] == [row["position"] for row in rows if row["position"] != moved]


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        ("sorted-segment", b"", struct.pack("<IBI", 0x0F000000, 0x80, 0x8F92EAB1)),
        ("manifest-head", _section(b"TLHEAD01", 500 << 20, 600 << 20), b""),
        ("queue-rows", _section(b"TLQROWS1", 500 << 20, 600 << 20), b""),
        ("json", b"{", b""),
    ],
)
def test_large_files_are_not_read_whole(tmp_path: Path, kind: str, start: bytes, end: bytes) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(600 << 20)
        file.write(start)
        file.seek(-len(end), 2)
        file.write(end)
    tracemalloc.start()
    try:
        assert dumped(tmp_path / "large", kind).findings
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_bytes_behind_the_section_of_queue_rows_are_found(found: dict[str, Path], folder: Path) -> None:
    path = in_its_place(found["queue-rows"], folder)
    size = found["queue-rows"].stat().st_size
    path.write_bytes(found["queue-rows"].read_bytes() + b"x")
    assert dumped(path).findings == [f"object has {size + 1} bytes, its section {size}"]
