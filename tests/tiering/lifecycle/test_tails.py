"""The writer of tails: what is put under which name, and when an append may be acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.stores.hot_stores import append
from tests.support.stores.tails import EVER, GRACE_MS, KEYS, TailedStore, data_head, take_over
from tierlog.tiering.base.errors import FencedError, ObjectStoreUnavailableError, StoreMismatchError
from tierlog.tiering.base.options import TailOptions
from tierlog.tiering.format.record import MAGIC_BLANK
from tierlog.tiering.format.tail import TailHead, TailKind
from tierlog.tiering.lifecycle.tail_store import TailMark
from tierlog.tiering.message.batch import Message


def is_covered(tailed: TailedStore, end: int) -> bool:
    return tailed.writer.is_covered(end)


def test_appends_that_wait_share_one_tail() -> None:
    tailed = TailedStore()
    end = tailed.append(4)
    tailed.run()
    assert is_covered(tailed, end)
    (tail,) = tailed.all()
    assert (tail.head.first, tail.head.end, tail.head.kind) == (0, 800, TailKind.DATA)
    assert tail.payload == tailed.log_bytes(800)
    assert tail.head.topics == {"orders": 2}
    assert tail.head.volume_id == "volume"


def test_nothing_is_asked_or_written_unless_somebody_waits() -> None:
    tailed = TailedStore()
    append(tailed.hot, Message("orders", b"flushed only"))
    before = len(tailed.objects.calls)
    assert tailed.writer.take(EVER) is None
    assert (len(tailed.objects.calls), tailed.mark.end) == (before, 0)


def test_a_tail_is_cut_at_a_record_below_the_bound() -> None:
    tailed = TailedStore()
    end = tailed.append(12, size=300)
    tailed.run()
    assert [tail.head.end for tail in tailed.all()] == [900, 1800, 2700, 3600]
    assert is_covered(tailed, end)
    assert tailed.chain() == tailed.log_bytes(end)


def test_a_record_above_the_bound_has_a_tail_of_its_own() -> None:
    tailed = TailedStore()
    tailed.append(1)
    end = tailed.append(1, size=2500)
    tailed.run()
    assert [tail.head.end for tail in tailed.all()] == [200, 2700]
    assert is_covered(tailed, end)


def test_a_roll_ends_at_the_next_segment_and_leaves_out_its_zeros() -> None:
    tailed = TailedStore()
    tailed.append(3)
    tailed.hot.roll()
    end = tailed.append(1)
    tailed.run()
    roll, after = tailed.all()
    assert (roll.head.kind, roll.head.first, roll.head.end, len(roll.payload)) == (TailKind.ROLL, 0, 4096, 608)
    assert int.from_bytes(roll.payload[604:], signed=True) == MAGIC_BLANK
    assert (after.head.first, after.head.end) == (4096, end)
    assert tailed.chain() == tailed.log_bytes(end)


def test_bytes_that_are_not_flushed_are_in_no_tail() -> None:
    tailed = TailedStore()
    tailed.append(1)
    tailed.writer.want(4000)
    tailed.run()
    assert [tail.head.end for tail in tailed.all()] == [200]
    assert not is_covered(tailed, 4000)


def test_acknowledged_only_when_all_before_exist() -> None:
    tailed = TailedStore()
    end = tailed.append(12, size=300)
    first, second, third = tailed.take(), tailed.take(), tailed.take()
    assert tailed.writer.take(EVER) is None, "no more than three on their way"
    tailed.writer.store(third)
    tailed.writer.store(second)
    assert tailed.writer.covered() == 0
    tailed.writer.store(first)
    assert tailed.writer.covered() == 2700
    tailed.run()
    assert is_covered(tailed, end)


def test_no_tail_of_a_segment_is_begun_before_all_before_it_exist() -> None:
    tailed = TailedStore()
    tailed.append(4)
    tailed.hot.roll()
    tailed.append(1)
    roll = tailed.take()
    assert roll.head.kind is TailKind.ROLL
    assert tailed.writer.take(EVER) is None
    tailed.writer.store(roll)
    assert tailed.take().head.first == 4096


def test_small_tails_wait_for_the_interval_and_full_ones_do_not() -> None:
    tailed = TailedStore()
    tailed.append(1)
    assert tailed.writer.take(5.0) is not None
    tailed.append(1)
    assert tailed.writer.take(5.05) is None
    assert tailed.writer.idle_s(5.05) == pytest.approx(0.05)
    tailed.append(6)
    assert tailed.writer.take(5.05) is not None
    assert tailed.writer.take(5.15) is not None


def test_lost_answer_is_found_out_by_the_nonce() -> None:
    tailed = TailedStore()
    end = tailed.append(1)
    tailed.objects.fail_after("put", "s/tail/*")
    piece = tailed.take()
    with pytest.raises(ObjectStoreUnavailableError):
        tailed.writer.store(piece)
    assert not is_covered(tailed, end)
    tailed.run()
    assert is_covered(tailed, end)
    assert len(tailed.all()) == 1


def test_a_hole_is_filled_by_the_same_tail_later() -> None:
    tailed = TailedStore()
    end = tailed.append(12, size=300)
    tailed.objects.fail_before("put", KEYS.tail(900))
    first, second, third = tailed.take(), tailed.take(), tailed.take()
    with pytest.raises(ObjectStoreUnavailableError):
        tailed.writer.store(second)
    tailed.writer.store(third)
    tailed.writer.store(first)
    assert tailed.writer.covered() == 900
    tailed.run()
    assert is_covered(tailed, end)
    assert tailed.chain() == tailed.log_bytes(end)


def test_the_mark_is_durable_before_a_tail_is_sent() -> None:
    tailed = TailedStore()
    tailed.append(1)
    tailed.objects.fail_before("put", "s/tail/*")
    with pytest.raises(ObjectStoreUnavailableError):
        tailed.writer.store(tailed.take())
    assert TailMark(tailed.hot_world.fs, tailed.hot_world.paths).end == 200


def fence(tailed: TailedStore, first: int) -> None:
    tailed.tails.create(TailHead("s", "other", 7, "f" * 16, TailKind.FENCE, first, first, 4096))


def test_a_fence_ends_the_writing_for_good() -> None:
    tailed = TailedStore()
    covered = tailed.append(1)
    tailed.run()
    fence(tailed, 200)
    end = tailed.append(1)
    with pytest.raises(FencedError, match="other"):
        tailed.run()
    assert is_covered(tailed, covered)
    with pytest.raises(FencedError):
        is_covered(tailed, end)
    assert tailed.writer.take(EVER) is None


def test_a_fence_that_is_there_already_is_found_at_the_beginning() -> None:
    tailed = TailedStore()
    fence(tailed, 0)
    with pytest.raises(FencedError):
        tailed.writer.begin(tailed.head)
    tailed.append(1)
    with pytest.raises(FencedError):
        is_covered(tailed, 200)


def test_a_takeover_is_noticed_at_the_first_tail_and_again_after_a_quarter_of_the_grace_period() -> None:
    tailed = TailedStore()
    tailed.append(1)
    tailed.run()
    tailed.clock.advance(GRACE_MS // 4)
    take_over(tailed)
    assert is_covered(tailed, 200)
    end = tailed.append(1)
    tailed.run()
    assert is_covered(tailed, end), "the tail is in the chain, for whoever took over has not fenced it yet"
    tailed.clock.advance(2)
    end = tailed.append(1)
    with pytest.raises(FencedError, match="over"):
        tailed.run()
    with pytest.raises(FencedError):
        is_covered(tailed, end)


def test_another_open_of_the_volume_goes_on_behind_the_tails_that_are_there() -> None:
    tailed = TailedStore()
    tailed.append(3)
    tailed.run()
    tailed.reopen()
    assert tailed.writer.covered() == 600
    end = tailed.append(1)
    tailed.run()
    assert [(tail.head.first, tail.head.epoch) for tail in tailed.all()] == [(0, 1), (600, 2)]
    assert tailed.chain() == tailed.log_bytes(end)


def test_a_tail_of_a_killed_open_that_lands_late_is_taken_into_the_chain() -> None:
    tailed = TailedStore()
    tailed.append(3)
    late = tailed.take()
    tailed.reopen()
    assert tailed.writer.covered() == 0
    end = tailed.append(2)
    piece = tailed.take()
    assert (piece.head.first, piece.head.end) == (0, 1000)
    tailed.tails.create(late.head, late.cut.payload)
    tailed.writer.store(piece)
    assert tailed.writer.covered() == 600
    tailed.run()
    assert is_covered(tailed, end)
    assert [tail.head.end for tail in tailed.all()] == [600, 1000]
    assert tailed.chain() == tailed.log_bytes(end)


def test_a_late_tail_that_reaches_further_than_ours_is_followed_from_its_end() -> None:
    tailed = TailedStore(options=TailOptions(max_bytes=2000, in_flight=3))
    tailed.append(6)
    late = tailed.take()
    tailed.options = TailOptions(max_bytes=500, in_flight=3)
    tailed.reopen()
    end = tailed.append(1)
    first, second = tailed.take(), tailed.take()
    tailed.tails.create(late.head, late.cut.payload)
    tailed.writer.store(second)
    tailed.writer.store(first)
    assert tailed.writer.covered() == 1200
    tailed.run()
    assert is_covered(tailed, end)
    assert tailed.chain() == tailed.log_bytes(end)


def test_a_tail_of_other_bytes_is_an_error_until_the_archive_has_passed_it() -> None:
    tailed = TailedStore()
    tailed.tails.create(replace(stranger(), volume_id="volume"), b"x" * 64)
    end = tailed.append(1)
    with pytest.raises(StoreMismatchError, match="other bytes"):
        tailed.run()
    with pytest.raises(StoreMismatchError):
        is_covered(tailed, end)
    tailed.hot.roll()
    tailed.archived_to = 4096
    assert is_covered(tailed, end)
    end = tailed.append(1)
    tailed.run()
    assert is_covered(tailed, end)


def stranger() -> TailHead:
    return data_head(0, b"x" * 64)


def test_a_tail_of_another_volume_ends_the_writing() -> None:
    tailed = TailedStore()
    tailed.tails.create(stranger(), b"x" * 64)
    tailed.append(1)
    with pytest.raises(FencedError):
        tailed.run()


def test_what_the_archive_holds_needs_no_tail() -> None:
    tailed = TailedStore()
    tailed.append(4)
    stuck = tailed.take()
    tailed.hot.roll()
    tailed.archived_to = 4096
    end = tailed.append(1)
    assert tailed.writer.covered() == 4096
    tailed.run()
    assert [tail.head.first for tail in tailed.all()] == [4096]
    tailed.writer.store(stuck)
    assert is_covered(tailed, end)


def test_tails_go_when_they_are_archived_and_old() -> None:
    tailed = TailedStore()
    tailed.append(12, size=300)
    tailed.run()
    tailed.hot.roll()
    tailed.append(1)
    tailed.run()
    now_ms = tailed.clock.now_ms()
    assert tailed.tails.remove_old(4096, now_ms, 99) == 0, "not younger than the grace period"
    assert tailed.tails.remove_old(1800, now_ms + 1, 99) == 2
    assert tailed.tails.remove_old(4096, now_ms + 1, 1) == 1
    assert tailed.tails.remove_old(4096, now_ms + 1, 99) == 2
    assert [tail.head.first for tail in tailed.all()] == [4096]
