"""``tierlog/index.json``: how far the key index is durable, so that opening goes on there instead of deriving it all.

::

    {"format": 1, "generation": 7, "blank": [[0, 4096]], "full": [],
     "writing": null | {"begin_ms": 1700000000000, "generation": 7, "first": 4096, "next": 8192, "slots": 100,
                        "items": 400, "layout": 2, "item_count": 12, "items_crc": 305419896,
                        "bounds": [min_store_ms, max_store_ms, min_born_ms, max_born_ms]}}

``blank`` are stretches of the log without items. ``writing`` is the file being written with the items that were
flushed: they never change and are put in order, so a file in ``index/writing`` is as good as its first ``item_count``
items; slots and chains are linked again. ``items_crc`` is the CRC-32 of all bytes of these items, as they were put: a
file that has others is damaged, and one of which it is not known, as an older version wrote this, is derived again.
``full``, which may be missing, are files in the same form that take no more keys and are not sealed yet; they lie in
the same folder, and all their items are flushed. ``generation`` tells a file
from another of the same name: every file made has a higher one, in the first eight bytes of item 0 until it is sealed.

Written after what it speaks of was flushed. Killed before that: the one before stands, and a little more of the log
is derived again. Missing or unreadable: all of it that no sealed file covers. Sealing writes over item 0, and so over
the generation: it begins after the file stands here under ``full``, and a file of that name whose item 0 says just what
sealing would have written is the one. Killed before the sealed file has its new name: its chains are linked again and
it is sealed again, with nothing derived. Killed after it: the name here leads nowhere, and the sealed file counts.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.types import TimeBounds

_LOG = logging.getLogger("tierlog")

Stretch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WritingFile:
    """A file that is not sealed, as far as it is durable: items 1 to ``item_count`` of records in ``[first, next)``."""

    begin_ms: int
    generation: int
    first: int
    next: int
    slots: int
    items: int
    layout: int
    item_count: int
    items_crc: int | None
    bounds: TimeBounds


@dataclass(frozen=True, slots=True)
class IndexCheckpoint:
    """The content of ``index.json``."""

    generation: int = 0
    blank: tuple[Stretch, ...] = ()
    writing: WritingFile | None = None
    full: tuple[WritingFile, ...] = ()

    @classmethod
    def read(cls, fs: FileSystem, path: Path) -> IndexCheckpoint:
        """Reads the checkpoint; gives an empty one for a missing or damaged file, since all of it can be derived."""
        try:
            return _FILE.read(fs, path) or cls()
        except CorruptionError:
            _LOG.exception("the index's checkpoint cannot be read; the index is derived again")
            return cls()

    def save(self, fs: FileSystem, path: Path, tmp_dir: Path) -> None:
        """Makes this checkpoint the durable one."""
        _FILE.replace(fs, path, self, tmp_dir)


def _encode(checkpoint: IndexCheckpoint) -> dict[str, object]:
    return {
        "generation": checkpoint.generation, "blank": checkpoint.blank,
        "full": [_encode_file(file) for file in checkpoint.full],
        "writing": None if checkpoint.writing is None else _encode_file(checkpoint.writing),
    }  # fmt: skip


def _decode(document: Any) -> IndexCheckpoint:
    blank = tuple((int(first), int(end)) for first, end in document["blank"])
    writing = document["writing"]
    return IndexCheckpoint(
        int(document["generation"]), blank, None if writing is None else _decode_file(writing),
        tuple(_decode_file(file) for file in document.get("full", [])),
    )  # fmt: skip


_FILE = JsonFile(_decode, _encode)


def _encode_file(file: WritingFile) -> dict[str, Any]:
    bounds = file.bounds
    times = [bounds.min_store_ms, bounds.max_store_ms, bounds.min_born_ms, bounds.max_born_ms]
    return {**asdict(file), "bounds": times}


def _decode_file(document: dict[str, Any]) -> WritingFile:
    bounds = TimeBounds(*map(int, document.pop("bounds")))
    items_crc = document.pop("items_crc", None)
    numbers = {name: int(value) for name, value in document.items()}
    return WritingFile(**numbers, items_crc=None if items_crc is None else int(items_crc), bounds=bounds)
