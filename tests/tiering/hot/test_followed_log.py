"""Bytes of a broker's log, cut anywhere and damaged anywhere: whole verified records are appended, nothing else is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.followed import SEGMENT_BYTES, FollowedWorld, broker_log
from tests.support.stores.hot_stores import records_in
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK

LOG = broker_log(60)
FIRST_SIZE = records_in([LOG.data[: int.from_bytes(LOG.data[:4], "big")]])[0].size
#: Where the first segment's blank record begins.
BLANK_AT = LOG.data[:SEGMENT_BYTES].rindex(MAGIC_BLANK.to_bytes(4, "big", signed=True)) - 4


def _open(begin: int = 0) -> tuple[FollowedWorld, FollowedStore]:
    world = FollowedWorld(url=None)
    return world, world.open(begin=begin)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.sets(st.integers(0, LOG.end), max_size=40), flushes=st.integers(1, 5))
def test_any_cutting_of_a_log_gives_the_same_store(cuts: set[int], flushes: int) -> None:
    world, store = _open()
    places = sorted({0, LOG.end, *range(SEGMENT_BYTES, LOG.end, SEGMENT_BYTES), *cuts})
    for number, (first, end) in enumerate(pairwise(places)):
        store.append(first, memoryview(LOG.data)[first:end])
        if number % flushes == 0:
            store.flush()
    assert store.flush() == LOG.end
    assert world.log_bytes() == LOG.data


def test_a_record_that_is_cut_at_any_byte_waits_for_its_rest() -> None:
    for cut in range(1, FIRST_SIZE):
        _, store = _open()
        store.append(0, LOG.data[:cut])
        assert store.end == 0
        store.append(cut, LOG.data[cut : FIRST_SIZE + 3])
        assert store.end == FIRST_SIZE
        store.close()


def test_whoever_connects_again_begins_behind_the_last_whole_record() -> None:
    world, store = _open()
    store.append(0, LOG.data[: FIRST_SIZE + 50])
    assert store.end == FIRST_SIZE
    store.append(store.end, LOG.data[FIRST_SIZE:SEGMENT_BYTES])
    LOG.feed(store)
    assert world.log_bytes() == LOG.data


def test_bytes_of_another_place_are_refused() -> None:
    _, store = _open()
    store.append(0, LOG.data[: FIRST_SIZE + 50])
    with pytest.raises(InvalidRequestError, match="goes on at"):
        store.append(FIRST_SIZE + 51, LOG.data[FIRST_SIZE + 51 : 1000])
    assert store.end == FIRST_SIZE


@pytest.mark.parametrize(
    ("at", "new"),
    [(4, b"\0"), (8, b"\xff"), (12 + 16, b"\1"), (36 + 52, b"\x7f\xff\xff"), (100, b"!"), (0, b"\x7f")],
    ids=["magic", "body crc", "place", "body length", "body", "size"],
)
def test_a_damaged_record_is_named_and_nothing_of_it_is_appended(at: int, new: bytes) -> None:
    damaged = bytearray(LOG.data[:SEGMENT_BYTES])
    damaged[FIRST_SIZE + at : FIRST_SIZE + at + len(new)] = new
    world, store = _open()
    with pytest.raises(CorruptionError, match="no record") as caught:
        store.append(0, bytes(damaged))
    assert caught.value.position == store.end == FIRST_SIZE
    LOG.feed(store)
    assert world.log_bytes() == LOG.data


def test_garbage_behind_a_blank_record_is_passed_over_however_it_is_cut() -> None:
    garbage = LOG.data[: BLANK_AT + 8] + b"\xa5" * (SEGMENT_BYTES - BLANK_AT - 8)
    for most in (7, 100, SEGMENT_BYTES):
        world, store = _open()
        for at in range(0, SEGMENT_BYTES, most):
            store.append(at, garbage[at : at + most])
        assert store.end == SEGMENT_BYTES
        LOG.feed(store)
        assert world.log_bytes() == LOG.data
        store.close()


def test_what_lies_behind_a_blank_record_may_be_left_out() -> None:
    world, store = _open()
    store.append(0, LOG.data[: BLANK_AT + 8])
    assert store.end == SEGMENT_BYTES
    LOG.feed(store)
    assert world.log_bytes() == LOG.data


def test_a_blank_record_of_another_length_is_damage() -> None:
    _, store = _open()
    with pytest.raises(CorruptionError, match="a blank one of 3000 bytes"):
        store.append(0, LOG.data[:BLANK_AT] + BLANK.pack(3000, MAGIC_BLANK))
    assert store.end == BLANK_AT


def test_a_topic_that_no_folder_can_have_is_damage() -> None:
    _, store = _open()
    data = LOG.data[:FIRST_SIZE].replace(b"\6orders", b"\6ord/rs")
    with pytest.raises(CorruptionError, match="bad topic name"):
        store.append(0, data)
    assert store.end == 0


@pytest.mark.parametrize("most", [500, 2000, 1 << 20])
@pytest.mark.parametrize("end", [FIRST_SIZE, BLANK_AT, SEGMENT_BYTES, LOG.end])
def test_the_tail_is_whole_records_to_compare(most: int, end: int) -> None:
    _, store = _open()
    LOG.feed(store, end=end)
    offset, found = store.tail(most)
    base = (end - 1) // SEGMENT_BYTES * SEGMENT_BYTES
    last = BLANK_AT if end == SEGMENT_BYTES else end
    starts = [base, *(record.physical_offset + record.size for record in records_in([LOG.data[base:last]]))]
    assert offset == min(start for start in starts if start >= last - most)
    assert found == LOG.data[offset : BLANK_AT + 8 if end == SEGMENT_BYTES else end]


def test_an_empty_log_has_no_tail() -> None:
    _, store = _open(begin=SEGMENT_BYTES)
    assert store.tail(1000) == (SEGMENT_BYTES, b"")


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_at_any_write_leaves_a_log_that_goes_on(seed: int) -> None:
    """Appends, rolls, topics, checkpoints and the promotion, on a disk that forgets."""
    cuts = 0
    for cut_at in range(1 + seed, 2000, 23):
        world = FollowedWorld(url=None, fs=CrashFileSystem(seed=seed, cut_at=cut_at))
        flushed, is_promoted = 0, False
        try:
            store = world.open()
            for end in range(900, LOG.end, 900):
                LOG.feed(store, most=333, end=end)
                flushed = store.flush()
                if end % 2700 == 0:
                    store.store.flush()
            LOG.feed(store)
            flushed = store.flush()
            is_promoted = True
            store.promote()
        except PowerCut:
            cuts += 1
        else:
            break
        world.fs = world.fs.crash(cut_at)
        if is_promoted and b'"followed"' not in world.fs.read(world.root / "tierlog" / "store.json"):
            ordinary = world.ordinary().open()
            assert ordinary._hot.log.end == LOG.end
            assert ordinary.check() == []
            continue
        store = world.open()
        assert store.end >= flushed
        LOG.feed(store)
        store.flush()
        assert world.log_bytes() == LOG.data
        assert store.store.check() == []
        store.close()
    assert cuts > 5
