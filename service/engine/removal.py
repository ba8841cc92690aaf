"""Removal of messages from one open store: erasures, expiry, deleted topics, and the holds that forbid all of it.

:class:`Removal` is what the engine uses; :func:`make_removal` builds it. Messages expire by the rules that are set,
looked at every minute. ``tierlog/expiry.json`` says up to which expiries all segments were looked at. Killed before it
was written: segments are looked at again, and hold fillers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from tierlog.index.local.local_index import LocalIndex
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.searcher import Searcher
from tierlog.index.search.store_search import TieredStoreSearch
from tierlog.service.engine.archive_mover import ArchiveMover
from tierlog.service.engine.erasure import Eraser, TopicDeleter
from tierlog.service.engine.parts import ArchiveParts, Components, HotTier, StoreDirectory
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import FollowedError, InvalidRequestError, ReadOnlyError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.options import RetentionOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.write_guard import DiskSpace
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topic_deletion import DeletedTopics
from tierlog.tiering.lifecycle.archiver import due_border, held_border
from tierlog.tiering.lifecycle.erasure import ErasureRunner
from tierlog.tiering.lifecycle.erasure_receipts import ReceiptReports, plan_of
from tierlog.tiering.lifecycle.expiry import ColdRetention, ConfiguredRules, ExpiryRunner
from tierlog.tiering.lifecycle.rewrite_batches import RewriteBatchMaker, SegmentRewriter
from tierlog.tiering.lifecycle.store_view import Committer, HotView, refuse_held
from tierlog.tiering.lifecycle.tombstones import Erasures, FixedErasures, KnownErasures

_EXPIRY_EVERY_S = 60.0
_EXPIRY_FILE = JsonFile[Mapping[str, int]](
    decode=lambda document: {str(name): int(below_ms) for name, below_ms in document["looked"].items()},
    encode=lambda looked: {"looked": looked},
)


@dataclass(frozen=True, slots=True)
class GuardedCommits:
    """A :class:`~tiering.lifecycle.store_view.Committer` of an open store. Thread safe.

    It makes the commits that a hold forbids: none lands after a hold was acknowledged.
    """

    hot: HotStore
    archive_mover: ArchiveMover
    holding: threading.Lock
    """Held by whoever commits what a hold forbids, or changes a hold."""

    def commit(self, change: ManifestChange, topics: Collection[str]) -> Head:
        """Commits beside archiving, unless one of the topics is on hold."""
        with self.holding:
            refuse_held(self.hot.topics.all(), topics)
            return self.archive_mover.commit_beside(change)


class Expirer:
    """Lets archived messages of one open store expire. For one thread; :attr:`held_at` may be read by any."""

    def __init__(
        self,
        hot: HotStore,
        *,
        manifest: ManifestStore,
        archive_mover: ArchiveMover,
        committer: Committer,
        maker: RewriteBatchMaker,
        fs: FileSystem,
        paths: StorePaths,
        clock: Clock,
        options: RetentionOptions,
    ) -> None:
        self._hot = hot
        self._manifest = manifest
        self._archive_mover = archive_mover
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._options = options
        view = HotView(hot)
        retention = ColdRetention(view, manifest, ConfiguredRules(options))
        self._runner = ExpiryRunner(manifest, view, retention, committer, maker)
        self._looked = _EXPIRY_FILE.read(fs, paths.expiry_json) or {}
        self._goal: dict[str, int] = {}
        self._reached = 0
        self._again_s = 0.0
        #: The segment at which a hold keeps the rest of the archive from being dropped, None if none does.
        self.held_at: int | None = None

    def run_once(self) -> bool:
        """Raises the marks if a minute is over, and overwrites one batch; whether there is more to do at once."""
        head = self._manifest.head
        if head is None or not self._is_wanted(head):
            return False
        if self._clock.monotonic_s() >= self._again_s:
            self.held_at = self._runner.raise_marks(head, self._clock.now_ms()).held_at
            self._again_s = self._clock.monotonic_s() + _EXPIRY_EVERY_S
        return self._overwrite(self._manifest.head or head)

    def _is_wanted(self, head: Head) -> bool:
        options = self._options
        by_topic = any(topic.cold_retention_ms is not None for topic in self._hot.topics.all())
        return bool(options.cold_retention_ms or options.cold_max_bytes or by_topic or head.expired)

    def _overwrite(self, head: Head) -> bool:
        """Overwrites one batch of segments that hold enough of what has expired."""
        goal = self._runner.goal(head)
        if goal != self._goal:
            self._goal, self._reached = goal, head.cold_min
        if all(self._looked.get(name) == below_ms for name, below_ms in goal.items()):
            return False
        self._reached = self._runner.overwrite(head, self._reached, goal, self._looked).reached
        if self._reached < head.archived_to:
            return True
        self._save({**self._looked, **goal})
        return False

    def _save(self, looked: Mapping[str, int]) -> None:
        with self._archive_mover.local_step():
            _EXPIRY_FILE.replace(self._fs, self._paths.expiry_json, looked, self._paths.tmp)
        self._looked = dict(looked)


def remove_due(hot: HotStore, index: LocalIndex, retention: RetentionOptions, disk: DiskSpace, now_ms: int) -> None:
    """Removes old segments of a store without a cold tier by retention alone, unless they are held.

    What is not dispatched stays: queues and index follow the log, and must not begin above a hole of their own.
    """
    dispatched = hot.dispatch()
    due = due_border(hot, retention, now_ms, disk.excess_bytes())
    border = min(due, dispatched - dispatched % hot.log.segment_bytes, held_border(hot, has_archive=False))
    if border > hot.removed_to:
        border = _kept_border(hot, border)
    if border > hot.removed_to:
        hot.remove_below(border, forget=index.remove_below)


def _kept_border(hot: HotStore, border: int) -> int:
    """Returns the border below which nobody needs the log."""
    newest_ms = hot.last_store_ms
    for segment in hot.log.segments():
        if segment.base_offset == border:
            newest_ms = hot.first_store_ms(segment) or newest_ms
    for keeper in hot.keepers:
        border = min(border, keeper(border, newest_ms))
    return border - border % hot.log.segment_bytes


class TopicChanges(TypedDict, total=False):
    """Options of a topic; what is not named stays."""

    archive: bool
    cold_retention_ms: int | None
    hold: bool


class Removal:
    """The removals of one open store. Thread safe; a store without a cold tier has neither eraser nor receipts."""

    def __init__(
        self,
        hot: HotStore,
        *,
        holding: threading.Lock,
        eraser: Eraser | None,
        expirer: Expirer | None,
        receipts: ReceiptReports | None,
        publish_topics: Callable[[], None] | None,
        deleter: TopicDeleter,
        read_only: bool,
    ) -> None:
        """``holding`` is held while what a hold forbids is committed; ``publish_topics`` tells the archive."""
        self._hot = hot
        self._holding = holding
        self._eraser = eraser
        self._expirer = expirer
        self._receipts = receipts
        self._publish_topics = publish_topics
        self._deleter = deleter
        self._read_only = read_only

    def erase(
        self, query: Query, *, dry_run: bool = False, wait: bool = False, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Hides for ever what the query matches in the log now; returns the receipt.

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
        while wait and eraser.run_once(progress):
            pass
        return receipts.get(receipt.tombstone.tombstone_id)

    def delete_topic(
        self, name: str, *, dry_run: bool = False, wait: bool = False, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Deletes a topic with all its messages; see :meth:`TopicDeleter.delete`.

        Rewriting follows in the background, or before the answer with ``wait``, as far as the log is archived.
        """
        self._check_writable()
        if dry_run:
            return self._deleter.plan(name)
        if self._hot.is_followed:
            raise FollowedError(
                f"the store follows a RocketMQ broker, whose topic {name!r} is",
                hint="delete it there; what is stored of it here can be erased",
            )
        done = self._deleter.delete(name)
        eraser, tombstone_id = self._eraser, done["tombstone_id"]
        while wait and eraser is not None and eraser.run_once(progress):
            pass
        receipt = None if self._receipts is None or tombstone_id is None else self._receipts.get(tombstone_id)
        return {**done, "receipt": receipt}

    def run_once(self) -> bool:
        """Rewrites one batch in the background, if there is any; returns whether more can be done at once."""
        if self._eraser is None or self._expirer is None:
            return False
        self._deleter.hand_over_deletions()
        has_more = self._eraser.run_once()
        return self._expirer.run_once() or has_more

    @property
    def held_at(self) -> int | None:
        """The segment at which a topic on hold keeps the rest of the archive from being dropped."""
        return None if self._expirer is None else self._expirer.held_at

    def receipts(self) -> list[dict[str, Any]]:
        """Returns the receipts of all erasures, the oldest first."""
        return self._cold().all()

    def receipt(self, tombstone_id: str) -> dict[str, Any]:
        """Returns the receipt of one erasure; raises :class:`NotFoundError` for an unknown one."""
        return self._cold().get(tombstone_id)

    def configure(self, name: str, **changes: Unpack[TopicChanges]) -> None:
        """Changes options of a topic, durably.

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
        if self._publish_topics is not None:
            self._publish_topics()

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the store was opened read-only")

    def _cold(self) -> ReceiptReports:
        if self._receipts is None:
            raise InvalidRequestError(
                "this store has no cold tier, where an erasure is written down",
                hint="open it once with --cold URL, or let hot.retention_ms remove the messages",
            )
        return self._receipts


def make_removal(
    hot_tier: HotTier,
    archive: ArchiveParts | None,
    *,
    directory: StoreDirectory,
    components: Components,
    identity: StoreIdentity,
    searcher: Searcher,
    archive_mover: ArchiveMover | None,
    known: KnownErasures,
) -> Removal:
    """Makes the removal of a store that is being opened; without an archive it only deletes topics here."""
    hot, clock, randomness = hot_tier.store, components.clock, components.randomness
    # without an archive topics can be deleted here, and nothing else can be removed
    holding = threading.Lock()
    manifest = archive.manifest if archive else None
    receipts = None if manifest is None else ReceiptReports(HotView(hot), manifest, identity.volume_id)
    deleted = DeletedTopics(hot)
    if archive is None or manifest is None or archive_mover is None:
        deleter = TopicDeleter(
            hot,
            holding=holding,
            deleted=deleted,
            randomness=randomness,
            manifest=manifest,
            eraser=None,
            publish_topics=None,
        )
        return Removal(
            hot,
            holding=holding,
            eraser=None,
            expirer=None,
            receipts=receipts,
            publish_topics=None,
            deleter=deleter,
            read_only=directory.read_only,
        )

    # what carries out erasures: it counts matches by a search with exactly the given erasures
    def find(query: Query, erased: Erasures) -> Answer:
        store = TieredStoreSearch(identity.store_id, hot, hot_tier.index, archive.cold_index, FixedErasures(erased))
        return searcher.search([store], query)

    rewriter = SegmentRewriter(manifest, randomness, clock, archive_mover.check_not_stopped)
    committer = GuardedCommits(hot, archive_mover, holding)
    eraser = Eraser(
        hot,
        archive_mover,
        manifest=manifest,
        committer=committer,
        runner=ErasureRunner(manifest, committer, rewriter, clock, randomness),
        known=known,
        find=find,
        components=components,
    )
    # what lets messages expire, and what deletes topics
    expirer = Expirer(
        hot,
        manifest=manifest,
        archive_mover=archive_mover,
        committer=committer,
        maker=rewriter,
        fs=directory.fs,
        paths=directory.paths,
        clock=clock,
        options=components.settings.retention_options(),
    )
    deleter = TopicDeleter(
        hot,
        holding=holding,
        deleted=deleted,
        randomness=randomness,
        manifest=manifest,
        eraser=eraser,
        publish_topics=archive_mover.publish_topics,
    )
    return Removal(
        hot,
        holding=holding,
        eraser=eraser,
        expirer=expirer,
        receipts=receipts,
        publish_topics=archive_mover.publish_topics,
        deleter=deleter,
        read_only=directory.read_only,
    )
