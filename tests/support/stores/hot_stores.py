"""Short ways to make records, batches and hot stores for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.fs.crash_fs import CrashFileSystem
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.record import Record, RecordVersion, decode_record, encode_host
from tierlog.tiering.hot.batch_writer import AppendResult
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.hot.snapshot_queue import shown_queue
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message, MessageBatch

NOW_MS = 1_700_000_000_000
STORE_HOST = encode_host(bytes([10, 0, 0, 1]), 9876)
STORE_HOST_V6 = encode_host(bytes([0x20, 1, *[0] * 13, 7]), 9876)
ROOT = Path("/store")


def record(**changes: object) -> Record:
    """A version-1 record with IPv4 hosts, changed as asked."""
    fields: dict[str, object] = {
        "size": 0, "version": RecordVersion.V1, "body_crc": 0, "queue_id": 0, "flag": 0, "queue_offset": 0,
        "physical_offset": 0, "sys_flag": 0, "born_ms": NOW_MS - 5, "born_host": bytes(8), "store_ms": NOW_MS,
        "store_host": STORE_HOST, "reconsume_times": 0, "prepared_offset": 0, "body": b"body", "topic": "orders",
        "properties_text": b"",
    }  # fmt: skip
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def records_in(parts: Sequence[memoryview | bytes]) -> list[Record]:
    """The records that lie one behind the other in some parts."""
    data = b"".join(parts)
    found: list[Record] = []
    at = 0
    while at < len(data):
        found.append(decode_record(data, at))
        at += found[-1].size
    return found


def array(data: bytes) -> ByteArray:
    """Bytes as kernels take them."""
    return np.frombuffer(data, np.uint8)


def batch(*messages: Message, max_body_bytes: int = 4 << 20) -> MessageBatch:
    """A checked batch."""
    return MessageBatch.of(messages, now_ms=NOW_MS, max_body_bytes=max_body_bytes)


def sized_body(record_bytes: int, topic: str, *, host_bytes: int = 16) -> bytes:
    """A body that makes the record of a message without properties exactly this long."""
    return b"x" * (record_bytes - (91 - 16 + host_bytes) - len(topic))


@dataclass
class HotWorld:
    """A hot store on a file system that outlives it."""

    fs: FileSystem = field(default_factory=CrashFileSystem)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    root: Path = ROOT
    segment_bytes: int = 4096
    queue_file_units: int = 60
    default_queues: int = 2
    record_checksum: bool = False

    @property
    def paths(self) -> StorePaths:
        """Its file names."""
        return StorePaths(self.root)

    def open(
        self, *, fs: FileSystem | None = None, store_host: bytes = STORE_HOST, published_below: int = 0
    ) -> HotStore:
        """Open and recover."""
        options = HotOptions(
            segment_bytes=self.segment_bytes, queue_file_units=self.queue_file_units,
            default_queues=self.default_queues, record_checksum=self.record_checksum,
        )  # fmt: skip
        hot = HotStore(
            fs or self.fs, self.paths, self.clock, options, store_host, published_below=published_below
        )  # fmt: skip
        hot.recover([])
        return hot

    def open_again(self, hot: HotStore) -> HotStore:
        """Close cleanly and open."""
        hot.close()
        return self.open()


def append(hot: HotStore, *messages: Message, durability: Durability = Durability.FLUSHED) -> AppendResult:
    """Append as one batch."""
    return hot.append(batch(*messages), durability)


def fill(hot: HotStore, topic: str, count: int, *, queue_id: int = 0, size: int = 200) -> None:
    """Append messages of one queue one by one, every record of the same size."""
    for _ in range(count):
        append(hot, Message(topic, sized_body(size, topic), queue_id=queue_id))


def queue_offsets(hot: HotStore, topic: str, queue_id: int = 0) -> list[int]:
    """Queue offsets of the records that the queue's units lead to, from the border on."""
    found = hot.topics.get(topic)
    with hot.snapshot() as snapshot:
        queue = shown_queue(hot, snapshot, found, queue_id)
        return [] if queue is None else [queue.record(at).queue_offset for at in range(queue.first, queue.next)]


class Collector:
    """A dispatcher's subscriber that keeps what it is told."""

    def __init__(self, start: int = 0) -> None:
        self.position = start
        self.ranges: list[tuple[int, int]] = []
        self.offsets: list[int] = []

    def next_offset(self) -> int:
        """How far it is."""
        return self.position

    def on_records(self, records: LogRange) -> None:
        """Keep the range and the records not seen yet."""
        self.ranges.append((records.start, records.end))
        offsets: Sequence[int] = records.rows["physical_offset"].tolist()
        self.offsets += [offset for offset in offsets if offset >= self.position]
        self.position = records.end


def snapshot_of(fs: object, root: Path) -> dict[str, bytes]:
    assert isinstance(fs, CrashFileSystem)
    found: dict[str, bytes] = {}
    folders = [root]
    while folders:
        folder = folders.pop()
        for name in fs.list_dir(folder):
            if fs.is_dir(folder / name):
                folders.append(folder / name)
            else:
                found[str(folder / name)] = fs.read(folder / name)
    return found
