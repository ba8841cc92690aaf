"""What does a consumer that replays a cold queue wait for: round trips, or bandwidth?

A store archives ``--messages`` with bodies of ``--body`` bytes, text of a log at hand, over ``--queues`` queues, in
segments of ``--segment-mib``, into memory. Every request to that archive then takes ``--latency-ms`` longer, and
bytes come at ``--mb-s`` a request at most (0 = no bound). One queue is pulled from its first message to its last with
``--limit`` messages a pull, naively (one frame a request, nothing fetched ahead, metadata asked for in each pull) and
as it is done now; between them the naive way with metadata kept. Each run begins with empty caches.

Printed too: requests and bytes of the replay of the whole topic, and of one look-up by key, cold and warm.

``PYTHONPATH=. python benchmarks/cold_replay.py [--messages 200000] [--body 1000] [--limit 1000] [--latency-ms 30]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import Durability, PullStatus, Tier
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo

TOPIC = "bench"


class SlowObjectStore(MemoryObjectStore):
    """An archive that lies far away."""

    latency_s = 0.0
    bytes_per_s = 0.0

    def _wait(self, size: int) -> None:
        time.sleep(self.latency_s + (size / self.bytes_per_s if self.bytes_per_s else 0))

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        found = super().get(key)
        self._wait(len(found[0]))
        return found

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        found = super().get_if_changed(key, etag)
        self._wait(len(found[0]) if found else 0)
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._wait(end - start)
        return super().get_range(key, start, end)


def log_lines(size: int) -> Iterator[bytes]:
    """Bodies that compress as lines of a log do, about 4 : 1."""
    rng = np.random.default_rng(1)
    words = [
        b"request",
        b"GET",
        b"/v1/orders/",
        b"status=200",
        b"status=404",
        b"took_ms=",
        b"INFO",
        b"user=",
        b"trace=",
    ]
    while True:
        line = b" ".join(
            word + (b"%x" % number if number % 3 == 0 else b"")
            for word, number in zip(
                [words[each] for each in rng.integers(0, len(words), size // 8)],
                rng.integers(0, 1 << 40, size // 8).tolist(),
                strict=True,
            )
        )
        yield line[:size].ljust(size)


def archived(folder: Path, objects: SlowObjectStore, messages: int, body: int, queues: int, segment_mib: int) -> None:
    """Fill the archive."""
    settings = Settings.load(overrides={"hot.segment_bytes": segment_mib << 20, "advertise": "127.0.0.1:10911"})
    engine = Store.open(folder, settings=settings, cold_url="memory://bench", store_id="store", objects=objects)
    bodies = log_lines(body)
    pool = [next(bodies) for _ in range(2000)]
    for start in range(0, messages, 5000):
        numbers = range(start, min(start + 5000, messages))
        engine.append(
            [Message(TOPIC, b"%d " % n + pool[n % len(pool)], [f"key-{n}"], queue_id=n % queues) for n in numbers],
            Durability.ASYNC,
        )
    engine.archive(everything=True, drop_hot=True)
    engine.close()


def naive_replay(objects: SlowObjectStore, limit: int, most: int, *, keeps_metadata: bool) -> int:
    """Pulls as they were: rows, directory, seek table, then frame by frame; at most about ``most`` messages."""

    def fresh() -> ManifestStore:
        return ManifestStore(
            objects,
            ColdKeys("store"),
            randomness=SystemRandomness(),
            options=Settings().cold_options(),
            cache=ArchiveCache(256 << 20),
        )

    def messages(manifest: ManifestStore, topic_id: int, offset: int) -> Iterator[StoredMessage]:
        head, reader = manifest.refresh(), manifest.reader()
        for rows in manifest.queue_row_pieces(reader, head, topic_id, 0):
            for base in np.unique(rows["segment"][rows["first_queue_offset"] + rows["count"] > offset]).tolist():
                segment = SegmentReader(reader, manifest.entry_of_rows(reader, head, base))
                runs = [r for r in segment.directory_rows(TOPIC, 0) if r.first_queue_offset + r.records > offset]
                for record in segment.records_of(runs):
                    if record.queue_offset >= offset:
                        yield StoredMessage(record, "store", Tier.COLD)

    manifest, offset = fresh(), 0
    (topic,) = manifest.state(manifest.reader(), manifest.refresh()).topics
    while True:
        if not keeps_metadata:
            manifest = fresh()
        page = [message for message, _ in zip(messages(manifest, topic.topic_id, offset), range(limit), strict=False)]
        offset += len(page)
        if len(page) < limit or offset >= most:
            return offset


def replay(engine: Archive, limit: int, queue: int = 0) -> int:
    """Pull a queue to its end."""
    offset = 0
    while (page := engine.pull(TOPIC, queue, offset, limit)).status is PullStatus.FOUND:
        offset = page.next_offset
    return offset


def opened(objects: SlowObjectStore | MeteredObjectStore) -> Archive:
    return Archive.open("memory://bench", settings=Settings(), objects=objects)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--limit", type=int, nargs="+", default=[32, 1000])
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--mb-s", type=float, default=0.0)
    parser.add_argument("--segment-mib", type=int, default=64)
    parser.add_argument("--naive-messages", type=int, default=3000, help="messages that the naive ways read")
    given = parser.parse_args()
    objects = SlowObjectStore(SystemClock())
    with tempfile.TemporaryDirectory() as folder:
        archived(Path(folder), objects, given.messages, given.body, given.queues, given.segment_mib)
    objects.latency_s, objects.bytes_per_s = given.latency_ms / 1000, given.mb_s * 1e6
    print(f"{'limit':>6} {'':>24} {'msg/s':>10} {'ratio':>8}")
    for limit in given.limit:
        rates = []
        for name in ("naive", "naive, metadata kept", "now"):
            begin = time.perf_counter()
            if name == "now":
                engine = opened(objects)
                count = replay(engine, limit)
                engine.close()
            else:
                count = naive_replay(objects, limit, given.naive_messages, keeps_metadata=name != "naive")
            rates.append(count / (time.perf_counter() - begin))
            print(f"{limit:>6} {name:>24} {rates[-1]:>10.0f} {rates[-1] / rates[0]:>8.1f}")
    meter = Meter()
    engine = opened(MeteredObjectStore(objects, meter))
    begin, before = time.perf_counter(), meter.reading()
    count = sum(replay(engine, 1000, queue) for queue in range(given.queues))
    took, asked = time.perf_counter() - begin, meter.reading() - before
    print(
        f"topic replay: {count} messages, {asked.requests} requests, {asked.bytes_read} bytes read, {took:.2f} s, "
        f"{asked.bytes_read / took / 1e6:.1f} MB/s compressed"
    )
    engine = opened(objects)
    for name in ("cold", "warm"):
        begin = time.perf_counter()
        answer = engine.query(Query(TOPIC, f"key-{given.messages // 2}"))
        coverage, took = answer.coverage, time.perf_counter() - begin
        print(
            f"look-up, {name} caches: {len(answer.messages)} message, {coverage.requests} requests, "
            f"{coverage.bytes} bytes, {coverage.round_trips} round trips, {took * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
