"""Readers that waited for another one's fetch got what that one had made of the bytes: a frame, or its compressed form.

A pull and a look-up by key that met on one frame then told of damage that was not there.
"""

from __future__ import annotations

import threading
import time

from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.objects.memory import MemoryObjectStore


def test_who_waits_for_data_makes_its_own_of_it() -> None:
    store = FaultyObjectStore(MemoryObjectStore(ManualClock()))
    store.put("key", b"frame")
    cache = ArchiveCache(1 << 20)
    hold = store.hold("get_range")
    found: dict[str, object] = {}

    def first() -> None:
        found["bytes"] = ArchiveReader(store, cache).data("key", 0, 5, "frame", lambda raw: raw)

    def second() -> None:
        found["length"] = ArchiveReader(store, cache).data("key", 0, 5, "frame", len)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    hold.wait_until_reached()
    threads[1].start()
    for _ in range(6000):
        if cache.flights.joined:
            break
        time.sleep(0.01)
    hold.release()
    for thread in threads:
        thread.join(10)
    assert found == {"bytes": b"frame", "length": 5}
    assert len([call for call in store.calls if call.operation == "get_range"]) == 1
