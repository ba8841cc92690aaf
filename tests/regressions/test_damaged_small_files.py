"""A small file of a store that was damaged ended every command in a traceback; it is named as damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.consumer_groups import GroupOffsets
from tierlog.tiering.hot.delivery_states import DeliveryStates
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.lifecycle.last_head import read_last_head

PATHS = StorePaths(ROOT)
READERS: dict[str, Callable[[FileSystem], object]] = {
    "groups.json": lambda fs: GroupOffsets(fs, PATHS, "s", lambda: None),
    "deliveries.json": lambda fs: DeliveryStates(fs, PATHS, lambda: None),
    "topics.json": lambda fs: TopicRegistry(fs, PATHS, 8),
    "store.json": lambda fs: StoreIdentity.read(fs, PATHS),
    "head.json": lambda fs: read_last_head(fs, PATHS),
}
DAMAGE = (
    b"", b"{", b"\xff", b"null", b"[]", b"7", b'{"format": 1}', b"[" * 100_000,
    b'{"format": 1, "next_id": 2, "topics": 5, "groups": 5, "head_open_ids": 5}',
    b'{"format": 1, "next_id": Infinity, "topics": [], "archived_to": Infinity, "indexed_to": 0, "groups": [[]]}',
    b'{"format": 1, "next_id": 2, "topics": [{"name": "a"}], "groups": [{"name": "a", "offsets": []}]}',
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_small_file_is_named_as_damage(name: str, damage: bytes) -> None:
    fs = CrashFileSystem()
    for folder in (PATHS.tmp, PATHS.tierlog):
        fs.make_dirs(folder)
    replace_file(fs, PATHS.tierlog / name, damage, PATHS.tmp)
    with pytest.raises(CorruptionError, match=name):
        READERS[name](fs)
