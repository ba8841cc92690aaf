"""How fast is each step of the main job, and how far from the bare operation below it?

One segment of ``--mib`` MiB is appended in batches of 1,000 messages (columns, ``flushed``), dispatched, archived to a
directory and asked. Beside append runs a plain pwrite + fdatasync of the same bytes, beside archive a plain zstd of the
same records in the same frames. Everything in one run; the ratio is printed. No service, no network.

``python benchmarks/main_job.py [--mib 256]``
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import zstandard

from tierlog.index.search.query import Query
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message, MessageBatch

_BATCH = 1_000
_TOPIC = "bench"


def batches(total_bytes: int) -> tuple[list[MessageBatch], list[str]]:
    """Messages of about 436 bytes of record: 200 to 300 bytes of log-like text and one 16-hex key."""
    chance = random.Random(1)
    words = [f"{chance.choice('abcdefgh')}{chance.randrange(4_000)}" for _ in range(3_000)]
    made, keys, size = [], [], 0
    while size < total_bytes:
        messages = []
        for _ in range(_BATCH):
            key = f"{chance.getrandbits(64):016x}"
            body = " ".join(chance.choices(words, k=50)).encode()
            messages.append(Message(_TOPIC, body, [key], "INFO", born_ms=1, queue_id=chance.randrange(4)))
        keys.append(messages[0].keys[0])
        made.append(MessageBatch.of(messages, now_ms=1, max_body_bytes=1 << 20))
        size += int(made[-1].record_sizes(16).sum())
    return made[:-1], keys[:-1]


def report(step: str, messages: int, size: int, seconds: float, peer_seconds: float | None = None) -> None:
    line = f"{step:34} {messages / seconds / 1e6:7.3f} M/s {size / seconds / 1e6:8.0f} MB/s {seconds:8.2f} s"
    print(line + ("" if peer_seconds is None else f"   {peer_seconds / seconds:5.2f} of the bare operation"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256)
    mib = parser.parse_args().mib
    made, keys = batches(mib << 20)
    count = len(made) * _BATCH
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = Settings.load(
            overrides={"hot.segment_bytes": (mib + 4) << 20, "index.items": 4_000_000, "index.slots": 1_000_000}
        )
        engine = Store.open(root / "store", settings=settings, cold_url=f"file://{root}/cold")
        hot = engine._hot  # the column path has no public name yet
        began = time.monotonic()
        for batch in made:
            hot.append(batch, Durability.FLUSHED)
        append_s = time.monotonic() - began
        size = hot.log.end
        data = hot.log.segments()[0].data[:size]
        report("append, flushed, 1,000 a batch", count, size, append_s, bare_append(root / "bare", data, len(made)))
        began = time.monotonic()
        hot.dispatch()
        report("dispatch: queue units and index", count, size, time.monotonic() - began)
        began = time.monotonic()
        done = engine.archive(everything=True, drop_hot=True)
        report("archive, publish index, remove", count, size, time.monotonic() - began, bare_zstd(data))
        print(f"{'':34} {done.bytes_raw / done.bytes_stored:.2f} : 1 in the archive")
        began = time.monotonic()
        for key in keys:
            assert len(engine.query(Query(_TOPIC, key)).messages) == 1
        seconds = time.monotonic() - began
        print(f"{'cold query by key':34} {seconds / len(keys) * 1e3:7.2f} ms each, {len(keys)} keys")
        engine.close()


def bare_append(path: Path, data: np.ndarray[tuple[int], np.dtype[np.uint8]], calls: int) -> float:
    """Seconds for the same bytes in as many pwrite + fdatasync calls into a pre-written file."""
    path.write_bytes(bytes(len(data)))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    piece = -(-len(data) // calls)
    began = time.monotonic()
    for start in range(0, len(data), piece):
        os.pwrite(fd, data[start : start + piece].data, start)
        os.fdatasync(fd)
    seconds = time.monotonic() - began
    os.close(fd)
    return seconds


def bare_zstd(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    """Seconds to compress the same bytes in frames of 64 KiB, level 1, and throw them away."""
    compressor = zstandard.ZstdCompressor(level=1)
    began = time.monotonic()
    for start in range(0, len(data), 1 << 16):
        compressor.compress(data[start : start + (1 << 16)].data)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
