"""Where in a queue a store time lies: what RocketMQ calls the offset by time.

The units of a queue are in the order of the log and our store times never step back, so a binary search over the whole
queue answers, whatever files its units lie in. RocketMQ picks one file first and follows a run of equal times only
inside it; a run that crosses a file's border is followed to its end here.
"""

from __future__ import annotations

from tiering.hot.shown_queue import ShownQueue
from tiering.types import Boundary


def offset_by_time(queue: ShownQueue, time_ms: int, boundary: Boundary) -> int:
    """The queue offset that belongs to a store time, of the messages that the snapshot shows.

    ``LOWER``: the first message stored at or after the time; the queue's end if there is none. ``UPPER``: the last
    message stored at or before it; 0 if there is none, as RocketMQ answers, even where the queue begins later.
    Reads one record a step of the search, or all of them in the log of a broker whose clock stepped back. Raises
    :class:`CorruptionError` where one of them cannot be read.
    """
    if not queue.times_rise:
        return _search_all(queue, time_ms, boundary)
    low, high = queue.first, queue.next
    while low < high:
        middle = (low + high) // 2
        stored_ms = queue.record(middle).store_ms
        if stored_ms < time_ms or (stored_ms == time_ms and boundary is Boundary.UPPER):
            low = middle + 1
        else:
            high = middle
    if boundary is Boundary.LOWER:
        return low
    return low - 1 if low > queue.first else 0


def _search_all(queue: ShownQueue, time_ms: int, boundary: Boundary) -> int:
    offsets = range(queue.first, queue.next)
    if boundary is Boundary.LOWER:
        return next((offset for offset in offsets if queue.record(offset).store_ms >= time_ms), offsets.stop)
    return next((offset for offset in reversed(offsets) if queue.record(offset).store_ms <= time_ms), 0)
