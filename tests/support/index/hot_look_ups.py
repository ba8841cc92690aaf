"""Look-ups by key in the hot tier, compared with a plain list in every way that they can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.support.stores.hot_stores import NOW_MS, record
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.local.snapshot import IndexFileEntry, IndexReader, IndexSnapshot
from tierlog.index.local.states import IndexState
from tierlog.index.search.hot_lookup import HotKeys
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.generation import Generation
from tierlog.tiering.format.record import RecordVersion, encode_record
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.kernels.scan import TopicTable, scan
from tierlog.tiering.lifecycle.tombstones import NOTHING_ERASED

FS = LocalFileSystem()
SEGMENT_BYTES = 8192
SLOTS, ITEMS = 3, 200


def verify_hot_keys(engine: Store, topic: str, expected: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
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
    file = ChainedIndexFile.create(FS, path, TIERLOG, slots=SLOTS, items=ITEMS, begin_ms=NOW_MS, first_physical=base)
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
    everything = (Generation(1, topic, 0, 1 << 62),)
    return HotKeys("store", everything, snapshot, IndexSnapshot(writing=entries), NOTHING_ERASED)
