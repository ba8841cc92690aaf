"""What the compiled decoder is told of a predicate, and its batches as the view ``messages`` has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.predicate import Predicate, Span
from pipeline.rows import FIRST_SHOWN_MS, LAST_SHOWN_MS, MESSAGES
from tiering.record_columns import Bounds

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def bounds_of(predicate: Predicate, from_ms: int | None = None) -> Bounds:
    """What records of a topic must lie in, of which everything stored before ``from_ms`` has expired.

    Times that no row shows (``pipeline.rows``) are compared as they are shown.
    """
    stored = predicate.stored
    if from_ms is not None:
        stored = Span(max(from_ms, _LEAST if stored.first is None else stored.first), stored.end)
    anywhere = (_LEAST, _MOST)  # of queue offsets, and of born times
    return np.array((anywhere, _ends(predicate.physical_offsets), _times(stored), anywhere), np.int64)


def _ends(span: Span) -> tuple[int, int]:
    """The least and the greatest 64-bit number inside; the first is the greater if there is none."""
    least = _LEAST if span.first is None else max(span.first, _LEAST)
    greatest = _MOST if span.end is None else min(span.end - 1, _MOST)
    return (least, greatest) if least <= greatest else (0, -1)


def _times(span: Span) -> tuple[int, int]:
    least, greatest = _ends(span)
    if least > LAST_SHOWN_MS or greatest < FIRST_SHOWN_MS:
        return 0, -1
    return _LEAST if least <= FIRST_SHOWN_MS else least, _MOST if greatest >= LAST_SHOWN_MS else greatest


def rows_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages as Arrow, with their columns as the view ``messages`` shows them."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for axis in ("born", "store"):
        shown = np.clip(columns[f"{axis}_ms"].to_numpy(), FIRST_SHOWN_MS, LAST_SHOWN_MS)
        columns[f"{axis}_time"] = pa.array(1000 * shown).view(MESSAGES.field(f"{axis}_time").type)
    arrays = [columns[field.name].cast(field.type) for field in MESSAGES]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
