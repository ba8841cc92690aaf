"""What every object store promises, as one suite that each backend runs through a subclass."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.contract_base import PART_BYTES, THREADS, Backend, keys, race
from tests.contract.listing_contract import ListingContract
from tests.contract.uploads_contract import UploadsContract
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
    TornRecordError,
)
from tierlog.tiering.objects.object_store import ObjectStore


class ObjectStoreContract(ListingContract, UploadsContract):
    """Subclass it and give a fixture ``backend``."""

    # ------------------------------------------------------------------------------------------ whole objects

    def test_put_stores_the_bytes(self, backend: Backend, store: ObjectStore) -> None:
        info = store.put("a/b", b"hello")
        assert backend.raw_get("a/b") == b"hello"
        assert (info.key, info.size_bytes) == ("a/b", 5)

    def test_get_gives_the_bytes_and_describes_them(self, backend: Backend, store: ObjectStore) -> None:
        backend.raw_set("a/b", b"hello")
        data, info = store.get("a/b")
        assert data == b"hello"
        assert (info.key, info.size_bytes) == ("a/b", 5)
        assert info == store.head("a/b")

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        assert store.get("empty")[0] == b""
        assert store.head("empty").size_bytes == 0

    def test_the_last_plain_put_wins(self, store: ObjectStore) -> None:
        store.put("k", b"one")
        store.put("k", b"second")
        assert store.get("k")[0] == b"second"

    def test_every_description_has_the_same_etag(self, store: ObjectStore) -> None:
        put = store.put("k", b"data")
        (listed,) = store.list("k")
        assert put.etag == store.head("k").etag == store.get("k")[1].etag == listed.etag

    def test_overwriting_changes_the_etag(self, store: ObjectStore) -> None:
        first = store.put("k", b"one")
        second = store.put("k", b"two")
        assert first.etag != second.etag
        assert store.head("k").etag == second.etag

    def test_a_crc32_is_given_only_if_it_is_right(self, store: ObjectStore) -> None:
        data = bytes(range(256))
        put = store.put("k", data)
        for info in (put, store.head("k"), store.get("k")[1], *store.list("k")):
            assert info.crc32 in (None, zlib.crc32(data))

    def test_the_time_of_a_put_is_near_that_of_its_description(self, store: ObjectStore) -> None:
        put = store.put("k", b"data")
        # Servers tell whole seconds, by a clock that moves on between the two answers.
        assert abs(store.head("k").modified_ms - put.modified_ms) <= 5_000

    def test_the_servers_clock_is_the_one_of_its_descriptions(self, store: ObjectStore) -> None:
        before = store.put("a", b"x").modified_ms
        assert -2_000 <= store.now_ms() - before <= 60_000

    def test_get_if_changed_is_silent_until_it_changes(self, store: ObjectStore) -> None:
        etag = store.put("k", b"one").etag
        assert store.get_if_changed("k", etag) is None
        store.put("k", b"two")
        found = store.get_if_changed("k", etag)
        assert found is not None
        assert found[0] == b"two"
        assert found[1] == store.head("k")

    def test_delete_may_be_repeated(self, backend: Backend, store: ObjectStore) -> None:
        backend.raw_set("a/b", b"x")
        store.delete("a/b")
        store.delete("a/b")
        assert backend.raw_get("a/b") is None
        assert keys(store) == []

    # --------------------------------------------------------------------------------------------- conditions

    def test_put_if_absent_refuses_an_existing_object(self, store: ObjectStore) -> None:
        store.put("k", b"first", if_absent=True)
        with pytest.raises(PreconditionFailedError):
            store.put("k", b"second", if_absent=True)
        assert store.get("k")[0] == b"first"

    def test_put_if_absent_works_again_after_delete(self, store: ObjectStore) -> None:
        store.put("k", b"first", if_absent=True)
        store.delete("k")
        store.put("k", b"second", if_absent=True)
        assert store.get("k")[0] == b"second"

    def test_put_if_match_replaces_only_the_version_named(self, store: ObjectStore) -> None:
        stale = store.put("k", b"one").etag
        fresh = store.put("k", b"two", if_match=stale).etag
        with pytest.raises(PreconditionFailedError):
            store.put("k", b"three", if_match=stale)
        assert store.get("k")[0] == b"two"
        store.put("k", b"three", if_match=fresh)
        assert store.get("k")[0] == b"three"

    def test_put_if_match_on_a_missing_object_is_a_failed_condition(self, store: ObjectStore) -> None:
        etag = store.put("k", b"one").etag
        store.delete("k")
        with pytest.raises(PreconditionFailedError):
            store.put("k", b"two", if_match=etag)
        with pytest.raises(ObjectNotFoundError):
            store.head("k")

    def test_both_conditions_together_are_refused(self, store: ObjectStore) -> None:
        with pytest.raises(InvalidRequestError):
            store.put("k", b"", if_absent=True, if_match="x")

    def test_racing_if_absent_has_one_winner(self, store: ObjectStore) -> None:
        for turn in range(5):
            key = f"race/{turn}"
            bodies = [b"%d" % number * 1000 for number in range(THREADS)]
            winners = race(THREADS, lambda number: store.put(key, bodies[number], if_absent=True))  # noqa: B023
            assert len(winners) == 1
            assert store.get(key)[0] == bodies[winners[0]]

    def test_racing_if_match_has_one_winner(self, store: ObjectStore) -> None:
        etag = store.put("head", b"start").etag
        for turn in range(5):
            bodies = [b"%d %d" % (turn, number) * 1000 for number in range(THREADS)]
            winners = race(THREADS, lambda number: store.put("head", bodies[number], if_match=etag))  # noqa: B023
            assert len(winners) == 1
            data, info = store.get("head")
            assert data == bodies[winners[0]]
            etag = info.etag

    # ------------------------------------------------------------------------------------------------ missing

    def test_what_is_missing_is_not_found(self, store: ObjectStore) -> None:
        store.put("there", b"x")
        calls: list[Callable[[], object]] = [
            lambda: store.get("missing"),
            lambda: store.head("missing"),
            lambda: store.get_range("missing", 0, 1),
            lambda: store.get_range("missing", 0, 0),
            lambda: store.get_if_changed("missing", '"0"'),
            lambda: store.head("there/below"),
        ]
        for call in calls:
            with pytest.raises(ObjectNotFoundError):
                call()

    def test_a_folder_is_not_an_object(self, store: ObjectStore) -> None:
        store.put("folder/x", b"x")
        with pytest.raises(ObjectNotFoundError):
            store.get("folder")
        with pytest.raises(ObjectNotFoundError):
            store.head("folder")
        store.delete("folder")
        assert keys(store) == ["folder/x"]

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "./a", "a/../b", "a\0b", "a\nb", "\ud800", "x" * 256, "x/" * 450 + "x"],
        ids=repr,
    )
    def test_bad_keys_are_refused_by_every_method(self, store: ObjectStore, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put(key, b""),
            lambda: store.upload(key, [b""]),
            lambda: store.get(key),
            lambda: store.get_if_changed(key, "x"),
            lambda: store.get_range(key, 0, 0),
            lambda: store.head(key),
            lambda: store.delete(key),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError):
                call()
        assert keys(store) == []

    # ------------------------------------------------------------------------------------------------- ranges

    @pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 1), (9, 10), (3, 7), (0, 0), (5, 5), (10, 10)])
    def test_a_range_is_half_open(self, store: ObjectStore, start: int, end: int) -> None:
        store.put("k", b"0123456789")
        assert store.get_range("k", start, end) == b"0123456789"[start:end]

    @pytest.mark.parametrize(("start", "end"), [(0, 11), (9, 11), (10, 11), (11, 11), (20, 30)])
    def test_a_range_outside_of_the_object_is_torn(self, store: ObjectStore, start: int, end: int) -> None:
        store.put("k", b"0123456789")
        with pytest.raises(TornRecordError):
            store.get_range("k", start, end)

    def test_any_byte_of_an_empty_object_is_torn(self, store: ObjectStore) -> None:
        store.put("k", b"")
        assert store.get_range("k", 0, 0) == b""
        with pytest.raises(TornRecordError):
            store.get_range("k", 0, 1)

    @pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (-5, -1)])
    def test_what_is_no_range_is_refused(self, store: ObjectStore, start: int, end: int) -> None:
        store.put("k", b"0123456789")
        with pytest.raises(InvalidRequestError):
            store.get_range("k", start, end)

    # ------------------------------------------------------------------------------------------------ threads

    def test_threads_may_share_a_store(self, store: ObjectStore) -> None:
        def work(number: int) -> bytes:
            key = f"t/{number % 4}/{number}"
            store.put(key, b"%d" % number)
            data = store.get(key)[0]
            if number % 2:
                store.delete(key)
            return data

        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(work, range(40))) == [b"%d" % number for number in range(40)]
        assert keys(store) == sorted(f"t/{number % 4}/{number}" for number in range(0, 40, 2))

    def test_threads_read_ranges_of_one_object_and_each_gets_its_own(self, store: ObjectStore) -> None:
        data = b"".join(number.to_bytes(4, "big") for number in range(5000))
        store.put("k", data)

        def read(number: int) -> bool:
            start = number * 379 % 19_000
            return store.get_range("k", start, start + 700) == data[start : start + 700]

        with ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(read, range(60)))

    def test_close_may_be_repeated(self, store: ObjectStore) -> None:
        store.close()
        store.close()


class FailedStoreContract:
    """What a store owes while its server is gone; subclass it and give a fixture ``failed_store``."""

    @pytest.fixture
    def failed_store(self) -> ObjectStore:
        raise NotImplementedError

    def test_a_failed_store_is_not_an_empty_one(self, failed_store: ObjectStore) -> None:
        store = failed_store
        calls: list[Callable[[], object]] = [
            lambda: store.get("k"),
            lambda: store.head("k"),
            lambda: store.get_range("k", 0, 1),
            lambda: store.get_if_changed("k", "x"),
            lambda: list(store.list("")),
            lambda: list(store.list("a/b")),
            lambda: list(store.list_uploads("")),
        ]
        for call in calls:
            with pytest.raises(StoreError) as caught:
                call()
            assert caught.type is ObjectStoreUnavailableError
            assert caught.value.retryable

    def test_a_failed_store_takes_nothing(self, failed_store: ObjectStore) -> None:
        store = failed_store
        calls: list[Callable[[], object]] = [
            lambda: store.put("k", b"x"),
            lambda: store.put("k", b"x", if_absent=True),
            lambda: store.put("k", b"x", if_match="e"),
            lambda: store.upload("k", [b"x"]),
            lambda: store.upload("k", [bytes(PART_BYTES)] * 2),
            lambda: store.delete("k"),
        ]
        for call in calls:
            with pytest.raises(StoreError) as caught:
                call()
            assert caught.type is ObjectStoreUnavailableError
