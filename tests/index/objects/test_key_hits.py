"""All hits of some keys: nothing is missing, nothing but their pages is read, nothing fails in silence."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest

from tests.support.index.index_merge import Shape, merge, mergeable
from tests.support.stores.archives import KEYS, TOPICS, Named, build
from tests.support.stores.look_up_stores import KEYS as ODD_KEYS
from tests.support.stores.look_up_stores import TOPICS as ODD_TOPICS
from tests.support.stores.look_up_stores import Sending, SharedBucket
from tests.support.world import World
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.lookup import SegmentHits, key_hits
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.bill import ReadBill
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import Record

PAIRS = [*product(TOPICS, KEYS)]


@pytest.fixture(scope="module")
def built() -> World:
    return build()


@pytest.fixture
def world(built: World) -> World:
    return built.copy()


def index_of(manifest: ManifestStore) -> ColdIndex:
    return ColdIndex(manifest, SeededRandomness(1))


def all_records(manifest: ManifestStore, head: Head) -> list[Record]:
    """Every indexed record that is archived, by going through all segments."""
    reader = manifest.reader()
    return [
        record
        for entry in manifest.log_entries(reader, head)
        for record in SegmentReader(reader, entry).records_of(SegmentReader(reader, entry).runs())
        if record.physical_offset < head.indexed_to
    ]


def records_at(manifest: ManifestStore, hits: list[SegmentHits]) -> list[Record]:
    found = []
    for each in hits:
        assert (np.diff(each.offsets) > 0).all()
        found += [
            record for _, record in SegmentReader(manifest.reader(), each.entry).records_at(each.offsets.tolist())
        ]
    return [record for record in found if record is not None]


def offsets_with(records: list[Record], keys: set[tuple[str, str]]) -> list[int]:
    return sorted(
        record.physical_offset
        for record in records
        if any((record.topic, key) in keys for key in indexed_keys(record.properties))
    )


@pytest.mark.parametrize("count", [1, 2, 5, len(PAIRS)])
def test_every_indexed_record_with_one_of_the_keys_is_hit(world: World, count: int) -> None:
    manifest = world.manifest()
    head = manifest.refresh()
    assert head.indexed_to < head.archived_to
    keys = set(PAIRS[:: len(PAIRS) // count])
    found = records_at(manifest, list(key_hits(index_of(manifest), head, keys)))
    assert offsets_with(found, keys) == offsets_with(all_records(manifest, head), keys) != []
    assert [record for record in found if record.physical_offset >= head.indexed_to] == []


def test_hits_are_the_same_on_many_threads_and_after_a_merge(world: World) -> None:
    manifest = world.manifest()
    before = manifest.refresh()
    plain = [each.offsets.tolist() for each in key_hits(index_of(manifest), before, PAIRS)]
    with ThreadPoolExecutor(8) as pool:
        beside = [each.offsets.tolist() for each in key_hits(index_of(manifest), before, PAIRS, each=pool.map)]
    assert beside == plain
    (run, *_) = mergeable(manifest, before)
    merge(manifest, run, SeededRandomness(5), Shape(parts=3))
    after = manifest.refresh()
    assert after.version > before.version
    assert [each.offsets.tolist() for each in key_hits(index_of(manifest), after, PAIRS)] == plain


def test_a_range_of_times_keeps_all_that_lie_in_it(world: World) -> None:
    manifest = world.manifest()
    head = manifest.refresh()
    records, keys = all_records(manifest, head), set(PAIRS)
    for axis in TimeAxis:
        times = sorted(record.store_ms if axis is TimeAxis.STORE else record.born_ms for record in records)
        within = TimeRange(times[len(times) // 3], times[len(times) // 2])
        found = records_at(manifest, list(key_hits(index_of(manifest), head, keys, within, axis)))

        def inside(record: Record, axis: TimeAxis = axis, within: TimeRange = within) -> bool:
            return within.contains(record.store_ms if axis is TimeAxis.STORE else record.born_ms)

        wanted = offsets_with([record for record in records if inside(record)], keys)
        assert offsets_with([record for record in found if inside(record)], keys) == wanted != []
        assert len(found) < len(offsets_with(records, keys))


def test_colliding_keys_and_topics_are_hit_together_and_told_apart() -> None:
    shared = SharedBucket()
    (store,) = shared.stores
    for number, (topic, key) in enumerate([*product(ODD_TOPICS, ODD_KEYS)] * 4):
        shared.clock.advance(100)
        store.append([Sending(topic, (key, ODD_KEYS[number % 4]))])
    store.archive_everything()
    manifest = store.manifest()
    head = manifest.refresh()
    for pair in product(ODD_TOPICS, ODD_KEYS):
        found = records_at(manifest, list(key_hits(index_of(manifest), head, [pair])))
        assert offsets_with(found, {pair}) == offsets_with(all_records(manifest, head), {pair}) != []


def test_keys_that_share_a_page_share_its_request(world: World) -> None:
    """The index costs at most a directory and a read of neighbouring pages for each object, however many keys."""
    manifest = world.manifest()
    head = manifest.refresh()
    objects = len(list(manifest.all_index_entries(manifest.reader(), head)))
    bill = ReadBill()
    reader = manifest.reader
    manifest.reader = lambda *_, **named: reader(bill, **named)  # type: ignore[method-assign]
    list(key_hits(index_of(manifest), head, PAIRS))
    assert bill.stages["page directory"] == objects
    assert bill.stages["index page"] == objects
    assert bill.stages["frame"] == bill.stages["seek table"] == 0


def test_whatever_cannot_be_read_is_raised(world: World) -> None:
    named = Named.of(world.manifest())
    for kind in ("index object", "index page 0", "index page 1", "log page 0"):
        for key in named.kinds[kind]:
            damaged = world.copy()
            damaged.objects.delete(key)
            manifest = damaged.manifest()
            with pytest.raises(StoreError) as raised:
                list(key_hits(index_of(manifest), manifest.refresh(), PAIRS))
            assert raised.value.path == key


def test_damage_in_an_index_object_names_it(world: World) -> None:
    key = Named.of(world.manifest()).kinds["index object"][0]
    data = bytearray(world.objects.get(key)[0])
    data[40] ^= 1
    world.objects.put(key, bytes(data))
    manifest = world.manifest()
    with pytest.raises(CorruptionError) as raised:
        list(key_hits(index_of(manifest), manifest.refresh(), PAIRS))
    assert raised.value.path == key
