"""The erasures that one reader of a store has to obey: those of the newest head, and those whose hot copies remain.

A tombstone leaves the head once every archived copy is a filler, while hot copies stay until the border passes its
end. So the store keeps it in ``tierlog/head.json``, with every head it sees, until nothing of the log below its end is
on the volume. That file also tells after a restart with a dead bucket. Crash argument: an erasure is acknowledged once
its tombstone is in the file, and only the store itself closes a tombstone, after it was in the file; so there is no
moment at which a kill could show an acknowledged erasure's messages again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tiering.erasing.tombstones import NOTHING_ERASED, Erasures
from tiering.format.manifest import Head, Tombstone

_Stones = tuple[Tombstone, ...]


class HeadSource(Protocol):
    """Who knows the head last seen."""

    @property
    def head(self) -> Head | None:
        """The head, or None before the first contact."""
        ...


class KnownErasures:
    """Thread safe; ``saved`` is what the file says, ``deleted`` tells of topics that were deleted in the store."""

    def __init__(
        self,
        manifest: HeadSource | None,
        saved: Iterable[Tombstone] = (),
        deleted: Callable[[], tuple[Tombstone, ...]] = lambda: (),
    ) -> None:
        """``deleted`` gives the same tuple until something changes."""
        self._manifest = manifest
        self._saved = tuple(saved)
        self._deleted = deleted
        self._made: tuple[_Stones, _Stones, _Stones, Erasures] = ((), (), (), NOTHING_ERASED)

    @property
    def saved(self) -> tuple[Tombstone, ...]:
        """What the file says."""
        return self._saved

    def to_save(self, head: Head, log_begin: int) -> tuple[Tombstone, ...]:
        """What the file must say with this head: its tombstones, and earlier ones of which the log holds copies."""
        named = {tombstone.tombstone_id for tombstone in head.tombstones}
        kept = [old for old in self._saved if old.tombstone_id not in named and old.end > log_begin]
        return (*kept, *head.tombstones)

    def was_saved(self, tombstones: tuple[Tombstone, ...]) -> None:
        """The file says this now, durably."""
        self._saved = tombstones

    def current(self) -> Erasures:
        """What is hidden now."""
        head = self._manifest.head if self._manifest is not None else None
        saved, named = self._saved, head.tombstones if head is not None else ()
        deleted = self._deleted()
        if not saved and not named and not deleted:
            return NOTHING_ERASED
        made = self._made
        if made[:3] != (saved, named, deleted):  # mostly the very same, which is found in no time
            stones = {stone.tombstone_id: stone for stone in (*saved, *deleted, *named)}
            made = self._made = saved, named, deleted, Erasures(stones.values())
        return made[3]
