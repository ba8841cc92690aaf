"""Carries open erasures out: archived segments are written again, receipts say so, and tombstones close.

Work goes over the archived segments below a tombstone's end; its receipt says how far it came. A segment that cannot
be read is passed over and keeps the tombstone open, and its messages hidden, until it is repaired or gone. The store's
own process and jobs may do this beside each other: what one has replaced the other finds gone, leaves out, and looks
at once more.

Killed anywhere: messages stay hidden, the receipt (made anew if it was not written yet) tells where to go on, and a
batch whose commit landed is found by its names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.manifest import Head, LogEntry, Tombstone
from tierlog.tiering.lifecycle.erasure_receipts import Receipt, ReceiptStore, RewrittenSegment
from tierlog.tiering.lifecycle.rewrite_batches import RewriteBatch, RewriteBatchMaker, UnwantedRecords, commit_batch
from tierlog.tiering.lifecycle.store_view import Committer
from tierlog.tiering.lifecycle.tombstones import Erasures, may_hide_at

_LOG = logging.getLogger("tierlog")


@dataclass(frozen=True, slots=True)
class ErasedRecords:
    """The records that open erasures have not come to yet."""

    tombstones: tuple[Tombstone, ...]
    reached: Mapping[str, int]
    """Where each goes on."""
    holding: Mapping[str, frozenset[int]]
    """The segments with matches of an erasure, where they are known."""

    def concerns(self, entry: LogEntry) -> bool:
        """Whether a segment may hold erased records, by offset, time, and what is known of matches."""
        bounds = entry.bounds
        return bounds is not None and any(may_hide_at(tombstone, bounds) for tombstone in self._due(entry))

    def unwanted_records(self, reader: ArchiveReader, entry: LogEntry) -> UnwantedRecords | None:
        """Returns what the erasures hide."""
        erased = Erasures(self._due(entry))
        return UnwantedRecords(erased.may_hide, erased.hides)

    def _due(self, entry: LogEntry) -> Iterator[Tombstone]:
        return (
            tombstone
            for tombstone in self.tombstones
            if self.reached[tombstone.tombstone_id] < entry.next
            and entry.base < tombstone.end
            and entry.base in self.holding.get(tombstone.tombstone_id, (entry.base,))
        )


class ErasureRunner:
    """The erasures that one process carries out. For one thread at a time."""

    def __init__(
        self,
        manifest: ManifestStore,
        committer: Committer,
        maker: RewriteBatchMaker,
        clock: Clock,
        randomness: Randomness,
        *,
        knows_matches: bool = False,
    ) -> None:
        """``knows_matches`` means that receipts name every segment with a match, so that no other is looked at."""
        self._manifest = manifest
        self._committer = committer
        self._maker = maker
        self._clock = clock
        self._name = randomness.token_hex(4)
        self._knows_matches = knows_matches
        self._receipts = ReceiptStore(manifest.objects, manifest.keys)
        self._open: dict[str, Receipt] = {}
        self._ahead: dict[str, int] = {}
        """How far an erasure was looked at behind a segment that cannot be read, at which its receipt stays."""
        self._unreadable: dict[int, str] = {}
        """Bases and names of such segments: looked at again once they are replaced, and after a restart."""
        self._looked_in = 0

    @property
    def unreadable(self) -> Sequence[str]:
        """Objects that cannot be read, which therefore may hold what is erased."""
        return sorted(self._unreadable.values())

    def forget(self) -> None:
        """Reads receipts again: something failed, or there is nothing to do; whatever landed, the bucket knows it."""
        self._open.clear()

    def nothing_open(self) -> None:
        """Notes that there is no erasure to carry out."""
        self._open.clear()
        self._ahead.clear()
        self._unreadable.clear()

    def rewrite_batch(self, head: Head, tombstones: Sequence[Tombstone], progress: Progress | None = None) -> bool:
        """Takes these erasures on by one batch; False if all that is archived of them was looked at.

        ``progress`` is called with how many bytes of the log were looked at.
        """
        if self._is_replaced(head):
            self._ahead.clear()
            self._unreadable.clear()
        reached = {tombstone.tombstone_id: self._reached(tombstone) for tombstone in tombstones}
        due = tuple(
            tombstone
            for tombstone in tombstones
            if reached[tombstone.tombstone_id] < min(tombstone.end, head.archived_to)
        )
        if not due:
            return False
        first = min(reached[tombstone.tombstone_id] for tombstone in due)
        end = min(head.archived_to, max(tombstone.end for tombstone in due))
        batch = self._maker.batch(head, first, end, ErasedRecords(due, reached, self._holding(due)))
        reached_to = self._replace(batch, due, reached)
        if progress is not None:
            progress(reached_to, end)
        return True

    def close(self, head: Head, tombstones: Sequence[Tombstone]) -> bool:
        """Closes what is done of these erasures; whether there was any.

        For the store's own process, which hides hot copies by what it has seen of them, or where there are none.
        """
        done_to = {tombstone.tombstone_id: self.receipt_of(tombstone).done_to for tombstone in tombstones}
        closing = [
            tombstone
            for tombstone in tombstones
            if tombstone.end <= min(head.archived_to, done_to[tombstone.tombstone_id])
        ]
        if closing:
            for tombstone in closing:
                self.settle(tombstone)
            change = ManifestChange(close_tombstones=tuple(tombstone.tombstone_id for tombstone in closing))
            self._committer.commit(change, ())
            for tombstone in closing:
                for row in self._open.pop(tombstone.tombstone_id).rewritten:
                    self._manifest.cache.forget(row.old)  # a reader of an older head may have kept something since
        return bool(closing)

    def _holding(self, due: Sequence[Tombstone]) -> dict[str, frozenset[int]]:
        if not self._knows_matches:
            return {}
        receipts = [self.receipt_of(tombstone) for tombstone in due]
        known = {each.tombstone.tombstone_id: each.to_rewrite for each in receipts}
        return {name: frozenset(bases) for name, bases in known.items() if bases is not None}

    def _replace(self, batch: RewriteBatch, due: Sequence[Tombstone], reached: Mapping[str, int]) -> int:
        """Says in the receipts what will be replaced, replaces it, and says that it was; how far that goes."""
        touched = [tombstone for tombstone in due if reached[tombstone.tombstone_id] < batch.reached]
        if batch.replacements:
            for tombstone in touched:
                rows = self._rows(tombstone, batch, reached)
                self.update(tombstone, lambda receipt, rows=rows: receipt.with_rows(rows, self._name))  # type: ignore[misc]
            topics = [tombstone.topic for tombstone in due]
            batch = commit_batch(self._manifest, self._committer, batch, topics)
        at_ms = self._manifest.objects.now_ms() if batch.replacements else None
        for tombstone in touched:
            rows = tuple(replace(row, at_ms=at_ms) for row in self._rows(tombstone, batch, reached))
            done_to = self._done_to(tombstone, batch)
            self.update(
                tombstone,
                lambda receipt, rows=rows, done_to=done_to: receipt.with_rows(rows, self._name, done_to),  # type: ignore[misc]
            )
            if done_to < batch.reached:
                self._ahead[tombstone.tombstone_id] = batch.reached
        self._unreadable |= {entry.base: entry.key for entry in batch.unreadable}
        return batch.reached

    def _rows(
        self, tombstone: Tombstone, batch: RewriteBatch, reached: Mapping[str, int]
    ) -> tuple[RewrittenSegment, ...]:
        first = reached[tombstone.tombstone_id]
        mine = [each for each in batch.replacements if first < each.old.next and each.old.base < tombstone.end]
        return tuple(
            RewrittenSegment(each.old.base, each.old.key, each.new.key, each.records, by=self._name) for each in mine
        )

    # segments that cannot be read

    def _reached(self, tombstone: Tombstone) -> int:
        return max(self._ahead.get(tombstone.tombstone_id, 0), self.receipt_of(tombstone).done_to)

    def _done_to(self, tombstone: Tombstone, batch: RewriteBatch) -> int:
        """Returns what the receipt may say after a batch: not beyond a segment that was passed over."""
        done_to = self.receipt_of(tombstone).done_to
        if tombstone.tombstone_id in self._ahead:
            return done_to
        passed = [entry.base for entry in batch.unreadable if done_to < entry.next and entry.base < tombstone.end]
        return min(passed, default=batch.reached)

    def _is_replaced(self, head: Head) -> bool:
        """Whether a segment that could not be read left the manifest since; asked once a version."""
        if not self._unreadable or head.version == self._looked_in:
            return False
        self._looked_in = head.version
        reader = self._manifest.reader()
        entries = {base: self._manifest.log_entry(reader, head, base) for base in self._unreadable}
        return any(entry is None or entry.key != self._unreadable[base] for base, entry in entries.items())

    # receipts

    def receipt_of(self, tombstone: Tombstone) -> Receipt:
        """Returns the receipt of an open erasure, rows of interrupted batches settled; made if it is missing."""
        receipt = self._open.get(tombstone.tombstone_id)
        if receipt is None:
            found = self._readable_receipt(tombstone.tombstone_id)
            receipt = found or self._receipts.begin(Receipt(tombstone, self._clock.now_ms()))
            self._open[tombstone.tombstone_id] = receipt
            if receipt.undecided_rows:
                receipt = self.settle(tombstone)
        return receipt

    def was_begun(self, tombstone: Tombstone) -> bool:
        """Whether there is a receipt of an erasure, which was committed then; it may be done and closed."""
        return tombstone.tombstone_id in self._open or self._readable_receipt(tombstone.tombstone_id) is not None

    def update(self, tombstone: Tombstone, change: Callable[[Receipt], Receipt]) -> Receipt:
        """Changes the receipt of an open erasure, whoever else does."""
        receipt = self._receipts.update(self.receipt_of(tombstone), change)
        self._open[tombstone.tombstone_id] = receipt
        return receipt

    def settle(self, tombstone: Tombstone) -> Receipt:
        """Finds out which rows without a time are true; those of segments that were not replaced yet may become so."""
        receipt = self._open.get(tombstone.tombstone_id) or self.receipt_of(tombstone)
        landed, lost = set[str](), set[str]()
        if receipt.undecided_rows:
            head, reader = self._manifest.refresh(), self._manifest.reader()
            left: set[str] | None = None
            for row in receipt.undecided_rows:
                entry = self._manifest.log_entry(reader, head, row.segment)
                if entry is not None and entry.key == row.old:
                    continue
                if left is None:
                    left = {name for name, _ in self._manifest.removed_names(reader, head)}
                is_known = row.new in left or (entry is not None and entry.key == row.new)
                (landed if is_known else lost).add(row.new)
        at_ms = self._manifest.objects.now_ms() if landed else 0
        receipt = self._receipts.update(receipt, lambda each: each.with_settled_rows(landed, lost, at_ms))
        self._open[tombstone.tombstone_id] = receipt
        return receipt

    def _readable_receipt(self, tombstone_id: str) -> Receipt | None:
        try:
            return self._receipts.find(tombstone_id)
        except CorruptionError as error:  # the erasure goes on: all segments are looked at once more
            _LOG.error("the receipt of an erasure is damaged and begun anew: %s", error)
            return None
