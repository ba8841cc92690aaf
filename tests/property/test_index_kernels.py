"""Kernels equal the plain codec, and no bytes make them crash."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.oracles.plain_index import PlainChainedFile, plain_keys
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, IndexItem, ItemLayout, seconds_after
from tierlog.index.kernels.keys import hash_keys
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.objects.pages import IndexPage, PageDirectory
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import CorruptionError, UnsupportedFormatError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.record import Record, RecordVersion, encode_host, encode_record
from tierlog.tiering.format.section import SectionRef
from tierlog.tiering.kernels.scan import TopicTable, scan

T = 1_700_000_000_000
HOST = encode_host(bytes([10, 0, 0, 1]), 9876)
FS = LocalFileSystem()
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12)
key_lists = st.lists(st.sampled_from(["a", "b", "key-1", "中文", "😀", "Aa", "BB", ""]) | text, max_size=25)
messages = st.tuples(
    st.sampled_from(["t", "orders", "中"]), key_lists, text | st.none(), st.sampled_from([0, 4, 8, 12]),
    st.integers(T - 10_000, T + 5_000_000),
)  # fmt: skip
batches = st.lists(messages, max_size=12)
Message = tuple[str, list[str], str | None, int, int]


def records_of(batch: list[Message]) -> tuple[list[Record], bytes]:
    records, raw = [], b""
    for topic, keys, unique, flags, store_ms in batch:
        properties = [("KEYS", " ".join(keys)), ("UNIQ_KEY", unique or "")]
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties if value).encode()
        record = Record(
            0, RecordVersion.V2, 0, 3, 0, 0, len(raw), flags, store_ms - 1, HOST, store_ms, HOST, 0, 0, b"x",
            topic, encoded,
        )  # fmt: skip
        records.append(record)
        raw += encode_record(record)
    return records, raw


def key_batch(batch: list[Message]) -> tuple[list[Record], KeyBatch]:
    records, raw = records_of(batch)
    data = np.frombuffer(raw or b"\0", np.uint8)
    topics = list(dict.fromkeys(topic for topic, *_ in batch))
    rows = scan(data, 0, len(raw), 0, TopicTable(topics), check_crc=True).rows
    assert len(rows) == len(records)
    return records, KeyBatch.of(data, rows, np.arange(50, 50 + len(topics), dtype=np.int32))


@QUICK
@given(batches)
def test_hashed_keys_equal_the_plain_ones(batch: list[Message]) -> None:
    records, hashed = key_batch(batch)
    assert [tuple(row) for row in hashed.keys.tolist()] == plain_keys(records)


def test_thousands_of_keys_in_one_message_equal_the_plain_ones() -> None:
    keys = [f"{i % 4000:x}" for i in range(6000)]
    batch = [("t", keys, "u", 0, T), ("t", keys[:20], None, 0, T), ("t", keys, None, 8, T)]
    records, hashed = key_batch([(topic, list(some), unique, flags, ms) for topic, some, unique, flags, ms in batch])
    assert [tuple(row) for row in hashed.keys.tolist()] == plain_keys(records)


@QUICK
@given(batches, st.integers(1, 9), st.sampled_from([ROCKETMQ, TIERLOG]))
def test_file_and_its_compaction_equal_the_plain_codec(batch: list[Message], slots: int, layout: ItemLayout) -> None:
    records, hashed = key_batch(batch)
    topics = list(dict.fromkeys(topic for topic, *_ in batch))
    items = len(hashed) + 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        file = ChainedIndexFile.create(FS, path / "f", layout, slots=slots, items=items, begin_ms=T, first_physical=0)
        plain = PlainChainedFile(layout, slots, items, T)
        middle = len(hashed) // 3
        file.put(hashed, 0, middle)
        file.put(hashed, middle, len(hashed))
        for row, low, high in plain_keys(records):
            record = records[row]
            item = IndexItem(
                low, 50 + topics.index(record.topic), 3, record.physical_offset,
                int(hashed.rows["size"][row]), seconds_after(T, record.store_ms), high,
            )  # fmt: skip
            assert plain.put(item, record.store_ms)
        assert bytes(file.data[: len(plain.data)]) == bytes(plain.data)
        if not len(hashed):
            return
        file.seal(1 << 40)
        compact(FS, file, path / "g", path / "tmp")
        compacted = (
            CompactedIndexFile.open(FS, path / "g")
            if layout.covered
            else CompactedIndexFile.open_bare(FS, path / "g", layout, slots)
        )
        for _, low, high in plain_keys(records):
            expected = plain.lookup(low, high if layout.has_hash_high else None)
            encoded = [layout.encode_compacted(item) for item in expected]
            assert [item.tobytes() for item in compacted.lookup(low, high)] == encoded
            assert [item.tobytes() for item in file.lookup(low, high)] == encoded


@QUICK
@given(st.binary(max_size=400), st.integers(1, 5), st.integers(2, 12), st.integers(0, 2**31 - 1))
def test_arbitrary_bytes_as_chained_file_never_crash(junk: bytes, slots: int, items: int, low: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        file = ChainedIndexFile.create(FS, path / "f", ROCKETMQ, slots=slots, items=items, begin_ms=T, first_physical=0)
        _, hashed = key_batch([("t", ["a"], None, 0, T)])
        file.put(hashed, 0, 1)
        filled = np.frombuffer(junk[: len(file.data) - 28], np.uint8)
        file.data[28 : 28 + len(filled)] = filled
        with contextlib.suppress(CorruptIndexError):
            file.lookup(low)
        with contextlib.suppress(CorruptIndexError):
            file.seal(100)
            file.item_count = items - 1
            compact(FS, file, path / "g", path / "tmp")


@QUICK
@given(st.binary(max_size=300), st.integers(0, 2**31 - 1))
def test_arbitrary_bytes_never_crash_a_decoder(junk: bytes, low: int) -> None:
    refused = (CorruptionError, UnsupportedFormatError)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_bytes(junk)
        with contextlib.suppress(*refused):
            ChainedIndexFile.open_sealed(FS, path)
        with contextlib.suppress(*refused):
            CompactedIndexFile.open(FS, path)
        path.write_bytes(bytes.fromhex("bcc50285") + bytes(20) + (2).to_bytes(4, "big") + junk[:80].ljust(80, b"\1"))
        with contextlib.suppress(*refused):
            CompactedIndexFile.open_bare(FS, path, ROCKETMQ, 3).lookup(low)
    with contextlib.suppress(*refused):
        PageDirectory.decode(junk)
    with contextlib.suppress(*refused):
        IndexPage.decode(junk, TIERLOG, 65536)
    with contextlib.suppress(*refused):
        IndexObjectReader.from_tail(lambda start, end: junk[start:end], len(junk))
    sections = {"pages": SectionRef(0, 100, 100, 0), "directory": SectionRef(100, 100, 100, 0)}
    with contextlib.suppress(*refused):
        IndexObjectReader(lambda start, end: junk[start:end], sections).lookup(low, 0)


@QUICK
@given(st.data())
def test_rows_that_point_anywhere_never_crash_key_hashing(data: st.DataObject) -> None:
    _, hashed = key_batch([("t", ["a", "b"], "u", 0, T)])
    rows = hashed.rows.copy()
    for field in ("topic_at", "topic_length", "keys_at", "keys_length", "unique_at", "unique_length"):
        rows[field] = data.draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 120))
    with contextlib.suppress(ValueError):
        hash_keys(np.zeros(100, np.uint8), rows)


def test_readers_beside_the_writer_see_whole_chains_only() -> None:
    count = 40_000
    with tempfile.TemporaryDirectory() as folder:
        _, one = key_batch([("t", ["a"], None, 0, T)])
        rows = np.repeat(one.rows[:1], count)
        rows["physical_offset"] = np.arange(count)
        keys = np.repeat(one.keys[:1], count)
        keys["row"] = np.arange(count)
        keys["hash"][1::2] += 4  # another key in the same slot
        batch = KeyBatch(rows, keys, one.topic_ids)
        file = ChainedIndexFile.create(
            FS, Path(folder) / "f", TIERLOG, slots=4, items=count + 2, begin_ms=T, first_physical=0
        )
        low, high = int(keys["hash"][0]), int(keys["hash_high"][0])
        failures: list[str] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                offsets = file.lookup(low, high)["offset"].tolist()
                if offsets != list(range(2 * (len(offsets) - 1), -1, -2)):
                    failures.append(f"{len(offsets)} offsets with a hole")
                    return

        reader = threading.Thread(target=read)
        reader.start()
        for start in range(0, count, 500):
            file.put(batch, start, start + 500)
        stop.set()
        reader.join()
        assert not failures
        assert len(file.lookup(low, high)) == count // 2
