"""An old writer races a restore: what it was told is archived is in the recovered log, exactly once, in order.

Both sides take turns at every call of the bucket, before it and after it, with answers lost on either side. Nothing
here depends on threads: whoever's turn it is runs inside the other's call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.hot_stores import append
from tests.support.stores.tails import KEYS, TailedStore, archived_bodies
from tierlog.tiering.base.errors import FencedError, ObjectStoreUnavailableError, UnavailableError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.lifecycle.tail_recovery import recover_tails
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.object_store import ObjectStore

FOLDER = Path("/restore")


class TurnStore(FaultyObjectStore):
    """Lets somebody else run inside its n-th call, before or after it is done; the answer may be lost then."""

    def __init__(self, inner: ObjectStore, number: int, turn: Callable[[], None], *, after: bool, lost: bool) -> None:
        super().__init__(inner)
        self._number, self._turn, self._after, self._lost = number, turn, after, lost

    def _begin(self, operation: str, key: str) -> None:
        super()._begin(operation, key)
        if len(self.calls) == self._number and not self._after:
            self._turn()

    def _end(self, operation: str, key: str) -> None:
        super()._end(operation, key)
        if len(self.calls) == self._number:
            if self._after:
                self._turn()
            if self._lost:
                raise ObjectStoreUnavailableError("scripted lost answer")


class Race:
    """A volume that appends, and another that takes the store over."""

    def __init__(self) -> None:
        self.tailed = TailedStore()
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.is_fenced = False
        self.writes(3)

    def writes(self, count: int) -> None:
        """Append messages one by one; each waits for its tail, and gives up once the store is fenced."""
        for _ in range(count):
            body = b"%04d " % len(self.sent) * 50
            append(self.tailed.hot, Message("orders", body, queue_id=0))
            self.sent.append(body)
            end = self.tailed.hot.log.flushed
            self.tailed.writer.want(end)
            try:
                self._until_covered(end)
            except FencedError:
                self.is_fenced = True
            else:
                self.acknowledged.append(body)

    def _until_covered(self, end: int) -> None:
        tries = 0
        while not self.tailed.writer.is_covered(end):
            piece = self.tailed.writer.take(float("inf"))
            assert piece is not None
            try:
                self.tailed.writer.store(piece)
            except UnavailableError:
                tries += 1
                assert tries < 9

    def restores(self, objects: ObjectStore) -> None:
        """Take over and recover, again from the start after an error."""
        owner = Ownership("other", "open of other", ("open of other",))
        for _ in range(9):
            manifest = ManifestStore(
                objects, KEYS, randomness=SeededRandomness(7), options=ColdOptions(), clock=self.tailed.clock
            )
            try:
                head = manifest.refresh()
                if head.volume_id == "other":
                    head = manifest.claim(owner, log_begin=0, log_end=1 << 62)
                else:
                    head = manifest.take_over(owner, ManifestChange(), head)
                recover_tails(manifest, head, self.tailed.hot_world.fs, FOLDER, SeededRandomness(8))
            except UnavailableError:
                continue
            return
        pytest.fail("the restore never ended")

    def check(self) -> None:
        """All that was acknowledged is there; whatever else is there comes before what is missing."""
        found = archived_bodies(
            ManifestStore(self.tailed.objects.inner, KEYS, randomness=SeededRandomness(9), options=ColdOptions())
        )
        assert found == self.sent[: len(found)]
        assert set(self.acknowledged) <= set(found)


def run_each_turn(play: Callable[[int], int], least: int) -> None:
    """Play with the turn at every call, until there is no such call."""
    number = 1
    while play(number) >= number:
        number += 1
    assert number > least


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
@pytest.mark.parametrize("burst", [1, 2, 12])
def test_the_old_writer_gets_in_at_any_call_of_the_restore(after: bool, lost: bool, burst: int) -> None:
    def play(number: int) -> int:
        race = Race()
        store = TurnStore(race.tailed.objects.inner, number, lambda: race.writes(burst), after=after, lost=lost)
        race.restores(store)
        race.writes(1)
        assert race.is_fenced
        race.check()
        return len(store.calls)

    run_each_turn(play, 12)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_the_restore_gets_in_at_any_call_of_the_old_writer(after: bool, lost: bool) -> None:
    def play(number: int) -> int:
        race = Race()
        inner = race.tailed.objects.inner
        store = TurnStore(inner, number, lambda: race.restores(inner), after=after, lost=lost)
        race.tailed.tails._objects = store
        race.tailed.manifest.objects = store
        race.writes(12)
        if len(store.calls) < number:
            race.restores(inner)
        race.writes(1)
        assert race.is_fenced
        race.check()
        return len(store.calls)

    run_each_turn(play, 12)


@pytest.mark.parametrize("first", [2, 5, 8])
def test_the_old_writer_goes_on_writing_through_the_whole_restore(first: int) -> None:
    """A tail at every call of the restore: it follows the chain until it is faster once."""

    class BusyStore(FaultyObjectStore):
        def _begin(self, operation: str, key: str) -> None:
            super()._begin(operation, key)
            if first <= len(self.calls) < 40:
                race.writes(1)

    race = Race()
    race.restores(BusyStore(race.tailed.objects.inner))
    race.writes(1)
    assert race.is_fenced
    assert len(race.acknowledged) > 10
    race.check()
