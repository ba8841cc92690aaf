"""The contract suite over the memory store and the wrappers around a store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.contract_base import Backend
from tests.contract.object_store_contract import FailedStoreContract, ObjectStoreContract
from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ObjectStoreUnavailableError, ThrottledError
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore
from tierlog.tiering.objects.object_store import ObjectStore


def around(wrap: Callable[[ObjectStore], ObjectStore]) -> Backend:
    """A wrapper of a memory store, and the memory of that store."""
    store = MemoryObjectStore(ManualClock())

    def raw_get(key: str) -> bytes | None:
        found = store._objects.get(key)
        return None if found is None else found[0]

    def raw_set(key: str, data: bytes) -> None:
        with store._lock:
            store._store(key, data)

    return Backend(wrap(store), raw_set, raw_get)


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return around(lambda store: store)

    def test_the_time_is_that_of_the_clock(self) -> None:
        clock = ManualClock(1_000)
        store = MemoryObjectStore(clock)
        store.put("k", b"")
        clock.advance(5)
        assert store.head("k").modified_ms == 1_000
        store.put("k", b"")
        assert store.head("k").modified_ms == 1_005


class TestMetered(ObjectStoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return around(lambda inner: MeteredObjectStore(inner, Meter()))


class TestFaultyWithoutFaults(ObjectStoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return around(FaultyObjectStore)


class TestFaulty(FailedStoreContract):
    @pytest.fixture
    def faulty(self) -> FaultyObjectStore:
        return FaultyObjectStore(MemoryObjectStore(ManualClock()))

    @pytest.fixture
    def failed_store(self, faulty: FaultyObjectStore) -> ObjectStore:
        faulty.die()
        return faulty

    def test_a_fault_strikes_its_operation_and_key_as_often_as_told(self, faulty: FaultyObjectStore) -> None:
        faulty.fail_before("put", "log/*", times=2)
        faulty.put("index/x", b"")
        for _ in range(2):
            with pytest.raises(ObjectStoreUnavailableError):
                faulty.put("log/x", b"")
        assert [info.key for info in faulty.inner.list("")] == ["index/x"]
        faulty.put("log/x", b"")

    def test_a_lost_answer_leaves_the_write_done(self, faulty: FaultyObjectStore) -> None:
        faulty.fail_after("put", error=ThrottledError("slow down"))
        with pytest.raises(ThrottledError):
            faulty.put("k", b"x", if_absent=True)
        assert faulty.get("k")[0] == b"x"

    def test_a_short_read_is_silent(self, faulty: FaultyObjectStore) -> None:
        faulty.put("k", b"12345")
        faulty.short_read("*", times=2, cut_bytes=2)
        assert faulty.get("k")[0] == b"123"
        assert faulty.get_range("k", 1, 4) == b"2"
        assert faulty.get("k")[0] == b"12345"

    def test_a_held_call_waits_for_its_release(self, faulty: FaultyObjectStore) -> None:
        hold = faulty.hold("put")
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(faulty.put, "k", b"x")
            hold.wait_until_reached()
            assert list(faulty.list("")) == []
            hold.release()
            assert result.result().key == "k"

    def test_healing_ends_everything(self, faulty: FaultyObjectStore) -> None:
        faulty.fail_before("*", times=None)
        faulty.die()
        faulty.heal()
        faulty.put("k", b"x")
        assert [(call.operation, call.key) for call in faulty.calls] == [("put", "k")]
