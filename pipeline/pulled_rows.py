"""Messages that a service answered with, as rows of the view ``messages``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.rows import MESSAGES, shown_ms


def pulled_batch(messages: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """The rows of messages of a :class:`pipeline.client.PulledPage`, in their order: those that the archive gives."""
    columns: dict[str, Sequence[object]] = {
        "properties": [list(message["properties"].items()) for message in messages],
        "born_time": [1000 * shown_ms(message["born_ms"]) for message in messages],
        "store_time": [1000 * shown_ms(message["store_ms"]) for message in messages],
    }
    arrays = [
        pa.array(columns.get(field.name) or [message[field.name] for message in messages], field.type)
        for field in MESSAGES
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
