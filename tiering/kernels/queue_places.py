"""Which records of a broker's log have a place in their queue, and where queue offsets are left out.

The queue offsets of a RocketMQ broker's log may jump, and some may come again. A record has a place in its queue if its
offset is above those of all records before it. One whose offset came before has none; it is found by its key. Offsets
that were jumped over are a gap of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.format.manifest import QueueGap
from tierlog.tiering.format.queue_unit import GAP_BYTES, is_gap
from tierlog.tiering.format.record import TRANSACTION_MASK, SysFlag
from tierlog.tiering.kernels.queue_units import sort_into_queues
from tierlog.tiering.kernels.scan import ScanRows

#: Offsets from here on have no 64-bit position in a queue: no broker wrote them.
NO_OFFSET = 1 << 58
#: Nobody knows where a queue began.
UNKNOWN = -1
_PREPARED = int(SysFlag.TRANSACTION_PREPARED)
UnitArray = NDArray[np.void]


def have_places(offsets: NDArray[np.int64], expected: int) -> NDArray[np.bool_]:
    """Returns which records of a queue, in the order of the log, have a place in it from offset ``expected`` on."""
    before = np.maximum.accumulate(np.concatenate(([expected - 1], np.where(offsets < NO_OFFSET, offsets, -1))))[:-1]
    found: NDArray[np.bool_] = (offsets > before) & (offsets < NO_OFFSET)
    return found


def with_gaps(units: UnitArray, offsets: NDArray[np.int64], first: int) -> UnitArray:
    """Returns the units of all offsets from ``first`` on, given those of some, which rise.

    A unit in a gap says where the next record of its queue lies, so that the units of a queue stay in the order of the
    log; its size is that of no record.
    """
    wanted = np.arange(first, int(offsets[-1]) + 1)
    following = np.searchsorted(offsets, wanted)
    found = units[following]
    missing = offsets[following] != wanted
    found["size"][missing], found["tag_hash"][missing] = GAP_BYTES, 0
    return found


def end_of_gap(units: UnitArray) -> int:
    """Returns how many units at the start lie in a gap."""
    places = np.flatnonzero(~is_gap(units))
    return int(places[0]) if len(places) else len(units)


class QueuePlaces:
    """Follows the queues of a log through its rows: which have no place, and what gaps are declared.

    For logs that one store of ours never writes: there offsets follow each other.
    """

    def __init__(
        self, ends: Mapping[tuple[int, int], int], topic_ids: NDArray[np.int32], firsts: NDArray[np.int64]
    ) -> None:
        """``ends``: where queues that have been seen go on, by topic id and queue id.

        By the rows' topic numbers: ids, and where other queues begin, which may be :data:`UNKNOWN`.
        """
        self.ends = dict(ends)
        self.gaps: list[QueueGap] = []
        self._ids, self._firsts = topic_ids, firsts

    def take(self, rows: ScanRows) -> None:
        """Takes in the next rows of the log; those without a place are changed to be in no queue."""
        found = sort_into_queues(rows, 0)
        for run in found.runs:
            queue = int(self._ids[run.topic_number]), run.queue_id
            end = self.ends.get(queue)
            if end is None and self._firsts[run.topic_number] != UNKNOWN:
                end = int(self._firsts[run.topic_number])
            if run.is_consecutive and run.first >= 0 and run.next <= NO_OFFSET and (end is None or run.first == end):
                self.ends[queue] = run.next
                continue
            mine = found.order[run.start : run.start + run.records]
            offsets = rows["queue_offset"][mine]
            placed = have_places(offsets, 0 if end is None else end)
            without = mine[~placed]
            rows["sys_flag"][without] = rows["sys_flag"][without] & ~TRANSACTION_MASK | _PREPARED
            self._follow(queue, end, offsets[placed])

    def _follow(self, queue: tuple[int, int], end: int | None, offsets: NDArray[np.int64]) -> None:
        if not len(offsets):
            return
        before = np.concatenate(([int(offsets[0]) if end is None else end], offsets[:-1] + 1))
        jumps = np.flatnonzero(offsets != before)
        self.gaps += [QueueGap(*queue, int(before[at]), int(offsets[at])) for at in jumps]
        self.ends[queue] = int(offsets[-1]) + 1
