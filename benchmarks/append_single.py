"""How fast are messages appended one by one through the library, encoding and writing included?

Bodies of 256 random bytes, a key of 16 hex digits and a tag, ``async``, one thread: a call for each message, timed
until the last of them is written, with queues and index derived beside it. ``Producer.send`` keeps messages and encodes
1,000 at a time, so its calls answer nothing; ``engine.append`` of one message answers where it went, as RocketMQ's
``putMessage`` does.

``python benchmarks/append_single.py [--messages 500000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.append import opened
from benchmarks.corpus import hex_keys
from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.peers.rocketmq import rocketmq
from service.engine import Engine
from service.producer import Producer
from tiering.batch import Message
from tiering.types import Durability

_BODY_BYTES = 256
_DISTINCT = 50_000
#: ``engine.append`` of one message gets that share of the messages.
_FEWER = 10


def corpus() -> list[tuple[bytes, str]]:
    """Bodies and keys."""
    octets = np.random.default_rng(1).integers(0, 256, _DISTINCT * _BODY_BYTES, np.uint8).tobytes()
    bodies = [octets[start : start + _BODY_BYTES] for start in range(0, len(octets), _BODY_BYTES)]
    return list(zip(bodies, [key.decode() for key in hex_keys(_DISTINCT).tolist()], strict=True))


def timed(folder: Path, count: int, append: Callable[[Engine], object]) -> float:
    """Calls a second on a new store."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        engine = opened(Path(inside) / "store")
        try:
            drained()
            begun = time.perf_counter()
            append(engine)
            rate = count / (time.perf_counter() - begun)
            engine.flush()
            assert sum(queue.max_offset for queue in engine.topic("orders").queues) == count
        finally:
            engine.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    messages = corpus()
    few = arguments.messages // _FEWER

    def produce(engine: Engine) -> None:
        producer = Producer(engine, Durability.ASYNC)
        send = producer.send
        for _ in range(arguments.messages // _DISTINCT):
            for body, key in messages:
                send("orders", body, (key,), "TagA")
        engine.append(producer._pending, Durability.ASYNC)  # written, as the others' last one, not flushed

    def append_each(engine: Engine) -> None:
        for number in range(few):
            body, key = messages[number % _DISTINCT]
            engine.append([Message("orders", body, (key,), "TagA")], Durability.ASYNC)

    with tempfile.TemporaryDirectory(dir=arguments.dir) as inside:
        folder = Path(inside)
        with rocketmq(folder / "java") as java:
            count = arguments.messages - arguments.messages % _DISTINCT

            def put_message() -> float:
                drained()
                return java.rate("append", n=count, threads=1, body=_BODY_BYTES, sync=False, batch=1)

            found = in_turns(
                {
                    "Producer.send": lambda: timed(folder, count, produce),
                    "RocketMQ putMessage": put_message,
                    "engine.append of one": lambda: timed(folder, few, append_each),
                },
                arguments.runs,
            )
    report.add(Row("append one by one, async", "calls/s", found, target=3.0))
    report.save()


if __name__ == "__main__":
    main()
