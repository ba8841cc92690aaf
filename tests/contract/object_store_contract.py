"""What every object store promises, as one suite that each backend runs through a subclass."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tiering.cold.object_store import ObjectInfo, ObjectStore
from tiering.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
    TornRecordError,
)

# The smallest part that S3 takes.
PART_BYTES = 5 << 20
_THREADS = 8


@dataclass(frozen=True)
class Backend:
    """A store and two ways around it, to the bytes that its server keeps."""

    store: ObjectStore
    raw_set: Callable[[str, bytes], None]
    raw_get: Callable[[str], bytes | None]


def race(count: int, attempt: Callable[[int], ObjectInfo]) -> list[int]:
    """Who won, of ``count`` threads that make their attempts at once; losers must say why."""
    barrier = threading.Barrier(count)

    def run(number: int) -> bool:
        barrier.wait()
        try:
            attempt(number)
        except PreconditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(count) as pool:
        won = list(pool.map(run, range(count)))
    return [number for number, winner in enumerate(won) if winner]


def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, after)]


class ObjectStoreContract:
    """Subclass it and give a fixture ``backend``."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[ObjectStore]:
        yield backend.store
        backend.store.close()

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
            bodies = [b"%d" % number * 1000 for number in range(_THREADS)]
            winners = race(_THREADS, lambda number: store.put(key, bodies[number], if_absent=True))  # noqa: B023
            assert len(winners) == 1
            assert store.get(key)[0] == bodies[winners[0]]

    def test_racing_if_match_has_one_winner(self, store: ObjectStore) -> None:
        etag = store.put("head", b"start").etag
        for turn in range(5):
            bodies = [b"%d %d" % (turn, number) * 1000 for number in range(_THREADS)]
            winners = race(_THREADS, lambda number: store.put("head", bodies[number], if_match=etag))  # noqa: B023
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

    # ------------------------------------------------------------------------------------------------ listing

    NAMES = (
        "a",
        "a-b",
        "b/c",
        "b/c2/d",
        "b-/d",
        "b0",
        "log/09",
        "log/1",
        "log/10",
        "z/ä",
        "z/ü/x",
        "z/𐍈",
        "z/\uff5e",
    )

    def test_list_is_in_byte_order(self, backend: Backend, store: ObjectStore) -> None:
        for name in reversed(self.NAMES):
            backend.raw_set(name, name.encode())
        expected = sorted(self.NAMES, key=lambda name: name.encode())
        assert keys(store) == expected
        assert [info.size_bytes for info in store.list("")] == [len(name.encode()) for name in expected]

    @pytest.mark.parametrize("prefix", ["a", "b", "b/", "b/c", "b/c2/", "log/1", "z/", "z/ü", "nothing", "nothing/"])
    def test_a_prefix_is_text_and_no_folder(self, store: ObjectStore, prefix: str) -> None:
        for name in self.NAMES:
            store.put(name, b"")
        assert keys(store, prefix) == sorted(name for name in self.NAMES if name.startswith(prefix))

    @pytest.mark.parametrize(
        ("prefix", "after"),
        [
            ("", "b/c"),
            ("", "b/"),
            ("", "b/c2/d"),
            ("log/", "log/1"),
            ("log/", "a"),
            ("log/", "zz"),
            ("z/", "z/ä"),
            ("", "zz"),
        ],
    )
    def test_after_is_exclusive(self, store: ObjectStore, prefix: str, after: str) -> None:
        for name in self.NAMES:
            store.put(name, b"")
        expected = sorted(name for name in self.NAMES if name.startswith(prefix) and name > after)
        assert keys(store, prefix, after) == expected

    def test_a_listing_longer_than_a_page_is_complete(self, backend: Backend, store: ObjectStore) -> None:
        names = [f"many/{number:05}" for number in range(1003)]
        for name in names:
            backend.raw_set(name, b"")
        assert keys(store, "many/") == names
        assert keys(store, "many/", names[0]) == names[1:]

    def test_writes_and_deletes_show_in_the_next_list(self, store: ObjectStore) -> None:
        store.put("a/1", b"")
        assert keys(store, "a/") == ["a/1"]
        store.upload("a/2", [b"x"])
        assert keys(store, "a/") == ["a/1", "a/2"]
        store.delete("a/1")
        assert keys(store, "a/") == ["a/2"]
        store.delete("a/2")
        assert keys(store) == []

    @pytest.mark.parametrize(
        "key",
        ["ключ/値/naïve", "a b/c+d/e%20f", "q?x=1&y=#z", "'quotes\"", "a\\b", "~$@!(),;:=", "é", "e\u0301"],
    )
    def test_keys_come_back_as_they_were(self, backend: Backend, store: ObjectStore, key: str) -> None:
        store.put(key, b"x")
        assert backend.raw_get(key) == b"x"
        assert store.get(key)[1].key == store.head(key).key == key
        assert keys(store) == [key]
        assert keys(store, key[:1]) == [key]
        store.delete(key)
        assert backend.raw_get(key) is None

    def test_the_longest_key_is_stored(self, store: ObjectStore) -> None:
        key = "/".join(["x" * 224] * 4)[:900]
        assert len(key) == 899
        store.put(key, b"x")
        assert keys(store) == [key]

    # ------------------------------------------------------------------------------------------------ uploads

    @pytest.mark.parametrize(
        "sizes",
        [
            [],
            [0],
            [1],
            [0, 1, 0],
            [PART_BYTES],
            [PART_BYTES, 1],
            [1, PART_BYTES],
            [2 * PART_BYTES + 7],
            [PART_BYTES // 3] * 7,
        ],
        ids=str,
    )
    def test_an_upload_joins_its_pieces(self, backend: Backend, store: ObjectStore, sizes: list[int]) -> None:
        pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        whole = b"".join(pieces)
        info = store.upload("up/x", iter(pieces))
        assert backend.raw_get("up/x") == whole
        assert info.size_bytes == len(whole) == store.head("up/x").size_bytes
        assert info.etag == store.head("up/x").etag
        assert info.crc32 in (None, zlib.crc32(whole))
        assert store.head("up/x").crc32 in (None, zlib.crc32(whole))
        assert store.get("up/x")[0] == whole
        assert list(store.list_uploads("")) == []

    def test_an_upload_replaces_an_object(self, store: ObjectStore) -> None:
        store.put("k", b"old")
        store.upload("k", [b"new ", b"one"])
        assert store.get("k")[0] == b"new one"

    @pytest.mark.parametrize("good_pieces", [0, 1, 3])
    def test_an_upload_whose_pieces_fail_leaves_nothing(self, store: ObjectStore, good_pieces: int) -> None:
        def pieces() -> Iterator[bytes]:
            for _ in range(good_pieces):
                yield bytes(PART_BYTES)
            raise OSError("the source is broken")

        with pytest.raises(OSError, match="the source is broken"):
            store.upload("up/x", pieces())
        with pytest.raises(ObjectNotFoundError):
            store.head("up/x")
        assert keys(store) == []
        assert list(store.list_uploads("")) == []

    def test_a_failed_upload_leaves_the_old_object(self, store: ObjectStore) -> None:
        def pieces() -> Iterator[bytes]:
            yield bytes(PART_BYTES)
            yield bytes(PART_BYTES)
            raise KeyboardInterrupt

        store.put("k", b"old")
        with pytest.raises(KeyboardInterrupt):
            store.upload("k", pieces())
        assert store.get("k")[0] == b"old"
        assert list(store.list_uploads("")) == []

    def test_an_upload_is_invisible_until_it_is_whole(self, store: ObjectStore) -> None:
        seen: list[str] = []

        def pieces() -> Iterator[bytes]:
            for _ in range(3):
                yield bytes(PART_BYTES)
            seen.extend(keys(store))

        store.upload("up/x", pieces())
        assert seen == []
        assert keys(store) == ["up/x"]

    def test_an_upload_that_is_aborted_from_outside_fails_and_leaves_nothing(self, store: ObjectStore) -> None:
        pending_keys: list[str] = []

        def pieces() -> Iterator[bytes]:
            for _ in range(3):
                yield bytes(PART_BYTES)
            for pending in store.list_uploads("up/"):
                pending_keys.append(pending.key)
                assert pending.started_ms > 0
                store.abort_upload(pending)
                store.abort_upload(pending)
            assert list(store.list_uploads("other/")) == []

        with pytest.raises(ObjectStoreUnavailableError):
            store.upload("up/x", pieces())
        assert pending_keys == ["up/x"]
        assert keys(store) == []
        assert list(store.list_uploads("")) == []

    # ------------------------------------------------------------------------------------------------ threads

    def test_threads_may_share_a_store(self, store: ObjectStore) -> None:
        def work(number: int) -> bytes:
            key = f"t/{number % 4}/{number}"
            store.put(key, b"%d" % number)
            data = store.get(key)[0]
            if number % 2:
                store.delete(key)
            return data

        with ThreadPoolExecutor(_THREADS) as pool:
            assert list(pool.map(work, range(40))) == [b"%d" % number for number in range(40)]
        assert keys(store) == sorted(f"t/{number % 4}/{number}" for number in range(0, 40, 2))

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
