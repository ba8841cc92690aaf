"""The writer of tails: what is put under which name, and when an append may be acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.stores.hot_stores import append
from tests.support.stores.tails import EVER, GRACE_MS, KEYS, TailWorld, data_head, take_over
from tierlog.tiering.base.errors import FencedError, ObjectStoreUnavailableError, StoreMismatchError
from tierlog.tiering.base.options import TailOptions
from tierlog.tiering.format.record import MAGIC_BLANK
from tierlog.tiering.format.tail import TailHead, TailKind
from tierlog.tiering.lifecycle.tail_store import TailMark
from tierlog.tiering.message.batch import Message


def is_covered(world: TailWorld, end: int) -> bool:
    return world.writer.is_covered(end)


def test_appends_that_wait_share_one_tail() -> None:
    world = TailWorld()
    end = world.append(4)
    world.run()
    assert is_covered(world, end)
    (tail,) = world.all()
    assert (tail.head.first, tail.head.end, tail.head.kind) == (0, 800, TailKind.DATA)
    assert tail.payload == world.log_bytes(800)
    assert tail.head.topics == {"orders": 2}
    assert tail.head.volume_id == "volume"


def test_nothing_is_asked_or_written_unless_somebody_waits() -> None:
    world = TailWorld()
    append(world.hot, Message("orders", b"flushed only"))
    before = len(world.objects.calls)
    assert world.writer.take(EVER) is None
    assert (len(world.objects.calls), world.mark.end) == (before, 0)


def test_a_tail_is_cut_at_a_record_below_the_bound() -> None:
    world = TailWorld()
    end = world.append(12, size=300)
    world.run()
    assert [tail.head.end for tail in world.all()] == [900, 1800, 2700, 3600]
    assert is_covered(world, end)
    assert world.chain() == world.log_bytes(end)


def test_a_record_above_the_bound_has_a_tail_of_its_own() -> None:
    world = TailWorld()
    world.append(1)
    end = world.append(1, size=2500)
    world.run()
    assert [tail.head.end for tail in world.all()] == [200, 2700]
    assert is_covered(world, end)


def test_a_roll_ends_at_the_next_segment_and_leaves_out_its_zeros() -> None:
    world = TailWorld()
    world.append(3)
    world.hot.roll()
    end = world.append(1)
    world.run()
    roll, after = world.all()
    assert (roll.head.kind, roll.head.first, roll.head.end, len(roll.payload)) == (TailKind.ROLL, 0, 4096, 608)
    assert int.from_bytes(roll.payload[604:], signed=True) == MAGIC_BLANK
    assert (after.head.first, after.head.end) == (4096, end)
    assert world.chain() == world.log_bytes(end)


def test_bytes_that_are_not_flushed_are_in_no_tail() -> None:
    world = TailWorld()
    world.append(1)
    world.writer.want(4000)
    world.run()
    assert [tail.head.end for tail in world.all()] == [200]
    assert not is_covered(world, 4000)


def test_acknowledged_only_when_all_before_exist() -> None:
    world = TailWorld()
    end = world.append(12, size=300)
    first, second, third = world.take(), world.take(), world.take()
    assert world.writer.take(EVER) is None, "no more than three on their way"
    world.writer.store(third)
    world.writer.store(second)
    assert world.writer.covered() == 0
    world.writer.store(first)
    assert world.writer.covered() == 2700
    world.run()
    assert is_covered(world, end)


def test_no_tail_of_a_segment_is_begun_before_all_before_it_exist() -> None:
    world = TailWorld()
    world.append(4)
    world.hot.roll()
    world.append(1)
    roll = world.take()
    assert roll.head.kind is TailKind.ROLL
    assert world.writer.take(EVER) is None
    world.writer.store(roll)
    assert world.take().head.first == 4096


def test_small_tails_wait_for_the_interval_and_full_ones_do_not() -> None:
    world = TailWorld()
    world.append(1)
    assert world.writer.take(5.0) is not None
    world.append(1)
    assert world.writer.take(5.05) is None
    assert world.writer.idle_s(5.05) == pytest.approx(0.05)
    world.append(6)
    assert world.writer.take(5.05) is not None
    assert world.writer.take(5.15) is not None


def test_lost_answer_is_found_out_by_the_nonce() -> None:
    world = TailWorld()
    end = world.append(1)
    world.objects.fail_after("put", "s/tail/*")
    piece = world.take()
    with pytest.raises(ObjectStoreUnavailableError):
        world.writer.store(piece)
    assert not is_covered(world, end)
    world.run()
    assert is_covered(world, end)
    assert len(world.all()) == 1


def test_a_hole_is_filled_by_the_same_tail_later() -> None:
    world = TailWorld()
    end = world.append(12, size=300)
    world.objects.fail_before("put", KEYS.tail(900))
    first, second, third = world.take(), world.take(), world.take()
    with pytest.raises(ObjectStoreUnavailableError):
        world.writer.store(second)
    world.writer.store(third)
    world.writer.store(first)
    assert world.writer.covered() == 900
    world.run()
    assert is_covered(world, end)
    assert world.chain() == world.log_bytes(end)


def test_the_mark_is_durable_before_a_tail_is_sent() -> None:
    world = TailWorld()
    world.append(1)
    world.objects.fail_before("put", "s/tail/*")
    with pytest.raises(ObjectStoreUnavailableError):
        world.writer.store(world.take())
    assert TailMark(world.hot_world.fs, world.hot_world.paths).end == 200


def fence(world: TailWorld, first: int) -> None:
    world.tails.create(TailHead("s", "other", 7, "f" * 16, TailKind.FENCE, first, first, 4096))


def test_a_fence_ends_the_writing_for_good() -> None:
    world = TailWorld()
    covered = world.append(1)
    world.run()
    fence(world, 200)
    end = world.append(1)
    with pytest.raises(FencedError, match="other"):
        world.run()
    assert is_covered(world, covered)
    with pytest.raises(FencedError):
        is_covered(world, end)
    assert world.writer.take(EVER) is None


def test_a_fence_that_is_there_already_is_found_at_the_beginning() -> None:
    world = TailWorld()
    fence(world, 0)
    with pytest.raises(FencedError):
        world.writer.begin(world.head)
    world.append(1)
    with pytest.raises(FencedError):
        is_covered(world, 200)


def test_a_takeover_is_noticed_at_the_first_tail_and_again_after_a_quarter_of_the_grace_period() -> None:
    world = TailWorld()
    world.append(1)
    world.run()
    world.clock.advance(GRACE_MS // 4)
    take_over(world)
    assert is_covered(world, 200)
    end = world.append(1)
    world.run()
    assert is_covered(world, end), "the tail is in the chain, for whoever took over has not fenced it yet"
    world.clock.advance(2)
    end = world.append(1)
    with pytest.raises(FencedError, match="over"):
        world.run()
    with pytest.raises(FencedError):
        is_covered(world, end)


def test_another_open_of_the_volume_goes_on_behind_the_tails_that_are_there() -> None:
    world = TailWorld()
    world.append(3)
    world.run()
    world.reopen()
    assert world.writer.covered() == 600
    end = world.append(1)
    world.run()
    assert [(tail.head.first, tail.head.epoch) for tail in world.all()] == [(0, 1), (600, 2)]
    assert world.chain() == world.log_bytes(end)


def test_a_tail_of_a_killed_open_that_lands_late_is_taken_into_the_chain() -> None:
    world = TailWorld()
    world.append(3)
    late = world.take()
    world.reopen()
    assert world.writer.covered() == 0
    end = world.append(2)
    piece = world.take()
    assert (piece.head.first, piece.head.end) == (0, 1000)
    world.tails.create(late.head, late.cut.payload)
    world.writer.store(piece)
    assert world.writer.covered() == 600
    world.run()
    assert is_covered(world, end)
    assert [tail.head.end for tail in world.all()] == [600, 1000]
    assert world.chain() == world.log_bytes(end)


def test_a_late_tail_that_reaches_further_than_ours_is_followed_from_its_end() -> None:
    world = TailWorld(options=TailOptions(max_bytes=2000, in_flight=3))
    world.append(6)
    late = world.take()
    world.options = TailOptions(max_bytes=500, in_flight=3)
    world.reopen()
    end = world.append(1)
    first, second = world.take(), world.take()
    world.tails.create(late.head, late.cut.payload)
    world.writer.store(second)
    world.writer.store(first)
    assert world.writer.covered() == 1200
    world.run()
    assert is_covered(world, end)
    assert world.chain() == world.log_bytes(end)


def test_a_tail_of_other_bytes_is_an_error_until_the_archive_has_passed_it() -> None:
    world = TailWorld()
    world.tails.create(replace(stranger(), volume_id="volume"), b"x" * 64)
    end = world.append(1)
    with pytest.raises(StoreMismatchError, match="other bytes"):
        world.run()
    with pytest.raises(StoreMismatchError):
        is_covered(world, end)
    world.hot.roll()
    world.archived_to = 4096
    assert is_covered(world, end)
    end = world.append(1)
    world.run()
    assert is_covered(world, end)


def stranger() -> TailHead:
    return data_head(0, b"x" * 64)


def test_a_tail_of_another_volume_ends_the_writing() -> None:
    world = TailWorld()
    world.tails.create(stranger(), b"x" * 64)
    world.append(1)
    with pytest.raises(FencedError):
        world.run()


def test_what_the_archive_holds_needs_no_tail() -> None:
    world = TailWorld()
    world.append(4)
    stuck = world.take()
    world.hot.roll()
    world.archived_to = 4096
    end = world.append(1)
    assert world.writer.covered() == 4096
    world.run()
    assert [tail.head.first for tail in world.all()] == [4096]
    world.writer.store(stuck)
    assert is_covered(world, end)


def test_tails_go_when_they_are_archived_and_old() -> None:
    world = TailWorld()
    world.append(12, size=300)
    world.run()
    world.hot.roll()
    world.append(1)
    world.run()
    now_ms = world.clock.now_ms()
    assert world.tails.remove_old(4096, now_ms, 99) == 0, "not younger than the grace period"
    assert world.tails.remove_old(1800, now_ms + 1, 99) == 2
    assert world.tails.remove_old(4096, now_ms + 1, 1) == 1
    assert world.tails.remove_old(4096, now_ms + 1, 99) == 2
    assert [tail.head.first for tail in world.all()] == [4096]
