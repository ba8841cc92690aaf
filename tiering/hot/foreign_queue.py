"""Queue offsets in the log of a RocketMQ broker, which may jump or begin again; ours never do.

A broker counts on from the end of its queue file, not from the log. So a topic that was deleted and made again begins
again at 0 while its old messages are still in the log, and after a restart with queue files that were behind the log,
or behind a batch counted as one, offsets may leave some out or repeat some. What RocketMQ makes of that in a queue is
made of it here: a repeated offset gets no unit, a jump is closed, and offset 0 begins the queue again.
"""

from __future__ import annotations

import numpy as np

from tiering.kernels.scan import ScanRows

#: An offset whose byte in the queue has no 64-bit position: no broker wrote it.
_NO_OFFSET = 1 << 58


def place_foreign(rows: ScanRows, next_offset: int | None) -> tuple[ScanRows, int, bool]:
    """Which records of one queue get a unit, the first one's place, and whether the queue begins again with it.

    ``rows`` are in the order of the log; ``next_offset`` is None for a queue without units.
    """
    rows = rows[(rows["queue_offset"] >= 0) & (rows["queue_offset"] < _NO_OFFSET)]
    beginnings = np.flatnonzero(rows["queue_offset"] == 0)
    begins_again = len(beginnings) > 0 and (next_offset is not None or int(beginnings[-1]) > 0)
    if begins_again:
        rows, next_offset = rows[beginnings[-1] :], 0
    if not len(rows):
        return rows, 0, False
    offsets = rows["queue_offset"]
    first = int(offsets[0]) if next_offset is None else next_offset
    if int(offsets[0]) == first and bool((np.diff(offsets) == 1).all()):
        return rows, first, begins_again
    kept = np.zeros(len(rows), np.bool_)
    expected = first
    for at, offset in enumerate(offsets.tolist()):
        if offset >= expected:
            kept[at] = True
            expected += 1
    return rows[kept], first, begins_again
