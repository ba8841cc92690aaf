"""The hot tier as a whole: open and recover, append, flush, dispatch, take snapshots, remove what the archive holds.

Locks, in the order they are taken: append (who writes the log), dispatch (who derives from it), state (border and
pins; held for moments only). A failed write or flush makes the store read-only for good, with a reason; reading goes
on. Nothing is acknowledged after that, and a failed flush is never tried again as if nothing had happened. Where the
system only has no descriptor to spare (:class:`OutOfResourcesError`), the disk was not asked: the step is taken again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, ConflictError, CorruptionError, ReadOnlyError, StoreError
from tierlog.tiering.base.fs import ByteArray, FileSystem, replace_file
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.base.types import Durability
from tierlog.tiering.base.write_guard import WriteGuard
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.record import BLANK_BYTES, MAGIC_BLANK, decode_record
from tierlog.tiering.hot.batch_writer import AppendResult, BatchWriter
from tierlog.tiering.hot.commit_log import CommitLog, PutBack, Segment
from tierlog.tiering.hot.consume_queue import ConsumeQueues, QueueView
from tierlog.tiering.hot.damage import KnownDamage, LostMessages
from tierlog.tiering.hot.dispatch import ClassicFiles, Dispatcher, DispatchRetry, LogSubscriber
from tierlog.tiering.hot.producers import ProducerSequences, ProducerWindow, marks
from tierlog.tiering.hot.recovery import load_queues, recover_log
from tierlog.tiering.hot.snapshot import HotSnapshot, Pins
from tierlog.tiering.hot.topics import Topic, TopicRegistry
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.message.batch import MessageBatch
from tierlog.tiering.message.pending import LoneMessage

_LOG = logging.getLogger("tierlog")
#: Above every physical offset.
NO_LIMIT = (1 << 63) - 1


class HotStore:
    """One open store directory. All methods are thread safe."""

    def __init__(
        self,
        fs: FileSystem,
        paths: StorePaths,
        clock: Clock,
        options: HotOptions,
        store_host: bytes,
        *,
        published_below: int = 0,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Loads what is there; nothing may be appended before :meth:`recover`. The caller holds the store's lock."""
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._tracer = tracer
        self._options = options
        self._append_lock = threading.Lock()
        self._dispatch_lock = threading.RLock()
        self._state = threading.Condition()
        self._pins = Pins(self._state, clock)
        #: Whether it may still be written.
        self.guard = WriteGuard()
        self._appending, self._flushing = self.guard.writing("append"), self.guard.writing("flush")
        self._closed = False
        #: Damaged units of queues that were derived again, as often as readers met them.
        self.mended_units = 0
        self._dispatch_retry = DispatchRetry(clock)
        self._checkpointed: Checkpoint | None = None
        self._classic: ClassicFiles | None = None
        for folder in (paths.tmp, paths.commitlog, paths.consumequeue, paths.tierlog):
            fs.make_dirs(folder)
        for name in fs.list_dir(paths.tmp):
            fs.unlink(paths.tmp / name)
        self.topics = TopicRegistry(
            fs, paths, 1 if options.foreign or options.followed else options.default_queues,
            read_only=options.foreign, foreign=options.foreign or options.followed,
        )  # fmt: skip
        # before the log: where a writer goes on beside this, the log may be ahead of it, but never behind
        checkpoint = Checkpoint.decode(fs.read(paths.checkpoint)) if fs.exists(paths.checkpoint) else Checkpoint()
        self.log = CommitLog(fs, paths, options.segment_bytes, clock, options.visibility)
        self.log.load(published_below)
        #: What of the log is known to be damaged.
        self.damage = KnownDamage(fs, paths, clock, self.log.begin)
        if self.log.is_empty:
            self.log.add_first_segment(options.begin)
        self._writer = BatchWriter(self.log, self.topics, clock, store_host, record_checksum=options.record_checksum)
        #: Who is asked before segments go that are the only copies, see :meth:`service.engine.store.Store.keep_log`.
        self.keepers: list[Callable[[int, int], int]] = []
        #: Held by who copies messages to another topic, from the look whether they are erased until the copies are
        #: there, and by who erases, from the end below which that counts until readers obey: no copy comes in between.
        self.copying = threading.Lock()
        #: What producers that number their messages have sent.
        self.producers = ProducerWindow(fs, paths, clock, options)
        #: Whether a follower of a broker writes the log, see :class:`~tiering.hot.followed_log.FollowedLog`.
        self.is_followed = options.followed
        #: The archive gets nothing at or above this physical offset, where a record begins; no limit unless somebody
        #: sets one.
        self.publish_below = NO_LIMIT
        #: Below this physical offset store times may step back.
        self.times_fall_below = 0
        self.border = self.log.begin
        #: Everything below is gone from the disk: the border, unless a removal is to be taken up again.
        self.removed_to = self.border
        self.queues = ConsumeQueues(fs, paths, options.queue_file_units, self.topics, foreign=options.foreign)
        self.queues.followed_below = NO_LIMIT if options.followed else options.followed_below
        self._published_below = published_below
        stopped_cleanly = not fs.exists(paths.abort)
        self._recovery_point = load_queues(self.queues, self.log, checkpoint, stopped_cleanly=stopped_cleanly)

    @property
    def followed_below(self) -> int:
        """A follower wrote the log below this physical offset, whoever writes it now; 0: nobody ever did."""
        return self.queues.followed_below

    # opening and closing

    def recover(
        self, subscribers: Sequence[LogSubscriber], classic: ClassicFiles | None = None, put_back: PutBack | None = None
    ) -> None:
        """Finds the log's end, derives what is missing, and gets ready to append.

        ``put_back`` adds what others still have. See :func:`recover_log` for what it raises. Killed in here: the next
        open does the same again.
        """
        self._classic = classic
        derived: list[LogSubscriber] = [*subscribers, *([] if classic is None else [classic])]
        if self.producers.is_in_use:
            derived.append(self.producers)
        self._dispatcher = Dispatcher(
            self.log, self.topics, [self.queues, *derived], is_foreign=self.queues.is_foreign,
            second_beginning=self.queues.second_beginning if self.queues.followed_below else None,
        )  # fmt: skip
        end = recover_log(
            self.log, self.queues, self._dispatcher, self._recovery_point,
            published_below=self._published_below, put_back=put_back,
        )  # fmt: skip
        self.topics.forget_generations(end)  # of what the disk forgot, or what the broker took back
        self.producers.recovered(end)
        self._writer.last_store_ms = self.queues.last_store_ms
        for key, next_offset in self.queues.next_offsets().items():
            self._writer.raise_next(key, next_offset)
        # From here on a stop without :meth:`close` is an unclean one. Killed before the checkpoint: the old one holds.
        replace_file(self._fs, self._paths.abort, str(os.getpid()).encode(), self._paths.tmp)
        self.checkpoint()

    def derive(self, subscriber: LogSubscriber, start: int, end: int) -> None:
        """Hands the records of ``[start, end)`` to one more subscriber, which says it is at ``start``.

        The dispatcher goes on beside it; what is hot is pinned as for a reader.
        """
        if start < end:
            with self._pinned(), self._suspecting():
                Dispatcher(self.log, self.topics, [subscriber], topics_are_known=True).run(end)

    @contextlib.contextmanager
    def _suspecting(self) -> Iterator[None]:
        """Suspects the place that an error inside names."""
        try:
            yield
        except CorruptionError as error:
            if error.position is not None:
                self.damage.suspect(error.position)
            raise

    def close(self) -> None:
        """Flushes, dispatches, writes the checkpoint and notes the clean stop. Idempotent."""
        with self._append_lock:
            if self._closed:
                return
            self._closed = True
        with self._state:
            self._state.notify_all()
        self.damage.close()
        try:
            if self.guard.read_only_reason is None:
                self.flush()
                self.dispatch()
                self._flush_classic()
                self.checkpoint(at_once=True)
                self.log.close()
                self.log.discard_prepared()
                self._fs.unlink(self._paths.abort)
                self._fs.flush_dir(self._paths.root)
        finally:
            self.log.close()

    def _flush_classic(self) -> None:
        with self._dispatch_lock, self.guard.writing("flush of the classic index"):
            if self._classic is not None:
                self._classic.flush()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")

    # appending

    def append(
        self,
        batch: MessageBatch | LoneMessage,
        durability: Durability,
        origin: ProducerSequences | None = None,
        *,
        create_topics: bool = True,
    ) -> AppendResult:
        """Appends a batch; all but ``async`` return after its bytes are durable. It archives nothing.

        ``async`` returns at once unless more than ``flush_dirty_bytes`` are unflushed, which is how much a crash of
        the machine may lose. ``origin`` is kept in the records, and known from now on. Raises
        :class:`MessageTooLargeError` for a record that no segment can hold, :class:`InvalidRequestError` for a queue
        that a topic does not have, :class:`TopicNotFoundError` for a topic that may not be made, and
        :class:`ConflictError` for a new one where there are ``max_topics``, before anything is written.
        """
        if origin is not None:
            assert isinstance(batch, MessageBatch)
            batch = batch.with_marks(marks(origin.producer, origin.sequences.tolist()))
        sizes = self._writer.record_sizes(batch)
        with self._append_lock:
            self._check_open()
            self._check_topics(batch.topics, may_make=create_topics)
            self._writer.check_queues(batch)
            with self._appending:
                if origin is not None:
                    self.producers.begin(self.log.end, self.log.flushed)
                result = self._writer.append(batch, sizes)
                if origin is not None:
                    self.producers.register(origin, result.physical_offset, sizes, result.store_ms)
            end = self.log.end
        if durability is not Durability.ASYNC or end - self.log.flushed > self._options.flush_dirty_bytes:
            with self._tracer.span("flush wait"):
                self.flush(end)
        return result

    def _check_topics(self, names: Sequence[str], *, may_make: bool) -> None:
        unknown = [name for name in names if self.topics.find(name) is None]
        if unknown and not may_make:
            self.topics.get(unknown[0])
        most = self._options.max_topics
        if unknown and len(self.topics) + len(unknown) > most:
            raise ConflictError(
                f"topic {unknown[0]!r} is not made by its first message: there are {len(self.topics)} topics",
                hint=f"max_topics is {most}; an operator makes more: PUT /v1/topics/{unknown[0]}",
            )

    def flush(self, upto: int | None = None) -> int:
        """Makes everything appended so far durable, or what lies below ``upto``; returns the flushed position.

        Group commit: all who wait share the flush that begins when the one under way has ended.
        """
        with self._flushing:
            return self.log.flush(upto)

    @property
    def publishable(self) -> int:
        """Physical offset below which the archive may have the log: what is flushed, and below any limit."""
        return min(self.log.flushed, self.publish_below)

    def flush_seen(self, upto: int | None = None) -> None:
        """Makes durable what readers may have seen (nothing while the store recovers), or that below ``upto``."""
        seen = self.log.visible if upto is None else min(upto, self.log.visible)
        if seen > self.log.flushed:
            self.flush(seen)

    def prepare_segment(self) -> bool:
        """Writes zeros ahead of the log's end, and the next segment if this is half full; returns whether the latter.

        Called beside appends, so that they find both there. A failure leaves the store as it is: whoever rolls tries
        again.
        """
        self._check_open()
        self.guard.check()
        while self.log.wants_zeros and self.log.write_zeros(self.between_appends):
            self.guard.check()
        is_wanted = self.log.wants_next
        if is_wanted:
            self.log.prepare_next()
        return is_wanted

    def roll(self) -> None:
        """Closes the active segment unless it is empty; one that a follower writes is closed by its broker alone."""
        if not self.is_followed:
            self._close_segment(unless_empty=True)

    def close_segment(self) -> None:
        """Closes the active segment, which may be empty, where it ends now: for who writes the log of a follower."""
        self._close_segment(unless_empty=False)

    def _close_segment(self, *, unless_empty: bool) -> None:
        if unless_empty and self.log.end == self.log.last_base:
            return
        if self.guard.read_only_reason is None:
            with contextlib.suppress(StoreError):  # tried again below, where a failure counts
                self.log.prepare_next()  # not under the lock that appends wait for
        with self._append_lock:
            self._check_open()
            with self.guard.writing("roll"):
                if not unless_empty or self.log.end > self.log.last_base:
                    self.log.roll()

    def append_records(self, records: ByteArray, count: int, last_store_ms: int) -> None:
        """Appends whole records that were made for this place of the log; they fit its segment, their topics exist.

        Not durable before :meth:`flush`, except for what lies more than ``flush_dirty_bytes`` below the end.
        """
        with self._append_lock:
            self._check_open()
            with self._appending:
                self._writer.append_records(records, count, last_store_ms)
        if self.log.end - self.log.flushed > self._options.flush_dirty_bytes:
            self.flush()

    def cut(self, offset: int) -> None:
        """Drops everything of the log from ``offset`` on, where a record begins; the store is closed afterwards.

        First nothing is promised of it any more, then it goes, the last segment first. The next opening recovers as
        after a crash, and derives again. Killed in here: the log ends at ``offset`` or behind it, where a record does.
        """
        self.dispatch()
        with self._append_lock, self._dispatch_lock, self.guard.writing("cutting the log"):
            self._check_open()
            views = ((topic.topic_id, self.queue_views(topic)) for topic in self.topics.all())
            self.topics.lower_floors({
                (topic_id, queue_id): view.first_at_or_above(offset)
                for topic_id, queues in views for queue_id, view in queues.items()
            })  # fmt: skip
            checkpoint = self._checkpointed or Checkpoint()
            checkpoint = replace(checkpoint, confirm_offset=min(checkpoint.confirm_offset, offset))
            replace_file(self._fs, self._paths.checkpoint, checkpoint.encode(), self._paths.tmp)
            self.log.start_at(offset, tail_is_zero=False)
            self.abandon()

    def abandon(self) -> None:
        """Closes it without a word to the disk: the next opening recovers as after a kill."""
        self._closed = True
        self.damage.close()
        self.log.close()

    def take_producers(self) -> None:
        """Lets producers append from now on, behind all that a follower wrote; the caller has made that durable.

        Queues go on behind their last messages, topics that are made get names that ours may have.
        """
        with self._append_lock:
            self._check_open()
            for key, next_offset in self.queues.next_offsets().items():
                self._writer.raise_next(key, next_offset)
            self.topics.take_own_names(self._options.default_queues)
            self.publish_below, self.queues.followed_below = NO_LIMIT, self.log.end
            self.is_followed = False

    @contextlib.contextmanager
    def between_appends(self) -> Iterator[Callable[[Topic, int], int]]:
        """Keeps appends out; tells the offset that a queue's next message would have."""
        with self._append_lock:
            self._check_open()
            yield self._writer.next_offset

    def create_topic(self, name: str, queues: int) -> Topic:
        """Returns the topic, made if it is new and with at least so many queues, durably."""
        with self._append_lock:
            self._check_open()
            with self.guard.writing("creating a topic"):
                topic = self.topics.create(name, queues)
                self.topics.ensure_queues(topic, queues)
                return topic

    def copy_topics(self, wanted: Sequence[tuple[str, int, bool]]) -> None:
        """Makes a broker's topics as it has them, durably; see :meth:`TopicRegistry.copy`."""
        with self._append_lock:
            self._check_open()
            with self.guard.writing("copying topics"):
                self.topics.copy(wanted)

    def make_topic(self, name: str, queues: int, *, may_make: bool) -> None:
        """Makes a topic durably, unless it is there, as far as the first message of one may; see :meth:`append`."""
        if self.topics.find(name) is not None:
            return
        with self._append_lock:
            self._check_open()
            self._check_topics([name], may_make=may_make)
            with self.guard.writing("creating a topic"):
                self.topics.create(name, queues)

    # deriving

    def dispatch(self) -> int:
        """Derives everything up to what readers may see; returns the position reached.

        Where something cannot be written, on a full disk for example, deriving stops and :attr:`dispatch_error` says
        why; later calls try again, with pauses that grow to 30 s. A log that is damaged there makes the store
        read-only; reading what is known goes on.
        """
        with self._dispatch_lock:
            try:
                with self._suspecting():
                    self._dispatch_retry.run_once(lambda: self._dispatcher.run(self.log.visible))
            except (CorruptionError, ReadOnlyError) as error:
                self.guard.turn_read_only(f"dispatch failed: {error}")
            return self._dispatcher.position()

    @property
    def dispatch_error(self) -> str | None:
        """The error for which queues and index lag behind the log, for now; None if none, or the store is read-only."""
        return self._dispatch_retry.error if self.guard.read_only_reason is None else None

    def checkpoint(self, *, at_once: bool = False) -> None:
        """Flushes the queues and the log below, and moves the recovery point, and their floors, to what they hold.

        The floors tell the next open if queue files get lost, and are never ahead of the recovery point. Killed before
        the checkpoint is replaced: recovery derives a little more again, with the same result. A queue file that was
        its queue's last when its records went goes as soon as it has a follower: RocketMQ looks for a queue's smallest
        offset in the first file only. ``at_once``: bring what is known of producers up to date though it is not due.
        """
        with self._dispatch_lock, self.guard.writing("checkpoint"):
            self.queues.remove_below(self.log.begin)
            confirm = self.queues.flush()
            self.flush_seen(confirm)
            last_ms = self.queues.last_store_ms
            index_ms = 0
            if self._classic is not None:
                self._classic.checkpoint()
                index_ms = min(last_ms, self._classic.durable_ms())
            checkpoint = Checkpoint(physic_ms=last_ms, logics_ms=last_ms, index_ms=index_ms, confirm_offset=confirm)
            if checkpoint != self._checkpointed:
                replace_file(self._fs, self._paths.checkpoint, checkpoint.encode(), self._paths.tmp)
                self.topics.raise_floors(self.queues.next_offsets())
                self._checkpointed = checkpoint
            self.producers.checkpoint(self.log.flushed, at_once=at_once)

    # reading

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[HotSnapshot]:
        """Pins what is hot now: every record that could be seen before the call and is not yet behind the border."""
        visible = self.log.visible
        end = self.dispatch()
        with self._pinned() as (border, segments):
            yield HotSnapshot(
                border=border, end=end, visible=visible, segments=segments, segment_bytes=self.log.segment_bytes,
                times_rise=self.queues.times_rise and border >= self.times_fall_below,
                dispatch_error=self.dispatch_error, suspect=self.damage.suspect,
            )  # fmt: skip

    def verify_damage(self) -> None:
        """Scans what is suspected to be damaged in the log; afterwards :attr:`damage` says what is.

        Waits for whoever is scanning: what that was told of is no longer suspected, and not found yet.
        """
        with self.damage.verifying:
            if not self.damage.is_due(self.log.segment_bytes):
                return
            with self.snapshot() as snapshot:  # taken under the lock, so that it has every segment that is suspected
                self.damage.verify(snapshot, [topic.name for topic in self.topics.all()], self._messages_in)

    def look_for_damage(self, base_offset: int) -> None:
        """Scans a segment that nobody suspects; afterwards :attr:`damage` says what is damaged in it."""
        with self.snapshot() as snapshot:
            topics = [topic.name for topic in self.topics.all()]
            self.damage.look_at(base_offset, snapshot, topics, self._messages_in)

    def _messages_in(self, first: int, end: int) -> tuple[LostMessages, ...]:
        """Names the messages whose records begin in a range of the log, as the queues have them."""
        found = []
        for topic in self.topics.all():
            for queue_id, view in sorted(self.queue_views(topic).items()):
                low, high = view.first_at_or_above(first), view.first_at_or_above(end)
                if low < high:
                    found.append(LostMessages(topic.name, queue_id, low, high))
        return tuple(found)

    @contextlib.contextmanager
    def _pinned(self) -> Iterator[tuple[int, dict[int, Segment]]]:
        """The border and what lies above it, kept from removal."""
        with self._state:
            border = self.border
            segments = {segment.base_offset: segment for segment in self.log.segments()}
            release = self._pins.pin(border)
        with release:
            yield border, segments

    def queue_views(self, topic: Topic) -> dict[int, QueueView]:
        """The topic's queues that have units; taken inside a snapshot, it holds all units from its border on."""
        return self.queues.views(topic)

    def put_units_again(self, topic: Topic, queue_id: int, at: int, units: UnitArray) -> None:
        """Writes units that were damaged and derived again, unless nothing may be written now: a reader waits for it.

        If the disk refuses, nothing changes: the next reader derives them again.
        """
        with self._dispatch_lock:
            self.mended_units += len(units)
            if self.guard.read_only_reason is None and not self._closed:
                with contextlib.suppress(StoreError):
                    self.queues.put_again(topic, queue_id, at, units)
                    place = f"{topic.name}/{queue_id}", at, at + len(units)
                    _LOG.warning("damaged units of queue %s, [%d, %d), were derived again from the log", *place)

    def next_offset(self, topic: Topic, queue_id: int) -> int:
        """Returns the offset the queue's next dispatched message has; at least its floor."""
        view = self.queues.view(topic.topic_id, queue_id)
        return max(view.next if view else 0, topic.floor(queue_id))

    def first_store_ms(self, segment: Segment) -> int | None:
        """Store time of a segment's first record, None while it has none; one that was rolled may never get any."""
        magic = int.from_bytes(bytes(segment.data[4:BLANK_BYTES]), "big", signed=True)
        if segment.base_offset >= self.log.end or magic == MAGIC_BLANK:
            return None
        try:
            return decode_record(segment.data.data, 0, physical_offset=segment.base_offset).store_ms
        except CorruptionError:
            self.damage.suspect(segment.base_offset)
            raise

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record, 0 before the first."""
        return self._writer.last_store_ms

    @property
    def appended(self) -> tuple[int, int]:
        """Messages, and bytes of their records, appended since the store was opened."""
        return self._writer.messages, self._writer.bytes

    @property
    def dispatched_to(self) -> int:
        """Physical offset below which everything is derived."""
        return self._dispatcher.position()

    @property
    def recover_from(self) -> int:
        """Physical offset at which recovery would begin if the process were killed now."""
        return max(self._checkpointed.confirm_offset if self._checkpointed else 0, self.log.begin)

    @property
    def clock_behind_ms(self) -> int:
        """Time by which this machine's clock is behind the newest record.

        New ones get that record's time until it is past. Large after the clock was far ahead and has been put right.
        """
        return max(0, self._writer.last_store_ms - self._clock.now_ms())

    # removing

    def remove_below(self, border: int, *, forget: Callable[[int], object]) -> None:
        """Raises the border to a segment start and removes the hot copies below it (I6 in docs/invariants.md).

        The caller guarantees that every segment below is published and indexed, or that retention alone decides.
        Readers that pinned a lower border are waited for, 60 s at most; their maps last longer anyway. ``forget`` is
        called with the border at the end, to drop local index files below it. Killed anywhere: segments are gone from
        the front only, so the next open has a border between the old and the new one.
        """
        self.guard.check()
        with self._state:
            if border <= self.removed_to:
                return
            if border > self.log.last_base:
                raise StoreError("the active segment never goes")
            self.border = max(self.border, border)
            self._pins.wait_below(border, give_up=lambda: self._closed)
        with self._dispatch_lock, self.guard.writing("removal"):
            self._check_open()  # closing waits for this lock, and nothing may change on the disk after it
            self.checkpoint(at_once=True)
            while self.log.begin < border:
                self._check_open()
                self.log.remove_first()
            self.queues.remove_below(border)
            forget(border)
            if self._classic is not None:
                self._classic.remove_below(border)
            self.removed_to = border
            self.damage.forget_below(border)


def lag_ms(hot: HotStore, position: int, clock: Clock) -> int:
    """Returns the ms since the record at ``position`` was stored, 0 if the log ends there.

    It says how far something that follows the log is behind: the age of the oldest record that it has not reached.
    ``position`` is where a record begins, or the blank end of a segment; a record that is removed meanwhile waits for
    nothing.
    """
    position = max(position, hot.border)
    if position >= hot.log.end:
        return 0
    try:
        segment = hot.log.segment_of(position)
        record = decode_record(segment.data.data, position - segment.base_offset, physical_offset=position)
    except (KeyError, StoreError):
        return 0
    return max(0, clock.now_ms() - record.store_ms)


def mark_in_use(fs: FileSystem, paths: StorePaths, index_ms: int) -> None:
    """Tells RocketMQ durably that a store in use was not stopped cleanly; called before an index file is changed.

    Without the file ``abort`` RocketMQ takes every file as it is. With it, it drops the key index files of its own
    format that end after the ``index_ms`` of ``checkpoint``, because nobody knows what of them reached the disk.

    Killed in between: ``abort`` alone, and the files are as the clean stop left them.
    """
    replace_file(fs, paths.abort, str(os.getpid()).encode(), paths.tmp)
    if fs.exists(paths.checkpoint):
        found = Checkpoint.decode(fs.read(paths.checkpoint))
        if found.index_ms > index_ms:
            replace_file(fs, paths.checkpoint, replace(found, index_ms=index_ms).encode(), paths.tmp)
