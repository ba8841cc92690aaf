"""``tierlog/head.json``: what the last head of the manifest that this store saw said.

It lets the store open, and hide what is erased, while the bucket is dead. Replaced atomically whenever a newer head is
seen, before what that head justifies is acknowledged.

::

    {"version": 7, "epoch": 1, "archived_to": 4096, "indexed_to": 4096, "cold_min": 0, "tombstones": [{…}]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiering.format.manifest import Head, Tombstone, tombstone_from_json
from tiering.fs import FileSystem
from tiering.json_file import read_json, replace_json
from tiering.paths import StorePaths


@dataclass(frozen=True, slots=True)
class SeenHead:
    """Watermarks, and the erasures to be obeyed; zeros and none before the first contact."""

    archived_to: int = 0
    indexed_to: int = 0
    tombstones: tuple[Tombstone, ...] = ()


def read_seen_head(fs: FileSystem, paths: StorePaths) -> SeenHead:
    """What the file says; a missing one is a store that never saw an archive."""
    return read_json(fs, paths.head_json, _decode) if fs.exists(paths.head_json) else SeenHead()


def _decode(document: Any) -> SeenHead:
    stones = document.get("tombstones", ())
    return SeenHead(
        int(document["archived_to"]), int(document["indexed_to"]), tuple(tombstone_from_json(stone) for stone in stones)
    )


def save_seen_head(fs: FileSystem, paths: StorePaths, head: Head, tombstones: Sequence[Tombstone]) -> None:
    """Replace the file; ``tombstones`` are those of the head and older ones of which hot copies remain."""
    document = {
        "version": head.version, "epoch": head.epoch, "archived_to": head.archived_to, "indexed_to": head.indexed_to,
        "cold_min": head.cold_min, "tombstones": [asdict(stone) for stone in tombstones],
    }  # fmt: skip
    replace_json(fs, paths.head_json, (json.dumps(document) + "\n").encode(), paths.tmp)
