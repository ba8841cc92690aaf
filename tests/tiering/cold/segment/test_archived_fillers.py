"""Both tiers with fillers in the archive: topics that are not archived, and records that were removed on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.stores.power_world import tiny_settings
from tests.support.stores.segments import IDS, NAMES, mixed_records, write_segment
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import MessageNotFoundError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import Boundary, PullStatus, Tier, TimeAxis
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.cold.segment.scan import scan_segment
from tierlog.tiering.format.filler import make_filler
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.kernels.scan import ScanRows
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.read.fetcher import Fetcher


def odd_offsets(data: ByteArray, rows: ScanRows) -> NDArray[np.bool_]:
    assert len(data)
    return np.asarray(rows["physical_offset"] % 2 == 1)


def all_of_two_queue_offsets(data: ByteArray, rows: ScanRows) -> NDArray[np.bool_]:
    assert len(data)
    return np.asarray((rows["queue_offset"] >= 20) & (rows["queue_offset"] < 40))


def without_place(row: DirectoryRow) -> DirectoryRow:
    return replace(row, frame_position=0, frame_length=0, frame_bytes=0, frame_checksum=0)


class FilledWorld(World):
    """Messages k0…k99 of two topics in turn, 50 in queue 0 of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, removal: object = None) -> None:
        monkeypatch.setattr(
            "tierlog.tiering.lifecycle.archiver.scan_segment",
            lambda data, base, topics, _, places=None: scan_segment(data, base, topics, removal, places),  # type: ignore[arg-type]
        )
        super().__init__(settings=tiny_settings(4096))
        self.open()
        self.ids: list[str] = []
        for number in range(100):
            self.clock.advance(1000)
            topic = ("orders", "noise")[number % 2]
            (done,) = self.engine.append([Message(topic, b"secret" * 5, [f"k{number}"], queue_id=0)])
            self.ids.append(done.message_id)

    def leave_out(self, topic: str) -> None:
        topics = self.engine._hot.topics
        topics.set_options(topics.get(topic), archive=False, cold_retention_ms=None, hold=False)

    def archive(self) -> None:
        super().archive()
        assert self.engine.check(deep=True) == []

    def manifest(self, objects: ObjectStore | None = None) -> ManifestStore:
        manifest = super().manifest(objects)
        manifest.refresh()
        return manifest

    def restored(self) -> bytes:
        manifest = self.manifest()
        head = manifest.refresh()
        reader = manifest.reader()
        entries = list(manifest.log_entries(reader, head))
        return b"".join(SegmentReader(reader, entry).restore().data for entry in entries)


def test_a_topic_that_is_not_archived_is_gone_behind_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FilledWorld(monkeypatch)
    world.leave_out("noise")
    assert world.engine.pull("noise", 0, 0, 5).status is PullStatus.FOUND
    world.archive()
    for topic, number in (("orders", 0), ("noise", 1)):
        world.engine.append([Message(topic, b"later", ["later"], queue_id=0)])
        found = world.engine.pull(topic, 0, 0, 100)
        if topic == "orders":
            assert (found.status, len(found.messages), found.min_offset) == (PullStatus.FOUND, 50, 0)
            assert world.engine.message(world.ids[number]).record.body == b"secret" * 5
        else:
            assert (found.status, found.next_offset, found.min_offset) == (PullStatus.OFFSET_TOO_SMALL, 50, 50)
            with pytest.raises(MessageNotFoundError):
                world.engine.message(world.ids[number])
    gone = world.engine.query(Query("noise", "k1"))
    assert (gone.messages, gone.coverage.complete, gone.coverage.segments_erased) == ([], True, 1)
    assert gone.coverage.failures == []
    assert len(world.engine.query(Query("orders", "k2")).messages) == 1
    assert len(world.engine.query(Query("noise", None)).messages) == 1
    assert len(world.engine.query(Query("orders", None, limit=100)).messages) == 51
    assert world.engine.query(Query("noise", None)).coverage.complete
    assert world.restored().count(b"secret" * 5) == 50
    manifest = world.manifest()
    topic_id = world.engine._hot.topics.get("noise").topic_id
    assert len(manifest.queue_rows(manifest.reader(), manifest.refresh(), topic_id)) == 0


def test_a_topic_archived_again_goes_on_behind_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FilledWorld(monkeypatch)
    topics = world.engine._hot.topics
    world.archive()
    world.leave_out("noise")
    for _ in range(60):
        world.engine.append([Message("noise", b"not kept" * 5, queue_id=0)])
    world.archive()
    topics.set_options(topics.get("noise"), archive=True, cold_retention_ms=None, hold=False)
    for _ in range(60):
        world.engine.append([Message("noise", b"kept" * 9, queue_id=0)])
    world.archive()
    found, offset = [], 0
    while (answer := world.engine.pull("noise", 0, offset, 7)).next_offset < answer.max_offset or answer.messages:
        found += [message.record.queue_offset for message in answer.messages]
        offset = answer.next_offset
    assert found == [*range(50), *range(110, 170)]


def test_readers_pass_over_removed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FilledWorld(monkeypatch, removal=all_of_two_queue_offsets)
    first_ms = world.engine.pull("orders", 0, 20, 1).messages[0].record.store_ms
    last_ms = world.engine.pull("orders", 0, 39, 1).messages[0].record.store_ms
    world.archive()
    cold_only = Fetcher("store", None, world.manifest())
    for target in (world.engine, cold_only):
        found = target.pull("orders", 0, 15, 100)
        assert [message.record.queue_offset for message in found.messages] == [*range(15, 20), *range(40, 50)]
        inside = target.pull("orders", 0, 20, 1)
        assert [message.record.queue_offset for message in inside.messages] == [40]
        assert target.pull("orders", 0, 30, 0).next_offset == 30
        assert target.offset_by_time("orders", 0, first_ms, Boundary.LOWER) == 40
        assert target.offset_by_time("orders", 0, last_ms, Boundary.UPPER) == 19
        with pytest.raises(MessageNotFoundError):
            target.message(world.ids[40])
    hit = world.engine.query(Query("orders", "k40"))
    assert (hit.messages, hit.coverage.complete, hit.coverage.segments_erased) == ([], True, 1)
    assert len(world.engine.query(Query("orders", "k80")).messages) == 1
    for axis in TimeAxis:
        answer = world.engine.query(Query("orders", None, limit=100, axis=axis))
        assert len(answer.messages) == 30
        assert (answer.coverage.complete, answer.coverage.segments_erased >= 1) == (True, True)


def test_a_queue_all_of_which_was_removed_ends_where_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FilledWorld(monkeypatch, removal=lambda data, rows: np.full(len(rows), True))
    world.archive()
    found = world.engine.pull("orders", 0, 0, 100)
    assert (found.status, found.messages, found.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, [], 50)
    assert world.engine.query(Query("orders", "k0")).messages == []
    assert b"secret" not in world.restored()


@pytest.mark.parametrize("seed", range(3))
def test_fillers_made_on_the_way_equal_those_of_the_oracle(seed: int) -> None:
    plain = write_segment(mixed_records(seed), frame_bytes=2048)
    left_out = {int(IDS[NAMES.index("ab")])}
    written = write_segment(mixed_records(seed), frame_bytes=2048, removal=odd_offsets, left_out=left_out)
    gone = [each for each in plain.records if each.physical_offset % 2 or each.topic == "ab"]
    segment = bytearray(plain.segment)
    for each in gone:
        start = each.physical_offset - plain.entry.base
        segment[start : start + each.size] = make_filler(encode_record(each))
    restored = written.reader().restore()
    assert (restored.data, restored.fillers) == (bytes(segment), len(gone))
    assert [each.tolist() for each in written.reader().offset_map()] == [
        each.tolist() for each in plain.reader().offset_map()
    ]
    rows = [without_place(row) for row in plain.reader().runs() if row.topic != "ab"]
    assert list(map(without_place, written.reader().runs())) == rows, "times as before, but for what is left out"
    ids = plain.summary.queue_rows["topic_id"]
    assert (written.summary.queue_rows == plain.summary.queue_rows[~np.isin(ids, list(left_out))]).all()
    kept = [each for each in plain.sorted_records if each not in gone]
    assert list(written.reader().records_of(written.reader().runs())) == kept
    assert replace(written.summary.sections["seek_table"], position=0, crc32=0) == replace(
        plain.summary.sections["seek_table"], position=0, crc32=0
    )


def test_a_segment_of_left_out_topics_alone() -> None:
    written = write_segment(mixed_records(1), left_out=set(IDS.tolist()))
    reader = written.reader()
    assert (list(reader.runs()), len(written.summary.queue_rows), written.summary.bounds) == ([], 0, None)
    assert reader.restore().fillers == written.summary.records == 150


def test_a_store_of_left_out_topics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FilledWorld(monkeypatch)
    for topic in ("orders", "noise"):
        world.leave_out(topic)
    world.archive()
    assert world.engine.query(Query("orders", "k0")).coverage.complete
    assert world.engine.query(Query("orders", None)).messages == []
    assert world.engine.pull("orders", 0, 0, 1).status is PullStatus.OFFSET_TOO_SMALL
    assert [file.tier for file in world.engine.files()].count(Tier.COLD) >= 3
    assert world.engine.stats()
    assert b"secret" not in world.restored()
    (done,) = world.engine.append([Message("orders", b"goes on", queue_id=0)])
    assert done.queue_offset == 50
