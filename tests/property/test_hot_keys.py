"""Looking up many hot keys at once finds what the plain codecs find, and no bytes of index or log make it crash."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.index.hot_look_ups import SEGMENT_BYTES, SLOTS, compacted, hot_keys_of, index_of, segment_of
from tests.support.index.index_bytes import mended
from tierlog.index.format.layout import TIERLOG
from tierlog.index.format.trailer import TRAILER_BYTES
from tierlog.index.local.snapshot import IndexReader
from tierlog.index.search.hot_lookup import HotKeys, KeyHasher
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.kernels.mapped_log import NO_TIME, MappedLog, record_times

FS = LocalFileSystem()
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02 "), min_size=1, max_size=40)
keys = st.sampled_from(["a", "key-1", "Aa", "BB", "中文", "😀"]) | texts


def property_text(some: list[str], unique: str | None, *more: str) -> bytes:
    pairs = [("KEYS", " ".join(some)), ("UNIQ_KEY", unique or ""), ("TAGS", "a"), ("KEY", "a")]
    return "".join([*(f"{name}\x01{value}\x02" for name, value in pairs if value), *more]).encode()


property_texts = st.builds(
    property_text, st.lists(keys, max_size=5), keys | st.none(),
    st.sampled_from([
        "", "KEYS\x01a\x02", "UNIQ_KEY\x01BB", "\x02\x02KEYS\x01\x02", "KEYS\x02a\x01", "KEYS\x01a  key-1",
    ]),
)  # fmt: skip
logs = st.lists(
    st.tuples(st.sampled_from(["t", "orders", "Aa"]), property_texts, st.sampled_from([0, 30, 700]), st.booleans()),
    max_size=12,
)


def found_by(hot: HotKeys, asked: list[str], limit: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in asked]
    batch = hot.look_up(asked, limit=limit).batch
    for number, offset in zip(batch["key"].to_pylist(), batch["physical_offset"].to_pylist(), strict=True):
        found[number].append(offset)
    return found


@QUICK
@given(st.lists(logs, min_size=1, max_size=3), st.lists(keys, max_size=5), st.data())
def test_many_keys_find_what_the_plain_codec_says_in_all_files(
    parts: list[list[tuple[str, bytes, int, bool]]], more: list[str], data: st.DataObject
) -> None:
    asked = ["a", "key-1", "Aa", "BB", "", *more]
    asked += data.draw(st.permutations(asked))  # one key may be asked for twice
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        segments, readers, expected, border, end = [], [], [], 0, 0
        for place, log in enumerate(parts):
            segment, filled = segment_of(log, place * SEGMENT_BYTES)
            segments.append(segment)
            file = index_of(segment, filled, folder / f"f{place}")
            reader: IndexReader = file
            if place != len(parts) - 1 and file.item_count and data.draw(st.booleans()):
                reader = compacted(file, folder / f"g{place}")
            readers.append(reader)
            end = place * SEGMENT_BYTES + filled
            at = 0
            while at < filled:
                one = decode_record(segment.data.data, at)
                expected.append(one)
                at += one.size
        for topic in ("t", "orders"):
            held = [one for one in reversed(expected) if one.topic == topic and border <= one.physical_offset < end]
            by_key = [[one.physical_offset for one in held if key in indexed_keys(one.properties)] for key in asked]
            hot = hot_keys_of(segments, readers, end, topic)
            for limit in (1, 3, 100):
                assert found_by(hot, asked, limit) == [offsets[:limit] for offsets in by_key]
            for key, offsets in zip(asked, by_key, strict=True):
                newest = hot.get(key)
                assert (newest.physical_offset if newest else None) == (offsets[0] if offsets else None)


@QUICK
@given(logs, st.data())
def test_any_bytes_in_an_index_file_give_an_error_or_messages_of_the_key(
    log: list[tuple[str, bytes, int, bool]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        segment, end = segment_of(log, 0)
        file = index_of(segment, end, Path(name) / "f")
        reader: IndexReader = file
        if file.item_count and data.draw(st.booleans()):
            reader = compacted(file, Path(name) / "g")
            writable = FS.map_write(reader.path)
            _scribble(writable, 28, len(writable) - TRAILER_BYTES, data)
            if data.draw(st.booleans()):  # else the checksums tell, and nothing else is looked at
                writable[:] = np.frombuffer(mended(writable.tobytes()), np.uint8)
        else:
            used = 28 + 8 * SLOTS + TIERLOG.chained_bytes * (file.item_count + 2)
            _scribble(file.data, 28, min(used, len(file.data)), data)
        asked = ["a", "key-1", "BB"]
        try:
            hot = hot_keys_of([segment], [reader], end)
        except CorruptionError:
            return  # what makes a file fit to be looked into is damaged
        with contextlib.suppress(CorruptionError):
            for key, offsets in zip(asked, found_by(hot, asked, 5), strict=True):
                for offset in offsets:
                    one = decode_record(segment.data.data, offset, physical_offset=offset)
                    assert one.topic == "t"
                    assert key in indexed_keys(one.properties)
        for key in asked:
            with contextlib.suppress(CorruptionError):
                hot.get(key)


@QUICK
@given(st.sampled_from(["t", "Aa"]), property_texts, st.sampled_from([0, 30, 700]), st.booleans(), st.data())
def test_any_bytes_in_a_record_are_refused_as_the_plain_codec_refuses_them(
    topic: str, text: bytes, body_bytes: int, checksum: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        segment, end = segment_of(
            [("t", property_text(["a"], None), 30, False), (topic, text, body_bytes, checksum)], 0
        )
        file = index_of(segment, end, Path(name) / "f")
        second = decode_record(segment.data.data, 0).size
        _scribble(segment.data, second, end, data)
        asked = ["a", "key-1", "Aa", "BB"]
        hot = hot_keys_of([segment], [file], SEGMENT_BYTES)
        try:
            one = decode_record(segment.data.data, second, physical_offset=second)
        except CorruptionError:
            one = None
        for is_store in (False, True):
            (time_ms,) = times_of(segment, [second], is_store=is_store)
            assert time_ms == (NO_TIME if one is None else one.store_ms if is_store else one.born_ms)
        for key in asked:
            points_there = any(int(item["offset"]) == second for item in file.lookup(*_hashes("t", key)))
            expected = [0] if key == "a" else []
            if points_there and one is None:
                try:
                    found_by(hot, [key], 5)
                except CorruptionError:
                    continue
                raise AssertionError(f"{key!r}: a record that the plain codec refuses was passed over")
            if points_there and one is not None and one.topic == "t" and key in indexed_keys(one.properties):
                expected = [second, *expected]
            assert found_by(hot, [key], 5) == [expected], key


@QUICK
@given(st.sampled_from(["t", "中文#", "a" * 200]), st.lists(texts, max_size=8))
def test_hashes_of_many_keys_equal_the_plain_ones(topic: str, some: list[str]) -> None:
    hasher = KeyHasher(topic)
    assert [tuple(pair) for pair in hasher.many(some).tolist()] == [_hashes(topic, key) for key in some]
    assert [hasher.one(key) for key in some] == [_hashes(topic, key) for key in some]


def times_of(segment: Segment, offsets: list[int], *, is_store: bool) -> list[int]:
    """What the kernel says of records of one segment."""
    log, places, times = (
        MappedLog({0: segment.data}, SEGMENT_BYTES),
        np.array(offsets),
        np.empty(len(offsets), np.int64),
    )
    record_times(
        log.address, offsets=places.ctypes.data, count=len(places), is_store=is_store, out=times.ctypes.data
    )  # fmt: skip
    return times.tolist()


def test_times_are_those_of_the_records_and_none_where_no_record_is() -> None:
    segment, end = segment_of([("t", property_text(["a"], None), size, False) for size in (30, 0, 700)], 0)
    records = [decode_record(segment.data.data, 0)]
    while records[-1].physical_offset + records[-1].size < end:
        records.append(decode_record(segment.data.data, records[-1].physical_offset + records[-1].size))
    offsets = [one.physical_offset for one in records]
    assert len(offsets) == 3
    asked = [*offsets, offsets[1] + 1, end, SEGMENT_BYTES, -1]
    none = [NO_TIME] * 4
    assert times_of(segment, asked, is_store=True) == [one.store_ms for one in records] + none
    assert times_of(segment, asked, is_store=False) == [one.born_ms for one in records] + none


def _hashes(topic: str, key: str) -> tuple[int, int]:
    return key_hash(topic, key), key_hash_high(topic, key)


def _scribble(target: np.ndarray, start: int, end: int, data: st.DataObject) -> None:
    """Write a few bytes anywhere: any, or words that look like lengths and numbers."""
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(start, max(start, end - 1)))
        numbers = st.integers(-2, 220).map(lambda number: number.to_bytes(4, "big", signed=True))
        word = data.draw(st.binary(min_size=1, max_size=6) | numbers)
        stop = min(at + len(word), len(target))
        target[at:stop] = np.frombuffer(word[: stop - at], np.uint8)
