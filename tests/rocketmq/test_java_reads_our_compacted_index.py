"""The tiered store of Apache RocketMQ answers queries from an index file or object of ours, written in its layout."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.rocketmq.java_rocketmq import JavaRocketMQ, KeyQuery
from tests.support.rocketmq.written_stores import KEYS, TOPICS, Sent, WrittenStore
from tierlog.index.format.layout import ROCKETMQ
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.rocketmq.export import export_rocketmq
from tierlog.service.dump.export import export
from tierlog.service.dump.source import open_source
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.hashing import key_hash

pytestmark = [pytest.mark.java, pytest.mark.timeout(1_200)]  # a fresh machine loads the jars first

Item = tuple[int, ...]


def items_of(file: CompactedIndexFile, query: KeyQuery) -> list[Item]:
    """What our own look-up finds, with RocketMQ's time filter and limit."""
    topic, key, most, from_ms, to_ms = query
    found = file.lookup(key_hash(topic, key))
    items = [
        tuple(int(item[name]) for name in ("hash", "topic_id", "queue_id", "offset", "size", "seconds"))
        for item in found
    ]
    begin_ms = file.header.begin_ms
    return [item for item in items if from_ms <= begin_ms + item[5] * 1000 <= to_ms][:most]


def plain_items(sent: list[Sent]) -> list[tuple[int, int, int]]:
    """(hash, store ms, physical offset) of every key, newest first; keys of equal hash are one to RocketMQ."""
    return [
        (key_hash(message.message.topic, key), message.appended.store_ms, message.physical_offset)
        for message in reversed(sent)
        for key in {message.message.properties.get("UNIQ_KEY", ""), *message.message.keys} - {""}
    ]


def queries_about(covered: list[Sent]) -> list[KeyQuery]:
    """Every kind of key, with and without limits and times that cut."""
    first_ms, last_ms = covered[0].appended.store_ms, covered[-1].appended.store_ms
    unique = [sent.message.properties.get("UNIQ_KEY", "") for sent in covered]
    return [
        (topic, key, most, from_ms, to_ms)
        for topic in (*TOPICS, "no-such-topic")
        for key in (*KEYS, "no-such-key", *filter(None, unique[:40]))
        for most, from_ms, to_ms in (
            (1_000, 0, last_ms),
            (2, first_ms, last_ms),
            (1_000, first_ms + 10_000, last_ms - 10_000),
            (1_000, last_ms + 1_000, last_ms + 9_000),
        )
    ]


def test_compacted_index_files_answer_in_java_as_ours_do(rocketmq: JavaRocketMQ, tmp_path: Path) -> None:
    fs = LocalFileSystem()
    with WrittenStore.make(tmp_path, 7) as store:
        store.append_mixed(900)
        store.engine.flush()
        store.engine._index.seal()
        store.engine._index.compact_sealed()
    paths = sorted((store.root / "index" / "compacted").iterdir())
    assert len(paths) > 2
    longest = 0
    for path in paths:
        file = CompactedIndexFile.open(fs, path)
        export_rocketmq(fs, file, tmp_path / f"exported-{path.name}", tmp_path / "tmp")
        covered = [sent for sent in store.sent if file.first <= sent.physical_offset < file.next]
        queries = queries_about(covered)
        found = rocketmq.compacted_index(
            tmp_path / f"exported-{path.name}", tmp_path / f"work-{path.name}",
            slots=file.slots, items=file.item_count + 1, queries=queries,
        )  # fmt: skip
        assert found == [items_of(file, query) for query in queries]
        items = plain_items(covered)
        for (topic, key, most, from_ms, to_ms), answer in zip(queries, found, strict=True):
            wanted = key_hash(topic, key)
            offsets = [offset for hash, ms, offset in items if hash == wanted and from_ms <= ms <= to_ms]
            assert [item[3] for item in answer] == offsets[:most]
            longest = max(longest, len(answer))
    assert longest > 8


def test_index_objects_answer_in_java_as_ours_do(rocketmq: JavaRocketMQ, tmp_path: Path) -> None:
    with WrittenStore.make(tmp_path, 11, cold=True) as store:
        store.append_mixed(900)
        store.engine.archive(everything=True)
        manifest = store.engine._manifest
        assert manifest is not None
        reader, head = manifest.reader(), manifest.refresh()
        entries = list(manifest.all_index_entries(reader, head))
        physical_of = {
            int(cold): int(physical)
            for entry in manifest.log_entries(reader, head)
            for physical, cold in zip(*SegmentReader(reader, entry).offset_map(), strict=True)
        }
    assert len(entries) > 2
    longest = 0
    for number, entry in enumerate(entries):
        target = tmp_path / f"exported-{number}"
        export(open_source(str(tmp_path / "cold" / entry.key)), target)
        file = CompactedIndexFile.open_bare(LocalFileSystem(), target, ROCKETMQ, entry.slots)
        covered = [sent for sent in store.sent if entry.first <= sent.physical_offset < entry.next]
        queries = queries_about(covered)
        found = rocketmq.compacted_index(
            target, tmp_path / f"work-{number}", slots=entry.slots, items=entry.items + 1, queries=queries
        )
        assert found == [items_of(file, query) for query in queries]
        items = plain_items(covered)
        for (topic, key, most, from_ms, to_ms), answer in zip(queries, found, strict=True):
            wanted = key_hash(topic, key)
            # To RocketMQ keys of one hash are one key; of equal seconds any may be among the newest.
            matching = [(offset, ms // 1000) for hash, ms, offset in items if hash == wanted and from_ms <= ms <= to_ms]
            second_of, offsets = dict(matching), [physical_of[item[3]] for item in answer]
            assert not Counter(offsets) - Counter(offset for offset, _ in matching)
            newest = sorted((second for _, second in matching), reverse=True)
            assert [second_of[offset] for offset in offsets] == newest[:most]
            longest = max(longest, len(answer))
    assert longest > 8
