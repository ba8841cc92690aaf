"""Decides how far the border may rise; removing is the hot store's (invariant I6)."""

from __future__ import annotations

from itertools import islice, pairwise

from tiering.format.manifest import Head
from tiering.hot.store import HotStore
from tiering.options import RetentionOptions

_MOST_AT_ONCE = 10


def safe_border(hot: HotStore, head: Head | None) -> int:
    """The highest border at which nothing would be lost: published, indexed, not held, and not the active segment.

    ``head`` None means a store with a cold tier that was never reached: nothing may go.
    """
    if head is None:
        return hot.border
    indexed_segment = head.indexed_to - head.indexed_to % hot.log.segment_bytes
    return min(head.archived_to, indexed_segment, hot.log.last_base, held_border(hot, has_archive=True))


def held_border(hot: HotStore, *, has_archive: bool) -> int:
    """The border that must not be passed because of topics on hold whose hot copies are the only ones.

    Raises :class:`CorruptionError` where a queue does not tell: nothing is removed then.
    """
    border = hot.log.last_base
    for topic in hot.topics.all():
        only_copies_below = topic.archived_from if has_archive and topic.archive else border
        if not topic.hold or only_copies_below <= hot.border:
            continue
        with hot.snapshot() as snapshot:
            for queue_id, queue in hot.shown_queues(snapshot, topic).items():
                first = max(queue.first, topic.begin(queue_id))  # what was deleted is not kept
                for unit in queue.units(first, first + 1):
                    offset = int(unit["physical_offset"])
                    if offset < only_copies_below:
                        border = min(border, offset - offset % hot.log.segment_bytes)
    return border


def due_border(hot: HotStore, options: RetentionOptions, now_ms: int, excess_bytes: int = 0) -> int:
    """The border that age, size and a disk with ``excess_bytes`` too much ask for, whatever is safe.

    A segment's newest record is no newer than the first of the next one, which is what age looks at. At most 10
    segments go at a time, and never the last one: what frees enough is measured again in between.
    """
    segments = hot.log.segments()
    border = hot.border
    over = len(segments) * hot.log.segment_bytes - options.hot_max_bytes if options.hot_max_bytes else 0
    over = max(over, excess_bytes)
    for segment, following in islice(pairwise(segments), _MOST_AT_ONCE):
        newest_ms = hot.first_store_ms(following)
        if newest_ms is None:
            newest_ms = hot.last_store_ms
        if over <= 0 and now_ms - newest_ms < options.hot_retention_ms:
            break
        border = segment.end
        over -= hot.log.segment_bytes
    return border
