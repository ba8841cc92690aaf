"""A query that only filters by tag decodes what may have the tag, not what it rules out: in both tiers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Durability, Order, TimeAxis
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.kernels.record_slices import tagged_places
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

COUNT, EACH = 4_000, 100
#: "Aa" and "BB" have one hash.
WANTED, TWIN = "Aa", "BB"
EVERY_WAY = list(product(Order, TimeAxis))


def of(number: int) -> Message:
    tag = {0: WANTED, 50: TWIN}.get(number % EACH, f"tag-{number % 7}" if number % 3 else "")
    return Message("t", b"%d" % number, tag=tag, born_ms=10_000_000 - number, queue_id=number % 4)


@pytest.fixture(scope="module")
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(ManualClock())


@pytest.fixture(scope="module")
def hot(objects: MemoryObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """All of it in both tiers."""
    settings = tiny_settings(hot__segment_bytes=1 << 20, cold__frame_bytes=8192)
    root, clock = tmp_path_factory.mktemp("store"), ManualClock()
    store = Store.open(root, settings=settings, clock=clock, cold_url="memory://archive", objects=objects)
    for begin in range(0, COUNT, EACH):
        store.append([of(number) for number in range(begin, begin + EACH)], Durability.ASYNC)
        clock.advance(1)
    store.archive(everything=True)
    yield store
    store.close()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each record that is decoded, in either tier."""
    found: list[int] = []
    decode, record = decode_record, HotSnapshot.record

    def from_frame(data: bytes, position: int) -> object:
        found.append(position)
        return decode(data, position)

    def from_log(snapshot: HotSnapshot, offset: int) -> object:
        found.append(offset)
        return record(snapshot, offset)

    monkeypatch.setattr("tierlog.tiering.cold.segment.reader.decode_record", from_frame)
    monkeypatch.setattr(HotSnapshot, "record", from_log)
    return found


def check(bodies: list[bytes], decoded: list[int], axis: TimeAxis) -> None:
    assert sorted(map(int, bodies)) == list(range(0, COUNT, EACH)), f"a twin of the hash passed, by {axis}"
    # one in a hundred has the tag, and as many its twin; a few more tell the times at which a queue begins and ends
    assert 2 * COUNT // EACH <= len(decoded) <= 2 * COUNT // EACH + 100


@pytest.mark.parametrize(("order", "axis"), EVERY_WAY)
def test_the_hot_tier_decodes_what_the_hash_of_a_unit_lets_through(
    hot: Store, decoded: list[int], order: Order, axis: TimeAxis
) -> None:
    answer = hot.query(Query("t", tag=WANTED, order=order, axis=axis, limit=COUNT))
    assert answer.coverage.complete
    check([found.record.body for found in answer.messages], decoded, axis)


@pytest.mark.parametrize(("order", "axis"), EVERY_WAY)
def test_the_archive_decodes_what_the_tag_in_its_frames_lets_through(
    hot: Store, objects: MemoryObjectStore, decoded: list[int], order: Order, axis: TimeAxis
) -> None:
    archive = Archive.open("memory://archive", objects=objects)
    answer = archive.query(Query("t", tag=WANTED, order=order, axis=axis, limit=COUNT))
    archive.close()
    assert answer.coverage.complete
    check([found.record.body for found in answer.messages], decoded, axis)


def test_what_is_no_sound_record_is_left_to_the_decoder(hot: Store) -> None:
    with hot._hot.snapshot() as snapshot:
        segment = snapshot.segments[min(snapshot.segments)]
        data = bytearray(segment.data[: 1 << 16])
    hashes = {tag_hash(WANTED)}
    places, stopped_at = tagged_places(bytes(data), 0, 1 << 16, hashes)
    assert len(places) > 2, "twins too"
    assert (1 << 16) - 1024 < stopped_at <= 1 << 16, "at the record that is cut off"
    second = places[1]
    data[second + 88] ^= 1  # in the body
    assert tagged_places(bytes(data), 0, 1 << 16, hashes) == (places[:1], second)
    assert tagged_places(bytes(data), 0, 10, hashes) == ([], 0)
