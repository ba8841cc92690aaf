"""How old the oldest record is that something which follows the log has not reached."""

from __future__ import annotations

from tiering.clock import Clock
from tiering.errors import StoreError
from tiering.format.record import decode_record
from tiering.hot.store import HotStore


def waiting_ms(hot: HotStore, position: int, clock: Clock) -> int:
    """ms since the record at ``position`` was stored, 0 if the log ends there.

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
