"""The streaming read: micro-batches of queue offsets, each read again exactly as it was planned."""

from __future__ import annotations

import contextlib
import functools
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

from pipeline.archive import open_manifest
from pipeline.client import ServiceClient
from pipeline.pulled_rows import pulled_batch
from pipeline.rows import keyed, message_batch, projected
from pipeline.source.options import SourceOptions, View
from pipeline.source.stream_offsets import INITIAL, Json, QueueKey, QueueRange, StreamOffset, pieces_of
from pipeline.source.stream_planner import StreamPlanner, cut_by_tier, data_loss
from pipeline.source.stream_queues import AllQueues
from tiering.errors import InvalidRequestError, StoreMismatchError
from tiering.fetch import Fetcher
from tiering.types import PullStatus

#: A task is worth its start from so many messages on; a batch becomes about so many tasks; none has more than that.
_LEAST_MESSAGES, _TASKS, _MOST_MESSAGES = 1_000, 32, 50_000
_PAGE_MESSAGES = 10_000


@dataclass(frozen=True)
class QueuePart:
    """A range of a queue and who gives it."""

    range: QueueRange
    is_archived: bool


@dataclass
class StreamPartition(InputPartition):
    """What one task reads, in this order."""

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
        """The same for every stream: where each queue begins is in the offset that ends its first batch."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxMessagesPerTrigger``."""
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes after this is for the next run."""
        self._target = self._planner.ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Where the batch that begins at ``start`` ends; see :meth:`StreamPlanner.next_offset`."""
        begin = StreamOffset.from_json(start)
        end = self._planner.next_offset(begin, _messages(limit), self._target)
        return start if end == begin else end.to_json()

    def reportLatestOffset(self) -> Json | None:
        """How far the queues go, for the progress of the query."""
        seen = self._planner.seen
        return None if seen is None else StreamOffset(seen).to_json()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """What the tasks of a batch read."""
        ranges = self._planner.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        total = sum(following - first for _, first, following in ranges)
        size = min(max(_LEAST_MESSAGES, -(-total // _TASKS)), _MOST_MESSAGES)
        return [
            StreamPartition(tuple(QueuePart(*part) for part in cut_by_tier(self._queues, piece)))
            for piece in pieces_of(ranges, size)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, StreamPartition)
        batches = _read(partition.parts, self._options)
        return projected(keyed(batches) if self._options.view is View.KEYS else batches, self._schema)

    def stop(self) -> None:
        """Give the connection to the service back."""
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
    """The messages of a range, page by page; none but those that were erased is left out.

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
        found = fetcher.pull(key.topic, key.queue_id, offset, limit)
        return Page(found.status, found.next_offset, message_batch(found.messages))

    return pull


def _from_service(key: QueueKey, client: ServiceClient) -> Pull:
    def pull(offset: int, limit: int) -> Page:
        found = client.pull(key.topic, key.queue_id, offset, limit)
        if any(message["store_id"] != key.store_id for message in found.messages):
            raise StoreMismatchError(f"the service does not serve store {key.store_id!r} any more")
        return Page(found.status, found.next_offset, pulled_batch(found.messages))

    return pull


@functools.lru_cache(maxsize=32)
def _fetcher(url: str, store_id: str) -> Fetcher:
    return Fetcher(store_id, None, open_manifest(url, store_id))
