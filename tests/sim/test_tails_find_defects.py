"""The simulation of tails can find things: writers and restores broken on purpose are caught in a few seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.simulation.run_tails import simulate_tails
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.tail import TailHead, TailKind, encode_tail
from tierlog.tiering.lifecycle import tail_recovery
from tierlog.tiering.lifecycle.tail_store import StoredTail, TailObjects
from tierlog.tiering.lifecycle.tail_writer import PendingTail, TailWriter, _State
from tierlog.tiering.objects.object_store import ObjectInfo

_SEEDS = 80
Break = Callable[[pytest.MonkeyPatch], None]


def takes_a_refusal_for_success(patch: pytest.MonkeyPatch) -> None:
    """The writer that ignores the fence."""

    def create(self: TailObjects, head: TailHead, payload: ByteArray | bytes = b"") -> StoredTail:
        found = original(self, head, payload)
        return found if head.kind is TailKind.FENCE else StoredTail(head, found.modified_ms)

    original = TailObjects.create
    patch.setattr(TailObjects, "create", create)


def takes_over_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    def chain(tails: TailObjects, head: Head, randomness: Randomness) -> list[TailHead]:
        return [tail for tail in tails.follow(head.archived_to) if tail.kind is not TailKind.FENCE]

    patch.setattr(tail_recovery, "_fenced_chain", chain)


def acknowledges_behind_a_hole(patch: pytest.MonkeyPatch) -> None:
    """The own tail exists, an earlier one does not yet."""

    def settle(self: TailWriter, piece: PendingTail, found: TailHead) -> None:
        original(self, piece, found)
        if piece.state is _State.STORED:
            self._chain_end = max(self._chain_end, piece.head.end)

    original = TailWriter._settle
    patch.setattr(TailWriter, "_settle", settle)


def leaves_the_last_segment_in_tails(patch: pytest.MonkeyPatch) -> None:
    def chain(tails: TailObjects, head: Head, randomness: Randomness) -> list[TailHead]:
        found = original(tails, head, randomness)
        while found and found[-1].kind is not TailKind.ROLL:
            found.pop()
        return found

    original = tail_recovery._fenced_chain
    patch.setattr(tail_recovery, "_fenced_chain", chain)


def replaces_what_has_the_name(patch: pytest.MonkeyPatch) -> None:
    def create(self: TailObjects, head: TailHead, payload: ByteArray | bytes = b"") -> StoredTail:
        info: ObjectInfo = self._objects.put(self._keys.tail(head.first), encode_tail(head, payload))
        return StoredTail(head, info.modified_ms)

    patch.setattr(TailObjects, "create", create)


def removes_tails_that_are_young(patch: pytest.MonkeyPatch) -> None:
    def remove_old(self: TailObjects, below: int, before_ms: int, limit: int) -> int:
        return original(self, below, before_ms + 3 * 3_600_000, limit)

    original = TailObjects.remove_old
    patch.setattr(TailObjects, "remove_old", remove_old)


def removes_tails_that_nothing_replaced(patch: pytest.MonkeyPatch) -> None:
    def remove_old(self: TailObjects, below: int, before_ms: int, limit: int) -> int:
        return original(self, below + 4096, before_ms, limit)

    original = TailObjects.remove_old
    patch.setattr(TailObjects, "remove_old", remove_old)


@pytest.mark.parametrize(
    "broken",
    [
        leaves_the_last_segment_in_tails,
        replaces_what_has_the_name,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                takes_a_refusal_for_success,
                takes_over_without_a_fence,
                acknowledges_behind_a_hole,
                removes_tails_that_are_young,
                removes_tails_that_nothing_replaced,
            )
        ),
    ],
)
def test_a_broken_promise_of_archived_appends_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    for seed in range(_SEEDS):
        try:
            simulate_tails(seed)
        except AssertionError:
            return
    pytest.fail(f"not found in {_SEEDS} seeds")
