"""The file ``checkpoint``, as Apache RocketMQ writes it. Big-endian. 4096 bytes.

====== ==== ====== ================== =========================================================
offset size type   field              meaning
====== ==== ====== ================== =========================================================
0      8    int64  physic_ms          store time up to which the log is durable
8      8    int64  logics_ms          store time up to which the consume queues are durable
16     8    int64  index_ms           store time up to which the index is durable
24     8    int64  master_flushed     not used by tierlog, 0
32     8    int64  confirm_offset     physical offset below which log and queues are durable
====== ==== ====== ================== =========================================================

Total 40. Zeros follow (RocketMQ 5.5.0 keeps further fields of its own there, which mean nothing here). Checksum: none;
a lower value only makes recovery start earlier, one where no queue's last record ends is not believed, and tierlog
replaces the file atomically. Never ahead of what is on disk. Missing fields read as 0.
Written by: ``tiering.hot.store`` after flushing what it speaks of, ``service.engine.restore`` with the newest archived
time. Read by: the former at opening.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FIELDS = struct.Struct(">qqqqq")
CHECKPOINT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The positions up to which each part of the hot tier is durable."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirm_offset: int = 0

    def encode(self) -> bytes:
        fields = _FIELDS.pack(self.physic_ms, self.logics_ms, self.index_ms, self.master_flushed, self.confirm_offset)
        return fields.ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Reads what is there; older or shorter files have fewer fields."""
        return cls(*_FIELDS.unpack(data[: _FIELDS.size].ljust(_FIELDS.size, b"\0")))
