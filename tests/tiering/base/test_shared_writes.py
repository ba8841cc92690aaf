"""Changes that come during a write share the next one, and nobody is told that a change is durable which is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tierlog.tiering.base.shared_writes import SharedChange, SharedWrites


@dataclass(slots=True, eq=False)
class Named(SharedChange):
    """A change that is told from others."""

    name: str


class Writer:
    """Notes the batches that it is given; the first one waits until it is let go."""

    def __init__(self, then: Callable[[list[Named]], object] = lambda _: None) -> None:
        self.lock = threading.Lock()
        self.batches: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.writes = SharedWrites(self._write, self.lock)
        self._then = then

    def _write(self, batch: list[Named]) -> None:
        assert self.lock.locked()
        self.batches.append([change.name for change in batch])
        self.begun.set()
        assert self.go.wait(30)
        if len(self.batches) > 1:
            self._then(batch)

    def make(self, *names: str) -> list[Future[None]]:
        """Makes the first change alone and all others while it is written; how each ended."""
        with ThreadPoolExecutor(len(names)) as pool:
            ended = [pool.submit(self.writes.make, Named(names[0]))]
            assert self.begun.wait(30)
            ended += [pool.submit(self.writes.make, Named(name)) for name in names[1:]]
            while len(self.writes._waiting) < len(names) - 1:
                threading.Event().wait(0.001)
            self.go.set()
        return ended


def test_changes_that_come_during_a_write_share_the_next_one() -> None:
    writer = Writer()
    ended = writer.make("first", "b", "c", "d")
    assert [each.exception() for each in ended] == [None] * 4
    assert [sorted(batch) for batch in writer.batches] == [["first"], ["b", "c", "d"]]
    writer.writes.make(Named("alone"))
    assert writer.batches[2:] == [["alone"]]


def test_the_mistake_of_one_change_is_not_that_of_the_others() -> None:
    def refuse_c(batch: list[Named]) -> None:
        for change in batch:
            if change.name == "c":
                change.error = ValueError("c")

    ended = dict(zip("abcd", Writer(refuse_c).make(*"abcd"), strict=True))
    assert [name for name, each in ended.items() if each.exception() is not None] == ["c"]
    assert isinstance(ended["c"].exception(), ValueError)


@pytest.mark.parametrize("failure", [OSError("the disk failed"), KeyboardInterrupt()])
def test_a_write_that_fails_is_acknowledged_to_nobody_and_the_next_is_a_new_one(failure: BaseException) -> None:
    failures = [failure]

    def fail_once(_: list[Named]) -> None:
        if failures:
            raise failures.pop()

    writer = Writer(fail_once)
    ended = writer.make("a", "b", "c")
    assert [each.exception() for each in ended] == [None, failure, failure]
    writer.writes.make(Named("d"))
    assert writer.batches[-1] == ["d"]
