"""Records taken apart into columns by the kernel against the plain codec: any shape of record gives the same rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.hot_stores import STORE_HOST, STORE_HOST_V6, record
from tierlog.pipeline.read.frames import bounds_of, rows_of
from tierlog.pipeline.read.predicate import EVERYTHING, Predicate, ValueRange
from tierlog.pipeline.read.views import message_batch
from tierlog.tiering.base.types import Tier
from tierlog.tiering.cold.segment.reader import item_at
from tierlog.tiering.format.filler import Filler, make_filler
from tierlog.tiering.format.record import Record, RecordVersion, encode_record
from tierlog.tiering.kernels.text import is_utf8
from tierlog.tiering.message.record_columns import RecordBatchBuilder
from tierlog.tiering.message.stored_message import StoredMessage

TOPICS = ["orders", "a", "ünï", "%DLQ%" + "w" * 200]
NAMES = ["KEYS", "TAGS", "UNIQ_KEY", "__CRC32#", "TL_PID", "TL_SEQ", "TL_PIT", "K", "KEYSX", "na", "naïve"]
pieces = st.one_of(
    st.builds(lambda name, value: name.encode() + b"\x01" + value, st.sampled_from(NAMES), st.one_of(
        st.sampled_from([b"", b"a", b"a b  a c ", " ä ö ä".encode(), b"\x01", b"x\x01y", b" "]),
        st.lists(st.integers(0, 99), min_size=60, max_size=80).map(lambda many: " ".join(map(str, many)).encode()),
        st.binary(max_size=9),
    )),
    st.binary(max_size=6),
    st.integers(0, 40).map(lambda number: b"p%d\x01v" % number),
)  # fmt: skip
texts = st.builds(
    lambda parts, is_closed: b"\x02".join(parts) + b"\x02" * is_closed, st.lists(pieces, max_size=5), st.booleans()
)
hosts = st.sampled_from([STORE_HOST, STORE_HOST_V6])
numbers = st.one_of(st.integers(0, 99), st.integers(-(1 << 63), (1 << 63) - 1))
records = st.builds(
    record,
    topic=st.sampled_from(TOPICS),
    queue_id=st.integers(0, 3),
    queue_offset=numbers,
    physical_offset=numbers,
    born_ms=numbers,
    store_ms=numbers,
    born_host=hosts,
    store_host=hosts,
    sys_flag=st.sampled_from([0, 0, 0, 0x1, 0x8, 0x101, 0x301]),
    body=st.one_of(st.binary(max_size=40), st.just(bytes(300))),
    properties_text=texts,
)
spans = st.sampled_from(
    [ValueRange(), ValueRange(10, 60), ValueRange(first=50), ValueRange(end=1 << 61), ValueRange(-(1 << 70), 1 << 70)]
)
predicates = st.builds(Predicate, physical_offsets=spans, stored=spans)


def encoded(one: Record, checksum: bool) -> bytes:
    version = RecordVersion.V2 if len(one.topic.encode()) > 127 or one.queue_id == 3 else RecordVersion.V1
    return encode_record(replace(one, version=version), checksum=checksum)


def gathered(frame: bytes, topics: list[str], predicate: Predicate) -> tuple[pa.RecordBatch, int]:
    """What the columns hold of records one after another, and how many of them the kernel left to the plain codec."""
    data = np.frombuffer(frame, np.uint8)
    columns = RecordBatchBuilder("store", Tier.COLD, len(frame))
    bounds, at, plain = bounds_of(predicate), 0, 0
    for topic in topics:
        item = item_at(frame, at)
        stopped = columns.add(data, at, at + item.size, topic, bounds)
        if stopped == at:
            assert isinstance(item, Record)
            plain += 1
            if predicate.matches(item):
                columns.add_plain(StoredMessage(item, "store", Tier.COLD))
        else:
            assert stopped == at + item.size
        at += item.size
    return rows_of(columns.finish()), plain


@given(st.lists(st.tuples(records, st.booleans(), st.booleans()), max_size=12), predicates)
def test_records_of_every_shape_give_the_rows_of_the_plain_codec(
    given_records: list[tuple[Record, bool, bool]], predicate: Predicate
) -> None:
    parts = [encoded(one, checksum) for one, checksum, _ in given_records]
    parts = [make_filler(part) if removed else part for part, (_, _, removed) in zip(parts, given_records, strict=True)]
    batch, _ = gathered(b"".join(parts), [one.topic for one, _, _ in given_records], predicate)
    batch.validate(full=True)
    items = [item_at(part, 0) for part in parts]
    wanted = [item for item in items if isinstance(item, Record) and predicate.matches(item)]
    assert batch.equals(message_batch([StoredMessage(item, "store", Tier.COLD) for item in wanted]))


def test_ordinary_records_are_never_left_to_the_plain_codec() -> None:
    text = "KEYS\x01a b ä\x02TAGS\x01tag\x02UNIQ_KEY\x01u\x02" + "".join(f"p{number}\x01v\x02" for number in range(60))
    ordinary = [
        record(properties_text=text.encode()),
        record(properties_text=b""),
        record(body=b"", sys_flag=0x1, born_host=STORE_HOST_V6, store_host=STORE_HOST_V6),
        record(sys_flag=0x8, topic="%DLQ%" + "w" * 200),
    ]
    parts = [encoded(one, number % 2 == 0) for number, one in enumerate(ordinary)]
    batch, plain = gathered(b"".join(parts), [one.topic for one in ordinary], EVERYTHING)
    assert (batch.num_rows, plain) == (4, 0)


@given(st.data(), records, st.booleans())
def test_a_flipped_bit_is_left_to_the_plain_codec_or_means_the_same_to_both(
    data: st.DataObject, one: Record, checksum: bool
) -> None:
    raw = bytearray(encoded(one, checksum))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    columns = RecordBatchBuilder("store", Tier.COLD, len(raw))
    stopped = columns.add(np.frombuffer(raw, np.uint8), 0, len(raw), one.topic, bounds_of(EVERYTHING))
    if stopped:
        item = item_at(bytes(raw), 0)
        kept = [] if isinstance(item, Filler) else [StoredMessage(item, "store", Tier.COLD)]
        assert rows_of(columns.finish()).equals(message_batch(kept))
    else:
        assert columns.finish().num_rows == 0


@given(st.one_of(st.binary(max_size=24), st.text(max_size=12).map(str.encode)), st.binary(max_size=3))
def test_utf8_is_what_python_takes_for_it(text: bytes, rest: bytes) -> None:
    for candidate in (text, text + rest, rest + text, bytes(9) + text):
        held = np.frombuffer(candidate + b"\x80", np.uint8)  # a byte behind the end that must not matter
        try:
            candidate.decode()
            is_valid = True
        except UnicodeDecodeError:
            is_valid = False
        assert bool(is_utf8(held.ctypes.data, len(candidate))) == is_valid


def test_properties_of_the_store_alone_are_in_no_row_whoever_decodes_it() -> None:
    one = record(properties_text=b"p\x01v\x02TL_SEQ\x017\x02TL_PID\x01me\x02TL_PIT\x01w\x02")
    batch, plain = gathered(encoded(one, checksum=True), [one.topic], EVERYTHING)
    assert plain == 0
    assert batch.column("properties").to_pylist() == [[("p", "v"), ("TL_PIT", "w")]]
    assert batch.equals(message_batch([StoredMessage(one, "store", Tier.COLD)]))
