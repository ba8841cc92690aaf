"""A deep check told of objects as found wrong that only waited for the next sweep, and ended with exit status 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_GRACE_S = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryObjectStore:
    return MemoryObjectStore(clock)


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock, bucket: MemoryObjectStore) -> Iterator[Store]:
    settings = tiny_settings(cold__grace_ms=_GRACE_S * 1000)
    found = Store.open(tmp_path / "store", settings=settings, clock=clock, cold_url="memory://c", objects=bucket)
    yield found
    found.close()


def replaced(engine: Store) -> None:
    """Leave objects behind that are replaced by others."""
    engine.append([Message("t", b"x" * 100, [f"k{number}"], queue_id=0) for number in range(20)])
    engine.archive(everything=True)
    engine.removal.erase(Query("t", "k1"))
    while engine.removal.run_once():
        pass


def test_what_the_next_sweep_takes_is_no_finding(engine: Store, clock: ManualClock) -> None:
    replaced(engine)
    for waited_s in (_GRACE_S, _GRACE_S // 4 - 1, _GRACE_S // 4):
        clock.advance(waited_s * 1000)
        assert engine.check(deep=True) == []


def test_what_no_sweep_takes_is_one(engine: Store, clock: ManualClock, bucket: MemoryObjectStore) -> None:
    replaced(engine)
    bucket.put(f"{engine.store_id}/log/nobody", b"?")
    clock.advance(_GRACE_S * 1000)
    assert engine.check(deep=True) == []
    clock.advance(_GRACE_S * 500 + 1)
    found = engine.check(deep=True)
    assert any("left the manifest 36.0 h ago: the sweep should have taken it" in text for text in found)
    assert any("nobody" in text and "36.0 h old: the sweep should have taken it" in text for text in found)
