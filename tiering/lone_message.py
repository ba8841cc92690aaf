"""A message that goes to the log alone: as a batch of one it would take ten times as long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiering.batch import check_property_bytes
from tiering.format.record import FIXED_BYTES_V1, MAX_TOPIC_BYTES_V1, Record, RecordVersion, encode_record
from tiering.format.record_checksum import CHECKSUM_BYTES

_NO_HOST = bytes(8)


class LoneMessage(NamedTuple):
    """One validated message, where :class:`MessageBatch` is many; becomes a record through the plain codec."""

    topic: str
    queue_id: int
    born_ms: int
    body: bytes
    #: Keys, tag and properties, without what the store adds.
    property_text: bytes

    @property
    def topics(self) -> tuple[str]:
        """The one that it has."""
        return (self.topic,)

    def record_sizes(self, host_bytes: int, *, checksum: bool = False) -> NDArray[np.int64]:
        """As :meth:`MessageBatch.record_sizes`."""
        text_bytes = len(self.property_text) + (CHECKSUM_BYTES if checksum else 0)
        check_property_bytes(text_bytes, 0)
        topic_bytes = len(self.topic) + (len(self.topic) > MAX_TOPIC_BYTES_V1)
        return np.array([FIXED_BYTES_V1 - 16 + host_bytes + topic_bytes + len(self.body) + text_bytes])

    def encode(
        self,
        *,
        physical: int,
        store_ms: int,
        store_host: bytes,
        queue_id: int,
        queue_offset: int,
        checksum: bool = False,
    ) -> bytes:
        """The record that :func:`encode_batch` writes of a batch of this message."""
        version = RecordVersion.V2 if len(self.topic) > MAX_TOPIC_BYTES_V1 else RecordVersion.V1
        record = Record(
            0, version, 0, queue_id, 0, queue_offset, physical, 0, self.born_ms, _NO_HOST, store_ms, store_host, 0, 0,
            self.body, self.topic, self.property_text,
        )  # fmt: skip
        return encode_record(record, checksum=checksum)
