"""A bucket on which compare-and-swap does not hold is refused, and what one writer may do there is safe for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.objects import broken_cas
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    FencedError,
    InvalidRequestError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
)
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore
from tierlog.tiering.objects.single_writer import QUIET_S, SingleWriterPuts

URL = "s3://bucket/x"


def opened(root: Path, objects: ObjectStore, clock: ManualClock, *, single_writer: bool = False, **how: bool) -> Store:
    settings = tiny_settings(cold__single_writer=single_writer)
    return Store.open(root, settings=settings, cold_url=URL, clock=clock, objects=objects, **how)  # type: ignore[arg-type]


def fill_and_archive(engine: Store) -> None:
    engine.append([Message("t", b"x" * 100, keys=(f"k{number}",)) for number in range(20)])
    engine.archive(everything=True)


@pytest.mark.parametrize(
    "broken",
    [broken_cas.IgnoresIfAbsent, broken_cas.IgnoresIfMatch, broken_cas.ChecksThenWrites, broken_cas.LosersWriteToo],
)
def test_a_bucket_without_compare_and_swap_is_refused_and_nothing_is_left(
    broken: type[MemoryObjectStore], tmp_path: Path
) -> None:
    clock = ManualClock()
    store = broken(clock)
    with pytest.raises(InvalidRequestError, match="compare-and-swap") as caught:
        opened(tmp_path / "store", store, clock)
    assert "cold.single_writer" in (caught.value.hint or "")
    assert store._objects == {}
    assert not (tmp_path / "store" / "tierlog" / "store.json").exists()


def test_a_safe_bucket_is_asked_once_for_a_volume(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyObjectStore(MemoryObjectStore(clock))
    opened(tmp_path / "store", store, clock).close()
    asked = [call for call in store.calls if call.key.startswith("cluster/")]
    assert 20 < len(asked) < 60
    opened(tmp_path / "store", store, clock).close()
    assert [call for call in store.calls if call.key.startswith("cluster/")] == asked
    opened(tmp_path / "other", store, clock).close()
    assert len([call for call in store.calls if call.key.startswith("cluster/")]) == 2 * len(asked)


def test_a_directory_a_memory_store_and_a_reader_are_not_asked(tmp_path: Path) -> None:
    clock = ManualClock()
    opened(tmp_path / "store", MemoryObjectStore(clock), clock).close()
    broken = FaultyObjectStore(broken_cas.IgnoresIfMatch(clock))
    (tmp_path / "store" / "tierlog" / "bucket.json").unlink()
    opened(tmp_path / "store", broken, clock, read_only=True).close()
    Store.open(
        tmp_path / "memory", settings=tiny_settings(), cold_url="memory://g", clock=clock, objects=broken
    ).close()
    assert {call.operation for call in broken.calls} <= {"get", "head", "list"}


def test_a_dead_bucket_opens_and_is_asked_before_the_first_commit(tmp_path: Path) -> None:
    clock = ManualClock()
    inner = broken_cas.IgnoresIfMatch(clock)
    store = FaultyObjectStore(inner)
    Store.open(tmp_path / "store", settings=tiny_settings(), clock=clock).close()  # one without an archive, till now
    store.die()
    engine = opened(tmp_path / "store", store, clock)
    try:
        store.revive()
        engine.append([Message("t", b"x")])
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="compare-and-swap"):
                engine.archive(everything=True)
        assert inner._objects == {}
    finally:
        engine.close()


@pytest.mark.parametrize("broken", [broken_cas.IgnoresIfAbsent, broken_cas.IgnoresIfMatch, broken_cas.ChecksThenWrites])
def test_one_writer_archives_to_a_broken_bucket_if_told(broken: type[MemoryObjectStore], tmp_path: Path) -> None:
    clock = ManualClock()
    store = broken(clock)
    for _ in range(3):
        engine = opened(tmp_path / "store", store, clock, single_writer=True)
        fill_and_archive(engine)
        assert engine.check(deep=True) == []
        engine.close()


def test_another_volume_does_not_take_over_a_bucket_for_one_writer(tmp_path: Path) -> None:
    clock = ManualClock()
    store = broken_cas.IgnoresIfMatch(clock)
    settings = tiny_settings(cold__single_writer=True)

    def other() -> Store:
        return Store.open(tmp_path / "other", settings=settings, cold_url=URL, store_id="s", clock=clock, objects=store)

    engine = Store.open(tmp_path / "store", settings=settings, cold_url=URL, store_id="s", clock=clock, objects=store)
    fill_and_archive(engine)
    with pytest.raises(Exception, match="belongs to volume"):
        other()
    engine.close()


@pytest.mark.parametrize("broken", [broken_cas.IgnoresIfMatch, broken_cas.LosersWriteToo])
def test_a_restore_from_a_broken_bucket_takes_nothing_over_unless_told(
    broken: type[MemoryObjectStore], tmp_path: Path
) -> None:
    clock = ManualClock()
    store = broken(clock)
    engine = opened(tmp_path / "a", store, clock, single_writer=True)
    fill_and_archive(engine)
    engine.close()
    clock.advance(int(QUIET_S * 1000))
    (head,) = [key for key in store._objects if key.endswith("/head")]
    before = store._objects[head]
    with pytest.raises(InvalidRequestError, match="compare-and-swap"):
        opened(tmp_path / "b", store, clock, restore=True)
    assert store._objects[head] == before
    again = opened(tmp_path / "b", store, clock, single_writer=True, restore=True)
    assert len(again.pull("t", 0, 0, 32).messages) == 5
    fill_and_archive(again)
    assert again.check(deep=True) == []
    again.close()


class _Marks:
    def __init__(self) -> None:
        self.marked = False

    def __call__(self, under_way: bool) -> None:
        self.marked = under_way


class _LatePuts(broken_cas.IgnoresIfMatch):
    """Loses the answer to a put and carries it out only when told: the write that comes back from the past."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.lose = False
        self.held: list[tuple[str, bytes]] = []

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        if self.lose:
            self.held.append((key, data))
            raise ObjectStoreUnavailableError("no answer", path=key)
        return super().put(key, data)

    def carry_out(self) -> None:
        for key, data in self.held:
            super().put(key, data)
        self.held.clear()


def test_a_write_from_the_past_sets_nothing_back() -> None:
    """While it may still arrive nothing is written; what is written then knows whether it did."""
    for restarted in (False, True):
        clock, marks = ManualClock(), _Marks()
        store = _LatePuts(clock)
        writer = SingleWriterPuts(store, clock, marks, marked=False)
        first = writer("head", b"1", if_absent=True, if_match=None)
        store.lose = True
        with pytest.raises(ObjectStoreUnavailableError):
            writer("head", b"2", if_absent=False, if_match=first.etag)
        store.lose = False
        assert marks.marked
        if restarted:  # killed: the next process knows from the mark alone
            writer = SingleWriterPuts(store, clock, marks, marked=marks.marked)
        for _ in range(3):
            clock.advance(int(QUIET_S / 4) * 1000)
            with pytest.raises(ObjectStoreUnavailableError, match="under way"):
                writer("head", b"2b", if_absent=False, if_match=first.etag)
        store.carry_out()
        assert store.get("head")[0] == b"2"
        clock.advance(int(QUIET_S / 4) * 1000 + 1000)
        with pytest.raises(PreconditionFailedError):
            writer("head", b"2b", if_absent=False, if_match=first.etag)
        writer("head", b"3", if_absent=False, if_match=store.head("head").etag)
        assert store.get("head")[0] == b"3"
        assert not marks.marked


def test_a_second_writer_is_noticed_by_reading_back() -> None:
    clock = ManualClock()

    class TwoWriters(MemoryObjectStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
            super().put(key, data)
            return super().put(key, b"of the other")

    writer = SingleWriterPuts(TwoWriters(clock), clock, _Marks(), marked=False)
    with pytest.raises(FencedError):
        writer("head", b"mine", if_absent=True, if_match=None)


def test_conditions_are_kept_by_looking() -> None:
    clock = ManualClock()
    writer = SingleWriterPuts(broken_cas.IgnoresIfAbsent(clock), clock, _Marks(), marked=False)
    stale = writer("k", b"1", if_absent=True, if_match=None).etag
    writer("k", b"2", if_absent=False, if_match=stale)
    for condition in ({"if_absent": True, "if_match": None}, {"if_absent": False, "if_match": stale}):
        with pytest.raises(PreconditionFailedError):
            writer("k", b"3", **condition)
