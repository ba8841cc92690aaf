"""Look-ups beside a writer, and beside files that are sealed, compacted and published: each key once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.index.index_logs import numbered
from tests.support.index.local_indexes import hits, open_index
from tierlog.tiering.base.paths import StorePaths


@pytest.mark.parametrize("count", [1_500, pytest.param(6_000, marks=pytest.mark.slow)])
def test_each_key_is_found_once_by_every_look_up_that_begins_after_its_put(tmp_path: Path, count: int) -> None:
    log = numbered(count, step_ms=1)
    index = open_index(StorePaths(tmp_path), slots=16, items=64)
    put, written = 0, threading.Event()
    failures: list[str] = []
    seen: set[str] = set()

    def guarded(step: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            turn = 0
            while not written.is_set() and not failures:
                try:
                    step(turn)
                except Exception as error:
                    failures.append(repr(error))
                turn += 1

        return run

    def read(turn: int) -> None:
        known = put
        if known:
            number = (known - 1, turn * 7919 % known)[turn % 2]
            found = hits(index, f"k{number}-0")
            if found != [log.offsets[number]]:
                failures.append(f"key {number} of {known}: {found}")
            missing = index.searchable(0, log.offsets[known - 1])[1]
            if missing:
                failures.append(f"said to be missing: {missing}")

    def keep(turn: int) -> None:
        if turn % 5 == 0:
            index.put_aside()
        index.maintain()
        index.checkpoint()
        index.set_indexed_to(index.pending()[0].next or 0 if index.pending() else 0)
        seen.update(entry.state for entry in index.files())

    threads = [threading.Thread(target=guarded(step)) for step in (read, read, keep)]
    for thread in threads:
        thread.start()
    for number in range(1, count):
        index.on_records(log.range(end=log.offsets[number]))
        put = number
    written.set()
    for thread in threads:
        thread.join()
    for turn in (1, 2):  # however little the threads got of the processors
        keep(turn)
    assert failures == []
    assert {"writing", "compacted", "uploaded"} <= seen
    index.maintain()
    for number in range(0, count - 1, 11):
        assert hits(index, f"k{number}-0") == [log.offsets[number]]
