"""What does it cost to compile kernels for a named baseline, as an image has to, and not for the very processor?

Encode (batches of 1,000 messages of 256 bytes with key and tag), scan with every checksum, hash keys, put into an
index, and compact it, each over the same data in memory. Both targets run in turns, ``--runs`` times, each in a
process of its own with a cache of its own; compiled before. Millions of messages (items) a second: lowest, median,
highest, and the median of the ratios of pairs. By processor time, so that what else runs hardly counts.

``python benchmarks/kernel_targets.py [--runs 5] [--messages 400000]``
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_TARGETS = ("native", "baseline")
_BATCH = 1_000


def child(target: str, messages: int) -> dict[str, float]:
    import numpy as np

    from tierlog.tiering.kernels import cache

    if target == "baseline":
        cache.use_target(cache.BASELINES[platform.machine()])
    from benchmarks.compaction import FS, sealed_file
    from tests.support.index.key_batches import ManyKeys
    from tierlog.index.kernels.keys import hash_keys
    from tierlog.index.local.compaction import compact
    from tierlog.tiering.kernels.scan import TopicTable, scan_all
    from tierlog.tiering.message.batch import Message, MessageBatch, encode_batch

    chance = np.random.default_rng(1)
    body = chance.integers(32, 127, 256, np.uint8).tobytes()
    batch = MessageBatch.of(
        [Message("orders", body, [f"{int(k):016x}"], "paid") for k in chance.integers(0, 1 << 62, _BATCH)],
        now_ms=1, max_body_bytes=1 << 20,
    )  # fmt: skip
    sizes = batch.record_sizes(16, checksum=True)
    step = int(sizes.sum())
    rounds = messages // _BATCH
    data = np.zeros(step * rounds, np.uint8)
    host, queues, offsets = np.zeros(8, np.uint8), np.zeros(_BATCH, np.int32), np.arange(_BATCH, dtype=np.int64)

    def encode_all() -> None:
        for number in range(rounds):
            encode_batch(
                batch, 0, _BATCH, sizes, data[number * step : (number + 1) * step], physical=number * step, store_ms=1,
                store_host=host, queue_id=queues, queue_offset=offsets, checksum=True,
            )  # fmt: skip

    rates = {}

    def timed(name: str, count: int, work, warm) -> None:  # type: ignore[no-untyped-def]  # a closure of either kind
        warm()
        begun = time.process_time()
        work()
        rates[name] = count / (time.process_time() - begun) / 1e6

    timed("encode with checksum", rounds * _BATCH, encode_all, encode_all)
    topics = TopicTable(["orders"])
    timed("scan with checksum", rounds * _BATCH, lambda: scan_all(data, len(data), 0, topics),
          lambda: scan_all(data[: step * 2], step * 2, 0, topics))  # fmt: skip
    rows = scan_all(data, len(data), 0, topics).rows
    timed("hash keys", rounds * _BATCH, lambda: hash_keys(data, rows), lambda: hash_keys(data, rows[:_BATCH]))
    with tempfile.TemporaryDirectory() as folder:
        items = messages * 5
        keys, few = ManyKeys.random(items), ManyKeys.random(1000)
        small = sealed_file(Path(folder) / "small", few, 100)
        timed("put into an index", items, lambda: sealed_file(Path(folder) / "file", keys, items // 4), lambda: None)
        file = sealed_file(Path(folder) / "again", keys, items // 4)
        timed("compact and compare", items, lambda: compact(FS, file, Path(folder) / "out", Path(folder) / "tmp"),
              lambda: compact(FS, small, Path(folder) / "small-out", Path(folder) / "tmp"))  # fmt: skip
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--child", choices=_TARGETS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child, arguments.messages)))
        return
    found: dict[str, list[dict[str, float]]] = {target: [] for target in _TARGETS}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(-1, arguments.runs):  # the first compiles
            for target in _TARGETS:
                command = [sys.executable, __file__, "--child", target, "--messages", str(arguments.messages)]
                variables = {**os.environ, "NUMBA_CACHE_DIR": f"{folder}/{target}", "PYTHONPATH": os.getcwd()}
                done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
                if run >= 0:
                    found[target].append(json.loads(done.stdout))
    print(f"{'':24}{'native':>24}{'baseline':>24}   baseline/native")
    for name in found["native"][0]:
        columns = []
        for target in _TARGETS:
            rates = [run[name] for run in found[target]]
            columns.append(f"{min(rates):.2f} / {statistics.median(rates):.2f} / {max(rates):.2f}")
        ratios = [two[name] / one[name] for one, two in zip(found["native"], found["baseline"], strict=True)]
        print(f"{name:24}{columns[0]:>24}{columns[1]:>24}   {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
