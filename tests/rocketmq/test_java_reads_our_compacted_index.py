"""The tiered store of Apache RocketMQ answers queries from an index file of ours, written in its layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.compacted_file import CompactedIndexFile
from index.export import export_rocketmq
from tests.support.java_rocketmq import JavaRocketMQ, KeyQuery
from tests.support.written_stores import KEYS, TOPICS, Sent, WrittenStore
from tiering.format.hashing import key_hash
from tiering.fs import LocalFileSystem

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
        first_ms, last_ms = covered[0].appended.store_ms, covered[-1].appended.store_ms
        unique = [sent.message.properties.get("UNIQ_KEY", "") for sent in covered]
        queries: list[KeyQuery] = [
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
