"""Erases messages: hidden at once by a tombstone, then their archived copies written again as fillers, bit by bit.

The tombstone is acknowledged when the head has it and ``head.json`` says so. Work in the background goes over the
archived segments below its end; the receipt says how far it came. A tombstone closes when ``archived_to`` has passed
its end and every segment below was looked at. A segment that cannot be read is passed over and keeps the tombstone
open, and its messages hidden, until it is repaired or gone.

Killed anywhere: before the tombstone's commit nothing happened; after it messages stay hidden, the receipt (made anew
if it was not written yet) tells where to go on, and a batch whose commit landed is found by its names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from index.query import MAX_LIMIT, Answer, Query
from service.archiving import ColdWay
from tiering.clock import Clock
from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.erasing.known import KnownErasures
from tiering.erasing.receipt import Matched, Receipt, ReceiptStore, RewrittenSegment
from tiering.erasing.rewriting import Batch, SegmentRewriter, Unwanted
from tiering.erasing.tombstones import MAX_OPEN, Erasures, make_tombstone
from tiering.errors import ConflictError, CorruptionError
from tiering.format.manifest import Head, LogEntry, Tombstone
from tiering.hot.store import HotStore
from tiering.hot.topics import Topic
from tiering.randomness import Randomness
from tiering.types import END_OF_TIME_MS, Order, Tier

_LOG = logging.getLogger("tierlog")
#: Pages of 10,000 messages that are counted at most, so that erasing a large topic is answered in time.
_MOST_PAGES = 100

#: A query as if the given erasures were all there are.
Find = Callable[[Query, Erasures], Answer]
#: Told (bytes of log looked at, bytes to look at).
Progress = Callable[[int, int], None]


def refuse_held(topic: Topic) -> None:
    """Raise :class:`ConflictError` if the topic is on hold."""
    if topic.hold:
        raise ConflictError(
            f"topic {topic.name!r} is on hold: nothing of it may be erased or expire",
            hint=f"`tierlog hold {topic.name} off` ends it",
        )


class Eraser:
    """Begins erasures of one open store and carries them out. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        manifest: ManifestStore,
        cold_way: ColdWay,
        rewriter: SegmentRewriter,
        known: KnownErasures,
        clock: Clock,
        randomness: Randomness,
        holding: threading.Lock,
        find: Find,
    ) -> None:
        """``holding`` is held by whoever commits what a hold forbids, or changes a hold."""
        self._hot = hot
        self._manifest = manifest
        self._cold_way = cold_way
        self._known = known
        self._clock = clock
        self._randomness = randomness
        self._holding = holding
        self._find = find
        self._rewriter = rewriter
        self._receipts = ReceiptStore(manifest.objects, manifest.keys)
        self._open: dict[str, Receipt] = {}
        self._ahead: dict[str, int] = {}
        """How far an erasure was looked at behind a segment that cannot be read, at which its receipt stays."""
        self._unreadable: dict[int, str] = {}
        """Bases and names of such segments: looked at again once they are replaced, and after a restart."""
        self._looked_in = 0
        self._lock = threading.Lock()

    def count(self, query: Query) -> Receipt:
        """What an erasure would match now; nothing is changed."""
        refuse_held(self._hot.topics.get(query.topic))
        end = self._hot.log.flushed
        stone = make_tombstone(query.topic, query.key, *_bounds(query), end, self._randomness)
        return self._counted(Receipt(stone, self._clock.now_ms()), query, self._known.current())

    def begin(self, query: Query) -> Receipt:
        """Erase what the query's topic, key and store times match in the log as it is now.

        Raises :class:`TopicNotFoundError`, :class:`ConflictError` for a topic on hold or too many open erasures, and
        the object store's error if it does not answer: then the erasure may have been committed all the same, and is
        seen among the receipts.
        """
        with self._lock:
            before = self._known.current()
            end = self._hot.flush()  # what is not durable may be another record after a crash
            stone = make_tombstone(query.topic, query.key, *_bounds(query), end, self._randomness)
            with self._holding:
                refuse_held(self._hot.topics.get(query.topic))
                seen = self._manifest.head
                if seen is not None and len(seen.tombstones) >= MAX_OPEN:
                    raise ConflictError(f"{MAX_OPEN} erasures are open", hint="wait until some of them are done")
                head = self._cold_way.commit_beside(ManifestChange(add_tombstones=(stone,)))
            receipt = self._receipt_of(_named(head, stone))
            receipt = self._counted(receipt, query, before)
            self._save(receipt)
            return receipt

    def round(self, progress: Progress | None = None) -> bool:
        """Take open erasures on by one batch of segments, or close them; whether there is more to do at once."""
        with self._lock:
            head = self._manifest.head
            if head is None or not head.tombstones:
                self._open.clear()
                self._ahead.clear()
                self._unreadable.clear()
                return False
            try:
                return self._step(head, progress)
            except BaseException:
                self._open.clear()  # whatever landed, the bucket knows it
                raise

    def _step(self, head: Head, progress: Progress | None) -> bool:
        stones = [stone for stone in head.tombstones if not self._is_held(stone.topic)]
        if self._is_replaced(head):
            self._ahead.clear()
            self._unreadable.clear()
        done_to = {stone.tombstone_id: self._reached(stone) for stone in stones}
        due = [stone for stone in stones if done_to[stone.tombstone_id] < min(stone.end, head.archived_to)]
        if due:
            first = min(done_to[stone.tombstone_id] for stone in due)
            end = min(head.archived_to, max(stone.end for stone in due))
            unwanted = partial(self._unwanted, due, done_to)
            batch = self._rewriter.batch(head, first, end, unwanted)
            self._commit(batch, due)
            if progress is not None:
                progress(batch.reached, end)
            return True
        closing = [s.tombstone_id for s in stones if s.end <= min(head.archived_to, self._receipt_of(s).done_to)]
        if closing:
            self._cold_way.commit_beside(ManifestChange(close_tombstones=tuple(closing)))
            for tombstone_id in closing:
                for row in self._open.pop(tombstone_id).rewritten:
                    self._manifest.cache.forget(row.old)  # a reader of an older head may have kept something since
        return bool(closing)

    @staticmethod
    def _unwanted(due: Sequence[Tombstone], done_to: dict[str, int], entry: LogEntry) -> Unwanted | None:
        erased = Erasures(s for s in due if done_to[s.tombstone_id] < entry.next and entry.base < s.end)
        if entry.bounds is None or not erased.may_hide_at(entry.bounds):
            return None
        return Unwanted(erased.may_hide, erased.hides)

    def _commit(self, batch: Batch, due: Sequence[Tombstone]) -> None:
        """Say in the receipts what will be replaced, replace it, and say that it was."""
        touched: list[tuple[Receipt, tuple[RewrittenSegment, ...]]] = []
        for stone in due:
            receipt, reached = self._receipt_of(stone), self._reached(stone)
            if reached < batch.reached:
                mine = [each for each in batch.replacements if reached <= each.old.base < stone.end]
                rows = tuple(RewrittenSegment(each.old.base, each.old.key, each.new.key, each.records) for each in mine)
                touched.append((receipt, rows))
        at_ms = None
        if batch.replacements:
            for receipt, rows in touched:
                self._save(receipt.with_rows(rows))
            with self._holding:
                if any(self._is_held(stone.topic) for stone in due):
                    raise ConflictError("a topic was put on hold meanwhile")
                self._cold_way.commit_beside(batch.change())
            at_ms = self._manifest.objects.now_ms()
        for receipt, rows in touched:
            done_to = self._done_to(receipt, batch)
            self._save(receipt.with_rows(tuple(replace(row, at_ms=at_ms) for row in rows), done_to))
            if done_to < batch.reached:
                self._ahead[receipt.tombstone.tombstone_id] = batch.reached
        self._unreadable |= {entry.base: entry.key for entry in batch.unreadable}

    # segments that cannot be read

    def _reached(self, stone: Tombstone) -> int:
        return self._ahead.get(stone.tombstone_id, self._receipt_of(stone).done_to)

    def _done_to(self, receipt: Receipt, batch: Batch) -> int:
        """What the receipt may say after a batch: not beyond a segment that was passed over."""
        stone = receipt.tombstone
        if stone.tombstone_id in self._ahead:
            return receipt.done_to
        passed = [entry.base for entry in batch.unreadable if receipt.done_to < entry.next and entry.base < stone.end]
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

    def _receipt_of(self, stone: Tombstone) -> Receipt:
        """The receipt of an open erasure, rows of an interrupted batch settled; made if it is missing."""
        receipt = self._open.get(stone.tombstone_id)
        if receipt is None:
            found = self._readable_receipt(stone.tombstone_id)
            receipt = self._settled(found or Receipt(stone, self._clock.now_ms()))
            if receipt != found:
                self._save(receipt)
            self._open[stone.tombstone_id] = receipt
        return receipt

    def _readable_receipt(self, tombstone_id: str) -> Receipt | None:
        try:
            return self._receipts.find(tombstone_id)
        except CorruptionError as error:  # the erasure goes on: all segments are looked at once more
            _LOG.error("the receipt of an erasure is damaged and begun anew: %s", error)
            return None

    def _settled(self, receipt: Receipt) -> Receipt:
        if not receipt.undecided:
            return receipt
        head, reader = self._manifest.refresh(), self._manifest.reader()
        landed, at_ms = [], self._manifest.objects.now_ms()
        for row in receipt.undecided:
            entry = self._manifest.log_entry(reader, head, row.segment)
            if entry is None or entry.key != row.old:
                landed.append(replace(row, at_ms=at_ms))
        return receipt.with_rows(tuple(landed))

    def _save(self, receipt: Receipt) -> None:
        self._receipts.save(receipt)
        self._open[receipt.tombstone.tombstone_id] = receipt

    def _counted(self, receipt: Receipt, query: Query, erased: Erasures) -> Receipt:
        """The receipt with what readers see of the query below the tombstone's end, as if it were not there."""
        archived_to = self._manifest.head.archived_to if self._manifest.head is not None else 0
        segment_bytes, end = self._hot.log.segment_bytes, receipt.tombstone.end
        counts, bases, complete = {Tier.HOT: 0, Tier.COLD: 0}, set[int](), True
        cursor: str | None = None
        for number in count():
            page = self._find(replace(query, limit=MAX_LIMIT, order=Order.OLDEST, cursor=cursor), erased)
            complete = complete and page.coverage.complete
            for message in page.messages:
                offset = message.record.physical_offset
                if offset < end:
                    counts[message.tier] += 1
                    bases.add(offset - offset % segment_bytes)
            cursor = page.next_cursor
            if cursor is None:
                break
            if number == _MOST_PAGES:
                complete = False
                break
            self._cold_way.check_going_on()
        matched = Matched(counts[Tier.HOT], counts[Tier.COLD], complete)
        return replace(receipt, matched=matched, to_rewrite=tuple(sorted(base for base in bases if base < archived_to)))

    def _is_held(self, name: str) -> bool:
        topic = self._hot.topics.find(name)
        return topic is not None and topic.hold


def _bounds(query: Query) -> tuple[int | None, int | None]:
    """Store times of the query; a side that was left open has no bound."""
    return (query.from_ms or None, None if query.to_ms == END_OF_TIME_MS else query.to_ms)


def _named(head: Head, stone: Tombstone) -> Tombstone:
    return next((each for each in head.tombstones if each.tombstone_id == stone.tombstone_id), stone)
