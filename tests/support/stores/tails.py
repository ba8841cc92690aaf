"""Short ways to make tails for tests, and a hot store with a bucket whose tails are written step by step."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.hot_stores import HotWorld, append, sized_body
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions, TailOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.format.tail import Tail, TailHead, TailKind, decode_tail, payload_crc32
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects
from tierlog.tiering.lifecycle.tail_writer import PendingTail, TailWriter
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

KEYS = ColdKeys("s")
GRACE_MS = 400_000
EVER = float("inf")


@dataclass
class TailedStore:
    """A hot store and its bucket, and a writer that does one step at a time."""

    hot_world: HotWorld = field(default_factory=HotWorld)
    options: TailOptions = field(default_factory=lambda: TailOptions(max_bytes=1000, in_flight=3))
    opens: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.objects = FaultyObjectStore(MemoryObjectStore(self.clock))
        self.tails = TailObjects(self.objects, KEYS)
        self.hot = self.hot_world.open()
        self.open_writer()

    def open_writer(self) -> None:
        """Claim and begin, as an open does with its first append that waits."""
        self.opens += 1
        randomness = SeededRandomness(self.opens)
        ids = tuple(f"open{number}" for number in range(1, self.opens + 1))
        self.owner = Ownership("volume", ids[-1], ids)
        self.manifest = ManifestStore(
            self.objects, KEYS, randomness=randomness, options=ColdOptions(), clock=self.clock
        )
        self.mark = TailMark(self.hot_world.fs, self.hot_world.paths)
        self.writer = TailWriter(
            self.hot, self.tails, mark=self.mark, randomness=randomness, options=self.options, grace_ms=GRACE_MS,
            archived_to=lambda: self.archived_to, check_owner=lambda: self.manifest.check_owner(self.owner),
            local_step=contextlib.nullcontext,
        )  # fmt: skip
        self.archived_to = 0
        self.head = self.manifest.claim(self.owner, log_begin=0, log_end=self.hot.log.end)
        self.writer.begin(self.head)

    def reopen(self) -> None:
        """As after a kill."""
        self.hot.close()
        self.hot = self.hot_world.open()
        self.open_writer()

    def append(self, count: int = 1, size: int = 200, topic: str = "orders") -> int:
        """Append and want it covered; the log's end."""
        for _ in range(count):
            append(self.hot, Message(topic, sized_body(size, topic), queue_id=0))
        self.writer.want(self.hot.log.flushed)
        return self.hot.log.flushed

    def take(self) -> PendingTail:
        """The next piece, which must be there."""
        piece = self.writer.take(EVER)
        assert piece is not None
        return piece

    def run(self) -> None:
        """Store whatever there is to store."""
        while (piece := self.writer.take(EVER)) is not None:
            self.writer.store(piece)

    def all(self) -> list[Tail]:
        """Every tail in the bucket, by name."""
        return [
            decode_tail(self.objects.inner.get(info.key)[0], path=info.key)
            for info in self.objects.inner.list(KEYS.tails)
        ]

    def chain(self) -> bytes:
        """The log's bytes as the chain from 0 has them, zeros of rolls filled in."""
        found, position = b"", 0
        while (tail := self.tails.read(position)) is not None and tail.head.kind is not TailKind.FENCE:
            found += tail.payload.ljust(tail.head.end - position, b"\0")
            position = tail.head.end
        return found

    def log_bytes(self, end: int) -> bytes:
        """What the volume has."""
        return b"".join(bytes(segment.data) for segment in self.hot.log.segments())[:end]


def take_over(tailed: TailedStore, volume_id: str = "other") -> tuple[ManifestStore, Head]:
    """Another volume becomes the owner; its manifest and the head that says so."""
    manifest = ManifestStore(
        tailed.objects, KEYS, randomness=SeededRandomness(99), options=ColdOptions(), clock=tailed.clock
    )
    owner = Ownership(volume_id, f"open of {volume_id}", (f"open of {volume_id}",))
    return manifest, manifest.take_over(owner, ManifestChange(), manifest.refresh())


def data_head(first: int, payload: bytes, *, segment_bytes: int = 4096) -> TailHead:
    """A data tail of one store that holds these bytes."""
    return TailHead(
        "s", "v", 1, "00ff" * 4, TailKind.DATA, first, first + len(payload), segment_bytes, len(payload),
        payload_crc32(payload),
    )  # fmt: skip


def archived_bodies(manifest: ManifestStore) -> list[bytes]:
    """Bodies of all that is in published segments, by physical offset."""
    found: dict[int, bytes] = {}
    for entry in manifest.log_entries(manifest.reader(), manifest.refresh()):
        for position, data in SegmentReader(manifest.reader(), entry).raw_items():
            record = decode_record(bytes(data), 0)
            assert record.physical_offset == entry.base + position
            assert record.physical_offset not in found, "published twice"
            found[record.physical_offset] = record.body
    return [body for _, body in sorted(found.items())]
