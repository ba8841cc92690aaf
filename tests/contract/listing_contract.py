"""What every object store promises about listings."""

from __future__ import annotations

import pytest

from tests.contract.contract_base import Backend, StoreUnderTest, keys
from tierlog.tiering.objects.object_store import ObjectStore


class ListingContract(StoreUnderTest):
    """Order, prefixes, positions, pages, and keys that come back as they were."""

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
