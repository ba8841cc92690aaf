"""What every object store promises about uploads in pieces."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from tests.contract.contract_base import PART_BYTES, Backend, StoreUnderTest, keys
from tierlog.tiering.base.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from tierlog.tiering.objects.object_store import ObjectStore


class UploadsContract(StoreUnderTest):
    """Whole or nothing, whoever breaks it off."""

    #: A prefix under which the store lists a pending upload of ``up/x``.
    pending_prefix = "up/"

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
        assert list(store.list_uploads("")) == list(store.list_uploads("up/x")) == []

    def test_a_failed_upload_leaves_the_old_object(self, store: ObjectStore) -> None:
        def pieces() -> Iterator[bytes]:
            yield bytes(PART_BYTES)
            yield bytes(PART_BYTES)
            raise KeyboardInterrupt

        store.put("k", b"old")
        with pytest.raises(KeyboardInterrupt):
            store.upload("k", pieces())
        assert store.get("k")[0] == b"old"
        assert list(store.list_uploads("")) == list(store.list_uploads("k")) == []

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
            for pending in store.list_uploads(self.pending_prefix):
                pending_keys.append(pending.key)
                assert pending.started_ms > 0
                store.abort_upload(pending)
                store.abort_upload(pending)
            assert list(store.list_uploads("other/")) == []

        with pytest.raises(ObjectStoreUnavailableError):
            store.upload("up/x", pieces())
        assert pending_keys == ["up/x"]
        assert keys(store) == []
        assert list(store.list_uploads("")) == list(store.list_uploads("up/x")) == []
