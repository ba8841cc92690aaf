"""Tags: the number that a queue unit carries for a tag filter, and the filters that consumers write.

The number is the hash of the record's tag. A message that waits for its delivery lies in the topic
``SCHEDULE_TOPIC_XXXX``, a queue for each delay level; its unit carries the time of delivery instead, so a tag filter
finds nothing there. The level is the property ``DELAY``, counted from 1, and means RocketMQ's default delays. A broker
with other delays writes other numbers there; they matter to nobody but its own timer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.properties import decode_properties
from tierlog.tiering.format.record import Record
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.kernels.scan import ScanRows
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC

_DELAY = "DELAY"
_LEVEL = re.compile(r"[+-]?[0-9]{1,9}")
#: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h
_DELAYS_MS = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))
#: The tag expression that every message passes.
EVERYTHING = "*"
_SEPARATOR = "||"
_MAX_TAGS = 100


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


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A filter for messages that have one of some tags, written ``TagA || TagB`` or ``*`` as in RocketMQ.

    A queue unit holds a hash only, so the text is compared as well.
    """

    tags: frozenset[str]
    hashes: frozenset[int]

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter | None:
        """Returns the filter of an expression; None for one that every message passes: nothing, an empty text or ``*``.

        Raises :class:`InvalidRequestError` for separators without a tag, and for more than 100 tags.
        """
        if not expression or expression == EVERYTHING:
            return None
        tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip()))
        if not 1 <= len(tags) <= _MAX_TAGS:
            raise InvalidRequestError(
                f"tag expression with {len(tags)} tags", hint=f"1 to {_MAX_TAGS} tags separated by ||, or *"
            )
        return cls(tags, frozenset(tag_hash(tag) for tag in tags))

    def may_pass(self, units: UnitArray) -> NDArray[np.bool_]:
        """Whether the record of each unit may have one of the tags, by the hash in the unit."""
        return np.isin(units["tag_hash"].astype(np.int64), list(self.hashes))
