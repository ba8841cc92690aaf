"""How much memory does archiving one segment take, beside what the process held before?

A segment of ``--mib`` MiB is filled with records of ``--body`` bytes of base64 text (incompressible but for that) in
``--queues`` queues, or, with TIERLOG_DATA and ``--logs``, with the lines of the real logs. Then a fresh process opens
the store and archives it: against a directory, against the store in memory, whose own copies of the object are in the
figure, or against an S3 server. Memory is RssAnon of /proc/self/status, sampled every 2 ms: pages of the mapped log are
page cache and do not count. A small segment is archived first, so that imports and compiled code do not count either.

``python benchmarks/archive_memory.py [--mib 1024] [--body 256] [--queues 64] [--logs] [--stores local memory s3]``
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes.measured import measured
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import ColdOptions, HotOptions
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import Durability
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.archiver import upload_segment
from tierlog.tiering.message.batch import Message, MessageBatch
from tierlog.tiering.objects.local import LocalObjectStore
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.s3_store import S3ObjectStore

_BATCH = 1_000


def open_hot(root: Path, mib: int) -> HotStore:
    hot = HotStore(
        LocalFileSystem(), StorePaths(root), SystemClock(), HotOptions(segment_bytes=mib << 20, default_queues=64),
        bytes(8), published_below=0,
    )  # fmt: skip
    hot.recover([])
    return hot


def made_up(body_bytes: int, queues: int) -> Iterator[list[Message]]:
    chance = random.Random(1)
    while True:
        raw = base64.b64encode(chance.randbytes(_BATCH * body_bytes))
        yield [
            Message(
                f"t{chance.randrange(max(1, queues // 64))}",
                raw[at : at + body_bytes],
                queue_id=chance.randrange(min(queues, 64)),
            )
            for at in range(0, _BATCH * body_bytes, body_bytes)
        ]


def real_lines() -> Iterator[list[Message]]:
    files = sorted(Path(os.environ["TIERLOG_DATA"], "loghub").rglob("*.log"))
    while True:
        for path in files:
            lines = [line for line in path.read_bytes().splitlines() if line]
            for start in range(0, len(lines), _BATCH):
                yield [
                    Message(path.stem, line, queue_id=number % 4)
                    for number, line in enumerate(lines[start : start + _BATCH])
                ]


def fill(root: Path, mib: int, messages: Iterator[list[Message]]) -> int:
    for folder in ("tmp", "tierlog", "commitlog", "consumequeue"):
        (root / folder).mkdir(parents=True)
    hot = open_hot(root, mib)
    count = 0
    for batch in messages:
        made = MessageBatch.of(batch, now_ms=1, max_body_bytes=1 << 22)
        if hot.log.end + int(made.record_sizes(16).sum()) > (mib << 20) - 8:
            break
        hot.append(made, Durability.ASYNC)
        count += len(batch)
    hot.roll()
    hot.dispatch()
    hot.close()
    return count


def archive(root: Path, mib: int, objects: ObjectStore) -> tuple[int, float, float, int, int]:
    """(peak of anonymous memory over before, seconds, seconds of processor, record bytes, object bytes)."""
    hot = open_hot(root, mib)
    manifest = ManifestStore(objects, ColdKeys("bench"), randomness=SystemRandomness(), options=ColdOptions())
    segment = hot.log.segments()[0]
    run = measured(
        lambda: upload_segment(manifest, SystemRandomness(), topics=hot.topics.all(), segment=segment, epoch=1)
    )
    hot.close()
    return run.peak_bytes, run.seconds, run.cpu_seconds, run.result.raw_bytes, run.result.size_bytes


def measure(root: Path, mib: int, kind: str, endpoint: str, bucket: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder, "small"), 1, made_up(64, 4))
        archive(Path(folder, "small"), 1, MemoryObjectStore(SystemClock()))
        objects: ObjectStore = MemoryObjectStore(SystemClock())
        if kind == "local":
            objects = LocalObjectStore(Path(folder, "cold"), SystemClock())
        if kind == "s3":
            objects = S3ObjectStore(bucket, "archive-memory", endpoint_url=endpoint or None)
            archive(Path(folder, "small"), 1, objects)
        peak, seconds, cpu_seconds, raw, stored = archive(root, mib, objects)
    print(
        f"{kind:8} {peak / (1 << 20):8.0f} MiB more at its peak   {raw / seconds / 1e6:6.0f} MB/s {seconds:7.2f} s, "
        f"{cpu_seconds:.2f} of processor   "
        f"{raw / stored:.2f} : 1, object {stored / (1 << 20):.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--body", type=int, default=256)
    parser.add_argument("--queues", type=int, default=64)
    parser.add_argument("--logs", action="store_true")
    parser.add_argument("--stores", nargs="+", default=["local", "memory"], choices=["local", "memory", "s3"])
    parser.add_argument("--endpoint", default="", help="of an S3 server, whose bucket must exist")
    parser.add_argument("--bucket", default="bench")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "store")
        count = fill(root, given.mib, real_lines() if given.logs else made_up(given.body, given.queues))
        print(f"{count / 1e6:.2f} M records in {given.mib} MiB", flush=True)
        for kind in given.stores:
            process = multiprocessing.get_context("spawn").Process(
                target=measure, args=(root, given.mib, kind, given.endpoint, given.bucket)
            )
            process.start()
            process.join()


if __name__ == "__main__":
    main()
