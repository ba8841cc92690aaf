"""Does opening a store after a kill take as long as the log since the last checkpoint, or as long as the store?

Stores of ``--segments`` segments of ``--segment-mib`` MiB each, then a checkpoint, then ``--tail-mib`` MiB more, then
SIGKILL. Printed for each: seconds to open, bytes of log that recovery scanned, and of how many that is. Once with keys
and once without, because the key index has a recovery point of its own: the end of its last sealed file.

``python benchmarks/recovery.py [--segments 1 4 16] [--segment-mib 64] [--tail-mib 16]``
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

from service.engine import Engine
from service.settings import Settings
from tests.support.scanned_bytes import counting_scans
from tiering.batch import Message, MessageBatch
from tiering.types import Durability

_BATCH = 1_000


def settings_for(segment_mib: int) -> Settings:
    return Settings.load(overrides={"hot.segment_bytes": segment_mib << 20, "advertise": "127.0.0.1:10911"})


def fill_and_die(root: Path, settings: Settings, segments: int, tail_bytes: int, *, keyed: bool) -> None:
    """In a child process: write, checkpoint, write the tail, die."""
    engine = Engine.open(root, settings=settings)
    hot = engine._hot  # the column path has no public name yet
    keys = [f"order-{number}" for number in range(_BATCH)]
    messages = [Message("bench", b"x" * 330, [key] if keyed else [], queue_id=n % 4) for n, key in enumerate(keys)]
    batch = MessageBatch.of(messages, now_ms=1, max_body_bytes=1 << 20)
    size = int(batch.record_sizes(16).sum())
    while hot.log.end + size < segments * hot.log.segment_bytes - tail_bytes:
        hot.append(batch, Durability.ASYNC)
    engine.flush()
    durable = hot.log.flushed
    while hot.log.end < durable + tail_bytes:
        hot.append(batch, Durability.FLUSHED)
    hot.dispatch()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--segment-mib", type=int, default=64)
    parser.add_argument("--tail-mib", type=int, default=16)
    given = parser.parse_args()
    settings = settings_for(given.segment_mib)
    print(f"{'store':>22} {'log':>10} {'since checkpoint':>17} {'open':>8} {'scanned':>10}")
    for keyed in (True, False):
        for segments in given.segments:
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder) / "store"
                child = os.fork()
                if child == 0:
                    fill_and_die(root, settings, segments, given.tail_mib << 20, keyed=keyed)
                os.waitpid(child, 0)
                with counting_scans() as scans:
                    began = time.monotonic()
                    engine = Engine.open(root, settings=settings)
                    seconds = time.monotonic() - began
                name = f"{segments} segments{'' if keyed else ', no keys'}"
                log_mib, scanned_mib = engine.stats()["log_end"] >> 20, scans.bytes >> 20
                print(f"{name:>22} {log_mib:6} MiB {given.tail_mib:13} MiB {seconds:6.2f} s {scanned_mib:6} MiB")
                engine.close()


if __name__ == "__main__":
    main()
