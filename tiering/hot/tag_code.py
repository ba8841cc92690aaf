"""The number that a queue unit carries for a tag filter, and where RocketMQ puts something else there.

It is the hash of the record's tag. A message that waits for its delivery lies in the topic ``SCHEDULE_TOPIC_XXXX``, a
queue for each delay level; its unit carries the time of delivery instead, so a tag filter finds nothing there. The
level is the property ``DELAY``, counted from 1, and means RocketMQ's default delays. A broker with other delays writes
other numbers there; they matter to nobody but its own timer.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tiering.format.properties import decode_properties
from tiering.format.record import Record
from tiering.fs import ByteArray
from tiering.kernels.scan import ScanRows

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_DELAY = "DELAY"
_LEVEL = re.compile(r"[+-]?[0-9]{1,9}")
#: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h
_DELAYS_MS = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))


def tag_codes(topic: str, data: ByteArray, rows: ScanRows) -> NDArray[np.int64]:
    """Tag code of every unit made from scanned records of one topic; the rows' positions count from ``data``."""
    codes: NDArray[np.int64] = rows["tag_hash"].astype(np.int64)
    if topic == SCHEDULE_TOPIC:
        for at, row in enumerate(rows):
            text_at = int(row["topic_at"]) + int(row["topic_length"]) + 2
            text = bytes(data[text_at : int(row["position"]) + int(row["size"])])
            delay_ms = _delay_ms(decode_properties(text).get(_DELAY, ""))
            if delay_ms:
                codes[at] = int(row["store_ms"]) + delay_ms
    return codes


def shows_tag(record: Record) -> bool:
    """Whether the record's unit carries its tag, so that both tiers answer a tag filter alike."""
    return record.topic != SCHEDULE_TOPIC or not _delay_ms(record.properties.get(_DELAY, ""))


def _delay_ms(level: str) -> int:
    """Delay of a level as the property has it, a level beyond the last being the last; 0 for none."""
    number = int(level) if _LEVEL.fullmatch(level) else 0
    return _DELAYS_MS[min(number, len(_DELAYS_MS)) - 1] if number > 0 else 0
