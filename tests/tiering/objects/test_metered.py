"""Meters count what was asked, whatever came of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    TornRecordError,
)
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore, MeterReading
from tierlog.tiering.objects.object_store import PendingUpload


@pytest.fixture
def faulty() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore(ManualClock()))


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def store(faulty: FaultyObjectStore, meter: Meter) -> MeteredObjectStore:
    return MeteredObjectStore(faulty, meter)


def test_every_method_is_one_request(store: MeteredObjectStore, meter: Meter) -> None:
    etag = store.put("k", b"12345").etag
    calls: list[Callable[[], object]] = [
        lambda: store.put("k", b"12345"),
        lambda: store.upload("k", [b"12", b"345"]),
        lambda: store.get("k"),
        lambda: store.get_if_changed("k", etag),
        lambda: store.get_range("k", 1, 3),
        lambda: store.head("k"),
        lambda: list(store.list("")),
        lambda: list(store.list_uploads("")),
        lambda: store.abort_upload(PendingUpload("k", "1", 0)),
        lambda: store.delete("k"),
    ]
    for number, call in enumerate(calls, start=2):
        call()
        assert meter.requests == number
    assert meter.failures == 0


def test_bytes_are_those_of_objects(store: MeteredObjectStore, meter: Meter) -> None:
    etag = store.put("k", b"12345").etag
    store.upload("up", iter([b"12", b"3"]))
    assert (meter.bytes_written, meter.bytes_read) == (8, 0)
    store.get("k")
    store.get_range("k", 1, 3)
    store.get_if_changed("k", etag)
    store.get_if_changed("k", "other")
    assert (meter.bytes_written, meter.bytes_read) == (8, 12)


def test_a_failed_request_is_a_request_and_moves_no_bytes(
    store: MeteredObjectStore, faulty: FaultyObjectStore, meter: Meter
) -> None:
    faulty.die()
    calls: list[Callable[[], object]] = [
        lambda: store.put("k", b"12345"),
        lambda: store.upload("k", [b"12345"]),
        lambda: store.get("k"),
        lambda: store.get_range("k", 0, 5),
        lambda: list(store.list("")),
    ]
    for call in calls:
        with pytest.raises(ObjectStoreUnavailableError):
            call()
    assert meter.reading() == MeterReading(requests=5, failures=5)


def test_answers_are_no_failures(store: MeteredObjectStore, meter: Meter) -> None:
    with pytest.raises(ObjectNotFoundError):
        store.get("k")
    store.put("k", b"")
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"", if_absent=True)
    assert meter.failures == 0
    with pytest.raises(TornRecordError):
        store.get_range("k", 0, 1)
    assert (meter.requests, meter.failures) == (4, 1)


def test_a_listing_is_counted_when_it_begins(store: MeteredObjectStore, meter: Meter) -> None:
    store.put("k", b"")
    listing = store.list("")
    assert meter.requests == 1
    next(listing)
    assert meter.requests == 2


def test_a_difference_of_readings_is_what_came_between(store: MeteredObjectStore, meter: Meter) -> None:
    store.put("k", b"12345")
    before = meter.reading()
    store.get("k")
    assert meter.reading() - before == MeterReading(requests=1, bytes_read=5)


def test_threads_lose_no_count(meter: Meter) -> None:
    def count(_: int) -> None:
        for _ in range(200):
            meter.count(requests=1, bytes_read=2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert (meter.requests, meter.bytes_read) == (1600, 3200)
