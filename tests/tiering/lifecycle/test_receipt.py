"""Two who carry one erasure out write one receipt, and none loses what the other wrote."""

from __future__ import annotations

import pytest

from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import NotFoundError, PreconditionFailedError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.lifecycle.erasure_receipts import Receipt, ReceiptStore, RewrittenSegment
from tierlog.tiering.lifecycle.tombstones import make_tombstone
from tierlog.tiering.objects.memory import MemoryObjectStore

STONE = make_tombstone("t", "k", from_ms=None, to_ms=None, end=100, randomness=SeededRandomness(1))


def row(segment: int, by: str, at_ms: int | None = None) -> RewrittenSegment:
    return RewrittenSegment(segment, f"old{segment}", f"{by}{segment}", 1, at_ms, by)


def stores() -> tuple[ReceiptStore, ReceiptStore]:
    objects = MemoryObjectStore(ManualClock())
    return ReceiptStore(objects, ColdKeys("store")), ReceiptStore(objects, ColdKeys("store"))


def test_an_update_is_made_of_what_the_other_has_stored_since() -> None:
    first, second = stores()
    begun = first.begin(Receipt(STONE, 5))
    assert second.begin(Receipt(STONE, 9)) == begun, "whoever comes second goes on with what is there"
    one = first.update(begun, lambda each: each.with_rows((row(0, "a"),), "a"))
    both = second.update(begun, lambda each: each.with_rows((row(1, "b"),), "b", 50))
    assert [each.new for each in both.rewritten] == ["a0", "b1"]
    done = first.update(one, lambda each: each.with_rows((row(0, "a", 7),), "a", 40))
    assert {each.new: each.at_ms for each in done.rewritten} == {"a0": 7, "b1": None}
    assert done.done_to == 50
    assert second.load(STONE.tombstone_id) == done


def test_rows_of_a_process_stay_until_they_are_settled_or_its_own_take_their_place() -> None:
    receipt = Receipt(STONE, 5).with_rows((row(0, "a"), row(1, "a")), "a").with_rows((row(2, "b"),), "b")
    assert [each.new for each in receipt.with_rows((row(3, "a"),), "a").rewritten] == ["b2", "a3"]
    settled = receipt.with_settled_rows({"a0"}, {"a1"}, 9)
    assert {each.new: each.at_ms for each in settled.rewritten} == {"a0": 9, "b2": None}
    assert Receipt.decode(settled.encode(), path="receipt") == settled


def test_nothing_is_stored_when_nothing_changes() -> None:
    first, second = stores()
    begun = first.begin(Receipt(STONE, 5))
    second.update(second.load(STONE.tombstone_id), lambda each: each.with_rows((row(0, "b"),), "b"))
    assert first.update(begun, lambda each: each) == begun
    with pytest.raises(PreconditionFailedError):
        first.save(begun)


def test_a_receipt_that_is_gone_is_said_to_be() -> None:
    first, _ = stores()
    with pytest.raises(NotFoundError):
        first.load("0123")
