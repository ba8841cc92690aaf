"""What takes messages away before their time or for good, and what forbids it: erasures, expiry, holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from index.cold_index import ColdIndex
from index.local_index import LocalIndex
from index.query import Answer, Query
from index.search import Searcher
from index.store_search import TieredStoreSearch
from service.archiving import ColdWay
from service.deleting import TopicDeleter
from service.erasing import Eraser, Progress
from service.expiring import Expirer
from service.guarded_commits import GuardedCommits
from tiering.clock import Clock
from tiering.disk_space import DiskSpace
from tiering.erasing.course import ErasureCourse
from tiering.erasing.known import KnownErasures
from tiering.erasing.receipts import Receipts, plan_of
from tiering.erasing.rewriting import SegmentRewriter
from tiering.erasing.tombstones import Erasures, FixedErasures
from tiering.errors import InvalidRequestError, ReadOnlyError
from tiering.fs import FileSystem
from tiering.hot.deleting import DeletedTopics
from tiering.hot.identity import StoreIdentity
from tiering.hot.store import HotStore
from tiering.options import RetentionOptions
from tiering.paths import StorePaths
from tiering.randomness import Randomness
from tiering.retention import due_border, held_border
from tiering.store_view import HotView


def remove_due(hot: HotStore, index: LocalIndex, retention: RetentionOptions, disk: DiskSpace, now_ms: int) -> None:
    """Remove by retention alone: what happens to old segments of a store without a cold tier, unless they are held.

    What is not dispatched stays: queues and index follow the log, and must not begin above a hole of their own.
    """
    dispatched = hot.dispatch()
    due = due_border(hot, retention, now_ms, disk.excess_bytes())
    border = min(due, dispatched - dispatched % hot.log.segment_bytes, held_border(hot, has_archive=False))
    if border > hot.removed_to:
        hot.remove_below(border, forget=index.remove_below)


class TopicChanges(TypedDict, total=False):
    """Options of a topic; what is not named stays."""

    archive: bool
    cold_retention_ms: int | None
    hold: bool


class Removal:
    """Of one open store. Thread safe; a store without a cold tier has neither eraser nor receipts."""

    def __init__(
        self,
        hot: HotStore,
        holding: threading.Lock,
        eraser: Eraser | None,
        expirer: Expirer | None,
        receipts: Receipts | None,
        tell: Callable[[], None] | None,
        deleter: TopicDeleter,
        *,
        read_only: bool,
    ) -> None:
        """``holding`` is held while what a hold forbids is committed; ``tell`` tells the archive of topics."""
        self._hot = hot
        self._holding = holding
        self._eraser = eraser
        self._expirer = expirer
        self._receipts = receipts
        self._tell = tell
        self._deleter = deleter
        self._read_only = read_only

    def erase(
        self, query: Query, *, dry_run: bool = False, wait: bool = False, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Hide for ever what the query matches in the log now; the receipt.

        Rewriting follows in the background, or before the answer with ``wait``, as far as the log is archived. A dry
        run tells what would match. Raises :class:`InvalidRequestError` without a cold tier.
        """
        self._check_writable()
        receipts = self._cold()
        self._hot.topics.get(query.topic)
        eraser = self._eraser
        assert eraser is not None
        if dry_run:
            return plan_of(eraser.count(query), receipts.store_id)
        receipt = eraser.begin(query)
        while wait and eraser.round(progress):
            pass
        return receipts.get(receipt.tombstone.tombstone_id)

    def delete_topic(
        self, name: str, *, dry_run: bool = False, wait: bool = False, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Delete a topic with all its messages; see :meth:`TopicDeleter.delete`.

        Rewriting follows in the background, or before the answer with ``wait``, as far as the log is archived.
        """
        self._check_writable()
        if dry_run:
            return self._deleter.plan(name)
        done = self._deleter.delete(name)
        eraser, tombstone_id = self._eraser, done["tombstone_id"]
        while wait and eraser is not None and eraser.round(progress):
            pass
        receipt = None if self._receipts is None or tombstone_id is None else self._receipts.get(tombstone_id)
        return {**done, "receipt": receipt}

    def round(self) -> bool:
        """One turn in the background: a batch of rewriting, if there is any; whether there is more to do at once."""
        if self._eraser is None or self._expirer is None:
            return False
        self._deleter.tell_archive()
        has_more = self._eraser.round()
        return self._expirer.round() or has_more

    @property
    def held_at(self) -> int | None:
        """The segment at which a topic on hold keeps the rest of the archive from being dropped."""
        return None if self._expirer is None else self._expirer.held_at

    def receipts(self) -> list[dict[str, Any]]:
        """Receipts of all erasures, the oldest first."""
        return self._cold().all()

    def receipt(self, tombstone_id: str) -> dict[str, Any]:
        """The receipt of one; :class:`NotFoundError`."""
        return self._cold().get(tombstone_id)

    def configure(self, name: str, **changes: Unpack[TopicChanges]) -> None:
        """Change options of a topic, durably.

        A hold that begins waits for the commit of an erasure or of expiry that is under way; after it returned there
        is none until it ends. The archive is told before it returns, because jobs ask nobody else: if that fails the
        options are in force here all the same, and the object store's error is raised.
        """
        self._check_writable()
        with self._holding:
            topic = self._hot.topics.get(name)
            with self._hot.guard.writing("changing a topic"):
                self._hot.topics.set_options(
                    topic,
                    archive=changes.get("archive", topic.archive),
                    cold_retention_ms=changes.get("cold_retention_ms", topic.cold_retention_ms),
                    hold=changes.get("hold", topic.hold),
                    log_end=self._hot.log.end,
                )
        if self._tell is not None:
            self._tell()

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the store was opened read-only")

    def _cold(self) -> Receipts:
        if self._receipts is None:
            raise InvalidRequestError(
                "this store has no cold tier, where an erasure is written down",
                hint="open it once with --cold URL, or let hot.retention_ms remove the messages",
            )
        return self._receipts


def make_removal(
    identity: StoreIdentity,
    hot: HotStore,
    index: LocalIndex,
    cold_index: ColdIndex | None,
    searcher: Searcher,
    cold_way: ColdWay | None,
    known: KnownErasures,
    fs: FileSystem,
    clock: Clock,
    randomness: Randomness,
    options: RetentionOptions,
    *,
    root: Path,
    read_only: bool,
) -> Removal:
    """The removal of a store that is being opened at ``root``."""
    holding = threading.Lock()
    manifest = cold_index.manifest if cold_index else None
    receipts = None if manifest is None else Receipts(HotView(hot), manifest, identity.volume_id)
    deleted = DeletedTopics(hot)
    if manifest is None or cold_way is None:
        deleter = TopicDeleter(hot, holding, deleted, randomness, manifest, None, None)
        return Removal(hot, holding, None, None, receipts, None, deleter, read_only=read_only)

    def find(query: Query, erased: Erasures) -> Answer:
        store = TieredStoreSearch(identity.store_id, hot, index, cold_index, FixedErasures(erased))
        return searcher.search([store], query)

    rewriter = SegmentRewriter(manifest, randomness, clock, cold_way.check_going_on)
    committer = GuardedCommits(hot, cold_way, holding)
    course = ErasureCourse(manifest, committer, rewriter, clock, randomness)
    eraser = Eraser(
        hot,
        manifest,
        committer,
        course,
        known,
        clock,
        randomness,
        cold_way.check_going_on,
        cold_way.remember,
        find,
        cold_way.commit_beside,
    )
    expirer = Expirer(hot, manifest, cold_way, committer, rewriter, fs, StorePaths(root), clock, options)
    deleter = TopicDeleter(hot, holding, deleted, randomness, manifest, eraser, cold_way.tell_topics)
    return Removal(hot, holding, eraser, expirer, receipts, cold_way.tell_topics, deleter, read_only=read_only)
