"""Look-ups by key in the hot tier, compared with a plain list in every way that they can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from index.batch import KeyBatch
from index.chained_file import ChainedIndexFile
from index.compacted_file import CompactedIndexFile
from index.compactor import compact
from index.hot_keys import HotKeys
from index.layout import TIERLOG
from index.snapshot import IndexFileEntry, IndexReader, IndexSnapshot
from index.states import IndexState
from service.engine import Engine
from tests.support.hot_stores import NOW_MS, record
from tiering.erasing.tombstones import NOTHING_ERASED
from tiering.errors import TopicNotFoundError
from tiering.format.record import RecordVersion, encode_record
from tiering.fs import LocalFileSystem
from tiering.hot.commit_log import Segment
from tiering.hot.snapshot import HotSnapshot
from tiering.kernels.scan import TopicTable, scan

FS = LocalFileSystem()
SEGMENT_BYTES = 8192
SLOTS, ITEMS = 3, 200


def verify_hot_keys(engine: Engine, topic: str, expected: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
    """Each key has exactly these hot messages, physical offset and body, the newest first."""
    try:
        with engine.hot_keys(topic) as hot:
            keys = list(expected)
            for limit in (1, 2, 1000):
                found: list[list[tuple[int, bytes]]] = [[] for _ in keys]
                records = hot.look_up(keys, limit=limit)
                for row in records.batch.select(["key", "physical_offset", "body"]).to_pylist():
                    found[row["key"]].append((row["physical_offset"], row["body"]))
                assert found == [list(expected[key][:limit]) for key in keys], (topic, limit)
                assert records.border == engine._hot.border
            for key, messages in expected.items():
                one = hot.get(key)
                assert (one and (one.physical_offset, one.body)) == (messages[0] if messages else None), (topic, key)
    except TopicNotFoundError:
        assert not any(expected.values()), f"{topic} is not known"


def segment_of(log: Sequence[tuple[str, bytes, int, bool]], base: int) -> tuple[Segment, int]:
    """A segment of messages (topic, property text, body bytes, whether it has a record checksum), and its end."""
    data = np.zeros(SEGMENT_BYTES, np.uint8)
    end = 0
    for topic, text, body_bytes, checksum in log:
        fields = {"topic": topic, "properties_text": text, "body": bytes(body_bytes), "physical_offset": base + end}
        version = RecordVersion.V2 if body_bytes == 30 else RecordVersion.V1
        raw = encode_record(record(version=version, **fields), checksum=checksum)
        if end + len(raw) > SEGMENT_BYTES - 8:
            break
        data[end : end + len(raw)] = np.frombuffer(raw, np.uint8)
        end += len(raw)
    return Segment(base, data), end


def index_of(segment: Segment, end: int, path: Path) -> ChainedIndexFile:
    """A file with the keys of a segment's messages, in few slots."""
    base = segment.base_offset
    file = ChainedIndexFile.create(FS, path, TIERLOG, SLOTS, ITEMS, NOW_MS, base)
    topics = TopicTable(["t", "orders", "Aa"])
    rows = scan(segment.data, 0, end, base, topics, check_crc=True).rows
    batch = KeyBatch.of(segment.data, rows, np.array([1, 2, 3], np.int32))
    file.put(batch, 0, len(batch))
    return file


def compacted(file: ChainedIndexFile, path: Path) -> CompactedIndexFile:
    """The compacted form of a file, which is sealed before."""
    file.seal(SEGMENT_BYTES + file.first)
    compact(FS, file, path, path.with_name("tmp"))
    return CompactedIndexFile.open(FS, path)


def hot_keys_of(
    segments: Sequence[Segment], readers: Sequence[IndexReader], end: int, topic: str = "t"
) -> HotKeys:  # fmt: skip
    """The keys of what lies below ``end`` in segments with an index file each."""
    snapshot = HotSnapshot(0, end, end, {each.base_offset: each for each in segments}, SEGMENT_BYTES)
    entries = tuple(
        IndexFileEntry(IndexState.WRITING, place, reader.path, place * SEGMENT_BYTES, None, reader)
        for place, reader in enumerate(readers)
    )
    return HotKeys("store", topic, snapshot, IndexSnapshot(writing=entries), NOTHING_ERASED)
