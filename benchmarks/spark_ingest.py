"""How fast does the job ingest archive and index a log of RocketMQ's format, with 1 and 2 cores?

A log of ``--mib`` MiB, in segments of ``--segment-mib``, is written by the project's own encoder: records of about 300
bytes in 64 queues of 4 topics, a key of its own and one of 100,000 orders each. Then the job runs in a session of each
of ``--cores``, to a directory, every time as a new store, and a deep check looks at the last one.

``python benchmarks/spark_ingest.py [--mib 1024] [--segment-mib 256] [--cores 1 2] [--no-check]``
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import random
import tempfile
from pathlib import Path

import numpy as np

from tierlog.pipeline.jobs.ingest import main as ingest
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from tierlog.tiering.message.batch import NO_HOST, Message, MessageBatch, encode_batch

_BATCH = 20_000
_TOPICS, _QUEUES, _ORDERS = 4, 16, 100_000
_BEGIN_MS = 1_700_000_000_000


def batch_of(chance: random.Random, first: int) -> MessageBatch:
    """Messages from number ``first`` on."""
    text = base64.b64encode(chance.randbytes(96 * _BATCH))
    messages = [
        Message(
            f"topic-{(first + number) % _TOPICS}",
            b'{"amount": %d, "note": "%s"}' % (chance.randrange(10_000), text[128 * number : 128 * number + 128]),
            keys=(f"message-{first + number}", f"order-{chance.randrange(_ORDERS)}"),
            tag="TagA",
            properties={"source": "benchmark"},
            queue_id=(first + number) // _TOPICS % _QUEUES,
        )
        for number in range(_BATCH)
    ]
    return MessageBatch.of(messages, now_ms=_BEGIN_MS, max_body_bytes=1 << 20)


def write_log(root: Path, mib: int, segment_mib: int) -> int:
    """A broker's directory with that much log; returns its messages."""
    folder, chance = root / "commitlog", random.Random(1)
    folder.mkdir(parents=True)
    size, base, number = segment_mib << 20, 0, 0
    while base < mib << 20:
        data, position = np.zeros(size, np.uint8), 0
        while True:
            batch = batch_of(chance, number)
            sizes = batch.record_sizes(2 * len(NO_HOST))
            ends = np.cumsum(sizes)
            count = int(np.searchsorted(ends, size - BLANK_BYTES - position, side="right"))
            offsets = (number + np.arange(_BATCH, dtype=np.int64)) // (_TOPICS * _QUEUES)
            if count:
                encode_batch(
                    batch, 0, count, sizes, data[position : position + int(ends[count - 1])], physical=base + position,
                    store_ms=_BEGIN_MS + number // 10, store_host=NO_HOST, queue_id=batch.queue_id,
                    queue_offset=offsets,
                )  # fmt: skip
                position += int(ends[count - 1])
                number += count
            if count < _BATCH:
                break
        data[position : position + BLANK_BYTES] = np.frombuffer(BLANK.pack(size - position, MAGIC_BLANK), np.uint8)
        data.tofile(folder / f"{base:020d}")
        base += size
    return number


def run(root: Path, cold: Path, cores: int) -> dict[str, float]:
    """The job's summary, in a session of its own."""
    out = io.StringIO()
    arguments = ["--cold", f"file://{cold}", "--store", f"cores-{cores}", "--rocketmq", str(root)]
    with contextlib.redirect_stdout(out):
        code = ingest([*arguments, "--master", f"local[{cores}]"])
    assert code == 0
    summary: dict[str, float] = json.loads(out.getvalue().splitlines()[-1])
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--segment-mib", type=int, default=256)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--no-check", action="store_true")
    arguments = parser.parse_args()
    checkout = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH", ""))))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        root, cold = Path(folder) / "broker", Path(folder) / "cold"
        began_s = clock.monotonic_s()
        messages = write_log(root, arguments.mib, arguments.segment_mib)
        print(f"log of {arguments.mib} MiB, {messages:,} messages, made in {clock.monotonic_s() - began_s:.1f} s")
        for cores in arguments.cores:
            summary = run(root, cold, cores)
            assert summary["messages"] == messages
            seconds = summary["seconds"]
            print(
                f"{cores} cores: {seconds:.1f} s, {arguments.mib / seconds:.0f} MiB/s,"
                f" {messages / seconds:,.0f} messages/s, {summary['segments']} segments,"
                f" {summary['index_objects']} index objects,"
                f" {summary['bytes_raw'] / summary['bytes_stored']:.2f} : 1"
            )
        if not arguments.no_check:
            engine = Archive.open(f"file://{cold}", settings=Settings(), store_id=f"cores-{arguments.cores[-1]}")
            try:
                began_s = clock.monotonic_s()
                print(
                    f"deep check: {engine.check(deep=True) or 'nothing found'}, {clock.monotonic_s() - began_s:.1f} s"
                )
            finally:
                engine.close()


if __name__ == "__main__":
    main()
