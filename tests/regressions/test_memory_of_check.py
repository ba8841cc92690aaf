"""A check held every key of the log as Python objects: 500,000 items took 250 MB."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.index.index_items import put_so
from tests.support.stores.engines import tiny_settings
from tierlog.index.local.snapshot import IndexFileEntry
from tierlog.service.engine.checks import check_index
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path, settings=tiny_settings(index__items=20_000))
    yield opened
    opened.close()


def fill(engine: Store, segments: int) -> None:
    while len(engine._hot.log.bases()) < segments:
        engine.append([Message("t", b"x", [f"a{number}", f"b{number}"]) for number in range(100)])
    engine.flush()


def peak_of_check(engine: Store) -> int:
    tracemalloc.start()
    try:
        assert check_index(engine._hot, engine._index) == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_segment_however_many_there_are(engine: Store) -> None:
    fill(engine, 8)
    few = peak_of_check(engine)
    fill(engine, 64)
    assert peak_of_check(engine) < 1.3 * few


# ---- it finds what it found


def index_of(*entries: IndexFileEntry) -> Any:
    """An index that consists of these files."""
    return SimpleNamespace(snapshot=lambda: SimpleNamespace(files=entries, writing=()))


def test_what_is_not_in_the_index_is_missing(engine: Store) -> None:
    fill(engine, 3)
    (first, *_) = engine._hot.log.bases()
    keys = engine._index.files()[0].items
    assert check_index(engine._hot, index_of()) == [
        f"I3 index: {keys} keys are missing, the first of the record at {first}"
    ]


def test_an_item_that_is_there_twice(engine: Store) -> None:
    fill(engine, 3)
    (entry,) = engine._index.files()
    assert check_index(engine._hot, index_of(entry, entry)) == ["I3 index: an item is there twice"]


def test_an_item_of_another_record_is_one_too_many(engine: Store) -> None:
    fill(engine, 3)
    (entry,) = engine._index.files()
    item = entry.reader.all_items()[entry.items]
    right = int(item["offset"])
    item["offset"] = 5
    put_so(entry.reader)
    assert check_index(engine._hot, engine._index) == [
        f"I3 index: 1 keys are missing, the first of the record at {right}",
        "I3 index: 1 items belong to no key, the first at 5",
    ]


def test_another_hash_is_another_key(engine: Store) -> None:
    fill(engine, 2)
    (entry,) = engine._index.files()
    for name in ("hash", "hash_high"):
        item = entry.reader.all_items()[1]
        right = int(item[name])
        item[name] = right ^ 1
        put_so(entry.reader)
        assert len(check_index(engine._hot, engine._index)) == 2
        item[name] = right
        put_so(entry.reader)
    assert check_index(engine._hot, engine._index) == []
