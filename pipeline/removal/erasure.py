"""An erasure in bulk: one tombstone, however many keys; segments with matches found, counted, and written again once.

1. **Hide.** One commit adds the tombstone, whose end is what is archived by then. Refused for a topic on hold.
2. **Find and count.** By key through the index; records are compared all the same. The receipt then says what readers
   saw and which segments hold it.
3. **Overwrite.** Executors write those segments again with fillers; each batch is one commit, which the receipt
   foretells and then confirms.

Killed before 1: nothing happened. Between 1 and 2: hidden, and nothing is counted yet; going on counts. In 3: the
receipt tells where to go on. The store's own process carries the same tombstone out beside it, or when it comes back:
it hides hot copies, and closes the tombstone once it has seen it, so the job does only if there is no volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tierlog.index.objects.lookup import key_numbers
from tierlog.pipeline.base.archive import retried
from tierlog.pipeline.removal.tasks import (
    ArchiveAccess,
    ExecutorRewriter,
    FanOut,
    SegmentCount,
    count_segment,
    find_segments,
)
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, TopicHeldError
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import END_OF_TIME_MS, TimeAxis, TimeRange, uncovered
from tierlog.tiering.cold.manifest.store import ManifestChange
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.manifest import Head, Tombstone
from tierlog.tiering.format.record import Record
from tierlog.tiering.lifecycle.erasure import ErasedRecords, ErasureRunner
from tierlog.tiering.lifecycle.erasure_receipts import MatchedRecords, Receipt, ReceiptReports, plan_of
from tierlog.tiering.lifecycle.store_view import ArchiveView, refuse_held
from tierlog.tiering.lifecycle.tombstones import MAX_KEYS, Erasures, is_for, make_tombstone, refuse_too_many
from tierlog.tiering.message.waiting import WAITING_TOPICS


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """A request to erase from the archive as it is now: messages of a topic with any of the keys, stored in a time."""

    topic: str
    keys: tuple[str, ...] = ()
    """Empty: whatever their keys."""
    from_ms: int | None = None
    to_ms: int | None = None
    scans: bool = False
    """Look at every record instead of asking the key index where to look."""

    def __post_init__(self) -> None:
        if len(self.keys) > MAX_KEYS:
            raise InvalidRequestError(
                f"{len(self.keys)} keys are more than the {MAX_KEYS} that one erasure can hide at once",
                hint="split them over several runs, each begun when the one before is closed",
            )


@dataclass(frozen=True, slots=True)
class VisibleBefore:
    """Whether readers of a topic saw a record before an erasure was begun: not one that only waits for it."""

    topic: str
    erased: Erasures
    expired_below_ms: int | None

    def __call__(self, record: Record) -> bool:
        """Judges by the erasures that were open, and the topic's expiry."""
        is_expired = self.expired_below_ms is not None and record.store_ms < self.expired_below_ms
        return record.topic == self.topic and not is_expired and not self.erased.hides(record)


class BulkErasure:
    """Erases from one archive. For one thread."""

    def __init__(
        self,
        archive: ArchiveAccess,
        fan_out: FanOut,
        clock: Clock,
        randomness: Randomness,
        *,
        most: int,
        has_volume: bool = True,
    ) -> None:
        """``most`` segments go into one commit; ``has_volume`` False is the operator's word that no volume exists."""
        self._archive = archive
        self._fan_out = fan_out
        self._clock = clock
        self._randomness = randomness
        self._manifest = archive.manifest
        self._view = ArchiveView(self._manifest, has_volume=has_volume)
        maker = ExecutorRewriter(archive, fan_out, most)
        self._course = ErasureRunner(self._manifest, self._view, maker, clock, randomness, knows_matches=True)

    def plan(self, request: ErasureRequest) -> dict[str, Any]:
        """Counts what an erasure would match now; nothing is changed. Raises as :meth:`begin`."""
        head, stone = self._made(request)
        return plan_of(self._counted(head, stone, request, Receipt(stone, self._clock.now_ms())), head.store_id)

    def begin(self, request: ErasureRequest) -> Tombstone:
        """Hides the requested messages from every reader, or finds the open erasure of the very same.

        Raises :class:`TopicNotFoundError`, :class:`ConflictError` for a topic on hold or too many open erasures, and
        the object store's error if the outcome is not known: then the same request finds out.
        """
        head, stone = self._made(request)
        for known in head.tombstones:
            is_same = is_for(known, request.topic, request.keys, request.from_ms, request.to_ms)
            if is_same and known.end == head.archived_to:
                return known
        refuse_too_many(head, stone)

        def refuse(newer: Head) -> None:
            refuse_held(self._view.state(newer).topics, (stone.topic,))
            refuse_too_many(newer, stone)

        self._manifest.commit_other(ManifestChange(add_tombstones=(stone,)), refuse=refuse)
        return stone

    def open_erasure(self, tombstone_id: str) -> Tombstone | None:
        """Returns an erasure; None if it is closed. Raises :class:`NotFoundError` if there never was one."""
        for stone in self._manifest.refresh().tombstones:
            if stone.tombstone_id == tombstone_id:
                return stone
        self._receipts().get(tombstone_id)
        return None

    def carry_out(self, stone: Tombstone, request: ErasureRequest | None, progress: Progress) -> None:
        """Overwrites what is archived of an open erasure. ``request`` is what it was begun with, if that is known.

        Raises :class:`TopicHeldError` if its topic was put on hold meanwhile: it goes on when the hold has ended.
        """
        head = self._manifest.refresh()
        receipt = self._course.receipt_of(stone)
        if receipt.matched is None or receipt.to_rewrite is None:
            counted = self._counted(head, stone, request, receipt)
            self._course.update(
                stone, lambda each: replace(each, matched=counted.matched, to_rewrite=counted.to_rewrite)
            )
        step = partial(self._is_overwritten, stone, progress)
        while not retried(self._manifest, step, (TopicHeldError,)):
            pass

    def receipt(self, tombstone_id: str) -> dict[str, Any]:
        """Returns the receipt as the command prints it."""
        return self._receipts().get(tombstone_id)

    @property
    def unreadable(self) -> Sequence[str]:
        """Archived segments that cannot be read, and keep the erasure open."""
        return self._course.unreadable

    def _receipts(self) -> ReceiptReports:
        return ReceiptReports(self._view, self._manifest, self._manifest.refresh().volume_id)

    def _made(self, request: ErasureRequest) -> tuple[Head, Tombstone]:
        head = self._manifest.refresh()
        refuse_held([self._view.topic(request.topic)], (request.topic,))
        first = request.keys[0] if request.keys else None
        stone = make_tombstone(
            request.topic, first, from_ms=request.from_ms, to_ms=request.to_ms, end=head.archived_to,
            randomness=self._randomness, other_keys=request.keys[1:], beside=head.tombstones,
        )  # fmt: skip
        return head, stone

    # overwriting

    def _is_overwritten(self, stone: Tombstone, progress: Progress) -> bool:
        """Overwrites one batch; returns whether all is done."""
        head = self._manifest.refresh()
        is_open = any(each.tombstone_id == stone.tombstone_id for each in head.tombstones)
        if not is_open:
            return True  # the store's own process was faster
        refuse_held(self._view.state(head).topics, (stone.topic,))
        try:
            if self._course.rewrite_batch(head, [stone], progress):
                return False
            self._course.settle(stone)
        except BaseException:
            self._course.forget()
            raise
        if not self._view.has_volume:
            self._course.close(head, [stone])
        return True

    # finding

    def _counted(self, head: Head, stone: Tombstone, request: ErasureRequest | None, receipt: Receipt) -> Receipt:
        """Returns the receipt with what the archive of this head holds of an erasure, as if it were not there."""
        reader = self._manifest.reader()
        selection = ErasedRecords((stone,), {stone.tombstone_id: 0}, {})
        wanted = [entry for entry in self._manifest.log_entries(reader, head) if selection.concerns(entry)]
        if request is not None and request.keys and not request.scans and wanted:
            bases = self._bases(reader, head, request, wanted[0].segment_bytes)
            wanted = [entry for entry in wanted if any(base <= entry.base < end for base, end in bases)]
        others = Erasures(each for each in head.tombstones if each.tombstone_id != stone.tombstone_id)
        topic_id = self._view.topic(stone.topic).topic_id
        is_seen = VisibleBefore(stone.topic, others, dict(head.expired).get(topic_id))
        found: list[SegmentCount] = self._fan_out(partial(count_segment, self._archive, selection, is_seen), wanted)
        is_complete = not receipt.rewritten and all(each.error is None for each in found)
        return replace(
            receipt,
            matched=MatchedRecords(0, sum(each.seen for each in found), is_complete),
            to_rewrite=tuple(each.base for each in found if each.all or each.error is not None),
        )

    def _bases(
        self, reader: ArchiveReader, head: Head, request: ErasureRequest, segment_bytes: int
    ) -> list[tuple[int, int]]:
        """Returns bases of segments that may have one of the keys, by the index; all that it cannot rule out."""
        topics = (request.topic, *sorted(WAITING_TOPICS))  # what waits for the topic has its keys there
        keys = np.unique(np.concatenate([key_numbers(topic, request.keys) for topic in topics]))
        stored = TimeRange.asked(request.from_ms or 0, END_OF_TIME_MS if request.to_ms is None else request.to_ms)
        entries = list(self._manifest.index_entries(reader, head, TimeAxis.STORE, stored))
        found = self._fan_out(partial(find_segments, self._archive, keys, segment_bytes), entries)
        known = ((entry.first, entry.next) for entry in self._manifest.all_index_entries(reader, head))
        ranges = [
            (first - first % segment_bytes, end)
            for first, end in (*uncovered(known, head.cold_min, head.indexed_to), (head.indexed_to, head.archived_to))
        ]
        for entry, bases in zip(entries, found, strict=True):
            if bases is None:
                ranges.append((entry.first - entry.first % segment_bytes, entry.next))
            else:
                ranges += [(base, base + 1) for base in bases]
        return ranges
