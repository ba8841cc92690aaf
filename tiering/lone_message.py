"""A message that goes to the log alone: as a batch of one it would take ten times as long."""

from __future__ import annotations

from typing import NamedTuple

from tiering.batch import check_property_bytes
from tiering.format.record import (
    FIXED_BYTES_V1,
    HEAD_V4,
    MAGIC_V1,
    MAX_TOPIC_BYTES_V1,
    Record,
    RecordVersion,
    body_crc,
    encode_record,
)
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

    def record_size(self, host_bytes: int, *, checksum: bool = False) -> int:
        """As :meth:`MessageBatch.record_sizes`."""
        text_bytes = len(self.property_text) + (CHECKSUM_BYTES if checksum else 0)
        check_property_bytes(text_bytes, 0)
        topic_bytes = len(self.topic) + (len(self.topic) > MAX_TOPIC_BYTES_V1)
        return FIXED_BYTES_V1 - 16 + host_bytes + topic_bytes + len(self.body) + text_bytes

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
        topic, body, text = self.topic, self.body, self.property_text
        if len(topic) <= MAX_TOPIC_BYTES_V1 and len(store_host) == len(_NO_HOST) and not checksum:  # as most are
            size = FIXED_BYTES_V1 + len(body) + len(topic) + len(text)
            head = HEAD_V4.pack(
                size, MAGIC_V1, body_crc(body), queue_id, 0, queue_offset, physical, 0, self.born_ms, _NO_HOST,
                store_ms, store_host, 0, 0, len(body),
            )  # fmt: skip
            return b"%b%b%c%b%b%b" % (head, body, len(topic), topic.encode(), len(text).to_bytes(2), text)
        version = RecordVersion.V2 if len(topic) > MAX_TOPIC_BYTES_V1 else RecordVersion.V1
        record = Record(
            0, version, 0, queue_id, 0, queue_offset, physical, 0, self.born_ms, _NO_HOST, store_ms, store_host, 0, 0,
            body, topic, text,
        )  # fmt: skip
        return encode_record(record, checksum=checksum)
