"""Erases messages of an open store: hidden at once by a tombstone, then carried out bit by bit.

The tombstone is acknowledged when the head has it and ``head.json`` says so. Work in the background goes over the
archived segments below its end (:mod:`tiering.erasing.course`). A tombstone closes when ``archived_to`` has passed its
end and every segment below was looked at.

Killed anywhere: before the tombstone's commit nothing happened; after it messages stay hidden, and the receipt, made
anew if it was not written yet, tells where to go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from index.query import MAX_LIMIT, Answer, Query
from tiering.clock import Clock
from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.erasing.course import ErasureCourse, Progress
from tiering.erasing.known import KnownErasures
from tiering.erasing.receipt import Matched, Receipt
from tiering.erasing.tombstones import Erasures, make_tombstone, refuse_too_many
from tiering.format.manifest import Head, Tombstone
from tiering.hot.deletion import Deletion
from tiering.hot.store import HotStore
from tiering.randomness import Randomness
from tiering.store_view import Committer, refuse_held
from tiering.types import END_OF_TIME_MS, Order, Tier

__all__ = ["Eraser", "Progress"]

#: Pages of 10,000 messages that are counted at most, so that erasing a large topic is answered in time.
_MOST_PAGES = 100

#: A query as if the given erasures were all there are.
Find = Callable[[Query, Erasures], Answer]


class Eraser:
    """Begins erasures of one open store and carries them out. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        manifest: ManifestStore,
        committer: Committer,
        course: ErasureCourse,
        known: KnownErasures,
        clock: Clock,
        randomness: Randomness,
        check_going_on: Callable[[], None],
        remember: Callable[[Head], None],
        find: Find,
        commit: Callable[[ManifestChange], Head],
    ) -> None:
        """``remember`` makes what a head says durable here, so that hot copies stay hidden whatever comes.

        ``commit`` commits whatever is on hold.
        """
        self._commit = commit
        self._hot = hot
        self._manifest = manifest
        self._committer = committer
        self._course = course
        self._known = known
        self._clock = clock
        self._randomness = randomness
        self._check_going_on = check_going_on
        self._remember = remember
        self._find = find
        self._lock = threading.Lock()

    def count(self, query: Query) -> Receipt:
        """What an erasure would match now; nothing is changed."""
        refuse_held([self._hot.topics.get(query.topic)], (query.topic,))
        end = self._hot.log.visible
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
            stone = make_tombstone(
                query.topic, query.key, *_bounds(query), end, self._randomness, beside=before.tombstones
            )
            refuse_held([self._hot.topics.get(query.topic)], (query.topic,))
            seen = self._manifest.head
            if seen is not None:
                refuse_too_many(seen, stone)
            head = self._committer.commit(ManifestChange(add_tombstones=(stone,)), (query.topic,))
            stone = _named(head, stone)
            counted = self._counted(self._course.receipt_of(stone), query, before)
            return self._course.update(
                stone, lambda receipt: replace(receipt, matched=counted.matched, to_rewrite=counted.to_rewrite)
            )

    def carry_out_deletion(self, topic: str, deletion: Deletion, matched: Matched | None = None) -> None:
        """Give the archive the tombstone of a deleted topic, and note that it has it; repeatable after any failure.

        No hold forbids it: one that exists is that of a topic made again, of which nothing is meant.
        """
        with self._lock:
            stone = deletion.tombstone(topic)
            self._hand_over(topic, stone)
            if matched is not None:
                self._course.update(stone, lambda receipt: replace(receipt, matched=matched))

    def _hand_over(self, topic: str, stone: Tombstone) -> None:
        """Commit a deletion's tombstone unless the archive had it already, which its receipt or the head tells."""
        head = self._manifest.refresh() if self._manifest.had_head else None
        is_open = head is not None and any(each.tombstone_id == stone.tombstone_id for each in head.tombstones)
        if not is_open and not (head is not None and self._course.was_begun(stone)):
            self._commit(ManifestChange(add_tombstones=(stone,)))
        self._course.receipt_of(stone)  # before it is noted here: there is one from then on
        with self._hot.guard.writing("noting that a topic's deletion was told"):
            self._hot.topics.deletion_was_told(topic, stone.tombstone_id)

    def round(self, progress: Progress | None = None) -> bool:
        """Take open erasures on by one batch of segments, or close them; whether there is more to do at once."""
        with self._lock:
            head = self._manifest.head
            if head is None or not head.tombstones:
                self._course.nothing_open()
                return False
            self._remember(head)  # one that a job has begun may be closed next, while hot copies remain
            stones = [stone for stone in head.tombstones if not self._is_held(stone.topic)]
            try:
                return self._course.step(head, stones, progress) or self._course.close(head, stones)
            except BaseException:
                self._course.forget()
                raise

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
            self._check_going_on()
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
