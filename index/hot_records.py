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

_COMPRESSED = int(SysFlag.COMPRESSED)


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


#: Bytes a row of the columns of numbers and ends, by ``GATHERED``.
_WIDTHS = (4, 8, 8, 8, 4, 8, 8)


def gathered(
    log: MappedLog, snapshot: HotSnapshot, keys: NDArray[np.int64], offsets: NDArray[np.int64], sizes: tuple[int, int]
) -> pa.RecordBatch:
    """The records at some physical offsets, which were checked before; ``sizes`` of all bodies and property texts."""
    rows = len(offsets)
    lengths = np.array([*(width * (rows + 1) for width in _WIDTHS), *sizes], np.int64)
    places = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1] + 7 & -8, out=places[1:])
    memory = pa.allocate_buffer(int(places[-1] + lengths[-1]))  # Arrow's own, which comes from its pool without faults
    addresses = places + memory.address
    done = gather_records(log.address, offsets.ctypes.data, rows, addresses.ctypes.data, *sizes)
    if done != rows:
        raise CorruptionError("record is damaged", position=int(offsets[done]))
    buffers = dict(zip(GATHERED, map(memory.slice, places.tolist(), lengths.tolist()), strict=True))
    bodies = pa.Array.from_buffers(pa.large_binary(), rows, [None, buffers["body_ends"], buffers["body"]])
    packed = np.flatnonzero(np.frombuffer(buffers["sys_flag"], np.int32, rows) & _COMPRESSED)
    if len(packed):
        texts = bodies.to_pylist()
        for row in packed.tolist():
            texts[row] = StoredMessage(snapshot.record(int(offsets[row])), "", Tier.HOT).readable_body()[0]
        bodies = pa.array(texts, pa.large_binary())
    numbers = [pa.Array.from_buffers(HOT_SCHEMA.field(name).type, rows, [None, buffers[name]]) for name in GATHERED[:4]]
    properties = pa.Array.from_buffers(pa.large_binary(), rows, [None, buffers["text_ends"], buffers["text"]])
    return pa.record_batch([pa.array(keys), pa.array(offsets), *numbers, bodies, properties], schema=HOT_SCHEMA)
