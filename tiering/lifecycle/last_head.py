"""``tierlog/head.json``: the contents of the last head of the manifest that this store saw.

It lets the store open, and hide what is erased, while the bucket is dead. Replaced atomically whenever a newer head is
seen, before what that head justifies is acknowledged.

::

    {"version": 7, "epoch": 1, "archived_to": 4096, "indexed_to": 4096, "cold_min": 0, "tombstones": [{…}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.manifest import Head, Tombstone, tombstone_from_json


@dataclass(frozen=True, slots=True)
class LastHead:
    """Watermarks, and the erasures to be obeyed; zeros and none before the first contact."""

    version: int = 0
    epoch: int = 0
    archived_to: int = 0
    indexed_to: int = 0
    cold_min: int = 0
    tombstones: tuple[Tombstone, ...] = ()


def _decode(document: Any) -> LastHead:
    tombstones = document.get("tombstones", ())
    return LastHead(
        int(document.get("version", 0)), int(document.get("epoch", 0)),
        int(document["archived_to"]), int(document["indexed_to"]), int(document.get("cold_min", 0)),
        tuple(tombstone_from_json(tombstone) for tombstone in tombstones),
    )  # fmt: skip


#: It has no format of its own.
_FILE = JsonFile(_decode, asdict, formats=())


def read_last_head(fs: FileSystem, paths: StorePaths) -> LastHead:
    """Reads the file; a missing one is a store that never saw an archive."""
    return _FILE.read(fs, paths.head_json) or LastHead()


def save_last_head(fs: FileSystem, paths: StorePaths, head: Head, tombstones: Sequence[Tombstone]) -> None:
    """Replaces the file; ``tombstones`` are those of the head and older ones of which hot copies remain."""
    seen = LastHead(
        head.version, head.epoch, head.archived_to, head.indexed_to, head.cold_min, tuple(tombstones)
    )  # fmt: skip
    _FILE.replace(fs, paths.head_json, seen, paths.tmp)
