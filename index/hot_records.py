"""What is found of keys in the hot tier: many messages as Arrow columns, or one as its record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiering.errors import CorruptionError
from tiering.format.record import SysFlag, decode_record
from tiering.hot.snapshot import HotSnapshot
from tiering.kernels.mapped_log import GATHERED, MappedLog, gather_records
from tiering.message import StoredMessage
from tiering.types import Tier

#: Of :attr:`HotRecords.batch`. ``key`` is the number of the key asked for, ``properties`` the text that
#: ``tiering.format.properties`` reads.
HOT_SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("physical_offset", pa.int64()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("store_ms", pa.int64()),
        ("born_ms", pa.int64()),
        ("body", pa.large_binary()),
        ("properties", pa.large_binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class HotRecords:
    """Messages found, by key and then newest first, of physical offsets in ``[border, end)`` of one store.

    What lies below the border is at most in the archive, and was not looked at.
    """

    store_id: str
    border: int
    end: int
    #: A row a message, see ``HOT_SCHEMA``.
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.batch.num_rows)


@dataclass(slots=True)
class HotRecord:
    """One message as the log has it: checked, and taken apart only if asked."""

    store_id: str
    physical_offset: int
    data: bytes

    def message(self) -> StoredMessage:
        """The message with all its fields."""
        record = decode_record(self.data, physical_offset=self.physical_offset, verify=False)
        return StoredMessage(record, self.store_id, Tier.HOT)

    @property
    def body(self) -> bytes:
        """The body, inflated if it is compressed."""
        return self.message().readable_body()[0]


def gathered(
    log: MappedLog, snapshot: HotSnapshot, keys: NDArray[np.int64], offsets: NDArray[np.int64], record_bytes: int
) -> pa.RecordBatch:
    """The records at some physical offsets, which were checked before and have so many bytes together."""
    rows = len(offsets)
    sizes = {"body": record_bytes, "text": record_bytes, "body_ends": rows + 1, "text_ends": rows + 1}
    kinds = {"queue_id": np.int32, "sys_flag": np.int32, "body": np.uint8, "text": np.uint8}
    columns = {name: np.empty(sizes.get(name, rows), kinds.get(name, np.int64)) for name in GATHERED}
    addresses = np.array([column.ctypes.data for column in columns.values()], np.int64)
    done = gather_records(log.address, offsets.ctypes.data, rows, addresses.ctypes.data, record_bytes)
    if done != rows:
        raise CorruptionError("record is damaged", position=int(offsets[done]))
    bodies = _texts(columns["body_ends"], columns["body"])
    packed = np.flatnonzero(columns["sys_flag"] & SysFlag.COMPRESSED)
    if len(packed):
        texts = bodies.to_pylist()
        for row in packed.tolist():
            texts[row] = StoredMessage(snapshot.record(int(offsets[row])), "", Tier.HOT).readable_body()[0]
        bodies = pa.array(texts, pa.large_binary())
    return pa.record_batch(
        [
            pa.array(keys), pa.array(offsets), *(pa.array(columns[name]) for name in GATHERED[:4]), bodies,
            _texts(columns["text_ends"], columns["text"]),
        ],
        schema=HOT_SCHEMA,
    )  # fmt: skip


def _texts(ends: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
