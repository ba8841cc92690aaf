"""Consume-queue unit, as Apache RocketMQ writes it. Big-endian. 20 bytes; a file is a fixed number of units, no header.

====== ==== ====== =============== ===================================================
offset size type   field           meaning
====== ==== ====== =============== ===================================================
0      8    int64  physical_offset first byte of the record in the commit log
8      4    int32  size            whole record
12     8    int64  tag_hash        0 = untagged; see ``tiering.message.tags``
====== ==== ====== =============== ===================================================

Total 20. Checksum: none; derived data, rebuilt from the commit log. All zero = never written.
Pre-fill (0, 0x7FFFFFFF, 0) stands before the first real unit of a queue that does not start at a file's beginning.
A unit of a gap (physical_offset of the queue's next record, 0x7FFFFFFF, 0) stands for an offset that a broker's log
jumps over; of a wide gap, whole files may not be there, but the one behind them begins with such a unit.
Torn write: units above the checkpoint are written again from the log when the store opens.
Written by: ``tiering.hot.consume_queue``. Read by: ``tiering.hot.snapshot_queue``, which compares each with its record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNIT = struct.Struct(">qiq")
UNIT_BYTES = UNIT.size
UNIT_DTYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
#: A ``tag_hash`` at or below this is a unit's place in RocketMQ's ``consumequeue_ext``.
LAST_EXTENSION = -(1 << 31) - 1


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One decoded unit."""

    physical_offset: int
    size: int
    tag_hash: int

    def encode(self) -> bytes:
        return UNIT.pack(self.physical_offset, self.size, self.tag_hash)

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> QueueUnit:
        return cls(*UNIT.unpack_from(data, position))


PREFILL_UNIT = QueueUnit(0, 0x7FFFFFFF, 0)
PREFILL = PREFILL_UNIT.encode()


#: The size of what is no record.
GAP_BYTES = PREFILL_UNIT.size


def is_gap(units: NDArray[np.void] | np.void) -> NDArray[np.bool_]:
    """Returns which units are of offsets that no message has: of a gap, or a pre-fill."""
    found: NDArray[np.bool_] = units["size"] == GAP_BYTES
    return found


def is_prefill(units: NDArray[np.void] | np.void) -> NDArray[np.bool_]:
    """Returns which units only fill the place of messages that were never in their file."""
    found: NDArray[np.bool_] = (units["size"] == PREFILL_UNIT.size) & (
        units["physical_offset"] == PREFILL_UNIT.physical_offset
    )
    return found
