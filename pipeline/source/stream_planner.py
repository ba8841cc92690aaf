"""Plans micro-batches: where the stream begins, how far the next batch goes, and what its tasks read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from pipeline.source.options import LATEST, SourceOptions
from pipeline.source.stream_offsets import (
    QueueKey,
    QueueRange,
    StreamOffset,
    messages_between,
    offset_after,
    present,
    ranges_between,
    shares,
)
from pipeline.source.stream_queues import QueueBounds, Queues
from tiering.errors import NotFoundError, TopicNotFoundError
from tiering.takeover import QUEUE_STEP

_log = logging.getLogger(__name__)

Bounds = Mapping[QueueKey, QueueBounds]


class StreamPlanner:
    """Plans by what queues tell now and by the offsets that Spark has logged; remembers nothing that matters.

    Raises :class:`NotFoundError` naming queue and offsets if messages that were not read yet are gone, unless the
    option ``failOnDataLoss`` is false: then the stream goes on behind them.
    """

    def __init__(self, queues: Queues, options: SourceOptions) -> None:
        self._queues = queues
        self._start = options.start
        self._topics = options.topics
        self._fails = options.fail_on_data_loss
        self._nothing_until: dict[QueueKey, int] = {}
        #: How far every queue went when somebody asked last.
        self.seen: Mapping[QueueKey, int] | None = None

    def ends(self) -> dict[QueueKey, int]:
        """How far every queue of the stream goes now."""
        self._chosen()
        return dict(self.seen or {})

    def next_offset(
        self, start: StreamOffset, limit: int | None = None, target: Mapping[QueueKey, int] | None = None
    ) -> StreamOffset:
        """Where the batch that begins at ``start`` ends; ``start`` itself if there is nothing to do.

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
        """What the batch between two offsets reads, in the order of queues, declared gaps left out."""
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
        chosen = {key: bounds[key] for key in sorted(bounds) if not self._topics or key.topic in self._topics}
        self.seen = {key: found.end for key, found in chosen.items()}
        return chosen

    def _require_topics(self, bounds: Bounds) -> None:
        missing = sorted(self._topics - {key.topic for key in bounds})
        if missing:
            raise TopicNotFoundError(f"no such topic {', '.join(map(repr, missing))}", hint="make it before the stream")

    def _check_all_there(self, start: StreamOffset, bounds: Bounds) -> None:
        for key in sorted(start.next.keys() - bounds.keys()):
            if start.next[key] and (not self._topics or key.topic in self._topics):
                self._lost(f"{key} is not there, but was read up to {start.next[key]}")

    def _beginning(self, key: QueueKey, end: int, *, is_new: bool) -> int | None:
        """Where a queue's reading begins; None if that is not known before there is a message of its time."""
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
    """Messages are gone before the stream has read them."""
    hint = "begin a new checkpoint, or set failOnDataLoss to false to go on without them"
    return NotFoundError(what, hint=hint)


def cut_by_tier(queues: Queues, ranges: list[QueueRange]) -> Iterator[tuple[QueueRange, bool]]:
    """The ranges with whether the archive gives them; those that it has only the beginning of become two."""
    for wanted in ranges:
        reached = queues.reach(wanted)
        if reached > wanted.first:
            yield wanted._replace(next=reached), True
        if reached < wanted.next:
            yield wanted._replace(first=reached), False
