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

    Topic, offset and time are compared on all rows at once; a record is decoded only where keys decide, and once.
    """
    hidden = np.zeros(len(rows), bool)
    for number in np.unique(rows["topic_number"]).tolist():
        topic = topic_names[number]
        if erased.concerns(topic):
            mine = np.flatnonzero(rows["topic_number"] == number)
            hidden[mine], by_key = erased.hidden_rows(topic, rows["physical_offset"][mine], rows["store_ms"][mine])
            for row in mine[by_key].tolist():
                hidden[row] = erased.hides(decode_record(data.data, int(rows["position"][row]), verify=False))
    return hidden
