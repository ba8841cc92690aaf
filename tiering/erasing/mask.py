"""Which records of a log segment must not reach the archive, because they are erased already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tiering.erasing.tombstones import Erasures
from tiering.format.record import decode_record
from tiering.fs import ByteArray
from tiering.kernels.scan import ScanRows


def hidden_rows(data: ByteArray, rows: ScanRows, topic_names: Sequence[str], erased: Erasures) -> NDArray[np.bool_]:
    """True for each row that ``erased`` hides; ``topic_names`` is indexed by the rows' topic numbers.

    Topic, offset and time are compared on all rows at once; a record is decoded only where a key decides.
    """
    hidden = np.zeros(len(rows), bool)
    numbers = {name: number for number, name in enumerate(topic_names)}
    for stone in erased.tombstones:
        meant = (rows["topic_number"] == numbers.get(stone.topic, -1)) & (rows["physical_offset"] < stone.end)
        if stone.from_ms is not None:
            meant &= rows["store_ms"] >= stone.from_ms
        if stone.to_ms is not None:
            meant &= rows["store_ms"] < stone.to_ms
        if stone.key_hash is not None:
            one = Erasures([stone])
            for row in np.flatnonzero(meant & ~hidden).tolist():
                record = decode_record(data.data, int(rows["position"][row]), verify=False)
                meant[row] = one.hides(record)
        hidden |= meant
    return hidden
