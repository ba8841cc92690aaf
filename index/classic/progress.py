"""The file ``tierlog/classic_index.json``: how far the classic index is durable, and where to go on.

A classic file cannot say so itself: it has no checksum, and its header reaches the disk whenever the system likes.

========= ========================================================================================
field     meaning
========= ========================================================================================
version   1
slots     capacity of every file; another setting means that all are made again
items     the same, the unused item 0 included
files     names of full files, flushed before they were named here, never written again
next      record from which to go on behind those files, and how many of its items they hold already
keys
written   null, or the state of the last checkpoint: ``name`` of the file then being written (null if
          none), its ``count`` of flushed items, the ``begin_ms`` and ``end_ms`` of its header, and
          ``next`` and ``keys`` behind them
========= ========================================================================================

JSON, UTF-8, replaced atomically after what it speaks of was flushed. Absent or unreadable: no file counts, and all are
derived again. A file that is written is as good as its first ``count`` items, which never change: the rest of it is
made of them again.
Written and read by: ``index.classic.index``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from index.classic.format import FILE_NAME

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two items: the first record not wholly indexed, and how many of its items are."""

    next: int
    keys: int = 0


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What is durable behind the full files."""

    name: str | None
    count: int
    begin_ms: int
    end_ms: int
    position: Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of one classic index."""

    slots: int
    items: int
    files: tuple[str, ...]
    position: Position
    written: WrittenFile | None = None

    def with_written(self, written: WrittenFile | None) -> Progress:
        """The same with another state behind the full files."""
        return replace(self, written=written)

    def encode(self) -> bytes:
        """The file's bytes."""
        written = self.written
        document = {
            "version": VERSION, "slots": self.slots, "items": self.items, "files": list(self.files),
            "next": self.position.next, "keys": self.position.keys,
            "written": written and {
                "name": written.name, "count": written.count, "begin_ms": written.begin_ms, "end_ms": written.end_ms,
                "next": written.position.next, "keys": written.position.keys,
            },
        }  # fmt: skip
        return (json.dumps(document) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Progress | None:
        """Read the file; None for anything this program did not write."""
        try:
            document = json.loads(data)
            if document["version"] != VERSION:
                return None
            files, written = tuple(document["files"]), document["written"]
            names = [*files, *([written["name"]] if written and written["name"] is not None else [])]
            if not all(FILE_NAME.fullmatch(name) for name in names):
                return None
            return cls(
                int(document["slots"]),
                int(document["items"]),
                files,
                _position(document),
                written
                and WrittenFile(
                    written["name"],
                    int(written["count"]),
                    int(written["begin_ms"]),
                    int(written["end_ms"]),
                    _position(written),
                ),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def _position(document: dict[str, int]) -> Position:
    return Position(int(document["next"]), int(document["keys"]))
