"""Read-ahead of thin queues asks for pages, and changes nothing of what is read, whatever a unit says."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import LocalFileSystem, is_in_memory, will_need
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.queue_unit import UNIT_DTYPE
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.batch import Message, MessageBatch
from tierlog.tiering.read import hot_queue
from tierlog.tiering.read.hot_queue import HotQueue

Stretch = tuple[int, int]
MESSAGES, QUEUES = 160, 8


@pytest.fixture
def hot(tmp_path: Path) -> HotStore:
    """A log of two segments whose queues are thin: neighbours lie 40 KB from each other."""
    for name in ("tmp", "tierlog", "commitlog", "consumequeue"):
        (tmp_path / name).mkdir()
    hot = HotStore(
        LocalFileSystem(), StorePaths(tmp_path), ManualClock(),
        HotOptions(segment_bytes=512 << 10, default_queues=QUEUES), bytes(8), published_below=0,
    )  # fmt: skip
    hot.recover([])
    for number in range(MESSAGES):
        message = Message("t", b"%d " % number * 1000, queue_id=number % QUEUES)
        hot.append(MessageBatch.of([message], now_ms=number, max_body_bytes=1 << 20), Durability.ASYNC)
    hot.flush()
    hot.dispatch()
    return hot


def asked_for(monkeypatch: pytest.MonkeyPatch, *, is_there: bool) -> list[Stretch]:
    """The stretches that the kernel is asked for from now on, where pages are in memory or are not."""
    asked: list[Stretch] = []

    def note(mapped: np.ndarray, stretches: object) -> None:
        found = list(stretches)  # type: ignore[call-overload]
        asked.extend(found)
        will_need(mapped, found)

    monkeypatch.setattr(hot_queue, "will_need", note)
    monkeypatch.setattr(hot_queue, "is_in_memory", lambda *_: is_there)
    return asked


def bodies(hot: HotStore) -> list[bytes]:
    with HotQueue.opened(hot, "t", 3) as queue:
        found = [message for _, message in queue.messages(0, 32, None, Erasures(), "store")]
    return [message.record.body for message in found if message is not None]


@pytest.mark.parametrize("is_there", [True, False])
def test_the_same_messages_come_whether_the_log_is_in_memory_or_not(
    hot: HotStore, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    asked = asked_for(monkeypatch, is_there=is_there)
    assert bodies(hot) == [b"%d " % number * 1000 for number in range(3, MESSAGES, QUEUES)]
    assert len(asked) == (0 if is_there else MESSAGES // QUEUES)


def test_records_that_lie_beside_each_other_are_left_to_the_kernel(
    hot: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_for(monkeypatch, is_there=False)
    with HotQueue.opened(hot, "t", 3) as queue:
        units = np.zeros(20, UNIT_DTYPE)
        units["physical_offset"], units["size"] = np.arange(20) * 500, 500
        queue.read_ahead(units)
    assert asked == []


@pytest.mark.parametrize("offset", [0, 1 << 40, (1 << 63) - 1, -1, -(1 << 40)])
@pytest.mark.parametrize("size", [0, 1, (1 << 31) - 1, -5])
def test_units_that_say_anything_raise_nothing(
    hot: HotStore, monkeypatch: pytest.MonkeyPatch, offset: int, size: int
) -> None:
    asked_for(monkeypatch, is_there=False)
    with HotQueue.opened(hot, "t", 3) as queue:
        units = queue.raw_units(0, 20).copy()
        units["physical_offset"][5:15], units["size"][5:15] = offset, size
        queue.read_ahead(units)
        queue.read_ahead(units[::-1])
        queue.read_ahead(units[5:15])


def test_pages_outside_of_a_mapping_are_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * mmap.PAGESIZE))
    mapped = LocalFileSystem().map_read(tmp_path / "file")
    will_need(mapped, [(-5, 10), (0, 1 << 40), (1 << 40, 1 << 41), (7, 3), (2 * mmap.PAGESIZE, 3 * mmap.PAGESIZE)])
    assert not mapped.any()
    assert is_in_memory(mapped, 0)
    assert is_in_memory(mapped, -1)
    assert is_in_memory(mapped, 1 << 40)
