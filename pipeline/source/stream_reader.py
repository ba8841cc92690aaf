"""The streaming read: micro-batches of queue offsets, each read again exactly as it was planned."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tierlog.pipeline.base.archive import open_manifest
from tierlog.pipeline.base.client import ServiceClient
from tierlog.pipeline.read.views import keyed, message_batch, projected, pulled_batch
from tierlog.pipeline.source.options import LATEST, SourceOptions, View
from tierlog.pipeline.source.stream_offsets import (
    INITIAL,
    Json,
    QueueKey,
    QueueRange,
    StreamOffset,
    messages_between,
    offset_after,
    pieces_of,
    present,
    ranges_between,
    shares,
)
from tierlog.pipeline.source.stream_queues import AllQueues, QueueBounds, StreamQueues
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, StoreMismatchError, TopicNotFoundError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.generation import asked_name, is_wanted
from tierlog.tiering.lifecycle.takeover import QUEUE_STEP
from tierlog.tiering.read.fetcher import Fetcher

_log = logging.getLogger(__name__)

Bounds = Mapping[QueueKey, QueueBounds]


class StreamPlanner:
    """Plans micro-batches: where the stream begins, how far the next batch goes, and what its tasks read.

    Plans by what queues tell now and by the offsets that Spark has logged; remembers nothing that matters.

    Raises :class:`NotFoundError` naming queue and offsets if messages that were not read yet are gone, unless the
    option ``failOnDataLoss`` is false: then the stream goes on behind them.
    """

    def __init__(self, queues: StreamQueues, options: SourceOptions) -> None:
        self._queues = queues
        self._start = options.start
        self._topics = options.topics
        self._fails = options.fail_on_data_loss
        self._nothing_until: dict[QueueKey, int] = {}
        #: How far every queue went when somebody asked last.
        self.seen: Mapping[QueueKey, int] | None = None

    def ends(self) -> dict[QueueKey, int]:
        """Returns how far every queue of the stream goes now."""
        self._chosen()
        return dict(self.seen or {})

    def next_offset(
        self, start: StreamOffset, limit: int | None = None, target: Mapping[QueueKey, int] | None = None
    ) -> StreamOffset:
        """Returns where the batch that begins at ``start`` ends; ``start`` itself if there is nothing to do.

        It has ``limit`` messages at most, those counted that were erased, and goes to the ``target`` at most.
        Raises :class:`TopicNotFoundError` if a topic that is named is not there when the stream begins.
        """
        bounds = self._chosen()
        if not start.has_begun:
            self._require_topics(bounds)
        self._check_all_there(start, bounds)
        positions, met, ends = {}, {}, {}
        for key, found in bounds.items():
            if target is not None and key not in target:
                continue
            end = found.end if target is None else min(found.end, target[key])
            position = start.next.get(key)
            if position is not None:
                position = self._readable_from(key, position, found)
            elif not found.is_certain:
                continue
            else:
                position = self._beginning(key, end, is_new=start.has_begun)
                if position is None:
                    continue
                met[key] = position
            positions[key], ends[key] = position, max(position, end)
        backlogs = {key: messages_between(at, ends[key], bounds[key].gaps) for key, at in positions.items()}
        taken = backlogs if limit is None else shares(backlogs, limit)
        following = dict(start.next)
        for key, position in positions.items():
            following[key] = offset_after(position, ends[key], bounds[key].gaps, taken[key])
        if start.has_begun and following == start.next:
            return start
        return StreamOffset(following, met)

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """Returns what the batch between two offsets reads, in the order of queues, declared gaps left out."""
        wanted = ranges_between(start, end)
        bounds = self._queues.bounds() if wanted else {}
        found = []
        for key, first, following in wanted:
            known = bounds.get(key)
            if known is None or following > known.end:
                self._lost(f"{key} ends at {known.end if known else 0}, but was read or planned up to {following}")
                if known is None:
                    continue
                following = known.end
            if first < following:
                first = self._readable_from(key, first, known)
            found += [QueueRange(key, *part) for part in present(first, following, known.gaps)]
        return found

    def _chosen(self) -> Bounds:
        bounds = self._queues.bounds()
        chosen = {key: bounds[key] for key in sorted(bounds) if is_wanted(key.topic, self._topics)}
        self.seen = {key: found.end for key, found in chosen.items()}
        return chosen

    def _require_topics(self, bounds: Bounds) -> None:
        missing = sorted(name for name in self._topics if not any(is_wanted(key.topic, (name,)) for key in bounds))
        if missing:
            raise TopicNotFoundError(f"no such topic {', '.join(map(repr, missing))}", hint="make it before the stream")

    def _check_all_there(self, start: StreamOffset, bounds: Bounds) -> None:
        for key in sorted(start.next.keys() - bounds.keys()):
            if start.next[key] and is_wanted(key.topic, self._topics):
                self._lost(f"{key} is not there, but was read up to {start.next[key]}")

    def _beginning(self, key: QueueKey, end: int, *, is_new: bool) -> int | None:
        """Returns where a queue's reading begins; None if that is not known before there is a message of its time."""
        if isinstance(self._start, int):
            if self._nothing_until.get(key) == end:
                return None
            first = self._queues.at_time(key, self._start)
            if first < end:
                return first
            self._nothing_until[key] = end
            return None
        if self._start == LATEST and not is_new:
            return end
        return min(self._queues.least(key, 0), end)

    def _readable_from(self, key: QueueKey, position: int, bounds: QueueBounds) -> int:
        """``position``, or where messages begin again behind those that are gone."""
        if position > bounds.end and bounds.is_certain:
            self._lost(f"{key} ends at {bounds.end}, but was read up to {position}")
        if position >= bounds.end:
            return position
        least = self._queues.least(key, position)
        gone = list(present(position, least, bounds.gaps))
        is_restored = least % QUEUE_STEP == 0  # where a restore lets queues begin of which no message was archived
        if gone and not is_restored:
            self._lost(f"offsets [{gone[0][0]}, {gone[-1][1]}) of {key} are not there any more")
        return least

    def _lost(self, what: str) -> None:
        if self._fails:
            raise data_loss(what)
        _log.warning("%s; the stream goes on", what)


def data_loss(what: str) -> NotFoundError:
    """Returns the error for messages that are gone before the stream has read them."""
    hint = "begin a new checkpoint, or set failOnDataLoss to false to go on without them"
    return NotFoundError(what, hint=hint)


def cut_by_tier(queues: StreamQueues, ranges: list[QueueRange]) -> Iterator[tuple[QueueRange, bool]]:
    """Yields the ranges with whether the archive gives them; those of which it has only the beginning become two."""
    for wanted in ranges:
        reached = queues.reach(wanted)
        if reached > wanted.first:
            yield wanted._replace(next=reached), True
        if reached < wanted.next:
            yield wanted._replace(first=reached), False


#: A task is worth its start from so many messages on; a batch becomes about so many tasks; none has more than that.
_LEAST_MESSAGES, _TASKS, _MOST_MESSAGES = 1_000, 32, 50_000
_PAGE_MESSAGES = 10_000


@dataclass(frozen=True)
class QueuePart:
    """A range of a queue, and whether archive or service gives it."""

    range: QueueRange
    is_archived: bool


@dataclass
class StreamPartition(InputPartition):
    """The parts that one task reads, in this order."""

    parts: tuple[QueuePart, ...]


class TierlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads every message of the chosen topics once, in the order of each queue.

    Spark makes one on the driver for the life of a query, which plans, and others that only carry :meth:`read` to
    executors. Whatever decides what is read is in the offsets that Spark logs: after a kill at any moment Spark gives
    the logged offsets back, and the same ranges are read, from whichever tier holds them then.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Nothing is asked before the first batch is planned. The schema is the view's or a projection of it."""
        self._options = options
        self._schema = schema
        self._target: Mapping[QueueKey, int] | None = None

    @functools.cached_property
    def _queues(self) -> AllQueues:
        return AllQueues.open(self._options)

    @functools.cached_property
    def _planner(self) -> StreamPlanner:
        return StreamPlanner(self._queues, self._options)

    def initialOffset(self) -> Json:
        """Returns the same offset for every stream: where queues begin is in the one that ends the first batch."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit of ``maxMessagesPerTrigger``."""
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Ends this run at what is there now; what comes later is for the next run."""
        self._target = self._planner.ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Returns where the batch that begins at ``start`` ends; see :meth:`StreamPlanner.next_offset`."""
        begin = StreamOffset.from_json(start)
        end = self._planner.next_offset(begin, _messages(limit), self._target)
        return start if end == begin else end.to_json()

    def reportLatestOffset(self) -> Json | None:
        """Returns how far the queues go, for the progress of the query."""
        seen = self._planner.seen
        return None if seen is None else StreamOffset(seen).to_json()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Returns what the tasks of a batch read."""
        ranges = self._planner.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        total = sum(following - first for _, first, following in ranges)
        size = min(max(_LEAST_MESSAGES, -(-total // _TASKS)), _MOST_MESSAGES)
        return [
            StreamPartition(tuple(QueuePart(*part) for part in cut_by_tier(self._queues, piece)))
            for piece in pieces_of(ranges, size)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns the rows of one partition."""
        assert isinstance(partition, StreamPartition)
        batches = _read(partition.parts, self._options)
        return projected(keyed(batches) if self._options.view is View.KEYS else batches, self._schema)

    def stop(self) -> None:
        """Gives the connection to the service back."""
        if "_queues" in self.__dict__:
            self._queues.close()


def _messages(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return int(limit.max_rows)
    if isinstance(limit, ReadAllAvailable):
        return None
    raise InvalidRequestError(f"a batch cannot be limited by {type(limit).__name__}", hint="use maxMessagesPerTrigger")


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of a queue in order, as rows; reading goes on at ``next_offset``."""

    status: PullStatus
    next_offset: int
    rows: pa.RecordBatch


Pull = Callable[[int, int], Page]


def read_range(pull: Pull, wanted: QueueRange, *, fails: bool) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a range, page by page; none but those that were erased is left out.

    Raises :class:`NotFoundError` if they have gone since the batch was planned; without ``fails`` the rest is read.
    """
    key, offset, following = wanted
    while offset < following:
        page = pull(offset, min(_PAGE_MESSAGES, following - offset))
        if page.status is PullStatus.OFFSET_TOO_SMALL and fails:
            raise data_loss(f"offsets [{offset}, {min(page.next_offset, following)}) of {key} are not there any more")
        if page.next_offset <= offset:
            if fails:
                raise data_loss(f"{key} ends at {page.next_offset}, but the batch was planned up to {following}")
            return
        rows = page.rows
        if page.next_offset > following:  # what was erased counts for no page
            rows = rows.filter(pc.less(rows.column("queue_offset"), following))
        if rows.num_rows:
            yield rows
        offset = page.next_offset


def _read(parts: Sequence[QueuePart], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    with contextlib.ExitStack() as stack:
        client: ServiceClient | None = None
        for part in parts:
            if part.is_archived:
                pull = _from_archive(part.range.key, options.cold or "")
            else:
                client = client or stack.enter_context(ServiceClient(options.url or ""))
                pull = _from_service(part.range.key, client)
            yield from read_range(pull, part.range, fails=options.fail_on_data_loss)


def _from_archive(key: QueueKey, url: str) -> Pull:
    fetcher = _fetcher(url, key.store_id)

    def pull(offset: int, limit: int) -> Page:
        found = fetcher.pull(asked_name(key.topic), key.queue_id, offset, limit)
        return Page(found.status, found.next_offset, message_batch(found.messages))

    return pull


def _from_service(key: QueueKey, client: ServiceClient) -> Pull:
    def pull(offset: int, limit: int) -> Page:
        found = client.pull(asked_name(key.topic), key.queue_id, offset, limit)
        if any(message["store_id"] != key.store_id for message in found.messages):
            raise StoreMismatchError(f"the service does not serve store {key.store_id!r} any more")
        return Page(found.status, found.next_offset, pulled_batch(found.messages))

    return pull


@functools.lru_cache(maxsize=32)
def _fetcher(url: str, store_id: str) -> Fetcher:
    return Fetcher(store_id, None, open_manifest(url, store_id))
