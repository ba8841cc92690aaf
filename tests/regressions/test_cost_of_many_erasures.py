"""Each erasure made every read and every archived segment slower, closed ones too: each record was asked once for each.

What is counted here is how often a key is hashed and a record decoded, which is what took the time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.lifecycle import archiver, tombstones
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

COUNT = 200


class StoreWorld:
    """An engine with ``COUNT`` messages, each with a key of its own, in one queue."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.root, self.bucket = root, MemoryObjectStore(self.clock)
        self.open()
        self.append(COUNT)

    def open(self) -> None:
        self.engine = Store.open(
            self.root, settings=tiny_settings(), clock=self.clock, cold_url="memory://c", objects=self.bucket
        )

    def append(self, count: int) -> None:
        self.engine.append([Message("t", b"%d" % number, [f"k{number}"], queue_id=0) for number in range(count)])

    def erase(self, keys: range) -> None:
        for number in keys:
            self.engine.removal.erase(Query("t", f"k{number}"))

    def carry_out(self) -> None:
        while self.engine.removal.run_once():
            pass

    @property
    def open_erasures(self) -> int:
        head = self.engine._manifest.head if self.engine._manifest else None
        return len(head.tombstones) if head else 0

    def known(self) -> list[Any]:
        found: list[Any] = json.loads((self.root / "tierlog" / "head.json").read_text())["tombstones"]
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreWorld]:
    found = StoreWorld(tmp_path / "store")
    yield found
    found.engine.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often keys were hashed and records decoded for a segment that is archived."""
    calls: Counter[str] = Counter()

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **more)

        return call

    hashed = noting("hashed", hashlib.blake2b)

    def blake2b(*arguments: Any, **more: Any) -> Any:
        return hashed(*arguments, **more) if more.get("key") else hashlib_blake2b(*arguments, **more)

    hashlib_blake2b = hashlib.blake2b
    monkeypatch.setattr(hashlib, "blake2b", blake2b)
    monkeypatch.setattr(archiver, "decode_record", noting("decoded", decode_record))
    return calls


def shown(store: StoreWorld) -> set[bytes]:
    answer = store.engine.query(Query("t", limit=1000))
    assert answer.coverage.complete
    return {message.record.body for message in answer.messages}


def test_a_record_is_hashed_as_often_however_many_erasures_are_open(store: StoreWorld, counted: Counter[str]) -> None:
    costs = []
    for keys in (range(1), range(1, 30)):
        store.erase(keys)
        counted.clear()
        erased = {b"%d" % number for number in range(keys.stop)}
        assert shown(store) == {b"%d" % number for number in range(COUNT)} - erased
        pulled = store.engine.pull("t", 0, 0, 1000)
        assert len(pulled.messages) == COUNT - len(erased)
        costs.append(counted["hashed"])
    assert costs == [2 * COUNT, 2 * COUNT], "once a record in the query, once in the pull"


def test_closed_erasures_of_which_hot_copies_remain_cost_no_more(store: StoreWorld, counted: Counter[str]) -> None:
    store.erase(range(20))
    store.engine.archive(everything=True)
    store.carry_out()
    assert (store.open_erasures, len(store.known())) == (0, 20)
    store.engine.close()
    store.open()
    counted.clear()
    assert len(shown(store)) == COUNT - 20
    assert counted["hashed"] == COUNT


def test_records_on_their_way_to_the_archive_are_decoded_once(store: StoreWorld, counted: Counter[str]) -> None:
    store.erase(range(40))
    counted.clear()
    store.engine.archive(everything=True, drop_hot=True)
    assert counted["decoded"] == COUNT
    assert counted["hashed"] <= COUNT + 1
    assert len(shown(store)) == COUNT - 40


def test_what_came_after_all_erasures_costs_nothing(store: StoreWorld, counted: Counter[str]) -> None:
    store.erase(range(COUNT))
    store.append(COUNT)
    counted.clear()
    assert len(shown(store)) == COUNT
    assert counted["hashed"] == COUNT, "only the records below the end of the erasures"


def test_a_closed_erasure_is_forgotten_with_its_last_hot_copy(store: StoreWorld) -> None:
    store.erase(range(5))
    store.engine.archive(everything=True)
    store.carry_out()
    assert len(store.known()) == 5
    store.engine.archive(drop_hot=True)
    assert store.known() == []
    assert len(shown(store)) == COUNT - 5
    store.engine.close()
    store.open()
    assert len(shown(store)) == COUNT - 5


def test_erasures_that_follow_each_other_share_a_salt_for_so_many_keys(
    store: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "MAX_KEYS", 10)
    head = store.engine._manifest
    assert head is not None
    for number in range(9):
        store.engine.removal.erase(Query("t", f"k{number}"))
    found = head.head.tombstones if head.head else ()
    assert len({stone.salt for stone in found}) == 1
    assert len({stone.key_hash for stone in found}) == 9
    salts = tombstones._shared_salt(found, 1), tombstones._shared_salt(found, 2)
    assert salts == (found[0].salt, None)
