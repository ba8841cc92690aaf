"""The file ``tierlog/classic_index.json``: which classic index files are whole and durable, and where to go on.

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
stopped   null, or after a clean stop: ``name`` of the file then being written (null if none), its
          ``count`` of items, and ``next`` and ``keys`` behind it; that file was flushed as well
========= ========================================================================================

JSON, UTF-8, replaced atomically. Absent or unreadable: no file counts, and all are derived again.
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
class Stopped:
    """What a clean stop left behind the full files."""

    name: str | None
    count: int
    position: Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of one classic index."""

    slots: int
    items: int
    files: tuple[str, ...]
    position: Position
    stopped: Stopped | None = None

    def running(self) -> Progress:
        """The same without what a clean stop left."""
        return replace(self, stopped=None)

    def encode(self) -> bytes:
        """The file's bytes."""
        stopped = self.stopped
        document = {
            "version": VERSION, "slots": self.slots, "items": self.items, "files": list(self.files),
            "next": self.position.next, "keys": self.position.keys,
            "stopped": stopped and {"name": stopped.name, "count": stopped.count,
                                    "next": stopped.position.next, "keys": stopped.position.keys},
        }  # fmt: skip
        return (json.dumps(document) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Progress | None:
        """Read the file; None for anything this program did not write."""
        try:
            document = json.loads(data)
            if document["version"] != VERSION:
                return None
            stopped = document["stopped"]
            names = [*document["files"], *([stopped["name"]] if stopped and stopped["name"] is not None else [])]
            if not all(FILE_NAME.fullmatch(name) for name in names):
                return None
            return cls(
                int(document["slots"]),
                int(document["items"]),
                tuple(document["files"]),
                Position(int(document["next"]), int(document["keys"])),
                stopped
                and Stopped(
                    stopped["name"], int(stopped["count"]), Position(int(stopped["next"]), int(stopped["keys"]))
                ),
            )
        except (ValueError, KeyError, TypeError):
            return None
