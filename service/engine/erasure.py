"""Erases messages and deletes topics of an open store: hidden at once by a tombstone, then carried out bit by bit.

Erasures (:class:`Eraser`): the tombstone is acknowledged when the head has it and ``head.json`` says so. Work in the
background goes over the archived segments below its end (:mod:`tiering.lifecycle.erasure`). A tombstone closes when
``archived_to`` has passed its end and every segment below was looked at.

Killed anywhere: before the tombstone's commit nothing happened; after it messages stay hidden, and the receipt, made
anew if it was not written yet, tells where to go on.

Deleted topics (:class:`TopicDeleter`): a topic goes with everything in it, here at once, then from the archive, whose
bytes are overwritten. Three steps, each durable before the next: ``topics.json`` says that the topic is deleted
below the log's end (:mod:`tiering.hot.topic_deletion`); the archive's head has the tombstone, as of an erasure; the
archive's ``state`` object lists the topic no more.

Killed before the first: nothing happened. After it: nobody here sees the topic or a message of it, also after a
restart with a dead bucket, and the background hands the tombstone over. After the second: readers of the archive
see a topic without its messages until the state is written, at most a minute later. The tombstone's id is chosen in
the first step, so that one that landed is found and not committed again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from tierlog.index.search.query import MAX_LIMIT, Answer, Query
from tierlog.service.engine.archive_mover import ArchiveMover
from tierlog.service.engine.parts import Components
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, Tier
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.generation import is_numbered, record_topic
from tierlog.tiering.format.manifest import Head, Tombstone
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topic_deletion import DeletedTopics, delete_topic
from tierlog.tiering.hot.topics import Topic, TopicDeletion
from tierlog.tiering.lifecycle.erasure import ErasureRunner
from tierlog.tiering.lifecycle.erasure_receipts import MatchedRecords, Receipt
from tierlog.tiering.lifecycle.store_view import Committer, refuse_held
from tierlog.tiering.lifecycle.tombstones import Erasures, KnownErasures, make_tombstone, refuse_too_many
from tierlog.tiering.message.waiting import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC

#: Pages of 10,000 messages that are counted at most, so that erasing a large topic is answered in time.
_MOST_PAGES = 100

#: Topics of delayed messages and transactions, which nobody deletes.
_OWN_PREFIX = "rmq_sys_"
_OWN_TOPICS = frozenset((HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC))

#: Runs a query as if there were no erasures but the given ones.
Find = Callable[[Query, Erasures], Answer]


class Eraser:
    """Begins erasures of one open store and carries them out. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        archive_mover: ArchiveMover,
        *,
        manifest: ManifestStore,
        committer: Committer,
        runner: ErasureRunner,
        known: KnownErasures,
        find: Find,
        components: Components,
    ) -> None:
        """``committer`` refuses what a hold forbids; ``archive_mover`` commits although there is a hold."""
        self._archive_mover = archive_mover
        self._hot = hot
        self._manifest = manifest
        self._committer = committer
        self._runner = runner
        self._known = known
        self._clock, self._randomness = components.clock, components.randomness
        self._find = find
        self._lock = threading.Lock()

    def count(self, query: Query) -> Receipt:
        """Counts what an erasure would match now; nothing is changed."""
        refuse_held([self._hot.topics.get(query.topic)], (query.topic,))
        end = self._hot.log.visible
        from_ms, to_ms = _bounds(query)
        tombstone = make_tombstone(
            query.topic, query.key, from_ms=from_ms, to_ms=to_ms, end=end, randomness=self._randomness
        )
        return self._counted(Receipt(tombstone, self._clock.now_ms()), query, self._known.current())

    def begin(self, query: Query) -> Receipt:
        """Erases what the query's topic, key and store times match in the log as it is now.

        Raises :class:`TopicNotFoundError`, :class:`ConflictError` for a topic on hold or too many open erasures, and
        the object store's error if it does not answer: then the erasure may have been committed all the same, and is
        seen among the receipts.
        """
        with self._lock:
            before = self._known.current()
            with self._hot.copying:
                end = self._hot.flush()  # records that are not durable may be replaced by others after a crash
                from_ms, to_ms = _bounds(query)
                tombstone = make_tombstone(
                    query.topic, query.key, from_ms=from_ms, to_ms=to_ms, end=end, randomness=self._randomness,
                    beside=before.tombstones,
                )  # fmt: skip
                refuse_held([self._hot.topics.get(query.topic)], (query.topic,))
                seen = self._manifest.head
                if seen is not None:
                    refuse_too_many(seen, tombstone)
                head = self._committer.commit(ManifestChange(add_tombstones=(tombstone,)), (query.topic,))
            tombstone = _named(head, tombstone)
            counted = self._counted(self._runner.receipt_of(tombstone), query, before)
            return self._runner.update(
                tombstone, lambda receipt: replace(receipt, matched=counted.matched, to_rewrite=counted.to_rewrite)
            )

    def carry_out_deletion(self, topic: str, deletion: TopicDeletion, matched: MatchedRecords | None = None) -> None:
        """Gives the archive the tombstone of a deleted topic, and notes that it has it; repeatable after any failure.

        No hold forbids it: one that exists is that of a topic made again, of which nothing is meant.
        """
        with self._lock:
            tombstone = deletion.tombstone(topic)
            self._hand_over(topic, tombstone)
            if matched is not None:
                self._runner.update(tombstone, lambda receipt: replace(receipt, matched=matched))

    def _hand_over(self, topic: str, tombstone: Tombstone) -> None:
        """Commits a deletion's tombstone unless the archive had it already, as its receipt or the head shows."""
        head = self._manifest.refresh() if self._manifest.had_head else None
        is_open = head is not None and any(each.tombstone_id == tombstone.tombstone_id for each in head.tombstones)
        if not is_open and not (head is not None and self._runner.was_begun(tombstone)):
            self._archive_mover.commit_beside(ManifestChange(add_tombstones=(tombstone,)))
        self._runner.receipt_of(tombstone)  # before it is noted here: there is one from then on
        with self._hot.guard.writing("noting that a topic's deletion was told"):
            self._hot.topics.confirm_archived_deletion(topic, tombstone.tombstone_id)

    def run_once(self, progress: Progress | None = None) -> bool:
        """Takes open erasures on by one batch of segments, or closes them; whether there is more to do at once."""
        with self._lock:
            head = self._manifest.head
            if head is None or not head.tombstones:
                self._runner.nothing_open()
                return False
            self._archive_mover.remember(head)  # an erasure that a job began may close next, while hot copies remain
            tombstones = [tombstone for tombstone in head.tombstones if not self._is_held(tombstone.topic)]
            try:
                return self._runner.rewrite_batch(head, tombstones, progress) or self._runner.close(head, tombstones)
            except BaseException:
                self._runner.forget()
                raise

    def _counted(self, receipt: Receipt, query: Query, erased: Erasures) -> Receipt:
        """Returns the receipt with what readers see of the query below the tombstone's end, as if it were not there."""
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
            self._archive_mover.check_not_stopped()
        matched = MatchedRecords(counts[Tier.HOT], counts[Tier.COLD], complete)
        return replace(receipt, matched=matched, to_rewrite=tuple(sorted(base for base in bases if base < archived_to)))

    def _is_held(self, name: str) -> bool:
        topic = self._hot.topics.find(name)
        return topic is not None and topic.hold


def _bounds(query: Query) -> tuple[int | None, int | None]:
    """Returns the store times of the query; a side that was left open has no bound.

    Raises :class:`InvalidRequestError` for what no tombstone can say: it would erase more than was meant.
    """
    if query.filters is not None:
        raise InvalidRequestError(
            "an erasure is by topic, key and store time", hint="messages cannot be erased by tag, text or field"
        )
    return (query.from_ms or None, None if query.to_ms == END_OF_TIME_MS else query.to_ms)


def _named(head: Head, tombstone: Tombstone) -> Tombstone:
    return next((each for each in head.tombstones if each.tombstone_id == tombstone.tombstone_id), tombstone)


class TopicDeleter:
    """Deletes topics of one open store; one without a cold tier has no eraser. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        *,
        holding: threading.Lock,
        deleted: DeletedTopics,
        randomness: Randomness,
        manifest: ManifestStore | None,
        eraser: Eraser | None,
        publish_topics: Callable[[], None] | None,
    ) -> None:
        """``holding`` is held while a hold is changed; ``publish_topics`` tells the archive of topics."""
        self._hot = hot
        self._holding = holding
        self._deleted = deleted
        self._randomness = randomness
        self._manifest = manifest
        self._eraser = eraser
        self._publish_topics = publish_topics

    def plan(self, name: str) -> dict[str, Any]:
        """Returns the answer that :meth:`delete` would give now; nothing is changed."""
        _refuse_own(name)
        topic = self._hot.topics.get(name)
        refuse_held([topic], (name,))
        with self._hot.between_appends() as next_offset:
            begins = {queue_id: next_offset(topic, queue_id) for queue_id in range(topic.queues)}
        return {**_answer(topic, TopicDeletion(self._hot.log.end, begins)), "deleted": False, "receipt": None}

    def delete(self, name: str) -> dict[str, Any]:
        """Deletes a topic: nobody sees it or a message of it any more, and its queues go on if it is made again.

        Returns once the archive knows. Raises :class:`TopicNotFoundError`, :class:`ConflictError` for a topic on hold
        or too many open erasures, and the object store's error if it does not answer: then the topic is deleted in the
        store all the same, and the archive is told in the background, or by asking again. :class:`ForbiddenError` for a
        topic that the service keeps its own state in.
        """
        _refuse_own(name)
        owed = dict(self._deleted.unarchived()) if self._eraser is not None else {}
        if name in owed and self._hot.topics.find(name) is None:  # repeated: the archive lacks the deletion
            topic, deletion, matched = self._hot.topics.generations(name)[-1], owed[name], None
        else:
            matched = None if self._eraser is None else self._eraser.count(Query(name)).matched
            with self._hot.copying, self._holding:
                topic = self._hot.topics.get(name)
                refuse_held([topic], (name,))
                self._refuse_too_many(name)
                deletion = delete_topic(self._hot, name, self._randomness)
        if self._eraser is not None:
            self._eraser.carry_out_deletion(name, deletion, matched)
            if self._publish_topics is not None:
                self._publish_topics()
        return _answer(topic, deletion, has_receipt=self._eraser is not None)

    def hand_over_deletions(self) -> None:
        """Hands over the deletions that the archive was not told of when they were made, if there are any."""
        owed = self._deleted.unarchived()
        if owed and self._eraser is not None:
            for name, deletion in owed:
                self._eraser.carry_out_deletion(name, deletion)
            if self._publish_topics is not None:
                self._publish_topics()

    def _refuse_too_many(self, name: str) -> None:
        head = self._manifest.head if self._manifest is not None else None
        if head is not None:
            refuse_too_many(head, TopicDeletion(0, {}).tombstone(name))


def _answer(topic: Topic, deletion: TopicDeletion, *, has_receipt: bool = False) -> dict[str, Any]:
    return {
        "topic": topic.record_topic,
        "deleted": True,
        "below_offset": deletion.below,
        "queues": [
            {"queue_id": queue_id, "next_offset": offset} for queue_id, offset in sorted(deletion.begins.items())
        ],
        "tombstone_id": deletion.tombstone_id if has_receipt else None,
    }


def _refuse_own(name: str) -> None:
    """Refuses to delete what the service works by: with it went delayed messages, or what is known of those."""
    if is_numbered(name):
        raise InvalidRequestError(
            "generations of a topic are deleted together", hint=f"name the topic alone: {record_topic(name)}"
        )
    if name.startswith(_OWN_PREFIX) or name in _OWN_TOPICS:
        raise ForbiddenError(
            f"topic {name!r} is a system topic, which holds delayed messages or transactions",
            hint="delayed messages go by themselves once they have been delivered",
        )
