"""The scan kernel stops exactly where the plain decoder does, and reads nothing outside its limits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.stores.hot_stores import STORE_HOST_V6, array, record
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, MAGIC_FILLER, RecordVersion, encode_record
from tierlog.tiering.kernels.scan import ScanResult, ScanStop, TopicTable, scan, topic_at_stop

TOPICS = TopicTable(["orders", "T" * 130])


def scanned(data: bytes, *, base: int = 0, position: int = 0, limit: int | None = None, **options: bool) -> ScanResult:
    end = len(data) if limit is None else limit
    return scan(array(data), position, end, base, TOPICS, **{"check_crc": True, **options})


def test_row_of_a_record() -> None:
    text = encode_properties({"KEYS": "a b", "UNIQ_KEY": "u", "TAGS": "TagA", "n": "1"})
    data = encode_record(record(properties_text=text, queue_id=3, queue_offset=9, physical_offset=4096, born_ms=7))
    found = scanned(data, base=4096)
    assert (found.stop, found.position, len(found.rows)) == (ScanStop.END, len(data), 1)
    row = found.rows[0]
    assert (row["physical_offset"], row["queue_offset"], row["born_ms"]) == (4096, 9, 7)
    assert (row["queue_id"], row["size"], row["position"]) == (3, len(data), 0)
    assert row["tag_hash"] == tag_hash("TagA") == 2598919
    for field, value in (("keys", b"a b"), ("unique", b"u"), ("tags", b"TagA"), ("topic", b"orders")):
        at = int(row[f"{field}_at"])
        assert data[at : at + int(row[f"{field}_length"])] == value


def test_last_of_equal_names_wins() -> None:
    data = encode_record(record(properties_text=b"KEYS\x01a\x02KEYS\x01bb\x02KEYS\x01\x02"))
    row = scanned(data).rows[0]
    assert data[int(row["keys_at"]) :][: int(row["keys_length"])] == b"bb"


def test_stops_before_a_stale_record() -> None:
    data = encode_record(record(physical_offset=0))
    assert scanned(data).stop is ScanStop.END
    stale = scanned(data, base=4096)
    assert (stale.stop, stale.position, len(stale.rows)) == (ScanStop.INVALID, 0, 0)


@pytest.mark.parametrize("left", [8, 9, 300])
def test_stops_at_a_blank_record(left: int) -> None:
    first = encode_record(record())
    data = first + BLANK.pack(left, MAGIC_BLANK)
    found = scanned(data)
    assert (found.stop, found.position, len(found.rows)) == (ScanStop.BLANK, len(first), 1)


@pytest.mark.parametrize("tail", [b"", b"\0", bytes(7), bytes(8), bytes(500), BLANK.pack(7, MAGIC_BLANK)])
def test_stops_before_what_is_no_record(tail: bytes) -> None:
    first = encode_record(record())
    found = scanned(first + tail)
    assert (found.position, len(found.rows)) == (len(first), 1)
    assert found.stop is (ScanStop.INVALID if tail else ScanStop.END)


def test_filler_is_no_record_of_the_log() -> None:
    data = bytearray(encode_record(record()))
    data[4:8] = MAGIC_FILLER.to_bytes(4)
    assert scanned(bytes(data)).stop is ScanStop.INVALID


def test_body_checksum_counts_only_when_asked() -> None:
    data = bytearray(encode_record(record(body=b"body")))
    data[88] ^= 1
    assert scanned(bytes(data)).stop is ScanStop.INVALID
    assert scanned(bytes(data), check_crc=False).stop is ScanStop.END


def test_unknown_topic_is_named() -> None:
    first = encode_record(record())
    data = first + encode_record(record(topic="pays", physical_offset=len(first)))
    found = scanned(data)
    assert (found.stop, found.position, len(found.rows)) == (ScanStop.UNKNOWN_TOPIC, len(first), 2)
    assert topic_at_stop(array(data), found) == "pays"


def test_rows_full_goes_on_where_it_stopped() -> None:
    data = b""
    for number in range(10):
        data += encode_record(record(physical_offset=len(data), queue_offset=number))
    first = scan(array(data), 0, len(data), 0, TOPICS, check_crc=True, max_rows=4)
    assert (first.stop, len(first.rows)) == (ScanStop.ROWS_FULL, 4)
    rest = scanned(data, position=first.position)
    assert [int(number) for number in rest.rows["queue_offset"]] == [4, 5, 6, 7, 8, 9]


def test_version_2_and_ipv6_hosts() -> None:
    wide = encode_record(record(version=RecordVersion.V2, topic="T" * 130, body=b""))
    data = wide + encode_record(
        record(physical_offset=len(wide), born_host=STORE_HOST_V6, store_host=STORE_HOST_V6, store_ms=77)
    )
    found = scanned(data)
    assert (found.stop, len(found.rows)) == (ScanStop.END, 2)
    assert found.rows["topic_number"].tolist() == [1, 0]
    assert int(found.rows["store_ms"][1]) == 77


@pytest.mark.parametrize(("position", "limit"), [(-1, 5), (6, 5), (0, 101)])
def test_range_outside_the_data_is_refused(position: int, limit: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        scan(array(bytes(100)), position, limit, 0, TOPICS, check_crc=True)


def torn(text_bytes: int, lost: range) -> bytes:
    """A record at a place where its property text begins 10 bytes before a sector, with bytes lost from there."""
    text = (b"n\x01" + b"v" * text_bytes)[: text_bytes - 1] + b"\x02"
    base = encode_record(record(properties_text=text))
    at = 512 - 10 - (len(base) - len(text))
    data = bytearray(at) + encode_record(record(properties_text=text, physical_offset=at))
    for place in lost:
        if 512 + place < len(data):
            data[512 + place] = 0
    return bytes(data[at:]) + at.to_bytes(4)


@pytest.mark.parametrize(
    ("text_bytes", "lost", "is_torn"),
    [
        (40, range(0), False),
        (40, range(512), True),
        (40, range(30), True),
        (40, range(29), False),
        (11, range(512), True),
        (10, range(512), False),
        (1500, range(512), True),
        (1500, range(511), False),
        (1500, range(512, 1024), True),
        (1500, range(1024, 1536), True),
    ],
)
def test_text_that_lost_a_sector_is_refused_in_recovery(text_bytes: int, lost: range, is_torn: bool) -> None:
    data = torn(text_bytes, lost)
    data, at = data[:-4], int.from_bytes(data[-4:])
    assert scanned(data, base=at).stop is ScanStop.END
    found = scanned(data, base=at, check_torn=True)
    assert found.stop is (ScanStop.INVALID if is_torn else ScanStop.END)


def test_many_topics_keep_their_numbers() -> None:
    names = [f"topic-{number}" for number in range(300)]
    data, table = b"", TopicTable(names)
    for name in names:
        data += encode_record(record(topic=name, physical_offset=len(data)))
    rows = scan(array(data), 0, len(data), 0, table, check_crc=False).rows
    assert np.array_equal(rows["topic_number"], np.arange(300))
