"""The record kernels against the plain codec: any batch encodes the same, any bytes scan the same."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.stores.hot_stores import NOW_MS, STORE_HOST, STORE_HOST_V6, array, record
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.properties import KEYS, TAGS, UNIQ_KEY, encode_properties
from tierlog.tiering.format.record import MAGIC_BLANK, Record, RecordVersion, decode_record, encode_record
from tierlog.tiering.kernels.checksum import CRC_TABLES
from tierlog.tiering.kernels.encode import PROPERTY_NAMES, encode_records
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan
from tierlog.tiering.message.batch import BORN_END_MS, BytesColumn, Message, MessageBatch

TOPIC_NAMES = ["orders", "a", "%RETRY%group", "%DLQ%" + "w" * 200, "T" * 127]
TOPICS = TopicTable(TOPIC_NAMES)

words = st.text(st.characters(exclude_characters=" \x00\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
messages = st.builds(
    Message,
    topic=st.sampled_from(TOPIC_NAMES),
    body=st.binary(min_size=1, max_size=70),
    keys=st.lists(words, max_size=3),
    tag=st.one_of(st.just(""), words),
    properties=st.dictionaries(words.filter(lambda name: name not in (KEYS, TAGS)), words, max_size=2),
    born_ms=st.integers(0, BORN_END_MS - 1),
    queue_id=st.integers(0, 5),
)


def encoded(batch: MessageBatch, host: bytes, physical: int, *, checksum: bool = False) -> bytes:
    """What the kernel makes of a batch; queue offsets count up from 100."""
    sizes = batch.record_sizes(8 + len(host), checksum=checksum)
    out = np.full(int(sizes.sum()) + 16, 0xEE, np.uint8)
    born_host = np.zeros(8, np.uint8)
    store_host = np.frombuffer(host, np.uint8)
    queue_offsets = 100 + np.arange(len(batch))
    names = BytesColumn.of([topic.encode() for topic in batch.topics])
    written = encode_records(
        tables=CRC_TABLES, out=out.ctypes.data, physical=physical, store_ms=NOW_MS,
        born_host=born_host.ctypes.data, born_host_length=8,
        store_host=store_host.ctypes.data, store_host_length=len(host),
        names=PROPERTY_NAMES.ctypes.data, first=0, last=len(batch), size=sizes.ctypes.data,
        topic_index=batch.topic_index.ctypes.data,
        topics=names.data.ctypes.data, topic_starts=names.starts.ctypes.data,
        queue_id=batch.queue_id.ctypes.data, queue_offset=queue_offsets.ctypes.data, born_ms=batch.born_ms.ctypes.data,
        body=batch.body.data.ctypes.data, body_starts=batch.body.starts.ctypes.data,
        keys=batch.keys.data.ctypes.data, keys_starts=batch.keys.starts.ctypes.data,
        tags=batch.tags.data.ctypes.data, tags_starts=batch.tags.starts.ctypes.data,
        properties=batch.properties.data.ctypes.data, properties_starts=batch.properties.starts.ctypes.data,
        checksum=checksum, client=0 if batch.client is None else batch.client.ctypes.data,
    )  # fmt: skip
    assert written == sizes.sum()
    assert (out[written:] == 0xEE).all(), "the kernel wrote past the batch"
    return bytes(out[:written])


def plain(messages: list[Message], host: bytes, physical: int, *, checksum: bool = False) -> list[Record]:
    """The records that the batch should become."""
    records, at = [], physical
    for number, message in enumerate(messages):
        own = {KEYS: " ".join(message.keys), TAGS: message.tag}
        text = encode_properties({name: value for name, value in own.items() if value})
        records.append(
            record(
                version=RecordVersion.V2 if len(message.topic) > 127 else RecordVersion.V1, queue_id=message.queue_id,
                queue_offset=100 + number, physical_offset=at, born_ms=message.born_ms, store_host=host,
                body=message.body, topic=message.topic,
                properties_text=text + encode_properties(message.properties),
            )
        )  # fmt: skip
        at += len(encode_record(records[-1], checksum=checksum))
    return records


@settings(max_examples=120)
@given(st.lists(messages, min_size=1, max_size=6), st.sampled_from([STORE_HOST, STORE_HOST_V6]), st.booleans())
def test_encode_kernel_is_encode_record(given_messages: list[Message], host: bytes, checksum: bool) -> None:
    batch = MessageBatch.of(given_messages, now_ms=NOW_MS, max_body_bytes=1000)
    physical = 4096 * 77
    data = encoded(batch, host, physical, checksum=checksum)
    records = plain(given_messages, host, physical, checksum=checksum)
    assert data == b"".join(encode_record(each, checksum=checksum) for each in records)
    assert len(data) == batch.record_sizes(8 + len(host), checksum=checksum).sum()
    assert_scan_is_decode(data, physical)


def oracle(
    data: bytes, position: int, limit: int, base: int, *, names: list[str]
) -> tuple[list[Record], int, ScanStop]:
    """Records that the plain decoder finds, where it stops and why."""
    found: list[Record] = []
    while position < limit:
        left = data[position:limit]
        if len(left) >= 8 and int.from_bytes(left[4:8], signed=True) == MAGIC_BLANK:
            return found, position, ScanStop.BLANK if int.from_bytes(left[:4], signed=True) >= 8 else ScanStop.INVALID
        try:
            decoded = decode_record(left, physical_offset=base + position)
        except (StoreError, UnicodeDecodeError):
            return found, position, ScanStop.INVALID
        if decoded.topic not in names:
            return found, position, ScanStop.UNKNOWN_TOPIC
        found.append(decoded)
        position += decoded.size
    return found, position, ScanStop.END


def assert_scan_is_decode(data: bytes, base: int, *, limit: int | None = None) -> None:
    """Compare kernel and decoder; what lies behind the limit is poison that changes between two scans."""
    limit = len(data) if limit is None else limit
    wanted, position, stop = oracle(data, 0, limit, base, names=TOPIC_NAMES)
    for poison in (0x00, 0xDA):
        room = np.full(limit + 64, poison, np.uint8)
        room[:limit] = array(data)[:limit]
        found = scan(room, 0, limit, base, TOPICS, check_crc=True)
        rows = found.rows[:-1] if found.stop is ScanStop.UNKNOWN_TOPIC else found.rows
        if found.stop is ScanStop.UNKNOWN_TOPIC and stop is ScanStop.INVALID:
            stop = found.stop  # a name that is no UTF-8 is damage to the one and unknown to the other
        assert (found.stop, found.position, len(rows)) == (stop, position, len(wanted))
        for row, each in zip(rows, wanted, strict=True):
            assert_row(room, row, each)


def assert_row(data: ByteArray, row: np.void, wanted: Record) -> None:
    properties = wanted.properties
    assert (
        int(row["physical_offset"]), int(row["queue_offset"]), int(row["store_ms"]), int(row["born_ms"]),
        int(row["size"]), int(row["queue_id"]), int(row["sys_flag"]), TOPIC_NAMES[int(row["topic_number"])],
    ) == (
        wanted.physical_offset, wanted.queue_offset, wanted.store_ms, wanted.born_ms, wanted.size, wanted.queue_id,
        wanted.sys_flag, wanted.topic,
    )  # fmt: skip
    for field, name in (("keys", KEYS), ("unique", UNIQ_KEY), ("tags", TAGS)):
        at, length = int(row[f"{field}_at"]), int(row[f"{field}_length"])
        assert bytes(data[at : at + length]).decode("utf-8", "replace") == properties.get(name, "")
    if b"\xff" not in wanted.properties_text:
        assert int(row["tag_hash"]) == tag_hash(properties.get(TAGS, ""))


def log(count: int = 4, *, checksum: bool = False) -> bytes:
    """Some records back to back, the last in version 2."""
    data = b""
    for number in range(count):
        last = number == count - 1
        data += encode_record(
            record(
                physical_offset=4096 + len(data), queue_offset=number, body=b"hello %d" % number,
                properties_text=encode_properties({KEYS: "k1 k2", TAGS: "tag", UNIQ_KEY: "u"}),
                topic=TOPIC_NAMES[3] if last else "orders", version=RecordVersion.V2 if last else RecordVersion.V1,
            ),
            checksum=checksum,
        )  # fmt: skip
    return data


LOG = log()
SUMMED_LOG = log(checksum=True)


@settings(max_examples=400)
@given(st.integers(0, len(LOG) - 1), st.integers(1, 255))
def test_flipped_byte(place: int, flip: int) -> None:
    data = bytearray(LOG)
    data[place] ^= flip
    assert_scan_is_decode(bytes(data), 4096)


@settings(max_examples=400)
@given(st.integers(0, len(SUMMED_LOG) - 1), st.integers(1, 255))
def test_flipped_byte_below_a_record_checksum(place: int, flip: int) -> None:
    data = bytearray(SUMMED_LOG)
    data[place] ^= flip
    assert_scan_is_decode(bytes(data), 4096)


def test_cut_anywhere() -> None:
    for limit in range(len(LOG) + 1):
        assert_scan_is_decode(LOG, 4096, limit=limit)


@settings(max_examples=200)
@given(st.integers(0, len(LOG)), st.integers(1, 600))
def test_zeroed_run(start: int, length: int) -> None:
    data = bytearray(LOG)
    end = min(start + length, len(data))
    data[start:end] = bytes(end - start)
    assert_scan_is_decode(bytes(data), 4096)


_numbers = st.integers(-(1 << 31), (1 << 31) - 1)
_large_numbers = st.integers(-(1 << 63), (1 << 63) - 1)
_records = st.builds(
    record,
    version=st.sampled_from(RecordVersion), queue_id=_numbers, flag=_numbers, queue_offset=_large_numbers,
    physical_offset=_large_numbers, sys_flag=_numbers, born_ms=_large_numbers, store_ms=_large_numbers,
    born_host=st.sampled_from([STORE_HOST, STORE_HOST_V6]), store_host=st.sampled_from([STORE_HOST, STORE_HOST_V6]),
    reconsume_times=_numbers, prepared_offset=_large_numbers, body=st.binary(max_size=90),
    topic=st.text(max_size=20), properties_text=st.binary(max_size=60),
)  # fmt: skip


@settings(max_examples=400)
@given(_records, st.booleans(), st.one_of(st.just(0), st.integers(1, 255)), st.integers(0, 1 << 16))
def test_whatever_decodes_encodes_to_the_same_bytes(one: Record, checksum: bool, flip: int, place: int) -> None:
    """So a record that was found by key or by its place is given to a client as it lies in the log."""
    data = bytearray(encode_record(one, checksum=checksum))
    data[place % len(data)] ^= flip
    try:
        found = decode_record(bytes(data))
    except StoreError:
        assert flip
        return
    if not found.body:
        data[8:12] = bytes(4)  # nothing compares the sum of an empty body, and no program writes one
    assert encode_record(found) == data


_head = st.sampled_from([b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=40), _head, st.integers(-5, 300), st.binary(max_size=250))
@example(b"", b"\xda\xa3\x20\xa7", 91, bytes(83))
def test_arbitrary_bytes_behind_a_likely_head(before: bytes, magic: bytes, size: int, after: bytes) -> None:
    data = size.to_bytes(4, signed=True) + magic + after
    # the right position, so that the lengths behind it are looked at as well
    data = data[:28] + (4096).to_bytes(8) + data[36:]
    assert_scan_is_decode(data, 4096)
    assert_scan_is_decode(before, 4096)


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_arbitrary_property_text(text: bytes) -> None:
    data = encode_record(record(properties_text=text))
    found = scan(array(data), 0, len(data), 0, TOPICS, check_crc=True)
    assert (found.stop, len(found.rows)) == (ScanStop.END, 1)
    pieces = decode_record(data).properties
    row = found.rows[0]
    for field, name in (("keys", KEYS), ("unique", UNIQ_KEY), ("tags", TAGS)):
        at, length = int(row[f"{field}_at"]), int(row[f"{field}_length"])
        assert 0 <= at <= at + length <= len(data)
        assert data[at : at + length].decode("utf-8", "replace") == pieces.get(name, "")


@settings(max_examples=100)
@given(st.lists(st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"\x01", b"\x02", b"v", b"KEY", b"\xff"]), max_size=14))
def test_property_text_of_likely_pieces(pieces: list[bytes]) -> None:
    assert_scan_is_decode(encode_record(record(properties_text=b"".join(pieces))), 0)
