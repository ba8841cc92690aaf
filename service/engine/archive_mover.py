"""The way from the hot tier to the archive: claim, archive, publish the index, raise the border, remove.

One step at a time under one lock, whoever asks: the background loop, a command, a request. Every step can be cut off
anywhere; the watermarks in the manifest say where to go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.objects.publisher import IndexPublisher
from tierlog.service.engine.parts import ArchiveParts, Components, HotTier, StoreDirectory
from tierlog.tiering.base.errors import ConflictError, FencedError, StoreMismatchError
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.cold.manifest.store import ManifestChange, Ownership
from tierlog.tiering.cold.manifest.sweep import Sweep
from tierlog.tiering.format.manifest import Head, ObjectRef
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.lifecycle.archiver import Archiver, due_border, safe_border
from tierlog.tiering.lifecycle.last_head import save_last_head
from tierlog.tiering.lifecycle.state_writer import StateWriter
from tierlog.tiering.lifecycle.tombstones import KnownErasures

_LOG = logging.getLogger("tierlog")
_HEAD_WATCH_S = 10.0
#: The first sweep waits: a store that was just opened has more urgent work.
_FIRST_SWEEP_S = 600.0
T = TypeVar("T")


@dataclass(slots=True)
class ArchiveReport:
    """The outcome of one archiving round, and the watermarks after it."""

    segments: int = 0
    index_objects: int = 0
    bytes_raw: int = 0
    bytes_stored: int = 0
    archived_to: int = 0
    indexed_to: int = 0
    border: int = 0


def owner_of(identity: StoreIdentity) -> Ownership:
    """Returns the identity that an open store has to its manifest."""
    return Ownership(identity.volume_id, identity.open_id, identity.head_open_ids)


class ArchiveMover:
    """Moves one open store's data to its archive."""

    def __init__(
        self,
        hot: HotTier,
        archive: ArchiveParts,
        *,
        directory: StoreDirectory,
        components: Components,
        identity: StoreIdentity,
        known: KnownErasures,
        state: StateWriter,
    ) -> None:
        self._hot, self._index, self._disk = hot.store, hot.index, hot.disk
        self._index_maintenance = hot.index_maintenance
        self._manifest = manifest = archive.manifest
        self._identity = identity
        self._fs, self._paths = directory.fs, directory.paths
        self._clock = clock = components.clock
        self._retention = components.settings.retention_options()
        #: Raises if the store is closing or read-only.
        self.check_not_stopped = hot.changes.check
        #: Surrounds a change of local files; none happens after the store was stopped.
        self.local_step = hot.changes.step
        self._known = known
        self._archiver = Archiver(hot.store, manifest, components.randomness, state)
        self._state = state
        self._publisher = IndexPublisher(
            hot.index,
            manifest,
            randomness=components.randomness,
            fs=directory.fs,
            tmp_dir=directory.paths.tmp,
            local_step=self.local_step,
            filters=archive.filters,
        )
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._remembering = threading.Lock()
        self._claimed = False
        self._remembered = 0
        self._look_again_s = 0.0
        self._sweep = Sweep(manifest, clock, self.check_not_stopped)
        self._sweep_every_s = manifest.options.grace_ms / 4000
        self._sweep_at_s = clock.monotonic_s() + min(_FIRST_SWEEP_S, self._sweep_every_s)

    def archive(
        self,
        *,
        until_ms: int | None = None,
        everything: bool = False,
        drop_hot: bool = False,
        progress: Progress | None = None,
    ) -> ArchiveReport:
        """Publishes rolled segments and sealed index files; with ``drop_hot`` removes what is safe to remove.

        ``everything`` rolls and seals first; ``until_ms`` does so only if the active segment holds older records,
        and stops at the first segment without one.
        """
        with self._lock:
            head = self.claim()
            if everything or (until_ms is not None and self._active_begins_before(until_ms)):
                self._roll()
            report = ArchiveReport()
            head = self._archive_segments(head, report, until_ms, progress)
            head = self._publish_state(head, self._state.if_changed)
            head = self._publish_index(head, report)
            if drop_hot:
                self._remove_below(safe_border(self._hot, self._if_own(head)))
            report.archived_to, report.indexed_to, report.border = head.archived_to, head.indexed_to, self._hot.border
            return report

    def renew_state(self) -> None:
        """Writes the state object anew; what a cache still has of a lost one is kept."""
        self._state.doubt()
        self.archive()

    def publish_topics(self) -> None:
        """Publishes the topics as they are now, if the archive does not have them; before there is one, does nothing.

        Beside the other steps: it waits for no more than one commit of a backlog that is being archived.
        """
        if not self._manifest.had_head:
            return
        self.claim()
        with self._state.publishing:
            begun_s = self._manifest.begin_upload()
            ref = self._state.with_topics(self.claim())
            if ref is not None:
                change = ManifestChange(state=ref, begun_s=begun_s)
                self.remember(self._unless_lost(partial(self._manifest.commit_other, change, owned=True)))

    def roll_and_remove(self) -> None:
        """Does what needs no archive: rolls by age, removes what is due."""
        with self._lock:
            excess_bytes = self._disk.excess_bytes()
            due = due_border(self._hot, self._retention, self._clock.now_ms(), excess_bytes)
            with self.local_step():
                self._roll_by_age()
                if self._hot.border < due:
                    if excess_bytes and self._waits_for_active(due):
                        self._roll()
                    elif self._index.open_from < due:
                        self._index.put_aside()
            self._remove_below(min(due, safe_border(self._hot, self.own_head())))

    def archive_due(self) -> None:
        """Archives what waits and removes what is due and safe by then.

        An idle store asks the archive for its head every 10 s, to learn that another has taken it over, and writes
        nothing there.
        """
        with self._lock:
            self._watch_head()
            head = self._manifest.head
            is_behind = head is None or bool(self._archiver.waiting(head)) or self._publisher.has_work(head)
            if is_behind:
                head = self._archive_segments(self.claim(), ArchiveReport(), None, None)
            assert head is not None
            head = self._publish_state(head, self._state.if_due)  # not held up by an index that cannot be published
            if is_behind:
                head = self._publish_index(head, ArchiveReport())
                due = due_border(self._hot, self._retention, self._clock.now_ms(), self._disk.excess_bytes())
                self._remove_below(min(due, safe_border(self._hot, self._if_own(head))))

    def _publish_state(self, head: Head, wanted: Callable[[Head], ObjectRef | None]) -> Head:
        """Publishes the state of groups and queue ends, if that is due."""
        with self._state.publishing:
            begun_s = self._manifest.begin_upload()
            ref = wanted(self._manifest.head or head)
            if ref is not None:
                change = ManifestChange(state=ref, begun_s=begun_s)
                head = self._despite_erasures(self.claim(), lambda seen: self._manifest.commit(change, seen))
                self.remember(head)
            return head

    def sweep_due(self) -> None:
        """Deletes what nobody names any more, every quarter of the grace period. Runs beside the other tasks."""
        if (
            self._clock.monotonic_s() < self._sweep_at_s
            or self._manifest.head is None
            or self._hot.guard.read_only_reason
        ):
            return
        report = self._unless_lost(partial(self._sweep.run, self.claim))
        if report.is_whole:
            self._sweep_at_s = self._clock.monotonic_s() + self._sweep_every_s
        if report.kept:
            _LOG.error("%d names are named and on the removed list, such as %s", len(report.kept), report.kept[0])
        if report.removed or report.orphans or report.uploads:
            _LOG.info(
                "swept the archive: %d objects that were replaced, %d that nobody named, %d unfinished uploads",
                report.removed, report.orphans, report.uploads,
            )  # fmt: skip

    def claim(self) -> Head:
        """Returns the head, in which this open is the one that may write."""
        self.check_not_stopped()
        if not self._claimed:
            with self._claiming:
                if not self._claimed:
                    return self._first_claim()
        head = self._manifest.head
        assert head is not None
        if self._if_own(head) is None:
            self.check_owner()  # raises, and makes the store read-only
        return head

    def own_epoch(self) -> int | None:
        """Returns the epoch that this open holds in the head, by a look at it; None while another step is under way.

        The head is claimed if it was not yet: from then on no earlier open writes to the archive. Raises as the claim.
        """
        if not self._claimed:
            if not self._lock.acquire(blocking=False):
                return None
            try:
                return self.claim().epoch
            finally:
                self._lock.release()
        self.check_owner()
        head = self.own_head()
        return None if head is None else head.epoch

    def own_head(self) -> Head | None:
        """Returns the head last seen; None before the first contact, and once it is another's, of whose log its marks
        speak."""
        return self._if_own(self._manifest.head)

    def _if_own(self, head: Head | None) -> Head | None:
        """Returns the head if this open wrote it.

        Any reader may be the first to see a head that another volume, or a copy of this one, has written.
        """
        mine = self._identity
        return head if head and head.volume_id == mine.volume_id and head.open_id in mine.head_open_ids else None

    def check_owner(self) -> None:
        """Asks the head whether this store still may write; it is read-only from then on if not."""
        self._unless_lost(partial(self._manifest.check_owner, owner_of(self._identity), log_end=self._hot.log.end))

    def _watch_head(self) -> None:
        if self._clock.monotonic_s() < self._look_again_s:
            return
        self.check_owner()
        self._look_again_s = self._clock.monotonic_s() + _HEAD_WATCH_S
        if self._manifest.head is not None:
            self.remember(self._manifest.head)  # another process may have begun an erasure

    def _first_claim(self) -> Head:
        head = self._unless_lost(
            partial(
                self._manifest.claim, owner_of(self._identity), log_begin=self._hot.log.begin, log_end=self._hot.log.end
            )
        )
        with self.local_step():
            self._identity = self._identity.published()
            self._identity.save(self._fs, self._paths)
            self._index.set_indexed_to(head.indexed_to)
            self.remember(head)
            self._claimed = True
        return head

    def change_identity(self, change: Callable[[StoreIdentity], StoreIdentity]) -> None:
        """Makes durable what ``change`` makes of the store's identity."""
        with self._claiming, self.local_step():
            identity = change(self._identity)
            identity.save(self._fs, self._paths)
            self._identity = identity

    def _archive_segments(
        self, head: Head, report: ArchiveReport, until_ms: int | None, progress: Progress | None
    ) -> Head:
        waiting = self._archiver.waiting(head)
        if until_ms is not None:
            waiting = [segment for segment in waiting if (self._hot.first_store_ms(segment) or 0) < until_ms]
        for number, segment in enumerate(waiting):
            self.check_not_stopped()
            head = self._despite_erasures(head, partial(self._archiver.archive, segment))
            self.remember(head)
            report.segments += 1
            report.bytes_raw += head.log[-1].raw_bytes
            report.bytes_stored += head.log[-1].size_bytes
            if progress is not None:
                progress(number + 1, len(waiting))
        return head

    def _publish_index(self, head: Head, report: ArchiveReport) -> Head:
        self._index_maintenance.keep()
        try:
            return self._publish(head, report)
        except CorruptIndexError as error:
            self._index_maintenance.derive_damaged(error)
            return self._publish(self._manifest.head or head, report)

    def _publish(self, head: Head, report: ArchiveReport) -> Head:
        names = {topic.topic_id: topic.name for topic in self._hot.topics.all()}
        head, objects = self._despite_erasures(head, lambda seen: self._publisher.publish(seen, names))
        report.index_objects += objects
        self.remember(head)
        self._index.settle()
        return head

    def _unless_lost(self, step: Callable[[], T]) -> T:
        """Takes a step; learning that the archive is no longer ours makes the store read-only for good."""
        try:
            return step()
        except (FencedError, StoreMismatchError) as error:
            self._hot.guard.turn_read_only(str(error))
            raise

    def _despite_erasures(self, head: Head, step: Callable[[Head], T]) -> T:
        """Takes a step that commits, again from the newer head as long as only erasures came in between."""
        while True:
            try:
                return self._unless_lost(partial(step, head))
            except StoreMismatchError:
                raise
            except ConflictError:
                newer = self._manifest.head
                if newer is None or newer.tombstones == head.tombstones:
                    raise
                head = newer

    def commit_beside(self, change: ManifestChange) -> Head:
        """Commits what is no step of archiving (an erasure, expiry), while one may be under way.

        When it returns the new head is in ``head.json``, so that a restart with a dead bucket knows it. Raises
        :class:`ConflictError` if what the change removes is gone, the object store's error if the outcome is unknown.
        """
        self.check_not_stopped()
        self.claim()
        head = self._unless_lost(partial(self._manifest.commit_other, change, owned=True))
        for entry in change.remove:
            self._manifest.cache.forget(entry.key)
        self.remember(head)
        return head

    def remember(self, head: Head) -> None:
        """Makes ``head.json`` say what a head says, and of which earlier erasures hot copies remain, durably."""
        if head.version > self._remembered:
            self._save_seen(head)

    def _save_seen(self, head: Head) -> None:
        with self.local_step(), self._remembering:
            if head.version >= self._remembered:
                tombstones = self._known.to_save(head, self._hot.log.begin)
                save_last_head(self._fs, self._paths, head, tombstones)
                self._known.was_saved(tombstones)
                self._remembered = head.version

    def _roll_by_age(self) -> None:
        old = self._clock.now_ms() - self._retention.roll_age_ms
        if self._active_begins_before(old):
            self._roll()

    def _roll(self) -> None:
        with self.local_step():
            self._hot.roll()
            self._hot.dispatch()
            self._index.put_aside()

    def _waits_for_active(self, due: int) -> bool:
        """Whether segments below ``due`` cannot go before the active one is rolled, for which there is room.

        An index file that reaches into the active segment is published after it, and all it points into stays.
        """
        active = self._hot.log.last_base
        if self._disk.free_bytes() < 2 * self._hot.log.segment_bytes:
            return False
        return any(file.first < due and (file.next is None or file.next > active) for file in self._index.files())

    def _active_begins_before(self, time_ms: int) -> bool:
        first_ms = self._hot.first_store_ms(self._hot.log.segments()[-1])
        return first_ms is not None and first_ms < time_ms

    def _remove_below(self, border: int) -> None:
        if border > self._hot.removed_to:
            self.check_not_stopped()
            self._hot.remove_below(border, forget=self._index.remove_below)
            head = self.own_head()
            if head is not None and self._known.to_save(head, self._hot.log.begin) != self._known.saved_tombstones:
                self._save_seen(head)  # without erasures of which the last hot copy is gone
