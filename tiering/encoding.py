"""Writes the records of a batch, whose places and times its caller has chosen, into memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiering.batch import BytesColumn, MessageBatch
from tiering.errors import StoreError
from tiering.fs import ByteArray
from tiering.kernels.addresses import address_of
from tiering.kernels.checksum import CRC_TABLES
from tiering.kernels.encode import PROPERTY_NAMES, encode_records

#: No client address: four zero bytes and port 0.
NO_HOST = np.zeros(8, np.uint8)
_NO_HOST, _PROPERTY_NAMES = address_of(NO_HOST), address_of(PROPERTY_NAMES)


def encode_batch(
    batch: MessageBatch,
    first: int,
    last: int,
    sizes: NDArray[np.int64],
    out: ByteArray,
    *,
    physical: int,
    store_ms: int,
    store_host: ByteArray,
    queue_id: NDArray[np.int32],
    queue_offset: NDArray[np.int64],
    checksum: bool = False,
) -> None:
    """Fill ``out`` with the records of messages ``[first, last)``, back to back; ``physical`` is where it begins.

    ``sizes`` are those of :meth:`MessageBatch.record_sizes`, and ``out`` has room for exactly those of the messages.
    """
    names = BytesColumn.of([topic.encode() for topic in batch.topics])
    written = encode_records(
        CRC_TABLES, address_of(out), physical, store_ms, _NO_HOST, len(NO_HOST),
        address_of(store_host), len(store_host), _PROPERTY_NAMES, first, last, address_of(sizes),
        address_of(batch.topic_index), *_addresses(names), address_of(queue_id), address_of(queue_offset),
        address_of(batch.born_ms), *_addresses(batch.body), *_addresses(batch.keys), *_addresses(batch.tags),
        *_addresses(batch.properties), int(checksum),
    )  # fmt: skip
    if written != len(out):
        raise StoreError("the encoder disagrees with the computed record sizes")


def _addresses(column: BytesColumn) -> tuple[int, int]:
    return address_of(column.data), address_of(column.starts)
