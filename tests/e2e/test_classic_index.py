"""The setting ``index.classic``: RocketMQ's index files lie beside ours and follow the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.rocketmq.classic_index import ClassicIndexFile
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.message.batch import Message

LONG_MAX = (1 << 63) - 1


def messages(start: int, count: int) -> list[Message]:
    return [Message("orders", b"x" * 500, keys=[f"k{i}"], tag="paid") for i in range(start, start + count)]


def classic_files(root: Path) -> list[ClassicIndexFile]:
    paths = sorted(path for path in (root / "index").iterdir() if path.is_file())
    return [ClassicIndexFile.open(LocalFileSystem(), path, 50, 100) for path in paths]


def test_off_it_leaves_no_trace(tmp_path: Path) -> None:
    engine = Store.open(tmp_path, settings=tiny_settings())
    engine.append(messages(0, 20))
    engine.close()
    assert classic_files(tmp_path) == []
    assert not (tmp_path / "tierlog" / "classic_index.json").exists()


def test_on_it_follows_stops_settings_archive_and_removal(tmp_path: Path) -> None:
    plain = tiny_settings(index__classic_slots=50, index__classic_items=100)
    settings = tiny_settings(index__classic=True, index__classic_slots=50, index__classic_items=100)
    engine = Store.open(tmp_path / "s", settings=plain, cold_url=f"file://{tmp_path}/cold")
    engine.append(messages(0, 150))
    engine.close()
    for start in (150, 300):
        engine = Store.open(tmp_path / "s", settings=settings)
        engine.append(messages(start, 150))
        engine.flush()
        assert engine.check() == []
        engine.close()
    files = classic_files(tmp_path / "s")
    assert [file.item_count for file in files] == [99] * 9 + [9]
    engine = Store.open(tmp_path / "s", settings=settings)
    engine.archive(everything=True, drop_hot=True)
    engine.append(messages(450, 1))
    engine.close()
    assert len(classic_files(tmp_path / "s")) == 1
    engine = Store.open(tmp_path / "s", settings=settings, read_only=True)
    assert engine.check() == []
    engine.close()


def test_check_names_items_that_are_missing_or_too_many(tmp_path: Path) -> None:
    settings = tiny_settings(index__classic=True, index__classic_slots=50, index__classic_items=100)
    engine = Store.open(tmp_path, settings=settings)
    engine.append(messages(0, 80))
    engine.flush()
    assert engine.check() == []
    first = classic_files(tmp_path)[0].path
    item = 40 + 4 * 50 + 20 * 7
    data = bytearray(first.read_bytes())
    data[item + 3] ^= 1
    with first.open("r+b") as file:
        file.write(data)
    missing, extra = engine.check()
    assert "1 items are missing" in missing
    assert "1 items belong to no key" in extra
    engine.close()


def test_capacity_that_does_not_fit_a_file_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="classic index file"):
        tiny_settings(index__classic_items=200_000_000)
